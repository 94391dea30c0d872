"""docs/evidence/faults.md is about the tests that there are."""

from __future__ import annotations

import re

from rig.rows import ALSO, ELSEWHERE, PAGE, ROWS, shown_by_row

OWN = ("tests/faults/test_network.py", "tests/faults/test_server.py", "tests/faults/test_machine.py")


def test_every_row_has_a_test_or_a_reason() -> None:
    assert [row.number for row in ROWS] == list(range(1, 71))
    tests = shown_by_row()
    assert [row.number for row in ROWS if not tests.get(row.number) and row.number not in ELSEWHERE] == []
    assert set(tests) <= set(range(1, 71))


def test_what_is_named_exists() -> None:
    found = {test.name for tests in shown_by_row().values() for test in tests}
    assert sorted(set(ALSO) - found) == []


def test_the_page_is_current() -> None:
    text = PAGE.read_text(encoding="utf-8")
    linked = re.findall(r"\[`(test_\w+)`\]\(\.\./\.\./([\w/.]+)\)", text)
    named = {name for name, _ in linked}
    existing = {test.name: test for tests in shown_by_row().values() for test in tests}
    missing = sorted(test.name for test in existing.values() if test.path in OWN and test.name not in named)
    assert not missing, f"python -m rig rows: {missing} are not on the page"
    gone = sorted(name for name, path in linked if path in OWN and name not in existing)
    assert not gone, f"python -m rig rows: {gone} are on the page, and not in the tests"
    for row in ROWS:
        assert f"| {row.number} | {row.fault} | {row.result}" in text, f"python -m rig rows: row {row.number} differs"


def test_rights_are_those_of_the_test() -> None:
    from tests.faults.test_server import LOCK_COMMANDS

    text = PAGE.read_text(encoding="utf-8")
    assert all(word in text for word in LOCK_COMMANDS.split())

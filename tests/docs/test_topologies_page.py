"""docs/topologies.md names evidence that there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from holdfast.lab.faults import FAULTS
from holdfast.lab.handles import ENTRIES
from sim.options import MODES

ROOT = Path(__file__).parent.parent.parent
PAGES = [ROOT / "docs" / "topologies.md", ROOT / "docs" / "topologies.zh-CN.md"]


def rows(page: Path) -> dict[str, list[str]]:
    """The cells of the lines that begin with a letter: first those of the table, then those of the evidence."""
    found: dict[str, list[str]] = {}
    for line in page.read_text(encoding="utf-8").splitlines():
        if re.match(r"\| [A-Z] \|", line):
            letter, *cells = [cell.strip() for cell in line.strip("|").split("|")]
            found.setdefault(letter, []).extend(cells)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_all_that_is_named_exists(page: Path) -> None:
    tests = " ".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    names = {*ENTRIES, *FAULTS}
    for letter, cells in rows(page).items():
        assert len(cells) == 5 + 3, f"row {letter}: what happens, four places; tests, lab, simulation"
        shown, lab, simulated = cells[5:]
        assert shown, f"row {letter} names no test"
        for name in re.findall(r"`(test_\w+)`", shown):
            assert f"def {name}(" in tests, name
        for name in re.findall(r"`([a-z-]+)`", lab):
            assert name in names, name
        for name in re.findall(r"`([a-z0-9-]+)`", simulated):
            assert name in MODES, name


def test_both_languages_say_it_of_the_same() -> None:
    english, chinese = (rows(page) for page in PAGES)
    assert english.keys() == chinese.keys()
    for letter, cells in english.items():
        for mine, theirs in zip(cells[5:], chinese[letter][5:], strict=True):
            assert set(re.findall(r"`[^`]+`", mine)) == set(re.findall(r"`[^`]+`", theirs)), letter

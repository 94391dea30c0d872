"""The evidence for docs/topologies.md is there, for each row of its table."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from holdfast_lab.faults import FAULTS
from holdfast_lab.handles import ENTRIES
from sim.options import MODES

ROOT = Path(__file__).parent.parent.parent
PAGES = [ROOT / "docs" / "topologies.md", ROOT / "docs" / "topologies.zh-CN.md"]
EVIDENCE = ROOT / "docs" / "evidence" / "topologies.md"


def rows(page: Path) -> dict[str, list[str]]:
    """The cells of the lines that begin with a letter."""
    found: dict[str, list[str]] = {}
    for line in page.read_text(encoding="utf-8").splitlines():
        if re.match(r"\| [A-Z] \|", line):
            letter, *cells = [cell.strip() for cell in line.strip("|").split("|")]
            found.setdefault(letter, []).extend(cells)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_row_has_its_evidence(page: Path) -> None:
    table = rows(page)
    assert table.keys() == rows(EVIDENCE).keys()
    assert {letter: len(cells) for letter, cells in table.items()} == dict.fromkeys(table, 5)


def test_all_that_is_named_exists() -> None:
    tests = " ".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    names = {*ENTRIES, *FAULTS}
    for letter, (shown, lab, simulated) in rows(EVIDENCE).items():
        assert shown, f"row {letter} names no test"
        for name in re.findall(r"`(test_\w+)`", shown):
            assert f"def {name}(" in tests, name
        for name in re.findall(r"`([a-z-]+)`", lab):
            assert name in names, name
        for name in re.findall(r"`([a-z0-9-]+)`", simulated):
            assert name in MODES, name

"""docs/design/README.md lists each record, and says by what it is superseded."""

from __future__ import annotations

import re
from pathlib import Path

DESIGN = Path(__file__).resolve().parents[2] / "docs" / "design"
ROW = re.compile(r"^\| \[(\d{4})\]\(([^)]+)\) \| .* \| (.*)\|$", re.MULTILINE)
ROWS = {
    number: (file, set(re.findall(r"\[(\d{4})\]", by)))
    for number, file, by in ROW.findall((DESIGN / "README.md").read_text("utf-8"))
}


def test_every_record_is_listed() -> None:
    assert {file for file, _ in ROWS.values()} == {path.name for path in DESIGN.glob("0*.md")}


def test_a_superseded_record_says_so_at_its_top() -> None:
    assert any(by for _, by in ROWS.values())
    for number, (file, by) in ROWS.items():
        text = (DESIGN / file).read_text("utf-8")
        top = text.split("\n\n")[1].lower()
        named = set(re.findall(r"\[(\d{4})\]", top)) if re.match(r"(to be )?superseded", top) else set()
        assert named == by, number

"""Play what the ladder pages show, and put the timelines in their places: `python -m tests.lab.refresh_ladder`.

A line ``<!-- lab: SCHEME FAULT -->`` is followed by the timeline of that cell, ``<!-- torture: NAME -->`` by the row of
that lock. What stood there before is replaced.
"""

from __future__ import annotations

import re
from pathlib import Path

from holdfast.lab import commands, runs
from holdfast.lab.handles import entry_for_factory
from holdfast.lab.timeline import cell_text
from holdfast.lab.verdicts import MARKS, SAFE

__all__ = ["MARK", "PAGES", "main"]

ROOT = Path(__file__).resolve().parents[2]
PAGES = (ROOT / "docs" / "ladder.md", ROOT / "docs" / "ladder.zh-CN.md")
MARK = re.compile(r"<!-- (lab|torture): ([^\n]*?) -->\n(?:\n```text\n.*?\n```\n)?", re.DOTALL)


def block(cell: runs.Cell) -> str:
    """The worst play, cut after the last violation."""
    lines = cell_text(cell, 140 if "redlock" in cell.scheme else 124).splitlines()
    command = f"$ holdfast lab run {cell.scheme} {cell.fault}"
    wrong = re.compile(r" *[\d.]+  (?:(?:✗✗|≠|✂|∞|…) [A-Z]|.*REFUSED)")
    last = max((n for n, line in enumerate(lines) if wrong.match(line)), default=None)
    ends = [n for n, line in enumerate(lines) if any(line.startswith(f"{mark} ") for mark in MARKS.values())]
    if last is not None and cell.verdict != SAFE:
        while last + 1 < len(lines) and cell.verdict == "stuck" and lines[last + 1].strip():
            last += 1
        rest = [] if last + 2 >= ends[0] else ["      …"]
        lines = [*lines[: last + 1], *rest, "", *lines[ends[0] :]]
    return "\n".join([command, *lines[1:]])


def main() -> None:
    """Rewrite both pages with the same plays."""
    wanted = {found[2] for page in PAGES for found in MARK.finditer(page.read_text()) if found[1] == "lab"}
    chosen = [(runs.find_entry(scheme), runs.find_fault(fault)) for scheme, fault in (w.split() for w in wanted)]
    shown = {f"{cell.scheme} {cell.fault}": block(cell) for cell in runs.play_many(chosen, jobs=2)}
    entry = entry_for_factory("tests.lab.mylocks:redis_py")
    row = runs.play_many(runs.pairs([entry]), path=[str(ROOT)])
    order = [fault.name for _, fault in runs.pairs([entry])]
    row.sort(key=lambda cell: order.index(cell.fault))
    told = commands.row_text(entry, row).replace("tests.lab.", "")
    shown["redis_py"] = f"$ holdfast lab torture mylocks:redis_py\n{told.rstrip()}"
    for page in PAGES:
        text = MARK.sub(lambda m: f"<!-- {m[1]}: {m[2]} -->\n\n```text\n{shown[m[2]]}\n```\n", page.read_text())
        page.write_text(text)


if __name__ == "__main__":
    main()

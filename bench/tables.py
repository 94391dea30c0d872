"""Results: a table for each row, targets beside it, as Markdown and as JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Table", "Target", "number"]


def number(value: float | None, unit: str = "") -> str:
    """Format a number for people: three significant digits, thousands apart."""
    if value is None or math.isnan(value):
        return "–"
    if value == 0:
        text = "0"
    elif abs(value) >= 1000:
        text = f"{value:,.0f}"
    elif abs(value) >= 100:
        text = f"{value:.0f}"
    elif abs(value) >= 10:
        text = f"{value:.1f}"
    else:
        text = f"{value:.2f}"
    return f"{text} {unit}".strip()


@dataclass(frozen=True, slots=True)
class Target:
    """What was to be reached: `measured` at most (or, with `at_least`, at least) `limit`."""

    what: str
    measured: float
    limit: float
    at_least: bool = False

    @property
    def met(self) -> bool:
        """Whether it was reached."""
        return self.measured >= self.limit if self.at_least else self.measured <= self.limit

    def __str__(self) -> str:
        sign = "≥" if self.at_least else "≤"
        said = f"{self.what}: {number(self.measured)} (target {sign} {number(self.limit)}): "
        if self.met:
            return said + "met"
        if self.limit == 0 or self.measured == 0:
            return said + "**missed**"
        by = self.limit / self.measured if self.at_least else self.measured / self.limit
        return said + f"**missed** by {(by - 1) * 100:.0f} %"


@dataclass(slots=True)
class Table:
    """What a row found. `figures` is the same for programs: {who: {column: value}}."""

    name: str
    title: str
    note: str
    head: Sequence[str]
    lines: list[Sequence[str]] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)
    figures: dict[str, dict[str, float | None]] = field(default_factory=dict)
    missing: str = ""

    def markdown(self) -> str:
        """Return the table as a section of the page."""
        parts = [f"## {self.title}", "", f"`python -m bench --only {self.name}`. {self.note}", ""]
        if self.lines:
            parts.append("| " + " | ".join(self.head) + " |")
            parts.append("|" + "|".join("---" if column == 0 else "--:" for column in range(len(self.head))) + "|")
            parts += ["| " + " | ".join(line) + " |" for line in self.lines]
            parts.append("")
        if self.missing:
            parts += [f"Not measured: {self.missing}", ""]
        parts += [f"- {target}" for target in self.targets]
        if self.targets:
            parts.append("")
        return "\n".join(parts)

    def plain(self) -> str:
        """Format the table for the terminal."""
        rows = [list(self.head), *(list(line) for line in self.lines)] if self.lines else []
        widths = [max(len(row[column]) for row in rows) for column in range(len(self.head))] if rows else []
        said = [f"{self.title}  [{self.name}]"]
        for row in rows:
            cells = [
                cell.ljust(width) if column == 0 else cell.rjust(width)
                for column, (cell, width) in enumerate(zip(row, widths, strict=True))
            ]
            said.append("  " + "  ".join(cells).rstrip())
        if self.missing:
            said.append(f"  not measured: {self.missing}")
        said += [f"  {str(target).replace('**', '')}" for target in self.targets]
        return "\n".join(said)

    def as_dict(self) -> dict[str, Any]:
        """Return the table for JSON."""
        return {
            "name": self.name,
            "title": self.title,
            "figures": {
                who: {what: None if value is None or math.isnan(value) else value for what, value in row.items()}
                for who, row in self.figures.items()
            },
            "missing": self.missing,
            "targets": [
                {"what": t.what, "measured": t.measured, "limit": t.limit, "at_least": t.at_least, "met": t.met}
                for t in self.targets
            ],
        }

"""Tables for people, and who is in them: what `list`, `top` and their like have in common."""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.cli.report import clean

if TYPE_CHECKING:
    from holdfast import Holder, Listed, Waiter

__all__ = [
    "fitted",
    "held_by",
    "left_of",
    "named",
    "oldest_of",
    "person",
    "span",
    "sums",
    "table",
]

#: No column is cut below this.
_LEAST = 12
#: Where nothing is cut, no column is filled up beyond this: one long name would move all others.
_FILLED_MAX = 48


def table(rows: Sequence[Sequence[str]], width: int | None, cut: Sequence[int] = ()) -> list[str]:
    """Lines of these rows, the first of which are heads; beyond `width`, the widest of the columns `cut` are cut."""
    widths = [max(_width(row[column]) for row in rows) for column in range(len(rows[0]))]
    if width is None:
        widths = [min(each, _FILLED_MAX) for each in widths]
        return ["  ".join(map(_filled, row, widths)).rstrip() for row in rows]
    over = sum(widths) + 2 * len(widths) - 2 - width
    while over > 0 and widths[widest := max(cut, key=lambda column: widths[column], default=0)] > _LEAST and cut:
        widths[widest] -= 1
        over -= 1
    return ["  ".join(fitted(*cell) for cell in zip(row, widths, strict=True)).rstrip() for row in rows]


def fitted(text: str, width: int) -> str:
    """In exactly that many columns of a terminal."""
    if _width(text) > width:
        while text and _width(text) > width - 1:
            text = text[:-1]
        text += "…"
    return _filled(text, width)


def _filled(text: str, width: int) -> str:
    return text + " " * (width - _width(text))


def _width(text: str) -> int:
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(char) else 1 + (unicodedata.east_asian_width(char) in "WF") for char in text)


def held_by(found: Listed) -> str:
    """Name the holders, in one cell."""
    holder = found.holder
    who = "-" if holder is None else named(holder)
    if holder is not None and holder.note is not None:
        who = f'"{clean(holder.note)}" {who}'
    if holder is not None and holder.gone:
        who = f"its client has gone: {who}"
    if found.held > 1:
        who += f" and {found.held - 1} more"
    who = f"{found.permits} permits: {who}" if found.permits else who
    return f"odd key {clean(found.odd)}: {who}" if found.odd else who


def named(one: Holder | Waiter) -> str:
    if one.host is None:
        return f"token {clean(one.token)}"
    return f"{clean(one.program)} ({clean(one.host)}, pid {one.pid})"


def person(one: Holder | Waiter) -> dict[str, Any]:
    who = {"token": one.token, "host": one.host, "pid": one.pid, "program": one.program}
    return {**who, "note": one.note} if hasattr(one, "note") else who


def left_of(holder: Holder | None) -> str:
    """For how long it holds still, in one cell."""
    if holder is None:
        return "-"
    return "no ttl" if holder.remaining_s is None else span(holder.remaining_s)


def oldest_of(found: Listed) -> str:
    """For how long the first of its queue has waited, in one cell."""
    return span(found.queue[0].age_s) if found.queue else "-"


def sums(found: Collection[Listed]) -> str:
    """The line below a table."""
    held = sum(1 for each in found if each.held)
    waiters = sum(each.waiters for each in found)
    return f"{len(found)} in all, {held} held, {waiters} waiter{'' if waiters == 1 else 's'}"


def span(seconds: float) -> str:
    """How long, in the greatest unit of which there are two."""
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.1f} s"

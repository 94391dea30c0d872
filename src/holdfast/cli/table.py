"""What `list`, `top` and their like have in common: what they answer, tables for people, and who is in them."""

from __future__ import annotations

import sys
import unicodedata
from argparse import Namespace
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, NamedTuple

import holdfast
from holdfast.cli import exits
from holdfast.cli.options import client_options
from holdfast.cli.report import answering, clean, emit_json
from holdfast.web.view import label

#: What stands for an empty table.
NOTHING = "no lock is held or waited for"
#: No column is cut below this.
_LEAST = 12
#: Where nothing is cut, no column is filled up beyond this: one long name would move all others.
_FILLED_MAX = 48


@contextmanager
def connected(options: Namespace, command: str) -> Iterator[holdfast.Client]:
    """Yield a client, for a command that answers in JSON if --json says so."""
    with answering(command, options.json), holdfast.connect(**client_options(options)) as client:
        yield client


class Answer(NamedTuple):
    """What a command has found: the facts for programs, the lines for people, and the exit status."""

    facts: dict[str, Any]
    lines: Iterable[str]
    status: int = exits.OK


def answered(options: Namespace, command: str, ask: Callable[[holdfast.Client, Namespace], Answer]) -> int:
    """Print what `ask` finds; returns the exit status."""
    sys.argv = [f"holdfast {command}"]  # who we are, for a holder that is told
    with connected(options, command) as client:
        facts, lines, status = ask(client, options)
    if options.json:
        emit_json(command, facts, ok=status in (exits.OK, exits.DEADLOCK))
    else:
        sys.stdout.write("".join(f"{clean(line)}\n" for line in lines))
    return status


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
        mark = clean("…")
        while text and _width(text) > width - len(mark):
            text = text[:-1]
        text += mark
    return _filled(text, width)


def _filled(text: str, width: int) -> str:
    return text + " " * (width - _width(text))


def _width(text: str) -> int:
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(char) else 1 + (unicodedata.east_asian_width(char) in "WF") for char in text)


def width_of_output() -> int | None:
    """Return how wide a table may be; None where no terminal says so."""
    import shutil

    return shutil.get_terminal_size((120, 24)).columns if sys.stdout.isatty() else None


def row(found: holdfast.Listed, heads: Sequence[str]) -> tuple[str, ...]:
    """Return what stands below these heads."""
    return tuple(_CELLS[head](found, found.holder) or "-" for head in heads)


def hold_s(found: holdfast.Listed) -> float | None:
    """Return for how long it has been held, if that is known."""
    holder = found.holder
    return None if holder is None or holder.since is None else (found.seen_at - holder.since).total_seconds()


def _held_by(found: holdfast.Listed, holder: holdfast.Holder | None) -> str:
    who = "-" if holder is None else named(holder)
    if holder is not None and holder.note is not None:
        who = f'"{clean(holder.note)}" {who}'
    if holder is not None and holder.gone:
        who = f"its client has gone: {who}"
    if found.held > 1:
        who += f" and {found.held - 1} more"
    who = f"{found.permits} permits in all: {who}" if found.permits else who
    return f"odd key {clean(found.odd)}: {who}" if found.odd else who


def _for(found: holdfast.Listed, holder: holdfast.Holder | None) -> str | None:
    held_s = hold_s(found)
    return None if held_s is None else span(max(0.0, held_s))


def _left(found: holdfast.Listed, holder: holdfast.Holder | None) -> str | None:
    if holder is None:
        return None
    return "no ttl" if holder.remaining_s is None else span(holder.remaining_s)


#: By its head, how a column shows a lock and the first of its holders; None: not at all.
_CELLS: dict[str, Callable[[holdfast.Listed, holdfast.Holder | None], str | None]] = {
    "KIND": lambda found, _: found.kind,
    "NAME": lambda found, _: clean(found.name),
    "HELD BY": _held_by,
    "FOR": _for,
    "LEFT": _left,
    "SINCE": lambda _, holder: f"{holder.since:%m-%d %H:%M:%S}" if holder and holder.since else None,
    "WAITERS": lambda found, _: str(found.waiters),
    "OLDEST": lambda found, _: span(found.queue[0].age_s) if found.queue else None,
}


def facts_of(found: holdfast.Listed) -> dict[str, Any]:
    """Return what programs are told of a lock."""
    holder = found.holder
    return {
        "kind": found.kind,
        "name": found.name,
        "held": found.held,
        "holder": holder and person(holder),
        "holders": [*map(person, found.holders)],
        "hold_s": hold_s(found),
        "remaining_s": holder and holder.remaining_s,
        "waiters": found.waiters,
        "queue": [*map(person, found.queue)],
        "oldest_s": found.queue[0].age_s if found.queue else None,
        "fencing_token": found.fencing_token or None,
        "permits": found.permits or None,
        "odd": found.odd,
    }


def person(one: holdfast.Holder | holdfast.Waiter) -> dict[str, Any]:
    """Return what programs are told of it."""
    facts = asdict(one)
    if "ours" in facts:
        facts["holdfast"] = facts.pop("ours")
    return facts


def named(one: holdfast.Holder | holdfast.Waiter) -> str:
    return clean(label(one))


def sums(found: Collection[holdfast.Listed]) -> str:
    """The line below a table."""
    held = sum(1 for each in found if each.held)
    return f"{len(found)} in all, {held} held, {waiters(sum(each.waiters for each in found))}"


def waiters(count: int) -> str:
    return f"{count} waiter{'' if count == 1 else 's'}"


def span(seconds: float, digits: int = 1) -> str:
    """How long, in the greatest unit of which there are two."""
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.{digits}f} s"

"""Where in a program something is held: what a holder answers, and what those that asked are told.

Theory: a lease costs nothing for this. Who asks sends a message, and the client of the holder looks, at that moment,
what the thread or task is doing that has acquired it.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

from holdfast._api.holder import Holder
from holdfast._core.deadlocks import party_of
from holdfast._core.record import LeaseRecord
from holdfast._core.snapshot import snapshot
from holdfast._core.whereabouts import BETWEEN
from holdfast.errors import shown

__all__ = ["Whereabouts", "line_of", "said", "where"]

#: How many lines of a stack are told, and how long one may be.
_LINES_MAX, _LINE_MAX = 8, 400
_PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """Where in its program a holder is, as its client has answered.

    `runs_as`: the name of the thread or task that has acquired it. `acquired_at`: the line that did. `stack`: what that
    thread or task was doing when it was asked, the innermost line first, 8 at most, without this library's own. Of
    each, None or nothing where it is not known: the holder did not answer within a second, or its thread has ended.
    """

    holder: Holder
    runs_as: str | None = None
    acquired_at: str | None = None
    stack: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [self.holder.who]
        lines += [f"runs as     {self.runs_as}"] if self.runs_as else []
        lines += [f"acquired at {self.acquired_at}"] if self.acquired_at else []
        lines += [f"{'now at' if not place else '':<11} {line}" for place, line in enumerate(self.stack)]
        return "\n".join(lines)


def said(session: Any, records: Sequence[LeaseRecord | None]) -> bytes:
    """Describe each lease for an answer: its name, where it was acquired, and the stack; a line each."""
    meant = {record.token: (None, record.lease and record.lease()) for record in records if record is not None}
    held: dict[str, tuple[int | None, Any]] = {**meant}
    for (_, owner), known in snapshot(session.owners.items()):
        lease = known()
        if lease is not None and lease.token in meant:
            held[lease.token] = (owner, lease)
    running: dict[int, list[str]] = {}
    return BETWEEN.join(
        b"\n" if record is None else _said(session, *held[record.token], record, running) for record in records
    )


def _said(session: Any, owner: int | None, lease: Any, record: LeaseRecord, running: dict[int, list[str]]) -> bytes:
    # A lease that its client hands on or keeps, and that no one has now, is no thread's or task's.
    party = None if owner is not None else party_of(record.token, {}, True)
    if party is not None and party[1].isdigit():
        owner = int(party[1])
    if owner is not None and owner not in running:
        name, frames = session.running(owner)
        outside = itertools.islice((each for each in map(line_of, frames) if each is not None), _LINES_MAX)
        running[owner] = [name or "", *outside]
    name, *stack = [""] if owner is None else running[owner]
    lines = [name, lease._acquired_at() if lease is not None else "", *stack]
    return "\n".join(shown(each, _LINE_MAX) for each in lines).encode("utf-8", "replace")


def line_of(frame: FrameType) -> str | None:
    """The line it is at; None of one of ours."""
    code = frame.f_code
    return None if code.co_filename.startswith(_PACKAGE) else f"{code.co_filename}:{frame.f_lineno} in {code.co_name}"


def where(holders: Iterable[Holder], answers: Mapping[str, bytes]) -> tuple[Whereabouts, ...]:
    """Match the answers to the holders, by token."""
    found = []
    for holder in holders:
        answer = answers.get(holder.token, b"").decode("utf-8", "replace")
        lines = [shown(each, _LINE_MAX) for each in answer.split("\n")]
        name, acquired_at, *stack = [*lines, "", ""] if len(lines) < 2 else lines
        found.append(Whereabouts(holder, name or None, acquired_at or None, tuple(filter(None, stack))[:_LINES_MAX]))
    return tuple(found)

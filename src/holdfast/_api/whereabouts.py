"""Where in a program something is held: what a holder answers, and what those that asked are told.

Theory: a lease costs nothing for this. Who asks sends a message, and the client of the holder looks, at that moment,
what the thread or task is doing that has acquired it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from types import FrameType
from typing import Any

from holdfast._api.holder import Holder
from holdfast._core.deadlocks import party_of
from holdfast._core.snapshot import snapshot
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


def said(session: Any, token: str) -> bytes:
    """What this client answers: the name, where it was acquired, and the stack; a line each."""
    held = [(owner, lease()) for (_, owner), lease in snapshot(session.owners.items())]
    owner, lease = next((each for each in held if each[1] is not None and each[1].token == token), (None, None))
    party = party_of(token, {}, False)
    if owner is None and party is not None and party[1].isdigit():
        owner = int(party[1])
    name, frames = (None, ()) if owner is None else session.running(owner)
    outside = [each for each in map(line_of, frames) if each is not None]
    lines = [name or "", lease._acquired_at() if lease is not None else "", *outside[:_LINES_MAX]]
    return "\n".join(shown(each, _LINE_MAX) for each in lines).encode("utf-8", "replace")


def line_of(frame: FrameType) -> str | None:
    """The line it is at; None of one of ours."""
    code = frame.f_code
    return None if code.co_filename.startswith(_PACKAGE) else f"{code.co_filename}:{frame.f_lineno} in {code.co_name}"


def where(holders: Iterable[Holder], answers: Iterable[bytes | None]) -> tuple[Whereabouts, ...]:
    """What was answered, put together."""
    found = []
    for holder, answer in zip(holders, answers, strict=True):
        lines = [shown(each, _LINE_MAX) for each in (answer or b"").decode("utf-8", "replace").split("\n")]
        name, acquired_at, *stack = [*lines, "", ""] if len(lines) < 2 else lines
        found.append(Whereabouts(holder, name or None, acquired_at or None, tuple(filter(None, stack))[:_LINES_MAX]))
    return tuple(found)

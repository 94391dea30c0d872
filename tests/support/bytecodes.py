"""Interrupting a callable at any of its bytecodes, deterministically.

A signal handler, an exception that a signal raises, and a finalizer run between two bytecodes. `bytecodes_of` lists
those that a call goes through in this thread; `at_bytecode` makes the same call and calls a hook before one of them:

    places = bytecodes_of(lambda: lock.acquire().release())
    for n, place in enumerate(places):
        at_bytecode(n, handler, lambda: lock.acquire().release())

The hook runs in the frame that is interrupted, like a signal handler; what it raises is raised there. Only code of
holdfast counts, and what it uses of these modules of the standard library: threading, queue, weakref.
CPython looks for signals at fewer points than that (loops and calls), so that this covers more than can happen.
"""

from __future__ import annotations

import dis
import functools
import itertools
import queue
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import holdfast

__all__ = ["Place", "at_bytecode", "at_place", "bytecodes_of", "places_once", "signals_come"]

_PACKAGE = str(Path(holdfast.__file__).parent) + "/"
_ALSO = frozenset(str(module.__file__) for module in (threading, queue, weakref)) | {
    str(Path(str(weakref.__file__)).with_name("_weakrefset.py"))
}


class Place(NamedTuple):
    """One bytecode of one run."""

    code: CodeType
    offset: int
    line: int

    def __str__(self) -> str:
        file = self.code.co_filename.rpartition("/holdfast/")[2]
        return f"{file}:{self.line} ({self.code.co_qualname}, bytecode {self.offset})"


def _counts(code: CodeType) -> bool:
    file = code.co_filename
    return file.startswith(_PACKAGE) or file in _ALSO


def _run(on_bytecode: Callable[[FrameType], None], action: Callable[[], Any]) -> Any:
    here = sys._getframe()
    known: dict[CodeType, bool] = {}

    def relevant(frame: FrameType) -> bool:
        code = frame.f_code
        answer = known.get(code)
        if answer is None:
            answer = known[code] = _counts(code)
        return answer

    def within(frame: FrameType) -> bool:
        """True if holdfast is on the stack: the standard library's code counts only below it."""
        below: FrameType | None = frame
        while below is not None and below is not here:
            if below.f_code.co_filename.startswith(_PACKAGE):
                return True
            below = below.f_back
        return False

    def global_trace(frame: FrameType, event: str, arg: Any) -> Any:
        if not relevant(frame) or not within(frame):
            return None
        frame.f_trace_lines = False
        frame.f_trace = local_trace  # Python 3.13 looks at it when told of opcodes
        frame.f_trace_opcodes = True
        return local_trace

    def local_trace(frame: FrameType, event: str, arg: Any) -> Any:
        if event == "opcode":
            on_bytecode(frame)
        return local_trace

    def apart() -> Iterator[Any]:
        """A generator has an exception state of its own, which ends with it.

        What is raised before some bytecodes of an `except` block, where no signal comes, leaves that state as it was
        inside: the thread would go on with the block's exception as the one that is being handled.
        """
        yield action()

    before = sys.gettrace()
    here.f_trace_opcodes = True  # Python 3.12 looks whether any frame wants them when tracing begins
    sys.settrace(global_trace)
    try:
        return next(apart())
    finally:
        sys.settrace(before)


def bytecodes_of(action: Callable[[], Any]) -> list[Place]:
    """The bytecodes that `action()` goes through in this thread, in order. What it raises is raised."""
    places: list[Place] = []

    def note(frame: FrameType) -> None:
        places.append(Place(frame.f_code, frame.f_lasti, frame.f_lineno or 0))

    _run(note, action)
    return places


def at_bytecode(n: int, hook: Callable[[FrameType], Any], action: Callable[[], Any]) -> tuple[Any, Place | None]:
    """Call `action()`, and `hook(frame)` right before its n-th bytecode (from 0).

    Returns what `action` returns, and the place of the interruption: None when there were not that many. What the
    hook raises comes out of that bytecode, as from a signal handler, and ends the tracing; what `action` raises is
    raised.
    """
    left = n
    place: Place | None = None

    def count(frame: FrameType) -> None:
        nonlocal left, place
        left -= 1
        if left == -1:
            place = Place(frame.f_code, frame.f_lasti, frame.f_lineno or 0)
            hook(frame)

    result = _run(count, action)
    return result, place


def at_place(place: Place, hook: Callable[[FrameType], Any], action: Callable[[], Any]) -> Any:
    """Call `action()`, and `hook(frame)` right before it comes to that bytecode for the first time.

    How many bytecodes come before may differ from run to run: an answer comes at once, or later.
    """
    left = [place[:2]]

    def look(frame: FrameType) -> None:
        if left and (frame.f_code, frame.f_lasti) == left[0]:
            left.clear()
            hook(frame)

    return _run(look, action)


def places_once(places: Sequence[Place], step: int = 1, first: int = 0) -> Iterable[int]:
    """The numbers of the bytecodes that stand in the list for the first time; every `step`-th of them from `first`.

    Loops go through the same bytecodes again and again; a sample need not.
    """
    seen: set[tuple[CodeType, int]] = set()
    numbers: list[int] = []
    for number, place in enumerate(places):
        if (place.code, place.offset) not in seen:
            seen.add((place.code, place.offset))
            numbers.append(number)
    return numbers[first::step]


@functools.cache
def signals_come(code: CodeType) -> frozenset[int]:
    """Where CPython looks for signals: as the function begins, behind calls, and where a loop goes back."""
    found: set[int] = set()
    for one, behind in itertools.pairwise(dis.get_instructions(code)):
        if one.opname.startswith(("RESUME", "CALL")):
            found.add(behind.offset)
        elif "BACKWARD" in one.opname:
            found.add(one.argval)
    return frozenset(found)

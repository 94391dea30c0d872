"""Closes clients that were garbage-collected, in threads of their own.

Law: the finalizer takes no lock and waits for nothing, since it may run in any thread and at any bytecode.
"""

from __future__ import annotations

import _thread
import threading
import time
import typing
from collections import deque

from holdfast._drivers.ending import Ends, end
from holdfast._drivers.teller import CANNOT_START

__all__ = ["Left", "close_later", "forget", "left_open", "starved"]

#: Where no closer could be started, it is tried again after this, s.
_START_AGAIN_S = 0.1
#: How many drivers are closed at a time when their clients were dropped.
_CLOSERS_MAX = 8
#: A closer that cannot be started is tried this often before its place is given to the next one.
_CLOSER_TRIES = 20


class Left(Ends, typing.Protocol):
    """A driver whose client is gone."""

    def poke(self) -> None: ...


#: Drivers whose clients were garbage-collected, and the right to start a thread that closes some of them.
_left: deque[Left] = deque()
_closers: list[None] = [None] * _CLOSERS_MAX


def close_later(driver: Left) -> None:
    """Close it in the background: the client was garbage-collected, in any thread and at any bytecode.

    Takes no lock, and waits for nothing, not even for the thread to begin.
    """
    _left.append(driver)
    if not _close_left():
        driver.poke()  # it tries again


def _close_left() -> bool:
    """Have a thread close those that were left; False when none can be started now."""
    try:
        _closers.pop()
    except IndexError:
        return True  # those that are at it look again
    try:
        _thread.start_new_thread(_start_closer, ())
    except CANNOT_START:
        _closers.append(None)  # watchdogs try again; else the next one takes it along, or the end of the process
        return False
    return True


def starved() -> bool:
    """True if some wait for a thread that could not be started."""
    return len(_left) > 0 and not _close_left()


def forget() -> None:
    """In a forked child: nothing of theirs is open here, and the threads that were closing them are not here."""
    _left.clear()
    _closers[:] = [None] * _CLOSERS_MAX


def left_open() -> list[Left]:
    """Return the drivers that no thread has taken yet; the caller closes them."""
    found = []
    while _left:
        try:
            found.append(_left.popleft())
        except IndexError:
            break
    return found


def _start_closer() -> None:
    # `Thread.start` takes locks and waits, which is nothing for a finalizer.
    for _ in range(_CLOSER_TRIES):
        try:
            threading.Thread(target=_close_some, name="holdfast-closer", daemon=True).start()
            return
        except CANNOT_START:
            time.sleep(_START_AGAIN_S)
    _closers.append(None)  # as above; this thread is perhaps the one too many


def _close_some() -> None:
    try:
        end(left_open())
    finally:
        _closers.append(None)
    end(left_open())  # what was added just now may have found no closer free

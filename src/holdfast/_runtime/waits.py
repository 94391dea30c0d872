"""Waiting and waking between threads, safe in signal handlers and finalizers.

Laws: waking never waits and takes no lock that could be held; a waiter looks at the clock and at what it waits for
at least every `SLICE_S`; everything here may be interrupted at any bytecode by a signal handler of the same thread that
uses the same object.

Theory: a *bell* is a lock that is held while it is silent: `acquire` waits for it, `release` rings it, and ringing
twice is ringing once. What is waited for is stored first, in one atomic operation of a deque or dict, and rung for
afterwards; a waiter looks, waits for the bell, and looks again. The queues and events of the standard library are not
used: `queue.SimpleQueue.get` waits indefinitely when a signal leaves it a negative rest of its time (3.11, 3.12), and
`threading.Event` and `Condition` take a lock that the frame below a signal handler may hold.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from holdfast._core.snapshot import snapshot
from holdfast._runtime.clock import clock
from holdfast._runtime.handlers import raised_by_handler

#: No wait lasts longer than this before the clock is looked at again, s: it may count time asleep, and it bounds what a
#: wake-up that got lost costs.
SLICE_S = 1.0


def silent_bell() -> Any:
    """A bell that was not rung: a lock that is held."""
    bell = threading.Lock()
    bell.acquire()
    return bell


def ring(bell: Any) -> None:
    """Wake who waits for it, or is going to."""
    try:
        bell.release()
    except RuntimeError as error:  # it has been rung
        if raised_by_handler(error):
            raise


def wait(bell: Any, condition: Callable[[], bool], timeout_s: float | None) -> bool:
    """Wait until `condition()` is true, looking when the bell rings, `timeout_s` at most (None: without a limit).

    Returns whether it is true.
    """
    until = None if timeout_s is None else clock() + timeout_s
    while not condition():
        left_s = SLICE_S if until is None else until - clock()
        if left_s <= 0:
            return condition()
        bell.acquire(True, min(left_s, SLICE_S))
    return True


class Settable:
    """What is set by any thread, and rings then for those that wait."""

    __slots__ = ("_is_set", "rings")

    def __init__(self) -> None:
        #: Called when it is set: each by the id of what it rings.
        self.rings: dict[int, Callable[[], None]] = {}
        self._is_set = False

    def is_set(self) -> bool:
        """True if the flag is set."""
        return self._is_set

    def set(self) -> None:
        """Set it, and wake those that wait for it."""
        self._is_set = True
        for each in snapshot(self.rings.values()):
            each()

    def clear(self) -> None:
        """Unset it."""
        self._is_set = False


class Flag(Settable):
    """What `threading.Event` is."""

    __slots__ = ()

    def wait_s(self, timeout_s: float | None) -> bool:
        """Wait until it is set; whether it is."""
        bell = silent_bell()
        self.rings[id(bell)] = partial(ring, bell)
        try:
            return wait(bell, self.is_set, timeout_s)
        finally:
            self.rings.pop(id(bell), None)

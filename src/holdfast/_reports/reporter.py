"""Carries what has happened to those who want to know: loggers and observers, which are users' code.

Laws: `send` never waits, takes no lock and never raises, so that it may be called in a signal handler, while locks are
held and on the path that keeps times; users' code runs in a thread of its own, which holds no lock of ours; one that
hangs holds up nothing, and costs no more memory than `EVENTS_MAX` events.

Theory: events are put into a deque, and a thread takes them out. It is started when there is something to tell, looks
again after short pauses, so that no event has to wake it, and ends when nothing has come for a while. No fork happens
while it delivers: the child would inherit locks that are never released.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

from holdfast._core.snapshot import snapshot
from holdfast._runtime import exit_hooks
from holdfast._runtime.starting import start_thread
from holdfast._runtime.teller import call_user

#: Takes the time of an event (s, wall clock), what has happened, and the details.
Sink: TypeAlias = Callable[[float, str, tuple[Any, ...]], object]

#: Events that wait to be told; beyond, they are dropped and counted.
EVENTS_MAX = 10_000
#: How often the thread looks for events, s.
_LOOK_S = 0.02
#: After how many events other threads get a turn: they wait up to 5 ms for one that only computes.
_TURN = 32
#: After how long without an event the thread ends, and how long it is between two tries to start it, s.
_IDLE_S = 1.0
#: How long a fork waits for an event that is being told, and the end of the process for all, s.
_FORK_S = 0.2
_EXIT_S = 1.0


class Reporter:
    """Tells one sink."""

    def __init__(self, sink: Sink, name: str) -> None:
        self._sink = sink
        self._name = name
        self.reset()
        _reporters.add(self)

    def reset(self) -> None:
        """Begin, in this process: what a parent has not told yet is the parent's to tell."""
        self._events: deque[tuple[float, str, tuple[Any, ...]]] = deque()
        self._right_to_start: list[None] = [None]
        self._retries = False
        self._dropped = 0
        self.thread: int | None = None
        self.telling = False

    def send(self, event: str, *details: Any) -> None:
        events = self._events
        if len(events) >= EVENTS_MAX:
            self._dropped += 1
            return
        events.append((time.time(), event, details))
        if self._right_to_start:
            self._start()

    def _start(self) -> None:
        try:
            self._right_to_start.pop()
        except IndexError:
            return
        start_thread(self._name, self._serve, partial(self._not_started, threading.get_ident()))

    def _not_started(self, sender: int, _error: BaseException) -> None:
        """Try again for as long as events wait. So does the next event, and the end of the process."""
        self._right_to_start.append(None)
        if threading.get_ident() == sender or self._retries:
            return
        self._retries = True
        time.sleep(_IDLE_S)
        self._retries = False
        if self._events:
            self._start()

    def _serve(self) -> None:
        self.thread = threading.get_ident()
        idle_at = time.monotonic() + _IDLE_S
        while time.monotonic() < idle_at:
            if self._tell():
                idle_at = time.monotonic() + _IDLE_S
            time.sleep(_LOOK_S)
        self.thread = None
        self._right_to_start.append(None)
        if self._events:  # one came before the right was back
            self._start()

    def _tell(self) -> int:
        """Tell what there is; returns how much that was."""
        told = 0
        while self._events:
            self.telling = True  # before looking for a fork, which looks for this
            if _forks:
                self.telling = False
                time.sleep(0.001)
                continue
            try:
                one = self._events.popleft()
            except IndexError:
                break
            call_user(self._sink, *one)
            told += 1
            if not told % _TURN:
                time.sleep(0)
        dropped, self._dropped = self._dropped, 0
        if dropped:
            call_user(self._sink, time.time(), "dropped", (dropped,))
        self.telling = False
        return told

    def settle(self, until: float) -> None:
        """Wait until that, or the time (`time.monotonic`) is over."""
        if self.thread == threading.get_ident():
            return
        while (self._events or self.telling) and time.monotonic() < until:
            if self._right_to_start:
                self._start()
                if self._right_to_start:
                    self._tell()  # no thread can be started any more
            time.sleep(0.001)


_reporters: weakref.WeakSet[Reporter] = weakref.WeakSet()
#: Until when each fork waits that is under way.
_forks: list[float] = []


def _before_fork() -> None:
    # One of a signal handler waits no longer than the one below: else those that each interrupt the last one never end.
    me, until = threading.get_ident(), min([time.monotonic() + _FORK_S, *_forks])
    _forks.append(until)
    while any(one.telling and one.thread != me for one in snapshot(_reporters)) and time.monotonic() < until:
        time.sleep(0.0005)


def _after_fork_in_parent() -> None:
    del _forks[-1:]  # there is none where this is the child of a signal handler's fork


def _after_fork_in_child() -> None:
    _forks.clear()
    for one in tuple(_reporters):
        one.reset()


def _at_end() -> None:
    until = time.monotonic() + _EXIT_S
    for one in snapshot(_reporters):
        one.settle(until)


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
exit_hooks.register(_at_end)

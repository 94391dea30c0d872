"""Signals as messages: caught, and read when there is time for them.

Laws: a signal that was ignored when we were started stays ignored, for us and for the command (nohup); none is lost.

Theory: the handler notes the number, cancels what waits with `ending`, and rings a bell: all safe at any moment. Other
threads ring the bell to have the reader look around. What we fork starts with signals held back, puts everything as it
was, and then lets them come.
"""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Callable, Iterable
from typing import NoReturn, TypeAlias

import holdfast
from holdfast._runtime.waits import ring, silent_bell
from holdfast.cli import exits

#: What asks a program to end.
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
#: What is passed on to the command, besides.
PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH)
#: Stop and go on; caught only while there is a command that has to stop and go on with us.
JOBS = (signal.SIGTSTP, signal.SIGCONT)

Mask: TypeAlias = "set[int]"


def forked(become: Callable[[Mask], NoReturn]) -> int:
    """Fork what `become` makes of it, with signals held back until it gives the mask to `as_before`."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    pid = os.fork()
    if pid == 0:
        try:
            become({int(number) for number in mask})
        finally:
            os._exit(exits.INTERNAL)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return pid


def as_before(mask: Mask) -> None:
    """In a child: signals are what they were when we were started, and come through. None was ignored that we catch."""
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


class Signals:
    """Made in the main thread, once; what asks to end is caught from then on."""

    def __init__(self) -> None:
        #: Set once a signal of `ENDING` has come, and the first of these; 0: none.
        self.ending = holdfast.Cancel()
        self.ended_by = 0
        self._unread: deque[int] = deque()
        self._bell = silent_bell()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # a process that ignores it never learns how a child ended
        self.catch((*ENDING, signal.SIGCHLD))

    def catch(self, numbers: Iterable[int]) -> None:
        """Read these from now on, unless they were ignored when we were started."""
        for number in numbers:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._came)

    def _came(self, number: int, _frame: object) -> None:
        self._unread.append(number)
        if number in ENDING:
            self.ended_by = self.ended_by or number
            self.ending.set()
        self.poke()

    def poke(self, *_: object) -> None:
        """Let the reader look around; from any thread."""
        ring(self._bell)

    def wait(self, timeout_s: float) -> list[int]:
        """The signals that have come, waiting for the first one (or a poke); empty after the time."""
        self._bell.acquire(True, timeout_s)
        return [self._unread.popleft() for _ in range(len(self._unread))]

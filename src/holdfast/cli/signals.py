"""Signals as messages: caught, and read from a pipe when there is time for them.

Laws: a signal that was ignored when we were started stays ignored, for us and for the command (nohup); none is lost.

Theory: Python's wakeup descriptor writes the number of each signal that comes into a pipe; other threads write a zero
to have the reader look around. The handler only cancels what `ending` was given to, which is safe at any moment.
What we fork starts with signals held back, puts everything as it was, and then lets them come.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import NoReturn, TypeAlias

from holdfast.cli import exits

__all__ = ["ENDING", "JOBS", "PASSED_ON", "Mask", "Signals", "as_before", "change", "forked"]

#: What asks a program to end.
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
#: What is passed on to the command, besides.
PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH)
#: Stop and go on; caught only while there is a command that has to stop and go on with us.
JOBS = (signal.SIGTSTP, signal.SIGCONT)

Mask: TypeAlias = "set[int]"

#: What we have changed, and whether it was ignored before.
_changed: dict[int, bool] = {}


def change(number: int, handler: signal.Handlers | Callable[[int, object], None]) -> None:
    """Set a handler; `as_before` knows it."""
    _changed.setdefault(number, signal.getsignal(number) is signal.SIG_IGN)
    signal.signal(number, handler)


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
    """In a child: signals are what they were when we were started, and come through."""
    signal.set_wakeup_fd(-1)
    for number, ignored in _changed.items():
        signal.signal(number, signal.SIG_IGN if ignored else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


class Signals:
    """Made in the main thread, once; catches nothing before `catch`."""

    def __init__(self) -> None:
        from holdfast import Cancel

        #: Set once a signal of `ENDING` has come, and the first of these; 0: none.
        self.ending = Cancel()
        self.ended_by = 0
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            change(signal.SIGINT, signal.SIG_DFL)  # no KeyboardInterrupt: it could come at any line
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # a process that ignores it never learns how a child ended
        self._hears, self._tells = os.pipe()
        os.set_blocking(self._hears, False)
        os.set_blocking(self._tells, False)
        signal.set_wakeup_fd(self._tells, warn_on_full_buffer=False)
        self.catch((signal.SIGCHLD,))

    def catch(self, numbers: Iterable[int]) -> None:
        """Read these from now on, unless they were ignored when we were started."""
        for number in numbers:
            if signal.getsignal(number) is not signal.SIG_IGN:
                change(number, self._came)

    def _came(self, number: int, _frame: object) -> None:
        if number in ENDING:
            self.ended_by = self.ended_by or number
            self.ending.set()

    @property
    def fd(self) -> int:
        """Can be read when there is something for `wait`."""
        return self._hears

    def poke(self, *_: object) -> None:
        """Let the reader look around; from any thread."""
        with suppress(BlockingIOError):  # it has enough to read already
            os.write(self._tells, b"\0")

    def wait(self, timeout_s: float | None) -> list[int]:
        """The signals that have come, waiting for the first one (or a poke); empty after the time."""
        if timeout_s is not None:
            timeout_s = max(0.0, timeout_s)
        if not select.select([self._hears], [], [], timeout_s)[0]:
            return []
        return [number for number in os.read(self._hears, 4096) if number]

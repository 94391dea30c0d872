"""Signals as messages: caught, and read from a pipe when there is time for them.

Laws: a signal that was ignored when we were started stays ignored, for us and for the command (nohup); none is lost.

Theory: Python's wakeup descriptor writes the number of each signal that comes into a pipe; other threads write a zero
to have the reader look around. Handlers themselves do nothing, so that no code can be interrupted at a bad moment.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterable

__all__ = ["ENDING", "JOBS", "PASSED_ON", "Signals"]

#: What asks a program to end.
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
#: What is passed on to the command, besides.
PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH)
#: Stop and go on; caught only while there is a command that has to stop and go on with us.
JOBS = (signal.SIGTSTP, signal.SIGCONT)


class Signals:
    """Made in the main thread; catches nothing before `catch`."""

    def __init__(self) -> None:
        self._hears, self._tells = os.pipe()
        os.set_blocking(self._hears, False)
        os.set_blocking(self._tells, False)
        signal.set_wakeup_fd(self._tells, warn_on_full_buffer=False)

    def catch(self, numbers: Iterable[int]) -> None:
        """Read these from now on, unless they were ignored when we were started."""
        for number in numbers:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, _nothing)

    def poke(self, *_: object) -> None:
        """Let the reader look around; from any thread."""
        try:
            os.write(self._tells, b"\0")
        except BlockingIOError:
            pass  # it has enough to read already

    def wait(self, timeout_s: float | None) -> list[int]:
        """The signals that have come, waiting for the first one (or a poke); empty after the time."""
        if timeout_s is not None:
            timeout_s = max(0.0, timeout_s)
        if not select.select([self._hears], [], [], timeout_s)[0]:
            return []
        return [number for number in os.read(self._hears, 4096) if number]


def _nothing(number: int, frame: object) -> None:
    pass

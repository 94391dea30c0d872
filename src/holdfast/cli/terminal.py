"""Who has the terminal: us, or the command.

Theory: the command is a process group of its own, and a terminal has one group in its foreground: that alone may read,
and gets Ctrl-C and Ctrl-Z. A command with a terminal on both sides gets it at the start. Any other (`… | less` needs
it itself) gets it when it first asks for it, which shows as being stopped by SIGTTIN or SIGTTOU. As long as we have
it, its signals come to us, and we pass them on. When the command is stopped by Ctrl-Z we stop as well, so
that the shell above sees its job stop.
"""

from __future__ import annotations

import os
import signal

from holdfast.cli.signals import change

__all__ = ["JOB_CONTROL", "Terminal"]

#: Stopped by one of these: by the terminal, and not by a sender who means the command alone.
JOB_CONTROL = frozenset({signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU})


class Terminal:
    """The controlling terminal, if there is one."""

    def __init__(self) -> None:
        self._own = os.getpgrp()
        self._given: int | None = None
        try:
            self._fd = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)
        except OSError:
            self._fd = -1  # none: a cron job, a service
        else:
            change(signal.SIGTTOU, signal.SIG_IGN)  # else taking it back would stop us

    @property
    def there(self) -> bool:
        return self._fd >= 0

    def interactive(self) -> bool:
        """True if the command reads from and writes to a terminal."""
        return self._fd >= 0 and os.isatty(0) and os.isatty(1)

    def close(self) -> None:
        """Take it back, and let go of it."""
        self.take_back()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def give(self, group: int) -> bool:
        """Put the command into the foreground, if we are there."""
        if self._foreground() != self._own or not self._set(group):
            return False
        self._given = group
        return True

    def take_back(self) -> bool:
        """Return to the foreground, if the command is there; whether it was."""
        had = self._given is not None and self._foreground() == self._given
        if had:
            self._set(self._own)
        self._given = None
        return had

    def _foreground(self) -> int | None:
        try:
            return os.tcgetpgrp(self._fd)
        except OSError:
            return None  # there is no terminal, or it has hung up

    def _set(self, group: int) -> bool:
        try:
            os.tcsetpgrp(self._fd, group)
        except OSError:
            return False  # hung up, or that group has ended
        return True

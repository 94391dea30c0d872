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

#: Stopped by one of these: by the terminal, and not by a sender who means the command alone.
JOB_CONTROL = frozenset({signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU})


class Terminal:
    """The controlling terminal, if there is one. `group`: the command's."""

    def __init__(self, group: int) -> None:
        self._own, self._group = os.getpgrp(), group
        try:
            self._fd = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)
        except OSError:
            self._fd = -1  # none: a cron job, a service
        else:
            self._before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # else taking it back would stop us

    @property
    def there(self) -> bool:
        return self._fd >= 0

    def interactive(self) -> bool:
        """True if the command reads from and writes to a terminal."""
        return self.there and os.isatty(0) and os.isatty(1)

    def close(self) -> None:
        """Take it back, and let go of it."""
        self.take_back()
        if self.there:
            os.close(self._fd)
            signal.signal(signal.SIGTTOU, self._before)

    def give(self) -> bool:
        """Put the command into the foreground, if we are there; whether we were."""
        return self._pass(self._own, self._group)

    def take_back(self) -> bool:
        """Return to the foreground, if the command is there; whether it was."""
        return self._pass(self._group, self._own)

    def _pass(self, one: int, other: int) -> bool:
        try:
            if os.tcgetpgrp(self._fd) != one:
                return False
            os.tcsetpgrp(self._fd, other)
        except OSError:
            return False  # there is no terminal, or it has hung up, or that group has ended
        return True

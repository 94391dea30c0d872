"""A dead man's switch: ends a process group at a given time, unless its owner postpones that.

Law: when the owner is killed, stopped, or hangs, the group is gone by the time that was named last.

Theory: a process of our own, forked while there is one thread only, in a session of its own, that knows a group,
a moment, and the pipe on which the owner postpones the moment. End of the pipe: the owner has died, and the group is
killed at once. It is independent of the owner's scheduling, so that also an owner that was stopped (Ctrl-Z, SIGSTOP, a
debugger) does not leave a command running beyond its lease. What it cannot do: run while the whole machine
is frozen; it acts first thing when that ends. (Fencing tokens are for that.)
"""

from __future__ import annotations

import os
import select
import signal
import struct
from contextlib import suppress
from functools import partial
from typing import NoReturn

from holdfast._runtime.clock import clock  # the same in all processes
from holdfast.cli.signals import Mask, forked

#: Kill at (s, `clock`). Smaller than PIPE_BUF, so that it is written and read whole.
_ORDER = struct.Struct("=d")
_NEVER = float("inf")
#: Timers do not count the time that a machine is suspended: look at the clock this often, s.
_LOOK_S = 1.0


class Guard:
    """Made before there are threads, for a process group."""

    def __init__(self, group: int) -> None:
        hears, self._tells = os.pipe()
        self.pid = forked(partial(_become_guard, group, hears))
        os.close(hears)

    def protect(self, kill_at: float) -> bool:
        """Kill the group at `kill_at`, and not before; False when the guard itself is gone."""
        try:
            os.write(self._tells, _ORDER.pack(kill_at))
        except BrokenPipeError:
            return False
        return True

    def dismiss(self) -> None:
        """There is nothing to protect any more: end it."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self._tells)


def _become_guard(group: int, hears: int, _mask: Mask) -> NoReturn:
    # Signals are held back for good: it ends when its owner does.
    os.setsid()
    os.chdir("/")
    # Nothing of our owner's may be kept open: others wait for the end of its pipes.
    os.dup2(hears, 0)
    for name in os.listdir("/dev/fd"):
        if int(name) > 0:
            with suppress(OSError):  # that of the listing itself
                os.close(int(name))
    for _ in range(2):
        os.open(os.devnull, os.O_RDWR)
    kill_at = _NEVER
    while True:
        wait_s = None if kill_at == _NEVER else min(max(kill_at - clock(), 0.0), _LOOK_S)
        order = os.read(0, _ORDER.size) if select.select([0], [], [], wait_s)[0] else None
        if order:
            (kill_at,) = _ORDER.unpack(order)
        elif order == b"" or clock() >= kill_at:
            with suppress(OSError):  # gone, or no longer ours to kill
                os.killpg(group, signal.SIGKILL)
            kill_at = _NEVER
        if order == b"":
            os._exit(0)

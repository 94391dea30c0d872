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

__all__ = ["Guard"]

#: Process group, kill at (s, `clock`). Smaller than PIPE_BUF, so that it is written and read whole.
_ORDER = struct.Struct("=qd")
_NOBODY = 0
#: Timers do not count the time that a machine is suspended: look at the clock this often, s.
_LOOK_S = 1.0


class Guard:
    """Made before there are threads; does nothing until `protect`."""

    def __init__(self) -> None:
        hears, self._tells = os.pipe()
        self.pid = forked(partial(_become_guard, hears))
        os.close(hears)

    def protect(self, group: int, kill_at: float) -> bool:
        """Kill `group` at `kill_at`, and not before; False when the guard itself is gone."""
        try:
            os.write(self._tells, _ORDER.pack(group, kill_at))
        except BrokenPipeError:
            return False
        return True

    def dismiss(self) -> None:
        """There is nothing to protect any more: end it."""
        self.protect(_NOBODY, 0.0)
        os.close(self._tells)
        os.waitpid(self.pid, 0)


def _become_guard(hears: int, _mask: Mask) -> NoReturn:
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
    group, kill_at = _NOBODY, float("inf")
    while True:
        wait_s = None if group == _NOBODY else min(max(kill_at - clock(), 0.0), _LOOK_S)
        if select.select([0], [], [], wait_s)[0]:
            order = os.read(0, _ORDER.size)
            if not order:
                _kill(group)
                os._exit(0)
            group, kill_at = _ORDER.unpack(order)
        elif group != _NOBODY and clock() >= kill_at:
            _kill(group)
            kill_at = float("inf")


def _kill(group: int) -> None:
    if group != _NOBODY:
        with suppress(OSError):  # gone, or no longer ours to kill
            os.killpg(group, signal.SIGKILL)

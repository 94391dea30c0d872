"""Waiting for a condition, with a bound; and until a process stands still."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

__all__ = ["PATIENCE_S", "eventually", "stop"]

#: Whatever a test waits for comes much sooner on an idle machine; on a busy one it may take its time.
PATIENCE_S = 30.0
#: Pauses between two looks, from the first to the longest, s: many conditions ask a server.
_PAUSE_S, _PAUSE_MAX_S = 0.004, 0.05


def eventually(condition: Callable[[], Any], what: str = "", patience_s: float = PATIENCE_S) -> Any:
    """The first true value of `condition()`; fails after `patience_s`. Asked less often the longer it takes."""
    until = time.monotonic() + patience_s
    pause_s = _PAUSE_S
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < until, f"did not happen within {patience_s} s: {what or condition}"
        time.sleep(pause_s)
        pause_s = min(1.2 * pause_s, _PAUSE_MAX_S)


def stop(pid: int) -> None:
    """Stop that child of this process, and wait until it stands still.

    SIGSTOP goes to one thread of it. On a busy machine the others run on, until that one gets a core.
    """
    os.kill(pid, signal.SIGSTOP)
    os.waitid(os.P_PID, pid, os.WSTOPPED)

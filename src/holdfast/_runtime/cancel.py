"""Interrupting a thread that waits for a lock, from another thread."""

from __future__ import annotations

import threading
from collections.abc import Callable

from holdfast._runtime.waits import Flag


class Cancelled(BaseException):
    """Thrown into a protocol whose `cancel` was set. A BaseException, so that no protocol takes it for trouble."""


class Cancel(threading.Event):
    """Ends waiting acquires that were given it, at once, with `AcquireCancelled`.

    When to use: a service shuts down while its worker threads wait for locks.

        stop = holdfast.Cancel()
        lease = locks.lock("orders:42").acquire(cancel=stop)   # in a worker
        stop.set()                                             # in the thread that shuts down

    One object may serve any number of acquires. `set()` may be called in a signal handler. It does not end leases that
    are held.
    """

    # An Event by its type only: the methods of `threading.Event` take a lock, which the frame that a signal handler
    # has interrupted may hold.

    def __init__(self) -> None:
        super().__init__()
        self._cancelled = Flag()

    def set(self) -> None:
        """Cancel those that wait, and all that come later."""
        self._cancelled.set()

    def is_set(self) -> bool:
        """True if `set` was called."""
        return self._cancelled.is_set()

    isSet = is_set

    def clear(self) -> None:
        """Let later acquires wait again."""
        self._cancelled.clear()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for `set`, `timeout` seconds at most; whether it was called."""
        return self._cancelled.wait_s(timeout)

    def _watch(self, watcher: Callable[[], None]) -> None:
        self._cancelled.rings[id(watcher)] = watcher

    def _unwatch(self, watcher: Callable[[], None]) -> None:
        self._cancelled.rings.pop(id(watcher), None)

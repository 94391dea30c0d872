"""Interrupting a thread that waits for a lock, from another thread."""

from __future__ import annotations

import threading
from collections.abc import Callable

__all__ = ["Cancel"]


class Cancel(threading.Event):
    """Ends waiting acquires that were given it, at once, with `AcquireCancelled`.

    When to use: a service shuts down while its worker threads wait for locks.

        stop = holdfast.Cancel()
        lease = locks.lock("orders:42").acquire(cancel=stop)   # in a worker
        stop.set()                                             # in the thread that shuts down

    One object may serve any number of acquires. It does not end leases that are held, nor a connection attempt that is
    under way, which ends by its own time limit.
    """

    def __init__(self) -> None:
        super().__init__()
        self._watchers: list[Callable[[], None]] = []

    def set(self) -> None:
        """Cancel those that wait, and all that come later."""
        super().set()
        for watcher in tuple(self._watchers):
            watcher()

    def _watch(self, watcher: Callable[[], None]) -> None:
        self._watchers.append(watcher)

    def _unwatch(self, watcher: Callable[[], None]) -> None:
        try:
            self._watchers.remove(watcher)
        except ValueError:
            pass

"""How a loss reaches those who hold: a flag to wait for, and callbacks."""
# sync-say: and callbacks. => and callbacks in a thread of their own.

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from holdfast._api.options import Duration, timeout_of
from holdfast._front.aio import Home
from holdfast.errors import LeaseLost

__all__ = ["Loss", "Wanted"]


class Loss:
    """Set when a lease is lost; `lease.lost` is one. Can be waited for, like an `asyncio.Event`."""

    __slots__ = ("_callbacks", "_flag", "_home", "_label", "_name", "reason")

    _set = "lost"

    def __init__(self, name: str, home: Home, label: str = "lock") -> None:
        self._name = name
        self._home = home
        self._label = label
        self._flag = home.flag()
        self._callbacks: deque[Callable[[Any], object]] = deque()  # those that were not called yet
        #: Why, or None.
        self.reason: str | None = None

    def is_set(self) -> bool:
        """True if the lease is known to be lost."""
        return self.reason is not None

    async def wait(self, timeout: Duration | None = None) -> bool:
        """Wait for the loss, `timeout` seconds at most; returns whether it came."""
        return await self._flag.wait_s(timeout_of(timeout))

    def _fire(self, reason: str) -> None:
        """By the engine, or by who has found the loss."""
        if self.reason is None:
            self.reason = reason
        if reason == "forked":
            self._callbacks.clear()  # the parent's: in the parent the lease goes on
        self._call_those_left(self.reason)
        self._flag.set()  # last: who waits for it may end the event loop, in which callbacks are called

    def _add(self, callback: Callable[[Any], object]) -> None:
        self._callbacks.append(callback)
        if self.reason is not None:
            self._call_those_left(self.reason)
        else:
            self._home.prepare()

    def _call_those_left(self, reason: str) -> None:
        while self._callbacks:
            try:
                callback = self._callbacks.popleft()
            except IndexError:
                return  # another thread calls the last one
            # Not here: the finder of the loss may hold locks, and what a callback raises must not reach it.
            self._home.tell(callback, self._news(reason))

    def _news(self, reason: str) -> Any:
        """Return the exception that callbacks are told of."""
        return LeaseLost(self._name, reason, self._label)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._name!r}: {self.reason or f'not {self._set}'}>"


class Wanted(Loss):
    """Set when another client asks for a lease; `lease.wanted` is one. `reason`: who asks, and why."""

    __slots__ = ()

    _set = "wanted"

    @property
    def name(self) -> str:
        """The name of what is wanted."""
        return self._name

    def _news(self, reason: str) -> Any:
        return self

"""How a loss reaches those who hold: a flag to wait for, and callbacks in a thread of their own."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from holdfast._api.options import Duration, timeout_of
from holdfast._core.record import LeaseRecord
from holdfast._front.threads import ThreadsFront
from holdfast._runtime.waits import Flag
from holdfast.errors import LeaseLost

__all__ = ["Loss", "Wanted", "tell"]


class Loss:
    """Set when a lease is lost; `lease.lost` is one. Can be waited for, like a `threading.Event`."""

    __slots__ = ("_callbacks", "_flag", "_label", "_name", "_teller", "reason")

    _set = "lost"

    def __init__(self, name: str, driver: ThreadsFront, label: str = "lock") -> None:
        self._name = name
        self._teller = driver.teller
        self._label = label
        self._flag = Flag()
        self._callbacks: deque[Callable[[Any], object]] = deque()  # those that were not called yet
        #: Why, or None.
        self.reason: str | None = None

    def is_set(self) -> bool:
        """True if the lease is known to be lost."""
        return self._flag.is_set()

    def wait(self, timeout: Duration | None = None) -> bool:
        """Wait for the loss, `timeout` seconds at most; returns whether it came."""
        return self._flag.wait_s(timeout_of(timeout))

    def _fire(self, reason: str) -> None:
        if self.reason is None:
            self.reason = reason
        if reason == "forked":
            self._callbacks.clear()  # the parent's: in the parent the lease goes on
        self._flag.set()
        self._call_those_left(self.reason)

    def _add(self, callback: Callable[[Any], object]) -> None:
        self._callbacks.append(callback)
        if self._flag.is_set():
            self._call_those_left(self.reason or "expired")
        else:
            self._teller.prepare()

    def _call_those_left(self, reason: str) -> None:
        while self._callbacks:
            try:
                callback = self._callbacks.popleft()
            except IndexError:
                return  # another thread calls the last one
            self._call(callback, reason)

    def _news(self, reason: str) -> Any:
        """Return the exception that callbacks are told of."""
        return LeaseLost(self._name, reason, self._label)

    def _call(self, callback: Callable[[Any], object], reason: str) -> None:
        # In a thread of its own: the finder of the loss may hold locks, and must not block on user callbacks.
        self._teller.tell(callback, self._news(reason))

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


def tell(record: LeaseRecord, listener: Callable[[str], None]) -> None:
    """Let it be told of a loss."""
    record.on_loss = listener

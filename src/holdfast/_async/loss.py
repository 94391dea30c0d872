"""How a loss reaches those who hold: an event, callbacks, and the cancellation of what runs under the lease.

Law: the body of an `async with` is cancelled when its lease is lost, and a cancellation from elsewhere is never
mistaken for that one, nor swallowed.
"""

from __future__ import annotations

import asyncio
from asyncio import _get_running_loop, current_task
from collections.abc import Callable
from functools import partial
from typing import Any

from holdfast._api.options import Duration, timeout_of
from holdfast._core.record import LeaseRecord
from holdfast._front.aio import AioFront, closers
from holdfast.errors import LeaseLost

__all__ = ["Body", "Loss", "Wanted", "tell"]


class Loss:
    """Set when a lease is lost; `lease.lost` is one. Can be waited for, like an `asyncio.Event`."""

    __slots__ = ("_callbacks", "_driver", "_event", "_label", "_name", "reason")

    _set = "lost"

    def __init__(self, name: str, driver: AioFront, label: str = "lock") -> None:
        self._name = name
        self._label = label
        self._driver = driver
        self._event = asyncio.Event()
        self._callbacks: list[Callable[[Any], object]] = []
        #: Why, or None.
        self.reason: str | None = None

    def is_set(self) -> bool:
        """True if the lease is known to be lost."""
        return self._event.is_set()

    async def wait(self, timeout: Duration | None = None) -> bool:
        """Wait for the loss, `timeout` seconds at most; returns whether it came."""
        try:
            async with asyncio.timeout(timeout_of(timeout)):
                return await self._event.wait()
        except TimeoutError:
            return False

    def _fire(self, reason: str) -> None:
        """By the engine, or by a task that has found the loss."""
        if _get_running_loop() is self._driver.loop:
            self._fire_here(reason)
        else:
            self._driver.in_loop(self._fire_here, reason)

    def _fire_here(self, reason: str) -> None:
        if self.reason is None:
            self.reason = reason
            if reason == "forked":
                self._callbacks.clear()  # the parent's: in the parent the lease goes on
            callbacks, self._callbacks = self._callbacks, []
            self._event.set()
            for callback in callbacks:
                self._call(callback, reason)

    def _add(self, callback: Callable[[Any], object]) -> None:
        if self.reason is None:
            self._callbacks.append(callback)
        else:
            self._call(callback, self.reason)

    def _news(self, reason: str) -> Any:
        """Return the exception that callbacks are told of."""
        return LeaseLost(self._name, reason, self._label)

    def _call(self, callback: Callable[[Any], object], reason: str) -> None:
        # Not at once: what a callback raises must not reach the finder of the loss.
        self._driver.in_loop(self._driver.call_back, callback, self._news(reason))

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
    """Let it be told of a loss, too."""
    earlier = record.on_loss
    if earlier is None:
        record.on_loss = listener
        return

    def both(reason: str) -> None:
        earlier(reason)
        listener(reason)

    record.on_loss = both


class Body:
    """A block that runs under a lease, in a task that is cancelled when the lease is lost."""

    __slots__ = ("_cancelled", "_cancelling", "_driver", "_open", "task")

    def __init__(self, task: asyncio.Task[Any], driver: AioFront, record: LeaseRecord) -> None:
        self.task = task
        self._driver = driver
        driver.bodies[self] = record
        self._cancelling = task.cancelling()
        self._cancelled = False
        self._open = True
        if record.reason is not None:
            self.cancel("")
        else:
            tell(record, self.cancel)  # not through the lease, which must be free to go

    def cancel(self, reason: str) -> None:
        """Cancel the block under a lost lease. By the engine, or by a task that has found the loss."""
        if _get_running_loop() is self._driver.loop:
            self._cancel_here(reason)
        else:
            self._driver.in_loop(self._cancel_here, reason)

    def _cancel_here(self, reason: str) -> None:
        if self._open and not self._cancelled and reason != "forked":
            loop = self.task.get_loop()
            if loop.is_closed():
                return
            later = closers.get(self.task)
            if later is not None:
                # It closes the client, and may do so to the end.
                later.append(partial(loop.call_soon, self._cancel_here, reason))
            elif _running_task() is self.task:
                # It found the loss itself, and may be told when it waits next.
                loop.call_soon(self._cancel_here, reason)
            else:
                self._cancelled = True
                self.task.cancel("the lease is lost")

    def leave(self) -> bool:
        """End the block; returns whether a cancellation that comes out of it is ours alone."""
        self._open = False
        self._driver.bodies.pop(self, None)
        return self._cancelled and self.task.uncancel() <= self._cancelling


def _running_task() -> asyncio.Task[Any] | None:
    try:
        return current_task()
    except RuntimeError:
        return None  # no event loop is running here

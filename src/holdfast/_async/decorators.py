"""Functions of users: those that run under a lock, and what others come to."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable
from types import FrameType
from typing import Any, TypeVar, cast

from holdfast._api.decorated import check_function, check_result, check_template, namer
from holdfast._async.entering import Enterable
from holdfast._async.lock import Leasable
from holdfast.errors import AcquireTimeout, AlreadyHeld, ConfigurationError

__all__ = ["Held", "Skipped", "awaited", "locked"]

F = TypeVar("F", bound=Callable[..., Any])
R = TypeVar("R")


class Skipped(Exception):
    """Raised for what another client holds, with that token, and what is not waited for."""

    def __init__(self, token: str = "") -> None:
        super().__init__()
        self.token = token


class Held(Enterable[Any]):
    """A block under a lock that is waited for within a budget, or not at all."""

    def __init__(self, lock: Leasable[Any], skip_if_held: bool, timeout_s: float | None) -> None:
        self._session = lock._session
        self._entered = lock._entered
        self._lock = lock
        self._skip_if_held = skip_if_held
        self._timeout_s = timeout_s

    async def _obtain(self, frame: FrameType) -> Any:
        try:
            return await self._lock._acquire(0.0 if self._skip_if_held else self._timeout_s, frame)
        except (AlreadyHeld, AcquireTimeout) as error:
            if not self._skip_if_held:
                raise
            holder = error.holder if isinstance(error, AcquireTimeout) else None
            raise Skipped(holder.token if holder else "") from None


def locked(
    make: Callable[[str], Leasable[Any]], template: str, skip_if_held: bool, timeout_s: float | None, otherwise: object
) -> Any:
    """See `Client.locked` and `limited`. `make`: the lock, or the semaphore, of a name."""
    check_template(template)
    make("check")

    def decorate(function: F) -> F:
        check_function(function, "asyncio")
        name = namer(template, function)

        @functools.wraps(function)
        async def call(*args: Any, **kwargs: Any) -> Any:
            try:
                async with Held(make(name(*args, **kwargs)), skip_if_held, timeout_s):
                    result = await function(*args, **kwargs)
                    check_result(function, result, "asyncio")
                    return result
            except Skipped:
                return otherwise

        return cast("F", call)

    return decorate


async def awaited(argument: str, function: Callable[..., Any], given: Awaitable[R]) -> R:
    """Return what a function has come to, which has done its work by then."""
    # sync-drop
    if not inspect.isawaitable(given):
        raise ConfigurationError(argument, function, "a coroutine function; plain functions belong to holdfast.Client")
    result = await given
    check_result(function, result, "asyncio", argument, "its body would run later, when that is over")
    return result

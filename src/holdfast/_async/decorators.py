"""Functions of users: those that run under a lock, and what others come to."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

from holdfast._api.decorated import check_function, check_result, check_template, namer
from holdfast.errors import AcquireTimeout, AlreadyHeld, ConfigurationError

F = TypeVar("F", bound=Callable[..., Any])
R = TypeVar("R")


def locked(
    make: Callable[[str], Any], template: str, skip_if_held: bool, timeout_s: float | None, otherwise: object
) -> Any:
    """See `Client.locked` and `limited`. `make`: the lock, or the semaphore, of a name."""
    check_template(template)
    make("check")
    budget_s = 0.0 if skip_if_held else timeout_s

    def decorate(function: F) -> F:
        check_function(function, "asyncio")
        name = namer(template, function)

        @functools.wraps(function)
        async def call(*args: Any, **kwargs: Any) -> Any:
            lock, is_held = make(name(*args, **kwargs)), False
            try:
                async with lock.acquire(timeout=budget_s):
                    is_held = True
                    result = await function(*args, **kwargs)
                    check_result(function, result, "asyncio")
                    return result
            except (AlreadyHeld, AcquireTimeout):
                if is_held or not skip_if_held:
                    raise
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

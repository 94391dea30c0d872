"""What users pass in to be called."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from holdfast._api.decorated import check_result
from holdfast.errors import ConfigurationError

__all__ = ["awaited"]

R = TypeVar("R")

#: Why a function that returns before it has done its work is refused.
_LATER = "its body would run later, when that is over"


async def awaited(argument: str, function: Callable[..., Any], given: Awaitable[R]) -> R:
    """Return what a function has come to, which has done its work by then."""
    # sync-drop
    if not inspect.isawaitable(given):
        raise ConfigurationError(argument, function, "a coroutine function; plain functions belong to holdfast.Client")
    result = await given
    check_result(function, result, "asyncio", argument, _LATER)
    return result

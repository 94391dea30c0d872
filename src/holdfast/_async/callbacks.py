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


# sync-drop
async def awaited(argument: str, function: Callable[..., Any], given: Awaitable[R]) -> R:
    """Await the result of a coroutine function and check it."""
    if not inspect.isawaitable(given):
        raise ConfigurationError(argument, function, "a coroutine function; plain functions belong to holdfast.Client")
    result = await given
    check_result(function, result, asynchronous=True, argument=argument, later=_LATER)
    return result


# sync-add: def awaited(argument: str, function: Callable[..., Any], result: R) -> R:
# sync-add:     """Check that a plain function has done its work, and return its result."""
# sync-add:     check_result(function, result, asynchronous=False, argument=argument, later=_LATER)
# sync-add:     return result

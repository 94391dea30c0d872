"""Which functions `locked` can decorate: those whose body has run when the call has ended. The same for both APIs.

A generator function returns at once, and its body runs later, without the lock. So do a coroutine function that
is not awaited inside the lock and a context manager made of a generator.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast._api.endpoints import Api
from holdfast._runtime.lazily import importing
from holdfast.errors import ConfigurationError

__all__ = ["check_callable", "check_function", "check_result"]

_LATER = "its body would run after the lock was released; take the lock inside the body, `{}with locks.lock(…):`"


def check_function(function: Any, api: Api) -> None:
    """Refuse, at decoration, what cannot be decorated."""
    asynchronous = api == "asyncio"
    with importing:
        from inspect import isasyncgenfunction, isclass, iscoroutinefunction, isgeneratorfunction
    wanted = "a coroutine function" if asynchronous else "a plain function"
    if isinstance(function, (staticmethod, classmethod)):
        kind = type(function).__name__
        raise ConfigurationError("function", function, f"{wanted}; put @{kind} above @locked(…)")
    if isclass(function):
        raise ConfigurationError("function", function, f"{wanted}; decorate the methods of the class")
    if not callable(function):
        raise ConfigurationError("function", function, wanted)
    # What a call runs: of an object that can be called its __call__. (A partial is looked through.)
    for called in (function, getattr(function, "__call__", None)):  # noqa: B004
        if isgeneratorfunction(called) or isasyncgenfunction(called):
            later = _LATER.format("async " if asynchronous else "")
            raise ConfigurationError("function", function, f"{wanted}, and no generator function: {later}")
        # (The mark is what asyncio knows compiled coroutine functions by.)
        if iscoroutinefunction(called) or type(getattr(called, "_is_coroutine", None)) is object:
            if not asynchronous:
                wanted += "; coroutine functions belong to holdfast.asyncio.Client.locked"
                raise ConfigurationError("function", function, wanted)
            return
    if asynchronous:
        raise ConfigurationError("function", function, f"{wanted}; plain functions belong to holdfast.Client.locked")


def check_callable(argument: str, function: Any, api: Api = "asyncio") -> None:
    """Refuse what cannot be called before anything is waited for, and coroutine functions that threads would call."""
    if not callable(function):
        raise ConfigurationError(argument, function, "a function")
    if api == "asyncio":
        return
    with importing:
        from inspect import isasyncgenfunction, iscoroutinefunction
    for called in (function, getattr(function, "__call__", None)):  # noqa: B004
        if iscoroutinefunction(called) or isasyncgenfunction(called):
            raise ConfigurationError(argument, function, "a plain function; what it returns is not awaited")


def check_result(
    function: Callable[..., Any], result: Any, api: Api, argument: str = "function", later: str = _LATER
) -> None:
    """Refuse what a call returned when its body has still to run: a wrapper can hide that from `check_function`."""
    if result is None or type(result) in _DONE:
        return
    with importing:
        from contextlib import AbstractAsyncContextManager, AbstractContextManager
        from inspect import isasyncgen, isawaitable, iscoroutine, isgenerator
    what = None
    if isgenerator(result) or isasyncgen(result):
        what = "a generator"
    elif iscoroutine(result):
        result.close()  # it will not be awaited
        what = "a coroutine"
    elif isinstance(result, (AbstractContextManager, AbstractAsyncContextManager)):
        body = getattr(result, "gen", None)
        if isgenerator(body) or isasyncgen(body):
            what = "a context manager made of a generator"
    elif api == "threads" and isawaitable(result):
        what = "an awaitable"
    if what is not None:
        later = later.format("async " if api == "asyncio" else "")
        allowed = f"one that has done its work when it returns; this one returned {what}: {later}"
        raise ConfigurationError(argument, function, allowed)


#: What most functions return, let through at once.
_DONE = frozenset({bool, int, float, str, bytes, list, tuple, dict, set})

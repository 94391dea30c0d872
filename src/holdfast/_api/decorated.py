"""Which functions `locked` can decorate: those whose body has run when the call has ended; and names of their locks.

A generator function returns at once, and its body runs later, without the lock. So do a coroutine function that
is not awaited inside the lock and a context manager made of a generator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from holdfast._api.endpoints import Api
from holdfast._api.options import check_name
from holdfast._runtime.lazily import lazily
from holdfast.errors import ConfigurationError

if TYPE_CHECKING:
    from string import Formatter

_LATER = "its body would run after the lock was released; take the lock inside the body, `{}with locks.lock(…):`"
#: By these flags `inspect` knows coroutine functions and asynchronous generators. It takes long to import.
_ASYNC = 0x80 | 0x200


def check_function(function: Any, api: Api) -> None:
    """Refuse, at decoration, what cannot be decorated."""
    asynchronous = api == "asyncio"
    inspect = lazily("inspect")
    wanted = "a coroutine function" if asynchronous else "a plain function"
    if isinstance(function, (staticmethod, classmethod)):
        kind = type(function).__name__
        raise ConfigurationError("function", function, f"{wanted}; put @{kind} above @locked(…)")
    if inspect.isclass(function):
        raise ConfigurationError("function", function, f"{wanted}; decorate the methods of the class")
    if not callable(function):
        raise ConfigurationError("function", function, wanted)
    # What a call runs: of an object that can be called its __call__. (A partial is looked through.)
    for called in (function, getattr(function, "__call__", None)):  # noqa: B004
        if inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called):
            later = _LATER.format("async " if asynchronous else "")
            raise ConfigurationError("function", function, f"{wanted}, and no generator function: {later}")
        # (The mark is what asyncio knows compiled coroutine functions by.)
        if inspect.iscoroutinefunction(called) or type(getattr(called, "_is_coroutine", None)) is object:
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
    code = getattr(function, "__code__", None)
    if api == "asyncio" or (code and not code.co_flags & _ASYNC and not hasattr(function, "_is_coroutine_mark")):
        return
    inspect = lazily("inspect")
    for called in (function, getattr(function, "__call__", None)):  # noqa: B004
        if inspect.iscoroutinefunction(called) or inspect.isasyncgenfunction(called):
            raise ConfigurationError(argument, function, "a plain function; what it returns is not awaited")


def check_result(
    function: Callable[..., Any], result: Any, api: Api, argument: str = "function", later: str = _LATER
) -> None:
    """Refuse what a call returned when its body has still to run: a wrapper can hide that from `check_function`."""
    if result is None or type(result) in _DONE:
        return
    contextlib, inspect, what = lazily("contextlib"), lazily("inspect"), None
    if inspect.isgenerator(result) or inspect.isasyncgen(result):
        what = "a generator"
    elif inspect.iscoroutine(result):
        result.close()  # it will not be awaited
        what = "a coroutine"
    elif isinstance(result, (contextlib.AbstractContextManager, contextlib.AbstractAsyncContextManager)):
        body = getattr(result, "gen", None)
        if inspect.isgenerator(body) or inspect.isasyncgen(body):
            what = "a context manager made of a generator"
    elif api == "threads" and inspect.isawaitable(result):
        what = "an awaitable"
    if what is not None:
        later = later.format("async " if api == "asyncio" else "")
        allowed = f"one that has done its work when it returns; this one returned {what}: {later}"
        raise ConfigurationError(argument, function, allowed)


#: What most functions return, let through at once.
_DONE = frozenset({bool, int, float, str, bytes, list, tuple, dict, set})


def name_of(subject: object) -> str:
    named = getattr(subject, "__lock_name__", None)
    if callable(named):
        named = named()
    if not isinstance(named, str) or not named:
        allowed = "an object with an attribute or a method __lock_name__ that gives a non-empty str"
        raise ConfigurationError("subject", subject, allowed)
    return check_name(named)


def check_template(template: object) -> str:
    if callable(template):
        allowed = 'a str: @locked has to be called, as @locked("order:{order_id}")'
        raise ConfigurationError("template", template, allowed)
    return check_name(template, "template")


def _fields(formatter: Formatter, template: str) -> Iterator[str]:
    """The fields of a format string, those within their formats included. ValueError where it is none."""
    for _, field, spec, conversion in formatter.parse(template):
        if field is not None:
            if conversion not in (None, "s", "r", "a"):
                raise ValueError(f"{conversion!r} is not a conversion")
            yield field
            yield from _fields(formatter, spec or "")


def namer(template: str, function: Callable[..., Any]) -> Callable[..., str]:
    """Return a function from the arguments of a call to the name. What the template names has to be a parameter."""
    # Imported here: a program that names no lock by a template need not wait for these at its start.
    inspect, formatter = lazily("inspect"), lazily("string").Formatter()
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        raise ConfigurationError("function", function, "a function whose signature Python knows") from None
    try:
        fields = list(_fields(formatter, template))
    except ValueError as error:
        raise ConfigurationError("template", template, f"a format string ({error})") from None
    called = getattr(function, "__qualname__", None) or repr(function)
    for field in fields:
        parameter = field.partition(".")[0].partition("[")[0]
        if parameter not in signature.parameters:
            known = ", ".join(signature.parameters) or "none"
            allowed = f"fields that are parameters of {called} ({known}), not {field!r}"
            raise ConfigurationError("template", template, allowed)

    def name(*args: Any, **kwargs: Any) -> str:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return check_name(template.format(**bound.arguments))

    return name

"""`locked` decorates what runs inside the lock, and refuses the rest: at decoration, or when it returns."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

import holdfast
from holdfast import embedded
from tests.support.apis import Api, AsyncioApi


@pytest.fixture
def locks(api: Api, valkey_server: embedded.Server) -> Any:
    """A client for the shared Valkey."""
    return api.connect(valkey_server.url)


def called(api: Api, function: Callable[..., Any], **options: Any) -> Any:
    """Call the function as the API's users do."""
    return api.call(function, **options) if isinstance(api, AsyncioApi) else function(**options)


def plain(x: object = 0) -> object:
    return x


async def coroutine(x: object = 0) -> object:
    return x


def generator(x: object = 0) -> Iterator[object]:
    yield x


async def async_generator(x: object = 0) -> AsyncIterator[object]:
    yield x


class Plain:
    def __call__(self, x: object = 0) -> object:
        return x

    def method(self, x: object = 0) -> object:
        return x


class Coroutine:
    async def __call__(self, x: object = 0) -> object:
        return x

    async def method(self, x: object = 0) -> object:
        return x


class Generator:
    def __call__(self, x: object = 0) -> Iterator[object]:
        yield x


PLAIN = [plain, functools.partial(plain), Plain(), Plain().method, functools.partial(Plain().method, x=1)]
COROUTINES = [
    coroutine,
    functools.partial(coroutine),
    Coroutine(),
    Coroutine().method,
    functools.partial(Coroutine().method, x=1),
]
NEITHER = {
    "generator": (generator, "generator function"),
    "async generator": (async_generator, "generator function"),
    "partial": (functools.partial(generator), "generator function"),
    "partial of async": (functools.partial(async_generator), "generator function"),
    "lambda": (lambda x: (yield x), "generator function"),
    "callable": (Generator(), "generator function"),
    "class": (Plain, "methods of the class"),
    "staticmethod": (staticmethod(plain), "@staticmethod above"),
    "classmethod": (classmethod(coroutine), "@classmethod above"),
    "number": (7, "function"),
    "None": (None, "function"),
}


@pytest.mark.parametrize("what", NEITHER)
def test_what_would_run_without_the_lock_is_refused(api: Api, locks: Any, what: str) -> None:
    function, way_out = NEITHER[what]
    with pytest.raises(holdfast.ConfigurationError, match=way_out) as refused:
        locks.locked("name")(function)
    assert refused.value.argument == "function"


@pytest.mark.parametrize("number", range(len(PLAIN)))
def test_each_api_takes_its_own_kind(api: Api, locks: Any, unique_name: str, number: int) -> None:
    own, other = (PLAIN, COROUTINES) if api.name == "threads" else (COROUTINES, PLAIN)
    decorated = locks.locked(unique_name + "{x}")(own[number])
    assert called(api, decorated, x=3) == 3
    assert not locks.lock(f"{unique_name}3").locked()
    there = "asyncio.Client" if api.name == "threads" else "holdfast.Client"
    with pytest.raises(holdfast.ConfigurationError, match=there):
        locks.locked("name")(other[number])


def hidden(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return call


LATER = {
    "generator": (generator, "a generator"),
    "async generator": (async_generator, "a generator"),
    "coroutine": (coroutine, "a coroutine"),
    "context manager": (contextlib.contextmanager(generator), "a context manager"),
    "async context manager": (contextlib.asynccontextmanager(async_generator), "a context manager"),
}


@pytest.mark.parametrize("what", LATER)
def test_what_returns_its_body_is_refused_when_it_does(api: Api, locks: Any, unique_name: str, what: str) -> None:
    function, named = LATER[what]
    inner: Callable[..., Any] = hidden(function)
    if api.name == "asyncio":
        made = inner

        async def outer() -> Any:
            return made()

        inner = outer
    with pytest.raises(holdfast.ConfigurationError, match=f"returned {named}"):
        called(api, locks.locked(unique_name)(inner))
    assert not locks.lock(unique_name).locked()


TEMPLATES = {
    "no parentheses": (plain, "has to be called"),
    "none": (None, "non-empty str"),
    "empty": ("", "non-empty str"),
    "another argument": ("order:{order}", "parameters of .*not 'order'"),
    "a number": ("order:{0}", "not '0'"),
    "nameless": ("order:{}", "not ''"),
    "within a format": ("order:{x:{width}}", "not 'width'"),
    "no conversion": ("order:{x!z}", "'z' is not a conversion"),
    "broken": ("order:{x", "format string"),
}


@pytest.mark.parametrize("what", TEMPLATES)
def test_a_template_that_cannot_be_filled_is_refused_at_decoration(api: Api, locks: Any, what: str) -> None:
    template, way_out = TEMPLATES[what]
    function = plain if api.name == "threads" else coroutine
    for decorated in (function, functools.partial(function)):
        with pytest.raises(holdfast.ConfigurationError, match=way_out) as refused:
            locks.locked(template)(decorated)
        assert refused.value.argument == "template"

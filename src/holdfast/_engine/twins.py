"""How the engine connects for a client that a user brought: with that client's own class, or its twin that blocks.

Laws: nothing of an event loop of the user's is touched; what a class of the user's own does is done, or the class is
refused by name.

Theory: a class of redis-py or valkey-py for asyncio has a twin that takes the same settings. Any other class for
asyncio connects in a loop of its own, in the thread that dials, and leaves its socket behind. That is not possible with
TLS, which asyncio does by itself.
"""

from __future__ import annotations

import asyncio
import copy
import os
import socket
from collections.abc import Awaitable, Callable, Iterator
from importlib import import_module
from inspect import iscoroutinefunction, signature
from typing import Any

from holdfast._engine.dial import CONNECT_TIMEOUT_S
from holdfast._engine.handshake import is_tls
from holdfast._runtime.lazily import lazily

#: Settings of connections for asyncio that their twins have objects of their own for, or that would not be used.
_NOT_FOR_TWINS = frozenset(
    {
        *("retry", "parser_class", "redis_connect_func", "event_dispatcher", "maint_notifications_config"),
        *("maint_notifications_pool_handler", "oss_cluster_maint_notifications_handler"),
    }
)


class Unsupported(Exception):
    """A class of connections that the engine cannot use: (its name, what would do)."""


def is_asyncio(kind: Any) -> bool:
    """True if connections of the class are for event loops."""
    return iscoroutinefunction(getattr(kind, "connect", None))


def connections(kind: Any, kwargs: dict[str, Any]) -> Callable[[], Any]:
    """Make what makes connections of that class, or such as block in its place."""
    if not is_asyncio(kind):
        return lambda: kind(**kwargs)
    on_connect = kwargs.get("redis_connect_func")
    by_library = on_connect is None or _library_of(on_connect) is not None
    if _library_of(kind) is None or not by_library:
        if is_tls(kind):
            wanted = "connections of redis-py or valkey-py themselves where TLS is used, or a URL with rediss://"
            raise Unsupported(kind.__qualname__, wanted)
        return lambda: _Lent(kind, kwargs)
    twin = getattr(import_module(kind.__module__.replace(".asyncio", "", 1)), kind.__name__)
    settings = _settings_for(twin, kind, kwargs)
    return lambda: twin(**settings)


def _library_of(thing: Any) -> str | None:
    """The library of clients that has it."""
    library = (getattr(thing, "__module__", None) or "").partition(".")[0]
    return library if library in ("redis", "valkey") else None


def _settings_for(twin: Any, kind: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Keep those of its twin. What neither knows is left for the twin to refuse."""
    known = _parameters(twin)
    only_asyncio = _NOT_FOR_TWINS | (_parameters(kind) - known)
    settings = {name: value for name, value in kwargs.items() if name not in only_asyncio}
    provider = settings.get("credential_provider")
    if provider is not None:
        settings["credential_provider"] = _Credentials(provider)
    if "connection_pool" in kwargs:
        settings["connection_pool"] = _Sentinels(kwargs["connection_pool"])
    return settings


def _parameters(kind: Any) -> set[str]:
    return {name for each in kind.__mro__ for name in signature(each.__init__).parameters}


def _in_a_loop(coroutine: Awaitable[Any]) -> Any:
    """Run it in a loop of its own."""

    async def bounded() -> Any:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            return await coroutine

    return asyncio.run(bounded())


class _Credentials:
    """A provider of credentials, asked in the way that asyncio asks."""

    def __init__(self, provider: Any) -> None:
        self._provider = provider

    def get_credentials(self) -> Any:
        ask = getattr(self._provider, "get_credentials_async", None)
        # That of the libraries' base class only warns, and asks in the other way.
        if ask is None or type(self._provider).get_credentials_async.__qualname__.startswith("CredentialProvider."):
            return self._provider.get_credentials()
        return _in_a_loop(ask())


class _Sentinels:
    """What a connection to a master or a replica needs of its pool, which is for asyncio: who that is.

    The Sentinels are asked as the user's client asks them, by connections of its own.
    """

    def __init__(self, pool: Any) -> None:
        self.service_name, self.is_master = pool.service_name, pool.is_master
        self.check_connection = pool.check_connection
        self._manager = pool.sentinel_manager

    def get_master_address(self) -> Any:
        return _in_a_loop(self._asked("discover_master"))

    def rotate_slaves(self) -> Iterator[Any]:
        yield from _in_a_loop(self._asked("discover_slaves"))
        yield self.get_master_address()

    async def _asked(self, method: str) -> Any:
        manager = copy.copy(self._manager)
        manager.sentinels = [type(each)(connection_pool=_like(each.connection_pool)) for each in manager.sentinels]
        try:
            return await getattr(manager, method)(self.service_name)
        finally:
            for each in manager.sentinels:
                await each.connection_pool.disconnect()


def _like(pool: Any) -> Any:
    """A pool without connections."""
    return type(pool)(connection_class=pool.connection_class, **pool.connection_kwargs)


class _Lent:
    """A connection whose class is for asyncio, and not known: it connects in a loop, and leaves its socket behind."""

    def __init__(self, kind: Any, kwargs: dict[str, Any]) -> None:
        self.kind = kind
        self._connection = kind(**kwargs)
        self._sock: socket.socket | None = None

    def connect(self) -> None:
        _in_a_loop(self._connect())

    async def _connect(self) -> None:
        connection = self._connection
        if hasattr(connection, "retry"):
            connection.retry = lazily("redis.asyncio.retry").Retry(lazily("redis.backoff").NoBackoff(), 0)
        await connection.connect()
        writer: Any = getattr(connection, "_writer", None)
        lent = None if writer is None else writer.get_extra_info("socket")
        if lent is not None:
            self._sock = socket.socket(fileno=os.dup(lent.fileno()))
            connection._reader = connection._writer = None
            writer.transport.abort()
            await asyncio.sleep(0)  # until it has closed its own

    def disconnect(self) -> None:
        if self._sock is not None:
            self._sock.close()

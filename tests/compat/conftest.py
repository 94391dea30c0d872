"""Locks of the drop-ins, and of what they stand in for, on one server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from holdfast import embedded
from tests.support.apis import Api, AsyncioApi, close_brought


@pytest.fixture
def raw(server: embedded.Server) -> Iterator[Any]:
    """To look at the server, and to be someone else."""
    with redis.Redis.from_url(server.url, decode_responses=True) as client:
        yield client


@pytest.fixture
def locks_on(api: Api) -> Iterator[Callable[[Any], Callable[..., Any]]]:
    """``locks_on(client)(name, timeout=…)``: the drop-in for redis-py's Lock, as its users make one."""
    import holdfast.compat.redis.asyncio

    compat: Any = holdfast.compat.redis if api.name == "threads" else holdfast.compat.redis.asyncio
    clients: list[Any] = []

    def locks_on(client: Any) -> Callable[..., Any]:
        clients.append(client)
        return lambda name, **options: api.wrap(client.lock(name, lock_class=compat.Lock, **options))

    yield locks_on
    for client in clients:
        locks = compat.locks_of(client)
        if isinstance(api, AsyncioApi):
            api.call(locks.close)
        else:
            locks.close()
        close_brought(api, client)


@pytest.fixture
def client(api: Api, server: embedded.Server) -> Any:
    """A client of redis-py for the API, not closed."""
    return api.redis().Redis.from_url(server.url)


@pytest.fixture
def plain(server: embedded.Server) -> Iterator[Any]:
    """One that blocks, for redis-py's own locks."""
    with redis.Redis.from_url(server.url) as client:
        yield client


@pytest.fixture
def lock_of(client: Any, locks_on: Callable[[Any], Callable[..., Any]]) -> Callable[..., Any]:
    """``lock_of(name, timeout=…)``: those on the server of the test."""
    return locks_on(client)

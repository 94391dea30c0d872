"""Connections of asyncio clients that users bring, with classes and credentials of their own."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
from typing import Any

import pytest
import redis.asyncio
import redis.asyncio.sentinel
from redis.credentials import CredentialProvider

import holdfast
import holdfast.asyncio
from holdfast import embedded
from testbed.topologies import WithSentinel
from testbed.waiting import PATIENCE_S


def locks_and_frees(client: Any, name: str) -> None:
    """A lock goes from one task to another, and nothing else happens to the client."""

    async def main() -> None:
        async with holdfast.asyncio.Client(client) as locks:
            async with locks.lock(name):
                waiting = asyncio.create_task(locks.lock(name).acquire(timeout=PATIENCE_S))
                while not await locks.lock(name).waiters():
                    await asyncio.sleep(0.01)
            await (await waiting).release()
        assert await client.ping()
        await client.aclose()
        pool = client.connection_pool
        await pool.disconnect()
        for sentinel in pool.sentinel_manager.sentinels if hasattr(pool, "sentinel_manager") else ():
            await sentinel.connection_pool.disconnect()

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))
    gc.collect()  # it complains of what was left open


def client_with(kind: Any, server: embedded.Server, **options: Any) -> Any:
    pool = redis.asyncio.ConnectionPool(connection_class=kind, host=server.host, port=server.port, **options)
    return redis.asyncio.Redis(connection_pool=pool)


def test_a_class_of_the_users_own_connects_by_itself(valkey_server: embedded.Server, unique_name: str) -> None:
    made: list[Any] = []

    class Own(redis.asyncio.Connection):
        async def connect(self) -> None:
            await asyncio.sleep(0.01)  # it may look for the address
            self.host, self.port = valkey_server.host, valkey_server.port
            await super().connect()  # type: ignore[no-untyped-call]
            made.append(self)

    pool = redis.asyncio.ConnectionPool(connection_class=Own, host="nowhere.invalid", port=1)
    locks_and_frees(redis.asyncio.Redis(connection_pool=pool), unique_name)
    assert len(made) >= 2, "one of them is the client's"


def test_what_is_to_be_called_on_connecting_is_called(valkey_server: embedded.Server, unique_name: str) -> None:
    called: list[Any] = []

    async def on_connect(connection: Any) -> None:
        await connection.on_connect()
        called.append(connection)

    locks_and_frees(client_with(redis.asyncio.Connection, valkey_server, redis_connect_func=on_connect), unique_name)
    assert len(called) >= 2


def test_a_class_of_the_users_own_with_tls_is_refused_by_name() -> None:
    class Own(redis.asyncio.SSLConnection):
        pass

    pool = redis.asyncio.ConnectionPool(connection_class=Own)
    with pytest.raises(holdfast.ConfigurationError, match=r"Own.*rediss://"):
        holdfast.asyncio.Client(redis.asyncio.Redis(connection_pool=pool))


class Asked(CredentialProvider):
    """Has credentials for those that wait for them."""

    def __init__(self) -> None:
        self.times = 0

    async def get_credentials_async(self) -> tuple[str, str]:
        await asyncio.sleep(0)
        self.times += 1
        return "default", "secret"


@pytest.mark.parametrize("kind", ["of the library", "own"])
def test_credentials_that_are_awaited(kind: str, private_server: Any, unique_name: str) -> None:
    server = private_server(config={"requirepass": "secret"})

    class Own(redis.asyncio.Connection):
        async def connect(self) -> None:
            await super().connect()  # type: ignore[no-untyped-call]

    provider = Asked()
    connection = redis.asyncio.Connection if kind == "of the library" else Own
    locks_and_frees(client_with(connection, server, credential_provider=provider), unique_name)
    assert provider.times >= 2


def test_a_sentinel_that_names_masters_in_a_way_of_its_own(shared_topologies: Any, unique_name: str) -> None:
    """As one that translates addresses."""
    topology = shared_topologies("sentinel")
    assert isinstance(topology, WithSentinel)
    host, port = topology.url.split("//")[1].split("/")[0].split(",")[0].rsplit(":", 1)
    named: list[Any] = []

    class Own(redis.asyncio.sentinel.Sentinel):
        async def discover_master(self, service_name: str) -> Any:
            named.append(await super().discover_master(service_name.removeprefix("my-")))
            return named[-1]

    service = topology.url.split("//")[1].split("/")[1]
    own: Any = Own
    locks_and_frees(own([(host, int(port))]).master_for(f"my-{service}"), unique_name)
    assert len(named) >= 2


def test_a_url_needs_no_asyncio_client(valkey_server: embedded.Server, unique_name: str) -> None:
    """Neither does it need redis-py, which takes longer to import than all else together."""
    program = """
import asyncio, sys
import holdfast.asyncio

async def main():
    async with holdfast.asyncio.connect(sys.argv[1]) as locks:
        async with locks.lock(sys.argv[2]):
            pass

asyncio.run(main())
print("redis" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, valkey_server.url.replace("valkey://", "redis://"), unique_name],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert (done.stdout, done.stderr) == ("False\n", "")

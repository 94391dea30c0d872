"""Connections that the server has closed while they were not in use: no call fails because of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

import holdfast
from holdfast import embedded
from testbed.servers import free_port, unique
from tests.support.apis import Api, AsyncioApi
from tests.support.operations import OPERATIONS, Scene

#: Within this, the end of a connection is seen.
SEEN_S = 0.02


@pytest.fixture
def valkey(valkey_server: embedded.Server) -> Iterator[Any]:
    """A plain client, to look at the server and to play the outsider."""
    with redis.Redis.from_url(valkey_server.url, decode_responses=True) as client:
        yield client


def kill(raw: Any) -> None:
    """End every connection but this one."""
    for kind in ("normal", "pubsub"):
        raw.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.what)
def test_an_idle_connection_that_was_killed(
    api: Api, valkey_server: embedded.Server, operation: Any, valkey: Any
) -> None:
    scene = Scene(api, api.connect(valkey_server.url), api.actor())
    scene.ask(scene.locks.lock(unique("warm")), "locked")
    do = operation.prepare(scene)
    kill(valkey)
    time.sleep(SEEN_S)
    do()
    scene.locks.close()


def test_idle_connections_that_timed_out(api: Api, private_server: Callable[..., embedded.Server]) -> None:
    """The server's configuration has ``timeout 1``."""
    server = private_server(config={"timeout": "1"})
    scenes = [(operation, Scene(api, api.connect(server.url), api.actor())) for operation in OPERATIONS]
    prepared = [(operation, scene, operation.prepare(scene)) for operation, scene in scenes]
    time.sleep(2.5)  # the server looks at all its connections once a second or so
    for _, scene, do in prepared:
        do()
        scene.locks.close()


def test_a_server_that_was_restarted(api: Api, private_server: Callable[..., embedded.Server]) -> None:
    """A restarted server has forgotten everything, which is said as such; that connections ended is not."""
    port = free_port()
    server = private_server(port=port)
    # (No one sets the event again.)
    operations = [operation for operation in OPERATIONS if operation.what != "Event.wait"]
    scenes = [(operation, Scene(api, api.connect(server.url), api.actor())) for operation in operations]
    prepared = [(operation, scene, operation.prepare(scene)) for operation, scene in scenes]
    server.close()
    private_server(port=port)
    for operation, scene, do in prepared:
        try:
            do()
        except (holdfast.LeaseLost, holdfast.NotHeld):
            assert operation.what.startswith(("Lease", "Read", "Write", "Sem", "Multi", "Condition", "Election"))
        scene.locks.close()


def test_a_connection_whose_end_the_event_loop_has_not_seen(valkey_server: embedded.Server, valkey: Any) -> None:
    """The loop was busy elsewhere."""

    async def main() -> None:
        import holdfast.asyncio

        async with holdfast.asyncio.connect(valkey_server.url) as locks:
            key = unique("busy")
            lock = locks.lock(key, ttl=20)
            async with lock as lease:
                for ask in (
                    lock.locked,
                    lock.holder,
                    lambda: lease.extend(20),
                    lambda: locks.compare_and_set(f"{key}-cas", None, "a"),
                    lambda: locks.semaphore(key, permits=2).available(),
                    lambda: locks.event(key).set(),
                ):
                    await asyncio.sleep(0.01)
                    time.sleep(0.001)  # noqa: ASYNC251 (that is what this is about)
                    kill(valkey)
                    await ask()

    asyncio.run(main())


def test_a_transaction_never_goes_on_without_what_it_watches(
    api: Api, valkey_server: embedded.Server, valkey: Any
) -> None:
    """After its connection ended behind the read it begins again, which is no conflict; no write is overwritten."""
    locks = api.connect(valkey_server.url)
    key = unique("watched")
    valkey.set(key, 1)
    seen: list[int] = []

    def meanwhile(value: int) -> None:
        seen.append(value)
        if len(seen) == 1:
            kill(valkey)
            valkey.set(key, 10)

    if isinstance(api, AsyncioApi):

        async def add(tx: Any) -> None:
            meanwhile(int(await tx.get(key)))
            await asyncio.sleep(0.05)
            tx.set(key, seen[-1] + 1)

    else:

        def add(tx: Any) -> None:  # type: ignore[misc]
            meanwhile(int(tx.get(key)))
            tx.set(key, seen[-1] + 1)

    locks.optimistic(key, attempts=1).run(add)
    assert seen == [1, 10]
    assert valkey.get(key) == "11"


def test_a_transaction_whose_read_failed_writes_nothing(api: Api, valkey_server: embedded.Server, valkey: Any) -> None:
    """A read that is refused ends its connection, and what that watched: also where the function goes on."""
    locks = api.connect(valkey_server.url)
    key = unique("refused")
    valkey.lpush(key, "a list")

    if isinstance(api, AsyncioApi):

        async def careless(tx: Any) -> None:
            with pytest.raises(holdfast.ServerError, match="WRONGTYPE"):
                await tx.get(key)
            tx.queue("LPUSH", key, "more")

    else:

        def careless(tx: Any) -> None:  # type: ignore[misc]
            with pytest.raises(holdfast.ServerError, match="WRONGTYPE"):
                tx.get(key)
            tx.queue("LPUSH", key, "more")

    with pytest.raises(holdfast.ServerError, match="WRONGTYPE"):
        locks.optimistic(key).run(careless)
    assert valkey.lrange(key, 0, -1) == ["a list"]

"""Clients that users bring: of redis-py and of valkey-py, of either API."""

from __future__ import annotations

import asyncio
import importlib
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

import holdfast
import holdfast.asyncio
from holdfast import embedded
from testbed.waiting import PATIENCE_S, eventually

LIBRARIES = {"redis": "Redis", "valkey": "Valkey"}


@pytest.fixture(params=sorted(LIBRARIES))
def library(request: pytest.FixtureRequest) -> str:
    """The library whose clients are brought; skipped where it is not installed."""
    pytest.importorskip(request.param)
    name: str = request.param
    return name


def brought(library: str, url: str, asynchronous: bool) -> Any:
    module = importlib.import_module(f"{library}.asyncio" if asynchronous else library)
    return getattr(module, LIBRARIES[library]).from_url(url)


def test_threads_take_turns(library: str, valkey_server: embedded.Server, unique_name: str) -> None:
    url = valkey_server.url.replace("valkey://", "redis://")
    clients = [brought(library, url, asynchronous=False) for _ in range(2)]
    with holdfast.Client(clients[0]) as locks, holdfast.Client(clients[1]) as others:
        got: list[int] = []
        with locks.lock(unique_name) as lease:
            got.append(lease.fencing_token)
            waiting = threading.Thread(target=lambda: _acquire(others, unique_name, got))
            waiting.start()
            eventually(lambda: locks.lock(unique_name).waiters() == 1)
        waiting.join(PATIENCE_S)
        assert len(got) == 2
        assert got[0] < got[1]
        assert locks.lock(unique_name).status().holder is None
    for client in clients:
        assert client.ping()  # it is its owner's, as before
        client.close()


def with_connections(library: str, kind: type[Any], **settings: Any) -> Any:
    module = importlib.import_module(library)
    pool = module.ConnectionPool(connection_class=kind, **settings)
    return getattr(module, LIBRARIES[library])(connection_pool=pool)


def test_a_class_of_the_users_own_connects_by_itself(
    library: str, private_server: Callable[..., embedded.Server], unique_name: str
) -> None:
    module, server, made = importlib.import_module(library), private_server(password="secret"), []

    class Own(module.Connection):  # type: ignore[misc, name-defined]
        def connect(self) -> None:
            self.host, self.port = server.host, server.port
            super().connect()
            made.append(self)

    class Provider(module.CredentialProvider):  # type: ignore[misc, name-defined]
        def get_credentials(self) -> tuple[str, str]:
            return "default", "secret"

    settings: dict[str, Any] = {"host": "nowhere.invalid", "credential_provider": Provider()}
    client = with_connections(library, Own, **settings)
    with holdfast.Client(client) as locks, locks.lock(unique_name) as lease:
        lease.ensure_held()
    assert len(made) == 1


def test_a_class_that_leaves_no_socket_behind_is_refused_by_name(library: str, unique_name: str) -> None:
    class Own(importlib.import_module(library).Connection):  # type: ignore[misc]
        def connect(self) -> None:
            """As one that speaks by other means."""

    client = with_connections(library, Own)
    with (
        holdfast.Client(client) as locks,
        pytest.raises(holdfast.ConfigurationError, match=r"socket: Own has none after connect\(\)"),
    ):
        locks.lock(unique_name).acquire(timeout=PATIENCE_S)


def test_what_keeps_it_from_connecting_is_said_in_one_way(
    library: str, private_server: Callable[..., embedded.Server], unique_name: str
) -> None:
    server = private_server(password="secret")
    mistaken = brought(library, server.url.replace("secret", "guessed"), asynchronous=False)
    with holdfast.Client(mistaken) as locks, pytest.raises(holdfast.ServerError) as refused:
        locks.lock(unique_name).acquire(timeout=5)
    assert refused.value.kind == "WRONGPASS"
    server.kill()
    with holdfast.Client(brought(library, server.url, asynchronous=False)) as locks:
        with pytest.raises(holdfast.ServerUnreachable, match="running"):
            locks.lock(unique_name).try_acquire()
        server.start()
        locks.lock(unique_name).acquire(timeout=PATIENCE_S).release()


def _acquire(locks: Any, name: str, got: list[int]) -> None:
    with locks.lock(name).acquire(timeout=PATIENCE_S) as lease:
        got.append(lease.fencing_token)


async def _tasks_take_turns(library: str, url: str, name: str) -> None:
    clients = [brought(library, url, asynchronous=True) for _ in range(2)]
    async with holdfast.asyncio.Client(clients[0]) as locks, holdfast.asyncio.Client(clients[1]) as others:

        async def wait() -> int:
            async with others.lock(name) as lease:
                return lease.fencing_token

        async with locks.lock(name) as lease:
            waiting = asyncio.create_task(wait())
            while await locks.lock(name).waiters() != 1:
                await asyncio.sleep(0.01)
        assert await waiting > lease.fencing_token
    for client in clients:
        assert await client.ping()
        await client.aclose()


def test_tasks_take_turns(library: str, valkey_server: embedded.Server, unique_name: str) -> None:
    asyncio.run(asyncio.wait_for(_tasks_take_turns(library, valkey_server.url, unique_name), PATIENCE_S))


@pytest.mark.parametrize("mine", ["threads", "asyncio"])
def test_a_client_of_the_other_api_is_refused(library: str, valkey_server: embedded.Server, mine: str) -> None:
    client = brought(library, valkey_server.url, asynchronous=mine == "threads")
    module: Any = holdfast if mine == "threads" else holdfast.asyncio
    with pytest.raises(holdfast.ConfigurationError, match="client"):
        module.Client(client)
    if mine == "threads":
        asyncio.run(client.aclose())
    else:
        client.close()


_WITHOUT_PUSHES = """
import asyncio, sys, threading
import hiredis
hiredis.__dict__.pop("PushNotification", None)  # as before 3.2
import holdfast, holdfast.asyncio

async def main(url, name):
    async with holdfast.asyncio.connect(url) as locks:
        async with locks.lock(name):
            waiting = asyncio.create_task(locks.lock(name).acquire(timeout=20))
            waiting.cancel()
        assert await locks.compare_and_set(name, None, "new", ttl=9)
        assert not await locks.compare_and_set(name, None, "newer", ttl=9)
        assert await locks.optimistic(name + "-nothing").run(nothing) is None

async def nothing(tx):
    return await tx.get("no such key")

url, name = sys.argv[1:]
with holdfast.connect(url) as locks, holdfast.connect(url) as others:
    with locks.lock(name):
        waiting = threading.Thread(target=lambda: others.lock(name).acquire(timeout=20).release())
        waiting.start()
    waiting.join(20)
    assert locks.optimistic(name + "-nothing").run(lambda tx: tx.get("no such key")) is None
asyncio.run(main(url, name))
print("done")
"""


def test_a_parser_that_knows_no_pushes(valkey_server: embedded.Server, unique_name: str) -> None:
    """An absent value is a reply all the same."""
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_PUSHES, valkey_server.url, unique_name],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert (done.stdout, done.stderr) == ("done\n", "")

"""For the tests of faults: both faces, and a wire with a hand on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from holdfast import embedded
from tests.support import servers
from tests.support.faces import FACES, Face
from tests.support.proxy import Proxy


@pytest.fixture(params=sorted(FACES))
def face(request: pytest.FixtureRequest) -> Iterator[Face]:
    """Threads, then asyncio."""
    face = FACES[request.param]()
    yield face
    face.close()


@pytest.fixture
def wire(valkey_server: embedded.Server) -> Iterator[Proxy]:
    """A wire to the shared Valkey."""
    with Proxy(valkey_server.host, valkey_server.port) as proxy:
        yield proxy


@pytest.fixture
def near(face: Face, wire: Proxy) -> Any:
    """A client on that wire, connected, with the lock's scripts known to the server."""
    locks = face.connect(wire.url)
    warm(locks)
    return locks


@pytest.fixture
def far(face: Face, valkey_server: embedded.Server) -> Any:
    """Another client of that server, with nothing in its way."""
    return face.connect(valkey_server.url)


@pytest.fixture
def look(valkey_server: embedded.Server) -> Iterator[Any]:
    """redis-py, to look at the shared Valkey."""
    client = redis.Redis.from_url(valkey_server.url, decode_responses=True)
    yield client
    client.close()


@pytest.fixture
def looking_at() -> Iterator[Callable[[embedded.Server], Any]]:
    """redis-py for a private server."""
    made = []

    def make(server: embedded.Server) -> Any:
        client = redis.Redis.from_url(server.url, decode_responses=True)
        made.append(client)
        return client

    yield make
    for client in made:
        client.close()


def warm(locks: Any) -> None:
    """Have the scripts of a lock's life loaded."""
    lease = locks.lock(servers.unique("warm")).acquire()
    lease.extend(30)
    lease.release()

"""For the tests of faults: both faces, and a wire with a hand on it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from holdfast import embedded
from tests.support import servers
from tests.support.faces import FACES, Face
from tests.support.proxy import Proxy
from tests.support.scripts import Scripts


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
def look_bytes(valkey_server: embedded.Server) -> Iterator[Any]:
    """The same, with values as they are."""
    client = redis.Redis.from_url(valkey_server.url)
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


@pytest.fixture
def scripts(valkey_server: embedded.Server) -> Iterator[Scripts]:
    """The scripts on the shared Valkey, one by one."""
    scripts = Scripts(valkey_server.url)
    yield scripts
    scripts.close()


def warm(locks: Any) -> None:
    """Have the scripts of a lock's life loaded."""
    lease = locks.lock(servers.unique("warm")).acquire()
    lease.extend(30)
    lease.release()


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(key, certificate) of "localhost", signed by itself."""
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("no openssl on PATH to make a certificate with")
    folder = tmp_path_factory.mktemp("tls")
    key, certificate = folder / "key.pem", folder / "cert.pem"
    command = [program, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run([*command, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
    return key, certificate

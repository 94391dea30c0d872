"""What stands before a server, and knows no RESP3: messages come by a connection of their own."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hiredis
import pytest

from holdfast import embedded, errors
from holdfast._engine.pack import pack_command
from holdfast.cli import exits
from testbed import debian, servers
from testbed.waiting import eventually
from tests.support.apis import Api
from tests.support.standin import StandIn, pump


class Old(StandIn):
    """Passes on everything but HELLO, which it refuses, or at which it closes the connection."""

    def __init__(self, server: embedded.Server, closes: bool) -> None:
        self._target = (server.host, server.port)
        self._closes = closes
        self.subscribed: list[socket.socket] = []
        self.hellos = self.requests = 0
        self.deaf = False
        super().__init__()

    def serve(self, client: socket.socket) -> None:
        reader = hiredis.Reader()
        with socket.create_connection(self._target) as server:
            threading.Thread(target=pump, args=(server, client), daemon=True).start()
            while data := client.recv(65536):
                reader.feed(data)
                while (words := reader.gets()) is not False:
                    if words[0].upper() == b"HELLO":
                        self.hellos += 1
                        if self._closes:
                            return
                        client.sendall(b"-ERR unknown command 'HELLO'\r\n")
                    else:
                        self.requests += 1
                        if words[0].upper() == b"SUBSCRIBE":
                            self.subscribed.append(client)
                        if not (self.deaf and client in self.subscribed[:1]):
                            server.sendall(pack_command(words))


@pytest.fixture
def server(valkey_server: embedded.Server) -> embedded.Server:
    return valkey_server


@pytest.fixture(params=["refuses", "closes"])
def old(request: pytest.FixtureRequest, server: embedded.Server) -> Iterator[Old]:
    with Old(server, request.param == "closes") as old:
        yield old


def hand_over(api: Api, holder: Any, waiter: Any, name: str) -> None:
    lease = holder.lock(name, ttl=30).acquire()
    waiting = api.start(waiter.lock(name, ttl=30).acquire, timeout=25)
    eventually(lambda: holder.lock(name).waiters() == 1)
    began_at = time.monotonic()
    lease.release()
    waiting.result(25).release()
    assert time.monotonic() - began_at < 10, "it was told, and did not look by itself"


def test_messages_come_by_a_second_connection(api: Api, old: Old, unique_name: str) -> None:
    locks, others = api.connect(old.url), api.connect(old.url)
    for number in range(3):
        hand_over(api, locks, others, f"{unique_name}-{number}")
    assert len(old.subscribed) in (1, 2), "one of the waiter, and one of a holder of more than a tenth of a second"
    assert 3 * old.hellos <= old.requests, (
        "with each connection, of which a slow machine takes more, not with each request"
    )


def test_a_second_connection_that_is_half_open(
    api: Api, old: Old, unique_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found out while the waiter has nothing to ask."""
    monkeypatch.setattr("holdfast._engine.server.INBOX_QUIET_S", 0.1)
    monkeypatch.setattr("holdfast._engine.server.INBOX_TIMEOUT_S", 0.8)
    locks, others = api.connect(old.url), api.connect(old.url)
    lease = locks.lock(unique_name, ttl=600).acquire()
    old.deaf = True
    waiting = api.start(others.lock(unique_name).acquire, timeout=60)
    eventually(lambda: len(old.subscribed) == 2, "it listens on another connection")
    lease.release()
    waiting.result(20).release()


@pytest.fixture
def twemproxy(server: embedded.Server, tmp_path: Path) -> Iterator[str]:
    """Nutcracker before the server: it has no HELLO and no SUBSCRIBE, and hangs up on both."""
    program = debian.program("nutcracker")
    if isinstance(program, str):
        pytest.skip(program)
    port, stats_port = servers.free_port(), servers.free_port()
    config = tmp_path / "nutcracker.yml"
    config.write_text(
        f"pool:\n  listen: 127.0.0.1:{port}\n  redis: true\n  hash: fnv1a_64\n  distribution: ketama\n"
        f'  hash_tag: "{{}}"\n  servers:\n   - {server.host}:{server.port}:1\n'
    )
    command = [str(program), "-c", str(config), "-o", str(tmp_path / "log"), "-s", str(stats_port)]
    with subprocess.Popen(command) as process:

        def is_open() -> bool:
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", port)) == 0

        try:
            eventually(is_open, "nutcracker listens")
            yield f"redis://127.0.0.1:{port}"
        finally:
            process.terminate()


def test_doctor_says_that_nothing_waits_behind_twemproxy(twemproxy: str) -> None:
    command = [sys.executable, "-m", "holdfast", "doctor", "--url", twemproxy]
    told = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (told.returncode, told.stderr) == (exits.UNUSABLE, "")
    assert "cannot be used for locks" in told.stdout
    assert re.search(r"NO role +this closes the connection at SUBSCRIBE", told.stdout)
    assert told.stdout.count("\n") <= 5, "nothing about rights, or what INFO would say"


def test_what_works_behind_twemproxy(api: Api, twemproxy: str, unique_name: str) -> None:
    """Everything but waiting: locks, their renewal, and what is refused because another client has it."""
    locks, others = api.connect(twemproxy), api.connect(twemproxy)
    lease = locks.lock(unique_name, ttl=0.6).acquire()
    with pytest.raises(errors.AcquireTimeout):
        others.lock(unique_name).acquire(timeout=0)
    time.sleep(0.7)
    lease.ensure_held()
    lease.release()
    later = others.lock(unique_name).acquire(timeout=0)
    assert later.fencing_token > lease.fencing_token
    later.release()
    for mine, theirs in (
        (locks.semaphore(unique_name, permits=1), others.semaphore(unique_name, permits=1)),
        (locks.rwlock(unique_name).write(), others.rwlock(unique_name).read()),
    ):
        held = mine.acquire()
        with pytest.raises(errors.AcquireTimeout):
            theirs.acquire(timeout=0)
        held.release()

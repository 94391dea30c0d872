"""A stand-in for a server that this machine does not have: another one behind it, with some commands by other names.

Redis 8.4 compares and deletes with ``DELEX key IFEQ value``, Valkey 9.0 with ``DELIFEQ key value``; both answer 1 or 0.
Requests are read as RESP, rewritten, and sent on; replies pass as they are.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import Counter
from typing import Any, Self

import hiredis

from holdfast._transport.pack import pack_command

__all__ = ["LikeRedis84"]


class LikeRedis84:
    """Knows DELEX, and no DELIFEQ, in front of a server that knows DELIFEQ."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        #: How often each command came, in capitals.
        self.commands: Counter[str] = Counter()
        self._socks: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, name="stand-in", daemon=True).start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
                self._socks += [client, server]
                for target, one, other in ((self._requests, client, server), (self._replies, server, client)):
                    threading.Thread(target=target, args=(one, other), name="stand-in", daemon=True).start()

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        reader = hiredis.Reader()
        with contextlib.suppress(OSError), server:
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

    def _replies(self, server: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError), client:
            while data := server.recv(65536):
                client.sendall(data)

    def close(self) -> None:
        """End it and its connections."""
        for sock in (self._listener, *self._socks):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

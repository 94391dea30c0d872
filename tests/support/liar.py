"""A stand-in that tells lies: a server behind it that answers as it is told when a test asks for it.

    with Liar(server.host, server.port) as liar:
        locks = holdfast.connect(liar.url)
        liar.lie(b"$-1\r\n")
        with pytest.raises(holdfast.ServerError): ...

Handshakes, and what a client says of itself, are answered truthfully. Messages pass as they are.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import deque

import hiredis

from holdfast._engine.pack import pack_command
from tests.support.standin import StandIn, each_of

__all__ = ["CUT", "HANG", "KINDS", "Liar"]

#: What no request of ours is answered with, by what is wrong with it. "{}" stands for the true reply.
KINDS: dict[str, bytes] = {
    "a second reply": b"{}+OK\r\n",
    "the reply twice": b"{}{}",
    "the beginning of a second reply": b"{}$10\r\nabc",
    "a surplus of ten thousand": b"{}" + b":1\r\n" * 10_000,
    "an unknown type": b"?what\r\n",
    "another protocol": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "a float": b",1.5\r\n",
    "a truth value": b"#t\r\n",
    "a map with a list for a key": b"%1\r\n*1\r\n:1\r\n:2\r\n",
    "an empty array": b"*0\r\n",
    "an array of nil": b"*2\r\n$-1\r\n$-1\r\n",
    "an array that is too long": b"*9\r\n" + b":1\r\n" * 9,
    "an array that is too short": b"*1\r\n:1\r\n",
    "a granted lock without a number": b"*2\r\n:1\r\n$-1\r\n",
    "an error in an array": b"*2\r\n:1\r\n-ERR no\r\n",
    "arrays within arrays": b"*1\r\n" * 6 + b":1\r\n",
    "a number that is too large": b":99999999999999999999\r\n",
    "a negative length": b"$-7\r\n",
    "a negative number": b":-77\r\n",
    "a string": b"$5\r\nhello\r\n",
}


#: Instead of a reply: the connection is closed, or nothing comes.
CUT = b"cut"
HANG = b"hang"
#: What belongs to a handshake, or says something of the client.
_TRUE = frozenset({b"AUTH", b"HELLO", b"CLIENT", b"SELECT", b"PING", b"SUBSCRIBE", b"SCRIPT"})


class Liar(StandIn):
    """Listens at a port of its own, in front of `host:port`."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._lock = threading.Lock()
        self._lies: list[tuple[int, bytes]] = []
        self._always: bytes | None = None
        #: How many requests have come since the last `lie`, and how many of them were lied to.
        self.asked = 0
        self.told = 0
        #: How many times clients have said who they are: in the background, beside what a test asks for.
        self.introduced = 0
        self._clients: list[socket.socket] = []
        self._closing = threading.Event()
        super().__init__()

    def lie(self, reply: bytes, at: int = 0) -> None:
        """Answer the `at`-th request from now with this."""
        with self._lock:
            self.asked = self.told = 0
            self._lies = [(at, reply)]

    def always(self, reply: bytes) -> None:
        """Answer every request from now on with this, `CUT` or `HANG`; subscriptions, too."""
        with self._lock:
            self.asked = self.told = 0
            self._always = reply

    def later(self, surplus: bytes) -> None:
        """Send this on every connection, now, though no one has asked for it."""
        with self._lock:
            for sock in self._clients:
                with contextlib.suppress(OSError):
                    sock.sendall(surplus)
        time.sleep(0.02)  # it is on loopback, and arrives

    def truth(self) -> None:
        """Stop lying."""
        with self._lock:
            self._lies, self._always = [], None

    def serve(self, client: socket.socket) -> None:
        server = self.keep(socket.create_connection(self._target))
        reader = hiredis.Reader()
        asked: deque[bytes | None] = deque()
        self._clients.append(client)
        threading.Thread(target=self._answer, args=(server, client, asked), name="liar", daemon=True).start()
        with server:
            while data := client.recv(65536):
                reader.feed(data)
                while (request := reader.gets()) is not False:
                    reply = self._reply_to(request)
                    if reply is CUT:
                        client.shutdown(socket.SHUT_RDWR)
                        return
                    if reply is HANG:
                        self._closing.wait(60)
                        return
                    asked.append(reply)
                    server.sendall(pack_command(request))

    def _answer(self, server: socket.socket, client: socket.socket, asked: deque[bytes | None]) -> None:
        """Pass on what the server says: the replies, or the lies instead, and messages."""
        with contextlib.suppress(OSError):
            for said in each_of(server):
                is_message = said.startswith(b">") and b"subscribe" not in said[:20]
                reply = None if is_message else asked.popleft()
                client.sendall(said if reply is None else reply.replace(b"{}", said))
            client.shutdown(socket.SHUT_RDWR)

    def _reply_to(self, request: list[bytes]) -> bytes | None:
        word = request[0].upper()
        if word == b"SET" and b":client:" in request[1]:
            self.introduced += 1
            return None
        with self._lock:
            if self._always is not None and (word == b"SUBSCRIBE" or word not in _TRUE):
                self.told += 1
                return self._always
            if word in _TRUE:
                return None
            number, self.asked = self.asked, self.asked + 1
            for at, reply in self._lies:
                if at == number:
                    self.told += 1
                    return reply
        return None

    def close(self) -> None:
        """End it and its connections."""
        self._closing.set()
        super().close()

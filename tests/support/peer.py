"""An engine of a test's own, and the server's end of its connections, which are pairs of sockets."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import hiredis

from holdfast._core.effects import Reply
from holdfast._core.failure import RequestFailed
from holdfast._engine.loop import Engine
from holdfast._engine.pack import pack_command
from holdfast._engine.requests import Request
from holdfast._engine.server import Server
from holdfast._runtime.clock import clock
from testbed.waiting import eventually

__all__ = ["Answered", "Peer", "running_engine"]

Words = list[bytes]
_HELLO = b"%1\r\n$5\r\nproto\r\n:3\r\n"


class _Connection:
    """As the client library makes it."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock: socket.socket | None = sock

    def connect(self) -> None:
        pass

    def disconnect(self) -> None:
        if self._sock is not None:
            self._sock.close()
            self._sock = None


class Peer:
    """A server: `answer(words)` gives the bytes to reply with; None: nothing for now."""

    def __init__(self) -> None:
        self.answer: Callable[[Words], bytes | None] = lambda words: b"+OK\r\n"
        self.asked: list[Words] = []
        #: The connections on which each of them came, and how many came in one read.
        self.came_on: list[int] = []
        self.reads: list[int] = []
        self.ends: list[socket.socket] = []
        #: Cleared: nothing is read.
        self.reading = threading.Event()
        self.reading.set()
        self._threads: list[threading.Thread] = []

    def make(self) -> _Connection:
        """One more connection."""
        ours, theirs = socket.socketpair()
        self.ends.append(theirs)
        thread = threading.Thread(target=self._serve, args=(theirs, len(self.ends) - 1), name="peer", daemon=True)
        self._threads.append(thread)
        thread.start()
        return _Connection(ours)

    def _serve(self, sock: socket.socket, number: int) -> None:
        parser = hiredis.Reader()
        with contextlib.suppress(OSError):
            while self.reading.wait(60) and (data := sock.recv(1 << 20)):
                parser.feed(data)
                count = 0
                while (words := parser.gets()) is not False:
                    if words[0] == b"HELLO":
                        sock.sendall(_HELLO)
                        continue
                    count += 1
                    self.asked.append(words)
                    self.came_on.append(number)
                    answer = self.answer(words)
                    if answer is not None:
                        sock.sendall(answer)
                if count:
                    self.reads.append(count)

    def heard(self, count: int) -> list[Words]:
        """The requests, once there are that many."""
        eventually(lambda: len(self.asked) >= count, f"{count} requests, not {len(self.asked)}")
        return self.asked

    def say(self, data: bytes, number: int = -1) -> None:
        """Send it on that connection, by itself."""
        self.ends[number].sendall(data)

    def hang_up(self, number: int = -1) -> None:
        """End that connection."""
        self.ends[number].shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End all of them."""
        self.reading.set()
        for end in self.ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)
        for end in self.ends:
            end.close()


class Answered:
    """What came of a request."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        self.times = 0
        self.reply: Reply = None
        self.failure: RequestFailed | None = None

    def __call__(self, reply: Reply, failure: RequestFailed | None) -> None:
        self.times += 1
        self.reply, self.failure = reply, failure
        self._ended.set()

    @property
    def over(self) -> bool:
        return self._ended.is_set()

    def wait(self) -> tuple[Any, RequestFailed | None]:
        """The reply and the failure, once there is one of them."""
        assert self._ended.wait(20), "it was not answered"
        return self.reply, self.failure

    def kind(self) -> str:
        """Of the failure."""
        failure = self.wait()[1]
        assert failure is not None, f"it was answered: {self.reply!r}"
        return failure.kind


@contextlib.contextmanager
def running_engine() -> Iterator[Engine]:
    """One that ends with the test."""
    engine = Engine()
    client = object()
    engine.enter(client)
    try:
        yield engine
    finally:
        engine.call(engine.leave, client)
        eventually(lambda: engine.thread is None, "the engine's thread ends with its last client")


def command(server: Server, *words: str, patience_s: float = 20.0, fits: Any = None) -> Answered:
    """Have the engine send a command."""
    answered = Answered()
    request = Request(pack_command(words), clock() + patience_s, fits, None, answered)
    server.engine.call(server.send, request)
    return answered

"""Ways for threads to lock and unlock, all with the same two functions: the libraries, and the floors.

A floor is the least that the wire allows: packed bytes on a bare socket, fixed replies, no checks. It is no lock that
anyone should use.
"""

from __future__ import annotations

import collections
import contextlib
import hashlib
import itertools
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Protocol, TypeAlias
from urllib.parse import urlsplit

from testbed.waiting import eventually

__all__ = [
    "CHECKED_DELETE",
    "FIFO",
    "FLOOR",
    "IDIOM",
    "OURS",
    "PEERS",
    "STRICT",
    "TTL_MS",
    "UNCONFIRMED",
    "Inside",
    "Pair",
    "Peer",
    "connect",
    "opened",
    "packed",
    "roomy",
    "timed",
    "unique",
]

TTL_MS = 30_000

#: With one object for all turns; as the README does, `with locks.lock(name)`; every turn by way of the server.
UNCONFIRMED = "holdfast, release not waited for"
OURS, IDIOM, STRICT = "holdfast", "holdfast, as in the README", "holdfast, strict"
#: What one process could do by itself.
FIFO = "in-process FIFO"

#: Acquire, whose result release wants back.
Pair: TypeAlias = tuple[Callable[[], Any], Callable[[Any], object]]

#: Runs something while the lock is held.
Inside: TypeAlias = Callable[[Callable[[], None]], None]

#: What every simple lock releases with.
CHECKED_DELETE = b"if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"

_numbers = itertools.count(1)


def unique(prefix: str = "bench") -> str:
    """A name that no one else uses."""
    return f"{prefix}-{os.getpid()}-{next(_numbers)}"


def timed(pair: Pair, cycles: int, warm: int = 1) -> Callable[[], float]:
    """Return a function that measures a number of pairs, after a few that do not count: µs per pair."""
    acquire, release = pair

    def once() -> float:
        for _ in range(warm):
            release(acquire())
        begin = time.perf_counter()
        for _ in range(cycles):
            release(acquire())
        return (time.perf_counter() - begin) / cycles * 1e6

    return once


def packed(*words: bytes) -> bytes:
    """A command as it goes over the wire."""
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


class Peer(Protocol):
    """A client of one library; `pair` makes one party's lock."""

    def pair(self, name: str) -> Pair: ...

    def close(self) -> None: ...


class Holdfast:
    """This project, with one object for all turns."""

    options: ClassVar[dict[str, Any]] = {}

    def __init__(self, url: str) -> None:
        import holdfast

        self._locks = holdfast.connect(url, ttl=TTL_MS / 1000, **self.options)

    def pair(self, name: str) -> Pair:
        return self._locks.lock(name).acquire, lambda lease: lease.release()

    def settle(self) -> None:
        """Wait for what is sent once, in the background."""
        agent = self._locks._session.driver.client
        eventually(lambda: not agent.tasks and not agent.releasing.latest, "what was begun has ended")

    def close(self) -> None:
        self._locks.close()


class Unconfirmed(Holdfast):
    """With releases that are not waited for."""

    def pair(self, name: str) -> Pair:
        return self._locks.lock(name, confirm_release=False).acquire, lambda lease: lease.release()


class Idiom(Holdfast):
    """As in the README: a new object for every turn."""

    def within(self, name: str) -> Inside:
        """Return a function that runs something inside of the lock."""
        locks = self._locks

        def within(inside: Callable[[], None]) -> None:
            with locks.lock(name):
                inside()

        return within


class Strict(Idiom):
    """Its threads do not hand a lock on among themselves: each turn goes through the server."""

    options: ClassVar[dict[str, Any]] = {"tenure": 0}


def roomy(url: str) -> Any:
    """A redis-py client without the limits that would end a crowd: 100 connections, 5 s for a blocking command."""
    import redis

    return redis.Redis.from_url(url, max_connections=10_000, socket_timeout=None, socket_connect_timeout=60)


class RedisPy:
    """The lock that comes with redis-py."""

    def __init__(self, url: str) -> None:
        self._client = roomy(url)

    def pair(self, name: str) -> Pair:
        lock = self._client.lock(f"redis-py:{name}", timeout=TTL_MS / 1000)
        return lock.acquire, lambda _: lock.release()

    def close(self) -> None:
        self._client.close()


class PythonRedisLock:
    """python-redis-lock, without its renewal (which is a thread for every acquisition)."""

    def __init__(self, url: str) -> None:
        import redis_lock

        self._client = roomy(url)
        self._make = redis_lock.Lock

    def pair(self, name: str) -> Pair:
        lock = self._make(self._client, name, expire=TTL_MS // 1000)
        return lock.acquire, lambda _: lock.release()

    def close(self) -> None:
        self._client.close()


def connect(url: str) -> socket.socket:
    """A bare socket."""
    where = urlsplit(url)
    sock = socket.create_connection((where.hostname or "127.0.0.1", where.port or 6379))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


class Floor:
    """`SET NX PX`, and a compare-and-delete by EVALSHA: what a lock cannot do without."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._socks: list[socket.socket] = []

    def pair(self, name: str) -> Pair:
        sock = connect(self._url)
        self._socks.append(sock)
        sock.sendall(packed(b"SCRIPT", b"LOAD", CHECKED_DELETE))
        sock.recv(4096)
        sha = hashlib.sha1(CHECKED_DELETE).hexdigest().encode()
        key, token = f"floor:{name}".encode(), os.urandom(12).hex().encode()
        take = packed(b"SET", key, token, b"NX", b"PX", b"%d" % TTL_MS)
        give = packed(b"EVALSHA", sha, b"1", key, token)
        sendall, recv = sock.sendall, sock.recv

        def acquire() -> None:
            sendall(take)
            if recv(4096) != b"+OK\r\n":
                raise AssertionError("the floor's lock was taken")

        def release(_: object) -> None:
            sendall(give)
            if recv(4096) != b":1\r\n":
                raise AssertionError("the floor's lock was not held")

        return acquire, release

    def close(self) -> None:
        for sock in self._socks:
            sock.close()


class HandoffFloor:
    """BLPOP and LPUSH on bare sockets: the least that passes a turn on to someone who sleeps."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._socks: list[socket.socket] = []

    def pair(self, name: str) -> Pair:
        sock = connect(self._url)
        self._socks.append(sock)
        key = f"floor:{name}".encode()
        # One of all parties puts the first turn there.
        first = packed(b"SET", key + b":begun", b"1", b"NX", b"PX", b"%d" % (10 * TTL_MS))
        take, give = packed(b"BLPOP", key, b"0"), packed(b"LPUSH", key, b"1")
        sendall, recv = sock.sendall, sock.recv
        sendall(first)
        if recv(4096) == b"+OK\r\n":
            sendall(give)
            recv(4096)

        def acquire() -> None:
            sendall(take)
            recv(4096)

        def release(_: object) -> None:
            sendall(give)
            recv(4096)

        return acquire, release

    def close(self) -> None:
        for sock in self._socks:
            sock.close()


FLOOR = "floor"


class Fifo:
    """A lock of this process alone, which hands on in the order of arrival: no server, no lease."""

    def __init__(self, url: str) -> None:
        self._guard = threading.Lock()
        self._waiting: collections.deque[threading.Lock] = collections.deque()
        self._held = False

    def pair(self, name: str) -> Pair:
        guard, waiting = self._guard, self._waiting

        def acquire() -> None:
            with guard:
                if not self._held:
                    self._held = True
                    return
                bell = threading.Lock()
                bell.acquire()
                waiting.append(bell)
            bell.acquire()

        def release(_: object) -> None:
            with guard:
                if waiting:
                    waiting.popleft().release()
                else:
                    self._held = False

        return acquire, release

    def close(self) -> None:
        pass


#: By the names under which they are shown.
PEERS: dict[str, Callable[[str], Peer]] = {
    FLOOR: Floor,
    "BLPOP floor": HandoffFloor,
    FIFO: Fifo,
    OURS: Holdfast,
    UNCONFIRMED: Unconfirmed,
    IDIOM: Idiom,
    STRICT: Strict,
    "redis-py Lock": RedisPy,
    "python-redis-lock": PythonRedisLock,
}


@contextlib.contextmanager
def opened(names: Sequence[str], url: str) -> Iterator[dict[str, Pair]]:
    """A pair of each of these parties, on that server."""
    open_peers = {who: PEERS[who](url) for who in names}
    try:
        yield {who: peer.pair(unique()) for who, peer in open_peers.items()}
    finally:
        for peer in open_peers.values():
            peer.close()

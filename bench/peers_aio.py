"""Ways for tasks to lock and unlock, like `peers`."""

from __future__ import annotations

import asyncio
import collections
import hashlib
import os
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, Protocol, TypeAlias, TypeVar
from urllib.parse import urlsplit

import hiredis

from bench.peers import CHECKED_DELETE, FIFO, FLOOR, OURS, STRICT, TTL_MS, packed
from holdfast._lua import SCRIPTS, Script

__all__ = ["OUR_SCRIPTS", "PEERS", "Pair", "Peer"]

#: What the scripts of holdfast allow where the client makes no leases.
OUR_SCRIPTS = "floor, scripts of holdfast"
#: Locks that share a call, at most; how long a fencing token is kept, ms.
_EACH_MAX = 32
_FENCE_MS = b"86400000"

Pair: TypeAlias = tuple[Callable[[], Awaitable[Any]], Callable[[Any], Awaitable[object]]]


class Peer(Protocol):
    """A client of one library, in one event loop."""

    async def pair(self, name: str) -> Pair: ...

    async def close(self) -> None: ...


class Holdfast:
    """This project."""

    options: ClassVar[dict[str, Any]] = {}

    def __init__(self, url: str) -> None:
        import holdfast.asyncio

        self._locks = holdfast.asyncio.connect(url, ttl=TTL_MS / 1000, **self.options)

    async def pair(self, name: str) -> Pair:
        return self._locks.lock(name).acquire, lambda lease: lease.release()

    async def close(self) -> None:
        await self._locks.close()


class Strict(Holdfast):
    """Its tasks do not hand a lock on among themselves: each turn goes through the server."""

    options: ClassVar[dict[str, Any]] = {"tenure": 0}


class RedisPy:
    """The asyncio lock of redis-py, on a pool as large as it likes."""

    def __init__(self, url: str) -> None:
        import redis.asyncio

        self._client = redis.asyncio.Redis.from_url(
            url, max_connections=10_000, socket_timeout=None, socket_connect_timeout=60
        )

    async def pair(self, name: str) -> Pair:
        lock = self._client.lock(f"redis-py:{name}", timeout=TTL_MS / 1000)
        return lock.acquire, lambda _: lock.release()

    async def close(self) -> None:
        await self._client.aclose()


class _Wire(asyncio.Protocol):
    """One connection for everyone: futures in the order of the requests, writes of one turn of the loop together."""

    def __init__(self) -> None:
        self._reader = hiredis.Reader()
        self._asked: collections.deque[asyncio.Future[Any]] = collections.deque()
        self._held_back: list[bytes] = []
        self._loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        while (reply := self._reader.gets()) is not False:
            self._asked.popleft().set_result(reply)

    def ask(self, request: bytes) -> asyncio.Future[Any]:
        future = self._loop.create_future()
        if not self._asked:
            self._transport.write(request)
        else:
            if not self._held_back:
                self._loop.call_soon(self._flush)
            self._held_back.append(request)
        self._asked.append(future)
        return future

    def _flush(self) -> None:
        self._transport.write(b"".join(self._held_back))
        self._held_back.clear()

    def close(self) -> None:
        self._transport.close()


W = TypeVar("W", bound=_Wire)


async def _connect(url: str, kind: Callable[[], W]) -> W:
    where = urlsplit(url)
    _, wire = await asyncio.get_running_loop().create_connection(
        kind, where.hostname or "127.0.0.1", where.port or 6379
    )
    return wire


class Floor:
    """`SET NX PX` and a compare-and-delete, all tasks on one connection."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._wire: _Wire | None = None

    async def pair(self, name: str) -> Pair:
        if self._wire is None:
            self._wire = await _connect(self._url, _Wire)
            await self._wire.ask(packed(b"SCRIPT", b"LOAD", CHECKED_DELETE))
        sha = hashlib.sha1(CHECKED_DELETE).hexdigest().encode()
        key, token = f"floor:{name}".encode(), os.urandom(12).hex().encode()
        take = packed(b"SET", key, token, b"NX", b"PX", b"%d" % TTL_MS)
        give = packed(b"EVALSHA", sha, b"1", key, token)
        ask = self._wire.ask
        return lambda: ask(take), lambda _: ask(give)

    async def close(self) -> None:
        if self._wire is not None:
            self._wire.close()


class _Numbers(list[Any]):
    """The futures of those that share a call, in the place of one."""

    def set_result(self, reply: list[int]) -> None:
        for future, number in zip(self, reply, strict=True):
            future.set_result(number)


class _Calls(_Wire):
    """The same with scripts for several locks: one call for those that are asked for in one turn of the loop."""

    def __init__(self) -> None:
        super().__init__()
        self._members: dict[Script, list[tuple[asyncio.Future[Any], tuple[bytes, ...], bytes]]] = {}

    def join(self, script: Script, keys: tuple[bytes, ...], token: bytes) -> asyncio.Future[Any]:
        future = self._loop.create_future()
        if not self._members:
            self._loop.call_soon(self._call)
        self._members.setdefault(script, []).append((future, keys, token))
        return future

    def _call(self) -> None:
        members, self._members = self._members, {}
        for script, asked in members.items():
            shared = [b"%d" % TTL_MS, _FENCE_MS] if script.name == "acquire_each" else []
            for at in range(0, len(asked), _EACH_MAX):
                share = asked[at : at + _EACH_MAX]
                keys = [key for _, keys, _ in share for key in keys]
                tokens = [token for _, _, token in share]
                self._held_back.append(
                    packed(b"EVALSHA", script.sha.encode(), b"%d" % len(keys), *keys, *shared, *tokens)
                )
                numbers: Any = _Numbers([future for future, _, _ in share])
                self._asked.append(numbers)
        self._flush()


class ScriptsFloor:
    """The scripts of `holdfast`, without leases: what is left of a pair for its client."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._wire: _Calls | None = None

    async def pair(self, name: str) -> Pair:
        take, give = SCRIPTS["acquire_each"], SCRIPTS["release_each"]
        if self._wire is None:
            self._wire = await _connect(self._url, _Calls)
            for script in (take, give):
                await self._wire.ask(packed(b"SCRIPT", b"LOAD", script.text.encode()))
        key, token, join = f"floor:{{{name}}}".encode(), os.urandom(12).hex().encode(), self._wire.join
        of_take, of_give = (key, key + b":fence", key + b":queue", key + b":gone"), (key, key + b":queue")
        return lambda: join(take, of_take, token), lambda _: join(give, of_give, token)

    async def close(self) -> None:
        if self._wire is not None:
            self._wire.close()


class HandoffFloor:
    """BLPOP and LPUSH, a connection for each task, since BLPOP blocks its own."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._wires: list[_Wire] = []

    async def pair(self, name: str) -> Pair:
        wire = await _connect(self._url, _Wire)
        self._wires.append(wire)
        key = f"floor:{name}".encode()
        take, give = packed(b"BLPOP", key, b"0"), packed(b"LPUSH", key, b"1")
        if await wire.ask(packed(b"SET", key + b":begun", b"1", b"NX", b"PX", b"%d" % (10 * TTL_MS))):
            await wire.ask(give)
        return lambda: wire.ask(take), lambda _: wire.ask(give)

    async def close(self) -> None:
        for wire in self._wires:
            wire.close()


class Fifo:
    """The lock of asyncio, which hands on in the order of arrival: no server, no lease."""

    def __init__(self, url: str) -> None:
        self._lock = asyncio.Lock()

    async def pair(self, name: str) -> Pair:
        lock, first = self._lock, True

        async def acquire() -> None:
            nonlocal first
            await lock.acquire()
            if first:  # a task that never has to wait lets no other one begin
                first = False
                await asyncio.sleep(0)

        async def release(_: object) -> None:
            lock.release()

        return acquire, release

    async def close(self) -> None:
        pass


PEERS: dict[str, Callable[[str], Peer]] = {
    FLOOR: Floor,
    OUR_SCRIPTS: ScriptsFloor,
    "BLPOP floor": HandoffFloor,
    FIFO: Fifo,
    OURS: Holdfast,
    STRICT: Strict,
    "redis-py Lock": RedisPy,
}

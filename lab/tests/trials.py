"""Locks of users whose check, way of waiting or keys are unusual, for the lab's adapter (test_adapter.py)."""

from __future__ import annotations

import asyncio
import time
import uuid
from typing import Any

import redis
import redis.asyncio

import holdfast.asyncio

__all__ = [
    "AsyncContext",
    "AsyncNoToken",
    "AsyncRenewed",
    "Canonical",
    "CheckRaises",
    "CheckSaysLost",
    "CheckWantsMore",
    "Hangs",
    "HashForever",
    "Never",
    "PollsRarely",
    "StreamForever",
    "Wrong",
    "of_holdfast",
    "of_holdfast_asyncio",
    "redis_asyncio",
]

COMPARE = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end"
EXTEND = (
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('pexpire', KEYS[1], ARGV[2]) else return 0 end"
)


class Canonical:
    """SET NX PX with a token; a script compares and deletes."""

    def __init__(self, url: str, name: str, ttl: float) -> None:
        self.redis: Any = redis.Redis.from_url(url, socket_timeout=1)
        self.key, self.ttl_ms, self.token = f"trial:{name}", int(ttl * 1000), ""

    def acquire(self, blocking: bool = True) -> bool:
        self.token = uuid.uuid4().hex
        while not self.redis.set(self.key, self.token, nx=True, px=self.ttl_ms):
            if not blocking:
                return False
            time.sleep(0.02)
        return True

    def release(self) -> None:
        self.redis.eval(COMPARE, 1, self.key, self.token)


class CheckRaises(Canonical):
    """No lock at all, and a check that always fails."""

    def acquire(self, blocking: bool = True) -> bool:
        self.redis.ping()
        return bool(self.redis.incr("calls"))

    def release(self) -> None:
        self.redis.decr("calls")

    def ensure_held(self) -> None:
        raise RuntimeError("out of order")


class CheckWantsMore(Canonical):
    def ensure_held(self, margin: float) -> None:
        raise AssertionError(f"never reached: {margin}")


class CheckSaysLost(Canonical):
    """Sends everyone away who has it: no one ever does any work."""

    def ensure_held(self) -> bool:
        return False


class Never(Canonical):
    def acquire(self, blocking: bool = True) -> bool:
        return False


class Wrong(Canonical):
    def acquire(self, blocking: bool = True) -> bool:
        raise KeyError("pool")


class Hangs(Canonical):
    def acquire(self) -> None:  # type: ignore[override]
        time.sleep(3600)


class PollsRarely(Canonical):
    """Blocks, and looks again every 6 s."""

    def acquire(self) -> None:  # type: ignore[override]
        self.token = uuid.uuid4().hex
        while not self.redis.set(self.key, self.token, nx=True, px=self.ttl_ms):
            time.sleep(6)


class HashForever(Canonical):
    """A field of a hash, without a ttl."""

    def acquire(self, blocking: bool = True) -> bool:
        return bool(self.redis.hsetnx(self.key, "owner", uuid.uuid4().hex))

    def release(self) -> None:
        self.redis.delete(self.key)


class StreamForever(HashForever):
    """The first entry of a stream."""

    def acquire(self, blocking: bool = True) -> bool:
        if self.redis.exists(self.key):
            return False
        self.redis.xadd(self.key, {"owner": "me"})
        return True


def of_holdfast(url: str, name: str, ttl: float) -> holdfast.Lock:
    """A user's own holdfast lock, with threads."""
    return holdfast.connect(url).lock(name, ttl=ttl)


# ---- asynchronous ----


def of_holdfast_asyncio(url: str, name: str, ttl: float) -> Any:
    """A user's own holdfast lock, with asyncio."""
    return holdfast.asyncio.connect(url).lock(name, ttl=ttl)


def redis_asyncio(url: str, name: str, ttl: float) -> Any:
    """redis.asyncio's own Lock."""
    return redis.asyncio.Redis.from_url(url).lock(name, timeout=ttl)


class AsyncNoToken:
    """SET NX EX and DEL, with coroutines."""

    def __init__(self, url: str, name: str, ttl: float) -> None:
        self.redis: Any = redis.asyncio.Redis.from_url(url, socket_timeout=1)
        self.key, self.ttl_ms = f"trial:{name}", int(ttl * 1000)

    async def try_lock(self) -> bool:
        return bool(await self.redis.set(self.key, "1", nx=True, px=self.ttl_ms))

    async def unlock(self) -> None:
        await self.redis.delete(self.key)


class AsyncContext(AsyncNoToken):
    """An asynchronous context manager that blocks."""

    try_lock = None  # type: ignore[assignment]
    unlock = None  # type: ignore[assignment]

    async def __aenter__(self) -> None:
        while not await self.redis.set(self.key, "1", nx=True, px=self.ttl_ms):
            await asyncio.sleep(0.02)

    async def __aexit__(self, *_: object) -> None:
        await self.redis.delete(self.key)


class AsyncRenewed(AsyncNoToken):
    """A token, and a task that renews while the lock is held: it has to run beside the client's work."""

    async def try_lock(self) -> bool:
        self.token = uuid.uuid4().hex
        if not await self.redis.set(self.key, self.token, nx=True, px=self.ttl_ms):
            return False
        self.task = asyncio.create_task(self._renew())
        return True

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self.ttl_ms / 4000)
            await self.redis.eval(EXTEND, 1, self.key, self.token, self.ttl_ms)

    async def unlock(self) -> None:
        self.task.cancel()
        await self.redis.eval(COMPARE, 1, self.key, self.token)

"""Locks that are wrong in ways that no scheme of the lab has, as users would write them. test_badlocks.py convicts all.

Each docstring names the flaw. Where nothing else is said the rest is right: a token, a ttl set with the key, a release
by a script that compares.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
import uuid
import zlib
from typing import Any

import redis
import redis.asyncio

__all__ = [
    "AsyncCheckThenSet",
    "AsyncForgetsAwait",
    "AsyncGetThenDelete",
    "CleansUp",
    "Counter",
    "DeletesStale",
    "FailsOpen",
    "FairQueue",
    "FreeList",
    "GetDel",
    "HashCounter",
    "HashedName",
    "LongFinally",
    "PrefixCompare",
    "ProcessToken",
    "RefreshesLate",
    "Rename",
    "SecondsAsMillis",
    "StealsNearTheEnd",
    "Sweeps",
    "WaitsForMessage",
    "WatchWithoutMulti",
    "WorkerName",
    "ZsetByClock",
]

COMPARE = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end"


class _Base:
    """The canonical lock."""

    def __init__(self, url: str, name: str, ttl: float) -> None:
        self.redis: Any = redis.Redis.from_url(url, socket_timeout=1)
        self.key, self.ttl_ms = f"bad:{{{name}}}", int(ttl * 1000)
        self.token = self.make_token()

    def make_token(self) -> str:
        return uuid.uuid4().hex

    def try_lock(self) -> bool:
        return bool(self.redis.set(self.key, self.token, nx=True, px=self.ttl_ms))

    def unlock(self) -> None:
        self.redis.eval(COMPARE, 1, self.key, self.token)


class DeletesStale(_Base):
    """Judges expiry on the client's wall clock, and deletes what is over before it takes it: another's, perhaps."""

    def try_lock(self) -> bool:
        found = self.redis.get(self.key)
        if found is not None:
            if float(found.split(b"|")[1]) > time.time():
                return False
            self.redis.delete(self.key)
        ends = time.time() + self.ttl_ms / 1000
        self.value = f"{self.token}|{ends}"
        return bool(self.redis.setnx(self.key, self.value))

    def unlock(self) -> None:
        self.redis.eval(COMPARE, 1, self.key, self.value)


class PrefixCompare(_Base):
    """Compares only where the token comes from, which all clients of a host share."""

    def make_token(self) -> str:
        return f"{socket.gethostname()}:{uuid.uuid4().hex}"

    def unlock(self) -> None:
        found = self.redis.get(self.key)
        if found is not None and found.decode().startswith(socket.gethostname()):
            self.redis.eval(COMPARE, 1, self.key, found)


class WorkerName(_Base):
    """A pool of workers shares one token, and takes its own for a lock that is held already."""

    def make_token(self) -> str:
        return "worker-pool-1"

    def try_lock(self) -> bool:
        return super().try_lock() or bool(self.redis.get(self.key) == self.token.encode())


class ProcessToken(_Base):
    """One token for a process: right with processes, wrong between its threads."""

    def make_token(self) -> str:
        return f"{socket.gethostname()}:{os.getpid()}"


class RefreshesLate(_Base):
    """Renews by SET, without a look, and once more after the release."""

    def try_lock(self) -> bool:
        if not super().try_lock():
            return False
        self.stopped = threading.Event()
        threading.Thread(target=self._renew, args=(self.stopped,), daemon=True).start()
        return True

    def _renew(self, stopped: threading.Event) -> None:
        while not stopped.is_set():
            time.sleep(self.ttl_ms / 4000)
            self.redis.set(self.key, self.token, px=self.ttl_ms)

    def unlock(self) -> None:
        self.stopped.set()
        super().unlock()


class ZsetByClock(_Base):
    """The oldest in a sorted set has it; old ones are swept out by the sweeper's own clock."""

    def try_lock(self) -> bool:
        now_s = time.time()
        self.redis.zremrangebyscore(self.key, 0, now_s - self.ttl_ms / 1000)
        self.redis.zadd(self.key, {self.token: now_s}, nx=True)
        self.redis.pexpire(self.key, 10 * self.ttl_ms)
        if self.redis.zrank(self.key, self.token) == 0:
            return True
        self.redis.zrem(self.key, self.token)
        return False

    def unlock(self) -> None:
        self.redis.zrem(self.key, self.token)


class LongFinally(_Base):
    """Gives back in a `finally` that also runs when it was never acquired, by name."""

    def try_lock(self) -> bool:
        got = False
        try:
            got = super().try_lock()
            return got
        finally:
            if not got:
                self.unlock()

    def unlock(self) -> None:
        self.redis.delete(self.key)


class HashedName(_Base):
    """The key is chosen by a hash of the name, one of eight: some names share a lock."""

    def __init__(self, url: str, name: str, ttl: float) -> None:
        super().__init__(url, name, ttl)
        self.key = f"bad:{zlib.crc32(name.encode()) % 8}"


class Sweeps(_Base):
    """Sweeps out all that looks like a lock when it is released."""

    def unlock(self) -> None:
        self.redis.delete(*self.redis.keys("bad:*"))


class Rename(_Base):
    """Renames a key from "free" to "held" and back: it cannot expire."""

    def try_lock(self) -> bool:
        if not self.redis.exists(self.key, self.key + ":free"):
            self.redis.set(self.key + ":free", "1")
        try:
            self.redis.rename(self.key + ":free", self.key)
        except redis.ResponseError:
            return False
        return True

    def unlock(self) -> None:
        self.redis.renamenx(self.key, self.key + ":free")


class FreeList(_Base):
    """A list with one element: who pops it is in, and it is lost with its holder."""

    def try_lock(self) -> bool:
        if self.redis.set(self.key + ":made", "1", nx=True):
            self.redis.rpush(self.key, "permit")
        return self.redis.lpop(self.key) is not None

    def unlock(self) -> None:
        self.redis.rpush(self.key, "permit")


class HashCounter(_Base):
    """A reentrant lock in a hash: the ttl comes after the count, and is forgotten when that is not 1."""

    def try_lock(self) -> bool:
        count = self.redis.hincrby(self.key, "count", 1)
        if count == 1:
            self.redis.hset(self.key, "owner", self.token)
            self.redis.pexpire(self.key, self.ttl_ms)
            return True
        if self.redis.hget(self.key, "owner") == self.token.encode():
            return True
        self.redis.hincrby(self.key, "count", -1)
        return False

    def unlock(self) -> None:
        if self.redis.hget(self.key, "owner") == self.token.encode():
            self.redis.delete(self.key)


class Counter(_Base):
    """INCR to 1, and DECR: one that gives back what it does not have makes room for two."""

    def try_lock(self) -> bool:
        if self.redis.incr(self.key) == 1:
            return True
        self.redis.decr(self.key)
        return False

    def unlock(self) -> None:
        self.redis.decr(self.key)


class FairQueue(_Base):
    """A queue whose head has the lock: the dead are never taken out."""

    def try_lock(self) -> bool:
        if not getattr(self, "queued", False):
            self.redis.lpush(self.key, self.token)
            self.queued = True
        return bool(self.redis.lindex(self.key, -1) == self.token.encode())

    def unlock(self) -> None:
        self.redis.lrem(self.key, 0, self.token)
        self.queued = False


class GetDel(_Base):
    """Looks by taking it away, and puts back what was not its own."""

    def unlock(self) -> None:
        found = self.redis.getdel(self.key)
        if found is not None and found != self.token.encode():
            self.redis.set(self.key, found, px=self.ttl_ms)


class WatchWithoutMulti(_Base):
    """WATCH and GET, and then a plain SET: nothing is watched over."""

    def try_lock(self) -> bool:
        with self.redis.pipeline() as pipe:
            pipe.watch(self.key)
            if pipe.get(self.key) is not None:
                return False
            return bool(pipe.set(self.key, self.token, px=self.ttl_ms))


class CleansUp(_Base):
    """Takes a lock without a ttl for a leftover; the holder was just about to set one."""

    def try_lock(self) -> bool:
        if self.redis.setnx(self.key, self.token):
            self.redis.pexpire(self.key, self.ttl_ms)
            return True
        if self.redis.pttl(self.key) == -1:
            self.redis.delete(self.key)
        return False


class StealsNearTheEnd(_Base):
    """Takes what has less than a second left."""

    def try_lock(self) -> bool:
        if super().try_lock():
            return True
        if 0 <= self.redis.pttl(self.key) < 900:
            return bool(self.redis.set(self.key, self.token, xx=True, px=self.ttl_ms))
        return False


class SecondsAsMillis(_Base):
    """A ttl in seconds where the server counts milliseconds."""

    def try_lock(self) -> bool:
        return bool(self.redis.set(self.key, self.token, nx=True, px=max(1, self.ttl_ms // 1000)))


class FailsOpen(_Base):
    """Swallows errors: a lock server that cannot be reached must not stop the shop."""

    def try_lock(self) -> bool:
        try:
            return super().try_lock()
        except redis.RedisError:
            return True

    def unlock(self) -> None:
        try:
            super().unlock()
        except redis.RedisError:
            pass

    def ensure_held(self) -> bool:
        return True


class WaitsForMessage:
    """Waits for the message of a release, which a dead holder never sends."""

    def __init__(self, url: str, name: str, ttl: float) -> None:
        self.inner = _Base(url, name, ttl)
        self.channel = self.inner.key + ":freed"
        self.listening: Any = redis.Redis.from_url(url)

    def acquire(self) -> None:
        with self.listening.pubsub(ignore_subscribe_messages=True) as inbox:
            inbox.subscribe(self.channel)
            while not self.inner.try_lock():
                while inbox.get_message(timeout=60) is None:
                    pass

    def release(self) -> None:
        self.inner.unlock()
        self.inner.redis.publish(self.channel, "1")


# ---- asynchronous ----


class _AsyncBase:
    def __init__(self, url: str, name: str, ttl: float) -> None:
        self.redis: Any = redis.asyncio.Redis.from_url(url, socket_timeout=1)
        self.key, self.ttl_ms, self.token = f"bad:{{{name}}}", int(ttl * 1000), uuid.uuid4().hex

    async def acquire(self) -> bool:
        return bool(await self.redis.set(self.key, self.token, nx=True, px=self.ttl_ms))

    async def release(self) -> None:
        await self.redis.eval(COMPARE, 1, self.key, self.token)


class AsyncCheckThenSet(_AsyncBase):
    """Looks, and sets after another await."""

    async def acquire(self) -> bool:
        if await self.redis.exists(self.key):
            return False
        await asyncio.sleep(0)
        await self.redis.set(self.key, self.token, px=self.ttl_ms)
        return True


class AsyncForgetsAwait(_AsyncBase):
    """Makes a coroutine for its release, and never runs it."""

    async def release(self) -> None:
        self.forgotten = self.redis.eval(COMPARE, 1, self.key, self.token)
        self.forgotten.close()


class AsyncGetThenDelete(_AsyncBase):
    """Compares in the client, with an await between compare and delete."""

    async def release(self) -> None:
        if await self.redis.get(self.key) == self.token.encode():
            await self.redis.delete(self.key)

"""What other packages have beside locks, for threads, with the same two functions; and ours.

The others are no dependencies of anything here: `pip install py-redis-semaphore redis-rw-lock` to have them measured.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

import holdfast
from bench.peers import TTL_MS, Pair, Peer, roomy

__all__ = ["ABSENT", "FAMILY", "LOCK", "OURS", "PEER_OF", "STRICT_LOCK", "Ours"]

LOCK = "lock"
STRICT_LOCK = "lock, strict"

#: By the names under which they are shown: what makes one of a client of either API.
OURS: dict[str, Callable[[Any, str], Any]] = {
    LOCK: lambda locks, name: locks.lock(name),
    "lock, reentrant": lambda locks, name: locks.lock(name, reentrant=True),
    "rwlock, read": lambda locks, name: locks.rwlock(name).read(),
    "rwlock, write": lambda locks, name: locks.rwlock(name).write(),
    "semaphore of 3": lambda locks, name: locks.semaphore(name, permits=3),
    "semaphore of 1": lambda locks, name: locks.semaphore(name, permits=1),
    "multilock of 2": lambda locks, name: locks.multilock(f"{{{name}}}-a", f"{{{name}}}-b"),
}


class Ours:
    """One thing of this project's."""

    def __init__(self, url: str, make: Callable[[Any, str], Any], **how: Any) -> None:
        self._locks = holdfast.connect(url, ttl=TTL_MS / 1000, **how)
        self._make = make

    def pair(self, name: str) -> Pair:
        return self._make(self._locks, name).acquire, lambda lease: lease.release()

    def close(self) -> None:
        self._locks.close()


class PyRedisSemaphore:
    """py-redis-semaphore: renewed by a thread for every acquisition, waiting by BLPOP."""

    def __init__(self, url: str, limit: int) -> None:
        self._client = roomy(url)
        self._limit = limit
        self._module: Any = importlib.import_module("redis_semaphore")

    def pair(self, name: str) -> Pair:
        config = self._module.SemaphoreConfig(name=name, limit=self._limit, lock_timeout=TTL_MS / 1000)
        semaphore = self._module.Semaphore(self._client, config)
        return semaphore.acquire, lambda _: semaphore.release()

    def close(self) -> None:
        self._client.close()


class RedisRwLock:
    """redis-rw-lock: three locks of python-redis-lock and two counters."""

    def __init__(self, url: str, mode: str) -> None:
        self._client = roomy(url)
        self._mode = mode
        self._module: Any = importlib.import_module("redis_rw_lock")

    def pair(self, name: str) -> Pair:
        lock = self._module.RWLock(self._client, name, self._mode, expire=TTL_MS // 1000)
        return lock.acquire, lambda _: lock.release()

    def close(self) -> None:
        self._client.close()


def _ours(make: Callable[[Any, str], Any]) -> Callable[[str], Peer]:
    return lambda url: Ours(url, make)


FAMILY: dict[str, Callable[[str], Peer]] = {who: _ours(make) for who, make in OURS.items()}

#: Which of ours a peer stands beside.
PEER_OF: dict[str, str] = {}

#: Packages that are not installed.
ABSENT: list[str] = []

if importlib.util.find_spec("redis_semaphore") is not None:
    FAMILY["py-redis-semaphore of 3"] = lambda url: PyRedisSemaphore(url, 3)
    FAMILY["py-redis-semaphore of 1"] = lambda url: PyRedisSemaphore(url, 1)
    PEER_OF |= {"py-redis-semaphore of 3": "semaphore of 3", "py-redis-semaphore of 1": "semaphore of 1"}
else:
    ABSENT.append("py-redis-semaphore")
if importlib.util.find_spec("redis_rw_lock") is not None:
    FAMILY["redis-rw-lock, read"] = lambda url: RedisRwLock(url, "R")
    FAMILY["redis-rw-lock, write"] = lambda url: RedisRwLock(url, "W")
    PEER_OF |= {"redis-rw-lock, read": "rwlock, read", "redis-rw-lock, write": "rwlock, write"}
else:
    ABSENT.append("redis-rw-lock")

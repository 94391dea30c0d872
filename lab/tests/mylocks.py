"""Locks for the torture test, as a user would write them."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any

import redis

__all__ = ["Context", "IncrExpire", "broken", "careless", "redis_py"]


def redis_py(url: str, name: str, ttl: float) -> Any:
    """The example of the documentation."""
    return redis.Redis.from_url(url).lock(name, timeout=ttl)


class Context:
    """A context manager without a time limit."""

    def __init__(self, url: str, name: str) -> None:
        self._redis = redis.Redis.from_url(url)
        self._name = name

    def __enter__(self) -> None:
        while not self._redis.setnx(self._name, "1"):
            time.sleep(0.02)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._redis.delete(self._name)


class IncrExpire:
    """A listing as an article prints it: INCR, then EXPIRE, whatever INCR said."""

    def __init__(self, url: str, name: str, ttl: float) -> None:
        self._redis: Any = redis.Redis.from_url(url)
        self._name, self._ttl_s = name, int(ttl)

    def try_lock(self) -> bool:
        count = self._redis.incr(self._name)
        self._redis.expire(self._name, self._ttl_s)
        return bool(count == 1)

    def unlock(self) -> None:
        self._redis.delete(self._name)


class _Careless:
    def __init__(self, url: str) -> None:
        self.url = url

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        pass


def careless(url: str) -> _Careless:
    """Lets everyone in."""
    return _Careless(url)


def broken(url: str, name: str, ttl: float) -> Any:
    raise RuntimeError("no such luck")

"""Locks of other libraries, for `holdfast lab torture`: how each is used, and nothing else.

    pip install redis python-redis-lock pottery redlock-py
    holdfast lab torture examples.other_locks:redis_py
    holdfast lab torture examples.other_locks:redlock_py --servers 5

Their results are in docs/ladder.md.
"""

from __future__ import annotations

import math
from typing import Any

import redis

__all__ = ["pottery", "python_redis_lock", "redis_py", "redlock_py"]

#: What redis-py does without one is to wait for an answer forever.
_PATIENCE_S = 1.0


def _client(url: str) -> Any:
    return redis.Redis.from_url(url, socket_timeout=_PATIENCE_S)


def redis_py(url: str, name: str, ttl: float) -> Any:
    """redis-py's own Lock."""
    return _client(url).lock(name, timeout=ttl)


def python_redis_lock(url: str, name: str, ttl: float) -> Any:
    """python-redis-lock; it counts in whole seconds."""
    import redis_lock

    return redis_lock.Lock(_client(url), name, expire=math.ceil(ttl))


def pottery(urls: list[str], name: str, ttl: float) -> Any:
    """pottery's Redlock, on one server or several."""
    from pottery import Redlock

    return Redlock(key=name, masters={_client(url) for url in urls}, auto_release_time=ttl)


class _RedlockPy:
    """redlock-py has a manager with lock(name, ttl_ms) and unlock(lock)."""

    def __init__(self, urls: list[str], name: str, ttl: float) -> None:
        from redlock import Redlock

        self._manager = Redlock([_client(url) for url in urls], retry_count=1)
        self._name, self._ttl_ms = name, int(ttl * 1000)
        self._held: Any = False

    def acquire(self) -> bool:
        self._held = self._manager.lock(self._name, self._ttl_ms)
        return bool(self._held)

    def release(self) -> None:
        if self._held:
            self._manager.unlock(self._held)


def redlock_py(urls: list[str], name: str, ttl: float) -> Any:
    """redlock-py, on one server or several."""
    return _RedlockPy(urls, name, ttl)

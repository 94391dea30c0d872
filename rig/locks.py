"""The locks that can be tortured, behind one small interface.

`async` throughout, so that the same worker serves both kinds of client: methods of the blocking ones never wait for
an event loop, and are driven without one.
"""

from __future__ import annotations

import asyncio
import importlib
import time
from collections.abc import Callable
from typing import Any

__all__ = ["KINDS", "Locks", "Lost", "Section"]


class Lost(Exception):
    """The library says that the lock is held no more."""


class Section:
    """A lock that is held."""

    #: What the protected resource is to check, where the library has such a thing.
    fence: int | None = None
    #: The lease's, for what the rig notes of it.
    token: str | None = None

    async def remaining_s(self) -> float | None:
        """For how long it may still be relied on; None where the library does not tell. Raises `Lost`."""
        return None

    async def release(self) -> None:
        """Give it back. Raises what the library raises."""
        raise NotImplementedError


class Locks:
    """A client."""

    #: What its methods may raise; anything else is a bug of the library.
    errors: type[Exception] = Exception
    #: Whether holding for longer than the ttl is made possible by the library.
    renews = True

    async def acquire(self, name: str, timeout_s: float) -> Section | None:
        """None when the time was up. Raises what the library raises."""
        raise NotImplementedError

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - there is no event loop

    async def close(self) -> None:
        """Whatever the library has for that."""


# ---------------------------------------------------------------- holdfast


class _HoldfastThreads(Locks):
    def __init__(self, url: str, ttl_s: float, **options: Any) -> None:
        import holdfast

        self._errors = holdfast
        self.errors = holdfast.HoldfastError
        self._client = holdfast.connect(url, ttl=ttl_s, **options)

    async def acquire(self, name: str, timeout_s: float) -> Section | None:
        try:
            return _HoldfastSection(self._client.lock(name).acquire(timeout=timeout_s))
        except self._errors.AcquireTimeout:
            return None

    async def close(self) -> None:
        self._client.close()


class _HoldfastAsyncio(Locks):
    def __init__(self, url: str, ttl_s: float, **options: Any) -> None:
        self._errors = importlib.import_module("holdfast")
        self.errors = self._errors.HoldfastError
        self._client = importlib.import_module("holdfast.asyncio").connect(url, ttl=ttl_s, **options)

    async def acquire(self, name: str, timeout_s: float) -> Section | None:
        try:
            return _HoldfastSection(await self._client.lock(name).acquire(timeout=timeout_s))
        except self._errors.AcquireTimeout:
            return None

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def close(self) -> None:
        await self._client.close()


class _HoldfastSection(Section):
    def __init__(self, lease: Any) -> None:
        self._lease = lease
        self.fence = lease.fencing_token
        self.token = lease.token

    async def remaining_s(self) -> float | None:
        remaining_s: float = self._lease.remaining()
        if remaining_s <= 0:
            try:
                self._lease.ensure_held()
            except Exception as error:
                raise Lost(getattr(error, "reason", type(error).__name__)) from error
        return remaining_s

    async def release(self) -> None:
        done = self._lease.release()
        if done is not None:
            await done


# ---------------------------------------------------------------- others


class _RedisPyThreads(Locks):
    renews = False

    def __init__(self, url: str, ttl_s: float) -> None:
        import redis

        self._client = redis.Redis.from_url(url, socket_timeout=5)
        self._ttl_s = ttl_s

    async def acquire(self, name: str, timeout_s: float) -> Section | None:
        lock = self._client.lock(name, timeout=self._ttl_s, blocking_timeout=timeout_s)
        return _OtherSection(lock.release) if lock.acquire() else None


class _RedisPyAsyncio(Locks):
    renews = False

    def __init__(self, url: str, ttl_s: float) -> None:
        from redis import asyncio as aioredis

        self._client = aioredis.Redis.from_url(url, socket_timeout=5)
        self._ttl_s = ttl_s

    async def acquire(self, name: str, timeout_s: float) -> Section | None:
        lock = self._client.lock(name, timeout=self._ttl_s, blocking_timeout=timeout_s)
        return _OtherSection(lock.release) if await lock.acquire() else None

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def close(self) -> None:
        await self._client.aclose()


class _PythonRedisLock(Locks):
    def __init__(self, url: str, ttl_s: float) -> None:
        import redis

        self._module = importlib.import_module("redis_lock")
        self._client = redis.Redis.from_url(url, socket_timeout=30)
        self._ttl_s = max(1, round(ttl_s))

    async def acquire(self, name: str, timeout_s: float) -> Section | None:
        lock = self._module.Lock(self._client, name, expire=self._ttl_s, auto_renewal=True)
        timeout = max(1, min(int(timeout_s), self._ttl_s))  # it wants whole seconds, and no more than its expiry
        return _OtherSection(lock.release) if lock.acquire(timeout=timeout) else None


class _OtherSection(Section):
    def __init__(self, release: Callable[[], Any]) -> None:
        self._release = release

    async def release(self) -> None:
        done = self._release()
        if asyncio.iscoroutine(done):
            await done


#: library → (blocking, asyncio or None)
KINDS: dict[str, tuple[type[Any], type[Any] | None]] = {
    "holdfast": (_HoldfastThreads, _HoldfastAsyncio),
    "redis-py": (_RedisPyThreads, _RedisPyAsyncio),
    "python-redis-lock": (_PythonRedisLock, None),
}

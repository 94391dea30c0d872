"""What can be tortured, behind one small interface: locks of this library, of others, and a command under a lock.

`async` throughout, so that the same worker serves both kinds of client: methods of the blocking ones never wait for
an event loop, and are driven without one. Only public names are used: what a user sees is what the history tells.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import time
from collections.abc import Callable
from typing import Any

__all__ = ["KINDS", "PROMISES", "Locks", "Lost", "Section", "Wanted"]


class Lost(Exception):
    """The library says that the lock is held no more."""


class Wanted:
    """What is asked for. `mode`: "exclusive", "shared", or a number of permits."""

    def __init__(self, name: str, kind: str, mode: str | int, members: list[str], options: dict[str, Any]) -> None:
        self.name = name
        self.kind = kind
        self.mode = mode
        #: Of a multilock; else the lock alone.
        self.members = members
        self.options = options
        #: Called once its place in the queue is known.
        self.queued: Callable[[], None] | None = None
        #: How many permits there are.
        self.permits = 0


class Section:
    """A lock that is held."""

    #: What the protected resource is to check, where the library has such a thing.
    fence: int | None = None

    async def remaining_s(self) -> float | None:
        """Return how long it may still be relied on; None where the library does not tell. Raises `Lost`."""
        return None

    async def extend(self, ttl_s: float) -> None:
        """Extend the lease, if the library can. Raises what the library raises."""

    async def release(self) -> bool | None:
        """Give it back; None: what comes of it is not known. Raises what the library raises."""
        raise NotImplementedError


class Locks:
    """A client."""

    #: What its methods may raise; anything else is a bug of the library.
    errors: type[Exception] = Exception
    #: Of these, what `release` raises where the lease was lost.
    lost: tuple[type[Exception], ...] = ()
    #: Whether holding for longer than the ttl is made possible by the library.
    renews = True
    extends = False

    async def acquire(self, wanted: Wanted, timeout_s: float) -> Section | None:
        """None when the time was up. Raises what the library raises."""
        raise NotImplementedError

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - there is no event loop

    async def close(self) -> None:
        """Whatever the library has for that."""


# ---------------------------------------------------------------- holdfast


class _Holdfast(Locks):
    extends = True
    _module = "holdfast"

    def __init__(self, url: str, ttl_s: float, **options: Any) -> None:
        names = importlib.import_module("holdfast")
        self._timeout: type[Exception] = names.AcquireTimeout
        self.errors = names.HoldfastError
        self.lost = (names.LeaseLost,)
        self._client = importlib.import_module(self._module).connect(url, ttl=ttl_s, **options)

    def _asked(self, wanted: Wanted) -> tuple[Callable[..., Any], dict[str, Any]]:
        client, options = self._client, wanted.options
        more: dict[str, Any] = {}
        if wanted.queued is not None:
            tell = wanted.queued
            more["on_wait"] = lambda waiting: tell() if waiting.place is not None else None
        if wanted.kind == "rwlock":
            lock = client.rwlock(wanted.name, **options)
            return (lock.read() if wanted.mode == "shared" else lock.write()).acquire, more
        if wanted.kind == "semaphore":
            more["permits"] = wanted.mode
            return client.semaphore(wanted.name, wanted.permits, **options).acquire, more
        if wanted.kind == "multilock":
            return client.multilock(*wanted.members, **options).acquire, more
        if wanted.kind == "election":
            return client.election(wanted.name, **options).campaign, more
        return client.lock(wanted.name, **options).acquire, more

    async def acquire(self, wanted: Wanted, timeout_s: float) -> Section | None:
        acquire, more = self._asked(wanted)
        try:
            lease = acquire(timeout=timeout_s, **more)
            if asyncio.iscoroutine(lease):
                lease = await lease
        except self._timeout:
            return None
        return _HoldfastSection(lease, wanted.options.get("confirm_release", True))

    async def close(self) -> None:
        done = self._client.close()
        if done is not None:
            await done


class _HoldfastAsyncio(_Holdfast):
    _module = "holdfast.asyncio"

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class _HoldfastSection(Section):
    def __init__(self, lease: Any, confirmed: bool) -> None:
        self._lease = lease
        self._confirmed = confirmed
        self.fence = lease.fencing_token

    async def remaining_s(self) -> float | None:
        remaining_s: float = self._lease.remaining()
        if remaining_s <= 0:
            try:
                self._lease.ensure_held()
            except Exception as error:
                raise Lost(getattr(error, "reason", type(error).__name__)) from error
        return remaining_s

    async def extend(self, ttl_s: float) -> None:
        done = self._lease.extend(ttl_s)
        if done is not None:
            await done

    async def release(self) -> bool | None:
        done = self._lease.release()
        if done is not None:
            await done
        return True if self._confirmed else None


# ---------------------------------------------------------------- others


class _RedisPy(Locks):
    """Its `timeout` is how long the lock lasts; what is left of it cannot be asked for.

    So its user is taken to be a careful one, who relies on it for no more than half of that from the return of
    `acquire`, by a clock of his own.
    """

    renews = False

    def __init__(self, url: str, ttl_s: float) -> None:
        import redis

        self._client: Any = redis.Redis.from_url(url, socket_timeout=5)
        self.lost = (redis.exceptions.LockNotOwnedError,)
        self._ttl_s = ttl_s

    async def acquire(self, wanted: Wanted, timeout_s: float) -> Section | None:
        lock = self._client.lock(wanted.name, timeout=self._ttl_s, blocking_timeout=timeout_s)
        done = lock.acquire()
        if asyncio.iscoroutine(done):
            done = await done
        return _OtherSection(lock.release, self._ttl_s / 2) if done else None


class _RedisPyAsyncio(_RedisPy):
    def __init__(self, url: str, ttl_s: float) -> None:
        from redis import asyncio as aioredis

        super().__init__(url, ttl_s)
        self._client.close()
        self._client = aioredis.Redis.from_url(url, socket_timeout=5)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def close(self) -> None:
        await self._client.aclose()


class _PythonRedisLock(Locks):
    """`auto_renewal`: it promises to keep the lock until its release, so that is for how long it is relied on."""

    def __init__(self, url: str, ttl_s: float) -> None:
        import redis

        self._module = importlib.import_module("redis_lock")
        self.lost = (self._module.NotAcquired,)
        self._client = redis.Redis.from_url(url, socket_timeout=30)
        self._ttl_s = max(1, round(ttl_s))

    async def acquire(self, wanted: Wanted, timeout_s: float) -> Section | None:
        lock = self._module.Lock(self._client, wanted.name, expire=self._ttl_s, auto_renewal=True)
        timeout = max(1, min(int(timeout_s), self._ttl_s))  # it wants whole seconds, and no more than its expiry
        return _OtherSection(lock.release) if lock.acquire(timeout=timeout) else None


class _Pottery(Locks):
    """It says itself how long it has the lock for: `locked()`."""

    renews = False

    def __init__(self, url: str, ttl_s: float) -> None:
        import redis

        self._module = importlib.import_module("pottery")
        self.lost = (importlib.import_module("pottery.exceptions").ReleaseUnlockedLock,)
        self._masters = {redis.Redis.from_url(each, socket_timeout=1) for each in url.split(",")}
        self._ttl_s = ttl_s

    async def acquire(self, wanted: Wanted, timeout_s: float) -> Section | None:
        lock = self._module.Redlock(key=wanted.name, masters=self._masters, auto_release_time=self._ttl_s)
        return _PotterySection(lock) if lock.acquire(timeout=timeout_s) else None


class _PotterySection(Section):
    def __init__(self, lock: Any) -> None:
        self._lock = lock

    async def remaining_s(self) -> float | None:
        remaining_s = float(self._lock.locked())
        if remaining_s <= 0:
            raise Lost("locked() is 0")
        return remaining_s

    async def release(self) -> bool | None:
        self._lock.release()
        return True


class _RedlockPy(Locks):
    """`lock()` returns the validity that is left, in ms. `unlock()` returns nothing, and hides errors."""

    renews = False

    def __init__(self, url: str, ttl_s: float) -> None:
        import redis

        masters = [redis.Redis.from_url(each, socket_timeout=1) for each in url.split(",")]
        self._manager = importlib.import_module("redlock").Redlock(masters, retry_count=1)
        self._ttl_s = ttl_s

    async def acquire(self, wanted: Wanted, timeout_s: float) -> Section | None:
        until = time.monotonic() + timeout_s
        while time.monotonic() < until:
            lock = self._manager.lock(wanted.name, int(self._ttl_s * 1000))
            if lock:
                return _OtherSection(functools.partial(self._manager.unlock, lock), lock.validity / 1000, told=False)
            await self.sleep(0.02)
        return None


class _OtherSection(Section):
    """`trusted_s`: from now on; None: as long as it is not released. `told`: whether a release says how it went."""

    def __init__(self, release: Callable[[], Any], trusted_s: float | None = None, *, told: bool = True) -> None:
        self._release = release
        self._until = None if trusted_s is None else time.monotonic() + trusted_s
        self._told = told

    async def remaining_s(self) -> float | None:
        if self._until is None:
            return None
        remaining_s = self._until - time.monotonic()
        if remaining_s <= 0:
            raise Lost("its time is over")
        return remaining_s

    async def release(self) -> bool | None:
        done = self._release()
        if asyncio.iscoroutine(done):
            await done
        return True if self._told else None


#: library → (blocking, asyncio or None)
KINDS: dict[str, tuple[type[Any], type[Any] | None]] = {
    "holdfast": (_Holdfast, _HoldfastAsyncio),
    "redis-py": (_RedisPy, _RedisPyAsyncio),
    "python-redis-lock": (_PythonRedisLock, None),
    "pottery": (_Pottery, None),
    "redlock-py": (_RedlockPy, None),
}

#: What each promises, by the names of verify/FORMAT.md: the others have no fencing tokens and no queue, and nothing in
#: their documentation bounds for how long a lock may stay.
PROMISES: dict[str, tuple[str, ...]] = {
    "holdfast": ("exclusion", "fencing", "register", "told", "order", "clean", "progress"),
    "redis-py": ("exclusion", "told", "progress"),
    "python-redis-lock": ("exclusion", "told", "progress"),
    "pottery": ("exclusion", "told", "progress"),
    "redlock-py": ("exclusion", "told", "progress"),
}

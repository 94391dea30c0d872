"""redis-py's Lock, on a queue, with leases."""

from __future__ import annotations

import logging
import threading
from types import TracebackType
from typing import Any, Literal, Self

from holdfast._async.by_token import Held, TokenLock
from holdfast._async.client import Client
from holdfast._async.lease import Lease
from holdfast.compat.redis.errors import LockError, as_theirs, translated
from holdfast.errors import AcquireTimeout, HoldfastError, LeaseLost, NotHeld

__all__ = ["Lock", "locks_of"]

logger = logging.getLogger(__name__)


def locks_of(redis: Any) -> Client:
    """The holdfast client behind the locks of this redis client (of its connection pool), for all else it can do.

    One for each pool, made at the first lock; its keys are the names of the locks, without a namespace. `close()` ends
    it: what its locks hold is released.
    """
    pool = getattr(redis, "connection_pool", None) or redis.nodes_manager
    known: dict[str, Any] = vars(pool)
    locks: Client | None = known.get("_holdfast")
    if locks is None:
        locks = known.setdefault("_holdfast", Client(redis, namespace=None))
    return locks


class _Shared:
    """What the lock holds: the token, as bytes, and what is known of it."""

    token: bytes | None = None
    held: Held | None = None


class _PerThread(_Shared, threading.local):
    """The same, for each thread its own."""


class Lock:
    """A drop-in for `redis.asyncio.lock.Lock`, on the queue and the leases of holdfast.

        lock = redis.asyncio.Redis().lock("orders", lock_class=holdfast.compat.redis.asyncio.Lock)

    Its arguments, methods and errors are redis-py's, and its key is the name, so that both exclude each other. What
    differs: waiters are queued, first come first served, and are woken by the release; nothing is left behind by a
    caller that is interrupted or cancelled; without `timeout` the lock is not held forever: it has a ttl (30 s), which
    is renewed while this process lives and has the lock. With `timeout` it is held that long, be the process alive or
    not, as with redis-py.

    `sleep` is accepted, and does nothing: there is nothing to poll.
    """

    # sync-say: redis.asyncio.lock.Lock => redis.lock.Lock
    # sync-say: redis.asyncio.Redis() => redis.Redis()
    # sync-say: holdfast.compat.redis.asyncio.Lock) => holdfast.compat.redis.Lock)
    # sync-say: is interrupted or cancelled; => is interrupted;

    def __init__(
        self,
        redis: Any,
        name: str | bytes | memoryview,
        timeout: float | None = None,
        sleep: float = 0.1,
        blocking: bool = True,
        blocking_timeout: float | None = None,
        thread_local: bool = True,
        raise_on_release_error: bool = True,
    ) -> None:
        self.redis = redis
        self.name = name
        self.timeout = timeout
        self.sleep = sleep
        self.blocking = blocking
        self.blocking_timeout = blocking_timeout
        self.thread_local = bool(thread_local)
        self.raise_on_release_error = raise_on_release_error
        self.local = _PerThread() if thread_local else _Shared()
        self._key = name if isinstance(name, str) else bytes(name).decode()
        self._lock = TokenLock(locks_of(redis), self._key, timeout or None, renew=not timeout)

    @property
    def lease(self) -> Lease | None:
        """The lease, to hear of its loss, where it is renewed: held here, and without `timeout`."""
        return self.local.held.lease if self.local.held is not None else None

    @property
    def fencing_token(self) -> int | None:
        """As that of a lease, for the protected resource to check; None unless this object has acquired it."""
        return self.local.held.fencing_token if self.local.held is not None else None

    async def __aenter__(self) -> Self:
        timeout = self.blocking_timeout if self.blocking else 0
        with translated(self._key):
            await self._acquire(timeout, None)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.release()
        except LockError:
            if error is None and self.raise_on_release_error:
                raise
            logger.warning("lock %r was not held any more when its block ended", self._key)
        except HoldfastError:
            if error is None:
                raise

    async def acquire(
        self,
        sleep: float | None = None,
        blocking: bool | None = None,
        blocking_timeout: float | None = None,
        token: str | bytes | None = None,
    ) -> bool:
        """Whether it is held now. Waits `blocking_timeout` seconds at most (None: without a limit), or not at all.

        `token`: the value that its key will have, UTF-8; a random one otherwise. Costs two requests more.
        """
        if blocking is None:
            blocking = self.blocking
        if blocking_timeout is None:
            blocking_timeout = self.blocking_timeout
        with translated(self._key):
            try:
                await self._acquire(blocking_timeout if blocking else 0, token)
            except AcquireTimeout:
                return False
        return True

    async def _acquire(self, timeout: float | None, token: str | bytes | None) -> None:
        text = token.decode() if isinstance(token, bytes) else token
        held = await self._lock.acquire(None if timeout is None else max(0, timeout), text)
        try:
            self.local.held, self.local.token = held, held.token.encode()
        except BaseException:
            held.give_back()
            raise

    async def locked(self) -> bool:
        """Whether any client holds it."""
        with translated(self._key):
            return await self._lock.holder() is not None

    async def owned(self) -> bool:
        """Whether this object holds it (in this thread)."""
        token = self.local.token
        with translated(self._key):
            holder = await self._lock.holder()
        return token is not None and holder is not None and holder[0].encode() == token

    async def release(self) -> None:
        """Release it, and hand it to the next waiter. Raises `LockError`, `LockNotOwnedError` when it was lost."""
        held = self._held("release()")
        with translated(self._key):
            released = await held.release()
            self.local.held = self.local.token = None
            if not released:
                raise LeaseLost(self._key, "taken")

    async def extend(self, additional_time: float, replace_ttl: bool = False) -> Literal[True]:
        """Add seconds to its time, or set it to that many. Raises `LockError`, `LockNotOwnedError` when it was lost."""
        held = self._held("extend()")
        self._refuse_unlimited("extend")
        with translated(self._key):
            if not replace_ttl:
                holder = await self._lock.holder()
                if holder is None or holder[0] != held.token:
                    raise LeaseLost(self._key, "taken")
                additional_time += holder[1] or 0
            return await self._extend(held, additional_time)

    async def reacquire(self) -> Literal[True]:
        """Set its time to `timeout` again. Raises `LockError`, `LockNotOwnedError` when it was lost."""
        held = self._held("reacquire()")
        self._refuse_unlimited("reacquire")
        with translated(self._key):
            return await self._extend(held, self.timeout or 0)

    async def _extend(self, held: Held, ttl: float) -> Literal[True]:
        if not await held.extend(ttl):
            raise LeaseLost(self._key, "taken")
        return True

    def _held(self, operation: str) -> Held:
        """What is held under `local.token`, which other code may have set."""
        token = self.local.token
        if token is None:
            raise as_theirs(NotHeld(self._key, operation), self._key)
        held = self.local.held
        if held is None or held.token.encode() != token:
            held = self.local.held = self._lock.of(token.decode())
        return held

    def _refuse_unlimited(self, what: str) -> None:
        if not self.timeout:
            raise as_theirs(HoldfastError(f"Cannot {what} a lock with no timeout: it is renewed by itself"), self._key)

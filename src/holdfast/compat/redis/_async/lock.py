"""redis-py's Lock, on a queue, with leases.

Theory: it derives from redis-py's class, so that `isinstance` and type checkers take it for one, and replaces every
method of it. What other code sets or overrides is called where redis-py would call it: `lua_…`, `do_…`. A release that
is not ours leaves the queue alone, so ours follows it: that does nothing but hand a free lock to the next waiter.
"""

from __future__ import annotations

import logging
from types import TracebackType
from typing import Any, Literal, Self

from redis import exceptions as theirs

# sync: from redis.lock import Lock as Theirs
from redis.asyncio.lock import Lock as Theirs

from holdfast._async.by_token import TokenLock, client_behind
from holdfast._async.client import Client
from holdfast._async.lease import Lease
from holdfast.compat.redis.errors import as_theirs, translated
from holdfast.compat.redis.hooks import Common, is_replaced, text_of
from holdfast.errors import AcquireTimeout, HoldfastError, LeaseLost

__all__ = ["Lock", "locks_of"]

logger = logging.getLogger(__name__)


def locks_of(redis: Any) -> Client:
    """Return the holdfast client behind the locks of this redis client (of its connection pool).

    One for each pool (of a Cluster: for each client), made at the first lock; its keys are the names of the locks,
    without a namespace. `close()` ends it: what its locks hold is released.
    """
    known: dict[str, Any] = vars(getattr(redis, "connection_pool", redis))
    locks: Client | None = known.get("_holdfast")
    if locks is None:
        locks = known.setdefault("_holdfast", client_behind(redis))
    return locks


class Lock(Common, Theirs):
    """A drop-in for `redis.asyncio.lock.Lock`, on the queue and the leases of holdfast.

        lock = redis.asyncio.Redis().lock("orders", lock_class=holdfast.compat.redis.asyncio.Lock)

    Arguments, methods and errors are those of redis-py, and the key is the name, so both exclude each other. What
    differs: waiters queue in arrival order and are woken by the release; a caller that is interrupted or cancelled
    leaves nothing behind; without `timeout`, the lock has a ttl (30 s), which is renewed while this process lives and
    has the lock. With `timeout`, it is held for that long, whether the process lives or not, as with redis-py.

    `sleep` has no effect. Methods can be overridden, and scripts (`lua_release`, `lua_extend`, `lua_reacquire`) can be
    set, as in redis-py; a subclass with its own `do_acquire` polls, since that is called for each attempt.
    """

    # sync-say: redis.asyncio.lock.Lock => redis.lock.Lock
    # sync-say: redis.asyncio.Redis() => redis.Redis()
    # sync-say: holdfast.compat.redis.asyncio.Lock) => holdfast.compat.redis.Lock)
    # sync-say: that is interrupted or cancelled => that is interrupted

    def _aim(self, redis: Any, name: Any, timeout: Any) -> None:
        key = text_of(name, "name")
        self._lock = TokenLock(locks_of(redis), key, timeout or None, renew=not timeout, argument="timeout")
        self._key = key

    @property
    def lease(self) -> Lease | None:
        """The lease of a held lock without `timeout`, to learn of its loss; else None."""
        held = self._known
        return held.lease if held is not None else None

    async def __aenter__(self) -> Self:
        if await self.acquire():
            return self
        refused = getattr(self.local, "refused", None) or HoldfastError(f"lock {self._key!r} was not acquired")
        raise as_theirs(refused, self._key)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.release()
        except theirs.LockError:
            if error is None and self.raise_on_release_error:
                raise
            logger.warning("lock %r was not held any more when its block ended", self._key)
        except (HoldfastError, theirs.RedisError):
            if error is None:
                raise

    async def acquire(
        self,
        # sync-add: sleep: float | None = None,
        blocking: bool | None = None,
        blocking_timeout: float | None = None,
        token: str | bytes | None = None,
    ) -> bool:
        """Acquire the lock; True if it is held now. Waits `blocking_timeout` s at most (None: no limit), or not at all.

        `token`: the value that its key will have, UTF-8; a random one otherwise. Costs two requests more.
        """
        text = None if token is None else text_of(token, "token")
        if is_replaced(self, Lock, "do_acquire"):
            # sync: return bool(super().acquire(sleep, blocking, blocking_timeout, text))
            return bool(await super().acquire(blocking, blocking_timeout, text))
        if blocking is None:
            blocking = self.blocking
        if blocking_timeout is None:
            blocking_timeout = self.blocking_timeout
        return await self._try(blocking_timeout if blocking else 0, text)

    async def do_acquire(self, token: str | bytes) -> bool:
        """Try once to acquire the lock with that token."""
        return await self._try(0, text_of(token, "token"))

    async def _try(self, timeout: float | None, token: str | None) -> bool:
        with translated(self._key):
            try:
                held = await self._lock.acquire(None if timeout is None else max(0, timeout), token)
            except AcquireTimeout as error:
                self.local.refused = error.with_traceback(None)
                return False
            try:
                self.local.held, self.local.token = held, held.token.encode()
                return True
            except BaseException:
                held.give_back()
                raise

    async def locked(self) -> bool:
        """True if any client holds the lock."""
        with translated(self._key):
            return await self._lock.holder() is not None

    async def owned(self) -> bool:
        """True if this object holds the lock (in this thread)."""
        token = None if self.local.token is None else text_of(self.local.token, "token")
        with translated(self._key):
            holder = await self._lock.holder()
        return holder is not None and holder[0] == token

    async def release(self) -> None:
        """Release the lock to the next waiter. Raises `LockError`, or `LockNotOwnedError` if it was lost."""
        held = self._held("release()")
        try:
            await self.do_release(self.local.token)
        except theirs.LockNotOwnedError:
            self.local.held = self.local.token = None
            raise
        finally:
            if is_replaced(self, Lock, "do_release"):
                await held.release()
        self.local.held = self.local.token = None

    async def do_release(self, expected_token: Any) -> None:
        """Release the lock held under that token, by any object. Raises `LockNotOwnedError`."""
        held = self._as(expected_token)
        with translated(self._key):
            if self.lua_release is None:
                released = await held.release()
            else:
                released = await self.lua_release(keys=[self.name], args=[expected_token], client=self.redis)
                await held.release()
            self._found(released, held)

    async def extend(self, additional_time: float, replace_ttl: bool = False) -> Literal[True]:
        """Add seconds to its ttl, or set it to that many. Raises `LockError`, or `LockNotOwnedError` if it was lost."""
        self._refuse_unlimited("extend")
        return await self.do_extend(additional_time, replace_ttl)

    async def do_extend(self, additional_time: float, replace_ttl: bool) -> Literal[True]:
        """Extend the lock held under `local.token`, with `lua_extend` if that is set."""
        held = self._held("extend()")
        with translated(self._key):
            if self.lua_extend is not None:
                replaces = "1" if replace_ttl else "0"
                return self._found(await self._call(self.lua_extend, int(additional_time * 1000), replaces), held)
            if not replace_ttl:
                holder = await self._lock.holder()
                if holder is None or holder[0] != held.token:
                    raise LeaseLost(self._key, held.loss)
                additional_time += holder[1] or 0
            return self._found(await held.extend(additional_time, "additional_time"), held)

    async def reacquire(self) -> Literal[True]:
        """Set its ttl to `timeout` again. Raises `LockError`, or `LockNotOwnedError` if it was lost."""
        self._refuse_unlimited("reacquire")
        return await self.do_reacquire()

    async def do_reacquire(self) -> Literal[True]:
        """Reacquire the lock held under `local.token`, with `lua_reacquire` if that is set."""
        held = self._held("reacquire()")
        with translated(self._key):
            if self.lua_reacquire is not None:
                return self._found(await self._call(self.lua_reacquire, int((self.timeout or 0) * 1000)), held)
            return self._found(await held.extend(self.timeout or 0), held)

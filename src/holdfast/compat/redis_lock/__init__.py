"""A drop-in for python-redis-lock: `from holdfast.compat.redis_lock import Lock`.

Arguments, methods, keys and ids are those of python-redis-lock, so both exclude each other, hand over by id, and wake
each other's waiters. What differs: holdfast's waiters are queued and woken by the release; without `expire`, a lock is
not held forever, but renewed while this process lives and has the `Lock` object; one thread renews all locks; an id is
compared before anything is deleted, even by `reset`.
"""

from __future__ import annotations

import logging
import time
from base64 import b64encode
from functools import cached_property
from os import urandom
from types import TracebackType
from typing import Any, Self

from redis import StrictRedis

from holdfast._sync.by_token import Held, TokenLock
from holdfast.compat.redis import locks_of
from holdfast.compat.redis.errors import ConnectionError, TimeoutError, translated
from holdfast.errors import AcquireTimeout, AlreadyHeld, ConfigurationError, HoldfastError, NotHeld

__all__ = [
    "AlreadyAcquired",
    "InvalidTimeout",
    "Lock",
    "NotAcquired",
    "NotExpirable",
    "TimeoutNotUsable",
    "TimeoutTooLarge",
    "reset_all",
]

logger_for_acquire = logging.getLogger(f"{__name__}.acquire")
logger_for_release = logging.getLogger(f"{__name__}.release")

#: Keys to look at per SCAN.
_SCANNED = 1_000
#: For how long `reset_all` lets a signal lie, ms.
_SIGNAL_MS = 1_000
#: How long an acquire without a timeout bears a server in trouble, s.
_TROUBLE_S = 30.0
#: Between two looks at a server in trouble, s.
_PAUSE_S = 0.1


class AlreadyAcquired(AlreadyHeld, RuntimeError):
    """The lock is held under this id."""

    def __init__(self, name: str) -> None:
        message = f"lock {name!r} is already held under this id: release it first, or make another Lock"
        HoldfastError.__init__(self, message, kind="lock", name=name, wanted="lock")


class NotAcquired(NotHeld, RuntimeError):
    """The lock is not held under this id."""

    @staticmethod
    def _said(name: str, operation: str, kind: str) -> str:
        return f"{operation}: {kind} {name!r} is not held under this id, or its time is over"


class TimeoutNotUsable(HoldfastError, RuntimeError):
    """`timeout` has no meaning without `blocking`."""


class InvalidTimeout(HoldfastError, RuntimeError):
    """`timeout` must be 0 or more."""


class TimeoutTooLarge(HoldfastError, RuntimeError):
    """`timeout` is longer than `expire`."""


class NotExpirable(HoldfastError, RuntimeError):
    """The lock has no `expire`; it is renewed in the background."""


def _seconds(expire: Any) -> int | None:
    seconds = int(expire) if expire else 0
    if seconds < 0:
        raise ConfigurationError("expire", expire, "seconds, 0 or more, or None")
    return seconds or None


class Lock:
    """A lock like that of python-redis-lock.

    `expire`: seconds for which it is held, whether the process lives or not; None: until it is released, with renewal.
    `auto_renewal`: renew it, with `expire` as its ttl. `id`: the id of the holder, to hand the lock to a `Lock` with
    the same id in another process. `signal_expire`: ms for which a signal to waiters of python-redis-lock is kept.
    `blocking`: whether `with` waits. `strict`: accept only redis-py's clients.
    """

    def __init__(
        self,
        redis_client: Any,
        name: str,
        expire: Any = None,
        id: str | bytes | None = None,
        auto_renewal: bool = False,
        strict: bool = True,
        signal_expire: int = 1000,
        blocking: bool = True,
    ) -> None:
        if strict and not isinstance(redis_client, StrictRedis):
            raise ConfigurationError("redis_client", type(redis_client), "a redis.Redis, or strict=False")
        if auto_renewal and expire is None:
            raise ConfigurationError("expire", expire, "seconds, since auto_renewal is set")
        self._client = redis_client
        self._expire = _seconds(expire)
        self._renew = auto_renewal or self._expire is None
        self._id = _id_of(id)
        self._name = f"lock:{name}"
        self._signal = f"lock-signal:{name}"
        self._signal_expire = signal_expire
        self.blocking = blocking
        self._held: Held | None = None

    @property
    def id(self) -> str:
        """The value of the key while it is held."""
        return self._id

    @property
    def fencing_token(self) -> int | None:
        """The fencing token for the protected resource to check; None unless this object has acquired the lock."""
        return self._held.fencing_token if self._held is not None else None

    @cached_property
    def _lock(self) -> TokenLock:
        # Not before it is used: that is when python-redis-lock notices a client that is none.
        return TokenLock(locks_of(self._client), self._name, self._expire, self._renew)

    def get_owner_id(self) -> str | None:
        """The id of the holder, or None if the lock is free."""
        with translated(self._name):
            holder = self._lock.holder()
        return None if holder is None else holder[0]

    def locked(self) -> bool:
        """True if any client holds the lock."""
        return self.get_owner_id() is not None

    def acquire(self, blocking: bool = True, timeout: Any = None) -> bool:
        """Acquire the lock; True if it is held now. Waits `timeout` whole s at most (None: no limit), or not at all."""
        logger_for_acquire.debug("Acquiring Lock(%r) ...", self._name)
        wait_s = self._budget(blocking, timeout)
        held = self._hold(wait_s) if blocking else self._look()
        if held is None:
            logger_for_acquire.warning("Failed to acquire Lock(%r).", self._name)
            return False
        self._held = held
        logger_for_acquire.info("Acquired Lock(%r).", self._name)
        return True

    def _budget(self, blocking: bool, timeout: Any) -> int | None:
        if not blocking and timeout is not None:
            raise TimeoutNotUsable("timeout cannot be used with blocking=False")
        wait_s = int(timeout) if timeout else None
        if wait_s is not None and wait_s < 0:
            raise InvalidTimeout(f"timeout = {wait_s} is not allowed: seconds, 0 or more, or None")
        if wait_s and self._expire and not self._renew and wait_s > self._expire:
            raise TimeoutTooLarge(f"timeout = {wait_s} is longer than expire = {self._expire}")
        return wait_s

    def _look(self) -> Held | None:
        """Hold it if it is free, as it is most often: only else it matters who holds it."""
        try:
            return self._try(0)
        except AcquireTimeout as error:
            if error.holder is not None and error.holder.token == self._id:
                raise AlreadyAcquired(self._name) from None
            return None

    def _hold(self, wait_s: int | None) -> Held | None:
        """Wait until it is held, outlasting a server in trouble."""
        gives_up_at = ends_at = None if wait_s is None else time.monotonic() + wait_s
        troubled = False
        while True:
            try:
                return self._look() or self._try(None if ends_at is None else max(0.0, ends_at - time.monotonic()))
            except AcquireTimeout:
                return None
            except (ConnectionError, TimeoutError, AlreadyAcquired) as error:
                if isinstance(error, AlreadyAcquired) and not troubled:
                    raise  # else it may be what a request without an answer has left, and is being given back
                troubled = True
                gives_up_at = gives_up_at or time.monotonic() + _TROUBLE_S
                if time.monotonic() + _PAUSE_S >= gives_up_at:
                    raise
            time.sleep(_PAUSE_S)

    def _try(self, timeout: float | None) -> Held:
        with translated(self._name):
            return self._lock.acquire(timeout, self._id)

    def extend(self, expire: Any = None) -> None:
        """Extend the lock to `expire` seconds from now (None: those of the lock)."""
        seconds = _seconds(expire) or self._expire
        if seconds is None:
            raise TypeError("give expire, to extend() or to the lock")
        if self._held is not None and self._expire is None:
            raise NotExpirable(f"lock {self._name!r} has no expire: it is renewed by itself")
        with translated(self._name):
            extended = (self._held or self._lock.of(self._id)).extend(seconds)
        if not extended:
            raise NotAcquired(self._name, "extend()")

    def release(self) -> None:
        """Release the lock if it is held under this id, by any object. Raises `NotAcquired` otherwise."""
        logger_for_release.debug("Releasing Lock(%r).", self._name)
        with translated(self._name):
            released = (self._held or self._lock.of(self._id)).release()
        self._held = None
        if not released:
            raise NotAcquired(self._name, "release()")
        _wake(self._client, self._signal, self._signal_expire)

    def reset(self) -> None:
        """Take the lock from its holder, whatever its id. The holder learns of it when it next asks the server."""
        owner = self.get_owner_id()
        with translated(self._name):
            if owner is not None:
                self._lock.of(owner).release()
        _wake(self._client, self._signal, self._signal_expire)

    def __enter__(self) -> Self:
        if not self.acquire(blocking=self.blocking):
            raise NotAcquired(self._name, "with")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.release()
        except Exception:
            if error is None:
                raise


def reset_all(redis_client: Any) -> None:
    """Reset all locks whose key begins with "lock:". Reads all keys of the database, some at a time."""
    for key in redis_client.scan_iter(match="lock:*", count=_SCANNED, _type="string"):
        name = key if isinstance(key, str) else key.decode("utf-8", "replace")
        try:
            Lock(redis_client, name.removeprefix("lock:"), strict=False, signal_expire=_SIGNAL_MS).reset()
        except ConfigurationError:
            pass  # no lock: one of our keys beside one


def _wake(client: Any, signal: str, expire_ms: int) -> None:
    """Wake a waiter of python-redis-lock, if there is one: ours need no signal."""
    with client.pipeline(transaction=True) as pipe:
        pipe.delete(signal)  # one by one: that of a Cluster returns nothing
        pipe.lpush(signal, 1)
        pipe.pexpire(signal, expire_ms)
        pipe.execute()


def _id_of(id: object) -> str:
    if id is None:
        return b64encode(urandom(18)).decode()
    if isinstance(id, bytes):
        try:
            return id.decode("ascii")
        except UnicodeDecodeError:
            return b64encode(id).decode()
    if not isinstance(id, str):
        raise TypeError(f"id is a str or bytes, not {type(id).__name__}")
    return id

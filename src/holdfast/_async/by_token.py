"""A lock that is known by its token alone, as other libraries know theirs: `holdfast.compat` is made of this.

Laws: what is held here without being renewed belongs to its token, not to this process: it is not watched, no exit and no
finalizer ends it. Until the caller knows it, it is given back when anything goes wrong.

Theory: a lock is acquired as ever, in its queue, under a token of ours, since wake-ups are sent by that. When the caller
wants a token of its own, the value of the key is exchanged then, by compare-and-set; an exchange that comes late finds
another value. The same token may come again in a later acquisition, so its extensions are numbered from the fencing
token on: behind all of the earlier ones.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from holdfast._api.options import Duration, check_name, options_of, ttl_ms_of
from holdfast._async.client import Client
from holdfast._async.lease import Lease
from holdfast._async.lock import Lock
from holdfast._core.effects import in_turn
from holdfast._core.record import LeaseRecord
from holdfast._core.settings import DEFAULT
from holdfast._runtime.clock import clock
from holdfast.errors import LeaseLost, LeaseReleased

#: Where the user's client has no `socket_timeout`, a try bears a silent server this long, as redis-py.
_SETTINGS = DEFAULT._replace(try_limit_s=DEFAULT.request_timeout_s)


def client_behind(redis: Any) -> Client:
    """A new client whose keys are the names of its locks."""
    return Client(redis, namespace=None, _settings=_SETTINGS)


class Held:
    """What a token holds: `lease` where this process renews it, else None."""

    __slots__ = ("_lock", "_record", "_until", "lease")

    def __init__(self, lock: Lock, record: LeaseRecord, lease: Lease | None = None) -> None:
        self._lock = lock
        self._record = record
        self.lease = lease
        #: Where no one renews it, its end as far as is known here.
        self._until = record.deadline

    @property
    def token(self) -> str:
        return self._record.token

    @property
    def fencing_token(self) -> int | None:
        """The fencing token, like that of a lease; None where it was acquired elsewhere."""
        return self._record.fence or None

    @property
    def loss(self) -> str:
        """Why it is not held any more, which the server has said."""
        if self.lease is not None:
            return self._record.reason or "taken"
        return "expired" if clock() >= self._until else "taken"

    async def release(self) -> bool:
        """Release the lock; True if it was still held."""
        if self.lease is None:
            return await self._lock._session.run(self._record.release())
        try:
            await self.lease.release()
            return True
        except (LeaseLost, LeaseReleased):
            return False

    def give_back(self) -> None:
        """Release it in the background: it has not reached the caller."""
        driver = self._lock._session.driver
        if self.lease is None:
            driver.spawn_release(self._record)
        else:
            driver.take_back(self._record)

    async def extend(self, ttl: Duration, argument: str = "ttl") -> bool:
        """Make it last `ttl` seconds (the caller's `argument`) from now; False when it is not held any more."""
        ttl_ms = ttl_ms_of(ttl, argument)
        if self.lease is not None:
            try:
                await self.lease.extend(ttl)
            except (LeaseLost, LeaseReleased):
                return False
            return True
        asked_at = clock()
        order = self._record.extending(ttl_ms, asked_at)
        held = bool(await self._lock._session.run(self._record.extension(order.asks_ms, order)))
        self._until = asked_at + ttl_ms / 1000 if held else self._until
        return held


class TokenLock:
    """The lock whose key is `name`. With a ttl it lasts that long, and is not renewed; without, it is renewed.

    It does not know who asks: a thread may wait for what it holds itself.
    """

    def __init__(self, locks: Client, name: str, ttl: Duration | None, renew: bool, argument: str = "ttl") -> None:
        if ttl is not None:
            ttl_ms_of(ttl, argument)
        self._locks = locks
        self._renew = renew
        self._lock = Lock(locks._session, check_name(name), options_of({"ttl": ttl, "renew": renew}, locks._options))
        self._lock._owned_as = ()

    async def acquire(self, timeout: float | None, token: str | None = None) -> Held:
        """Hold it, under `token` if one is given. Raises `AcquireTimeout`."""
        lock = self._lock
        lease = await lock.acquire(timeout)
        record: LeaseRecord | None = None
        try:
            if token is None and self._renew:
                return Held(lock, lease._record, lease)
            fence = lease.fencing_token
            record = lease._record if token is None else lock._record_of(token, fence, fence)
            lease._detach()
            if token is None:
                return Held(lock, record)
            if not await self._locks.compare_and_set(lock.name, lease.token, token, keep_ttl=True):
                raise LeaseLost(lock.name, "taken")
            if not self._renew:
                return Held(lock, record)
            renewed = await lock._resume(token, fence, fence, sys._getframe(1))
            return Held(lock, renewed._record, renewed)
        except BaseException:
            driver = lock._session.driver
            driver.take_back(lease._record)
            if record is not None:
                # First what the exchange would find, so that it cannot come in between.
                driver.spawn(in_turn(lock._give_back(lease.token), record.release()))
            raise

    def of(self, token: str) -> Held:
        """Return what that token holds, acquired elsewhere. Sends nothing."""
        return Held(self._lock, self._lock._record_of(token, 0, time.time_ns() // 1000))

    async def holder(self) -> tuple[str, float | None] | None:
        """(The token of its holder, for how many seconds (None: without a limit)); None when it is free."""
        token, remaining_ms, *_ = await self._lock._inspect()
        return (token, remaining_ms / 1000 if remaining_ms >= 0 else None) if token else None

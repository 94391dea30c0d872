"""The semaphore: permits, each held under a lease."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Never

from holdfast._api.options import PERMITS_MAX, Duration, Options, check_count, timeout_of
from holdfast._async.lease import Lease
from holdfast._async.lifecycle import Session
from holdfast._async.lock import Acquiring, Leasable
from holdfast._core import mutex
from holdfast._core.keys import lock_keys
from holdfast._core.kinds import SEMAPHORE
from holdfast._core.replies import LockSeen
from holdfast._core.semaphore import SemaphoreAcquisition, resize
from holdfast._runtime.lazily import lazily
from holdfast.errors import AcquireTimeout

if TYPE_CHECKING:
    from holdfast._api.holder import SemaphoreStatus, Waiting


class Semaphore(Leasable[Lease]):
    """A number of permits, each held under a lease. Made by `Client.semaphore`.

        async with locks.semaphore("api", permits=3) as lease: ...
        lease = await locks.semaphore("api", permits=3).acquire(permits=2, timeout=5)

    First come first served, whatever the size of a request: one for many permits is not passed by those for few. The
    permits of a holder that died come back at its ttl. A task may hold any number of leases of a semaphore; it can
    so wait for itself, which a semaphore cannot see.
    """

    _kind = "semaphore"
    _label = "semaphore"
    _mark = "1."

    def __init__(self, session: Session, name: str, options: Options, permits: int | None) -> None:
        super().__init__(session, name, options)
        self._owned_as = ()
        self._keys = lock_keys(session.namespace, name).of(SEMAPHORE)
        self._declare(0 if permits is None else check_count("permits", permits, 1, PERMITS_MAX))

    def _declare(self, permits: int) -> None:
        self._declared, keys = permits, self._keys
        self._by_turns(
            keys.lock, lambda token, ttl_ms, *how: SemaphoreAcquisition(keys, token, ttl_ms, permits, *how), permits
        )

    # (A number alone could mean either.)
    def acquire(  # type: ignore[override]
        self,
        *positional: Never,
        permits: int = 1,
        timeout: Duration | None = None,
        # sync-add: cancel: Cancel | None = None,
        deadlock_check: Duration | None = None,
        on_wait: Callable[[Waiting], object] | None = None,
        **elsewhere: Never,
    ) -> Acquiring[Lease]:
        """Acquire this many permits under one lease, waiting in FIFO order. Otherwise as `Lock.acquire`.

        Raises `TooManyPermits` when the limit is lower, `DeclarationMismatch` when another client declared
        another number.
        """
        if positional:
            raise TypeError(f"acquire() takes no number alone: write permits={positional[0]!r}, or timeout=…")
        lock = self._to_wait(deadlock_check, on_wait, elsewhere)
        # sync: return lock._acquire(sys._getframe(1), timeout_of(timeout), _mark(permits), cancel)
        return Acquiring(lock, timeout_of(timeout), _mark(permits))

    async def try_acquire(self, *, permits: int = 1) -> Lease | None:
        """Acquire this many permits if they are free and there are no waiters; None otherwise, at once."""
        try:
            return await self._acquire(sys._getframe(1), 0.0, _mark(permits))
        except AcquireTimeout:
            return None

    async def resize(self, permits: int) -> int:
        """Change for all how many permits there are, and let in who fits; returns how many there were (0: unknown).

        When there are fewer than are held now, the holders keep theirs, and no permit is granted until enough are back;
        waiters for more than there are get `TooManyPermits`. Clients may go on declaring the old number or the new.
        """
        session = self._session
        limit = check_count("permits", permits, 1, PERMITS_MAX)
        settings = session.settings
        before = await session.run(resize(self._keys, limit, settings.request_timeout_s, settings))
        if self._declared:
            self._declare(limit)
        return before

    async def status(self) -> SemaphoreStatus:
        """Permits, holders, waiters and last fencing token at one moment, in one request. Only for reporting."""
        seen = await self._inspect()
        make: type[SemaphoreStatus] = lazily("holdfast._api.holder").SemaphoreStatus
        permits = seen.limit or self._declared
        return make(self._name, permits, seen.used, seen.holders, seen.waiters, seen.fence)

    async def permits(self) -> int:
        """Return the number of permits in all; 0 when the server does not know it yet. Only good for reporting."""
        return (await self._inspect()).limit

    async def available(self) -> int:
        """Return the number of free permits at this moment, waiters or not. Only good for reporting."""
        seen = await self._inspect()
        return max(0, (seen.limit or self._declared) - seen.used)

    async def waiters(self) -> int:
        """Return the number of queued waiters, including those whose process died since."""
        return (await self._inspect()).waiters

    async def _inspect(self) -> LockSeen:
        session = self._session
        return await session.run(mutex.inspect(self._keys, session.settings.request_timeout_s, SEMAPHORE))

    def __repr__(self) -> str:
        return f"<Semaphore {self._name!r}: {self._declared or 'as stored'} permits, ttl {self.ttl:g} s>"


def _mark(permits: int) -> str:
    return f"{check_count('permits', permits, 1, PERMITS_MAX)}."

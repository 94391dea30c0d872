"""The shared lock: any number of readers, or one writer."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from holdfast._api.options import Duration, timeout_of
from holdfast._api.rwlock import Downgrading, RWLockBase, Side, Upgrading
from holdfast._async.lease import Lease
from holdfast._async.lifecycle import Session
from holdfast._async.lock import Leasable
from holdfast._core import mutex, rwlock
from holdfast._core.kinds import RWLOCK
from holdfast._core.replies import LockSeen
from holdfast._runtime.clock import clock
from holdfast._runtime.lazily import lazily

if TYPE_CHECKING:
    from holdfast._api.holder import RWLockStatus


class ReadLease(Lease):
    """The right to read; others may have it at the same time."""

    __slots__ = ()

    # sync-say: `AcquireTimeout` (this lease then goes on, as when it is cancelled), => `AcquireTimeout`, `AcquireCancelled` (this lease then goes on),
    # sync: def upgrade(self, timeout: Duration | None = None, cancel: Cancel | None = None) -> WriteLease:
    async def upgrade(self, timeout: Duration | None = None) -> WriteLease:
        """Become the writer without letting go: waits until the other readers have left, ahead of the queue.

        The write lease comes on top of this one: releasing it leaves a reader, releasing this one ends that. No other
        client writes between the two. Raises `UpgradeRefused` when another reader is upgrading already (both would wait for
        each other), `AcquireTimeout` (this lease then goes on, as when it is cancelled), `LeaseLost` when this one has
        ended.
        """
        record = self._record
        if record.check_expired(clock()):
            raise self._ended("upgrade()")
        side = _Upgrade(self._session, record, self)
        # sync: return side._acquire(sys._getframe(1), timeout_of(timeout), "", cancel)
        return await side._acquire(sys._getframe(1), timeout_of(timeout))


class WriteLease(Lease):
    """The right to write: exclusive, no readers and no other writer."""

    __slots__ = ("_beneath",)

    _beneath: ReadLease

    async def downgrade(self) -> ReadLease:
        """Become a reader in one step: no writer comes in between, and readers that wait come in at once.

        Ends this lease and returns the other one (after an upgrade: the lease that was upgraded). Raises `LeaseLost` or
        `LeaseReleased` when this one has ended. When the answer is lost, both are given back.
        """
        beneath: ReadLease | None = getattr(self, "_beneath", None)
        if beneath is not None:
            await self.release()
            return beneath
        record = self._record
        if record.check_expired(clock()):
            raise self._ended("downgrade()")
        driver, mine = self._driver, object()
        try:
            driver.leaving[mine] = record  # for one that closes the client meanwhile
            if not driver.schedule.finish(record):
                raise self._ended("downgrade()")
            self._session.disown(self)
            record.report.released()
            side = _Downgrade(self._session, record)
            return await side._acquire(sys._getframe(1))
        except BaseException:
            if record.half_released():
                driver.spawn_release(record)  # it may never have begun
            raise
        finally:
            driver.leaving.pop(mine, None)


class ReadLock(Side, Leasable[ReadLease]):
    """The reading side of a shared lock, made by `RWLock.read`. As a context manager it acquires without a limit.

    A reader waits until no writer holds it and no earlier waiter is left.
    """

    _label = "read lock"
    _mark = rwlock.READER
    _lease_class = ReadLease


class WriteLock(Side, Leasable[WriteLease]):
    """The writing side of a shared lock, made by `RWLock.write`. As a context manager it acquires without a limit.

    A writer waits until all who came earlier have left.
    """

    _label = "write lock"
    _mark = rwlock.WRITER
    _lease_class = WriteLease


class _Upgrade(Upgrading, WriteLock):
    pass


class _Downgrade(Downgrading, ReadLock):
    pass


class RWLock(RWLockBase):
    """A shared lock: any number of readers, or one writer. Made by `Client.rwlock`.

        rw = locks.rwlock("catalogue")
        async with rw.read() as lease: ...
        async with rw.write() as lease: ...

    First come first served; readers that follow each other are let in together. So a writer waits for the readers
    before it and for no later one, and readers wait for at most the writers before them.

    It does not promise that a reader whose lease was lost has stopped reading: check `lease.ensure_held()`.
    """

    _session: Session

    def read(self) -> ReadLock:
        """The reading side."""
        return ReadLock(self._session, self._name, self._options)

    def write(self) -> WriteLock:
        """The writing side."""
        return WriteLock(self._session, self._name, self._options)

    async def status(self) -> RWLockStatus:
        """Writer, readers, waiters and last fencing token at one moment. Only for reporting.

        In one request, and one more when this client sees that of the writer for the first time, to learn who it is.
        """
        seen = await self._inspect()
        make: type[RWLockStatus] = lazily("holdfast._api.holder").RWLockStatus
        writer = None
        if seen.holder:
            session, looking = self._session, lazily("holdfast._api.looking")
            writer = await session.run(looking.behind(session, seen.holder, seen.remaining_ms, seen.fence))
        return make(self._name, writer, seen.holders, seen.waiters, seen.fence)

    async def readers(self) -> int:
        """Return the number of readers at this moment. Only good for reporting."""
        return (await self._inspect()).holders

    async def writing(self) -> bool:
        """True if a client writes (or holds the lock of that name) at this moment. Only good for reporting."""
        return (await self._inspect()).holder != ""

    async def waiters(self) -> int:
        """Return the number of queued waiters, including those whose process died since."""
        return (await self._inspect()).waiters

    async def _inspect(self) -> LockSeen:
        session = self._session
        return await session.run(mutex.inspect(self._keys, session.settings.request_timeout_s, RWLOCK))

"""The face for asyncio of everything that is more than a lock.

Law: no decision of the protocol is taken here; a face checks arguments, runs a protocol, and keeps the lease.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from types import TracebackType
from typing import Any, Literal, TypeVar, cast

from holdfast._core import barrier, condition, gate, multilock, optimistic, rwlock, semaphore
from holdfast._core.effects import Protocol, Reply
from holdfast._core.failure import RequestFailed
from holdfast._core.keys import lock_keys
from holdfast._core.optimistic import Value
from holdfast._core.record import LeaseRecord
from holdfast._core.replicas import Sync
from holdfast._core.waiting import Acquisition, Busy, Grant, wait_for
from holdfast._faces.aio import Client, Leasable, Lease, Lock, has_ended, task_here
from holdfast._faces.decorated import check_function, check_result
from holdfast._faces.entered import Entered, Leads
from holdfast._faces.holder import Holder
from holdfast._faces.naming import check_template, namer
from holdfast._faces.options import PERMITS_MAX, Duration, check_count, check_name, check_value, timeout_of, ttl_ms_of
from holdfast._transport.clock import clock
from holdfast.errors import (
    AcquireTimeout,
    BrokenBarrierError,
    ClientClosed,
    ConfigurationError,
    HoldfastError,
    LeaseLost,
    NotHeld,
    OptimisticConflict,
    StaleFencingToken,
)

__all__ = [
    "Barrier",
    "Condition",
    "CountDownLatch",
    "Election",
    "Event",
    "MultiLock",
    "Optimistic",
    "RWLock",
    "ReadLease",
    "ReadLock",
    "Semaphore",
    "Transaction",
    "WriteLease",
    "WriteLock",
]

R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])


def _task_id() -> str:
    return str(id(asyncio.current_task()))


class _TurnLeasable(Leasable):
    """What is acquired through a `Acquisition`."""

    def __init__(
        self, client: Client, name: str, ttl_ms: int, renew: bool, max_hold_ms: int | None, sync: Sync
    ) -> None:
        super().__init__(client, name, ttl_ms, renew, max_hold_ms)
        self._sync = sync

    def _acquisition(self, token: str) -> Acquisition:
        raise NotImplementedError

    def _ask(self, token: str, timeout_s: float | None, sent: bool = False) -> Protocol[Grant | Busy]:
        acquisition = self._acquisition(token)
        return wait_for(acquisition, timeout_s, listening=not sent and self._client._driver.listening(acquisition.key))

    def _make_record(self, token: str, grant: Grant) -> LeaseRecord:
        hold = self._acquisition(token).hold(self._name, grant, self._renew, self._max_hold_ms)
        hold.label = self._label
        return hold

    def _give_back(self, token: str) -> Protocol[None]:
        return self._acquisition(token).give_back()


# ---------------------------------------------------------------------- readers and writers


class ReadLease(Lease):
    """The right to read; others may have it at the same time."""

    __slots__ = ()

    async def upgrade(self, timeout: Duration | None = None) -> WriteLease:
        """Become the writer without letting go: waits until the other readers have left, before everybody queued.

        The write lease comes on top of this one: releasing it leaves a reader, releasing this one ends that. Nobody
        writes between the two. Raises `UpgradeRefused` when another reader is upgrading already (both would wait for
        each other), `AcquireTimeout` (this lease then goes on, as when it is cancelled), `LeaseLost` when this one has
        ended.
        """
        hold = self._hold
        if hold.check_expired(clock()):
            raise self._ended("upgrade()")
        assert isinstance(hold, rwlock.RWHold)
        side = _Upgrade(self._client, hold)
        # Nothing is called behind a grant: a signal handler could raise there, and nobody would give it back.
        lease: WriteLease = await side._acquire(timeout_of(timeout), sys._getframe(1))  # type: ignore[assignment]
        lease._beneath = self
        return lease


class WriteLease(Lease):
    """The right to write; nobody else has one of either kind."""

    __slots__ = ("_beneath",)

    _beneath: ReadLease

    async def downgrade(self) -> ReadLease:
        """Become a reader in one step: nobody writes in between, and readers that wait come in at once.

        Ends this lease and returns the other one (after an upgrade: the lease that was upgraded). Raises `LeaseLost` or
        `LeaseReleased` when this one has ended. When the answer is lost, both are given back.
        """
        beneath: ReadLease | None = getattr(self, "_beneath", None)
        if beneath is not None:
            await self.release()
            return beneath
        hold, client = self._hold, self._client
        if hold.check_expired(clock()):
            raise self._ended("downgrade()")
        assert isinstance(hold, rwlock.RWHold)
        driver = self._driver
        try:
            driver.finish(hold)
            client._disown(self)
            side = _Downgrade(client, hold)
            return await side._acquire(None, sys._getframe(1))  # type: ignore[return-value]
        except (HoldfastError, asyncio.CancelledError):
            raise
        except BaseException:
            driver.spawn_release(hold)  # it may never have begun
            raise


class _Side(_TurnLeasable):
    """One of the two sides of a shared lock."""

    _until: float | None = None

    def __init__(
        self, client: Client, name: str, ttl_ms: int, renew: bool, max_hold_ms: int | None, sync: Sync
    ) -> None:
        super().__init__(client, name, ttl_ms, renew, max_hold_ms, sync)
        self._keys = lock_keys(client.namespace, name)

    def _acquisition(self, token: str) -> rwlock.RWTurn:
        return rwlock.RWTurn(self._keys, token, self._ttl_ms, self._client._settings, self._sync)

    def _make_record(self, token: str, grant: Grant) -> LeaseRecord:
        hold = self._acquisition(token).hold(self._name, grant, self._renew, self._max_hold_ms, self._until)
        hold.label = self._label
        return hold

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name!r}: ttl {self.ttl:g} s>"


class ReadLock(_Side):
    """The reading side of a shared lock, made by `RWLock.read`. As a context manager it acquires without a limit."""

    _label = "read lock"
    _mark = rwlock.READER
    _lease_class = ReadLease

    async def acquire(self, timeout: Duration | None = None) -> ReadLease:
        """Wait for the turn to read: until no writer holds it and nobody who came earlier waits. As `Lock.acquire`."""
        return await self._acquire(timeout_of(timeout), sys._getframe(1))  # type: ignore[return-value]

    async def try_acquire(self) -> ReadLease | None:
        """Read if nobody writes and nobody waits; None otherwise, at once."""
        return await super().try_acquire()  # type: ignore[return-value]

    async def __aenter__(self) -> ReadLease:
        return await super().__aenter__()  # type: ignore[return-value]


class WriteLock(_Side):
    """The writing side of a shared lock, made by `RWLock.write`. As a context manager it acquires without a limit."""

    _label = "write lock"
    _mark = rwlock.WRITER
    _lease_class = WriteLease

    async def acquire(self, timeout: Duration | None = None) -> WriteLease:
        """Wait for the turn to write: until all who came earlier have left. As `Lock.acquire`."""
        return await self._acquire(timeout_of(timeout), sys._getframe(1))  # type: ignore[return-value]

    async def try_acquire(self) -> WriteLease | None:
        """Write if nobody holds it and nobody waits; None otherwise, at once."""
        return await super().try_acquire()  # type: ignore[return-value]

    async def __aenter__(self) -> WriteLease:
        return await super().__aenter__()  # type: ignore[return-value]


class _Upgrade(WriteLock):
    """One upgrade of one reader; both end at the moment that `max_hold` set for the reader."""

    def __init__(self, client: Client, reader: rwlock.RWHold) -> None:
        super().__init__(client, reader.name, reader.ttl_ms, reader.renewal is not None, None, reader.sync)
        self._owned_as = ()  # the reader beneath it says who owns it
        self._reader = reader.token
        self._until = reader.max_until

    def _acquisition(self, token: str) -> rwlock.RWTurn:
        return super()._acquisition(rwlock.upgrade_token(self._reader, int(token.rpartition(":")[2])))


class _Downgrade(ReadLock):
    """One downgrade of one writer; the reader ends at the moment that `max_hold` set for the writer."""

    def __init__(self, client: Client, writer: rwlock.RWHold) -> None:
        super().__init__(client, writer.name, writer.ttl_ms, writer.renewal is not None, None, writer.sync)
        self._writer = writer
        self._until = writer.max_until

    async def _ask(self, token: str, timeout_s: float | None, sent: bool = False) -> Grant | Busy:
        writer = self._acquisition(self._writer.token)
        writer.stray = self._writer.stray
        grant = await rwlock.downgrade(writer, self._acquisition(token))
        if grant is None:
            raise LeaseLost(self._name, "taken", "write lock")
        return grant


class RWLock:
    """A shared lock: any number of readers, or one writer. Made by `Client.rwlock`.

        rw = locks.rwlock("catalogue")
        async with rw.read() as lease: ...
        async with rw.write() as lease: ...

    First come first served; readers that follow each other are let in together. So a writer waits for the readers
    before it and for nobody who came later, and readers wait for at most the writers before them.

    It does not promise that a reader whose lease was lost has stopped reading: check `lease.ensure_held()`.
    """

    def __init__(
        self, client: Client, name: str, ttl_ms: int, renew: bool, max_hold_ms: int | None, sync: Sync
    ) -> None:
        self._client = client
        self._name = name
        self._options = (ttl_ms, renew, max_hold_ms, sync)
        self._keys = lock_keys(client.namespace, name)

    @property
    def name(self) -> str:
        """What it is called."""
        return self._name

    def read(self) -> ReadLock:
        """The reading side."""
        return ReadLock(self._client, self._name, *self._options)

    def write(self) -> WriteLock:
        """The writing side."""
        return WriteLock(self._client, self._name, *self._options)

    async def readers(self) -> int:
        """How many read at this moment. Only good for reporting."""
        return (await self._inspect())[2]

    async def writing(self) -> bool:
        """Whether somebody writes (or holds the lock of that name) at this moment. Only good for reporting."""
        return (await self._inspect())[0] != ""

    async def waiters(self) -> int:
        """How many are queued, including those whose process died since."""
        return (await self._inspect())[3]

    async def _inspect(self) -> tuple[str, int, int, int, int]:
        return await self._client._run(rwlock.inspect(self._keys, self._client._settings.request_timeout_s))

    def __repr__(self) -> str:
        return f"<RWLock {self._name!r}: ttl {self._options[0] / 1000:g} s>"


# ---------------------------------------------------------------------- permits


class Semaphore(_TurnLeasable):
    """So many permits, each held under a lease. Made by `Client.semaphore`.

        async with locks.semaphore("api", permits=3) as lease: ...
        lease = await locks.semaphore("api", permits=3).acquire(permits=2, timeout=5)

    First come first served, whatever the size of a request: one for many permits is not passed by those for few. The
    permits of a holder that died come back at its ttl. A task may hold any number of leases of a semaphore; it can
    so wait for itself, which a semaphore cannot see.
    """

    _kind = "semaphore"
    _label = "semaphore"
    _mark = "1."

    def __init__(
        self,
        client: Client,
        name: str,
        ttl_ms: int,
        renew: bool,
        max_hold_ms: int | None,
        sync: Sync,
        declared: int,
    ) -> None:
        super().__init__(client, name, ttl_ms, renew, max_hold_ms, sync)
        self._owned_as = ()
        self._declared = declared
        self._keys = semaphore.semaphore_keys(lock_keys(client.namespace, name))

    def _acquisition(self, token: str) -> semaphore.SemaphoreTurn:
        return semaphore.SemaphoreTurn(
            self._keys, token, self._ttl_ms, self._declared, self._client._settings, self._sync
        )

    async def acquire(self, timeout: Duration | None = None, *, permits: int = 1) -> Lease:
        """Wait for the turn, and take so many permits, under one lease. Otherwise as `Lock.acquire`.

        Raises `TooManyPermits` when there are not so many at all, `DeclarationMismatch` when another client declared
        another number.
        """
        mark = f"{check_count('permits', permits, 1, PERMITS_MAX)}."
        return await self._acquire(timeout_of(timeout), sys._getframe(1), mark)

    async def try_acquire(self, *, permits: int = 1) -> Lease | None:
        """Take so many permits if they are free and nobody waits; None otherwise, at once."""
        mark = f"{check_count('permits', permits, 1, PERMITS_MAX)}."
        try:
            return await self._acquire(0.0, sys._getframe(1), mark)
        except AcquireTimeout:
            return None

    async def resize(self, permits: int) -> int:
        """Change for all how many permits there are, and let in who fits; returns how many there were (0: unknown).

        When there are fewer than are held now, the holders keep theirs and nobody comes in until enough are back; who
        waits for more than there are gets `TooManyPermits`. Clients may go on declaring the old number or the new.
        """
        client = self._client
        limit = check_count("permits", permits, 1, PERMITS_MAX)
        settings = client._settings
        before = await client._run(semaphore.resize(self._keys, limit, settings.request_timeout_s, settings))
        if self._declared:
            self._declared = limit
        return before

    async def permits(self) -> int:
        """How many there are in all; 0 when the server does not know it yet. Only good for reporting."""
        return (await self._inspect())[0]

    async def available(self) -> int:
        """How many are free at this moment, be there waiters or not. Only good for reporting."""
        limit, _, used, *_ = await self._inspect()
        return max(0, (limit or self._declared) - used)

    async def waiters(self) -> int:
        """How many are queued, including those whose process died since."""
        return (await self._inspect())[3]

    async def _inspect(self) -> tuple[int, int, int, int, int, int]:
        return await self._client._run(semaphore.inspect(self._keys, self._client._settings.request_timeout_s))

    def __repr__(self) -> str:
        return f"<Semaphore {self._name!r}: {self._declared or 'as stored'} permits, ttl {self.ttl:g} s>"


# ---------------------------------------------------------------------- several at once


class MultiLock(_TurnLeasable):
    """Several locks under one lease, all or none. Made by `Client.multilock`.

    They are the locks that `lock` makes: whoever holds one of them alone is waited for. `lease.fencing_token` is
    greater than every earlier one of each. One loss ends the lease. As a context manager it acquires without a limit.
    """

    _label = "multilock"
    _kind = "multilock"

    def __init__(
        self, client: Client, names: Sequence[str], ttl_ms: int, renew: bool, max_hold_ms: int | None, sync: Sync
    ) -> None:
        super().__init__(client, " + ".join(names), ttl_ms, renew, max_hold_ms, sync)
        self._names = tuple(names)
        self._owned_as = tuple(f"lock:{name}" for name in names)
        self._all_keys = [lock_keys(client.namespace, name) for name in names]

    @property
    def names(self) -> tuple[str, ...]:
        """What they are called."""
        return self._names

    def _turns(self, token: str) -> list[multilock.MultiTurn]:
        client = self._client  # not its driver, which may have ended: what was asked for is still to be given back
        return multilock.turns_for(self._all_keys, not client._moves, token, self._ttl_ms, client._settings, self._sync)

    def _acquisition(self, token: str) -> Acquisition:
        return self._turns(token)[0]

    def _ask(self, token: str, timeout_s: float | None, sent: bool = False) -> Protocol[Grant | Busy]:
        turns = self._turns(token)
        return multilock.acquire(turns, timeout_s, listening=not sent and self._client._driver.listening(turns[0].key))

    def _make_record(self, token: str, grant: Grant) -> LeaseRecord:
        hold = multilock.hold(self._turns(token), self._name, grant, self._renew, self._max_hold_ms)
        hold.label = self._label
        return hold

    def _give_back(self, token: str) -> Protocol[None]:
        return multilock.give_back(self._turns(token))

    def __repr__(self) -> str:
        return f"<MultiLock {', '.join(map(repr, self._names))}: ttl {self.ttl:g} s>"


# ---------------------------------------------------------------------- condition


class Condition:
    """Wait, while holding a lock, for something that another holder of it does. Made by `Client.condition`.

        changed = locks.condition(lock)

        async with lock:                                       async with lock:
            await changed.wait_for(lambda: queue_length())         add_to_queue()
                                                                   await changed.notify()

    As `asyncio.Condition`: only the task that holds the lock may call it. `wait` lets go of the lock and waits in
    one step, so that no notification is missed; `notify` lets waiters on to the lock's queue, where they hold the lock
    one after the other. The lease is the same object before and after, with a new fencing token.

    A wait may end without a notification (a server that lost its data): check what you wait for, or use `wait_for`.
    """

    def __init__(self, lock: Lock, name: str) -> None:
        self._lock = lock
        self._name = name
        self._key = condition.condition_key(lock._keys, name)

    @property
    def lock(self) -> Lock:
        """The lock it belongs to."""
        return self._lock

    async def __aenter__(self) -> Lease:
        return await self._lock.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._lock.__aexit__(kind, error, trace)

    def _lease(self, operation: str) -> Lease:
        lock = self._lock
        task = task_here()
        held = lock._client._owners.get((lock._owned_as[0], id(task)))
        lease = held() if held is not None and task is not None else None
        if lease is None or lease._task is None or lease._task() is not task:
            raise NotHeld(lock.name, operation)
        if lease._hold.check_expired(clock()):
            raise lease._ended(operation)
        return lease

    async def wait(self, timeout: Duration | None = None) -> bool:
        """Let go of the lock, wait for a notification (`timeout` seconds at most), hold the lock again.

        Returns True when notified, False when the time was over. The lock is held again in both cases, however long
        that takes. When it raises (`LeaseLost`, `NotHeld`, the server's trouble, or cancelled), the lock is not
        held any more: its lease is released, and a notification that had come is passed on.
        """
        timeout_s = timeout_of(timeout)
        lease = self._lease("wait()")
        lock, hold = self._lock, lease._hold
        client = lock._client
        driver = client._driver
        token = client._new_token(_task_id())
        acquisition = condition.ConditionTurn(
            lock._keys, self._key, hold.token, token, hold.ttl_ms, driver.settings, lock._exclusive.sync, hold.stray
        )
        again: LeaseRecord | None = None
        try:
            driver.finish(hold)
            protocol = wait_for(acquisition, timeout_s if timeout_s is None else max(timeout_s, 0.001), listening=True)
            got = await client._run(protocol, acquisition)
            assert isinstance(got, Grant)
            if driver.closed:
                raise ClientClosed()  # and it is given back below
            again = lock._make_record(token, got)
            again.on_loss = hold.on_loss
            for body in lease._bodies or ():
                driver.bodies[body] = again
            driver.watch(again)
            lease._hold = again
            return acquisition.notified
        except NotHeld:
            client._disown(lease)
            hold.mark_taken()
            if hold.on_loss is not None:
                hold.on_loss("taken")
            raise lease._ended("wait()") from None
        except BaseException:
            client._disown(lease)
            if again is not None:
                driver.finish(again)
            driver.spawn_release(hold)  # it may never have begun
            driver.start(acquisition.give_back())
            raise

    async def wait_for(self, predicate: Callable[[], Awaitable[R] | R], timeout: Duration | None = None) -> R:
        """Wait until `predicate()` is true, called with the lock held; returns its last value, as `asyncio` does.

        What the predicate returns is awaited where it is awaitable.
        """
        timeout_s = timeout_of(timeout)
        until = None if timeout_s is None else clock() + timeout_s
        while True:
            given = predicate()
            result = cast("R", await given if inspect.isawaitable(given) else given)
            left_s = None if until is None else until - clock()
            if result or (left_s is not None and left_s <= 0):
                return result
            await self.wait(left_s)

    async def notify(self, n: int = 1) -> int:
        """Let up to `n` waiters on to the lock's queue; returns how many. They hold the lock after the caller."""
        lease = self._lease("notify()")
        count = check_count("n", n, 1, 1_000_000)
        lock = self._lock
        client = lock._client
        hold = lease._hold
        moved = await client._run(
            condition.notify(
                lock._keys,
                self._key,
                hold.token,
                next(client._sequence),
                count,
                hold.ttl_ms,
                client._settings,
            )
        )
        if moved < 0:
            hold.lose("taken")
            raise lease._ended("notify()")
        return moved

    async def notify_all(self) -> int:
        """Let all waiters on to the lock's queue; returns how many."""
        return await self.notify(1_000_000)

    def __repr__(self) -> str:
        return f"<Condition {self._name!r} of lock {self._lock.name!r}>"


# ---------------------------------------------------------------------- gates and barriers


class _Gate:
    _kind = ""

    def __init__(self, client: Client, name: str, declared: int, keep_ms: int) -> None:
        self._client = client
        self._name = name
        self._declared = declared
        self._keep_ms = keep_ms
        self._keys = lock_keys(client.namespace, name).part(self._kind)

    @property
    def name(self) -> str:
        """What it is called."""
        return self._name

    async def wait(self, timeout: Duration | None = None) -> bool:
        """Wait until it is open, `timeout` seconds at most; returns whether it is."""
        timeout_s = timeout_of(timeout)
        client = self._client
        token = client._new_token(_task_id())
        acquisition = gate.GateTurn(self._kind, self._keys, token, self._declared, self._keep_ms, client._settings)
        protocol = wait_for(acquisition, timeout_s, listening=client._driver.listening(acquisition.key))
        return isinstance(await client._run(protocol, acquisition), Grant)

    async def _move(self, what: str | int) -> int:
        client = self._client
        token = client._new_token(_task_id())
        return await client._run(
            gate.move(self._kind, self._keys, token, what, self._declared, self._keep_ms, client._settings)
        )


class CountDownLatch(_Gate):
    """Opens for all who wait when it was counted down so often. Made by `Client.latch`.

    It opens once and for good: another round is another name. Every count-down counts once, also when it had to be sent
    again.
    """

    _kind = "latch"

    async def count_down(self, n: int = 1) -> int:
        """Count down by `n`; returns what is left. Below zero it stays zero."""
        return await self._move(check_count("n", n, 1, 1_000_000_000))

    async def remaining(self) -> int:
        """How much is left to count. Only good for reporting."""
        return await self._move("look")

    def __repr__(self) -> str:
        return f"<CountDownLatch {self._name!r}: count {self._declared}>"


class Event(_Gate):
    """Set or not, for processes anywhere; as `asyncio.Event`. Made by `Client.event`."""

    _kind = "event"

    def __init__(self, client: Client, name: str, keep_ms: int) -> None:
        super().__init__(client, name, 1, keep_ms)

    async def set(self) -> None:
        """Set it: all who wait go on."""
        await self._move("open")

    async def clear(self) -> None:
        """Who waits from now on waits until it is set again."""
        await self._move("shut")

    async def is_set(self) -> bool:
        """Whether it is set at this moment."""
        return await self._move("look") == 0

    def __repr__(self) -> str:
        return f"<Event {self._name!r}>"


class Barrier:
    """So many parties wait for each other, again and again; as `asyncio.Barrier`. Made by `Client.barrier`.

    A party whose process dies while it waits does not count as arrived. One whose time is over breaks the barrier for
    all; one that is cancelled only leaves.
    """

    def __init__(self, client: Client, name: str, parties: int, keep_ms: int) -> None:
        self._client = client
        self._name = name
        self._parties = parties
        self._keep_ms = keep_ms
        self._keys = lock_keys(client.namespace, name).part("barrier")

    @property
    def name(self) -> str:
        """What it is called."""
        return self._name

    @property
    def parties(self) -> int:
        """How many have to arrive."""
        return self._parties

    async def wait(self, timeout: Duration | None = None) -> int:
        """Arrive, and wait for the others, `timeout` seconds at most; returns which one in the order of arrival this
        was.

        Raises `BrokenBarrierError` when the time of any party was over, or it was broken or reset while waiting.
        """
        timeout_s = timeout_of(timeout)
        client = self._client
        token = client._new_token(_task_id())
        acquisition = barrier.BarrierTurn(self._keys, token, self._parties, self._keep_ms, client._settings)
        got = await client._run(wait_for(acquisition, timeout_s, listening=True), acquisition)
        if not isinstance(got, Grant):
            raise BrokenBarrierError(self._name)
        return got.fence

    async def abort(self) -> None:
        """Break it: all who wait, and who come, get `BrokenBarrierError` until it is reset."""
        await self._move("abort")

    async def reset(self) -> None:
        """Make it usable again; who waits gets `BrokenBarrierError`."""
        await self._move("reset")

    async def n_waiting(self) -> int:
        """How many wait at this moment."""
        return (await self._move("look"))[1]

    async def broken(self) -> bool:
        """Whether it is broken at this moment."""
        return (await self._move("look"))[2]

    async def generation(self) -> int:
        """How often it has let all go on, or was reset."""
        return (await self._move("look"))[0]

    async def _move(self, what: str) -> tuple[int, int, bool]:
        client = self._client
        return await client._run(barrier.move(self._keys, what, self._parties, self._keep_ms, client._settings))

    def __repr__(self) -> str:
        return f"<Barrier {self._name!r}: {self._parties} parties>"


# ---------------------------------------------------------------------- election


def _is_over(lease: Lease) -> bool:
    return lease._hold.check_expired(clock())


class _Leadership(Lock):
    _label = "election"
    _kind = "election"

    def __init__(
        self,
        client: Client,
        name: str,
        ttl_ms: int,
        renew: bool,
        max_hold_ms: int | None,
        sync_replicas: int | Literal["all"] | None,
    ) -> None:
        super().__init__(client, name, ttl_ms, renew, max_hold_ms)
        self._keys = self._keys.part("leader")  # apart from the lock of that name
        self._exclusive = client._exclusive(self._keys, sync_replicas)

    def _make_record(self, token: str, grant: Grant) -> LeaseRecord:
        hold = super()._make_record(token, grant)
        hold.label = self._label
        return hold


class Election:
    """Of all who campaign one leads, until it resigns or its lease ends. Made by `Client.election`.

        election = locks.election("scheduler")
        await election.run(lead)                # lead(lease) whenever elected, until it returns

        async with election as lease:           # waits to be elected, resigns at the end
            ...

    Leadership is a lease with a fencing token. A body that leads is cancelled when the lead is lost, and `LeaseLost`
    comes out of the block.
    """

    def __init__(
        self,
        client: Client,
        name: str,
        ttl_ms: int,
        renew: bool,
        max_hold_ms: int | None,
        sync_replicas: int | Literal["all"] | None,
    ) -> None:
        self._client = client
        self._name = name
        self._lock = _Leadership(client, name, ttl_ms, renew, max_hold_ms, sync_replicas)
        self._leads: Leads[asyncio.Task[Any] | None, Lease] = Leads(has_ended, _is_over)
        self._entered: Entered[asyncio.Task[Any] | None, Lease] = Entered(has_ended)

    @property
    def name(self) -> str:
        """What it is called."""
        return self._name

    @property
    def lease(self) -> Lease | None:
        """The lease by which the calling task was elected; for others that of this object's leader, if any."""
        return self._leads.of(task_here())

    @property
    def is_leader(self) -> bool:
        """Whether `lease` is held, as far as is known now. Sends nothing."""
        lease = self.lease
        return lease is not None and not lease._hold.check_expired(clock())

    async def campaign(self, timeout: Duration | None = None) -> Lease:
        """Wait to be elected, `timeout` seconds at most; returns the lease. Errors as `Lock.acquire`."""
        lease = await self._lock._acquire(timeout_of(timeout), sys._getframe(1))
        try:
            self._leads.won(task_here(), lease)
            return lease
        except BaseException:
            self._leads.forget(lease)
            lease._abandon()
            raise

    async def resign(self) -> None:
        """Give up the lead; the next one in the queue leads in the same moment. Nothing when not leading.

        A task that campaigned ends its own lead only; any other one ends the lead of this object.
        """
        lease = self.lease
        if lease is not None:
            try:
                self._leads.forget(lease)
                if not lease._hold.check_expired(clock()):
                    await lease.release()
            except BaseException:
                lease._abandon()  # where it had not begun to release
                raise

    async def leader(self) -> Holder | None:
        """Who leads, since when, where; None when nobody does. Only good for reporting."""
        return await self._lock.holder()

    def observe(self, poll: Duration = 1.0) -> AsyncIterator[Holder | None]:
        """The leader of now, and again whenever it has changed (None: nobody leads); for ever.

        Asks every `poll` seconds: a lead shorter than that can go unseen.
        """
        poll_s = timeout_of(poll, "poll")
        if not poll_s:
            raise ConfigurationError("poll", poll, "more than 0 seconds")
        return self._observe(poll_s)

    async def _observe(self, poll_s: float) -> AsyncIterator[Holder | None]:
        seen: object = self  # nothing yet
        while True:
            leader = await self.leader()
            token = leader and leader.token
            if token != seen:
                seen = token
                yield leader
            await asyncio.sleep(poll_s)

    async def run(self, lead: Callable[[Lease], Awaitable[R]]) -> R:
        """Campaign, call `lead(lease)`, and campaign again after a loss; ends with what `lead` returns.

        What `lead` raises ends it too, but for the `LeaseLost` of this leadership.
        """
        while True:
            lease = await self.campaign()
            try:
                async with lease:
                    return await _awaited("lead", lead, lead(lease))
            except LeaseLost:
                if lease.state.name != "LOST" or lease.lost.reason == "closed":
                    raise
            finally:
                lease._abandon()  # where its block was not entered
                self._leads.forget(lease)

    async def __aenter__(self) -> Lease:
        lease = await self.campaign()
        try:
            self._entered.push(task_here(), lease, sys._getframe(1))
            return await lease.__aenter__()
        except BaseException:
            self._entered.forget(lease)
            self._leads.forget(lease)
            lease._abandon()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        lease: Lease | None = None
        try:
            lease = self._entered.of(task_here(), sys._getframe(1))
            self._entered.pop(task_here(), sys._getframe(1))
            self._leads.forget(lease)
            await lease.__aexit__(kind, error, trace)
        except BaseException:
            if lease is None:
                lease = self._entered.pop(task_here(), sys._getframe(1))
            self._leads.forget(lease)
            lease._abandon()  # where it had not begun to release
            raise

    def __repr__(self) -> str:
        state = "leading" if self.is_leader else "not leading"
        return f"<Election {self._name!r}: {state}>"


# ---------------------------------------------------------------------- without a lock


_LATER = "its body would run later, when that is over"


async def _awaited(argument: str, function: Callable[..., Any], given: Awaitable[R]) -> R:
    """What a coroutine function gave, once it has run."""
    if not inspect.isawaitable(given):
        raise ConfigurationError(argument, function, "a coroutine function; plain functions belong to holdfast.Client")
    result = await given
    check_result(function, result, asynchronous=True, argument=argument, later=_LATER)
    return result


def _checked(command: tuple[object, ...]) -> tuple[Value, ...]:
    """A command whose arguments can be sent."""
    if not command:
        raise ConfigurationError("command", command, "a command and its arguments")
    name, *arguments = (check_value("command", word) for word in command)
    return name.decode("utf-8", "replace"), *arguments


class Transaction:
    """What a function of `Optimistic` reads and writes through.

    Reads are carried out at once; writes are queued, and carried out together at the end if nothing has changed.
    """

    def __init__(self, client: Client, session: str, keys: tuple[str, ...]) -> None:
        self._client = client
        self._session = session
        self._keys = keys
        self._queued: list[tuple[Value, ...]] = []
        #: What ended its connection, and with that the attempt, even if the function goes on.
        self._ended: RequestFailed | None = None

    async def execute(self, *command: Value) -> Reply:
        """Carry out a command now, as `execute("HGET", key, field)`: int, bytes, None, or a list of these."""
        request_timeout_s = self._client._settings.request_timeout_s
        try:
            return await self._client._driver.run(
                optimistic.read(self._session, self._keys[0], _checked(command), request_timeout_s)
            )
        except RequestFailed as failure:
            failure.maybe_executed = (
                failure.maybe_executed and failure.kind != "broken"
            )  # a write would be asked for by `queue`
            self._ended = failure
            raise self._client._public(failure) from failure

    async def get(self, key: str) -> bytes | None:
        """The value of a key."""
        return cast("bytes | None", await self.execute("GET", key))

    def queue(self, *command: Value) -> None:
        """A command for the end, as `queue("HSET", key, field, value)`."""
        self._queued.append(_checked(command))

    def set(self, key: str, value: Value, ttl: Duration | None = None) -> None:
        """Set a key at the end; `ttl` seconds to live, or for ever."""
        self.queue("SET", key, value, *(() if ttl is None else ("PX", ttl_ms_of(ttl))))

    def delete(self, *keys: str) -> None:
        """Delete keys at the end."""
        if not keys:
            raise ConfigurationError("keys", keys, "at least one key")
        self.queue("DEL", *keys)


class Optimistic:
    """Change keys without a lock: the function decides on what it reads, and is run again when that has changed.

        async def withdraw(tx):
            balance = int(await tx.get("balance") or 0)
            if balance < 10:
                return False
            tx.set("balance", balance - 10)
            return True

        done = await locks.optimistic("balance").run(withdraw)

    Good where conflicts are rare; under contention a lock is faster. The function may run many times: it must do
    nothing else that matters.
    """

    def __init__(self, client: Client, keys: tuple[str, ...], attempts: int) -> None:
        self._client = client
        self._keys = keys
        self._attempts = attempts

    async def run(self, function: Callable[[Transaction], Awaitable[R]]) -> R:
        """Run it until what it read had not changed when its writes were carried out; returns what it returned.

        Raises `OptimisticConflict` after so many attempts, `OutcomeUnknown` when the answer to the write was lost, and
        whatever the function raises (nothing was written then).
        """
        client = self._client
        driver = client._driver
        request_timeout_s = driver.settings.request_timeout_s
        key = self._keys[0]
        again = True
        for attempt in range(self._attempts):
            session = client._new_token("watch")
            transaction = Transaction(client, session, self._keys)
            try:
                try:
                    await driver.run(optimistic.watch(session, self._keys, request_timeout_s))
                    result = await _awaited("function", function, function(transaction))
                    if transaction._ended is not None:
                        raise transaction._ended
                except BaseException as error:
                    await driver.run(optimistic.leave(session, key, request_timeout_s))
                    if transaction._ended is not None and error.__cause__ is transaction._ended:
                        raise transaction._ended from None
                    raise
                done = await driver.run(optimistic.finish(session, key, transaction._queued, request_timeout_s))
            except RequestFailed as failure:
                if again and optimistic.may_begin_anew(failure):
                    again = False
                    continue
                raise client._public(failure) from None
            if done is not optimistic.CONFLICT:
                return result
            await client._run(optimistic.pause(attempt))
        raise OptimisticConflict(self._keys, self._attempts)

    __call__ = run

    def __repr__(self) -> str:
        return f"<Optimistic over {', '.join(self._keys)}>"


async def compare_and_set(
    client: Client, key: str, expected: Value | None, new: Value, ttl: Duration | None, keep_ttl: bool
) -> bool:
    """See `Client.compare_and_set`."""
    if keep_ttl and ttl is not None:
        raise ConfigurationError("keep_ttl", keep_ttl, "not both of ttl and keep_ttl")
    ttl_ms = -1 if keep_ttl else None if ttl is None else ttl_ms_of(ttl)
    if expected is None and keep_ttl:
        ttl_ms = None  # there is none to keep
    return await client._run(
        optimistic.compare_and_set(
            check_name(key, "key"),
            None if expected is None else check_value("expected", expected),
            check_value("new", new),
            ttl_ms,
            client._knows_ifeq,
            client._settings,
        )
    )


async def fenced_set(
    client: Client, key: str, value: Value, fencing_token: int, ttl_ms: int | None, remember_ms: int
) -> None:
    """See `holdfast.fencing.guarded_set`."""
    seen_key = f"{lock_keys(None, check_name(key, 'key')).base}:fenced"
    request_timeout_s = client._settings.request_timeout_s
    seen = await client._run(
        optimistic.fenced_set(
            key, seen_key, fencing_token, check_value("value", value), ttl_ms, remember_ms, request_timeout_s
        )
    )
    if seen is not None:
        raise StaleFencingToken(key, fencing_token, seen)


def locked(client: Client, template: str, skip_if_held: bool, timeout_s: float | None, options: dict[str, Any]) -> Any:
    """See `Client.locked`."""
    check_template(template)
    client.lock("check", **options)

    def decorate(function: F) -> F:
        check_function(function, asynchronous=True)
        name = namer(template, function)

        @functools.wraps(function)
        async def call(*args: Any, **kwargs: Any) -> Any:
            lock = client.lock(name(*args, **kwargs), **options)
            if skip_if_held:
                lease = await lock.try_acquire()
                if lease is None:
                    return None
            else:
                lease = await lock.acquire(timeout_s)
            entries = lease._entries
            try:
                async with lease:
                    result = await function(*args, **kwargs)
                    check_result(function, result, asynchronous=True)
                    return result
            except BaseException:
                lease._undo(entries)  # where its block was not entered, or not left
                raise

        return cast("F", call)

    return decorate

"""Wait, while holding a lock, for something that another holder of it does."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from types import FrameType
from typing import TypeVar, cast

from holdfast._api import hook
from holdfast._api.decorated import check_callable
from holdfast._api.options import Duration, check_count, timeout_of
from holdfast._async.entering import Enterable
from holdfast._async.kernel import wait_turn
from holdfast._async.lease import Lease
from holdfast._async.lock import Lock
from holdfast._core import condition
from holdfast._core.record import LeaseRecord
from holdfast._core.waiting import Grant
from holdfast._runtime.clock import clock
from holdfast.errors import NotHeld

R = TypeVar("R")
_ALL = 1_000_000


class Condition(Enterable[Lease]):
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
        self._session = lock._session
        self._entered = lock._entered
        self._lock = lock
        self._name = name
        self._key = condition.condition_key(lock._keys, name)

    @property
    def lock(self) -> Lock:
        """The lock it belongs to."""
        return self._lock

    def _acquire(self, frame: FrameType) -> Awaitable[Lease]:
        return self._lock._acquire(frame)

    def _lease(self, operation: str) -> Lease:
        lock = self._lock
        lease: Lease | None = self._session.lease_of(lock._owned_as[0])
        if lease is None:
            raise NotHeld(lock.name, operation)
        if lease._record.check_expired(clock()):
            raise lease._ended(operation)
        return lease

    # sync-say: (`LeaseLost`, `NotHeld`, the server's errors, or cancelled) => (`LeaseLost`, `NotHeld`, `AcquireCancelled`, the server's errors)
    # sync: def wait(self, timeout: Duration | None = None, cancel: Cancel | None = None) -> bool:
    async def wait(self, timeout: Duration | None = None) -> bool:
        """Let go of the lock, wait for a notification (`timeout` seconds at most), hold the lock again.

        Returns True when notified, False when the time was over. The lock is held again in both cases, however long
        that takes. When it raises (`LeaseLost`, `NotHeld`, the server's errors, or cancelled), the lock is not
        held any more: its lease is released, and a notification that had come is passed on.
        """
        timeout_s = None if timeout is None else max(timeout_of(timeout) or 0.0, 0.001)
        lease = self._lease("wait()")
        lock, record, driver = self._lock, lease._record, lease._driver
        session = self._session
        token = session.new_token(f"{lock._noted}{session.me()}") + lock._ending
        how = (record.ttl_ms, session.settings, lock._how.sync)
        acquisition = condition.ConditionAcquisition(lock._keys, self._key, record.token, token, *how)
        acquisition.stray_holder = record.stray
        if record.tenure is not None:
            acquisition.block = record.tenure.block
        acquisition.renews = lock._options.renew
        again: LeaseRecord | None = None
        mine = object()
        try:
            driver.leaving[mine] = record  # for one that closes the client meanwhile
            if not driver.schedule.finish(record):
                raise lease._ended("wait()")
            if record.turn is not None:
                record.turn.lost()  # for waiters behind it inside of this client: it is not handed on there
            # sync: got = wait_turn(session, "lock", acquisition, timeout_s, True, cancel)
            got = await wait_turn(session, "lock", acquisition, timeout_s, True)
            assert isinstance(got, Grant)
            again = lock._record(token, got)
            again.report, again.lease, again.home = record.report, record.lease, record.home
            # sync-drop
            for block in lease._bodies or ():
                block.record = again
            # sync-drop
            again.blocks = record.blocks
            lease._record = again
            again.on_loss += record.on_loss  # `lost` may have been asked for just now
            again.on_want = record.on_want
            driver.watch(again)
            if hook.observer is not None:
                hook.observer.granted(again)
            return acquisition.notified
        except NotHeld:
            session.disown(lease)
            record.lose_late()
            raise lease._ended("wait()") from None
        except BaseException:
            if not record.half_released() and again is None:
                raise  # it had not begun: the lease is held as before
            session.disown(lease)
            if again is not None:
                driver.take_back(again)
            driver.spawn_release(record)  # it may never have begun
            driver.spawn(acquisition.give_back())
            raise
        finally:
            driver.leaving.pop(mine, None)

    # sync-say: returns its last value, as `asyncio` does.  What the predicate returns is awaited where it is awaitable. => returns its last value, as `threading` does.
    # sync: def wait_for(self, predicate: Callable[[], R], timeout: Duration | None = None, cancel: Cancel | None = None) -> R:
    async def wait_for(self, predicate: Callable[[], Awaitable[R] | R], timeout: Duration | None = None) -> R:
        """Wait until `predicate()` is true, called with the lock held; returns its last value, as `asyncio` does.

        What the predicate returns is awaited where it is awaitable.
        """
        timeout_s = timeout_of(timeout)
        until = None if timeout_s is None else clock() + timeout_s
        check_callable("predicate", predicate, "asyncio")
        while True:
            # sync-drop
            given = predicate()
            # sync: result = predicate()
            result = cast("R", await given if inspect.isawaitable(given) else given)
            left_s = None if until is None else until - clock()
            if result or (left_s is not None and left_s <= 0):
                return result
            # sync: self.wait(left_s, cancel)
            await self.wait(left_s)

    async def notify(self, n: int = 1) -> int:
        """Let up to `n` waiters on to the lock's queue; returns how many. They hold the lock after the caller."""
        lease = self._lease("notify()")
        count = check_count("n", n, 1, _ALL)
        session, keys, record = self._session, self._lock._keys, lease._record
        number = next(session.sequence)
        moved = await session.run(
            condition.notify(keys, self._key, record.token, number, count, record.ttl_ms, session.settings)
        )
        if moved < 0:
            record.lose("taken")
            raise lease._ended("notify()")
        return moved

    async def notify_all(self) -> int:
        """Let all waiters on to the lock's queue; returns how many."""
        return await self.notify(_ALL)

    def __repr__(self) -> str:
        return f"<Condition {self._name!r} of lock {self._lock.name!r}>"

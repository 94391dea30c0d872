"""The lease: the right to hold something for a time, the object that `acquire` returns; and how its loss is told."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from holdfast._api.acquirable import Asked
from holdfast._api.decorated import check_callable
from holdfast._api.lease import LeaseBase, LossBase
from holdfast._api.leaving import AsyncLeaving, Block, line_of, opening
from holdfast._api.options import Duration, check_bool, timeout_of, ttl_ms_of
from holdfast._async.lifecycle import Session
from holdfast._core.agent.renewals import leave_to_its_time
from holdfast._core.failure import RequestFailed
from holdfast._core.record import LeaseRecord, LeaseState
from holdfast._core.waiting import released
from holdfast._engine.pack import PreparedRequest
from holdfast._front.aio import AioFront

# sync:
from holdfast._front.home import Body, innermost
from holdfast._runtime.clock import clock
from holdfast.errors import ConfigurationError, LeaseLost, LeaseReleased, LeaseSuspect

__all__ = ["Lease", "LeaseState", "Loss", "Wanted"]

E = TypeVar("E", bound=LossBase)

_RELEASED = LeaseState.RELEASED


class Loss(LossBase):
    """Set when a lease is lost; `lease.lost` is one. Can be waited for, like an `asyncio.Event`."""

    __slots__ = ()

    async def wait(self, timeout: Duration | None = None) -> bool:
        """Wait for the loss, `timeout` seconds at most; returns whether it came."""
        came: bool = await self._flag.wait_s(timeout_of(timeout))
        return came


class Wanted(Loss):
    """Set when another client asks for a lease; `lease.wanted` is one. `reason`: who asks, and why."""

    __slots__ = ()

    _set = "wanted"

    @property
    def name(self) -> str:
        """The name of what is wanted."""
        return self._name

    def _news(self, reason: str) -> Any:
        return self


class Lease(LeaseBase):
    """The right to hold something for a time; what `acquire` returns.

    A handle: it may be used and released from another task than the one that acquired it. As a context
    manager it releases at the end of the block, and cancels the block when it is lost: `LeaseLost` then comes out.

        lease = await locks.lock("orders:42").acquire(timeout=5)
        async with lease:
            await write(row, fence=lease.fencing_token)
            lease.ensure_held()

    It does not promise that no other client holds the lock at this moment: a process can be stopped between a look at the
    clock and what it does next. That is what `fencing_token` is for.
    """

    # sync-say: and cancels the block when it is lost: `LeaseLost` then comes out. => which raises `LeaseLost` when it was lost meanwhile.

    __slots__ = (
        "__dict__",  # for what most of them never have
        "__weakref__",
        # sync:
        "_bodies",
        "_driver",
        "_entries",
        "_me",
        "_offset",
        "_owned_as",
        "_record",
        "_release_ask",
        "_session",
        "_where",
    )

    def __init__(self, asked: Asked, record: LeaseRecord, release_ask: PreparedRequest | None) -> None:
        lock = asked.lock
        self._session: Session = lock._session
        self._driver: AioFront = lock._session.driver
        record.home = asked.home
        self._record = record
        #: By what it is found: the names, and the number of its owner.
        self._owned_as, self._me = lock._owned_as, asked.me
        #: One item for each time its owner has acquired it again. Their number changes in one step.
        self._entries: list[None] | None = None
        self._where, self._offset = asked.code, asked.offset
        self._release_ask = release_ask
        # sync-drop
        self._bodies: list[Body] | None = None

    @property
    def lost(self) -> Loss:
        """Set when the lease is lost, at its deadline at the latest; `await lost.wait(timeout)` waits for that."""
        loss: Loss | None = vars(self).get("_lost")
        if loss is None:
            record = self._record
            loss = self._first(Loss)
            record.on_loss += (loss._fire,)
            if record.state is LeaseState.LOST:
                loss._fire(record.reason or "expired")  # told twice is told once
            vars(self)["_lost"] = loss
        return loss

    def _first(self, kind: type[E]) -> E:
        """Make one; of those that ask for it at the same time, all get the first."""
        record = self._record
        made: E = vars(self).setdefault(kind.__name__, kind(record.name, record.home, record.label))
        return made

    def on_lost(self, callback: Callable[[LeaseLost], object]) -> None:
        # sync-say: once when the lease is lost (soon, if it is). What it returns is awaited. => once, in a thread of its
        # sync-say+: own, when the lease is lost (at once if it is).
        # sync-say: It is called by the event loop: [...] handler. A forked => A forked
        """Call `callback(error)` once when the lease is lost (soon, if it is). What it returns is awaited.

        It is called by the event loop: it must not block. What it raises goes to the loop's exception handler.
        A forked child has lost the lease without a call: in the parent it goes on.
        """
        check_callable("callback", callback, "asyncio")
        self.lost._add(callback)

    @property
    def wanted(self) -> Wanted:
        """Set when another client asks for it (`Client.ask`); `reason` says who and why. Waited for like `lost`.

        What follows is yours to decide: finish, and release. It stays set.
        """
        wanted: Wanted | None = vars(self).get("_wanted")
        if wanted is None:
            record = self._record
            wanted = self._first(Wanted)
            record.on_want = wanted._fire
            if record.wanted_by is not None:
                wanted._fire(record.wanted_by)  # told twice is told once
            vars(self)["_wanted"] = wanted
        return wanted

    def on_wanted(self, callback: Callable[[Wanted], object]) -> None:
        """Call `callback(wanted)` once when another client asks for it; otherwise as `on_lost`."""
        check_callable("callback", callback, "asyncio")
        self.wanted._add(callback)

    async def check(self) -> None:
        """Ask the server whether it still holds: one round trip, before what cannot be undone.

            await lease.check()
            await pay(order)

        `ensure_held` goes by this process's clock alone, and does not see a server that has lost its data, or an operator
        who deleted the key. A lease that is renewed is renewed by this, too.

        Raises `LeaseLost` when it had ended, `LeaseReleased` after a release, and the server's errors when it did not
        answer (the lease then lasts as long as it did before). It does not promise that it still holds a moment later:
        that is what `fencing_token` is for.
        """
        if not await self._session.run(self._driver.client.check(self._record)):
            raise self._ended("check()")
        if clock() >= self._record.proved_until:
            raise LeaseSuspect(self._record.name, self._record.label)

    async def extend(self, ttl: Duration) -> None:
        """Make it last `ttl` seconds from now, and renew it for as long from now on. No longer than `max_hold` leaves.

        `ttl` may be less than what is left. Of several calls at once the last one counts; a renewal, or an earlier
        call, that the server executes late does not undo what a later one has set.

        Raises `LeaseLost` when it had ended, `LeaseReleased` after a release, and the server's errors otherwise (the
        lease then lasts as long as it did before). Never adds: idempotent.
        """
        ttl_ms = ttl_ms_of(ttl)
        record, client = self._record, self._driver.client
        if record.check_expired(clock()) or not await self._session.run(client.extend(record, ttl_ms)):
            raise self._ended("extend()")

    async def handle(self) -> str:
        """Hand it to another process: text, of which `Client.adopt` makes a lease there.

        Extends it to its ttl first, since it is not renewed until it is adopted, which has to be within that time. Then
        this object has ended, as after `release()`: a block under it releases nothing. The lock stays held, and the
        fencing token is kept. The text is as good as the lease: a program that has it can release it.

        Only for the lease of a lock, and not over a quorum. Raises `LeaseLost` and `LeaseReleased` when it had ended,
        and the server's errors; then it is still held here.
        """
        if self._record.label != "lock" or self._session.quorum is not None:
            allowed = "the lease of a lock on one server; release it, and acquire it there"
            raise ConfigurationError("lease", self, allowed)
        if self._record.crash_ms:
            allowed = "one without crash_release: it would end with this process; release it, and acquire it there"
            raise ConfigurationError("lease", self, allowed)
        await self.extend(self._record.ttl_ms / 1000)
        return self._detach()

    async def release(self, *, wait: bool | None = None) -> None:
        # sync-say: (it is then repeated in the background until the ttl ends it; the same when it is cancelled). => (it is then repeated in the background until the ttl ends it).
        """Give it back; the next waiter is handed the lock atomically.

        Raises `LeaseLost` when it had ended before, `LeaseReleased` the second time, and the server's errors when
        the release could not be confirmed (it is then repeated in the background until the ttl ends it; the same
        when it is cancelled).

        `wait=False` sends the release and does not wait for the answer (None: as `confirm_release` of the lock says).
        If it was no longer held, `lost` and its callbacks tell; a release without an answer is sent again in the
        background, and `close()` waits for it. What this client asks of the lock next comes after it.
        """
        if wait is not None:
            check_bool(wait, "wait")
        record, driver, session = self._record, self._driver, self._session
        now = clock()
        if self._entries and not record.check_expired(now):
            try:
                self._entries.pop()
                return
            except IndexError:
                pass  # a signal handler or another thread has left the last one
        if record.kept_until > now and not record.check_expired(now):
            await self._keep()
            return
        held = True  # as far as is known
        mine = object()
        try:
            driver.leaving[mine] = record  # for one that closes the client meanwhile
            if not driver.schedule.finish(record, now):
                self._unwatch()
                raise self._ended("release()")
            session.disown(self)
            if record.turn is not None and record.hand_on(now):
                return
            if mine not in driver.leaving:  # in the child of a fork, whose parent may have handed it on
                raise LeaseLost(self.name, "forked", record.label)
            ask, outcome = self._release_ask, None
            if ask is not None:
                if not (ask.confirm if wait is None else wait) and driver.release_later(record, ask):
                    return
                outcome = await driver.ask(driver.home, ask, record.token, clock() + ask.request_timeout_s)
            done = None if outcome is None else released(outcome[0])
            held = await driver.release(record, ask, outcome) if done is None else done
        except RequestFailed as failure:
            raise session.public(failure) from None
        except (LeaseLost, LeaseReleased):
            raise
        except BaseException:
            if record.half_released():
                driver.spawn_release(record)  # it may never have begun
            raise
        finally:
            driver.leaving.pop(mine, None)
            if record.report.detailed and record.state is _RELEASED and held:
                record.report.released()
        if not held:
            raise self._taken()

    async def _keep(self) -> None:
        """Release it when `at_least` is over: by its time. That this may end before the answer comes is no loss."""
        record, session = self._record, self._session
        try:
            self._detach()
            held = await session.run(leave_to_its_time(record, session.settings))
        except (LeaseLost, LeaseReleased):
            raise self._ended("release()") from None
        except BaseException:
            self._driver.spawn(partial(leave_to_its_time, record, session.settings, record.deadline))
            raise
        if not held:
            raise self._taken()

    def _acquired_at(self) -> str:
        code, offset = self._where, self._offset
        # sync-drop
        if code.co_filename == self._record.home.loop.starter:
            return "the start of a task"  # acquire() is itself what the task runs
        return line_of(code, offset)

    async def __aenter__(self) -> Self:
        block = opening(self)
        if block is not None:
            block.append(self)
        # sync-drop
        self._begin_body()
        return self

    async def _leave(self, block: Block, *raised: Any) -> None:
        if self._entries and self._record.alive:
            # An inner block of a reentrant lock. No call is in between, after which a signal handler could raise.
            try:
                # sync-drop
                self._end_body(raised[1])
                del self._entries[-1]
                block[:] = (None,)
                return
            except IndexError:
                pass  # a signal handler or another thread has left the last one
        await self._exit(*raised)
        block[:] = (None,)

    async def _exit(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        record = self._record
        # sync-drop
        try:
            ours = self._end_body(error)
        except BaseException:
            self._abandon()
            raise
        if record.state is _RELEASED:
            return
        if error is None:
            await self.release()
            return
        # sync-drop
        if ours and record.state is LeaseState.LOST:
            self._unwatch()
            if self._driver.exiting:
                await self._record.home.loop.forever()  # a daemon thread, which would print what it ends with
            raise self._ended("async with") from error
        try:
            await self.release()
        except BaseException as failed:
            # What went wrong in the body is what the caller has to see; the give-back goes on by itself.
            if not (isinstance(failed, Exception) or self._driver.exiting):
                raise
        if record.state is LeaseState.LOST:
            self._session.reports.raised(record, error)

    if TYPE_CHECKING:
        __aexit__ = _exit
    else:
        __aexit__ = AsyncLeaving(_leave, _exit)

    # sync-drop
    def _begin_body(self) -> None:
        if self._bodies is None:
            self._bodies = []
        self._bodies.append(self._driver.home.enter(self._record))

    # sync-drop
    def _end_body(self, error: BaseException | None) -> bool:
        """End the block of this task, or else the innermost; as `Body.leave`."""
        if not self._bodies:
            return False
        return innermost(self._bodies, self._driver.task()).leave(error)

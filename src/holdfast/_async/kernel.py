"""Acquiring and releasing, by hand for each API: what runs for every lock, and may be interrupted anywhere.

Laws: whatever comes up between the first request and the return of the lease, what the server may have granted is given
back; nothing is called behind a grant outside of the `try` that sees to that. No decision of the protocol is taken
here.
"""

from __future__ import annotations

import asyncio
import weakref
from asyncio import _get_running_loop, current_task
from collections.abc import Callable, Coroutine
from functools import partial
from types import CodeType
from typing import Any, Generic, TypeVar

from holdfast._api import hook
from holdfast._api.acquirable import AcquirableBase
from holdfast._async.lifecycle import Session
from holdfast._core.effects import Protocol
from holdfast._core.failure import RequestFailed
from holdfast._core.lease_cache import CachedLease
from holdfast._core.plain import PLAIN
from holdfast._core.record import LeaseRecord
from holdfast._core.replicas import NotAcked
from holdfast._core.tenure import MARK, LocalWaiter, TenureLease, is_alone, left
from holdfast._core.tokens import KEPT
from holdfast._core.waiting import Acquisition, Busy, Grant
from holdfast._engine.pack import PreparedRequest
from holdfast._front.aio import AioFront
from holdfast._runtime.clock import clock
from holdfast._runtime.lazily import lazily
from holdfast.errors import AcquireTimeout, AlreadyHeld, ClientClosed, LeaseLost

__all__ = ["Acquirable", "release", "release_later", "wait_turn"]

L = TypeVar("L")
R = TypeVar("R")


class Acquirable(AcquirableBase, Generic[L]):
    """What a lease is acquired of: the part that is by hand."""

    _session: Session
    _lease_class: Any

    async def _acquire(self, timeout_s: float | None, frame: Any, mark: str | None = None) -> L:
        """In one piece: calls cost time on each acquire, and are more places between a grant and its `try`."""
        if hook.observer is not None:
            hook.observer.acquiring(self._name, self._label, timeout_s)
        session = self._session
        driver = session.here
        if driver is None or driver.loop is not _get_running_loop() or driver.closed:
            driver = session.driver
        task = current_task(driver.loop)
        code, offset = frame.f_code, frame.f_lasti
        del frame
        me = session.number_of(task)
        owned_as = self._owned_as if task is not None else ()  # without a task, owners cannot be told apart
        owners = ((owned_as[0], me),) if len(owned_as) == 1 else tuple([(kind, me) for kind in owned_as])
        for owner in owners:
            lease = session.lease_of(owner[0]) if owner in session.owners else None
            if lease is not None and not lease._record.check_expired(clock()):
                if not self._reentrant or lease._record.label == "read lock":  # others read, too
                    raise AlreadyHeld(lease.name, lease._record.label, self._label)
                if lease._entries is None:
                    lease._entries = []  # it was acquired through an object that is not reentrant
                lease._entries += (None,)  # not a call, after which a signal handler could raise
                return lease  # type: ignore[no-any-return]
        kept_as = self._kept_as
        kept = None if kept_as is None else driver.lease_cache.get(kept_as)
        if kept is not None:
            token = f"{driver.client_id}:{me}:{next(session.sequence)}"
            try:
                if kept.take(token, clock()):
                    return self._begin_again(driver, kept, owners, code, offset)
            except BaseException:
                if kept.was_taken(token):
                    driver.spawn(kept.give_up())
                raise
        got: TenureLease | Grant | Busy | None = None
        record: LeaseRecord | None = None
        report = session.reports.begin(self._label, self._name, self._report_level)
        asks = self._asks
        if asks is None:
            asks = self._prepare()
        token = f"{driver.client_id}:{self._mark if mark is None else mark}{me}:{next(session.sequence)}"
        if kept_as is not None and driver.lease_cache.hears(kept_as, driver.listening(kept_as)):
            token += KEPT
        turn: LocalWaiter | None = None
        first, release_ask = asks or (None, None)
        asking = session.asking
        note = self._line_key
        try:
            if note is not None and not is_alone(note, driver.lines) and timeout_s != 0:
                turn = LocalWaiter(token, clock())
                turn.join(driver.lines, note)
                token = turn.token
            asking[token] = code, offset
            if report.detailed:
                driver.queueing[token] = report
            if turn is None or turn.first:
                start = self._ask if turn is None else partial(self._ask_as_owner, turn)
                if driver.introduce_at < 0.0 and timeout_s != 0:
                    start = partial(_introduced, partial(session.introduce, driver, clock()), start)
                got = await driver.acquire(first, start, token, timeout_s, self._ttl_ms)
            else:
                got = await driver.wait_in_line(turn, self._wait_in_line, timeout_s, self._ttl_ms)
            if driver.closed and type(got) is not Busy:
                raise ClientClosed()  # and it is given back below
            if type(got) is Grant:
                if turn is not None and not turn.over:
                    got.turn = turn
                record = self._record(token, got)
                if turn is not None and record.turn is None and not turn.over:
                    driver.spawn(left(turn, self._give_back))  # it holds nothing that can be handed on
                if got.stray or got.more is PLAIN or token[-1] == MARK:
                    release_ask = None  # it is not the usual one
            elif isinstance(got, LeaseRecord):
                record, release_ask = self._under_options(got), None
            if record is not None:
                record.report = report
                if note is not None:
                    note.last = record
                if record.held_since >= driver.introduce_at:
                    session.introduce(driver, record.held_since)
                asking.pop(token, None)  # not in a `finally`: after an exception there, it would not be given back
                # No variable here has the lease, which a kept traceback would keep.
                return self._granted(driver, record, owners, code, offset, release_ask)
        except RequestFailed as failure:
            asking.pop(token, None)
            if isinstance(failure, NotAcked):
                failure.name, failure.label = self._name, self._label
            public = session.public(failure)
            report.failed(public)
            raise public from None
        except BaseException as error:
            # Somewhere before the caller got it: it is given back here or not at all. (Where it was cancelled while it
            # waited for an answer, the protocol has seen to that.)
            if record is not None and driver.finish(record):
                for owner in owners:
                    session.owners.pop(owner, None)
                driver.spawn_release(record)
            if turn is not None:
                if record is None:
                    turn.disclaim()
                driver.spawn(left(turn, self._give_back))
            if not (record and record.turn) and (got is not None or type(error) is not asyncio.CancelledError):
                driver.spawn(self._give_back(token))
            asking.pop(token, None)
            report.failed(error)
            if type(error) is LeaseLost:
                raise LeaseLost(self._name, error.reason, self._label) from None
            raise
        finally:
            if report.detailed:
                driver.queueing.pop(token, None)
        asking.pop(token, None)
        assert isinstance(got, Busy)
        holder = None
        try:
            if got.holder:
                overview = lazily("holdfast._async.overview")  # not at the start: most programs never need it
                holder = await overview.last_holder(session, self._kind, self._name, got.holder, bool(timeout_s))
        finally:
            report.busy(got.waited_s, holder)
        raise AcquireTimeout(self._name, got.waited_s, holder, kind=self._label)

    def _begin_again(
        self,
        driver: AioFront,
        kept: CachedLease,
        owners: tuple[tuple[str, int], ...],
        code: CodeType,
        offset: int,
    ) -> L:
        """The lease, of what this client has kept."""
        record: LeaseRecord | None = None
        report = self._session.reports.begin(self._label, self._name, self._report_level)
        try:
            again = Grant(0, clock())
            again.kept = kept
            record = self._record("", again)
            record.report = report
            return self._granted(driver, record, owners, code, offset, None)
        except BaseException as error:
            if record is not None and driver.finish(record):
                for owner in owners:
                    self._session.owners.pop(owner, None)
                driver.spawn_release(record)
            report.failed(error)
            raise

    def _granted(
        self,
        driver: AioFront,
        record: LeaseRecord,
        owners: tuple[tuple[str, int], ...],
        code: CodeType,
        offset: int,
        release_ask: PreparedRequest | None,
    ) -> L:
        session = self._session
        lease: Any = self._lease_class(session, driver, record, owners, code, offset, release_ask)
        known = weakref.ref(lease)
        for owner in owners:
            session.owners[owner] = known
        if not owners:
            record.lease = known
        if self._options.on_wanted is not None:
            lease.on_wanted(self._options.on_wanted)
        report = record.report
        if report.detailed:
            report.acquired(record)  # before anything can tell of its end
        driver.watch(record)
        if hook.observer is not None:
            hook.observer.granted(record)
        return lease  # type: ignore[no-any-return]


def _introduced(introduce: Callable[[], None], start: Callable[..., Protocol[R]], *how: Any) -> Protocol[R]:
    """Introduce the client before it stands in a queue, so that others can find out who it is."""
    introduce()
    return start(*how)


def release(
    session: Session, driver: AioFront, record: LeaseRecord, ask: PreparedRequest | None
) -> Coroutine[Any, Any, bool]:
    """Release it in the running event loop, which may be another one than that in which it was acquired."""
    if record.turn is not None and record.hand_on(clock()):
        return _handed_on()
    if ask is None or driver is not session.here or driver.closed or driver.loop is not _get_running_loop():
        return session.driver.run(record.release())
    return driver.release(record, ask)


async def _handed_on() -> bool:
    return True


def release_later(session: Session, driver: AioFront, record: LeaseRecord, ask: PreparedRequest) -> bool:
    """Release it without waiting for the answer; False when it has to be waited for."""
    if record.turn is not None and record.hand_on(clock()):
        return True
    if driver is not session.here or driver.closed or driver.loop is not _get_running_loop():
        return False
    return driver.release_later(record, ask)


async def wait_turn(session: Session, name: str, kind: str, acquisition: Acquisition, protocol: Protocol[R]) -> R:
    """Run the waiting for a turn that is no lease: an interruption leaves nothing in the queue."""
    try:
        driver = session.driver
    except BaseException:
        protocol.close()
        raise
    try:
        return await driver.run(protocol)
    except RequestFailed as failure:
        raise session.public(failure) from None

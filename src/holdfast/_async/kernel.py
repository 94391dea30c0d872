"""Acquiring and releasing: what runs for every lock, and may be interrupted anywhere.

Laws: whatever comes up between the first request and the return of the lease, what the server may have granted is given
back; nothing is called behind a grant outside of the `try` that sees to that. No decision of the protocol is taken
here.
"""

from __future__ import annotations

import weakref
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import repeat
from types import CodeType
from typing import Any, Generic, TypeVar

from holdfast._api import hook
from holdfast._api.acquirable import AcquirableBase
from holdfast._async.lifecycle import Session
from holdfast._core.effects import Protocol
from holdfast._core.failure import RequestFailed
from holdfast._core.plain import PLAIN
from holdfast._core.record import LeaseRecord
from holdfast._core.replicas import NotAcked
from holdfast._core.tenure import LocalWaiter, TenureLease, is_alone, left
from holdfast._core.tokens import KEPT, MARK
from holdfast._core.waiting import Acquisition, Busy, Grant
from holdfast._front.aio import AioFront
from holdfast._runtime.clock import clock
from holdfast._runtime.lazily import lazily

# sync: from holdfast.errors import AcquireCancelled, AcquireTimeout, AlreadyHeld, ConfigurationError, HoldfastError, LeaseLost, QueueFull
from holdfast.errors import AcquireTimeout, AlreadyHeld, HoldfastError, LeaseLost, QueueFull

__all__ = ["Acquirable", "wait_turn"]

L = TypeVar("L")
R = TypeVar("R")

#: What is held, and who holds it, by number.
Owners = tuple[tuple[str, int], ...]


class Acquirable(AcquirableBase, Generic[L]):
    """What a lease is acquired of."""

    _session: Session
    _lease_class: Any

    # sync: def _acquire(self, timeout_s: float | None, cancel: Cancel | None, frame: Any, mark: str = "") -> L:
    async def _acquire(self, timeout_s: float | None, frame: Any, mark: str = "") -> L:
        if hook.observer is not None:
            hook.observer.acquiring(self._name, self._label, timeout_s)
        # sync-add: if cancel is not None:
        # sync-add:     _check_cancel(cancel)
        session = self._session
        code, offset, frame = frame.f_code, frame.f_lasti, None
        driver, me = session.driver, session.driver.me()
        owners = tuple(zip(self._owned_as, repeat(me))) if me else ()  # 0: owners cannot be told apart
        if not session.owners.keys().isdisjoint(owners) and (lease := self._held_by(owners)) is not None:
            lease._entries += (None,)  # not a call, after which a signal handler could raise
            return lease  # type: ignore[no-any-return]
        if driver.closed:
            raise driver.closed_error()
        token = f"{driver.client_id}:{mark or self._mark}{self._noted}{me}:{next(session.sequence)}{self._ending}"
        if (key := self._kept_as) is not None:
            token += KEPT if driver.lease_cache.hears(key, driver.listening(key)) else ""
            if (lease := self._begin_again(driver, key, token, owners, code, offset)) is not None:
                return lease
        turn: LocalWaiter | None = None
        record: LeaseRecord | None = None
        got: TenureLease | Grant | Busy | None = None
        report = session.reports.begin(self._label, self._name, self._report_level)
        try:
            if self._asks is None:
                self._prepare()  # from which on it may have a line
            # A signal handler does not wait for others in a thread that has a turn: it has interrupted one of them.
            alone = self._line_key is None or is_alone(self._line_key, driver.lines)
            if not alone and timeout_s != 0 and me not in driver.turning:
                turn = LocalWaiter(token, clock())
                driver.turning.add(me)
                turn.join(driver.lines, self._line_key)
                token = turn.token
                # sync-drop
                driver.undo[token] = partial(self._undo, driver, owners, token, turn, None, False)
            session.asking[token] = code, offset, self
            # sync: got = self._get(driver, token, turn, timeout_s, report, cancel)
            got = await self._get(driver, token, turn, timeout_s, report)
            if not isinstance(got, Busy):
                if type(got) is Grant and turn is not None and not turn.over:
                    got.turn = turn
                record = self._record(token, got)
                record.report = report
                return self._granted(driver, record, owners, code, offset, got, turn)
        except BaseException as error:
            if not isinstance(error, RequestFailed):  # else the protocol has seen to that
                # sync: self._undo(driver, owners, token, turn, record)
                self._undo(driver, owners, token, turn, record, got is None and isinstance(error, driver.Cancelled))
            told = self._told(error, report)
            if told is error:
                raise
            raise told from None
        finally:
            # sync-drop
            driver.undo.pop(token, None)
            session.asking.pop(token, None)
            driver.queueing.pop(token, None)
            if turn is not None:
                driver.turning.discard(me)
        raise await self._given_up(got, report, timeout_s)

    # -- its steps --------------------------------------------------------------------------------

    def _held_by(self, owners: Owners) -> Any:
        """The lease that is held already, where that may be acquired again; None if there is none."""
        for owner in owners:
            held = self._session.owners.get(owner)
            lease = None if held is None else held()
            if lease is not None and not lease._record.check_expired(clock()):
                if not self._reentrant or lease._record.label == "read lock":  # others read, too
                    raise AlreadyHeld(lease.name, lease._record.label, self._label)
                if lease._entries is None:
                    lease._entries = []  # it was acquired through an object that is not reentrant
                return lease
        return None

    def _get(
        self,
        driver: AioFront,
        token: str,
        turn: LocalWaiter | None,
        timeout_s: float | None,
        report: Any,
        # sync-add: cancel: Cancel | None,
    ) -> Awaitable[TenureLease | Grant | Busy]:
        """Ask the server, or wait in line."""
        if driver.closed:  # it looks who asks once it is, and gives back what those get
            raise driver.closed_error()
        if report.detailed:
            driver.queueing[token] = report
        if self._most_waiting == 0:
            timeout_s = 0.0
        if turn is not None and not turn.first:
            # sync: return driver.wait_in_line(turn, self._wait_in_line, timeout_s, self._ttl_ms, cancel)
            return driver.wait_in_line(turn, self._wait_in_line, timeout_s, self._ttl_ms)
        start: Any = self._ask if turn is None else partial(self._ask_as_owner, turn)
        if driver.introduce_at < 0.0 and timeout_s != 0:
            start = partial(_introduced, partial(self._session.introduce, clock()), start)
        first = self._asks[0] if self._asks else None
        # sync: return driver.acquire(first, start, token, timeout_s, self._ttl_ms, cancel)
        return driver.acquire(first, start, token, timeout_s, self._ttl_ms)

    def _told(self, error: BaseException, report: Any) -> BaseException:
        """Return the exception that users see."""
        told = error
        if isinstance(error, NotAcked):
            error.name, error.label = self._name, self._label
        if isinstance(error, RequestFailed):
            told = self._session.public(error)
        elif type(error) is LeaseLost:
            told = LeaseLost(self._name, error.reason, self._label)
        # sync-add: elif isinstance(error, Cancelled):
        # sync-add:     told = AcquireCancelled(self._name, self._label)
        report.failed(told)
        return told

    def _undo(
        self,
        driver: AioFront,
        owners: Owners,
        token: str,
        turn: LocalWaiter | None,
        record: LeaseRecord | None,
        # sync:
        is_undone: bool,
    ) -> None:
        """Give back what did not reach the caller: here or not at all."""
        # Where it was cancelled while it waited for an answer, the protocol has seen to that.
        if record is not None:
            self._take_back(driver, owners, record)
        if turn is not None:
            if record is None:
                turn.disclaim()
            driver.spawn(partial(left, turn, self._give_back))
        # sync: if record is None or record.turn is None:
        if not is_undone and (record is None or record.turn is None):
            driver.spawn(partial(self._give_back, token))

    def _take_back(self, driver: AioFront, owners: Owners, record: LeaseRecord) -> None:
        if driver.take_back(record):
            for owner in owners:
                self._session.owners.pop(owner, None)

    async def _given_up(self, got: Busy, report: Any, timeout_s: float | None) -> AcquireTimeout:
        """The error for a lock that was not granted in time."""
        holder = None
        limit = self._most_waiting
        try:
            if got.holder:
                # Not at the start: most programs never need it.
                overview = lazily("holdfast._async.overview")
                holder = await overview.last_holder(self._session, self._kind, self._name, got.holder, bool(timeout_s))
            if limit is not None and (got.is_full or not limit):
                return QueueFull(self._name, got.waited_s, holder, limit, self._label)
            return AcquireTimeout(self._name, got.waited_s, holder, kind=self._label)
        finally:
            report.busy(got.waited_s, holder, got.is_full or limit == 0)

    # -- the lease --------------------------------------------------------------------------------

    def _begin_again(
        self, driver: AioFront, key: str, token: str, owners: Owners, code: CodeType, offset: int
    ) -> L | None:
        """The lease, of what this client has kept; None where there is nothing, or it was taken just now."""
        kept = driver.lease_cache.get(key)
        if kept is None:
            return None
        record: LeaseRecord | None = None
        report: Any = None
        asking = self._session.asking
        try:
            asking[token] = code, offset, kept
            if driver.closed:  # as in `_acquire`
                raise driver.closed_error()
            if not kept.take(token, clock()):
                return None
            report = self._session.reports.begin(self._label, self._name, self._report_level)
            again = Grant(0, clock())
            again.kept = kept
            record = self._record("", again)
            record.report = report
            return self._granted(driver, record, owners, code, offset)
        except BaseException as error:
            if record is not None:
                self._take_back(driver, owners, record)
            if kept.was_taken(token):
                driver.spawn(kept.give_up())
            if report is not None:
                report.failed(error)
            raise
        finally:
            asking.pop(token, None)

    def _granted(
        self,
        driver: AioFront,
        record: LeaseRecord,
        owners: Owners,
        code: CodeType,
        offset: int,
        got: TenureLease | Grant | None = None,
        turn: LocalWaiter | None = None,
    ) -> L:
        """The lease. No variable of a caller has it until it is returned: a kept traceback would keep it."""
        session = self._session
        if got is not None:
            if self._line_key is not None:
                self._line_key.last = record
            if turn is not None and record.turn is None and not turn.over:
                driver.spawn(left(turn, self._give_back))  # it holds nothing that can be handed on
            if record.held_since >= driver.introduce_at:
                session.introduce(record.held_since)
        release_ask = None
        usual = type(got) is Grant and not got.stray and got.more != PLAIN and record.token[-1] != MARK
        if self._asks and usual and not self._noted:
            release_ask = self._asks[1]
        lease: Any = self._lease_class(session, driver, record, owners, code, offset, release_ask)
        if self._reentrant:
            lease._entries = []
        known = weakref.ref(lease)
        for owner in owners:
            session.owners[owner] = known
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


# sync: def wait_turn(session: Session, name: str, kind: str, acquisition: Acquisition, protocol: Protocol[R], cancel: Cancel | None = None) -> R:
async def wait_turn(session: Session, name: str, kind: str, acquisition: Acquisition, protocol: Protocol[R]) -> R:
    """Run the waiting for a turn that is no lease: an interruption leaves nothing in the queue."""
    driver = session.driver
    try:
        # sync-add: _check_cancel(cancel)
        if driver.closed:
            raise driver.closed_error()
        # sync: return driver.run(protocol, cancel)
        return await driver.run(protocol, acquisition)
    except RequestFailed as failure:
        raise session.public(failure) from None
    # sync-add: except Cancelled:
    # sync-add:     driver.spawn(acquisition.give_back())
    # sync-add:     raise AcquireCancelled(name, kind) from None
    except HoldfastError:
        protocol.close()
        raise  # the protocol has seen to it
    # sync-drop
    except driver.Cancelled:
        raise  # the protocol has seen to it
    except BaseException:
        driver.spawn(acquisition.give_back())
        raise


# sync-add: def _check_cancel(cancel: object) -> None:
# sync-add:     if cancel is not None and not isinstance(cancel, Cancel):
# sync-add:         raise ConfigurationError("cancel", cancel, "a holdfast.Cancel, or None")

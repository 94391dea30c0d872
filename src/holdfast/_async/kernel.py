"""Acquiring and releasing: what runs for every lock, and may be interrupted anywhere.

Laws: whatever comes up between the first request and the return of the lease, what the server may have granted is given
back; nothing is called behind a grant outside of the `try` that sees to that. No decision of the protocol is taken
here.
"""

from __future__ import annotations

# sync:
import sys
from typing import Any, Generic, TypeVar

from holdfast._api import hook
from holdfast._api.acquirable import AcquirableBase, Asked
from holdfast._async.lifecycle import Session
from holdfast._core.failure import RequestFailed
from holdfast._core.record import LeaseRecord
from holdfast._core.replicas import NotAcked
from holdfast._core.tokens import KEPT
from holdfast._core.waiting import Acquisition, Busy, Grant, granted, wait_for
from holdfast._runtime.clock import clock
from holdfast._runtime.lazily import lazily

# sync: from holdfast.errors import AcquireCancelled, AcquireTimeout, ConfigurationError, HoldfastError, LeaseLost, QueueFull
from holdfast.errors import AcquireTimeout, HoldfastError, LeaseLost, QueueFull

L = TypeVar("L")
R = TypeVar("R")


class Acquirable(AcquirableBase, Generic[L]):
    """What a lease is acquired of."""

    _session: Session

    async def _acquire(self, frame: Any, timeout_s: float | None = None, mark: str = "", cancel: Any = None) -> L:
        if hook.observer is not None:
            hook.observer.acquiring(self._name, self._label, timeout_s)
        # sync-add: if cancel is not None:
        # sync-add:     _check_cancel(cancel)
        session = self._session
        # sync-drop
        if type(frame) is list:  # of an `Acquiring`: the frame that enters it, or else the one that awaits us is meant
            frame = frame.pop() if frame else sys._getframe(1)
        asked = Asked()
        asked.code, asked.offset, frame = frame.f_code, frame.f_lasti, None
        driver = session.driver
        home, me = driver.caller()
        for kind in self._owned_as if me else ():  # 0: owners cannot be told apart
            if (kind, me) in session.owners and (lease := self._held_by(me)) is not None:
                lease._entries += (None,)  # not a call, after which a signal handler could raise
                return lease  # type: ignore[no-any-return]
        if driver.closed:
            raise driver.closed_error()
        asked.client, asked.home, asked.me = driver.client, home, me  # first: a child of a fork finds its parent's
        token = f"{asked.client.client_id}:{mark or self._mark}{self._noted}{me}:{next(session.sequence)}{self._ending}"
        if (key := self._kept_as) is not None and driver.lease_cache.hears(key, driver.client.listening(key)):
            token += KEPT
        asked.lock, asked.token, asked.timeout_s, asked.cancel = self, token, timeout_s, cancel
        asked.report = session.reports.begin(self._label, self._name, self._report_level)
        got: LeaseRecord | Grant | Busy | None = None
        try:
            if key is None or (got := self._take_kept(asked)) is None:
                first, outcome = self._start(asked), None
                if first is None and asked.turn is not None and (got := await driver.take_turn(asked)) is None:
                    first = self._passing(asked)
                if first is not None:
                    outcome = await driver.ask(home, first, asked.token, asked.until, asked.standing)
                    if outcome is not None and outcome[1] is None:
                        got = granted(outcome[0], asked.asked_at, clock(), self._ttl_ms)
                        if got is None and asked.standing is not None:
                            got = asked.standing.take(self._ttl_ms, clock())
                        if driver.troubles and got is not None:
                            driver.passed()
                if got is None:
                    got = await self._go_on(asked, outcome)
            if not isinstance(got, Busy):
                return self._granted(asked, got)  # type: ignore[no-any-return]
        except BaseException as error:
            if not isinstance(error, RequestFailed):  # else the protocol has seen to that
                # sync: asked.undo()
                asked.undo(asked.runs and got is None and isinstance(error, driver.Cancelled))
            told: Any = self._told(error, asked)
            if told is error:
                raise
            raise told from None
        finally:
            told = None  # whose traceback has this frame, and those that called it
            try:
                self._asks_no_more(asked)
            except BaseException:
                self._asks_no_more(asked)  # all of it: a signal handler has raised behind a part
                raise
        raise await self._given_up(got, asked.report, timeout_s)

    def _told(self, error: BaseException, asked: Asked) -> BaseException:
        """Return the exception that users see."""
        told = error
        if isinstance(error, NotAcked):
            error.name, error.label = self._name, self._label
        if isinstance(error, RequestFailed):
            told = self._session.public(error) if asked.is_ours else LeaseLost(self._name, "forked", self._label)
        elif type(error) is LeaseLost:
            told = LeaseLost(self._name, error.reason, self._label)
        # sync-add: elif isinstance(error, Cancelled):
        # sync-add:     told = AcquireCancelled(self._name, self._label)
        asked.report.failed(told)
        return told

    async def _given_up(self, got: Busy, report: Any, timeout_s: float | None) -> AcquireTimeout:
        """The error for a lock that was not granted in time."""
        holder, limit = None, self._how.most_waiting
        try:
            if got.holder:
                last_holder = lazily("holdfast._async.overview").last_holder  # not at the start: most never need it
                holder = await last_holder(self._session, self._kind, self._name, got.holder, bool(timeout_s))
            if limit is not None and (got.is_full or not limit):
                return QueueFull(self._name, got.waited_s, holder, limit, self._label)
            return AcquireTimeout(self._name, got.waited_s, holder, kind=self._label)
        finally:
            report.busy(got.waited_s, holder, got.is_full or limit == 0)


# sync: def wait_turn(session: Session, kind: str, acquisition: Acquisition, timeout_s: float | None, listening: bool, cancel: Cancel | None) -> Grant | Busy:
async def wait_turn(
    session: Session, kind: str, acquisition: Acquisition, timeout_s: float | None, listening: bool
) -> Grant | Busy:
    """Wait for a turn that is no lease: an interruption leaves nothing in the queue."""
    driver, protocol = session.driver, wait_for(acquisition, timeout_s, listening=listening)
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
    # sync-add:     raise AcquireCancelled(acquisition.name, kind) from None
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

"""Acquiring and releasing: what runs for every lock, and may be interrupted anywhere.

Laws: whatever comes up between the first request and the return of the lease, what the server may have granted is given
back; nothing is called behind a grant outside of the `try` that sees to that. No decision of the protocol is taken
here.
"""

from __future__ import annotations

# sync:
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Generic, TypeVar

from holdfast._api import hook
from holdfast._api.acquirable import AcquirableBase, Asked
from holdfast._async.lifecycle import Session
from holdfast._core.agent.agent import Outcome, Sent
from holdfast._core.effects import Protocol
from holdfast._core.failure import RequestFailed
from holdfast._core.record import LeaseRecord
from holdfast._core.replicas import NotAcked
from holdfast._core.tenure import SOON_S, LocalWaiter, is_alone
from holdfast._core.tokens import KEPT
from holdfast._core.waiting import Acquisition, Busy, Grant, granted, wait_for, within
from holdfast._engine.pack import PreparedRequest
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
        asked.client = driver.client  # first: a child of a fork amid this goes on with what its parent asks for
        token = f"{asked.client.client_id}:{mark or self._mark}{self._noted}{me}:{next(session.sequence)}{self._ending}"
        if (key := self._kept_as) is not None and driver.lease_cache.hears(key, driver.client.listening(key)):
            token += KEPT
        asked.lock, asked.token, asked.home, asked.me = self, token, home, me
        asked.timeout_s, asked.cancel = timeout_s, cancel
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
                            got = asked.standing.take(asked.asked_at, self._ttl_ms, clock())
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
            session.asking.pop(asked.token, None)
            if driver.standing or driver.queueing:
                driver.standing.pop(asked.token, None)
                driver.queueing.pop(asked.token, None)
            if asked.turn is not None:
                driver.turning.discard(me)
        raise await self._given_up(got, asked.report, timeout_s)

    # -- its steps --------------------------------------------------------------------------------

    def _start(self, asked: Asked) -> PreparedRequest | None:
        """Stand in line, where there is one; returns the first request, where the caller sends that by itself."""
        session, driver = self._session, self._session.driver
        # A signal handler does not wait for others in a thread that has a turn: it has interrupted one of them.
        alone = self._line_key is None or is_alone(self._line_key, driver.lines)
        if not alone and asked.timeout_s != 0 and asked.me not in driver.turning:
            turn = asked.turn = LocalWaiter(asked.token, clock())
            driver.turning.add(asked.me)
            turn.join(driver.lines, self._line_key)
            asked.token = turn.token
            if asked.report.detailed and not turn.first:
                asked.report.queued()
        session.asking[asked.token] = asked
        if driver.closed:  # it looks who asks once it is, and gives back what those get
            raise driver.closed_error()
        if asked.turn is not None and not asked.turn.first:
            return None  # it waits for its turn
        if self._how.most_waiting == 0:
            asked.timeout_s = 0.0
        if not self._asks or asked.cancel is not None:
            return None
        first = self._asks[0]
        asked.behind = driver.releasing.latest.get(first.key)
        if first.key in driver.contention:
            if not self._may_stand(asked, asked.timeout_s):
                return None
            driver.contention.expects(first.key)
        first = first if asked.standing is None else self._asks[2]
        patience_s = first.request_timeout_s
        if asked.timeout_s is not None:
            patience_s = within(patience_s, asked.timeout_s or session.settings.try_limit_s)
        asked.asked_at = clock()
        asked.until = asked.asked_at + patience_s
        if asked.standing is not None:
            asked.standing.until = asked.asked_at + SOON_S
        return first

    def _go_on(self, asked: Asked, outcome: Outcome | None) -> Awaitable[LeaseRecord | Grant | Busy]:
        """Have the engine do the rest, or all, of it; or wait in line. `outcome`: what came of the first request."""
        driver, report, turn = self._session.driver, asked.report, asked.turn
        self._stay(asked)
        # A first request that may have been granted, or has queued, is in doubt until the engine has begun with that.
        asked.runs = outcome is None or (asked.standing is None and outcome[1] is None and outcome[0][0] != 1)
        if outcome is None and turn is not None and not turn.first:
            return driver.wait_in_line(asked)
        start: Any = self._ask if turn is None else partial(self._ask_as_owner, turn)
        if outcome is not None and turn is not None and asked.timeout_s is not None:
            asked.timeout_s -= asked.asked_at - turn.arrived_at  # which it has waited in its line
        if asked.standing is not None and outcome is not None:  # else nothing was sent
            start = partial(start, queued=True)
        if report.detailed:
            driver.queueing[asked.token] = report
        if driver.introduce_at < 0.0 and asked.timeout_s != 0:
            start = partial(_introduced, partial(self._session.introduce, clock()), start)
        sent = None if outcome is None else Sent(asked.asked_at, asked.behind, outcome)
        return driver.acquire(asked, self._asks[0] if self._asks else None, start, sent)

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
                # Not at the start: most programs never need it.
                overview = lazily("holdfast._async.overview")
                holder = await overview.last_holder(self._session, self._kind, self._name, got.holder, bool(timeout_s))
            if limit is not None and (got.is_full or not limit):
                return QueueFull(self._name, got.waited_s, holder, limit, self._label)
            return AcquireTimeout(self._name, got.waited_s, holder, kind=self._label)
        finally:
            report.busy(got.waited_s, holder, got.is_full or limit == 0)


def _introduced(introduce: Callable[[], None], start: Callable[..., Protocol[R]], *how: Any) -> Protocol[R]:
    """Introduce the client before it stands in a queue, so that others can find out who it is."""
    introduce()
    return start(*how)


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

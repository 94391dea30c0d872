"""Elections: of all who campaign one leads, until it resigns or its lease ends."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast._api.decorated import check_callable
from holdfast._api.lease_stack import Leads, LeaseStack
from holdfast._api.options import Duration, Options, timeout_of
from holdfast._async.decorators import awaited
from holdfast._async.entering import Enterable
from holdfast._async.lease import Lease, LeaseState
from holdfast._async.lifecycle import Session
from holdfast._async.lock import Lock
from holdfast._runtime.clock import clock
from holdfast.errors import ConfigurationError, LeaseLost, ServerUnreachable

if TYPE_CHECKING:
    from holdfast._api.holder import Holder, Waiting

R = TypeVar("R")


def _is_over(lease: Lease) -> bool:
    return lease._record.check_expired(clock())


class _Leadership(Lock):
    _label = "election"
    _kind = "election"
    _report_level = 20  # INFO: to lead is news


class Election(Enterable[Lease]):
    # sync-say: A body that leads is cancelled [...] out of the block. => A thread cannot be ended from outside: a body that
    # sync-say+: leads has to look at `lease.lost` or `lease.ensure_held()`; the end of the block raises `LeaseLost` when
    # sync-say+: the lead was lost.
    """Of all who campaign one leads, until it resigns or its lease ends. Made by `Client.election`.

        election = locks.election("scheduler")
        await election.run(lead)                # lead(lease) whenever elected, until it returns

        async with election as lease:           # waits to be elected, resigns at the end
            ...

    Leadership is a lease with a fencing token. A body that leads is cancelled when the lead is lost, and `LeaseLost`
    comes out of the block.
    """

    def __init__(self, session: Session, name: str, options: Options) -> None:
        self._session = session
        self._name = name
        self._lock = _Leadership(session, name, options)
        self._leads: Leads[Any, Lease] = Leads(session.has_ended, _is_over)
        self._entered = LeaseStack()

    @property
    def name(self) -> str:
        """The election's name."""
        return self._name

    @property
    def lease(self) -> Lease | None:
        """The lease by which the calling task was elected; for others that of this object's leader, if any."""
        return self._leads.of(self._session.me())

    @property
    def is_leader(self) -> bool:
        """Whether `lease` is held, as far as is known now. Sends nothing."""
        lease = self.lease
        return lease is not None and not lease._record.check_expired(clock())

    async def campaign(
        self,
        timeout: Duration | None = None,
        # sync-add: cancel: Cancel | None = None,
        *,
        on_wait: Callable[[Waiting], object] | None = None,
    ) -> Lease:
        """Wait to be elected, `timeout` seconds at most; returns the lease. `on_wait` and errors as `Lock.acquire`."""
        lock = self._lock if on_wait is None else self._lock._telling(on_wait)
        lease: Lease | None = None
        try:
            # sync: lease = lock._acquire(sys._getframe(1), timeout_of(timeout), "", cancel)
            lease = await lock._acquire(sys._getframe(1), timeout_of(timeout))
            self._leads.won(self._session.me(), lease)
            return lease
        except BaseException:
            if lease is not None:
                self._not_left(lease)
            raise

    async def resign(self) -> None:
        """Give up the lead; the next one in the queue is handed it atomically. Nothing when not leading.

        A task that campaigned ends its own lead only; any other one ends the lead of this object.
        """
        lease = self.lease
        if lease is not None:
            try:
                self._leads.forget(lease)
                if not lease._record.check_expired(clock()):
                    await lease.release()
            except BaseException:
                lease._abandon()  # no other reference is left
                raise

    async def leader(self) -> Holder | None:
        """Return the leader, since when, where; None when there is no leader. Only good for reporting."""
        return await self._lock.holder()

    def observe(self, poll: Duration = 1.0) -> AsyncIterator[Holder | None]:
        """The leader of now, and again whenever it has changed (None: no leader); never ends by itself.

        Asks every `poll` seconds: a lead shorter than that can go unseen.
        """
        poll_s = timeout_of(poll, "poll")
        if not poll_s:
            raise ConfigurationError("poll", poll, "more than 0 seconds")
        return self._observe(poll_s)

    async def _observe(self, poll_s: float) -> AsyncIterator[Holder | None]:
        seen: object = self  # nothing yet
        pause = self._session.driver.home.flag()
        while True:
            leader = await self.leader()
            token = leader and leader.token
            if token != seen:
                seen = token
                yield leader
            await pause.wait_s(poll_s)

    # sync: def run(self, lead: Callable[[Lease], R], cancel: Cancel | None = None) -> R:
    async def run(self, lead: Callable[[Lease], Awaitable[R]]) -> R:
        """Campaign, call `lead(lease)`, and campaign again after a loss; ends with what `lead` returns.

        What `lead` raises ends it too, but for the `LeaseLost` of this leadership. While the server cannot be reached,
        it goes on campaigning; the log tells.
        """
        check_callable("lead", lead)
        me = self._session.me()
        while True:
            before = self._leads.own(me)
            lease: Lease | None = None
            try:
                # sync: lease = self.campaign(cancel=cancel)
                lease = await self.campaign()
                async with lease:
                    return await awaited("lead", lead, lead(lease))
            except LeaseLost:
                if lease is None or lease.state is not LeaseState.LOST or lease.lost.reason == "closed":
                    raise
            except ServerUnreachable:
                if lease is not None:
                    raise  # by `lead`
            finally:
                # Not released by its block when an exception has come before that.
                won = self._leads.own(me) if lease is None else lease
                if won is not None and won is not before:
                    won._abandon()
                    self._leads.forget(won)

    def _acquire(self, frame: FrameType) -> Awaitable[Lease]:
        return self._lock._acquire(frame)

    def __repr__(self) -> str:
        state = "leading" if self.is_leader else "not leading"
        return f"<Election {self._name!r}: {state}>"

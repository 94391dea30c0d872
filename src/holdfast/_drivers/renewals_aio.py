"""Renewals with asyncio: those that are due together are asked for together.

Law: a renewal that hangs, or goes on after its first answer, holds up no other one.

Theory: each renewal's protocol is started up to its first request. The requests of many leases leave as one; what
goes on after its answer, and what cannot be asked for with others, does so in a task of its own.
"""

from __future__ import annotations

import asyncio
import typing
from collections.abc import Awaitable, Iterable
from typing import Any

from holdfast._core.batch import batches
from holdfast._core.effects import Answer, Call, Effect, Protocol
from holdfast._core.failure import RequestFailed
from holdfast._core.record import LeaseRecord
from holdfast._core.schedule import Schedule
from holdfast._drivers.background_aio import Background
from holdfast._drivers.observing import Troubles
from holdfast._transport.clock import clock
from holdfast.errors import quoted

__all__ = ["Renewals"]


class Driver(typing.Protocol):
    """What it renews for."""

    loop: asyncio.AbstractEventLoop
    schedule: Schedule
    background: Background
    can_ask: bool
    random: Any
    troubles: Troubles

    def call(self, call: Call) -> Awaitable[Any]: ...
    def _rearm(self) -> None: ...
    def spawn_release(self, hold: LeaseRecord) -> None: ...
    async def run(self, protocol: Protocol[Any], begun: tuple[Effect[Any], None]) -> Any: ...


class _Renewal:
    """One lease's: for how many ms, by which protocol, which waits for that effect; asked for since when."""

    __slots__ = ("driver", "effect", "hold", "protocol", "sent_at", "ttl_ms")

    def __init__(self, driver: Driver, hold: LeaseRecord, ttl_ms: int, now: float) -> None:
        self.driver = driver
        self.hold = hold
        self.ttl_ms = ttl_ms
        self.sent_at = now
        self.protocol = hold.renew(ttl_ms)
        self.effect: Effect[Any] | None = None

    def step(self, answer: Answer = None) -> bool:
        """Take the protocol to its next effect, with the answer to its last one; False when it has ended."""
        try:
            if isinstance(answer, RequestFailed):
                self.effect = self.protocol.throw(answer)
            else:
                self.effect = self.protocol.send(answer)
            return True
        except StopIteration as end:
            self._held(end.value)
        except Exception as error:
            self._failed(error)
        return False

    async def go_on(self) -> None:
        """Drive one renewal by itself, from the effect that it waits for."""
        try:
            assert self.effect is not None
            held = await self.driver.run(self.protocol, (self.effect, None))
        except Exception as error:
            self._failed(error)
        else:
            self._held(held)
        finally:
            self.driver._rearm()

    def _held(self, held: int) -> None:
        driver, hold = self.driver, self.hold
        kept = driver.schedule.answered(hold, held, self.ttl_ms, self.sent_at, clock(), driver.random())
        if held and not kept and hold.is_left_over:
            driver.spawn_release(hold)  # extended, but too late to be trusted

    def _failed(self, error: Exception) -> None:
        driver = self.driver
        driver.schedule.failed(self.hold, clock(), driver.random(), self.sent_at)
        if not isinstance(error, RequestFailed):  # a bug: shown by the event loop, and no reason to renew no more
            context = {"message": f"the renewal of {quoted(self.hold.name)} has failed", "exception": error}
            driver.loop.call_exception_handler(context)


class Renewals:
    """Starts what is due, and notes what came of it."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def start(self, holds: Iterable[LeaseRecord], now: float) -> None:
        """Start renewing what is due; does not wait."""
        driver = self._driver
        # What is due has something left to extend, so that the ttl to ask for is known.
        renewals = [_Renewal(driver, hold, hold.renewal_ttl_ms(now) or hold.ttl_ms, now) for hold in holds]
        renewals = [renewal for renewal in renewals if renewal.step()]
        effects: Any = [renewal.effect for renewal in renewals]
        for batch in batches(effects, not driver.can_ask):
            members = [renewals[position] for position in batch.members]
            if len(members) > 1:
                driver.background.start(self._together(batch.call, members, batch.answers))
            else:
                driver.background.start(members[0].go_on())
        for renewal in renewals:
            if not isinstance(renewal.effect, Call):
                driver.background.start(renewal.go_on())

    async def _together(self, call: Call, members: list[_Renewal], answers_of: Any) -> None:
        driver, sent_at = self._driver, clock()
        try:
            reply = await driver.call(call)
        except RequestFailed as failure:
            driver.troubles.saw(failure)
            reply = failure
        for renewal, answer in zip(members, answers_of(reply), strict=True):
            renewal.sent_at = sent_at
            if answer is None or renewal.step(answer):
                driver.background.start(renewal.go_on())
        driver._rearm()

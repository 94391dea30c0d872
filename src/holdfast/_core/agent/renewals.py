"""Renewals: those that are due together are asked for together.

Laws: a renewal that hangs, or goes on after its first answer, holds up no other one; what an answer that came too late
has extended is released again.

Theory: the first requests of many leases leave as one. What goes on after its answer, and what cannot be asked for with
others, does so in a task of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from holdfast._core.agent.runner import Runner
from holdfast._core.batch import Batch, batches
from holdfast._core.effects import Answer, Call, Effect, Protocol, driver, rest_of
from holdfast._core.failure import RequestFailed
from holdfast._core.fast_path import begin
from holdfast._core.record import LeaseRecord
from holdfast._core.retry import Retry
from holdfast._core.schedule import Schedule
from holdfast._core.settings import Settings

#: A release before the end of `at_least` leaves it that long, s: the answer to that should come before its end.
_CUT_MIN_S = 1.0


class _Renewal:
    """One lease's: for how many ms, asked for since when, what it waits for, and its protocol, if that has begun.

    Nearly all are one request. A client with 10,000 leases has hundreds of them under way at a time, and the coroutines
    of as many protocols would have the garbage collector go through everything again and again.
    """

    __slots__ = ("effect", "protocol", "record", "sent_at", "ttl_ms")

    def __init__(self, record: LeaseRecord, ttl_ms: int, now: float) -> None:
        self.record = record
        self.ttl_ms = ttl_ms
        self.sent_at = now
        self.effect: Effect[Any] | None = record.usual_renewal(ttl_ms)
        self.protocol: Protocol[int] | None = None


class Renewals:
    """Renews what `schedule` says is due. `moves`: keys of one request have to share a slot."""

    def __init__(self, runner: Runner, schedule: Schedule, rearm: Callable[[], None], *, moves: bool) -> None:
        self._runner = runner
        self._schedule = schedule
        self._rearm = rearm
        self._moves = moves

    def start(self, records: Iterable[LeaseRecord], now: float) -> None:
        """Begin what is due; does not wait."""
        driver.set(self._runner)  # no protocol calls this
        # What is due has something left to extend, so that the ttl to ask for is known.
        renewals = [_Renewal(record, record.renewal_ttl_ms(now) or record.ttl_ms, now) for record in records]
        renewals = [renewal for renewal in renewals if renewal.effect is not None or self._step(renewal)]
        effects: Any = [renewal.effect for renewal in renewals]
        for batch in batches(effects, self._moves):
            members = [renewals[position] for position in batch.members]
            self._runner.spawn(self._together(batch, members), f"renew {members[0].record.name}")
        for renewal in renewals:
            if not isinstance(renewal.effect, Call):
                self._go_on(renewal)

    def _step(self, renewal: _Renewal, answer: Answer = None) -> bool:
        """Take it to its next effect, with the answer to its last one; False when it has ended."""
        protocol = renewal.protocol
        try:
            if protocol is None:
                if type(answer) is int and answer > 0:
                    self._answered(renewal, answer)
                    return False
                protocol = renewal.protocol = renewal.record.renew(renewal.ttl_ms)
                asked, renewal.effect = renewal.effect, begin(protocol, renewal.sent_at)
                if asked is None or type(renewal.effect) is not Call:
                    return True
            if isinstance(answer, RequestFailed):
                renewal.effect = protocol.throw(answer)
            else:
                renewal.effect = protocol.send(answer)
            return True
        except StopIteration as end:
            self._answered(renewal, end.value)
        except RequestFailed:
            self._failed(renewal)
        except Exception as error:  # a bug is shown, and no reason to renew no more
            self._failed(renewal)
            self._runner.spawn(_shown(error), f"renew {renewal.record.name}")
        return False

    async def _together(self, batch: Batch, members: list[_Renewal]) -> None:
        sent_at = self._runner.now()
        for renewal in members:
            renewal.sent_at = sent_at
        try:
            reply = await batch.call
        except RequestFailed as failure:
            reply = failure
        for renewal, answer in zip(members, batch.answers(reply), strict=True):
            if answer is None or self._step(renewal, answer):
                self._go_on(renewal)
        self._rearm()

    def _go_on(self, renewal: _Renewal) -> None:
        self._runner.spawn(self._alone(renewal), f"renew {renewal.record.name}")

    async def _alone(self, renewal: _Renewal) -> None:
        """Drive one renewal by itself, from the effect that it waits for."""
        protocol, effect = renewal.protocol, renewal.effect
        try:
            if protocol is None or effect is None:
                held = await renewal.record.renew(renewal.ttl_ms)
            else:
                held = await rest_of(protocol, effect)
        except RequestFailed:
            self._failed(renewal)
        except BaseException:
            self._failed(renewal)  # a bug is shown, and no reason to renew no more
            raise
        else:
            self._answered(renewal, held)
        finally:
            self._rearm()

    def _answered(self, renewal: _Renewal, held: int) -> None:
        record, now, jitter = renewal.record, self._runner.now(), self._runner.random()
        good = self._schedule.answered(record, held, renewal.ttl_ms, renewal.sent_at, now, jitter)
        if held and not good and record.is_left_over:
            self._runner.spawn(quietly(record), "release what came too late")

    def _failed(self, renewal: _Renewal) -> None:
        self._schedule.failed(renewal.record, self._runner.now(), self._runner.random(), renewal.sent_at)


async def _shown(error: Exception) -> None:
    raise error


async def quietly(record: LeaseRecord) -> None:
    """Release it in the background; trouble is left to the ttl."""
    try:
        await record.release()
    except RequestFailed:
        pass


async def leave_to_its_time(record: LeaseRecord, settings: Settings, until: float = 0.0) -> bool:
    """Cut what was released before the end of `at_least` to the rest of that; tried at least once, and until then."""
    retry = Retry(settings, until=until)
    record.max_until = None  # that was for its holder
    while True:
        now = driver.get().now()
        order = record.extending(int(max(_CUT_MIN_S, record.kept_until - now) * 1000), now)
        try:
            return await record.or_why(order.asks_ms, order) > 0
        except RequestFailed as failure:
            if not await retry.again(failure):
                raise

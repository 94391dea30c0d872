"""Renewals: those that are due together are asked for together.

Laws: a renewal that hangs, or goes on after its first answer, holds up no other one; what an answer that came too late
has extended is released again.

Theory: each renewal's protocol is started up to its first request. The requests of many leases leave as one. What goes
on after its answer, and what cannot be asked for with others, does so in a task of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import Any

from holdfast._core.agent.runner import Runner
from holdfast._core.batch import Batch, batches
from holdfast._core.effects import Answer, Call, Effect, Now, Protocol
from holdfast._core.failure import RequestFailed
from holdfast._core.record import LeaseRecord
from holdfast._core.schedule import Schedule

__all__ = ["Renewals"]


class _Rest(Effect[int]):
    """The rest of a protocol that was begun, from the effect that it waits for."""

    __slots__ = ("_effect", "_protocol")

    def __init__(self, protocol: Protocol[int], effect: Effect[Any]) -> None:
        self._protocol = protocol
        self._effect = effect

    def __await__(self) -> Generator[Effect[Any], Any, int]:
        protocol, effect = self._protocol, self._effect
        try:
            while True:
                try:
                    value = yield effect
                except BaseException as raised:
                    effect = protocol.throw(raised)
                else:
                    effect = protocol.send(value)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


class _Renewal:
    """One lease's: for how many ms, by which protocol, which waits for that effect; asked for since when."""

    __slots__ = ("effect", "record", "protocol", "sent_at", "ttl_ms")

    def __init__(self, record: LeaseRecord, ttl_ms: int, now: float) -> None:
        self.record = record
        self.ttl_ms = ttl_ms
        self.sent_at = now
        self.protocol = record.renew(ttl_ms)
        self.effect: Effect[Any] | None = None


class Renewals:
    """Renews what `schedule` says is due. `moves`: keys of one request have to share a slot."""

    def __init__(self, runner: Runner, schedule: Schedule, rearm: Callable[[], None], *, moves: bool) -> None:
        self._runner = runner
        self._schedule = schedule
        self._rearm = rearm
        self._moves = moves

    def start(self, records: Iterable[LeaseRecord], now: float) -> None:
        """Begin what is due; does not wait."""
        # What is due has something left to extend, so that the ttl to ask for is known.
        renewals = [_Renewal(record, record.renewal_ttl_ms(now) or record.ttl_ms, now) for record in records]
        renewals = [renewal for renewal in renewals if self._step(renewal)]
        effects: Any = [renewal.effect for renewal in renewals]
        for batch in batches(effects, self._moves):
            members = [renewals[position] for position in batch.members]
            if len(members) > 1:
                self._runner.spawn(self._together(batch, members), "renew many")
            else:
                self._go_on(members[0])
        for renewal in renewals:
            if not isinstance(renewal.effect, Call):
                self._go_on(renewal)

    def _step(self, renewal: _Renewal, answer: Answer = None) -> bool:
        """Take the protocol to its next effect, with the answer to its last one; False when it has ended."""
        try:
            if isinstance(answer, RequestFailed):
                renewal.effect = renewal.protocol.throw(answer)
            else:
                renewal.effect = renewal.protocol.send(answer)
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
        sent_at = await Now()
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
        assert renewal.effect is not None
        try:
            held = await _Rest(renewal.protocol, renewal.effect)
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

"""Renewals: those that are due together are asked for together.

Laws: a renewal that hangs, or goes on after its first answer, holds up no other one; each lease gets the answer that
its own request would have got, and what went wrong with one is none of the others' business; what one request does on
the server is bounded; what an answer that came too late has extended is released again.

Theory: a renewal's first effect is nearly always a `Call` of one of four scripts. `batches` makes one call of
`renew_many.lua` out of those that one server can carry out together: in a Cluster of one slot, and with equal demands
on replicas. Its answers are handed to the protocols as if each had asked by itself. Where there is none (the server has
refused the request as a whole, or one lease of it), the lease is asked for alone, and what comes of that counts. What
goes on after its answer, and what cannot be asked for with others, does so in a task of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from holdfast._core.agent.runner import Runner
from holdfast._core.effects import Answer, Call, Effect, Protocol, Reply, driver, rest_of
from holdfast._core.failure import RequestFailed
from holdfast._core.fast_path import begin
from holdfast._core.keys import slot_of
from holdfast._core.kinds import KINDS
from holdfast._core.record import LeaseRecord
from holdfast._core.retry import Retry
from holdfast._core.schedule import Schedule
from holdfast._core.settings import Settings

#: A release before the end of `at_least` leaves it that long, s: the answer to that should come before its end.
_CUT_MIN_S = 1.0
#: Keys of one request: 60 locks have as many, which take a server about half a millisecond.
_KEYS_MAX = 120
#: A lease with more keys is asked for alone.
_KEYS_MAX_OF_ONE = 40
_SCRIPTS = frozenset({"crash_renew", *(kind.extend for kind in KINDS if kind.extend)})


class Batch(NamedTuple):
    """A request, and the leases that it is for: by their positions in what `batches` was given."""

    call: Call
    members: list[int]

    def answers(self, reply: Reply | RequestFailed) -> list[Answer]:
        """The answer for each of `members`; None: it has to be asked for alone."""
        count = len(self.members)
        if count == 1:
            return [reply]
        if isinstance(reply, RequestFailed):
            if not reply.kind.islower():  # an error of the server: one lease may be the cause
                return [None] * count
            return [reply.again(maybe_executed=reply.maybe_executed) for _ in self.members]
        told, *acked = (reply,) if self.call.sync is None else reply
        if len(told) != count:
            return [None] * count
        if acked:
            return [None if answer < 0 else (answer, *acked) for answer in told]
        return [None if answer < 0 else answer for answer in told]


def batches(effects: Sequence[Effect[Any]], moves: bool) -> list[Batch]:
    """Group the calls among these effects into requests. `moves`: keys of one request have to share a slot."""
    alone: list[Batch] = []
    alike: dict[tuple[Any, ...], list[int]] = {}  # as most are
    for position, effect in enumerate(effects):
        if not isinstance(effect, Call):
            continue
        keys, script = effect.keys, effect.script
        if script not in _SCRIPTS or len(keys) > _KEYS_MAX_OF_ONE:
            alone.append(Batch(effect, [position]))
            continue
        # Not with those that are given up much sooner.
        place = (effect.node, effect.sync, math.frexp(effect.request_timeout_s)[1], moves and slot_of(keys[0]))
        alike.setdefault((place, script, len(keys), effect.args[1:]), []).append(position)
    places: dict[tuple[Any, ...], dict[tuple[Any, ...], list[int]]] = {}
    for (place, *group), members in alike.items():
        places.setdefault(place, {})[tuple(group)] = members
    return [*alone, *(batch for groups in places.values() for batch in _of_one_place(effects, groups))]


def _of_one_place(effects: Sequence[Any], groups: dict[tuple[object, ...], list[int]]) -> list[Batch]:
    found: list[Batch] = []
    some: list[tuple[tuple[Any, ...], list[int]]] = []
    room = _KEYS_MAX
    for group, positions in groups.items():
        width: Any = group[1]
        while positions:
            if room < width:
                found.append(_batch(effects, some))
                some, room = [], _KEYS_MAX
            taken, positions = positions[: room // width], positions[room // width :]
            some.append((group, taken))
            room -= width * len(taken)
    found.append(_batch(effects, some))
    return found


def _batch(effects: Sequence[Call], groups: list[tuple[tuple[Any, ...], list[int]]]) -> Batch:
    members = [position for _, positions in groups for position in positions]
    first = effects[members[0]]
    if len(members) == 1:
        return Batch(first, members)
    args: list[str | int | bytes] = []
    for (script, width, shared), positions in groups:
        args += (script, len(positions), width, len(shared), *shared)
        args += [effects[position].args[0] for position in positions]
    keys = [key for position in members for key in effects[position].keys]
    request_timeout_s = min(effects[position].request_timeout_s for position in members)
    return Batch(Call("renew_many", keys, args, request_timeout_s, first.node, first.sync), members)


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

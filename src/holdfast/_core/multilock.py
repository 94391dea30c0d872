"""Several locks at once, under one lease.

Laws: all or none reaches the caller; deadlock-free, whatever the order in which callers name them; one fencing token,
greater than every earlier one of each lock.

Theory: all clients take locks in the same order (by slot, hash tag and name), so that a circle of waiting cannot close.
Where all keys share a slot, or there is one server, that is one script: it takes what is free up to the first
busy one and queues there, so that a wake-up is all it waits for. Over several slots the same is done slot by slot, and
what is held already is extended while waiting for the rest; at the end all are extended together and told of the
common fencing token, and only then does it count.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast._core.effects import CallMany, Spawn, driver
from holdfast._core.failure import RequestFailed
from holdfast._core.keys import LockKeys, slot_of, tag_of
from holdfast._core.kinds import MULTILOCK
from holdfast._core.record import RENEWAL, LeaseRecord, Order
from holdfast._core.replicas import NotAcked, Replicas, judge
from holdfast._core.validity import deadline
from holdfast._core.waiting import Acquisition, Args, Busy, Grant, request_timeout_for, wait_for
from holdfast.errors import LeaseLost

#: What the owner in the token of a multilock begins with, for those who look.
MULTI = "m."


def group(all_keys: Sequence[LockKeys], together: bool) -> list[list[LockKeys]]:
    """Group keys in the order of taking: one group where one script may name all, else one for each hash tag.

    Two tags of one slot, which is rare, are two groups, since a client has an inbox for each.
    """
    if together:
        return [sorted(all_keys, key=lambda keys: keys.lock)]
    groups: dict[str, list[LockKeys]] = {}
    for keys in sorted(all_keys, key=lambda keys: (slot_of(keys.lock), tag_of(keys.lock), keys.lock)):
        groups.setdefault(tag_of(keys.lock), []).append(keys)
    return list(groups.values())


class MultiAcquisition(Acquisition):
    """The turn to hold all locks of one slot. `how`: as of `Acquisition`."""

    __slots__ = ("earlier", "fence", "locks")

    kind = MULTILOCK

    #: It is for the first that was busy.
    pushed_whole = False

    def __init__(self, locks: Sequence[LockKeys], token: str, ttl_ms: int, *how: Any) -> None:
        super().__init__(locks[0], token, ttl_ms, *how)
        self.locks = tuple(locks)
        self.all_keys = tuple(key for keys in locks for key in keys.all)
        #: Of a later slot: what is held of the earlier ones, and extended while this one is waited for.
        self.earlier: Sequence[MultiAcquisition] = ()
        #: Told to all with an extension, where it is not 0.
        self.fence = 0

    @property
    def name(self) -> str:
        return self.key

    def places(self) -> tuple[LockKeys, ...]:
        return self.locks

    @property
    def extend_more(self) -> Args:  # type: ignore[override]
        return self.fence, self.settings.fence_ms

    @property
    def look_every_s(self) -> float | None:  # type: ignore[override]
        return self.ttl_ms / 3000 if self.earlier else None

    async def meanwhile(self) -> None:
        if not await _all_extended(self.earlier, self.ttl_ms, 0):
            raise LeaseLost(self.key, "expired")


class SeveralTurns(MultiAcquisition):
    """The turn to hold locks of several slots: that of each slot, one after the other."""

    __slots__ = ("turns",)

    def __init__(self, groups: Sequence[Sequence[LockKeys]], token: str, ttl_ms: int, *how: Any) -> None:
        super().__init__([keys for group in groups for keys in group], token, ttl_ms, *how)
        self.turns: list[MultiAcquisition] = []
        for locks in groups:
            turn = MultiAcquisition(locks, token, ttl_ms, *how)
            turn.earlier = self.turns[:]
            self.turns.append(turn)

    async def acquire(self, timeout_s: float | None, listening: bool = False) -> Grant | Busy:
        """Take all turns in their order, waiting `timeout_s` in all.

        Raises `LeaseLost` when one was lost while waiting for another.
        """
        began_at = driver.get().now()
        held: list[MultiAcquisition] = []
        complete = False
        try:
            fence = 0
            stray = False
            for turn in self.turns:
                turn.renews, turn.most_waiting, turn.check = self.renews, self.most_waiting, self.check
                turn.tells = self.tells
                left_s = timeout_s
                if held and timeout_s:
                    left_s = max(0.0, began_at + timeout_s - driver.get().now())
                got = await wait_for(turn, left_s)
                if isinstance(got, Busy):
                    return Busy(got.holder, driver.get().now() - began_at)
                held.append(turn)
                stray = stray or got.stray
                fence = max(fence, got.fence)
            asked_at, ttl_ms = driver.get().now(), self.ttl_ms
            if not await _all_extended(held, ttl_ms, fence) or driver.get().now() >= deadline(asked_at, ttl_ms):
                raise LeaseLost(self.key, "expired")
            complete = True
            return Grant(fence, asked_at, None, stray)
        finally:
            if not complete:
                for turn in held:
                    await Spawn(turn.give_back())

    def make_record(self, name: str, grant: Grant) -> LeaseRecord:
        for turn in self.turns:
            turn.stray = grant.stray
        return super().make_record(name, grant)

    async def renew(self, ttl_ms: int, order: Order = RENEWAL) -> int:
        for turn in self.turns:
            turn.ttl_ms = max(turn.ttl_ms, ttl_ms)  # how long a give-back may have to be tried
        return await _all_extended(self.turns, ttl_ms, 0, order)

    async def release(self, sure_until: float | None = None) -> bool:
        """Release all: False when one was not held any more. Raises the last `RequestFailed`, when all were tried."""
        held = True
        failure: RequestFailed | None = None
        left = self.turns[:]
        try:
            while left:
                turn = left.pop()
                try:
                    held = await turn.release() and held
                except RequestFailed as problem:
                    failure = problem
        finally:
            for turn in left:
                await Spawn(turn.give_back())
        if failure is not None:
            raise failure
        return held

    async def give_back(self) -> None:
        for turn in self.turns:
            await Spawn(turn.give_back())


def turn_for(all_keys: Sequence[LockKeys], together: bool, token: str, ttl_ms: int, *how: Any) -> MultiAcquisition:
    """Make the turn to hold all of them."""
    groups = group(all_keys, together)
    return (
        MultiAcquisition(groups[0], token, ttl_ms, *how)
        if len(groups) == 1
        else SeveralTurns(groups, token, ttl_ms, *how)
    )


async def _all_extended(turns: Sequence[MultiAcquisition], ttl_ms: int, fence: int, order: Order = RENEWAL) -> int:
    """Extend all at once; 0 when one is not held any more, as `Acquisition.renew`. Raises the first `RequestFailed`."""
    sync = turns[0].sync
    for last in (False, True):
        request_timeout_s = request_timeout_for(ttl_ms, turns[0].settings)
        for acquisition in turns:
            acquisition.fence = fence
        calls = [acquisition.extend(ttl_ms, request_timeout_s, order) for acquisition in turns]
        answers: list[Any] = await CallMany(calls, request_timeout_s)
        replies = [answer[0] if isinstance(answer, tuple) else answer for answer in answers]
        held = [reply for reply in replies if type(reply) is int]
        if min(held, default=1) < 1:
            return 0
        for reply in replies:
            if reply is None:
                raise RequestFailed("silent", "no answer in time", "", maybe_executed=True, transient=True)
            if isinstance(reply, RequestFailed):
                raise reply
        try:
            if sync is not None:
                for acquisition, answer in zip(turns, answers, strict=True):
                    judge(sync, acquisition.name, answer, driver.get().now())
            return max(held)
        except NotAcked:
            if last or not isinstance(sync, Replicas):
                raise  # else: there are more replicas than we knew
    raise AssertionError

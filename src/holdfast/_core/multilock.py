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
from functools import partial
from typing import Any

from holdfast._core.effects import CallMany, Now, Spawn
from holdfast._core.failure import RequestFailed
from holdfast._core.keys import LockKeys, slot_of, tag_of
from holdfast._core.kinds import MULTILOCK
from holdfast._core.record import RENEWAL, LeaseRecord, Order
from holdfast._core.replicas import NotAcked, Replicas, Sync, judge
from holdfast._core.settings import DEFAULT, Settings
from holdfast._core.validity import deadline
from holdfast._core.waiting import Acquisition, Args, Busy, Grant, request_timeout_for, wait_for
from holdfast.errors import LeaseLost

__all__ = ["MULTI", "MultiAcquisition", "acquire", "give_back", "group", "make_record", "release", "renew", "turns_for"]

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
    """The turn to hold all locks of one slot."""

    __slots__ = ("earlier", "fence", "locks")

    kind = MULTILOCK

    #: It is for the first that was busy.
    pushed_whole = False

    def __init__(
        self,
        locks: Sequence[LockKeys],
        token: str,
        ttl_ms: int,
        settings: Settings = DEFAULT,
        sync: Sync = None,
    ) -> None:
        super().__init__(locks[0], token, ttl_ms, settings, sync)
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


def turns_for(
    all_keys: Sequence[LockKeys],
    together: bool,
    token: str,
    ttl_ms: int,
    settings: Settings = DEFAULT,
    sync: Sync = None,
) -> list[MultiAcquisition]:
    turns: list[MultiAcquisition] = []
    for keys in group(all_keys, together):
        turn = MultiAcquisition(keys, token, ttl_ms, settings, sync)
        turn.earlier = turns[:]
        turns.append(turn)
    return turns


async def acquire(
    turns: Sequence[MultiAcquisition], timeout_s: float | None, *, listening: bool = False
) -> Grant | Busy:
    """Take all turns in their order, waiting `timeout_s` in all.

    Raises `LeaseLost` when one was lost while waiting for another.
    """
    if len(turns) == 1:
        return await wait_for(turns[0], timeout_s, listening=listening)
    began_at = await Now()
    held: list[MultiAcquisition] = []
    complete = False
    try:
        fence = 0
        stray = False
        for acquisition in turns:
            left_s = timeout_s
            if held and timeout_s:
                left_s = max(0.0, began_at + timeout_s - await Now())
            got = await wait_for(acquisition, left_s)
            if isinstance(got, Busy):
                return Busy(got.holder, await Now() - began_at)
            held.append(acquisition)
            stray = stray or got.stray
            fence = max(fence, got.fence)
        ttl_ms = turns[0].ttl_ms
        asked_at = await Now()
        if not await _all_extended(held, ttl_ms, fence) or await Now() >= deadline(asked_at, ttl_ms):
            raise LeaseLost(turns[0].key, "expired")
        complete = True
        return Grant(fence, asked_at, None, stray)
    finally:
        if not complete:
            for acquisition in held:
                await Spawn(acquisition.give_back())


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
                    judge(sync, acquisition.name, answer, await Now())
            return max(held)
        except NotAcked:
            if last or not isinstance(sync, Replicas):
                raise  # else: there are more replicas than we knew
    raise AssertionError


async def renew(turns: Sequence[MultiAcquisition], ttl_ms: int, order: Order = RENEWAL) -> int:
    """Extend all: 0 when one is not held any more, as `Acquisition.renew`."""
    if len(turns) == 1:
        return await turns[0].renew(ttl_ms, order)
    for acquisition in turns:
        acquisition.ttl_ms = max(acquisition.ttl_ms, ttl_ms)  # how long a give-back may have to be tried
    return await _all_extended(turns, ttl_ms, 0, order)


def make_record(turns: Sequence[MultiAcquisition], name: str, grant: Grant) -> LeaseRecord:
    first = turns[0]
    if len(turns) == 1:
        return first.make_record(name, grant)
    for acquisition in turns:
        acquisition.stray = grant.stray
    extend, let_go = partial(renew, turns), partial(release, turns)
    held = LeaseRecord(name, first.token, grant.fence, first.ttl_ms, grant.sent_at, extend, let_go)
    held.stray = grant.stray
    held.places = tuple(keys for acquisition in turns for keys in acquisition.locks)
    return held


async def release(turns: Sequence[MultiAcquisition]) -> bool:
    """Release all: False when one was not held any more. Raises the last `RequestFailed`, after having tried all."""
    held = True
    failure: RequestFailed | None = None
    left = list(turns)
    try:
        while left:
            acquisition = left.pop()
            try:
                held = await acquisition.release() and held
            except RequestFailed as problem:
                failure = problem
    finally:
        for acquisition in left:
            await Spawn(acquisition.give_back())
    if failure is not None:
        raise failure
    return held


async def give_back(turns: Sequence[MultiAcquisition]) -> None:
    """Undo whatever an acquire has done or may still do."""
    for acquisition in turns:
        await Spawn(acquisition.give_back())

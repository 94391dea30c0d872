"""Several locks at once, under one lease.

Laws: all or none reaches the caller; whatever order callers name them in, nobody waits for somebody who waits for
him; one fencing token, greater than every earlier one of each lock.

Theory: everybody takes locks in the same order (by slot, then by name), so that a circle of waiting cannot close.
Where all keys share a slot, or there is one server, that is one script: it takes what is free up to the first
busy one and queues there, so that a wake-up is all it waits for. Over several slots the same is done slot by slot, and
what is held already is extended while waiting for the rest; at the end all are extended together and told of the
common fencing token, and only then does it count.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from holdfast._core.effects import Answer, Call, CallMany, Now, Spawn
from holdfast._core.hold import RENEWAL, Hold, Order
from holdfast._core.keys import LockKeys, slot_of
from holdfast._core.replicas import NotAcked, Replicas, Sync, judge
from holdfast._core.settings import DEFAULT, Settings
from holdfast._core.trouble import Trouble
from holdfast._core.validity import deadline
from holdfast._core.waiting import Busy, Grant, Turn, patience_for, wait_for
from holdfast.errors import LeaseLost

__all__ = ["MultiTurn", "acquire", "give_back", "group", "hold", "release", "renew", "slot_of", "turns_for"]


def group(all_keys: Sequence[LockKeys], together: bool) -> list[list[LockKeys]]:
    """In the order of taking: one group where one script may name all, else one for each slot."""
    if together:
        return [sorted(all_keys, key=lambda keys: keys.lock)]
    groups: dict[int, list[LockKeys]] = {}
    for keys in sorted(all_keys, key=lambda keys: (slot_of(keys.lock), keys.lock)):
        groups.setdefault(slot_of(keys.lock), []).append(keys)
    return list(groups.values())


class MultiTurn(Turn):
    """The turn to hold all locks of one slot."""

    __slots__ = ("inboxes", "keys", "order_key")

    def __init__(
        self,
        all_keys: Sequence[LockKeys],
        token: str,
        ttl_ms: int,
        settings: Settings = DEFAULT,
        sync: Sync = None,
    ) -> None:
        super().__init__(token, ttl_ms, all_keys[0].lock, settings, sync)
        self.keys = tuple(key for keys in all_keys for key in keys.all)
        self.order_key = all_keys[0].order_of(token)
        self.inboxes = all_keys[0].inboxes

    def ask(self, queueing: bool, arrival: int, patience_s: float) -> Call:
        settings, ttl_ms = self.settings, self.ttl_ms
        return Call(
            "multi_acquire",
            self.keys,
            (
                self.token,
                ttl_ms,
                "wait" if queueing else "try",
                arrival,
                settings.fence_ms,
                self.claim_ms,
                self.inboxes,
            ),
            patience_s,
            sync=self.tail(),
        )

    def extend(self, ttl_ms: int, patience_s: float, order: Order = RENEWAL, fence: int = 0) -> Call:
        """Extend all, and let all know the fencing token."""
        settings = self.settings
        mark_ms = order.mark_ms(ttl_ms, settings.bury_ms)
        return Call(
            "multi_renew",
            (*self.keys, self.order_key),
            (self.token, ttl_ms, fence, settings.fence_ms, order.number, mark_ms),
            patience_s,
            sync=self.tail(),
        )

    def undo(self, bury_ms: int, patience_s: float) -> Call:
        settings = self.settings
        return Call(
            "multi_release",
            self.keys,
            (self.token, settings.fence_ms, self.claim_ms, self.inboxes, bury_ms),
            patience_s,
        )


class _LaterTurn(MultiTurn):
    """The turn of a later slot: what is held of the earlier ones is extended while it is waited for."""

    __slots__ = ("earlier",)

    earlier: list[MultiTurn]

    @property
    def look_every_s(self) -> float | None:  # type: ignore[override]
        return self.ttl_ms / 3000

    async def meanwhile(self) -> None:
        if not await _all_extended(self.earlier, self.ttl_ms, 0):
            raise LeaseLost(self.keys[0], "expired")


def turns_for(
    all_keys: Sequence[LockKeys],
    together: bool,
    token: str,
    ttl_ms: int,
    settings: Settings = DEFAULT,
    sync: Sync = None,
) -> list[MultiTurn]:
    """The turns to take, in their order."""
    turns: list[MultiTurn] = []
    for keys in group(all_keys, together):
        if turns:
            later = _LaterTurn(keys, token, ttl_ms, settings, sync)
            later.earlier = turns[:]
            turns.append(later)
        else:
            turns.append(MultiTurn(keys, token, ttl_ms, settings, sync))
    return turns


async def acquire(turns: Sequence[MultiTurn], timeout_s: float | None, *, listening: bool = False) -> Grant | Busy:
    """Take all turns in their order, waiting `timeout_s` in all.

    Raises `LeaseLost` when we were held up for so long that one was lost while waiting for another.
    """
    if len(turns) == 1:
        return await wait_for(turns[0], timeout_s, listening=listening)
    began_at = await Now()
    held: list[MultiTurn] = []
    complete = False
    try:
        fence = 0
        stray = False
        for turn in turns:
            left_s = timeout_s
            if held and timeout_s:
                left_s = max(0.0, began_at + timeout_s - await Now())
            got = await wait_for(turn, left_s)
            if isinstance(got, Busy):
                return Busy(got.holder, await Now() - began_at)
            held.append(turn)
            stray = stray or got.stray
            fence = max(fence, got.fence)
        ttl_ms = turns[0].ttl_ms
        asked_at = await Now()
        if not await _all_extended(held, ttl_ms, fence) or await Now() >= deadline(asked_at, ttl_ms):
            raise LeaseLost(turns[0].keys[0], "expired")
        complete = True
        return Grant(fence, asked_at, None, stray)
    finally:
        if not complete:
            for turn in held:
                await Spawn(turn.give_back())


async def _all_extended(turns: Sequence[MultiTurn], ttl_ms: int, fence: int, order: Order = RENEWAL) -> int:
    """Extend all at once; 0 when one is not held any more, as `Turn.renew`. Raises the first `Trouble`."""
    if not turns:
        return 1
    sync = turns[0].sync
    for last in (False, True):
        patience_s = patience_for(ttl_ms, turns[0].settings)
        calls = [turn.extend(ttl_ms, patience_s, order, fence) for turn in turns]
        answers: list[Answer] = await CallMany(calls, patience_s)
        replies = [answer[0] if isinstance(answer, tuple) else answer for answer in answers]
        if any(reply is not None and not isinstance(reply, Trouble) and reply < 1 for reply in replies):
            return 0
        for reply in replies:
            if reply is None:
                raise Trouble("silent", "no answer in time", "", sent=True, passing=True)
            if isinstance(reply, Trouble):
                raise reply
        longest_ms = max(reply for reply in replies if isinstance(reply, int))
        if sync is None:
            return longest_ms
        try:
            for turn, answer in zip(turns, answers, strict=True):
                assert isinstance(answer, tuple)
                judge(sync, turn.name, answer, await Now())
            return longest_ms
        except NotAcked:
            if last or not isinstance(sync, Replicas):
                raise  # else: there are more replicas than we knew
    raise AssertionError


async def renew(turns: Sequence[MultiTurn], ttl_ms: int, order: Order = RENEWAL) -> int:
    """Extend all: 0 when one is not held any more, as `Turn.renew`."""
    if len(turns) == 1:
        return await turns[0].renew(ttl_ms, order)
    for turn in turns:
        turn.ttl_ms = max(turn.ttl_ms, ttl_ms)  # for so long a give-back may have to be tried
    return await _all_extended(turns, ttl_ms, 0, order)


def hold(turns: Sequence[MultiTurn], name: str, grant: Grant, renew_it: bool, max_hold_ms: int | None) -> Hold:
    """What the one lease of all turns stands on."""
    first = turns[0]
    if len(turns) == 1:
        return first.hold(name, grant, renew_it, max_hold_ms)
    for turn in turns:
        turn.stray = grant.stray
    extend, let_go = partial(renew, turns), partial(release, turns)
    held = Hold(name, first.token, grant.fence, first.ttl_ms, grant.sent_at, extend, let_go, renew_it, max_hold_ms)
    held.stray = grant.stray
    return held


async def release(turns: Sequence[MultiTurn]) -> bool:
    """Release all: False when one was not held any more. Raises the last `Trouble`, after having tried all."""
    held = True
    trouble: Trouble | None = None
    left = list(turns)
    try:
        while left:
            turn = left.pop()
            try:
                held = await turn.release() and held
            except Trouble as problem:
                trouble = problem
    finally:
        for turn in left:
            await Spawn(turn.give_back())
    if trouble is not None:
        raise trouble
    return held


async def give_back(turns: Sequence[MultiTurn]) -> None:
    """Undo whatever an acquire has done or may still do."""
    for turn in turns:
        await Spawn(turn.give_back())

"""The barrier: parties wait for each other.

Laws: all of a generation go on together or are told that it is broken; a party whose process has gone does not
count as arrived; asking again after going on gives the same answer.

Theory: parties stand in a set until there are enough; the last one to come moves all into the set of the released,
where they find themselves when they look again, and tells them to look. A party that was taken for gone arrives
once more, unless its generation is over.
"""

from __future__ import annotations

from typing import NamedTuple

from holdfast._core.effects import Call, Reply
from holdfast._core.keys import LockKeys
from holdfast._core.kinds import BARRIER
from holdfast._core.record import RENEWAL, Order
from holdfast._core.replies import Refusal, refusal_of
from holdfast._core.retry import outlast
from holdfast._core.settings import DEFAULT, Settings
from holdfast._core.waiting import Acquisition
from holdfast.errors import BrokenBarrierError, DeclarationMismatch

_FOR_EVER_MS = 86_400_000
#: Refusals of barrier_wait.
_TOMBSTONE, _BROKEN, _DECLARED_OTHERWISE = -1, -2, -3


class BarrierMoved(NamedTuple):
    """What a barrier has come to."""

    generation: int
    waiting: int
    broken: bool


def barrier_moved_of(reply: Reply) -> BarrierMoved | Refusal:
    if reply[0] != 1:
        return refusal_of(reply)
    return BarrierMoved(reply[1], reply[2], reply[3] == 1)


class BarrierAcquisition(Acquisition):
    """The turn to go on."""

    __slots__ = ("breaking", "parties", "retain_ms")

    kind = BARRIER

    def __init__(self, keys: LockKeys, token: str, parties: int, retain_ms: int, settings: Settings = DEFAULT) -> None:
        super().__init__(keys, token, _FOR_EVER_MS, settings)
        self.parties = parties
        self.retain_ms = retain_ms
        self.breaking = False

    def _call(self, what: str, arrival: int, request_timeout_s: float) -> Call:
        settings, keys = self.settings, (self.keys.lock, *self.all_keys[-2:], self.keys.gone)
        asked = (self.token, what, arrival, self.parties, self.retain_ms)
        args = (*asked, self.inboxes, settings.signal_recheck_ms, settings.tombstone_ms)
        return Call("barrier_wait", keys, args, request_timeout_s)

    def ask(self, queueing: bool, arrival: int, request_timeout_s: float) -> Call:
        return self._call("break" if self.breaking else "wait", arrival, request_timeout_s)

    def extend(self, ttl_ms: int, request_timeout_s: float, order: Order = RENEWAL) -> Call:
        return self._call("wait", 1, request_timeout_s)

    def undo(self, tombstone_ms: int, request_timeout_s: float) -> Call:
        return self._call("leave", 0, request_timeout_s)

    def refused(self, refusal: Refusal) -> Exception:
        if refusal.code in (_TOMBSTONE, _BROKEN):  # -1: told so before, in an answer that was lost
            return BrokenBarrierError(self.keys.name)
        if refusal.code == _DECLARED_OTHERWISE:
            return DeclarationMismatch(BARRIER.name, self.keys.name, self.parties, refusal.stored)
        return super().refused(refusal)

    def time_is_up(self) -> bool:
        # Who does not wait any longer breaks the barrier for all, unless all have come in this very moment.
        self.breaking = True
        return True


async def move(keys: LockKeys, what: str, parties: int, retain_ms: int, settings: Settings = DEFAULT) -> BarrierMoved:
    """ "look", "abort" or "reset": what it has come to. Raises `RequestFailed`."""
    args = (what, parties, retain_ms, keys.inboxes, settings.tombstone_ms)
    call = Call("barrier_move", (keys.lock, f"{keys.base}:arrived", keys.gone), args, settings.request_timeout_s)
    while True:
        moved = barrier_moved_of(await outlast(call, settings))
        if isinstance(moved, Refusal):
            raise DeclarationMismatch(BARRIER.name, keys.name, parties, moved.stored)
        if what != "reset" or not moved.broken:
            return moved

"""The barrier: parties wait for each other.

Laws: all of a generation go on together or are told that it is broken; a party whose process has gone does not
count as arrived; asking again after going on gives the same answer.

Theory: parties stand in a set until there are enough; the last one to come moves all into the set of the released,
where they find themselves when they look again, and tells them to look. A party that was taken for gone arrives
once more, unless its generation is over.
"""

from __future__ import annotations

from typing import NamedTuple

from holdfast._core.effects import Call
from holdfast._core.keys import LockKeys
from holdfast._core.kinds import BARRIER
from holdfast._core.retry import outlast
from holdfast._core.settings import DEFAULT, Settings
from holdfast._core.waiting import Acquisition
from holdfast.errors import BrokenBarrierError, DeclarationMismatch

__all__ = ["BarrierAcquisition", "move"]

_FOR_EVER_MS = 86_400_000
#: A refusal of both scripts; the others are that it is broken.
_DECLARED_OTHERWISE = -3


class BarrierMoved(NamedTuple):
    """What a barrier has come to."""

    generation: int
    waiting: int
    broken: bool


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

    def undo(self, tombstone_ms: int, request_timeout_s: float) -> Call:
        return self._call("leave", 0, request_timeout_s)

    def refused(self, code: int, stored: int = 0) -> Exception:
        if code == _DECLARED_OTHERWISE:
            return DeclarationMismatch(BARRIER.name, self.keys.name, self.parties, stored)
        return BrokenBarrierError(self.keys.name)  # -1: told so before, in an answer that was lost

    def time_is_up(self) -> bool:
        # Who does not wait any longer breaks the barrier for all, unless all have come in this very moment.
        self.breaking = True
        return True


async def move(keys: LockKeys, what: str, parties: int, retain_ms: int, settings: Settings = DEFAULT) -> BarrierMoved:
    """ "look", "abort" or "reset": what it has come to. Raises `RequestFailed`."""
    args = (what, parties, retain_ms, keys.inboxes, settings.tombstone_ms)
    call = Call("barrier_move", (keys.lock, f"{keys.base}:arrived", keys.gone), args, settings.request_timeout_s)
    while True:
        code, *facts = await outlast(call, settings)
        if code == _DECLARED_OTHERWISE:
            raise DeclarationMismatch(BARRIER.name, keys.name, parties, facts[0])
        generation, waiting, broken = facts
        if what != "reset" or not broken:
            return BarrierMoved(generation, waiting, broken == 1)

"""Events, latches and barriers: each opens for all who wait for it.

Laws: a waiter goes on once it is open, or has been since it came, even if every message is lost; a request counts
once, however often it is sent, and asking again after going on gives the same answer; all clients declare the same
number. All parties of a barrier's generation go on together or are told that it is broken; one whose process has gone
does not count as arrived.

Theory: an event or latch is a number of things still missing; open means none. An event is missing one thing until it
is set. Waiters are told when it opens, and look for themselves now and then. The server counts how often it has opened,
and a waiter says with each look how often it had when it came: so an event that is set and cleared at once lets all go
on that waited. The parties of a barrier stand in a set until there are enough; the last one to come moves all into the
set of the released, where they find themselves when they look again, and tells them to look. A party that was taken for
gone arrives once more, unless its generation is over.
"""

from __future__ import annotations

from holdfast._core.effects import Call
from holdfast._core.keys import LockKeys
from holdfast._core.kinds import BARRIER, Kind
from holdfast._core.retry import outlast
from holdfast._core.settings import DEFAULT, Settings
from holdfast._core.waiting import Acquisition
from holdfast.errors import BrokenBarrierError, DeclarationMismatch

#: Nothing is granted that could end; the time limit of an answer's worth.
_FOR_EVER_MS = 86_400_000


class GateAcquisition(Acquisition):
    """The turn to go through. `declared`: the number; `retain_ms`: how long its state is kept after the last use."""

    __slots__ = ("declared", "kind", "retain_ms")

    #: A refusal of its scripts.
    declared_otherwise = -2

    def __init__(
        self, kind: Kind, keys: LockKeys, token: str, declared: int, retain_ms: int, settings: Settings = DEFAULT
    ) -> None:
        self.kind = kind
        super().__init__(keys, token, _FOR_EVER_MS, settings)
        self.all_keys = keys.lock, keys.queue, keys.gone
        self.declared = declared
        self.retain_ms = retain_ms

    def _call(self, what: str, arrival: int, request_timeout_s: float) -> Call:
        settings = self.settings
        asked = (self.token, what, arrival, self.declared, self.retain_ms)
        args = (*asked, self.inboxes, settings.signal_recheck_ms, settings.tombstone_ms)
        return Call(self.kind.ask, self.all_keys, args, request_timeout_s)

    def ask(self, queueing: bool, arrival: int, request_timeout_s: float) -> Call:
        return self._call("wait" if queueing else "try", arrival, request_timeout_s)

    def undo(self, tombstone_ms: int, request_timeout_s: float) -> Call:
        return self._call("leave", 0, request_timeout_s)

    def refused(self, code: int, stored: int = 0) -> Exception:
        if code == self.declared_otherwise:
            return DeclarationMismatch(self.kind.name, self.keys.name, self.declared, stored)
        return super().refused(code)


class BarrierAcquisition(GateAcquisition):
    """The turn to go on with the other parties."""

    __slots__ = ("breaking",)

    declared_otherwise = -3

    def __init__(self, keys: LockKeys, token: str, parties: int, retain_ms: int, settings: Settings = DEFAULT) -> None:
        super().__init__(BARRIER, keys, token, parties, retain_ms, settings)
        self.all_keys = keys.lock, *keys.more(*BARRIER.beside)[-2:], keys.gone
        self.breaking = False

    def ask(self, queueing: bool, arrival: int, request_timeout_s: float) -> Call:
        return self._call("break" if self.breaking else "wait", arrival, request_timeout_s)

    def refused(self, code: int, stored: int = 0) -> Exception:
        if code == self.declared_otherwise:
            return super().refused(code, stored)
        return BrokenBarrierError(self.keys.name)  # -1: told so before, in an answer that was lost

    def time_is_up(self) -> bool:
        # Who does not wait any longer breaks the barrier for all, unless all have come in this very moment.
        self.breaking = True
        return True


async def _moved(call: Call, kind: Kind, keys: LockKeys, declared: int, settings: Settings) -> list[int]:
    facts: list[int]
    code, *facts = await outlast(call, settings)
    if code != 1:
        raise DeclarationMismatch(kind.name, keys.name, declared, facts[0])
    return facts


async def move(
    kind: Kind, keys: LockKeys, token: str, what: str | int, declared: int, retain_ms: int, settings: Settings = DEFAULT
) -> int:
    """Take `what` off what is missing, or "open", "shut", "look": returns what is missing. Raises `RequestFailed`."""
    args = (token, what, retain_ms, declared, keys.inboxes, settings.tombstone_ms)
    call = Call("gate_move", (keys.lock, keys.queue, keys.gone), args, settings.request_timeout_s)
    while True:
        missing, *more = await _moved(call, kind, keys, declared, settings)
        if not more:  # else there are more to be told that it is open than one call tells
            return missing


async def move_barrier(
    keys: LockKeys, what: str, parties: int, retain_ms: int, settings: Settings = DEFAULT
) -> tuple[int, int, bool]:
    """ "look", "abort" or "reset": its generation, how many wait, and whether it is broken. Raises `RequestFailed`."""
    args = (what, parties, retain_ms, keys.inboxes, settings.tombstone_ms)
    call = Call("barrier_move", (keys.lock, f"{keys.base}:arrived", keys.gone), args, settings.request_timeout_s)
    while True:
        generation, waiting, broken = await _moved(call, BARRIER, keys, parties, settings)
        if what != "reset" or not broken:  # else there are more to be told than one call tells
            return generation, waiting, broken == 1

"""Gates: what stays shut until something has happened, for all who wait. Events and latches.

Laws: a waiter goes on once it is open, or has been since it came, even if every message is lost; a request counts
once, however often it is sent; all clients declare a latch with the same count.

Theory: a gate is a number of things still missing; open means none. An event is missing one thing until it is set.
Waiters are told when it opens, and look for themselves now and then. The server counts how often it has opened, and a
waiter says with each look how often it had when it came: so an event that is set and cleared at once lets all go on
that waited.
"""

from __future__ import annotations

from holdfast._core.effects import Call
from holdfast._core.keys import LockKeys
from holdfast._core.kinds import Kind
from holdfast._core.retry import outlast
from holdfast._core.settings import DEFAULT, Settings
from holdfast._core.waiting import Acquisition
from holdfast.errors import DeclarationMismatch

__all__ = ["GateAcquisition", "move"]

#: A gate grants nothing that could end; the time limit of an answer's worth.
_FOR_EVER_MS = 86_400_000
#: A refusal of both scripts.
_DECLARED_OTHERWISE = -2


class GateAcquisition(Acquisition):
    """The turn to go through. `retain_ms`: how long its state is kept after the last use."""

    __slots__ = ("declared", "kind", "retain_ms")

    def __init__(
        self, kind: Kind, keys: LockKeys, token: str, declared: int, retain_ms: int, settings: Settings = DEFAULT
    ) -> None:
        self.kind = kind
        super().__init__(keys, token, _FOR_EVER_MS, settings)
        self.declared = declared
        self.retain_ms = retain_ms

    def _call(self, what: str, request_timeout_s: float, came: int = 0) -> Call:
        keys, settings = self.keys, self.settings
        asked = (self.token, what, self.retain_ms, self.declared)
        args = (*asked, settings.signal_recheck_ms, settings.tombstone_ms, self.inboxes, came)
        return Call("gate_wait", (keys.lock, keys.queue, keys.gone), args, request_timeout_s)

    def ask(self, queueing: bool, arrival: int, request_timeout_s: float) -> Call:
        return self._call("wait" if queueing else "try", request_timeout_s, arrival)

    def undo(self, tombstone_ms: int, request_timeout_s: float) -> Call:
        return self._call("leave", request_timeout_s)

    def refused(self, code: int, stored: int = 0) -> Exception:
        if code == _DECLARED_OTHERWISE:
            return DeclarationMismatch(self.kind.name, self.keys.name, self.declared, stored)
        return super().refused(code)


async def move(
    kind: Kind, keys: LockKeys, token: str, what: str | int, declared: int, retain_ms: int, settings: Settings = DEFAULT
) -> int:
    """Take `what` off what is missing, or "open", "shut", "look": returns what is missing. Raises `RequestFailed`."""
    args = (token, what, retain_ms, declared, keys.inboxes, settings.tombstone_ms)
    call = Call("gate_move", (keys.lock, keys.queue, keys.gone), args, settings.request_timeout_s)
    while True:
        code, number, *more = await outlast(call, settings)
        if code == _DECLARED_OTHERWISE:
            raise DeclarationMismatch(kind.name, keys.name, declared, number)
        if not more:  # else there are more to be told that it is open than one call tells
            return int(number)

"""The semaphore: permits, leased.

Laws: never more permits out than the limit of now allows for new ones; first come first served, whatever the size
of a request; every holder's time is its own; all clients declare the same limit, or one changes it on purpose.

Theory: holders stand in a sorted set, each with its own expiry on the server's clock; how many permits a token is
about stands in it (`<k>.`), so that nothing has to be kept beside it. Released permits go to the head of the queue
while they suffice for it; a request for more than is free holds up later ones, and so is not starved.
"""

from __future__ import annotations

from typing import Any

from holdfast._core.effects import Call
from holdfast._core.keys import LockKeys
from holdfast._core.kinds import SEMAPHORE
from holdfast._core.settings import DEFAULT, Settings
from holdfast._core.waiting import Acquisition, Args
from holdfast.errors import DeclarationMismatch, TooManyPermits

#: Refusals of sem_acquire.
_DECLARED_OTHERWISE, _TOO_MANY = -2, -3


class SemaphoreAcquisition(Acquisition):
    """The turn to hold the permits that the token says. `declared`: the limit, or 0 for whatever is stored."""

    __slots__ = ("declared",)

    kind = SEMAPHORE

    def __init__(self, keys: LockKeys, token: str, ttl_ms: int, declared: int, *how: Any) -> None:
        super().__init__(keys, token, ttl_ms, *how)
        self.declared = declared

    @property
    def ask_more(self) -> Args:  # type: ignore[override]
        return (self.declared,)

    @property
    def extend_more(self) -> Args:  # type: ignore[override]
        return (self.settings.fence_ms,)

    def refused(self, code: int, stored: int = 0) -> Exception:
        if code == _DECLARED_OTHERWISE:
            return DeclarationMismatch(SEMAPHORE.name, self.keys.name, self.declared, stored)
        if code == _TOO_MANY:
            return TooManyPermits(self.keys.name, int(self.token.split(":")[1].partition(".")[0]), stored)
        return super().refused(code)


async def resize(keys: LockKeys, limit: int, request_timeout_s: float, settings: Settings = DEFAULT) -> int:
    """Change the limit; returns the one before, or 0. May be repeated. Raises `RequestFailed`."""
    reply = await Call(
        "sem_resize",
        keys.more(*SEMAPHORE.beside),
        (limit, settings.fence_ms, settings.claim_ms, keys.inboxes),
        request_timeout_s,
    )
    return int(reply)

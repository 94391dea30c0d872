"""Telling a caller, while it waits for a lock, what it waits for.

Law: what the caller's function raises ends the wait as a cancellation does: the protocol gives back what it may have.

Theory: the waiting itself is any protocol that acquires, and knows nothing of this. Its effects pass through here: the
answers to what it asks say who holds the lock and which place it has, and where it waits, the function is called first,
and again in between. A wake-up that comes meanwhile is kept, as it is for one that does not wait yet.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from holdfast._core.effects import AwaitWake, Call, Effect, Now, Protocol, Reply, Sleep, Tell, rest_of
from holdfast._core.fast_path import begin
from holdfast._core.replies import taken_of
from holdfast._core.waiting import Busy, Grant

__all__ = ["Seen", "telling"]

#: It is told at most this often, s.
_EVERY_S = 1.0


class Seen(NamedTuple):
    """What is known of a wait: its token, who holds (or None), the place in the queue (0: the next; -1: unknown)."""

    token: str
    waited_s: float
    holder: str | None
    place: int


async def telling(
    start: Callable[[], Protocol[Grant | Busy]], token: str, function: Callable[[Seen], Any]
) -> Grant | Busy:
    """Acquire by the protocol that `start` makes, and have `function` called while it waits."""
    now = await Now()
    protocol = start()
    return await rest_of(protocol, begin(protocol, now), _Telling(token, function, now).perform)


class _Telling:
    """Performs the effects of the protocol."""

    __slots__ = ("_began_at", "_function", "_holder", "_next_at", "_place", "_token")

    def __init__(self, token: str, function: Callable[[Seen], Any], began_at: float) -> None:
        self._token = token
        self._function = function
        self._began_at = self._next_at = began_at
        self._holder: str | None = None
        self._place = -1

    async def perform(self, effect: Effect[Any]) -> Reply:
        if type(effect) is AwaitWake:
            return await self._await_wake(effect)
        if type(effect) is Sleep:
            await self._tell()
        value = await effect
        if type(effect) is Call:
            self._look_at(value if effect.sync is None else value[0])
        return value

    def _look_at(self, reply: Reply) -> None:
        """Note the holder, if this is an answer that names another one."""
        if type(reply) is list and len(reply) >= 5 and reply[0] == 0:
            _, holder, self._place, _ = taken_of(reply)
            self._holder = holder or None

    async def _await_wake(self, effect: AwaitWake) -> Reply:
        until = await Now() + effect.timeout_s
        while True:
            now = await self._tell()
            wait_s = max(0.0, min(until, self._next_at) - now)
            wake = await AwaitWake(effect.token, wait_s)
            if wake is not None or until <= now + wait_s:
                return wake

    async def _tell(self) -> float:
        now = await Now()
        if now >= self._next_at:
            seen = Seen(self._token, now - self._began_at, self._holder, self._place)
            await Tell(self._function, seen)
            now = await Now()
            self._next_at = now + _EVERY_S
        return now

"""Telling a caller, while it waits for a lock, what it waits for.

Law: what the caller's function raises ends the wait as a cancellation does: the protocol gives back what it may have.

Theory: the waiting itself is any protocol that acquires, and knows nothing of this. Its effects pass through here: the
answers to what it asks say who holds the lock and which place it has, and where it waits, the function is called first,
and again in between. A wake-up that comes meanwhile is kept, as it is for one that does not wait yet.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, NamedTuple

from holdfast._core.effects import AwaitWake, Call, Effect, Now, Protocol, Reply, Sleep, Tell
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
    return await _Telling(start(), token, function, await Now())


class _Telling(Effect["Grant | Busy"]):
    """Passes the effects of a protocol on."""

    __slots__ = ("_began_at", "_function", "_holder", "_next_at", "_place", "_protocol", "_token")

    def __init__(
        self, protocol: Protocol[Grant | Busy], token: str, function: Callable[[Seen], Any], began_at: float
    ) -> None:
        self._protocol = protocol
        self._token = token
        self._function = function
        self._began_at = self._next_at = began_at
        self._holder: str | None = None
        self._place = -1

    def __await__(self) -> Generator[Effect[Any], Any, Grant | Busy]:
        protocol = self._protocol
        try:
            effect = protocol.send(None)
            while True:
                try:
                    value = yield from self._perform(effect)
                except BaseException as error:
                    effect = protocol.throw(error)
                else:
                    effect = protocol.send(value)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    def _perform(self, effect: Effect[Any]) -> Generator[Effect[Any], Any, Reply]:
        if type(effect) is AwaitWake:
            return (yield from self._await_wake(effect))
        if type(effect) is Sleep:
            yield from self._tell()
        value = yield effect
        if type(effect) is Call:
            self._look_at(value if effect.sync is None else value[0])
        return value

    def _look_at(self, reply: Reply) -> None:
        """Note the holder, if this is an answer that names another one."""
        if type(reply) is list and len(reply) >= 5 and reply[0] == 0:
            _, holder, self._place, _ = taken_of(reply)
            self._holder = holder or None

    def _await_wake(self, effect: AwaitWake) -> Generator[Effect[Any], Any, Reply]:
        until = (yield from Now().__await__()) + effect.timeout_s
        while True:
            now = yield from self._tell()
            wait_s = max(0.0, min(until, self._next_at) - now)
            wake = yield AwaitWake(effect.token, wait_s)
            if wake is not None or until <= now + wait_s:
                return wake

    def _tell(self) -> Generator[Effect[Any], Any, float]:
        now = yield from Now().__await__()
        if now >= self._next_at:
            seen = Seen(self._token, now - self._began_at, self._holder, self._place)
            yield from Tell(self._function, seen).__await__()
            now = yield from Now().__await__()
            self._next_at = now + _EVERY_S
        return now

"""Telling a caller, while it waits for a lock, what it waits for.

Law: what the caller's function raises ends the wait as a cancellation does: the protocol gives back what it may have.

Theory: the waiting itself is any protocol that acquires, and knows nothing of this. Its effects pass through here: the
answers to what it asks say who holds the lock and which place it has, and where it waits, the function is called first,
and again in between. A wake-up that comes meanwhile is kept, as it is for one that does not wait yet.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from holdfast._core.effects import AwaitWake, Call, Effect, Protocol, Reply, Sleep, Tell, Wake, driver, rest_of
from holdfast._core.replies import taken_of
from holdfast._core.waiting import Busy, Grant

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
    began_at = next_at = driver.get().now()
    holder: str | None = None
    place = -1

    async def perform(effect: Effect[Any]) -> Reply:
        nonlocal holder, place
        if type(effect) is AwaitWake:
            return await await_wake(effect)
        if type(effect) is Sleep:
            await tell()
        value = await effect
        if type(effect) is Call:
            reply: Reply = value if effect.sync is None else value[0]
            if type(reply) is list and len(reply) >= 5 and reply[0] == 0:  # an answer that names the holder
                _, named, place, _ = taken_of(reply)
                holder = named or None
        return value

    async def await_wake(effect: AwaitWake) -> Wake | None:
        until = driver.get().now() + effect.timeout_s
        while True:
            now = await tell()
            wait_s = max(0.0, min(until, next_at) - now)
            wake = await AwaitWake(effect.token, wait_s)
            if wake is not None or until <= now + wait_s:
                return wake

    async def tell() -> float:
        nonlocal next_at
        now = driver.get().now()
        if now >= next_at:
            await Tell(function, Seen(token, now - began_at, holder, place))
            now = driver.get().now()
            next_at = now + _EVERY_S
        return now

    protocol = start()
    return await rest_of(protocol, protocol.send(None), perform)

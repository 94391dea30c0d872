"""The fast path: an acquire, a release or a renewal that is one request, sent before any protocol is started.

Laws: only a grant in time, a plain release, or that it is still held is taken from the answer; anything else is told
to the protocol, which goes on (and gives back) as if it had sent the request itself, at the moment it was sent.

Theory: most acquires find the lock free, and starting a protocol costs more than reading such an answer. So a driver
has the first request ready but for its token, sends it, and asks `granted` or `released` what the answer means. Where
there is more to do, `replay` brings the protocol to where its first request has been made. A lock that turned out to be
contended is remembered (`Contention`): its next acquires start with the protocol, whose first request may queue.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from holdfast._core.effects import Call, Effect, Protocol, Reply, driver, rest_of
from holdfast._core.failure import RequestFailed
from holdfast._core.record import LeaseRecord
from holdfast._core.settings import DEFAULT, Settings

R = TypeVar("R")

#: Contended locks that are remembered; beyond, all are forgotten, and found out again.
CONTENDED_MAX = 10_000


class Contention(dict[str, int]):
    """Which locks of a client were contended recently, by key. A hint: it loses nothing but time when it is wrong.

    Made of atomic operations: any thread and any signal handler may call it. A dictionary, so that to look for what is
    not in it, the usual case, is no call.
    """

    __slots__ = ("_acquires",)

    def __init__(self, settings: Settings = DEFAULT) -> None:
        super().__init__()
        self._acquires = settings.contended_acquires

    def expects(self, key: str) -> bool:
        """Count an acquire; True if it starts with the protocol, since the lock is likely to be taken."""
        if key not in self:
            return False
        left = self.get(key, 0)
        if left > 1:
            self[key] = left - 1
        else:
            self.pop(key, None)
        return True

    def saw(self, key: str) -> None:
        """Note a lock that the fast path was not granted."""
        if len(self) >= CONTENDED_MAX:
            self.clear()
        self[key] = self._acquires


class _Then(NamedTuple):
    """A driver whose clock stands."""

    asked_at: float
    random: Callable[[], float]
    listens: Callable[[str, str], bool]
    unlisten: Callable[[str], None]

    def now(self) -> float:
        return self.asked_at


def begin(protocol: Protocol[R], asked_at: float) -> Effect[Any]:
    """Start a protocol up to its first request, at the moment at which that was sent."""
    by = driver.get()
    driver.set(_Then(asked_at, by.random, by.listens, by.unlisten))
    try:
        return protocol.send(None)
    finally:
        driver.set(by)


async def replay(protocol: Protocol[R], asked_at: float, reply: Reply, error: BaseException | None) -> R:
    """Go on with a protocol whose first request was sent at `asked_at`, and ended with that reply or error."""
    try:
        effect = begin(protocol, asked_at)
        if type(effect) is Call:
            if isinstance(error, RequestFailed):
                error.about(effect)
            effect = protocol.send(reply) if error is None else protocol.throw(error)
        # Else it goes another way by now: the server runs no scripts, and has not carried out this one.
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    return await rest_of(protocol, effect)


async def confirm(record: LeaseRecord, reply: Reply, error: RequestFailed | None) -> None:
    """Go on with a release that is not waited for, after the end of its request.

    That the lease was not held any more is told like any other loss.
    """
    try:
        held = await replay(record.release(), 0.0, reply, error)
    except RequestFailed:
        return  # it goes on in the background, until the ttl ends it
    if not held:
        record.lose_late()

"""Waiting in the server's queue without a protocol, for a moment: what is taken is usually handed over soon.

Laws: only a grant that a message brings in time is taken; whatever else comes, and that nothing does, is told to the
protocol, which goes on as if it had queued, and waited, by itself.

Theory: a caller that expects to wait sends a first request that queues it, and stands there by its token. A message for
that wakes it, by the thread that has read it; the caller itself reads where no other one does. The protocol that goes
on for it begins with the reply to that request, listens by the same token, and finds what has come meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from holdfast._core.effects import Reply, Wake
from holdfast._core.replies import taken_of
from holdfast._core.snapshot import snapshot
from holdfast._core.tenure import SOON_MS, SOON_S
from holdfast._core.tokens import is_ours
from holdfast._core.waiting import Grant, pushed


class Standing:
    """One of them, for `SOON_S` from when it has asked. `bell`: what it waits for, which `ring` rings."""

    __slots__ = ("asked_at", "bell", "came", "key", "replied_at", "ring", "waits")

    def __init__(self, key: str, asked_at: float, bell: Any, ring: Callable[[Any], None]) -> None:
        self.key = key
        self.asked_at = asked_at
        self.bell = bell
        self.ring = ring
        #: When its request was answered, and whether that says to wait.
        self.replied_at = 0.0
        self.waits = False
        #: What messages have said.
        self.came: deque[Wake] = deque()

    @staticmethod
    def may_wait(reply: Reply) -> bool:
        """True if that reply to its request says that a message will come, and that no look is due before."""
        if reply[0] != 0:
            return False
        remaining_ms, holder, place, _ = taken_of(reply)
        return place >= 0 and remaining_ms > SOON_MS and is_ours(holder)

    def left_s(self, outcome: tuple[Any, object], now: float) -> float:
        """Return for how long its caller waits here, once that has come of its request, s."""
        if not self.replied_at:
            reply, failure = outcome
            self.replied_at = now
            self.waits = failure is None and self.may_wait(reply)
        return self.asked_at + SOON_S - now if self.waits and not self.came else 0.0

    def take(self, ttl_ms: int, now: float) -> Grant | None:
        """Return the grant that has come, if that is all that has."""
        if not self.waits or len(self.came) != 1:
            return None
        return pushed(self.came[0], self.asked_at, self.replied_at - self.asked_at, ttl_ms, now)


class Standings(dict[str, Standing]):
    """Waiters of one client that stand there, by their tokens. Any thread may call this."""

    def wake(self, token: str, wake: Wake) -> bool:
        """Tell one of a message. False: there is none, or it has gone on meanwhile, and may not see it."""
        standing = self.get(token)
        if standing is None:
            return False
        standing.came.append(wake)
        standing.ring(standing.bell)
        return self.get(token) is standing

    def wake_all(self) -> None:
        """Have all look for themselves."""
        for token in snapshot(self):
            self.wake(token, Wake(Wake.ASK))

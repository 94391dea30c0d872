"""Rung 4: the value says when the lock ends, on the clock of the client that wrote it."""

from __future__ import annotations

from holdfast._core.effects import Now
from holdfast.lab.schemes.base import Scheme, command, text

__all__ = ["SetnxTimestamp", "SetnxTimestampInverted"]


class SetnxTimestamp(Scheme):
    """SETNX with now + ttl as the value; an expired value is taken over with GETSET.

    Source: "Design pattern: Locking with SETNX" on the command page of SETNX (long marked as superseded there),
    and the Java utility classes made after it.
    Claim: no immortal lock without EXPIRE; of several who see the expired value, GETSET tells exactly one that
    it was the first.
    Weak: compares one client's clock with another's: clocks apart by more than the ttl let two in. Those who lose
    the GETSET race have overwritten the winner's time all the same. Unlock looks at the time, not at the owner.
    """

    NAME = "setnx-timestamp"

    async def try_lock(self) -> bool:
        now_ms = await self._now_ms()
        ends_ms = now_ms + self.ttl_ms
        if await command("SETNX", self.key, ends_ms, key=self.key):
            return True
        found = text(await command("GET", self.key, key=self.key))
        if found is None or not self._may_take_over(int(found), now_ms):
            return False
        before = text(await command("GETSET", self.key, ends_ms, key=self.key))
        return before == found

    async def unlock(self) -> None:
        found = text(await command("GET", self.key, key=self.key))
        # The pattern's own care: a lock that has expired may be another client's by now, so leave it alone. It
        # takes an expired value for one's own, though, and a running one as well.
        if found is not None and int(found) > await self._now_ms():
            await command("DEL", self.key, key=self.key)

    def _may_take_over(self, ends_ms: int, now_ms: int) -> bool:
        return ends_ms < now_ms

    async def _now_ms(self) -> int:
        return int(await Now() * 1000)


class SetnxTimestampInverted(SetnxTimestamp):
    """The same with the comparison the wrong way round, as one article prints it.

    Source: the utility class of one article, kept as it stands.
    Claim: that of `setnx-timestamp`.
    Weak: takes the lock over while its time is still in the *future*, that is from a holder who is inside, and
    never from one who died.
    """

    NAME = "setnx-timestamp-inverted"

    def _may_take_over(self, ends_ms: int, now_ms: int) -> bool:
        return ends_ms > now_ms

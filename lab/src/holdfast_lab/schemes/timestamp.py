"""The value says when the lock ends, on the clock of the client that wrote it."""

from __future__ import annotations

from holdfast_lab.effects import Now, Reply, RequestFailed
from holdfast_lab.schemes.base import Scheme, command, seconds, text

__all__ = ["GetsetAfter", "GetsetAt", "SetnxTimestamp", "SetnxTimestampInverted"]


class SetnxTimestamp(Scheme):
    """SETNX with now + ttl as the value; what has expired is taken over with GETSET, whose answer is compared."""

    NAME = "setnx-timestamp"

    async def try_lock(self) -> bool:
        now, ttl = await self._now()
        if await command("SETNX", self.key, now + ttl):
            return True
        found = text(await command("GET", self.key))
        if found is None or not self._is_over(int(found), now):
            return False
        before = text(await command("GETSET", self.key, now + ttl))
        return self._came_first(before, found, now)

    async def unlock(self) -> None:
        found = text(await command("GET", self.key))
        now, _ = await self._now()
        # The pattern's own care: what has expired may be another client's by now. It takes an expired value for
        # one's own, though, and a running one as well.
        if found is not None and int(found) > now:
            await command("DEL", self.key)

    def _is_over(self, ends: int, now: int) -> bool:
        return ends < now

    def _came_first(self, before: str | None, found: str, now: int) -> bool:
        return before == found

    async def _now(self) -> tuple[int, int]:
        """The time and the ttl in one unit."""
        return int(await Now() * 1000), self.ttl_ms


class SetnxTimestampInverted(Scheme):
    """The same with the comparison the wrong way round, EXPIRE and a DEL without a look; no error gets through.

    Each command is wrapped so that an error becomes null. Null is what GETSET says where nothing was there: acquired.
    """

    NAME = "setnx-timestamp-inverted"

    async def try_lock(self) -> bool:
        if await self._or_null("SETNX", self.key, await self._ends()) == 1:
            await self._or_null("EXPIRE", self.key, seconds(self.ttl_ms))
            return True
        found = text(await self._or_null("GET", self.key))
        if found is None or int(found) < int(await Now() * 1000):
            return False
        before = text(await self._or_null("GETSET", self.key, await self._ends()))
        if before is not None and before != found:
            return False
        await self._or_null("EXPIRE", self.key, seconds(self.ttl_ms))
        return True

    async def unlock(self) -> None:
        await self._or_null("DEL", self.key)

    async def _ends(self) -> int:
        return int(await Now() * 1000) + self.ttl_ms

    async def _or_null(self, *args: str | int) -> Reply:
        try:
            return await command(*args)
        except RequestFailed:
            return None


class GetsetAfter(SetnxTimestamp):
    """The same in whole seconds, with `now > value`, also for what GETSET returns."""

    NAME = "getset-after"

    def _came_first(self, before: str | None, found: str, now: int) -> bool:
        return before is None or self._is_over(int(before), now)

    async def _now(self) -> tuple[int, int]:
        return int(await Now()), seconds(self.ttl_ms)


class GetsetAt(GetsetAfter):
    """The same with `now >= value`."""

    NAME = "getset-at"

    def _is_over(self, ends: int, now: int) -> bool:
        return ends <= now

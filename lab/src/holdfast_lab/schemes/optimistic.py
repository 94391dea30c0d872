"""No lock at all; the write fails if another client was faster."""

from __future__ import annotations

from collections.abc import Callable

from holdfast_lab.effects import Command, Random, Reply, Sleep
from holdfast_lab.schemes.base import PATIENCE_S, RETRY_PAUSE_S, fresh_token, text

__all__ = ["Watch"]


class Watch:
    """WATCH, read, MULTI, write, EXEC; again when EXEC returns nothing; UNWATCH or DISCARD on the way out."""

    NAME = "watch"
    SERVERS = 1
    EXCLUSIVE = False

    def __init__(self, key: str) -> None:
        self.key = key
        self.value: int = 0
        self._session: str | None = None

    def _do(self, *args: str | int) -> Command:
        return Command(args, PATIENCE_S, session=self._session)

    async def begin(self) -> int:
        """WATCH and read; the value to start from."""
        if self._session is None:
            self._session = await fresh_token()  # one connection for all that this object does
        await self._do("WATCH", self.key)
        read = False
        try:
            self.value = int(text(await self._do("GET", self.key)) or 0)
            read = True
        finally:
            if not read:
                await self.abandon()
        return self.value

    async def commit(self, value: int) -> bool:
        """MULTI, SET, EXEC; False: another client wrote since `begin`, and nothing was written."""
        opened = done = False
        said: Reply = None
        try:
            await self._do("MULTI")
            opened = True
            await self._do("SET", self.key, value)
            said = await self._do("EXEC")
            done = True
        finally:
            if not done:
                await self._leave("DISCARD" if opened else "UNWATCH")
        return said is not None

    async def abandon(self) -> None:
        """UNWATCH: nothing will be written."""
        await self._leave("UNWATCH")

    async def update(self, change: Callable[[int], int]) -> int:
        """Read, change and write until no other write came between; returns what was written."""
        while True:
            value = change(await self.begin())
            if await self.commit(value):
                return value
            await Sleep(await Random() * RETRY_PAUSE_S)

    async def _leave(self, how: str) -> None:
        try:
            await self._do(how)
        except Exception:  # the error that led here is the one to see; a closed connection forgets its watches
            pass

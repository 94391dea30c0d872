"""Several independent servers, and the majority decides."""

from __future__ import annotations

from typing import ClassVar

from holdfast_lab.effects import Command, Now, Random, RequestFailed, Sleep
from holdfast_lab.schemes.base import RETRY_PAUSE_S, Scheme, fresh_token
from holdfast_lab.schemes.tokens import COMPARE_AND_DELETE

__all__ = ["Redlock", "RedlockForgetful", "RedlockNaive", "RedlockPhp"]


class Redlock(Scheme):
    """The algorithm as specified: one token, a majority within the validity, released everywhere."""

    NAME = "redlock"
    SERVERS = 5
    #: Clock drift: a fraction of the ttl and a constant, as in the reference text.
    _DRIFT: ClassVar[float] = 0.01
    _DRIFT_MS: ClassVar[int] = 2

    def __init__(self, name: str, ttl_ms: int) -> None:
        super().__init__(name, ttl_ms)
        self.token = ""
        self.validity_ms = 0.0
        self.granted: list[int] = []

    @property
    def quorum(self) -> float:
        """How many have to grant."""
        return self.SERVERS // 2 + 1

    @property
    def request_timeout_s(self) -> float:
        """Per server; far below the ttl."""
        return min(max(self.ttl_ms / 10_000, 0.1), 0.25)

    async def try_lock(self) -> bool:
        self.token = await fresh_token()
        began = await Now()
        await self._ask_all()
        elapsed_ms = (await Now() - began) * 1000
        self.validity_ms = self.ttl_ms - elapsed_ms - (self.ttl_ms * self._DRIFT + self._DRIFT_MS)
        if len(self.granted) >= self.quorum and self.validity_ms > 0:
            return True
        await self.unlock()
        # A random pause: those who split the vote must not meet again at once.
        await Sleep(await Random() * RETRY_PAUSE_S)
        return False

    async def unlock(self) -> None:
        # Everywhere, also where the answer was no or did not come: it may have come true all the same.
        await self._release(range(self.SERVERS))

    async def _ask_all(self) -> None:
        self.granted = []
        for node in range(self.SERVERS):
            args = ("SET", self.key, self.token, "NX", "PX", self.ttl_ms)
            try:
                if await Command(args, self.request_timeout_s, node=node) is not None:
                    self.granted.append(node)
            except RequestFailed:
                pass  # down, or too slow: the next one

    async def _release(self, nodes: range | list[int]) -> None:
        for node in nodes:
            args = ("EVAL", COMPARE_AND_DELETE, 1, self.key, self.token)
            try:
                await Command(args, self.request_timeout_s, node=node)
            except RequestFailed:
                pass


class RedlockPhp(Redlock):
    """The PHP class with its three servers: `count / 2 + 1` is 2.5 there, so that all three have to grant."""

    NAME = "redlock-php"
    SERVERS = 3

    @property
    def quorum(self) -> float:
        return min(self.SERVERS, self.SERVERS / 2 + 1)


class RedlockForgetful(Redlock):
    """Releases only where the answer to SET was OK."""

    NAME = "redlock-forgetful"

    async def unlock(self) -> None:
        await self._release(self.granted)


class RedlockNaive(Redlock):
    """One after the other, within the ttl; released by comparison, but plain DEL everywhere after a failed acquire.

    What a server does not answer within the client's 2 s is an exception that nothing catches: it ends the call.
    """

    NAME = "redlock-naive"

    @property
    def request_timeout_s(self) -> float:
        return 2.0

    async def try_lock(self) -> bool:
        self.token = await fresh_token()
        began = await Now()
        count = 0
        for node in range(self.SERVERS):
            count += await self._ask(node, "SET", self.key, self.token, "NX", "PX", self.ttl_ms) is not None
        if count >= self.quorum and (await Now() - began) * 1000 < self.ttl_ms:
            return True
        for node in range(self.SERVERS):
            await self._ask(node, "DEL", self.key)
        return False

    async def unlock(self) -> None:
        for node in range(self.SERVERS):
            await self._ask(node, "EVAL", COMPARE_AND_DELETE, 1, self.key, self.token)

    def _ask(self, node: int, *args: str | int) -> Command:
        return Command(args, self.request_timeout_s, node=node)

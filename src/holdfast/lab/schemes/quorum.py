"""Rungs 9 and 10: five independent servers, and the majority decides."""

from __future__ import annotations

from holdfast._core.effects import Command, Now, Random, Sleep
from holdfast.lab.schemes.base import RETRY_PAUSE_S, RequestFailed, Scheme, fresh_token
from holdfast.lab.schemes.tokens import COMPARE_AND_DELETE

__all__ = ["Redlock", "RedlockNaive"]


class RedlockNaive(Scheme):
    """Five servers, asked one after the other without a timeout; on failure a plain DEL everywhere.

    Source: the version printed in one article, kept as it stands.
    Claim: three of five servers are enough, so that two may fail.
    Weak: waits forever on a server that does not answer. A client that fails to get a majority deletes the key on every
    server, the winner's included; so does unlock. The time that asking took is not taken off the ttl.
    """

    NAME = "redlock-naive"
    SERVERS = 5

    #: "No timeout": longer than any run of the lab.
    _PATIENCE_S = 3600.0

    def __init__(self, name: str, ttl_ms: int) -> None:
        super().__init__(name, ttl_ms)
        self.token = ""

    @property
    def majority(self) -> int:
        return self.SERVERS // 2 + 1

    async def try_lock(self) -> bool:
        self.token = await fresh_token()
        got = 0
        for node in range(self.SERVERS):
            args = ("SET", self.key, self.token, "NX", "PX", self.ttl_ms)
            try:
                got += await Command(args, self._PATIENCE_S, key=self.key, node=node) is not None
            except RequestFailed:
                pass  # a server that refuses connections is skipped
        if got >= self.majority:
            return True
        await self.unlock()
        return False

    async def unlock(self) -> None:
        for node in range(self.SERVERS):
            try:
                await Command(("DEL", self.key), self._PATIENCE_S, key=self.key, node=node)
            except RequestFailed:
                pass


class Redlock(Scheme):
    """The algorithm as specified: same key and token everywhere, majority within the validity time.

    Source: "Distributed Locks with Redis", the chapter on the Redlock algorithm; objections in "How to do distributed
    locking" by Martin Kleppmann.
    Claim: safe and available while a majority of independent servers runs, with clocks of about the same rate.
    Weak: a server that comes back empty at once votes twice; so does one whose clock jumps. A holder that is
    paused outlives its validity without a word, and there is no fencing token.
    """

    NAME = "redlock"
    SERVERS = 5

    #: Clock drift: a fraction of the ttl and a constant, as in the reference text.
    _DRIFT = 0.01
    _DRIFT_MS = 2

    def __init__(self, name: str, ttl_ms: int) -> None:
        super().__init__(name, ttl_ms)
        self.token = ""
        self.validity_ms = 0.0

    @property
    def majority(self) -> int:
        return self.SERVERS // 2 + 1

    @property
    def request_timeout_s(self) -> float:
        """Per server; far below the ttl."""
        return min(max(self.ttl_ms / 20_000, 0.05), 0.25)

    async def try_lock(self) -> bool:
        self.token = await fresh_token()
        began = await Now()
        got = 0
        for node in range(self.SERVERS):
            args = ("SET", self.key, self.token, "NX", "PX", self.ttl_ms)
            try:
                got += await Command(args, self.request_timeout_s, key=self.key, node=node) is not None
            except RequestFailed:
                pass  # down, or too slow: the next one
        elapsed_ms = (await Now() - began) * 1000
        self.validity_ms = self.ttl_ms - elapsed_ms - (self.ttl_ms * self._DRIFT + self._DRIFT_MS)
        if got >= self.majority and self.validity_ms > 0:
            return True
        await self.unlock()
        # A random pause: those who split the vote must not meet again at once.
        await Sleep(await Random() * RETRY_PAUSE_S)
        return False

    async def unlock(self) -> None:
        # Everywhere, also where the answer was no or did not come: it may have come true all the same.
        for node in range(self.SERVERS):
            args = ("EVAL", COMPARE_AND_DELETE, 1, self.key, self.token)
            try:
                await Command(args, self.request_timeout_s, key=self.key, node=node)
            except RequestFailed:
                pass

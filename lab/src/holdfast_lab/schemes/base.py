"""What all schemes share: the five methods of a lock, written on effects.

Laws: a scheme awaits effects and nothing else, so that one text runs on real servers and in a simulator; it does
what its article prints, mistakes included; `texts.toml` says which.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from holdfast_lab.effects import Command, Now, Random, Reply, Sleep

__all__ = [
    "PATIENCE_S",
    "RETRY_PAUSE_S",
    "Interrupted",
    "Scheme",
    "Skipped",
    "command",
    "fresh_token",
    "seconds",
    "text",
]

#: How long a client waits for an answer, s. The articles' client libraries wait 2 s.
PATIENCE_S = 1.0
#: Between two attempts, s; as in the articles.
RETRY_PAUSE_S = 0.05


class Interrupted(Exception):
    """Raised by `lock_interruptibly` when its caller wants to stop waiting."""


class Skipped(Exception):
    """Raised by `try_lock` where a listing leaves its loop without the lock and without a word: its body is skipped."""


class Scheme:
    """One client's handle of one lock.

    A rung of the ladder defines `try_lock` and `unlock`; waiting is the same for all: try, pause, again.

    Args:
        name: of the lock; the key follows from it.
        ttl_ms: for how long the lock is asked for, where the scheme has such a thing.
    """

    #: What it is called on the command line.
    NAME: ClassVar[str]
    #: Between two attempts, s.
    PAUSE_S: ClassVar[float] = RETRY_PAUSE_S
    #: Servers it works on.
    SERVERS: ClassVar[int] = 1
    #: Whether at most one may be inside; an optimistic scheme promises only that no update is lost.
    EXCLUSIVE: ClassVar[bool] = True
    #: Connections of the pool that the threads of a process share; 0: each has its own.
    POOL: ClassVar[int] = 0
    #: Whether the listing says what an interrupt does to a client that waits.
    INTERRUPTS: ClassVar[bool] = False
    #: Whether `try_lock` may raise `Skipped`.
    SKIPS: ClassVar[bool] = False
    #: Whether the key is the same in every process.
    ONE_KEY: ClassVar[bool] = True
    #: The object's own number, as `Object.hashCode()`, where clients share an object. Other processes have another.
    identity: str = ""

    def __init__(self, name: str, ttl_ms: int) -> None:
        self.name = name
        self.ttl_ms = ttl_ms

    @property
    def key(self) -> str:
        """The key that is the lock."""
        return f"lock:{self.name}"

    async def try_lock(self) -> bool:
        """One attempt; True: the lock is ours."""
        raise NotImplementedError

    async def unlock(self) -> None:
        """Give it back, the way the article does."""
        raise NotImplementedError

    async def lock(self) -> None:
        """Wait for as long as it takes."""
        while not await self.try_lock():
            await Sleep(self.PAUSE_S)

    async def lock_interruptibly(self, interrupted: Callable[[], bool]) -> None:
        """Wait until the lock is ours, or until `interrupted()` is true: then raise `Interrupted`."""
        while True:
            if interrupted():
                raise Interrupted(self.name)
            if await self.try_lock():
                return
            await Sleep(self.PAUSE_S)

    async def try_lock_for(self, timeout_s: float) -> bool:
        """Wait, but not longer than `timeout_s`."""
        deadline = await Now() + timeout_s
        while not await self.try_lock():
            if await Now() + self.PAUSE_S > deadline:
                return False
            await Sleep(self.PAUSE_S)
        return True


def command(*args: str | int | float) -> Command:
    """A plain command with the usual patience."""
    return Command(args, PATIENCE_S)


def seconds(ttl_ms: int) -> int:
    """EXPIRE and EX count in whole seconds."""
    return max(1, -(-ttl_ms // 1000))


async def fresh_token() -> str:
    """A random value, unique to the caller."""
    return f"{int(await Random() * 2**48):012x}{int(await Random() * 2**48):012x}"


def text(reply: Reply) -> str | None:
    """A bulk reply as text."""
    return reply.decode() if isinstance(reply, bytes) else reply

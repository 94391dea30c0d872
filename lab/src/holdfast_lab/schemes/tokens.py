"""The value says whose lock it is; an API on top."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast_lab.effects import Sleep
from holdfast_lab.schemes.base import Interrupted, Scheme, command, fresh_token, seconds, text

__all__ = [
    "COMPARE_AND_DELETE",
    "JavaLock",
    "ObjectLocks",
    "SetNxConstantId",
    "SetNxToken",
    "SetNxTokenGetDel",
    "identity_of",
]

#: Deletes KEYS[1] if its value is ARGV[1]; returns 1 or 0.
COMPARE_AND_DELETE = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"


class SetNxTokenGetDel(Scheme):
    """SET key token NX PX; to release, GET, compare in the client, DEL."""

    NAME = "set-nx-token-get-del"

    def __init__(self, name: str, ttl_ms: int) -> None:
        super().__init__(name, ttl_ms)
        self.token = ""

    async def try_lock(self) -> bool:
        self.token = await fresh_token()
        said = await command("SET", self.key, self.token, "NX", "PX", self.ttl_ms)
        return said is not None

    async def unlock(self) -> None:
        if text(await command("GET", self.key)) == self.token:
            await command("DEL", self.key)


class SetNxToken(SetNxTokenGetDel):
    """SET key token NX PX; a script compares and deletes."""

    NAME = "set-nx-token"

    async def unlock(self) -> None:
        await command("EVAL", COMPARE_AND_DELETE, 1, self.key, self.token)


class SetNxConstantId(SetNxTokenGetDel):
    """SET key id NX EX; to release, GET, compare in the client, DEL. The id is a constant, the same for everyone."""

    NAME = "set-nx-constant-id"

    def __init__(self, name: str, ttl_ms: int) -> None:
        super().__init__(name, ttl_ms)
        self.token = "the request"

    async def try_lock(self) -> bool:
        said = await command("SET", self.key, self.token, "NX", "EX", seconds(self.ttl_ms))
        return said is not None


class JavaLock(SetNxToken):
    """A `java.util.concurrent.locks.Lock`: made to be shared between threads, with one token for the whole object.

    Each call borrows a connection of the pool until it returns: a waiter keeps one for as long as it waits.
    """

    NAME = "java-lock"
    POOL = 8
    INTERRUPTS = True

    async def try_lock(self) -> bool:
        self.token = self.token or self.identity or await fresh_token()
        said = await command("SET", self.key, self.token, "PX", self.ttl_ms, "NX")
        return said is not None

    async def lock_interruptibly(self, interrupted: Callable[[], bool]) -> None:
        """Return as soon as the caller is found interrupted: without the lock, and without saying so.

        An interrupt during the pause is raised, as `Thread.sleep` does.
        """
        while not interrupted():
            if await self.try_lock():
                break
            await Sleep(self.PAUSE_S)
            if interrupted():
                raise Interrupted(self.name)


def identity_of(target: object) -> str:
    """``package.Class:identity`` of a target: its `lock_identity`, `id` or `pk`.

    Raises:
        TypeError: it has none of them. Its address in memory means nothing in another process.
    """
    for attribute in ("lock_identity", "id", "pk"):
        identity: Any = getattr(target, attribute, None)
        if identity is not None:
            kind = type(target)
            return f"{kind.__module__}.{kind.__qualname__}:{identity() if callable(identity) else identity}"
    raise TypeError(f"{type(target).__name__} has no lock_identity, id or pk by which other processes could know it")


class ObjectLocks:
    """lock(target), unlock(target), try_lock(target): the key follows from the object's class and identity."""

    NAME = "object"

    def __init__(self, ttl_ms: int) -> None:
        self.ttl_ms = ttl_ms
        self._held: dict[str, SetNxToken] = {}

    async def lock(self, target: object) -> None:
        handle = SetNxToken(identity_of(target), self.ttl_ms)
        await handle.lock()
        self._held[handle.name] = handle

    async def try_lock(self, target: object) -> bool:
        handle = SetNxToken(identity_of(target), self.ttl_ms)
        if not await handle.try_lock():
            return False
        self._held[handle.name] = handle
        return True

    async def unlock(self, target: object) -> None:
        """Raises KeyError if this client did not lock it."""
        await self._held.pop(identity_of(target)).unlock()

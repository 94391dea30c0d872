"""One key without an owner: the listings with a variable, a counter, SETNX and SET, as printed and tidied."""

from __future__ import annotations

from typing import ClassVar

from holdfast_lab.schemes.base import Scheme, Skipped, command, seconds, text

__all__ = [
    "GetThenSet",
    "Incr",
    "IncrExpire",
    "LockObject",
    "LockVariable",
    "LuaSetnxExpire",
    "MultiSetnxExpire",
    "PhpLoop",
    "SetNxEx",
    "SetNxExKept",
    "Setnx",
    "SetnxExpire",
    "SetnxExpireAlways",
]


class _Named(Scheme):
    """Released by name: DEL removes whatever is there."""

    async def unlock(self) -> None:
        await command("DEL", self.key)


class GetThenSet(_Named):
    """Read, judge, set."""

    NAME = "get-then-set"

    async def try_lock(self) -> bool:
        if await command("GET", self.key) is not None:
            return False
        await command("SET", self.key, "1", "EX", seconds(self.ttl_ms))
        return True


class LockVariable(Scheme):
    """A variable: read it; if it is 0, set it to 1; set it to 0 to release. No time limit."""

    NAME = "lock-variable"

    async def try_lock(self) -> bool:
        if text(await command("GET", self.key)) not in (None, "0"):
            return False
        await command("SET", self.key, "1")
        return True

    async def unlock(self) -> None:
        await command("SET", self.key, "0")


class IncrExpire(_Named):
    """INCR and EXPIRE, one line after the other."""

    NAME = "incr-expire"

    async def try_lock(self) -> bool:
        count = await command("INCR", self.key)
        await command("EXPIRE", self.key, seconds(self.ttl_ms))
        return bool(count == 1)


class Incr(_Named):
    """INCR; EXPIRE only after a 1."""

    NAME = "incr"

    async def try_lock(self) -> bool:
        if await command("INCR", self.key) != 1:
            return False
        await command("EXPIRE", self.key, seconds(self.ttl_ms))
        return True


class Setnx(_Named):
    """SETNX and DEL, no time limit."""

    NAME = "setnx"

    async def try_lock(self) -> bool:
        return bool(await command("SETNX", self.key, "1"))


class LockObject(Setnx):
    """`lock(Object)`: the same in a busy loop, under a key made of the object's class and `identity`."""

    NAME = "lock-object"
    PAUSE_S = 0.0
    POOL = 8
    ONE_KEY = False

    @property
    def key(self) -> str:
        return f"lock:{self.name}:Task{self.identity}"


class SetnxExpireAlways(Setnx):
    """SETNX and EXPIRE, one line after the other."""

    NAME = "setnx-expire-always"

    async def try_lock(self) -> bool:
        got = await super().try_lock()
        await command("EXPIRE", self.key, seconds(self.ttl_ms))
        return got


class SetnxExpire(Setnx):
    """SETNX; EXPIRE only if that succeeded."""

    NAME = "setnx-expire"

    async def try_lock(self) -> bool:
        if not await super().try_lock():
            return False
        await command("EXPIRE", self.key, seconds(self.ttl_ms))
        return True


class MultiSetnxExpire(_Named):
    """MULTI, SETNX, EXPIRE, EXEC."""

    NAME = "multi-setnx-expire"

    async def try_lock(self) -> bool:
        await command("MULTI")
        await command("SETNX", self.key, "1")
        await command("EXPIRE", self.key, seconds(self.ttl_ms))
        replies = await command("EXEC")
        return bool(replies[0])


class LuaSetnxExpire(_Named):
    """SETNX and EXPIRE in one script."""

    NAME = "lua-setnx-expire"

    _SCRIPT: ClassVar[str] = (
        "if redis.call('SETNX', KEYS[1], ARGV[1]) == 1 then redis.call('EXPIRE', KEYS[1], ARGV[2]) "
        "return 1 end return 0"
    )

    async def try_lock(self) -> bool:
        return bool(await command("EVAL", self._SCRIPT, 1, self.key, "1", seconds(self.ttl_ms)))


class SetNxEx(_Named):
    """SET NX EX in one command."""

    NAME = "set-nx-ex"

    async def try_lock(self) -> bool:
        return await command("SET", self.key, "1", "NX", "EX", seconds(self.ttl_ms)) is not None


class SetNxExKept(SetNxEx):
    """The same, never given back: DEL is commented out."""

    NAME = "set-nx-ex-kept"

    async def unlock(self) -> None:
        pass


class PhpLoop(_Named):
    """SET EX NX; GET and compare before the body; DEL after it. The value names the thing, not the client.

    The loop goes on while SET says no. Where it said OK and the comparison fails, it ends: the body never runs.
    """

    NAME = "php-loop"
    PAUSE_S = 0.005
    SKIPS = True

    async def try_lock(self) -> bool:
        value = f"room_{self.name}"
        if await command("SET", self.key, value, "EX", seconds(self.ttl_ms), "NX") is None:
            return False
        if text(await command("GET", self.key)) != value:
            raise Skipped(self.name)
        return True

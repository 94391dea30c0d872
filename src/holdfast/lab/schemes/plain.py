"""Rungs 1 to 3, 5 and 6: one key, without an owner."""

from __future__ import annotations

from holdfast.lab.schemes.base import Scheme, command

__all__ = ["Incr", "LuaSetnxExpire", "SetNxEx", "Setnx", "SetnxExpire"]


def _seconds(ttl_ms: int) -> int:
    """EXPIRE and EX count in whole seconds."""
    return max(1, -(-ttl_ms // 1000))


class Incr(Scheme):
    """INCR the key; who reads 1 has the lock and sets a time to live. DEL gives it back.

    Source: the first of the three recipes in Java articles on Redis locks.
    Claim: INCR is atomic, so exactly one client reads 1; EXPIRE keeps a crash from locking up forever.
    Weak: a crash between INCR and EXPIRE leaves the key forever. DEL removes any client's lock. Everyone
    who is refused still counts the key up.
    """

    NAME = "incr"

    async def try_lock(self) -> bool:
        if await command("INCR", self.key, key=self.key) != 1:
            return False
        await command("EXPIRE", self.key, _seconds(self.ttl_ms), key=self.key)
        return True

    async def unlock(self) -> None:
        await command("DEL", self.key, key=self.key)


class Setnx(Scheme):
    """SETNX to lock, DEL to unlock, and no time limit at all.

    Source: where most articles begin; the command page of SETNX shows the idea.
    Claim: SETNX succeeds for one client only.
    Weak: a holder that dies, or whose DEL is lost, locks all clients out forever.
    """

    NAME = "setnx"

    async def try_lock(self) -> bool:
        return bool(await command("SETNX", self.key, "1", key=self.key))

    async def unlock(self) -> None:
        await command("DEL", self.key, key=self.key)


class SetnxExpire(Setnx):
    """SETNX, then EXPIRE as a second command; DEL to unlock.

    Source: the usual second step in the articles.
    Claim: the key goes away by itself when its holder has died.
    Weak: two commands are not one: a crash between them leaves a key forever. A holder that is late deletes
    the lock of the next one.
    """

    NAME = "setnx-expire"

    async def try_lock(self) -> bool:
        if not await super().try_lock():
            return False
        await command("EXPIRE", self.key, _seconds(self.ttl_ms), key=self.key)
        return True


class LuaSetnxExpire(Setnx):
    """SETNX and EXPIRE in one Lua script; DEL to unlock.

    Source: articles from before SET learned NX and EX together (Redis 2.6.12).
    Claim: the server runs a script as one step, so there is no "between".
    Weak: still DEL without looking: a holder that is late deletes the lock of the next one.
    """

    NAME = "lua-setnx-expire"

    _SCRIPT = (
        "if redis.call('SETNX', KEYS[1], ARGV[1]) == 1 then redis.call('EXPIRE', KEYS[1], ARGV[2]) "
        "return 1 end return 0"
    )

    async def try_lock(self) -> bool:
        ttl_s = _seconds(self.ttl_ms)
        return bool(await command("EVAL", self._SCRIPT, 1, self.key, "1", ttl_s, key=self.key))


class SetNxEx(Setnx):
    """SET key value NX EX seconds: lock and time limit in one command; DEL to unlock.

    Source: the command page of SET, in its short form; most tutorials stop here.
    Claim: atomic, and free of immortal keys.
    Weak: DEL without looking at the owner. When the section outlasts the ttl, the late DEL removes the next
    holder's lock, and the one after that enters beside it.
    """

    NAME = "set-nx-ex"

    async def try_lock(self) -> bool:
        said = await command("SET", self.key, "1", "NX", "EX", _seconds(self.ttl_ms), key=self.key)
        return said is not None

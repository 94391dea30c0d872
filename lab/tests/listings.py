"""The articles' listings and other known schemes once more, with redis-py, as a user would bring them.

They are played through `lab torture` (test_listings.py): what theory breaks must get no tick.
"""

from __future__ import annotations

import time
import uuid
from functools import cache
from typing import Any

import redis

__all__ = [
    "Constant",
    "Forgetful",
    "GetThenSet",
    "GetsetAfter",
    "GetsetAt",
    "Incr",
    "Inverted",
    "Java",
    "Kept",
    "LockObject",
    "Multi",
    "Naive",
    "Php",
    "Redlock",
    "SetEx",
    "SetExpire",
    "Token",
    "Variable",
]

_COMPARE = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end"


class _Listing:
    def __init__(self, url: str, name: str, ttl: float) -> None:
        self.redis: Any = redis.Redis.from_url(url, socket_timeout=1)
        self.key, self.ttl_s = f"listing.{name}", max(1, int(-(-ttl // 1)))

    def unlock(self) -> None:
        self.redis.delete(self.key)


class Incr(_Listing):
    def try_lock(self) -> bool:
        count = self.redis.incr(self.key)
        self.redis.expire(self.key, self.ttl_s)
        return bool(count == 1)


class SetExpire(_Listing):
    """SETNX, and EXPIRE on failure as well."""

    def try_lock(self) -> bool:
        got = self.redis.setnx(self.key, 1)
        self.redis.expire(self.key, self.ttl_s)
        return bool(got)


class Multi(_Listing):
    def try_lock(self) -> bool:
        pipeline = self.redis.pipeline(transaction=True)
        pipeline.setnx(self.key, 1)
        pipeline.expire(self.key, self.ttl_s)
        return bool(pipeline.execute()[0])


class Php(_Listing):
    """do { set(ex, nx) } while (!ok && usleep(5000)); if get == value: body; del."""

    def __enter__(self) -> None:
        while True:
            got = self.redis.set(self.key, self.key, ex=self.ttl_s, nx=True)
            if got and self.redis.get(self.key) == self.key.encode():
                return
            time.sleep(0.005)

    def __exit__(self, *_: object) -> None:
        self.unlock()


class GetThenSet(_Listing):
    def try_lock(self) -> bool:
        if self.redis.get(self.key) is not None:
            return False
        self.redis.set(self.key, "locked", ex=self.ttl_s)
        return True


class Variable(_Listing):
    """0 is free, 1 is taken."""

    def try_lock(self) -> bool:
        if self.redis.get(self.key) == b"1":
            return False
        self.redis.set(self.key, 1)
        return True

    def unlock(self) -> None:
        self.redis.set(self.key, 0)


@cache
def the_object(name: str) -> str:
    """The number of an object that the threads of this process share."""
    return uuid.uuid4().hex


class LockObject(_Listing):
    """A busy loop, DEL, and no ttl; the key has the number of an object of this process."""

    def __init__(self, url: str, name: str, ttl: float) -> None:
        super().__init__(url, name, ttl)
        self.key += the_object(name)

    def lock(self) -> None:
        while not self.redis.setnx(self.key, "1"):
            pass


class SetEx(_Listing):
    def try_lock(self) -> bool:
        return bool(self.redis.set(self.key, 1, nx=True, ex=self.ttl_s))


class Kept(SetEx):
    """Never given back."""

    def unlock(self) -> None:
        pass


class Constant(SetEx):
    """Compares before it deletes, with a word that is the same for everyone."""

    def try_lock(self) -> bool:
        return bool(self.redis.set(self.key, "request", nx=True, ex=self.ttl_s))

    def unlock(self) -> None:
        if self.redis.get(self.key) == b"request":
            self.redis.delete(self.key)


class Inverted(_Listing):
    """A time in the value, compared the wrong way round; errors are null, and null is a yes."""

    def null(self, command: str, *args: Any) -> Any:
        try:
            return getattr(self.redis, command)(self.key, *args)
        except redis.RedisError:
            return None

    def try_lock(self) -> bool:
        ends = int((time.time() + self.ttl_s) * 1000)
        if not self.null("setnx", ends):
            found = self.null("get")
            if found is None or int(found) < time.time() * 1000:
                return False
            if self.null("getset", ends) not in (None, found):
                return False
        self.null("expire", self.ttl_s)
        return True

    def unlock(self) -> None:
        self.null("delete")


class GetsetAfter(_Listing):
    def is_over(self, ends: bytes) -> bool:
        return int(time.time()) > int(ends)

    def try_lock(self) -> bool:
        ends = int(time.time()) + self.ttl_s
        if self.redis.setnx(self.key, ends):
            return True
        found = self.redis.get(self.key)
        if found is None or not self.is_over(found):
            return False
        before = self.redis.getset(self.key, ends)
        return before is not None and self.is_over(before)

    def unlock(self) -> None:
        found = self.redis.get(self.key)
        if found is not None and int(found) > int(time.time()):
            self.redis.delete(self.key)


class GetsetAt(GetsetAfter):
    def is_over(self, ends: bytes) -> bool:
        return int(time.time()) >= int(ends)


class Token(_Listing):
    def try_lock(self) -> bool:
        self.token = uuid.uuid4().hex
        return bool(self.redis.set(self.key, self.token, nx=True, px=self.ttl_s * 1000))

    def unlock(self) -> None:
        self.redis.eval(_COMPARE, 1, self.key, self.token)


class Java(Token):
    """One random string for an object that the threads of this process share."""

    def __init__(self, url: str, name: str, ttl: float) -> None:
        super().__init__(url, name, ttl)
        self.token = the_object(self.key)

    def try_lock(self) -> bool:
        return bool(self.redis.set(self.key, self.token, nx=True, px=self.ttl_s * 1000))


class Naive:
    """All servers, 2 s for each; a majority within the ttl; DEL everywhere after a failure; errors get through."""

    def __init__(self, urls: list[str], name: str, ttl: float) -> None:
        self.servers: list[Any] = [redis.Redis.from_url(url, socket_timeout=2) for url in urls]
        self.key, self.ttl_ms = f"listing.{name}", int(ttl * 1000)

    def try_lock(self) -> bool:
        self.token, began_s = uuid.uuid4().hex, time.time()
        count = sum(bool(server.set(self.key, self.token, nx=True, px=self.ttl_ms)) for server in self.servers)
        if count > len(self.servers) // 2 and (time.time() - began_s) * 1000 < self.ttl_ms:
            return True
        for server in self.servers:
            server.delete(self.key)
        return False

    def unlock(self) -> None:
        for server in self.servers:
            server.eval(_COMPARE, 1, self.key, self.token)


class Redlock:
    """A timeout for each server, a validity, compare and delete everywhere."""

    def __init__(self, urls: list[str], name: str, ttl: float) -> None:
        wait_s = 0.25
        made = (redis.Redis.from_url(url, socket_timeout=wait_s, socket_connect_timeout=wait_s) for url in urls)
        self.servers: list[Any] = list(made)
        self.key, self.ttl_ms = f"listing.{name}", int(ttl * 1000)
        self.granted: list[Any] = []

    def try_lock(self) -> bool:
        self.token, self.granted, began_s = uuid.uuid4().hex, [], time.time()
        for server in self.servers:
            try:
                if server.set(self.key, self.token, nx=True, px=self.ttl_ms):
                    self.granted.append(server)
            except redis.RedisError:
                pass
        left_ms = self.ttl_ms * 0.99 - 2 - (time.time() - began_s) * 1000
        if len(self.granted) > len(self.servers) // 2 and left_ms > 0:
            return True
        self.unlock()
        return False

    def unlock(self) -> None:
        self._release(self.servers)

    def _release(self, servers: list[Any]) -> None:
        for server in servers:
            try:
                server.eval(_COMPARE, 1, self.key, self.token)
            except redis.RedisError:
                pass


class Forgetful(Redlock):
    """Releases only where it read OK."""

    def unlock(self) -> None:
        self._release(self.granted)

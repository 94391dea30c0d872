"""A model of the server: the commands that scripts use, run by the scripts that ship.

Laws: a reply and the keys after it are what Redis and Valkey give (tests/differential compares them); the
clock is the caller's; a script's time stands still while it runs; a script uses only keys that it is given.

Theory: one Lua 5.1 for the whole process, since starting one costs far more than a call; a script is compiled
once for each number of keys and takes keys and arguments as its parameters, which is cheaper than filling
tables from Python. Values are bytes throughout, as on a server. Expiry is lazy, as a script sees it.
"""

from __future__ import annotations

import bisect
import fnmatch
import functools
import hashlib
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeAlias

import lupa.lua51 as lupa

from holdfast._core.keys import LockKeys, sharded_inbox
from holdfast._lua import SCRIPTS

__all__ = ["OK", "QUEUED", "Refused", "Server", "Status", "ZSet", "commands"]

Reply: TypeAlias = Any


class Status(bytes):
    """A status reply, as +OK."""


OK: Final = Status(b"OK")
QUEUED: Final = Status(b"QUEUED")

WRONGTYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"
OOM = "OOM command not allowed when used memory > 'maxmemory'."


class Refused(Exception):
    """The server's error reply: its whole text."""

    def __init__(self, said: str) -> None:
        super().__init__(said)
        self.message = said


class ZSet:
    """A sorted set: scores by member, and (score, member) in order."""

    __slots__ = ("order", "scores")

    def __init__(self) -> None:
        self.scores: dict[bytes, float] = {}
        self.order: list[tuple[float, bytes]] = []

    def put(self, member: bytes, score: float) -> bool:
        """Set a member's score; True if the member is new."""
        old = self.scores.get(member)
        if old is not None:
            if old == score:
                return False
            del self.order[bisect.bisect_left(self.order, (old, member))]
        self.scores[member] = score
        bisect.insort(self.order, (score, member))
        return old is None

    def drop(self, member: bytes) -> bool:
        """Remove a member; True if it was there."""
        old = self.scores.pop(member, None)
        if old is None:
            return False
        del self.order[bisect.bisect_left(self.order, (old, member))]
        return True

    def rank(self, member: bytes) -> int:
        return bisect.bisect_left(self.order, (self.scores[member], member))

    def copy(self) -> ZSet:
        twin = ZSet()
        twin.scores = dict(self.scores)
        twin.order = list(self.order)
        return twin


def _text(value: object) -> bytes:
    """An argument as the server gets it; numbers as Redis' Lua writes them."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bool):
        raise Refused("ERR Lua redis() command arguments must be strings or integers")
    if isinstance(value, int):
        return b"%d" % value if abs(value) < 10**17 else b"%.17g" % float(value)
    if isinstance(value, float):
        return b"%.17g" % value
    raise Refused("ERR Lua redis() command arguments must be strings or integers")


@functools.lru_cache(4096)
def _integer(value: bytes) -> int:
    """A number as Redis reads it: no blanks, no sign but a minus, within 64 bits."""
    if value == b"0":
        return 0
    digits = value[1:] if value[:1] == b"-" else value
    if not digits.isdigit() or digits[:1] == b"0":
        raise Refused("ERR value is not an integer or out of range")
    number = int(value)
    if not -(2**63) <= number < 2**63:
        raise Refused("ERR value is not an integer or out of range")
    return number


def _score(value: bytes) -> float:
    try:
        if value.strip() != value or b"_" in value:
            raise ValueError
        number = float(value)
    except ValueError:
        raise Refused("ERR value is not a valid float") from None
    if number != number:
        raise Refused("ERR value is not a valid float")
    return number


def _shown(score: float) -> bytes:
    """A score as a reply holds it."""
    if score == int(score) and abs(score) < 1e17 if score not in (float("inf"), float("-inf")) else False:
        return b"%d" % int(score)
    return b"%.17g" % score


def _bound(value: bytes) -> tuple[float, bool]:
    """(score, exclusive?) of a range's end."""
    exclusive = value[:1] == b"("
    try:
        return float(value[1:] if exclusive else value), exclusive
    except ValueError:
        raise Refused("ERR min or max is not a float") from None


Handler: TypeAlias = Callable[["Server", Sequence[bytes]], Reply]
#: By name: what carries it out, how many arguments it takes at least and at most, and whether it may need memory.
_COMMANDS: dict[bytes, tuple[Handler, int, int, bool]] = {}
#: Those whose arguments are no keys, and those all of whose arguments are keys; of all others the first one is a key.
_WITHOUT_KEYS: Final = frozenset({b"TIME", b"INFO", b"LASTSAVE", b"PUBLISH", b"SPUBLISH", b"PUBSUB"})
_KEYS_ALONE: Final = frozenset({b"DEL", b"EXISTS"})
_ANY_NUMBER: Final = 1_000_000
_ONLY_BYTES: Final = frozenset({bytes}).issuperset


def _wrong_number(name: bytes) -> Refused:
    return Refused(f"ERR wrong number of arguments for '{name.decode().lower()}' command")


def _command(name: str, arity: int, *, grows: bool = False) -> Callable[[Handler], Handler]:
    """Register a command. `arity` counts its name, as COMMAND INFO does; `grows`: refused without memory."""

    def register(handler: Handler) -> Handler:
        word = name.encode()
        least, most = (-arity - 1, _ANY_NUMBER) if arity < 0 else (arity - 1, arity - 1)
        _COMMANDS[word] = _COMMANDS[word.lower()] = handler, least, most, grows
        return handler

    return register


def commands() -> list[str]:
    """The names of the commands that it knows."""
    return sorted({name.decode().upper() for name in _COMMANDS})


class Server:
    """One server's data and its clock. `now_us` tells its wall clock; `numsub` and `publish` are the world's."""

    def __init__(self, now_us: Callable[[], int]) -> None:
        self.data: dict[bytes, Any] = {}
        self.expires: dict[bytes, int] = {}
        self.touched: dict[bytes, None] = {}
        self.now_ms = 0
        self.time_us = 0
        self.out_of_memory = False
        self.read_only = False
        self.publish: Callable[[bytes, bytes], int] = lambda _channel, _message: 0
        self.numsub: Callable[[bytes], int] = lambda _channel: 0
        self.started_us = 0
        self.run_id = b"0" * 40
        self.replid = b"0" * 40  # another one when it becomes the master
        self._now_us = now_us

    def listens(self, keys: LockKeys, token: bytes) -> bool:
        """True if the client with that token hears here of what has those keys."""
        client = token.decode().partition(":")[0]
        if self.numsub((keys.inboxes + client).encode()):
            return True
        return self.numsub(sharded_inbox(keys.inboxes, keys.lock, client).encode()) > 0

    # -- what a client may ask --------------------------------------------------------------------

    def script(self, name: str, keys: Sequence[str | bytes], args: Sequence[str | int | bytes]) -> Reply:
        """EVALSHA of a script that ships. Raises `Refused`."""
        self.time_us = now_us = self._now_us()
        self.now_ms = now_us // 1000
        self.touched.clear()
        return _LUA.run(self, name, keys, args)

    def text(self, text: str, keys: Sequence[str | bytes], args: Sequence[str | int | bytes]) -> Reply:
        """EVAL of any text. Raises `Refused`."""
        self._look()
        return _LUA.run(self, text, keys, args, is_name=False)

    def command(self, *args: str | bytes | int | float) -> Reply:
        """A plain command. Raises `Refused`."""
        self._look()
        words = [_text(arg) for arg in args]
        found = _COMMANDS.get(words[0].upper())
        if found is None:
            raise Refused(f"ERR unknown command '{words[0].decode()}'")
        handler, least, most, grows = found
        if not least < len(words) <= most + 1:
            raise _wrong_number(words[0])
        if self.out_of_memory and grows:
            raise Refused(OOM)
        return handler(self, words[1:])

    def _look(self) -> None:
        self.time_us = self._now_us()
        self.now_ms = self.time_us // 1000
        self.touched.clear()

    # -- data -------------------------------------------------------------------------------------

    def value(self, key: bytes) -> Any:
        """Return what is stored under the key now, or None."""
        when = self.expires.get(key)
        if when is not None and self.now_ms > when:
            self.remove(key)
            return None
        return self.data.get(key)

    def typed(self, key: bytes, kind: type) -> Any:
        value = self.value(key)
        if value is not None and type(value) is not kind:
            raise Refused(WRONGTYPE)
        return value

    def make(self, key: bytes, kind: type) -> Any:
        """Return what is stored under the key, created if there was nothing."""
        value = self.typed(key, kind)
        if value is None:
            value = self.data[key] = kind()
        self.touched[key] = None
        return value

    def remove(self, key: bytes) -> bool:
        self.touched[key] = None
        self.expires.pop(key, None)
        return self.data.pop(key, None) is not None

    def tidy(self, key: bytes, value: Any) -> None:
        """A collection without members is gone."""
        self.touched[key] = None
        if not (value.scores if isinstance(value, ZSet) else value):
            self.remove(key)

    def snapshot(self, at_ms: int | None = None) -> dict[bytes, tuple[Any, int | None]]:
        """Return every live key with its value and the ms of its end."""
        now_ms = self._now_us() // 1000 if at_ms is None else at_ms
        found: dict[bytes, tuple[Any, int | None]] = {}
        for key, value in self.data.items():
            when = self.expires.get(key)
            if when is None or now_ms <= when:
                found[key] = value, when
        return found

    def peek(self, key: bytes, now_ms: int) -> Any:
        """Return what is stored under the key at that time, changing nothing."""
        when = self.expires.get(key)
        return None if when is not None and now_ms > when else self.data.get(key)


def copied(value: Any) -> Any:
    """A value of its own, for a replica or a snapshot."""
    return value if isinstance(value, bytes) or value is None else value.copy()


# -- the commands ---------------------------------------------------------------------------------


def _expire_at(server: Server, key: bytes, at_ms: int) -> int:
    if server.value(key) is None:
        return 0
    server.touched[key] = None
    if at_ms <= server.now_ms:
        server.remove(key)
    else:
        server.expires[key] = at_ms
    return 1


@_command("GET", 2)
def _get(server: Server, args: Sequence[bytes]) -> Reply:
    # As `typed`, written out: nothing else is asked for so often.
    key = args[0]
    when = server.expires.get(key)
    if when is not None and server.now_ms > when:
        server.remove(key)
        return None
    value = server.data.get(key)
    if value is not None and type(value) is not bytes:
        raise Refused(WRONGTYPE)
    return value


@_command("GETRANGE", 4)
def _getrange(server: Server, args: Sequence[bytes]) -> Reply:
    value = server.typed(args[0], bytes) or b""
    first, last, count = _integer(args[1]), _integer(args[2]), len(value)
    first = max(first + count, 0) if first < 0 else first
    last = max(last + count, 0) if last < 0 else last
    return bytes(value[first : last + 1])


@_command("SET", -3, grows=True)
def _set(server: Server, args: Sequence[bytes]) -> Reply:
    key, value = args[0], args[1]
    nx = xx = keep = get = False
    expected: bytes | None = None
    at_ms: int | None = None
    position, count = 2, len(args)
    while position < count:
        option = args[position].upper()
        position += 1
        if option == b"NX" and not xx:
            nx = True
        elif option == b"XX" and not nx:
            xx = True
        elif option == b"KEEPTTL" and at_ms is None:
            keep = True
        elif option == b"IFEQ" and position < count:
            expected = args[position]
            position += 1
        elif option == b"GET":
            get = True
        elif option in (b"PX", b"EX", b"PXAT", b"EXAT") and at_ms is None and not keep and position < count:
            number = _integer(args[position])
            position += 1
            if number <= 0:
                raise Refused("ERR invalid expire time in 'set' command")
            at_ms = number * (1000 if option[:1] == b"E" else 1)
            if option in (b"PX", b"EX"):
                at_ms += server.now_ms
        else:
            raise Refused("ERR syntax error")
    old = server.value(key)
    if get and old is not None and not isinstance(old, bytes):
        raise Refused(WRONGTYPE)
    if (nx and old is not None) or (xx and old is None) or (expected is not None and old != expected):
        return old if get else None
    server.touched[key] = None
    server.data[key] = value
    if at_ms is not None:
        server.expires[key] = at_ms
        if at_ms <= server.now_ms:
            server.remove(key)
    elif not keep:
        server.expires.pop(key, None)
    return old if get else OK


@_command("SETNX", 3, grows=True)
def _setnx(server: Server, args: Sequence[bytes]) -> Reply:
    return 1 if _set(server, [*args, b"NX"]) is OK else 0


@_command("GETSET", 3, grows=True)
def _getset(server: Server, args: Sequence[bytes]) -> Reply:
    return _set(server, [*args, b"GET"])


@_command("DEL", -2)
def _del(server: Server, args: Sequence[bytes]) -> Reply:
    return sum(1 for key in args if server.value(key) is not None and server.remove(key))


@_command("EXISTS", -2)
def _exists(server: Server, args: Sequence[bytes]) -> Reply:
    found = 0
    data, expires, now_ms = server.data, server.expires, server.now_ms
    for key in args:
        if key in data and (key not in expires or now_ms <= expires[key] or server.value(key) is not None):
            found += 1
    return found


@_command("PEXPIRE", -3)
def _pexpire(server: Server, args: Sequence[bytes]) -> Reply:
    return _expire_at(server, args[0], server.now_ms + _integer(args[1]))


@_command("EXPIRE", -3)
def _expire(server: Server, args: Sequence[bytes]) -> Reply:
    return _expire_at(server, args[0], server.now_ms + 1000 * _integer(args[1]))


@_command("PEXPIREAT", -3)
def _pexpireat(server: Server, args: Sequence[bytes]) -> Reply:
    return _expire_at(server, args[0], _integer(args[1]))


@_command("PTTL", 2)
def _pttl(server: Server, args: Sequence[bytes]) -> Reply:
    if server.value(args[0]) is None:
        return -2
    when = server.expires.get(args[0])
    return -1 if when is None else when - server.now_ms


@_command("TIME", 1)
def _time(server: Server, args: Sequence[bytes]) -> Reply:
    return [b"%d" % (server.time_us // 1_000_000), b"%d" % (server.time_us % 1_000_000)]


@_command("INCR", 2, grows=True)
def _incr(server: Server, args: Sequence[bytes]) -> Reply:
    old = server.typed(args[0], bytes)
    number = (0 if old is None else _integer(old)) + 1
    if number >= 2**63:
        raise Refused("ERR increment or decrement would overflow")
    server.data[args[0]] = b"%d" % number
    server.touched[args[0]] = None
    return number


# sorted sets


@_command("ZADD", -4, grows=True)
def _zadd(server: Server, args: Sequence[bytes]) -> Reply:
    options: set[bytes] = set()
    position = 1
    while position < len(args) and args[position].upper() in (b"NX", b"XX", b"GT", b"LT", b"CH", b"INCR"):
        options.add(args[position].upper())
        position += 1
    pairs = args[position:]
    if not pairs or len(pairs) % 2:
        raise Refused("ERR syntax error")
    if b"NX" in options and b"XX" in options:
        raise Refused("ERR XX and NX options at the same time are not compatible")
    if len(options & {b"NX", b"GT", b"LT"}) > 1:
        raise Refused("ERR GT, LT, and/or NX options at the same time are not compatible")
    if b"INCR" in options:
        raise Refused("ERR the model has no ZADD INCR")
    scored = [(_score(pairs[at]), pairs[at + 1]) for at in range(0, len(pairs), 2)]
    zset: ZSet | None = server.typed(args[0], ZSet)
    if zset is None:
        if b"XX" in options:
            return 0
        zset = server.make(args[0], ZSet)
    added = changed = 0
    for score, member in scored:
        old = zset.scores.get(member)
        if old is None:
            if b"XX" in options:
                continue
        elif b"NX" in options or (b"GT" in options and score <= old) or (b"LT" in options and score >= old):
            continue
        if zset.put(member, score):
            added += 1
        elif old != score:
            changed += 1
    if added or changed:
        server.touched[args[0]] = None
    return added + changed if b"CH" in options else added


@_command("ZREM", -3)
def _zrem(server: Server, args: Sequence[bytes]) -> Reply:
    zset = server.typed(args[0], ZSet)
    if zset is None:
        return 0
    gone = sum(1 for member in args[1:] if zset.drop(member))
    if gone:
        server.tidy(args[0], zset)
    return gone


@_command("ZPOPMIN", -2)
def _zpopmin(server: Server, args: Sequence[bytes]) -> Reply:
    return _pop(server, args, 0)


@_command("ZPOPMAX", -2)
def _zpopmax(server: Server, args: Sequence[bytes]) -> Reply:
    return _pop(server, args, -1)


def _pop(server: Server, args: Sequence[bytes], end: int) -> Reply:
    zset = server.typed(args[0], ZSet)
    count = _integer(args[1]) if len(args) > 1 else 1
    if zset is None:
        return []
    popped: list[bytes] = []
    while count > 0 and zset.order:
        score, member = zset.order[end]
        zset.drop(member)
        popped += (member, _shown(score))
        count -= 1
    if popped:
        server.tidy(args[0], zset)
    return popped


@_command("ZRANK", 3)
def _zrank(server: Server, args: Sequence[bytes]) -> Reply:
    zset = server.typed(args[0], ZSet)
    return None if zset is None or args[1] not in zset.scores else zset.rank(args[1])


@_command("ZSCORE", 3)
def _zscore(server: Server, args: Sequence[bytes]) -> Reply:
    zset = server.typed(args[0], ZSet)
    return None if zset is None or args[1] not in zset.scores else _shown(zset.scores[args[1]])


@_command("ZCARD", 2)
def _zcard(server: Server, args: Sequence[bytes]) -> Reply:
    zset = server.typed(args[0], ZSet)
    return 0 if zset is None else len(zset.scores)


def _between(zset: ZSet | None, least: bytes, most: bytes) -> list[tuple[float, bytes]]:
    low, above = _bound(least)
    high, below = _bound(most)
    if zset is None:
        return []
    return [
        entry
        for entry in zset.order
        if (entry[0] > low or (entry[0] == low and not above)) and (entry[0] < high or (entry[0] == high and not below))
    ]


def _listed(entries: Iterable[tuple[float, bytes]], scores: bool) -> list[bytes]:
    if not scores:
        return [member for _, member in entries]
    return [part for score, member in entries for part in (member, _shown(score))]


@_command("ZCOUNT", 4)
def _zcount(server: Server, args: Sequence[bytes]) -> Reply:
    return len(_between(server.typed(args[0], ZSet), args[1], args[2]))


def _slice(values: Sequence[Any], first: bytes, last: bytes) -> Sequence[Any]:
    start, stop, count = _integer(first), _integer(last), len(values)
    start = max(start + count, 0) if start < 0 else start
    stop = stop + count if stop < 0 else stop
    return values[start : stop + 1] if start <= stop else []


@_command("ZRANGE", -4)
def _zrange(server: Server, args: Sequence[bytes]) -> Reply:
    options = {option.upper() for option in args[3:]}
    if options - {b"WITHSCORES"}:
        raise Refused("ERR the model has only ZRANGE key start stop [WITHSCORES]")
    zset = server.typed(args[0], ZSet)
    found = _slice([] if zset is None else zset.order, args[1], args[2])
    return _listed(found, bool(options))


@_command("ZRANGEBYSCORE", -4)
def _zrangebyscore(server: Server, args: Sequence[bytes]) -> Reply:
    found = _between(server.typed(args[0], ZSet), args[1], args[2])
    scores = False
    position = 3
    while position < len(args):
        option = args[position].upper()
        if option == b"WITHSCORES":
            scores = True
            position += 1
        elif option == b"LIMIT" and position + 2 < len(args):
            skip, most = _integer(args[position + 1]), _integer(args[position + 2])
            found = [] if skip < 0 else found[skip:] if most < 0 else found[skip : skip + most]
            position += 3
        else:
            raise Refused("ERR syntax error")
    return _listed(found, scores)


@_command("ZREMRANGEBYSCORE", 4)
def _zremrangebyscore(server: Server, args: Sequence[bytes]) -> Reply:
    zset = server.typed(args[0], ZSet)
    gone = _between(zset, args[1], args[2])
    for _, member in gone:
        zset.drop(member)
    if gone:
        server.tidy(args[0], zset)
    return len(gone)


@_command("ZREMRANGEBYRANK", 4)
def _zremrangebyrank(server: Server, args: Sequence[bytes]) -> Reply:
    zset = server.typed(args[0], ZSet)
    gone = list(_slice([] if zset is None else zset.order, args[1], args[2]))
    for _, member in gone:
        zset.drop(member)
    if gone:
        server.tidy(args[0], zset)
    return len(gone)


# hashes


@_command("HSET", -4, grows=True)
def _hset(server: Server, args: Sequence[bytes]) -> Reply:
    if len(args) % 2 == 0:
        raise Refused("ERR wrong number of arguments for 'hset' command")
    table = server.make(args[0], dict)
    before = len(table)
    for at in range(1, len(args), 2):
        table[args[at]] = args[at + 1]
    return len(table) - before


@_command("HMGET", -3)
def _hmget(server: Server, args: Sequence[bytes]) -> Reply:
    table = server.typed(args[0], dict) or {}
    return [table.get(field) for field in args[1:]]


# keys

#: Of how many pages a walk over all keys consists.
_PAGES = 4


@_command("SCAN", -2)
def _scan(server: Server, args: Sequence[bytes]) -> Reply:
    page, pattern = int(args[0]), args[2].decode()
    there = [key for key in list(server.data) if zlib.crc32(key) % _PAGES == page and server.value(key) is not None]
    return [b"%d" % ((page + 1) % _PAGES), [key for key in there if fnmatch.fnmatchcase(key.decode(), pattern)]]


# messages


@_command("PUBLISH", 3)
@_command("SPUBLISH", 3)
def _publish(server: Server, args: Sequence[bytes]) -> Reply:
    return server.publish(args[0], args[1])


@_command("PUBSUB", -2)
def _pubsub(server: Server, args: Sequence[bytes]) -> Reply:
    if args[0].upper() not in (b"NUMSUB", b"SHARDNUMSUB"):  # sharded channels have other names
        raise Refused("ERR the model has only PUBSUB NUMSUB and SHARDNUMSUB")
    counted: list[Any] = []
    for channel in args[1:]:
        counted += (channel, server.numsub(channel))
    return counted


@_command("INFO", -1)
def _info(server: Server, args: Sequence[bytes]) -> Reply:
    section = args[0].lower() if args else b""
    if section == b"replication":
        role = b"slave" if server.read_only else b"master"
        return b"# Replication\r\nrole:%s\r\nmaster_replid:%s\r\n" % (role, server.replid)
    if section == b"server":
        uptime_s = max(server.time_us - server.started_us, 0) // 1_000_000
        return b"# Server\r\nrun_id:%s\r\nuptime_in_seconds:%d\r\n" % (server.run_id, uptime_s)
    raise Refused("ERR the model has only INFO replication and INFO server")


@_command("LASTSAVE", 1)
def _lastsave(server: Server, args: Sequence[bytes]) -> Reply:
    return server.started_us // 1_000_000


# -- Lua ------------------------------------------------------------------------------------------

_PRELUDE = rb"""
local call, pcall_, sha1hex = ...
local type, unpack, setfenv = type, unpack, setfenv
local env = {
  redis = {
    call = call,
    pcall = pcall_,
    sha1hex = sha1hex,
    log = function() end,
    LOG_DEBUG = 0, LOG_VERBOSE = 1, LOG_NOTICE = 2, LOG_WARNING = 3,
    error_reply = function(text) return {err = text} end,
    status_reply = function(text) return {ok = text} end,
  },
  assert = assert, error = error, ipairs = ipairs, math = math, next = next, pairs = pairs, pcall = pcall,
  rawequal = rawequal, rawget = rawget, rawset = rawset, select = select, setmetatable = setmetatable,
  getmetatable = getmetatable, string = string, table = table, tonumber = tonumber, tostring = tostring,
  type = type, unpack = unpack, xpcall = xpcall,
}
setmetatable(env, {
  __index = function(_, name)
    error("Script attempted to access nonexistent global variable '" .. tostring(name) .. "'", 2)
  end,
  __newindex = function(_, name) error("Attempt to modify a readonly table", 2) end,
})
-- A script's result as flat values: a table's part up to the first nil, as the server takes it.
local function flat(result)
  if type(result) ~= 'table' then
    return 0, result
  end
  if rawget(result, 'err') ~= nil then
    return 2, result.err
  end
  if rawget(result, 'ok') ~= nil then
    return 3, result.ok
  end
  local count = 0
  while result[count + 1] ~= nil do
    count = count + 1
  end
  return 1, unpack(result, 1, count)
end
return flat, function(...) return {...} end, {ok = 'OK'}, function(text) return {err = text} end,
  function(text) return {ok = text} end, function(chunk) return setfenv(chunk, env) end
"""

#: Words that are kept as bytes.
_WORDS_MAX: Final = 5_000

_KIND_VALUE, _KIND_ARRAY, _KIND_ERROR, _KIND_STATUS = 0, 1, 2, 3


class _Words(dict["str | int | bytes", bytes]):
    """Words as the server gets them; those that come again and again (names, tokens, settings) are found ready."""

    def __missing__(self, word: str | int | bytes) -> bytes:
        if len(self) >= _WORDS_MAX:
            self.clear()
        text = word.encode() if isinstance(word, str) else word if isinstance(word, bytes) else b"%d" % word
        self[word] = text
        return text


class _Engine:
    """The one Lua of this process; `server` is the one whose script runs."""

    def __init__(self) -> None:
        lua = lupa.LuaRuntime(encoding=None, unpack_returned_tuples=True, register_eval=False, register_builtins=False)
        self._lua = lua
        self._server: Server = Server(lambda: 0)
        self._starved = False
        self._wrote = False
        self._keys: set[bytes] = set()
        self._loaded: dict[tuple[str, int], Any] = {}
        self._word = _Words().__getitem__
        prelude = lua.compile(_PRELUDE)
        self._flat, self._array, self._ok, self._error, self._status, self._sealed = prelude(
            self._call, self._pcall, lambda text: hashlib.sha1(_text(text)).hexdigest().encode()
        )

    def forget(self) -> None:
        """The scripts' texts have changed (a mutant): compile again."""
        self._loaded.clear()

    def run(
        self,
        server: Server,
        name: str,
        keys: Sequence[str | bytes],
        args: Sequence[str | int | bytes],
        *,
        is_name: bool = True,
    ) -> Reply:
        found = self._loaded.get((name, len(keys)))
        if found is None:
            found = self._load(name, SCRIPTS[name].text if is_name else name, len(keys))
        self._server = server
        self._starved = server.out_of_memory
        self._wrote = False
        word = self._word
        given = [*map(word, keys)]
        # (What notes that a holder is there has a name that only its token leads to: docs/design/0058.)
        self._keys = {*given, *[key + b":crash" for key in given if key.endswith(b":fence")]}
        try:
            reply = found(*given, *map(word, args))
        except Refused as refused:
            raise Refused(refused.message) from None
        except lupa.LuaError as error:
            raise Refused(f"ERR Error running script: {_said(error)}") from None
        if type(reply) is not tuple:
            return []  # an empty table: Lua gave its kind alone
        kind = reply[0]
        if kind == _KIND_ARRAY:
            return [self._python(part) for part in reply[1:]]
        value: Any = reply[1] if len(reply) > 1 else None
        if kind == _KIND_ERROR:
            raise Refused(value.decode())
        if kind == _KIND_STATUS:
            return Status(value)
        return self._python(value)

    def _load(self, name: str, whole: str, count: int) -> Any:
        text = whole.encode()
        # One line more would spoil the line numbers of errors.
        names = b"".join(b"k%d," % number for number in range(count))
        listed = b"".join(b"k%d," % number for number in range(count))
        head = b"local flat = ... return function(%s...) local function script(KEYS, ARGV) " % names
        tail = b"\nend return flat(script({%s}, {...})) end" % listed
        found = self._sealed(self._lua.compile(head + text + tail))(self._flat)
        self._loaded[name, count] = found
        return found

    def _python(self, value: Any) -> Reply:
        """A Lua value as the client gets it."""
        kind = type(value)
        if kind is int or kind is bytes or value is None:
            return value
        if kind is float:
            return int(value)
        if kind is bool:
            return 1 if value else None
        parts = self._flat(value)
        if type(parts) is not tuple:
            return []
        if parts[0] == _KIND_STATUS:
            return Status(parts[1])
        if parts[0] == _KIND_ERROR:
            return Refused(parts[1].decode())
        return [self._python(part) for part in parts[1:]]

    def _call(self, name: bytes, *args: Any) -> Any:
        """redis.call"""
        found = _COMMANDS.get(name) or _COMMANDS.get(name.upper())
        if found is None:
            raise Refused("ERR Unknown Redis command called from script")
        handler, least, most, grows = found
        if not least <= len(args) <= most:
            raise _wrong_number(name)
        if not _ONLY_BYTES(map(type, args)):
            args = tuple([_text(word) for word in args])
        if name not in _WITHOUT_KEYS and not self._keys.issuperset(args if name in _KEYS_ALONE else args[:1]):
            raise AssertionError(f"a script uses a key that it is not given: {name!r} {args!r}")
        server = self._server
        if self._starved and grows and not server.touched:
            # A script that has written already may go on.
            raise Refused(OOM)
        reply = handler(server, args)
        kind = type(reply)
        if kind is bytes or kind is int:
            return reply
        if reply is None:
            return False
        if reply is OK:
            return self._ok
        if kind is list:
            lua_value = self._lua_value
            return self._array(*[part if type(part) is bytes else lua_value(part) for part in reply])
        return self._lua_value(reply)

    def _lua_value(self, reply: Reply) -> Any:
        if reply is None:
            return False
        if type(reply) is Status:
            return self._status(bytes(reply))
        if type(reply) is list:
            return self._array(*[self._lua_value(part) for part in reply])
        return reply

    def _pcall(self, name: bytes, *args: Any) -> Any:
        """redis.pcall"""
        try:
            return self._call(name, *args)
        except Refused as refused:
            return self._error(refused.message.encode())


def _said(error: Exception) -> str:
    said = error.args[0] if error.args else ""
    return said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)


_LUA = _Engine()
#: To be called when the texts in `holdfast._lua.SCRIPTS` were replaced.
forget_scripts: Final = _LUA.forget

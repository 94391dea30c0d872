"""The lock on a server that knows no scripts: plain commands, and polling.

Laws: every write compares the token; a fencing token is only written while the lock is ours; what an acquisition may
have left is given back.

Theory: SET NX PX takes it, with one command. To compare and delete in one command needs DELIFEQ (Valkey 9) or DELEX
(Redis 8.4); which of them the server has is found out by using them, once. Elsewhere, and to extend, WATCH guards the
comparison: EXEC does nothing when the key has changed since, so that an EXEC that comes late undoes nothing. There is
no queue, and nothing that buries a token: an acquire that is delayed by more than its give-back blocks the lock until
its ttl has passed.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence

from holdfast._core.describe import beginning_of
from holdfast._core.effects import Command, Now, Random, Reply, Sleep, Spawn
from holdfast._core.failure import RequestFailed
from holdfast._core.keys import LockKeys
from holdfast._core.optimistic import CONFLICT, finish, leave, read, watch
from holdfast._core.record import RENEWAL, Order
from holdfast._core.replies import COUNT, MAYBE, MAYBE_DONE, MOMENT, LockSeen
from holdfast._core.retry import Backoff, Retry
from holdfast._core.settings import Settings
from holdfast._core.tokens import TOKEN_MAX
from holdfast._core.validity import deadline
from holdfast._core.waiting import Busy, Grant, once_more, request_timeout_for
from holdfast.errors import shown

__all__ = ["PLAIN", "Scripts", "acquire", "give_back", "inspect", "no_scripts", "release", "renew"]

#: `Grant.more` of a grant without scripts.
PLAIN = ["plain"]

#: How often a write is tried that finds its keys changed.
_TRIES = 5
#: A fencing token, and what scripts keep behind it: see `_lua/count.lua`.
_FENCE = re.compile(rb"(-?[0-9]{1,17})(?: [0-9]+ [0-9]+)?")
#: See `_lua/format.lua`.
_NEWER = re.compile(rb"F([0-9]{1,9}) ")

_WARNING = (
    "{said}: {who}, so locks use plain commands. They still exclude each other and have fencing tokens, but waiters "
    "poll and are not served in arrival order, and each step takes more round trips{way_out}"
)
_NOBODY = "this server runs no scripts"
_NOT_US = "this server runs no scripts for us"
_RIGHTS = ". Give the user +evalsha +eval +script|load, if that was not meant"


class Scripts:
    """What a client knows of its server: whether it runs scripts, and which comparing commands it has."""

    __slots__ = ("deletes", "refused")

    def __init__(self) -> None:
        self.refused = False
        #: Ways to compare and delete that may work still, the best first.
        self.deletes: list[str] = ["DELIFEQ", "DELEX", "WATCH"]

    def refuse(self, failure: RequestFailed) -> None:
        """Remember that there are none, and say what that means."""
        if not self.refused:
            self.refused = True
            ours = failure.kind == "NOPERM"
            who, way_out = (_NOT_US, _RIGHTS) if ours else (_NOBODY, "")
            warnings.warn(_WARNING.format(said=failure.message, who=who, way_out=way_out), RuntimeWarning, stacklevel=2)


async def no_scripts(failure: RequestFailed, keys: LockKeys, settings: Settings) -> bool:
    """True if this failure says that scripts are not available, but plain commands are.

    The server may know none, or not let this user run them. A user who may neither run scripts nor these commands
    is better told of the scripts: so they are tried first, on a key that is only looked at.
    """
    said = failure.message.lower()
    if "eval" not in said:
        return False
    if failure.kind == "ERR":
        return "unknown command" in said
    if failure.kind != "NOPERM":
        return False
    session = f"may we {keys.lock} {await Random()}"
    try:
        await watch(session, (keys.lock,), settings.request_timeout_s)
        await read(session, keys.lock, ("GET", keys.lock), settings.request_timeout_s, MAYBE)
        await read(session, keys.lock, ("TIME",), settings.request_timeout_s, MOMENT)
        await finish(session, keys.lock, (), settings.request_timeout_s)
    except RequestFailed:
        return False
    return True


def _lacks(failure: RequestFailed) -> bool:
    """True if the server does not know the command, or this form of it."""
    said = failure.message.lower()
    return (failure.kind == "ERR" and ("unknown command" in said or "syntax error" in said)) or failure.kind == "NOPERM"


async def _guarded(
    keys: LockKeys, token: str, request_timeout_s: float, act: Sequence[str | int], at_least_ms: int | None = None
) -> bool:
    """Do `act` if the lock is held with `token`, and does not change meanwhile.

    `at_least_ms`: this, or what is left of its time if that is more, is the last argument of `act`.
    """
    # Of its own: a renewal, an extension and a release of one lease may be under way together.
    session = f"plain {token} {await Random()}"
    try:
        for _ in range(_TRIES):
            await watch(session, (keys.lock,), request_timeout_s)
            held = _is(await read(session, keys.lock, ("GET", keys.lock), request_timeout_s, MAYBE), token)
            if held and at_least_ms is not None:
                left_ms = await read(session, keys.lock, ("PTTL", keys.lock), request_timeout_s, COUNT)
                act = (*act[:2], max(left_ms, at_least_ms))
            written = await finish(session, keys.lock, [act] if held else [], request_timeout_s)
            if written is not CONFLICT:
                return held
    except RequestFailed:
        raise  # its connection is closed
    except BaseException:
        await Spawn(leave(session, keys.lock, request_timeout_s))
        raise
    raise RequestFailed("WATCH", "the lock's key changes all the time", "", maybe_executed=True, transient=True)


def _is(value: Reply, token: str) -> bool:
    return value is not None and _text(value) == token


async def _holder(keys: LockKeys, request_timeout_s: float) -> str:
    """Return what the lock's key holds, or "". Cut to the length of a token: others may store any size."""
    value = await beginning_of(keys.lock, TOKEN_MAX, request_timeout_s)
    return "" if value is None else _text(value[:TOKEN_MAX])


def _fence(keys: LockKeys, value: Reply) -> int:
    """Parse the last fencing token; 0 for nothing. Raises `RequestFailed` when it cannot grow."""
    if value is None:
        return 0
    found = _FENCE.fullmatch(value)
    if found is not None and int(found[1]) < 2**53 - 1:
        return int(found[1])
    newer = _NEWER.match(value)
    if newer is not None:
        said = (
            f"NEWERFORMAT the key {keys.fence} is in format {int(newer[1])}, and this version of holdfast knows only "
            "format 1: update it"
        )
        raise RequestFailed("NEWERFORMAT", said, "", maybe_executed=False, transient=False)
    said = (
        f"BADFENCE the key {keys.fence} has to hold a fencing token, a whole number below 2^53 - 1, and holds "
        f'"{shown(_text(value[:64]))}": set it to the last token that was given, or delete it to go on from the '
        "server's time"
    )
    raise RequestFailed("BADFENCE", said, "", maybe_executed=False, transient=False)


def _text(value: Reply) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


async def _delete(keys: LockKeys, token: str, request_timeout_s: float, scripts: Scripts) -> bool:
    while True:
        way = scripts.deletes[0]
        if way == "WATCH":
            return await _guarded(keys, token, request_timeout_s, ("DEL", keys.lock))
        args = (way, keys.lock, token) if way == "DELIFEQ" else (way, keys.lock, "IFEQ", token)
        try:
            return bool(await Command(args, request_timeout_s, key=keys.lock, fits=COUNT) == 1)
        except RequestFailed as failure:
            if not _lacks(failure):
                raise
            scripts.deletes = [other for other in scripts.deletes if other != way]


async def renew(
    keys: LockKeys, token: str, scripts: Scripts, settings: Settings, ttl_ms: int, order: Order = RENEWAL
) -> bool:
    """Extend to `ttl_ms` from now, a renewal at least to that; False when we are not the holder.

    Never with SET … IFEQ, which would shorten what was extended since, if it came late.
    """
    request_timeout_s = request_timeout_for(ttl_ms, settings)
    at_least_ms = None if order.sets else ttl_ms
    return await _guarded(keys, token, request_timeout_s, ("PEXPIRE", keys.lock, ttl_ms), at_least_ms)


async def release(keys: LockKeys, token: str, ttl_ms: int, scripts: Scripts, settings: Settings) -> bool:
    """Release; False when we were not the holder any more. Repeated for a short while, then left to the background."""
    retry = Retry(settings, until=await Now() + settings.short_retry_s)
    doubtful = False
    while True:
        try:
            return await _delete(keys, token, request_timeout_for(ttl_ms, settings), scripts) or doubtful
        except RequestFailed as failure:
            doubtful = doubtful or failure.maybe_executed
            if not await retry.again(failure):
                await Spawn(give_back(keys, token, ttl_ms, scripts, settings))
                raise


async def give_back(keys: LockKeys, token: str, ttl_ms: int, scripts: Scripts, settings: Settings) -> None:
    """Undo whatever an acquire with this token has done; tried until the ttl has passed."""
    retry = Retry(settings, until=await Now() + ttl_ms / 1000 + 1.0)
    while True:
        try:
            await _delete(keys, token, request_timeout_for(ttl_ms, settings), scripts)
            return
        except RequestFailed as failure:
            if not await retry.again(failure, unsettled=True):
                return  # the ttl ends it


async def _next_fence(keys: LockKeys, token: str, request_timeout_s: float, settings: Settings) -> int | None:
    """The next fencing token, as fence.lua makes it; None when the lock is ours no more."""
    session = f"plain {token}"
    try:
        for _ in range(_TRIES):
            last = await Command(("GET", keys.fence), request_timeout_s, key=keys.lock, fits=MAYBE)
            seconds, micros = await Command(("TIME",), request_timeout_s, key=keys.lock, fits=MOMENT)
            fence = max(_fence(keys, last) + 1, int(seconds) * 1_000_000 + int(micros))
            await watch(session, (keys.lock, keys.fence), request_timeout_s)
            held = _is(await read(session, keys.lock, ("GET", keys.lock), request_timeout_s, MAYBE), token)
            same = await read(session, keys.lock, ("GET", keys.fence), request_timeout_s, MAYBE) == last
            write = ("SET", keys.fence, fence, "PX", settings.fence_ms)
            written = await finish(session, keys.lock, [write] if held and same else [], request_timeout_s)
            if not held:
                return None
            if same and written is not CONFLICT:
                return fence
    except RequestFailed:
        raise  # its connection is closed
    except BaseException:
        await Spawn(leave(session, keys.lock, request_timeout_s))
        raise
    return None


async def acquire(
    keys: LockKeys, token: str, ttl_ms: int, timeout_s: float | None, scripts: Scripts, settings: Settings
) -> Grant | Busy:
    """Take the lock, polling `timeout_s` at most (None: as long as it takes, 0: once)."""
    began_at = now = await Now()
    give_up_at = None if timeout_s is None else began_at + timeout_s
    request_timeout_s = request_timeout_for(ttl_ms, settings)
    polls = Backoff(settings.foreign_poll_s, settings.foreign_poll_max_s)
    asked_at: float | None = None  # of the first request that may have taken it
    limit_s = settings.retry_limit_s if give_up_at is None else settings.short_retry_s
    retry = Retry(settings, limit_s, until=give_up_at or 0.0)
    taken = False
    try:
        while True:
            holder: str | None = None
            try:
                if asked_at is None:
                    asked_at = now
                args = ("SET", keys.lock, token, "NX", "PX", ttl_ms)
                if await Command(args, request_timeout_s, key=keys.lock, fits=MAYBE_DONE) is None:
                    holder = await _holder(keys, request_timeout_s) or None
                else:
                    holder = token
                if holder == token:
                    fence = await _next_fence(keys, token, request_timeout_s, settings)
                    now = await Now()
                    if fence is not None and now < deadline(asked_at, ttl_ms):
                        taken = True
                        return Grant(fence, asked_at, PLAIN)
                    await _delete(keys, token, request_timeout_s, scripts)
                asked_at = None
                retry.passed()
            except RequestFailed as failure:
                if timeout_s == 0 or not await retry.again(failure):
                    raise
            now = await Now()
            if give_up_at is not None and now >= give_up_at:
                return Busy(holder, now - began_at)
            pause_s = await polls.next_s()
            if give_up_at is not None:
                pause_s = min(pause_s, give_up_at - now)
            await Sleep(pause_s)
            now = await Now()
    finally:
        if not taken and asked_at is not None:
            await Spawn(give_back(keys, token, ttl_ms, scripts, settings))


async def inspect(keys: LockKeys, request_timeout_s: float) -> LockSeen:
    """Look at the lock; no waiters, since there is no queue."""
    holder = await _holder(keys, request_timeout_s)
    remaining_ms: int = await once_more(Command(("PTTL", keys.lock), request_timeout_s, key=keys.lock, fits=COUNT))
    fence = await once_more(Command(("GET", keys.fence), request_timeout_s, key=keys.lock, fits=MAYBE))
    return LockSeen(holder, remaining_ms, _fence(keys, fence), 0)

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
from collections.abc import Callable, Sequence

from holdfast._core.describe import beginning_of
from holdfast._core.effects import Command, Protocol, Reply, Spawn, driver
from holdfast._core.failure import RequestFailed
from holdfast._core.keys import LockKeys
from holdfast._core.kinds import LOCK
from holdfast._core.optimistic import CONFLICT, finish, leave, read, watch
from holdfast._core.record import RENEWAL, Order
from holdfast._core.replies import COUNT, MAYBE, MAYBE_DONE, MOMENT, LockSeen, text_of
from holdfast._core.retry import Backoff
from holdfast._core.settings import Settings
from holdfast._core.tokens import TOKEN_MAX
from holdfast._core.waiting import Acquisition, once_more, request_timeout_for
from holdfast.errors import shown

#: `Grant.more` of a grant without scripts.
PLAIN = ["plain"]

#: How often a write is tried that finds its keys changed.
_TRIES = 5
#: A fencing token, and what scripts keep behind it: see `_lua/stored_fence.lua`.
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

    __slots__ = ("deletes", "ifeq", "refused")

    def __init__(self) -> None:
        self.refused = False
        #: Whether it has SET … IFEQ; None: not known yet.
        self.ifeq: bool | None = None
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
    session = f"may we {keys.lock} {driver.get().random()}"
    try:
        await watch(session, (keys.lock,), settings.request_timeout_s)
        for look in (("GET", keys.lock), ("GETRANGE", keys.lock, 0, 0)):
            await read(session, keys.lock, look, settings.request_timeout_s, MAYBE)
        await read(session, keys.lock, ("TIME",), settings.request_timeout_s, MOMENT)
        await finish(session, keys.lock, (), settings.request_timeout_s)
    except RequestFailed:
        return False
    except BaseException:
        await Spawn(leave(session, keys.lock, settings.request_timeout_s))
        raise
    return True


def _lacks(failure: RequestFailed) -> bool:
    """True if the server does not know the command, or this form of it."""
    said = failure.message.lower()
    return (failure.kind == "ERR" and ("unknown command" in said or "syntax error" in said)) or failure.kind == "NOPERM"


class PlainAcquisition(Acquisition):
    """The turn to hold the lock by plain commands."""

    __slots__ = ("polls", "scripts")

    kind = LOCK

    def __init__(self, keys: LockKeys, token: str, ttl_ms: int, settings: Settings, scripts: Scripts) -> None:
        super().__init__(keys, token, ttl_ms, settings)
        self.scripts = scripts
        self.polls = Backoff(settings.foreign_poll_s, settings.foreign_poll_max_s)

    async def ask(self, queueing: bool, arrival: int, request_timeout_s: float) -> Reply:  # type: ignore[override]
        keys, token = self.keys, self.token
        args = ("SET", keys.lock, token, "NX", "PX", self.ttl_ms)
        if await Command(args, request_timeout_s, key=keys.lock, fits=MAYBE_DONE) is None:
            holder = await _holder(keys, request_timeout_s)
            if holder != token or not await self.renew(self.ttl_ms):  # else an earlier request has taken it
                return [0, -1, holder, -1, 0]
        fence = await self._next_fence(request_timeout_s)
        return [0, -1, "", -1, 0] if fence is None else [1, fence, *PLAIN]

    async def undo(self, tombstone_ms: int, request_timeout_s: float) -> int:  # type: ignore[override]
        keys, token, scripts = self.keys, self.token, self.scripts
        while (way := scripts.deletes[0]) != "WATCH":
            args = (way, keys.lock, token) if way == "DELIFEQ" else (way, keys.lock, "IFEQ", token)
            try:
                return int(await Command(args, request_timeout_s, key=keys.lock, fits=COUNT))
            except RequestFailed as failure:
                if not _lacks(failure):
                    raise
                scripts.deletes = [other for other in scripts.deletes if other != way]

        async def delete(session: str) -> Sequence[str]:
            return "DEL", keys.lock

        return int(await self._if_ours(delete, request_timeout_s))

    async def renew(self, ttl_ms: int, order: Order = RENEWAL) -> int:
        """Extend to `ttl_ms` from now, a renewal at least to that; 0 when we are not the holder.

        Never with SET … IFEQ, which would shorten what was extended since, if it came late.
        """
        self.ttl_ms = max(self.ttl_ms, ttl_ms)
        request_timeout_s, lock = request_timeout_for(ttl_ms, self.settings), self.keys.lock

        async def extend(session: str) -> Sequence[str | int]:
            left_ms = 0 if order.sets else await read(session, lock, ("PTTL", lock), request_timeout_s, COUNT)
            return "PEXPIRE", lock, max(left_ms, ttl_ms)

        return int(await self._if_ours(extend, request_timeout_s))

    async def _next_fence(self, request_timeout_s: float) -> int | None:
        """The next fencing token, as fence.lua makes it; None when the lock is ours no more."""
        keys, fence = self.keys, 0

        async def count(session: str) -> Sequence[str | int]:
            nonlocal fence
            last = await read(session, keys.lock, ("GET", keys.fence), request_timeout_s, MAYBE)
            seconds, micros = await read(session, keys.lock, ("TIME",), request_timeout_s, MOMENT)
            try:
                fence = max(_fence(keys, last) + 1, int(seconds) * 1_000_000 + int(micros))
            except RequestFailed:
                await leave(session, keys.lock, request_timeout_s)
                raise
            return "SET", keys.fence, fence, "PX", self.settings.fence_ms

        return fence if await self._if_ours(count, request_timeout_s, keys.fence) else None

    async def _if_ours(
        self, act: Callable[[str], Protocol[Sequence[str | int]]], request_timeout_s: float, *watched: str
    ) -> bool:
        """Do what `act` returns, which may read, if the lock is held, and neither it nor what is `watched` changes.

        Returns whether it is held.
        """
        lock = self.keys.lock
        # Of its own: a renewal, an extension and a release of one lease may be under way together.
        session = f"plain {self.token} {driver.get().random()}"
        try:
            for _ in range(_TRIES):
                await watch(session, (lock, *watched), request_timeout_s)
                value = await read(session, lock, ("GET", lock), request_timeout_s, MAYBE)
                held = value is not None and text_of(value) == self.token
                written = await finish(session, lock, [await act(session)] if held else [], request_timeout_s)
                if written is not CONFLICT:
                    return held
        except RequestFailed:
            raise  # its connection is closed
        except BaseException:
            await Spawn(leave(session, lock, request_timeout_s))
            raise
        raise RequestFailed("WATCH", "the lock's key changes all the time", "", maybe_executed=True, transient=True)


async def _holder(keys: LockKeys, request_timeout_s: float) -> str:
    """Return what the lock's key holds, or "". Cut to the length of a token: others may store any size."""
    return text_of(await beginning_of(keys.lock, TOKEN_MAX, request_timeout_s) or b"")


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
        f'"{shown(text_of(value[:64]))}": set it to the last token that was given, or delete it to go on from the '
        "server's time"
    )
    raise RequestFailed("BADFENCE", said, "", maybe_executed=False, transient=False)


async def inspect(keys: LockKeys, request_timeout_s: float) -> LockSeen:
    """Look at the lock; no waiters, since there is no queue."""
    holder = await _holder(keys, request_timeout_s)
    remaining_ms: int = await once_more(Command(("PTTL", keys.lock), request_timeout_s, key=keys.lock, fits=COUNT))
    fence = await once_more(Command(("GET", keys.fence), request_timeout_s, key=keys.lock, fits=MAYBE))
    return LockSeen(holder, remaining_ms, _fence(keys, fence), 0)

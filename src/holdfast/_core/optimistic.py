"""Change keys without a lock: read, decide, and write only if nothing has changed meanwhile.

Laws: what was written was decided on what was read; no connection is left watching; a write whose answer is
missing is reported as unknown, never repeated; one that the server refuses is an error.

Theory: WATCH, reads and EXEC share one connection, a session. Before EXEC nothing has happened on the server, so up to
there any trouble that passes is only another attempt.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from holdfast._core.effects import Call, Command, Reply, Sleep, driver
from holdfast._core.failure import RequestFailed, refusal
from holdfast._core.kinds import Fits
from holdfast._core.replies import DONE, MAYBE, MAYBE_DONE, QUEUED, executed
from holdfast._core.settings import DEFAULT, Settings
from holdfast._core.waiting import once_more

Value: TypeAlias = "str | int | float | bytes"

#: What `finish` gives when a watched key had changed.
CONFLICT = None

#: Pauses between attempts: random, up to the first, doubling up to the second, s.
_PAUSE_S = 0.002
_PAUSE_MAX_S = 0.2


async def watch(session: str, keys: Sequence[str], request_timeout_s: float) -> None:
    try:
        await Command(("WATCH", *keys), request_timeout_s, keys[0], session=session, fits=DONE)
    except RequestFailed as failure:
        failure.maybe_executed = False  # whatever came of it: nothing was written
        raise


async def read(
    session: str, key: str, args: Sequence[Value], request_timeout_s: float, fits: Fits | None = None
) -> Reply:
    return await Command(args, request_timeout_s, key, session=session, fits=fits)


async def finish(
    session: str, key: str, commands: Sequence[Sequence[Value]], request_timeout_s: float
) -> list[Reply] | None:
    """Write: the replies, or CONFLICT. Without commands there is nothing to write, nor to conflict."""
    if not commands:
        await Command(("UNWATCH",), request_timeout_s, key, session=session, fits=DONE)
        return []
    try:
        await Command(("MULTI",), request_timeout_s, key, session=session, fits=DONE)
        for args in commands:
            await Command(args, request_timeout_s, key, session=session, fits=QUEUED)
    except RequestFailed as failure:  # the connection went with it
        failure.maybe_executed = False
        raise
    except BaseException:
        await _quietly(Command(("DISCARD",), request_timeout_s, key, session=session))
        raise
    fits = executed(len(commands))
    replies: list[Reply] | None = await Command(("EXEC",), request_timeout_s, key, session=session, fits=fits)
    for error in (reply for reply in replies or () if isinstance(reply, Exception)):
        refused = refusal(str(error), "")
        refused.maybe_executed, refused.way_out = True, "the other commands were carried out"
        raise refused
    return replies


async def leave(session: str, key: str, request_timeout_s: float) -> None:
    """End an attempt before `finish`: the session watches nothing any more."""
    await _quietly(Command(("UNWATCH",), request_timeout_s, key, session=session))


async def _quietly(command: Command) -> None:
    try:
        await command
    except RequestFailed:
        pass  # the connection has gone, and with it what it watched


async def pause(attempt: int) -> None:
    """Let the others finish, for longer and longer."""
    await Sleep(min(_PAUSE_MAX_S, _PAUSE_S * 2 ** min(attempt, 10)) * driver.get().random())


async def compare_and_set(
    key: str,
    expected: Value | None,
    new: Value,
    ttl_ms: int | None,
    known: Any,
    settings: Settings = DEFAULT,
) -> bool:
    """Set the key to `new` if it holds `expected` (None: nothing). `ttl_ms`: None without, -1 keep.

    `known` of the server: `Scripts`.
    """
    request_timeout_s = settings.request_timeout_s
    options: tuple[Value, ...] = ()
    if ttl_ms is not None:
        options = ("KEEPTTL",) if ttl_ms < 0 else ("PX", ttl_ms)
    if expected is None:
        return await Command(("SET", key, new, "NX", *options), request_timeout_s, key, fits=MAYBE_DONE) is not None
    if known.ifeq is not False:
        try:
            args = ("SET", key, new, "IFEQ", expected, *options)
            reply = await Command(args, request_timeout_s, key, fits=MAYBE_DONE)
        except RequestFailed as failure:
            if failure.kind != "ERR" or "syntax" not in failure.message:
                raise
            known.ifeq = False
        else:
            known.ifeq = True
            return reply is not None
    return bool(await Call("set_if", (key,), (_bytes(expected), _bytes(new), ttl_ms or 0), request_timeout_s) == 1)


def _bytes(value: Value) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


async def get(key: str, request_timeout_s: float) -> bytes | None:
    value: bytes | None = await once_more(Command(("GET", key), request_timeout_s, key, fits=MAYBE))
    return value


async def fenced_set(
    key: str, seen_key: str, fence: int, value: Value, ttl_ms: int | None, remember_ms: int, request_timeout_s: float
) -> int | None:
    """Write unless a newer fencing token has been seen: None, or that token. `ttl_ms`: None without, -1 delete it."""
    args = (fence, _bytes(value), ttl_ms or 0, remember_ms)
    reply = await Call("fenced_set", (key, seen_key), args, request_timeout_s)
    return int(reply) or None

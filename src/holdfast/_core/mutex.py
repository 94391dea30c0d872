"""The lock on one server (or the master of the moment, or the owner of a slot).

Laws: every write compares the token; every way out of `acquire` without a grant gives back what may be held; a pushed
grant counts only after it was confirmed; with every message lost, waiting still ends; the place in the queue is
kept across everything but the caller's own leaving.

Theory: ask; when it is taken, queue and sleep until the release hands the lock over (the server wrote our token and
told our inbox) or the holder's time is over. A grant that was pushed may have lain in a buffer while we were
paused, so it is confirmed by a renewal whose validity counts from before it was sent. A request without an
answer is repeated with the same token, which the script answers as if for the first time. A caller that leaves
sends a release that also buries the token, so that an acquire that is still under way finds itself refused.
"""

from __future__ import annotations

from holdfast._core.effects import (
    AwaitWake,
    Call,
    Listen,
    Now,
    Random,
    Reply,
    Sleep,
    Spawn,
    Unlisten,
    Wake,
)
from holdfast._core.keys import LockKeys
from holdfast._core.settings import DEFAULT, Settings
from holdfast._core.tokens import is_ours
from holdfast._core.trouble import Trouble
from holdfast._core.validity import deadline

__all__ = ["Busy", "Grant", "acquire", "extend", "give_back", "inspect", "patience_for", "release", "renew"]


class Grant:
    """The lock is ours: the fencing token, and when the granting request was sent."""

    __slots__ = ("fence", "sent_at")

    def __init__(self, fence: int, sent_at: float) -> None:
        self.fence = fence
        self.sent_at = sent_at


class Busy:
    """Time was up: who held the lock when last seen, and for how long we waited."""

    __slots__ = ("holder", "waited_s")

    def __init__(self, holder: str | None, waited_s: float) -> None:
        self.holder = holder
        self.waited_s = waited_s


def patience_for(ttl_ms: int, settings: Settings) -> float:
    """How long to wait for one answer, s: never so long that a lease could not be renewed in between."""
    return max(0.05, min(settings.patience_s, ttl_ms / 3000))


async def acquire(
    keys: LockKeys,
    token: str,
    ttl_ms: int,
    timeout_s: float | None,
    *,
    listening: bool = False,
    settings: Settings = DEFAULT,
    sync: tuple[int, int] | None = None,
) -> Grant | Busy:
    """Take the lock, waiting `timeout_s` at most (None: as long as it takes, 0: not at all).

    `listening` says that the inbox is open already, so that the first request may queue us. Raises `Trouble`
    when the server refuses for good, or stays in trouble for longer than is put up with.
    """
    doubtful = False  # a request of ours may have changed something on the server
    queued = False
    heard = False  # the token is registered for wake-ups
    try:
        began_at = now = await Now()
        give_up_at = None if timeout_s is None else began_at + timeout_s
        patience_s = patience_for(ttl_ms, settings)
        waits = timeout_s is None or timeout_s > 0
        queueing = waits and listening
        arrival = 0
        polls = 0
        troubled_at: float | None = None
        tries = 0
        confirming: Wake | None = None
        holder: str | None = None
        while True:
            try:
                if queueing and not heard:
                    heard = True
                    await Listen(token, keys.lock, patience_s)
                    now = await Now()
                asked_at = now
                if confirming is not None:
                    fence, confirming = confirming.fence, None
                    reply: Reply = await Call("renew", (keys.lock,), (token, ttl_ms), patience_s, sync=sync)
                    held = (reply if sync is None else reply[0]) == 1
                    reply = [1, fence] if held else None
                else:
                    doubtful = True
                    reply = await Call(
                        "acquire",
                        keys.all,
                        (
                            token,
                            ttl_ms,
                            "wait" if queueing else "try",
                            arrival,
                            settings.fence_ms,
                            settings.claim_ms if settings.claim_ms < ttl_ms else ttl_ms,
                            keys.inboxes,
                        ),
                        patience_s,
                        sync=sync,
                    )
                    if sync is not None:
                        reply = reply[0]
            except Trouble as trouble:
                now = await Now()
                heard = heard and trouble.kind != "closed"
                if not trouble.passing:
                    raise
                if troubled_at is None:
                    troubled_at = now
                    tries = 0
                tries += 1
                if give_up_at is None:
                    allowed_until = troubled_at + settings.stubborn_s
                elif waits:
                    allowed_until = give_up_at
                elif trouble.kind == "refused":
                    raise
                else:
                    allowed_until = began_at + settings.brief_s
                pause_s = min(
                    settings.trouble_pause_max_s, settings.trouble_pause_s * 2 ** min(tries - 1, 10)
                )
                pause_s *= 0.5 + await Random()
                if tries == 1 and trouble.kind == "broken":
                    pause_s = 0.0  # an idle connection that was closed meanwhile: a fresh one may do
                if now + pause_s >= allowed_until:
                    raise
                if heard:
                    heard = False  # listen anew: the inbox may have gone with the server
                if pause_s:
                    await Sleep(pause_s)
                    now = await Now()
                continue
            now = await Now()
            troubled_at = None
            if reply is None:
                continue  # the claim window was over: ask again, from the old place
            if reply[0] == 1:
                if now < deadline(asked_at, ttl_ms):
                    doubtful = queued = False
                    return Grant(reply[1], asked_at)
                continue  # the answer came too late to be worth anything: repeat
            if reply[0] == -1:
                raise Trouble("closed", "this acquisition was given back", "", sent=False, passing=False)
            # Somebody else holds it.
            doubtful = False
            remaining_ms, holder_token, place, arrival = reply[1:]
            holder = (
                holder_token.decode("utf-8", "replace") if isinstance(holder_token, bytes) else holder_token
            )
            queued = place >= 0
            if not waits or (give_up_at is not None and now >= give_up_at):
                return Busy(holder, now - began_at)
            if not queued:
                queueing = True
                arrival = 0
                continue
            wait_s = settings.recheck_max_s
            if remaining_ms >= 0:
                wait_s = min(wait_s, remaining_ms / 1000 + settings.recheck_late_s * (0.5 + await Random()))
            if holder is not None and not is_ours(holder):
                wait_s = min(
                    wait_s, min(settings.foreign_poll_max_s, settings.foreign_poll_s * 2 ** min(polls, 10))
                )
                wait_s *= 0.5 + await Random()
                polls += 1
            if give_up_at is not None:
                wait_s = min(wait_s, give_up_at - now)
            wake = await AwaitWake(token, wait_s)
            now = await Now()
            if wake is not None and wake.kind == Wake.GRANT:
                doubtful = True
                confirming = wake
            elif wake is not None:
                heard = False  # the inbox may be broken: look after it before asking
            elif give_up_at is not None and now >= give_up_at:
                return Busy(holder, now - began_at)
    finally:
        if heard:
            await Unlisten(token)
        if doubtful or queued:
            await Spawn(give_back(keys, token, ttl_ms, settings))


async def release(keys: LockKeys, token: str, patience_s: float, settings: Settings = DEFAULT) -> int:
    """Release, handing over: 2 handed over, 1 released, 0 was not the holder. Raises `Trouble`."""
    reply = await Call(
        "release", keys.all, (token, settings.fence_ms, settings.claim_ms, keys.inboxes, 0), patience_s
    )
    return int(reply)


async def give_back(keys: LockKeys, token: str, ttl_ms: int, settings: Settings = DEFAULT) -> None:
    """Undo whatever an acquire with this token has done or may still do; tried until the ttl has passed."""
    args = (token, settings.fence_ms, settings.claim_ms, keys.inboxes, settings.bury_ms)
    until = await Now() + ttl_ms / 1000 + 1.0
    pause_s = settings.trouble_pause_s
    while True:
        try:
            await Call("release", keys.all, args, patience_for(ttl_ms, settings))
        except Trouble as trouble:
            if not trouble.passing or await Now() + pause_s > until:
                return  # the ttl ends it
            await Sleep(pause_s * (0.5 + await Random()))
            pause_s = min(pause_s * 2, settings.trouble_pause_max_s)
        else:
            return


async def renew(
    keys: LockKeys, token: str, patience_s: float, ttl_ms: int, sync: tuple[int, int] | None = None
) -> bool:
    """Extend to `ttl_ms` from now: False when we are not the holder. Raises `Trouble`, also for missing replicas."""
    reply = await Call("renew", (keys.lock,), (token, ttl_ms), patience_s, sync=sync)
    if sync is None:
        return bool(reply == 1)
    held, acked = reply
    if held == 1 and acked < sync[0]:
        raise Trouble("NOACK", f"{acked} of {sync[0]} replicas acknowledged", "", sent=True, passing=True)
    return bool(held == 1)


async def inspect(keys: LockKeys, patience_s: float) -> tuple[str, int, int, int]:
    """(holder's token or "", remaining ms (-1 for ever, -2 free), last fencing token, waiters)."""
    holder, remaining_ms, fence, waiters = await Call(
        "inspect", (keys.lock, keys.fence, keys.queue), (), patience_s
    )
    return holder.decode("utf-8", "replace"), remaining_ms, fence, waiters


async def extend(
    keys: LockKeys, token: str, patience_s: float, ttl_ms: int, sync: tuple[int, int] | None = None
) -> tuple[bool, float, float]:
    """(extended?, when it was asked, when it was answered)."""
    asked_at = await Now()
    held = await renew(keys, token, patience_s, ttl_ms, sync)
    return held, asked_at, await Now()

"""The lock on one server (or the master of the moment, or the owner of a slot).

Laws: every write compares the token; every way out of `acquire` without a grant gives back what may be held; a pushed
grant counts only after it was confirmed; with every message lost, waiting still ends; the place in the queue is
kept across everything but the caller's own leaving.

Theory: ask; when it is taken, queue and sleep until the release hands the lock over (the server wrote our token and
told our inbox) or the holder's time is over. A grant that was pushed may have lain in a buffer while we were
paused, so it is confirmed by asking again, and validity counts from before that was sent. A request without an
answer is repeated with the same token, which the script answers as if for the first time. A caller that leaves
sends a release that also buries the token, so that an acquire that is still under way finds itself refused.
"""

from __future__ import annotations

from holdfast._core.effects import Call, Now, Protocol, Random, Reply, Sleep, Spawn
from holdfast._core.keys import LockKeys
from holdfast._core.replicas import NotAcked, Replicas, Sync, judge, tail_of
from holdfast._core.settings import DEFAULT, Settings
from holdfast._core.trouble import Trouble
from holdfast._core.waiting import Busy, Grant, Turn, patience_for, wait_for

__all__ = [
    "Busy",
    "Grant",
    "acquire",
    "first_ask",
    "first_release",
    "give_back",
    "inspect",
    "patience_for",
    "release",
    "renew",
]


class _Turn(Turn):
    """The turn to hold the lock."""

    __slots__ = ("keys",)

    def __init__(self, keys: LockKeys, token: str, ttl_ms: int, settings: Settings, sync: Sync) -> None:
        super().__init__(token, ttl_ms, keys.lock, settings, sync)
        self.keys = keys

    @property
    def name(self) -> str:
        return self.keys.name

    def ask(self, queueing: bool, arrival: int, patience_s: float) -> Call:
        keys, ttl_ms, settings = self.keys, self.ttl_ms, self.settings
        return Call(
            "acquire",
            keys.all,
            (
                self.token,
                ttl_ms,
                "wait" if queueing else "try",
                arrival,
                settings.fence_ms,
                settings.claim_ms if settings.claim_ms < ttl_ms else ttl_ms,
                keys.inboxes,
            ),
            patience_s,
            sync=tail_of(self.sync, ttl_ms),
        )

    def confirm(self, patience_s: float) -> Call:
        return Call(
            "renew", (self.keys.lock,), (self.token, self.ttl_ms), patience_s, sync=tail_of(self.sync, self.ttl_ms)
        )

    def give_back(self) -> Protocol[None]:
        return give_back(self.keys, self.token, self.ttl_ms, self.settings)


def acquire(
    keys: LockKeys,
    token: str,
    ttl_ms: int,
    timeout_s: float | None,
    *,
    listening: bool = False,
    settings: Settings = DEFAULT,
    sync: Sync = None,
) -> Protocol[Grant | Busy]:
    """Take the lock, waiting `timeout_s` at most (None: as long as it takes, 0: not at all).

    `listening` says that the inbox is open already, so that the first request may queue us. Raises `Trouble`
    when the server refuses for good, or stays in trouble for longer than is put up with.
    """
    return wait_for(_Turn(keys, token, ttl_ms, settings, sync), timeout_s, listening=listening)


def first_ask(keys: LockKeys, token: str, ttl_ms: int, settings: Settings = DEFAULT) -> Call:
    """The first request of `acquire` when the inbox is not open, for drivers that have it ready."""
    return _Turn(keys, token, ttl_ms, settings, None).ask(False, 0, patience_for(ttl_ms, settings))


def first_release(keys: LockKeys, token: str, ttl_ms: int, settings: Settings = DEFAULT) -> Call:
    """The first request of `release`."""
    args = (token, settings.fence_ms, settings.claim_ms, keys.inboxes, 0)
    return Call("release", keys.all, args, patience_for(ttl_ms, settings))


async def release(keys: LockKeys, token: str, ttl_ms: int, settings: Settings = DEFAULT) -> bool:
    """Release, handing over to the queue's head; False when we were not the holder any more.

    Repeated for a short while when the server is in trouble; then left to the background, and `Trouble` raised.
    """
    call = first_release(keys, token, ttl_ms, settings)
    doubtful = False  # an earlier try may have done it
    until: float | None = None
    pause_s = 0.0
    while True:
        try:
            reply: Reply = await call
        except Trouble as trouble:
            doubtful = doubtful or trouble.sent
            now = await Now()
            if until is None:
                until = now + settings.brief_s
            if not trouble.passing or now + pause_s >= until:
                await Spawn(give_back(keys, token, ttl_ms, settings))
                raise
            if pause_s or trouble.kind != "broken":
                await Sleep(max(pause_s, settings.trouble_pause_s) * (0.5 + await Random()))
            pause_s = min(max(pause_s * 2, settings.trouble_pause_s), settings.trouble_pause_max_s)
        except BaseException:
            await Spawn(give_back(keys, token, ttl_ms, settings))
            raise
        else:
            return bool(reply > 0) or doubtful


async def give_back(keys: LockKeys, token: str, ttl_ms: int, settings: Settings = DEFAULT) -> None:
    """Undo whatever an acquire with this token has done or may still do; tried until its ttl and its place are over."""
    args = (token, settings.fence_ms, settings.claim_ms, keys.inboxes, settings.bury_ms)
    until = await Now() + max(ttl_ms, settings.bury_ms) / 1000 + 1.0
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


async def renew(keys: LockKeys, token: str, patience_s: float, ttl_ms: int, sync: Sync = None) -> bool:
    """Extend to `ttl_ms` from now: False when we are not the holder. Raises `Trouble`, also for missing replicas."""
    for last in (False, True):
        reply = await Call("renew", (keys.lock,), (token, ttl_ms), patience_s, sync=tail_of(sync, ttl_ms))
        if sync is None:
            return bool(reply == 1)
        if reply[0] != 1:
            return False
        try:
            judge(sync, keys.name, reply, await Now())
            return True
        except NotAcked:
            if last or not isinstance(sync, Replicas):
                raise  # else: there are more replicas than we knew
    raise AssertionError


def extend_to(keys: LockKeys, token: str, settings: Settings, ttl_ms: int, sync: Sync = None) -> Protocol[bool]:
    """`renew` in the form that a hold wants."""
    return renew(keys, token, patience_for(ttl_ms, settings), ttl_ms, sync)


async def inspect(keys: LockKeys, patience_s: float) -> tuple[str, int, int, int]:
    """(holder's token or "", remaining ms (-1 for ever, -2 free), last fencing token, waiters)."""
    holder, remaining_ms, fence, waiters = await Call("inspect", (keys.lock, keys.fence, keys.queue), (), patience_s)
    return holder.decode("utf-8", "replace"), remaining_ms, fence, waiters

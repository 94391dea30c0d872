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

from holdfast._core import waiting
from holdfast._core.effects import Call, Now, Protocol
from holdfast._core.keys import LockKeys
from holdfast._core.replicas import NotAcked, Replicas, Sync, judge, tail_of
from holdfast._core.settings import DEFAULT, Settings
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

    def undo(self, bury_ms: int, patience_s: float) -> Call:
        keys, settings = self.keys, self.settings
        return Call(
            "release", keys.all, (self.token, settings.fence_ms, settings.claim_ms, keys.inboxes, bury_ms), patience_s
        )


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
    return _Turn(keys, token, ttl_ms, settings, None).undo(0, patience_for(ttl_ms, settings))


def release(
    keys: LockKeys, token: str, ttl_ms: int, settings: Settings = DEFAULT, *, stray: bool = False
) -> Protocol[bool]:
    """Release, handing over to the queue's head; False when we were not the holder any more. `stray`: see `Grant`.

    Repeated for a short while when the server is in trouble; then left to the background, and `Trouble` raised.
    """
    turn = _Turn(keys, token, ttl_ms, settings, None)
    turn.stray = stray
    return waiting.release(turn)


def give_back(keys: LockKeys, token: str, ttl_ms: int, settings: Settings = DEFAULT) -> Protocol[None]:
    """Undo whatever an acquire with this token has done or may still do; tried until its ttl and its place are over."""
    return waiting.give_back(_Turn(keys, token, ttl_ms, settings, None))


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

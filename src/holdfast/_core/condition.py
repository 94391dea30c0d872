"""The condition of a lock: wait until a holder of the lock says that something has changed.

Laws: waiting releases the lock and queues in one step; a notification moves waiters into the lock's queue in one
step, in arrival order, and is not spent on a process that has gone; a waiter that leaves passes on what it
was told; only the holder may wait or notify.

Theory: a waiter has a token of its own from the start, the one with which it will hold the lock again. It stands
first among the condition's waiters, then (notified, or out of time) in the lock's queue, then in the lock's key:
one script looks where it is and does what is next, so that asking again is always right.
"""

from __future__ import annotations

from typing import Any

from holdfast._core.effects import Call, Reply
from holdfast._core.keys import LockKeys, part_of_key
from holdfast._core.kinds import CONDITION
from holdfast._core.retry import outlast
from holdfast._core.settings import DEFAULT, Settings
from holdfast._core.waiting import Acquisition, Args, request_timeout_for
from holdfast.errors import NotHeld

#: A refusal of cond_wait.
_NOT_HELD = -2


def condition_key(keys: LockKeys, name: str) -> str:
    return f"{keys.base}:cond:{part_of_key(name)}"


class ConditionAcquisition(Acquisition):
    """The turn of a waiter to hold the lock again. `notified`: whether a notification brought it.

    `how`: as of `Acquisition`. `stray_holder`: a request for the lease before may still be carried out, as in `Grant`.
    `block`: of its tenure, if it stood on one.
    """

    __slots__ = ("block", "holder", "leaving", "notified", "stray_holder")

    kind = CONDITION

    def __init__(self, keys: LockKeys, cond: str, holder: str, token: str, ttl_ms: int, *how: Any) -> None:
        super().__init__(keys, token, ttl_ms, *how)
        self.all_keys = (*keys.all, cond)
        self.stray_holder = False
        self.block: tuple[int, ...] = ()
        self.holder = holder
        self.leaving = False
        self.notified = True

    @property
    def asks_to(self) -> str:  # type: ignore[override]
        return "leave" if self.leaving else "wait"

    @property
    def ask_more(self) -> Args:  # type: ignore[override]
        settings = self.settings
        # Called by a holder that then died, it is not handed over: look within a ttl.
        look_ms = min(settings.signal_recheck_ms, self.ttl_ms)
        return self.holder, look_ms, settings.tombstone_ms if self.stray_holder else 0, *self.block

    @property
    def undo_more(self) -> Args:  # type: ignore[override]
        return (1 if self.notified and not self.leaving else 0,)

    def heard(self, reply: Reply) -> None:
        # The last number of a grant, or behind a place: 0 where no notification has let it on.
        if 0 in (reply[2:] if reply[0] == 1 else reply[5:]):
            self.notified = False

    def refused(self, code: int, stored: int = 0) -> Exception:
        return NotHeld(self.keys.name, "wait()") if code == _NOT_HELD else super().refused(code)

    def time_is_up(self) -> bool:
        # Whatever happens, the caller holds the lock again when it goes on.
        self.leaving = True
        return True


async def notify(
    keys: LockKeys, cond: str, holder: str, number: int, count: int, ttl_ms: int, settings: Settings = DEFAULT
) -> int:
    """Let `count` waiters on to the lock's queue: how many, or -1 when the lock is not held. Raises `RequestFailed`.

    `number` tells this notification from the others of the holder.
    """
    done = part = 0
    while True:
        call = Call(
            "cond_notify",
            (keys.lock, keys.queue, cond, keys.gone, f"{cond}:last"),
            # Parts of one notification are told apart as well, so that each may be repeated.
            (holder, count - done, keys.inboxes, f"{number}.{part}" if part else number),
            request_timeout_for(ttl_ms, settings),
        )
        notified = await outlast(call, settings)
        if type(notified) is int:
            return done + notified if notified >= 0 else done or -1
        done += notified[0]  # one call has not looked at all of them
        part += 1

"""The lock on one server (or the master of the moment, or the owner of a slot).

Laws: every write compares the token; every way out of `acquire` without a grant gives back what may be held; with every
message lost, waiting still ends; the place in the queue is kept across everything but the caller's own leaving.

Theory: ask; when it is taken, queue and sleep until the release hands the lock over (the server wrote our token and
told our inbox) or the holder's time is over. A request without an answer is repeated with the same token, which the
script answers as if for the first time. A caller that leaves sends a release that also buries the token, so that an
acquire that is still under way finds itself refused.
"""

from __future__ import annotations

from typing import NamedTuple

from holdfast._core.effects import Call, Reply
from holdfast._core.keys import LockKeys
from holdfast._core.kinds import LOCK, Kind
from holdfast._core.record import Order
from holdfast._core.replicas import Sync
from holdfast._core.replies import LockSeen, seen_of
from holdfast._core.settings import DEFAULT, Settings
from holdfast._core.tenure import LocalWaiter, Tenure
from holdfast._core.tokens import MARK
from holdfast._core.waiting import Acquisition, Args, once_more


def renewal(
    keys: LockKeys,
    token: str,
    ttl_ms: int,
    order: Order,
    settings: Settings,
    request_timeout_s: float,
    node: int | None = None,
) -> Call:
    """Extend what the token holds to `ttl_ms` from now."""
    args = (token, ttl_ms, order.number, order.mark_ms(ttl_ms, settings.tombstone_ms))
    return Call("renew", (keys.lock, keys.order_of(token)), args, request_timeout_s, node)


#: This many locks at a time in one call of a script: it takes the server a third of a millisecond.
EACH_MAX = 32


class Each(NamedTuple):
    """The first request of one lock as part of a request for several: `script` takes the keys of all, the arguments
    they share, and the token of each. It answers with a number for each; 0: nothing was done, ask by itself.
    """

    script: str
    keys: tuple[str, ...]
    args: tuple[int, ...]


class LockAcquisition(Acquisition):
    """The turn to hold the lock."""

    __slots__ = ("tenure", "turn", "unused")

    kind = LOCK

    def __init__(
        self,
        keys: LockKeys,
        token: str,
        ttl_ms: int,
        settings: Settings = DEFAULT,
        sync: Sync = None,
        turn: LocalWaiter | None = None,
        tenure: Tenure | None = None,
    ) -> None:
        super().__init__(keys, token, ttl_ms, settings, sync)
        #: No lease has come of it.
        self.unused = False
        #: As which it asks, and by which it holds, where acquires wait inside of the client.
        self.turn = turn
        self.tenure = tenure

    @property
    def ask_more(self) -> Args:  # type: ignore[override]
        return () if self.turn is None else self.turn.passes()

    @property
    def undo_more(self) -> Args:  # type: ignore[override]
        if self.unused and self.token[-1] == MARK:
            return "", ""  # it was granted, and that came to nothing
        return () if self.tenure is None else self.tenure.block

    @property
    def queues(self) -> bool:  # type: ignore[override]
        # It has waited for its turn in the client: waiters elsewhere that came later stay behind it.
        return self.turn is not None and not self.turn.first

    def waited_us(self, now: float) -> int:
        return 0 if self.turn is None else self.turn.waited_us(now)

    def heard(self, reply: Reply) -> None:
        if self.turn is not None and reply[0] >= 0:
            self.turn.passed()


async def inspect(keys: LockKeys, request_timeout_s: float, kind: Kind = LOCK) -> LockSeen:
    """Look at what lies there of that kind."""
    seen = (keys.lock, keys.fence, keys.queue) if kind.alone else keys.more(*kind.beside)
    return seen_of(await once_more(Call("inspect", seen, (kind.name,), request_timeout_s)))

"""What `Client.list` tells of each lock. For people and for programs that report it; never for decisions."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias

from holdfast._api.holder import Described, Holder, holder_of
from holdfast._core.kinds import ALONE, KIND_OF_MARK
from holdfast._core.overview import Entry
from holdfast._core.tokens import mark_of

Kind: TypeAlias = Literal["lock", "rwlock", "multilock", "semaphore", "election"]


@dataclass(frozen=True, slots=True)
class Waiter:
    """One that stands in a queue. `age_s`: for how long. The others are as in `Holder`."""

    token: str
    age_s: float
    host: str | None = None
    pid: int | None = None
    program: str | None = None


@dataclass(frozen=True, slots=True)
class Listed:
    """A lock as it was when it was looked at.

    `kind`: what its first holder acquired, or without one the first waiter: a lock, a shared lock and a multilock share
    their names. The locks of a multilock are listed one by one. `holders` and `queue` name the first 16, `held` and
    `waiters` count all (with those whose process died since); of readers and holders of a semaphore it is not known
    since when they are. `permits`: of a semaphore, else 0. `fencing_token`: as `Lock.last_fencing_token` tells it; 0
    when there was none for a day. `seen_at`: when it was looked at, by the server's clock. `odd`: a key of the lock
    that holds something that holdfast does not write, so that no more can be said about it; else None. `grants`: how
    often it was granted since `list` began to count that, if it was asked to; what a client hands on among its own
    counts when that is over.
    """

    kind: Kind
    name: str
    holders: tuple[Holder, ...]
    held: int
    queue: tuple[Waiter, ...]
    waiters: int
    fencing_token: int
    permits: int
    seen_at: datetime
    odd: str | None = None
    grants: int | None = None

    @property
    def holder(self) -> Holder | None:
        """The first of those that hold it; None when it is free."""
        return self.holders[0] if self.holders else None


def listed(seen: Entry, described: Described, grants: int | None = None) -> Listed:
    """Put together what was seen, and what clients say of themselves, by token."""
    alone = seen.kind in ALONE
    fence = seen.fence if alone else 0
    holders = tuple(holder_of(token, left_ms, fence, *described[token], seen.gone) for token, left_ms in seen.holders)
    queue = []
    for token, age_s in seen.waiters:
        who = holder_of(token, 0, 0, *described[token])
        queue.append(Waiter(token, age_s, who.host, who.pid, who.program))
    at = datetime.fromtimestamp(seen.at_us / 1e6, UTC)
    held, waiting = (holders, seen.held), (tuple(queue), seen.queued)
    return Listed(kind_of(seen), seen.name, *held, *waiting, seen.fence, seen.permits, at, seen.odd or None, grants)


def kind_of(seen: Entry) -> Kind:
    """Return the kind that its first holder acquired, or its first waiter."""
    first = seen.holders[:1] or seen.waiters[:1]
    kind: Any = KIND_OF_MARK.get(mark_of(first[0][0])[:1]) if seen.kind == "lock" and first else None
    listed: Any = kind or seen.kind
    return listed  # type: ignore[no-any-return]

"""Who holds what, for people and for programs that report it; never for decisions."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeAlias, TypeVar

from holdfast._core.tokens import is_kept, is_ours
from holdfast.errors import quoted, shown

#: By a token, what its client says of itself, and the note of its lease.
Told: TypeAlias = tuple[bytes | None, bytes | None]
Described: TypeAlias = dict[str, Told]
#: Of what another program has left there, no more is shown, characters.
_NOTE_MAX = 256


@dataclass(frozen=True, slots=True)
class Holder:
    """The holder of a lock as the server knows it.

    `host`, `pid`, `program` and `client_since` are None when the holder is not a holdfast client, or its
    description has expired. `since` is when the lock was granted, by the server's clock. `fencing_token`: as
    `Lock.last_fencing_token` tells it. `note`: what its lease was acquired with (`note=`), if anything. `gone`: a
    waiter has seen that its client has gone, so that it is replaced when `remaining_s` is over (`crash_release`; only
    where many are listed, or a name is watched).
    """

    token: str
    ours: bool
    remaining_s: float | None
    fencing_token: int | None
    since: datetime | None
    host: str | None = None
    pid: int | None = None
    program: str | None = None
    client_since: datetime | None = None
    note: str | None = None
    gone: bool = False

    @property
    def kept(self) -> bool:
        """Whether its client keeps it between its uses (`cache_for`): it may be idle, and is let go when others ask."""
        return is_kept(self.token)

    @property
    def who(self) -> str:
        """The holder's place, its name, and since when it holds; in one line."""
        # Any client may have written this.
        host, pid, program, token = (shown(each, 128) for each in (self.host, self.pid, self.program, self.token))
        note = f", {self.note!r}" if self.note else ""
        who = f"{host}, pid {pid} ({program}{note})" if self.host else f"token {token}{note}"
        since = f" since {self.since:%Y-%m-%d %H:%M:%S} UTC" if self.since else ""
        return f"{who}{since}"

    def __str__(self) -> str:
        left = "without a time limit" if self.remaining_s is None else f"{self.remaining_s:.1f} s left"
        return f"{self.who}, {left}{', its client has gone' if self.gone else ''}"


@dataclass(frozen=True, slots=True)
class Waiting:
    """What an acquire waits for, as `on_wait` is told.

    `place`: in the queue, 1 for the next one; None where there is none (over a quorum), or it is not known. `holder`:
    who holds it, or one of those who do; None where that is not known. `waited_s`: since when it waits, s.
    """

    kind: str
    name: str
    waited_s: float
    place: int | None
    holder: Holder | None

    def __str__(self) -> str:
        place = "" if self.place is None else f", at place {self.place} of its queue"
        holder = "" if self.holder is None else f", held by {self.holder}"
        return f"waiting for {self.kind} {quoted(self.name)} for {self.waited_s:.1f} s{place}{holder}"


@dataclass(frozen=True, slots=True)
class LockStatus:
    """A lock as it was at one moment.

    `holder`: who holds it; None when it is free. `waiters`: how many wait, as `Lock.waiters` counts them; 0 over a
    quorum, which has no queue. `fencing_token`: as `Lock.last_fencing_token` tells it; 0 when there was none for a day.
    Over a quorum all of it is what a majority of the servers says.
    """

    name: str
    holder: Holder | None
    waiters: int
    fencing_token: int

    @property
    def held(self) -> bool:
        """Whether it is held."""
        return self.holder is not None

    @property
    def since(self) -> datetime | None:
        """The time of the grant to its holder, by the server's clock; None when it is free, or unknown."""
        return None if self.holder is None else self.holder.since

    @property
    def remaining_s(self) -> float | None:
        """The seconds left to its holder without another renewal; None when it is free, or held without a limit."""
        return None if self.holder is None else self.holder.remaining_s


@dataclass(frozen=True, slots=True)
class RWLockStatus:
    """A shared lock as it was at one moment.

    `writer`: as `LockStatus.holder`; the holder of the exclusive lock of that name counts. `readers`: how many read.
    Since when each of them does is not known. The others are as in `LockStatus`.
    """

    name: str
    writer: Holder | None
    readers: int
    waiters: int
    fencing_token: int


@dataclass(frozen=True, slots=True)
class SemaphoreStatus:
    """A semaphore as it was at one moment, seen in one request.

    `permits`: how many there are in all; 0 when the server does not know it yet. `used`: permits that are held, by
    `holders` leases; since when each of them is held is not known. The others are as in `LockStatus`.
    """

    name: str
    permits: int
    used: int
    holders: int
    waiters: int
    fencing_token: int

    @property
    def available(self) -> int:
        """The number of free permits, whether there are waiters or not."""
        return max(0, self.permits - self.used)


@functools.lru_cache(256)
def _told(description: bytes | None) -> dict[str, Any]:
    """The fields of a description; what cannot be read says nothing."""
    try:
        told = json.loads(description or b"{}")
    except (ValueError, RecursionError):
        return {}
    return told if isinstance(told, dict) else {}


def holder_of(
    token: str,
    remaining_ms: int,
    fence: int,
    description: bytes | None = None,
    note: bytes | None = None,
    gone: bool = False,
) -> Holder:
    """Put together what `inspect`, the client's description and the lease's note say."""
    told = _told(description)
    ours = is_ours(token)
    return Holder(
        token=token,
        ours=ours,
        remaining_s=remaining_ms / 1000 if remaining_ms >= 0 else None,
        fencing_token=(fence or None) if ours else None,
        since=_utc(fence / 1_000_000) if ours and fence else None,
        host=_of_kind(str, told.get("host")),
        pid=_of_kind(int, told.get("pid")),
        program=_of_kind(str, told.get("program")),
        client_since=_utc(told.get("since")),
        note=note.decode("utf-8", "replace")[:_NOTE_MAX] if note else None,
        gone=gone,
    )


T = TypeVar("T")


def _of_kind(kind: type[T], value: object) -> T | None:
    return value if isinstance(value, kind) else None


def _utc(seconds: object) -> datetime | None:
    try:
        return datetime.fromtimestamp(seconds, UTC) if isinstance(seconds, (int, float)) else None
    except (ValueError, OverflowError, OSError):
        return None

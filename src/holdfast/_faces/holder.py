"""Who holds a lock, for people and for programs that report it; never for decisions."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from holdfast._core.tokens import is_ours

__all__ = ["Holder", "holder_of"]


@dataclass(frozen=True, slots=True)
class Holder:
    """The holder of a lock as the server knows it.

    `host`, `pid`, `program` and `client_since` are None when the holder is not a holdfast client, or its
    description has expired. `since` is when the lock was granted, by the server's clock.
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

    def __str__(self) -> str:
        who = f"{self.host}, pid {self.pid} ({self.program})" if self.host else f"token {self.token}"
        since = f" since {self.since:%Y-%m-%d %H:%M:%S} UTC" if self.since else ""
        left = "without a time limit" if self.remaining_s is None else f"{self.remaining_s:.1f} s left"
        return f"{who}{since}, {left}"


def _told(description: bytes | None) -> dict[str, Any]:
    """The fields of a description; what cannot be read says nothing."""
    try:
        told = json.loads(description or b"{}")
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}


def holder_of(token: str, remaining_ms: int, fence: int, description: bytes | None) -> Holder:
    """Put together what `inspect` and the client's description say."""
    told = _told(description)
    ours = is_ours(token)
    return Holder(
        token=token,
        ours=ours,
        remaining_s=remaining_ms / 1000 if remaining_ms >= 0 else None,
        fencing_token=fence if ours else None,
        since=_utc(fence / 1_000_000) if ours and fence else None,
        host=told.get("host"),
        pid=told.get("pid"),
        program=told.get("program"),
        client_since=_utc(told["since"]) if "since" in told else None,
    )


def _utc(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)

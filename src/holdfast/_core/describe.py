"""Writing and reading what a client says of itself."""

from __future__ import annotations

from collections.abc import Callable

from holdfast._core.effects import Command, Reply
from holdfast._core.failure import RequestFailed
from holdfast._core.replies import DONE, MAYBE

__all__ = ["PATIENCE_S", "introduce", "look_up"]

#: How long describing may take, s: nothing depends on it.
PATIENCE_S = 2.0
#: No description has more bytes.
_LONGEST = 8_192


async def introduce(key: str, describe: Callable[[], str], keep_ms: int) -> None:
    """Write the description of a client, in one command with its ttl; nothing depends on it, so trouble is ignored.

    So is an OSError of `describe`: without a free descriptor it cannot even import what it needs.
    """
    try:
        await Command(("SET", key, describe(), "PX", keep_ms), PATIENCE_S, key=key, fits=DONE)
    except (RequestFailed, OSError):
        pass


async def look_up(key: str, patience_s: float = PATIENCE_S) -> bytes | None:
    """A description; None when there is none, or it may not be read. Of what is longer than any, only the beginning."""
    for ask in (("GETRANGE", key, 0, _LONGEST - 1), ("GET", key)):
        try:
            found: Reply = await Command(ask, patience_s, key=key, fits=MAYBE)
        except RequestFailed as failure:
            if failure.kind != "NOPERM":
                return None
        else:
            return found if isinstance(found, bytes) and found else None  # GETRANGE of what is not there is empty
    return None

"""Writing and reading what a client says of itself, and of a lease.

Laws: nothing depends on either; a note never stands beside another holder, since its key has the lease's token in it.

Theory: a token tells whether there is a note, so that those who look ask for no other one. A note is written behind the
grant, and again behind each extension, with the greatest ttl that anything was for.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast._core.effects import Command, Protocol
from holdfast._core.failure import RequestFailed
from holdfast._core.record import LeaseRecord
from holdfast._core.replies import COUNT, DONE, MAYBE
from holdfast._core.waiting import once_more

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


def annotate(record: LeaseRecord, key: str) -> Protocol[None]:
    """Have the note of a lease stand there while it is held; where only the key tells of one, keep what stands there.

    Returns what writes it now.
    """

    async def keep(ms: int) -> None:
        try:
            if record.says is not None and ms:
                await Command(("SET", key, record.says, "PX", ms), PATIENCE_S, key=key, fits=DONE)
            else:  # not DEL, which semaphores need no right for
                await Command(("PEXPIRE", key, ms), PATIENCE_S, key=key, fits=COUNT)
        except RequestFailed:
            pass

    record.beside(keep)
    return keep(record.most_ms)


async def look_up(key: str, patience_s: float = PATIENCE_S) -> bytes | None:
    """A description; None when there is none, or it may not be read. Of what is longer than any, only the beginning."""
    try:
        return await beginning_of(key, _LONGEST, patience_s)
    except RequestFailed:
        return None


async def beginning_of(key: str, most: int, request_timeout_s: float) -> bytes | None:
    """Read up to `most` bytes of what stands there; None for nothing. Raises `RequestFailed`."""
    command = Command(("GETRANGE", key, 0, most - 1), request_timeout_s, key=key, fits=MAYBE)
    return await once_more(command) or None  # empty where there is nothing

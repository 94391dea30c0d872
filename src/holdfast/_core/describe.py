"""A client's words on itself, its leases and its waits, for those who look.

Laws: nothing depends on any of it; a note of a lease never stands beside another holder, since its key has the lease's
token in it; that of a waiter is gone soon after it, at the latest by its ttl.

Theory: a token tells whether its lease has a note, so that those who look ask for no other one. It is written behind
the grant, and again behind each extension, with the greatest ttl that anything was for.

A waiter says, for those who look for deadlocks, where in the code it waits, and what it holds by tokens that do not
tell. A lease that a client hands on, or keeps, stands on the server by the token of the first who held it. Whose it is
now, its client knows; and a deadlock needs that one to wait, for seconds. So who waits for as long as that says what it
holds. Most waiters hold nothing of the kind, and write nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from holdfast._core.effects import Command, Protocol, Wake
from holdfast._core.failure import RequestFailed
from holdfast._core.record import LeaseRecord
from holdfast._core.replies import COUNT, DONE, MAYBE
from holdfast._core.settings import Settings
from holdfast._core.waiting import Acquisition, once_more

#: How long describing may take, s: nothing depends on it.
PATIENCE_S = 2.0
#: No description has more bytes.
_LONGEST = 8_192
#: A timeout in a note of a waiter, s.
_TIMEOUT = re.compile(r"\d{1,15}\.\d{3}", re.ASCII)


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


def note_key(namespace: str, token: str) -> str:
    return f"{namespace}:waits:{token}"


def note_parts(note: bytes | None) -> tuple[float | None, list[str], str]:
    """Parse what a waiter says: its timeout in s (None: no limit, or unknown), held tokens, where in the code."""
    words = (note or b"").decode("utf-8", "replace").split("\n", 2)
    if len(words) < 3:
        return None, [], ""
    return float(words[0]) if _TIMEOUT.fullmatch(words[0]) else None, words[1].split(), words[2]


class Witness(NamedTuple):
    """Acts for all waiters of a client that do not look for deadlocks themselves: notes what they hold.

    `held`: the tokens of what the party with that token holds that do not say so. `where` in the code it waits.
    """

    namespace: str
    settings: Settings
    held: Callable[[str], Sequence[str]]
    where: Callable[[str], str]

    @property
    def every_s(self) -> float:
        """How long one waits before it looks."""
        return self.settings.note_s

    async def leave(self, token: str, timeout_s: float | None, every_s: float, held: Sequence[str]) -> None:
        """Leave a note, or leave it again, which is done every so often. Raises `RequestFailed`."""
        timeout = "" if timeout_s is None else f"{timeout_s:.3f}"
        key, note = note_key(self.namespace, token), f"{timeout}\n{' '.join(held)}\n{self.where(token)}"
        command = ("SET", key, note, "PX", int(every_s * 3000) + 10_000)
        await Command(command, self.settings.request_timeout_s, key=key, fits=DONE)

    async def look(
        self, acquisition: Acquisition, timeout_s: float | None, until: float | None
    ) -> tuple[Wake | None, float]:
        """Say what is held. As `Check.look`: what has woken the waiter, and for how long not to look again, s."""
        again_s = self.every_s * 10
        if held := self.held(acquisition.token):
            try:
                await self.leave(acquisition.token, timeout_s, again_s, held)
            except RequestFailed:
                pass  # it is only to be looked at
        return None, again_s

"""What a waiter leaves for those who look for deadlocks: where in the code it waits, and what it holds by tokens that
do not tell.

Law: nothing depends on a note; it is gone soon after its waiter, at the latest by its ttl.

Theory: a lease that a client hands on, or keeps, stands on the server by the token of the first who held it. Whose it
is now, its client knows; and a deadlock needs that one to wait, for seconds. So who waits for as long as that says what
it holds. Most waiters hold nothing of the kind, and write nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from holdfast._core.effects import Command, Wake
from holdfast._core.failure import RequestFailed
from holdfast._core.replies import DONE
from holdfast._core.settings import Settings
from holdfast._core.waiting import Acquisition

#: A timeout in a note, s.
_TIMEOUT = re.compile(r"\d{1,15}\.\d{3}", re.ASCII)


def note_key(namespace: str, token: str) -> str:
    return f"{namespace}:waits:{token}"


def note_parts(note: bytes | None) -> tuple[float | None, list[str], str]:
    """Parse a note: the timeout of the wait in s (None: no limit, or unknown), held tokens, where in the code."""
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

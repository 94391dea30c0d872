"""Messages about tokens of which no lease is known yet.

Law: a message and the lease that it is about find each other, in whichever order they come.

Theory: a message can overtake the lease: the answer to an acquire is slow, the message stands right behind the grant
that is pushed, or the lease is between two local holders. So it is noted here before its lease is looked for, and a
lease is made known before this is looked at. Of the two that may then see both, the one that takes the message acts.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from holdfast._core.effects import Wake

__all__ = ["EARLY_MAX", "Early"]

#: Tokens that are remembered; beyond that the oldest go. Most are of leases that have ended.
EARLY_MAX = 1_000
#: Characters of a text that are kept: other programs write them.
_TEXT_MAX = 1_000


class Early(dict[str, dict[str, str]]):
    """Texts by the kind of the message, by token. One of each client; one thread at a time notes messages."""

    def note(self, token: str, kind: str, text: str = "") -> dict[str, str]:
        """Remember it; returns all of that token, to take it out of."""
        of_token = self.setdefault(token, {})
        of_token[kind] = text[:_TEXT_MAX]
        while len(self) > EARLY_MAX:
            try:
                self.pop(next(iter(self)), None)
            except (RuntimeError, StopIteration):
                pass  # another thread has taken one
        return of_token

    def take(self, token: str, kind: str) -> bool:
        """Remove a note of that message; True if there was one."""
        of_token = self.get(token)
        return of_token is not None and of_token.pop(kind, None) is not None

    def told(self, token: str, known: MutableMapping[str, Any]) -> None:
        """Tell what is known by that token that another client waits for it; note it where nothing is known yet."""
        if token not in known:
            self.note(token, Wake.YIELD)
        one = known.get(token)
        if one is not None:
            one.told()

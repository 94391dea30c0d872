"""Messages about tokens of which no lease is known yet.

Law: a message and the lease that it is about find each other, in whichever order they come.

Theory: a message can overtake the lease: the answer to an acquire is slow, the message stands right behind the grant
that is pushed, or the lease is between two local holders. So it is noted here before its lease is looked for, and a
lease is made known before this is looked at. Of the two that may then see both, the one that takes the message acts.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakValueDictionary

from holdfast._core.effects import Wake
from holdfast._core.snapshot import snapshot

#: Messages that are remembered; beyond that the oldest go. Most are of leases that have ended.
EARLY_MAX = 1_000
#: Characters of a text that are kept: other programs write them.
_TEXT_MAX = 1_000


class Early(dict[str, dict[str, str]]):
    """Texts by the kind of the message, by the token, which goes by its age alone: who takes its last text could
    otherwise throw out the next one. One of each client; one thread at a time notes messages.
    """

    def __init__(self) -> None:
        super().__init__()
        #: What acts when another client waits for it: tenures, by their tokens.
        self.known: WeakValueDictionary[str, Any] = WeakValueDictionary()

    def note(self, token: str, kind: str, text: str = "") -> None:
        """Remember it."""
        self.setdefault(token, {})[kind] = text[:_TEXT_MAX]
        while len(self) > EARLY_MAX:
            try:
                self.pop(next(iter(self)), None)
            except (RuntimeError, StopIteration):
                pass  # another thread has taken one

    def take(self, token: str, kind: str) -> str | None:
        """The text, for one that acts on it; None where there is none any more."""
        return self.get(token, {}).pop(kind, None)

    def begin(self, token: str, one: Any) -> None:
        """Have what stands on that token be told when another client waits for it."""
        self.known[token] = one
        if self.take(token, Wake.YIELD) is not None:
            one.told()

    def told(self, token: str) -> None:
        """Act on a message of the inbox: another client waits for what that token holds."""
        if token not in self.known:
            self.note(token, Wake.YIELD)
        one = self.known.get(token)
        if one is not None:
            one.told()

    def inbox_lost(self) -> None:
        """Act as if others waited for everything, since messages may have been lost."""
        for one in snapshot(self.known.values()):
            one.told()

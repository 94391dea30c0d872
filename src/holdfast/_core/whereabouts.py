"""Asking where in their programs holders are.

Laws: nothing is changed, and no answer is waited for longer than a second; a client that has not answered in time is
not asked again.

Theory: it is the clients that are asked, side by side, and each for up to 50 of its leases at once: one message to its
inbox, one key with its answers. The key belongs to no lock, so that it does not matter which of the leases are still
held when the message comes, or in which slots of a Cluster their locks are.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from holdfast._core.describe import beginning_of
from holdfast._core.effects import Command, Now, Sleep, Wake
from holdfast._core.keys import answer_key, inbox_prefix
from holdfast._core.replies import COUNT
from holdfast._core.settings import Settings
from holdfast._core.tokens import client_of
from holdfast._core.waiting import once_more

__all__ = ["ANSWERS_MAX", "BETWEEN", "TOGETHER_MAX", "Questions", "asked_in"]

#: How many leases a message asks about, and how many a client answers for in a second; who asks stays at half of that.
TOGETHER_MAX, ANSWERS_MAX = 50, 1_000
#: What stands between the answers about two leases.
BETWEEN = b"\0"
#: No answers are longer: 50 stacks of 8 lines.
_LONGEST = 256 * 1024
#: A client has this time to answer, s. A listing waits twice as long in all for those that do not; those of any later
#: page have the least.
_ANSWER_S, _ANSWER_LEAST_S = 1.0, 0.25
#: Pauses between looks for answers, from the first to the longest, s.
_PAUSE_S, _PAUSE_MAX_S = 0.004, 0.05
#: What can be asked about, and what a question is called. No longer text is a question.
_TOKEN, _QUESTION = r"[0-9a-f]{24}:[0-9a-z.]{1,60}:[0-9]{1,20}\*?\+?", "[0-9a-z:]{1,80}"
_TEXT_MAX = 8_192


class _Asked(NamedTuple):
    """A message under way."""

    key: str
    tokens: list[str]
    until: float


class Questions:
    """Those of one look, or of one listing page by page. `together`: all keys are on one server."""

    def __init__(self, namespace: str | None, name: str, together: bool, settings: Settings) -> None:
        self._namespace = namespace
        self._names: Iterator[str] = (f"{name}:{number}" for number in itertools.count())
        self._together = together
        self._settings = settings
        self._silent: set[str] = set()
        self._patience_s = 2 * _ANSWER_S
        #: When a client may be asked next.
        self._next_at: dict[str, float] = {}

    async def ask(self, held: Iterable[tuple[str, str]]) -> dict[str, bytes]:
        """Return the answers about each (key of a lock, token that holds it), by token. Raises `RequestFailed`."""
        left: dict[str, dict[str, str]] = {}
        for key, token in held:
            if re.fullmatch(_TOKEN, token) and client_of(token) not in self._silent:
                left.setdefault(client_of(token), {}).setdefault(token, key)
        asked: dict[str, _Asked] = {}
        found: dict[str, bytes] = {}
        pause_s = _PAUSE_S
        answer_s = max(_ANSWER_LEAST_S, min(_ANSWER_S, self._patience_s))
        silent = len(self._silent)
        while True:
            for client in [each for each in left if each not in asked]:
                now = await Now()
                if now >= self._next_at.get(client, 0.0):
                    tokens = [left[client].popitem() for _ in range(min(TOGETHER_MAX, len(left[client])))]
                    if not left[client]:
                        del left[client]
                    self._next_at[client] = now + 2 * len(tokens) / ANSWERS_MAX
                    message = await self._tell(client, dict(tokens), answer_s)
                    if message is not None:
                        asked[client] = message
            if not left and not asked:
                self._patience_s -= answer_s if len(self._silent) > silent else 0.0
                return found
            await Sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_MAX_S)
            for client, message in [*asked.items()]:
                now = await Now()
                answer = await self._read(message.key)
                if answer is not None:
                    found.update(zip(message.tokens, answer.split(BETWEEN), strict=False))
                    pause_s = _PAUSE_S
                elif now < message.until:
                    continue
                else:
                    self._silent.add(client)
                    left.pop(client, None)
                del asked[client]

    async def _tell(self, client: str, tokens: Mapping[str, str], answer_s: float) -> _Asked | None:
        """Ask that client about its tokens (and keys of their locks); None where it hears nothing."""
        question, (first, *more) = next(self._names), tokens
        text = f"{Wake.WHERE} {first} {','.join([question, *more])}"
        # In a Cluster a node knows who listens there: the client does where its lock is, if it listens at all.
        for key in [tokens[first]] if self._together else [*tokens.values()]:
            publish = ("PUBLISH", f"{inbox_prefix(self._namespace)}{client}", text)
            if await once_more(Command(publish, self._settings.request_timeout_s, key=key, fits=COUNT)):
                return _Asked(answer_key(self._namespace, question), [first, *more], await Now() + answer_s)
        return None

    async def _read(self, key: str) -> bytes | None:
        """The answers there; None as long as there are none."""
        return await beginning_of(key, _LONGEST, self._settings.request_timeout_s, once_more)


def asked_in(first: str, text: str) -> tuple[str, list[str]] | None:
    """The name of a question, and the tokens that it is about; None where any other text was sent."""
    if len(text) > _TEXT_MAX:
        return None
    question, *more = text.split(",")
    return (question, [first, *more]) if len(more) < TOGETHER_MAX and re.fullmatch(_QUESTION, question) else None

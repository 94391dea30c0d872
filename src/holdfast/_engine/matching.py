"""Replies to their requests: bytes in, replies and messages out.

Laws: replies are matched to requests in order; a reply that none can be for, or that does not fit its request, ends the
connection, and what came with it is not believed.
"""

from __future__ import annotations

import re
from collections import deque
from typing import Any

import hiredis

from holdfast._core.effects import Reply
from holdfast._core.failure import RequestFailed, refusal
from holdfast._core.replies import nonsense, promises_too_much
from holdfast._runtime.handlers import raised_by_handler

#: What a server pushes between replies, so that a connection can have commands and subscriptions at once: hiredis
#: before 3.2 gives it as plain lists.
_Push: Any = getattr(hiredis, "PushNotification", ())
PUSHES = _Push != ()
#: Errors of a server that has changed its role: its connections lead to the wrong place.
MISPLACED = frozenset({"READONLY", "MASTERDOWN"})


_MORE = object()
#: What may begin an array too great behind another reply, which is refused where it is no part of that: looked for, and
#: split before.
VAST, BEFORE_VAST = re.compile(rb"\n[*~>%|][0-9]{8}"), re.compile(rb"(?<=\n)(?=[*~>%|][0-9]{8})")

#: A request, its reply, and why it has none.
End = tuple[Any, Reply, RequestFailed | None]


def is_no_reply(reply: Reply) -> bool:
    """True of no reply: the answer to a subscription is a message."""
    return False


def is_none_either(reply: Reply) -> bool:
    """The same, where a subscription ends."""
    return False


#: The messages that answer them.
_ANSWERS = {b"subscribe": is_no_reply, b"ssubscribe": is_no_reply, b"sunsubscribe": is_none_either}


class Matching:
    """What one connection owes, and what it has said."""

    def __init__(self, name: str, is_inbox: bool, messages: Any) -> None:
        self._name = name
        #: The request, never sent, that all messages answer.
        self._messages = messages
        #: Whether it is there for messages alone, without RESP3.
        self._is_inbox = is_inbox
        self._reader = hiredis.Reader(notEnoughData=_MORE)
        self._pending: deque[Any] = deque()
        #: What was read for whom, and not handed out yet.
        self._ends: deque[End] = deque()
        #: Something was read that is no part of the last reply; and messages may come.
        self._midway = self._subscribes = False

    def _misplaced(self) -> None:
        """Act on a server that has changed its role."""
        raise NotImplementedError

    def _parse(self, data: bytes) -> RequestFailed | None:
        """Find out what these bytes say, and for whom; returns why nothing more can be believed, if so."""
        reader, pending, ends = self._reader, self._pending, self._ends
        try:
            if data.find(b"\r", 0, 9) < 0 and promises_too_much(data) and not reader.has_data():
                raise ValueError(repr(data[:20]))
            reader.feed(data)
            midway = True
            while midway and (reply := reader.gets()) is not _MORE:
                midway = reader.has_data()
                if pending and (fits := pending[0].fits) is not None and fits(reply):
                    ends.append((pending[0], reply, None))
                    pending.popleft()
                elif (trouble := self._match(reply)) is not None:
                    return trouble
            was_midway, self._midway = self._midway, midway
            if midway and not pending and not (was_midway or self._may_begin(data)):
                return self._too_much()
        except Exception as error:  # of the parser, which runs out of memory for some
            if raised_by_handler(error):
                raise
            return self._nonsense(f"{type(error).__name__}: {error}")
        return None

    def _may_begin(self, data: bytes) -> bool:
        """True if a message may begin at the end of that piece."""
        return self._is_inbox or (self._subscribes and (data.startswith(b">") or b"\r\n>" in data))

    def _match(self, reply: Reply) -> RequestFailed | None:
        """Find whose it is."""
        pending, ends = self._pending, self._ends
        if isinstance(reply, _Push) or (self._is_inbox and type(reply) is list):
            kind: Any = reply[0] if reply else None
            if pending and type(kind) is bytes and _ANSWERS.get(kind, self) is pending[0].fits:
                ends.append((pending[0], None, None))
                pending.popleft()
            if kind != b"subscribe" and kind != b"ssubscribe":
                ends.append((self._messages, reply, None))  # a subscription may also end by itself
            return None
        if not pending:
            return self._too_much()
        request = pending[0]
        if reply.__class__ is hiredis.ReplyError:
            failure = refusal(str(reply), self._name)
            if failure.kind in MISPLACED:
                self._misplaced()
            ends.append((request, None, failure))
        elif request.fits is not None and not request.fits(reply):
            return self._nonsense(repr(reply))
        else:
            ends.append((request, reply, None))
        pending.popleft()
        return None

    def _too_much(self) -> RequestFailed:
        """More than was asked for: none of what came with it can be trusted."""
        failure = nonsense("more than one reply", self._name)
        ends = [(request, None, failure.again(maybe_executed=True)) for request, _, _ in self._ends]
        self._ends.clear()
        self._ends.extend(ends)
        return self._nonsense("more than one reply")

    def _nonsense(self, said: str) -> RequestFailed:
        """No further reply on this connection can be trusted to be for its request."""
        failure = nonsense(said, self._name)
        if self._pending:
            self._ends.append((self._pending[0], None, failure))
            self._pending.popleft()
        text = f"another answer on this connection made no sense: {failure.message}"
        return RequestFailed("broken", text, self._name, maybe_executed=True, transient=True)

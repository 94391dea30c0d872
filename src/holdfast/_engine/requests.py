"""What is sent to a server and answered once: by its reply, or by a `RequestFailed`."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, TypeAlias

from holdfast._core.effects import Reply
from holdfast._core.failure import RequestFailed
from holdfast._core.forms import Fits
from holdfast._engine.pack import Group, PreparedRequest, spelled_out
from holdfast._lua import Script
from holdfast._runtime.waits import ring

__all__ = ["MAY_LIE", "Again", "Answer", "Ask", "Bundle", "Later", "Messages", "Request"]

MAY_LIE, _DEADLINE = attrgetter("may_lie"), attrgetter("deadline")
Answer: TypeAlias = Callable[[Reply, RequestFailed | None], None]


class Request:
    """One of the engine's own. `wanted` is False once its asker has left; its reply still has to be read."""

    __slots__ = ("_answer", "deadline", "fits", "packed", "script", "wanted")

    #: What it may be sent together with others by; whether its reply may lie unread for a while; whether any thread may
    #: end it.
    group: Group | None = None
    may_lie = ends_anywhere = False

    def __init__(
        self, packed: bytes, deadline: float, fits: Fits | None, script: Script | None, answer: Answer
    ) -> None:
        self.packed = packed
        self.deadline = deadline
        self.fits = fits
        self.script = script
        self.wanted = True
        self._answer = answer

    def end(self, reply: Reply, failure: RequestFailed | None) -> None:
        """In the engine's thread; the first time counts."""
        if self.wanted:
            self.wanted = False
            self._answer(reply, failure)


class Ask:
    """One that a caller waits for, until it has an `outcome`."""

    __slots__ = ("bell", "deadline", "fits", "group", "is_put", "outcome", "prepared", "token")

    may_lie = False
    ends_anywhere = True

    def __init__(self, prepared: PreparedRequest, token: str, deadline: float) -> None:
        self.prepared = prepared
        self.token = token
        self.deadline = deadline
        self.fits = prepared.fits
        self.group = prepared.group
        self.outcome: tuple[Reply, RequestFailed | None] | None = None
        #: Rung when there is an outcome; of those that a thread waits for. Whether it was given to a connection.
        self.bell: Any = None
        self.is_put = False

    @property
    def script(self) -> Script:
        return self.prepared.script

    @property
    def packed(self) -> bytes:
        prepared, token = self.prepared, self.token
        return b"%b$%d\r\n%b\r\n%b" % (prepared.before, len(token), token.encode(), prepared.behind)

    @property
    def wanted(self) -> bool:
        return self.outcome is None

    def end(self, reply: Reply, failure: RequestFailed | None) -> None:
        """The first time counts."""
        if self.outcome is None:
            self.outcome = reply, failure
        if self.bell is not None:
            ring(self.bell)


class Later(Ask):
    """One that no caller waits for. `told(reply, failure)` is called in whichever thread has read it."""

    __slots__ = ("may_lie", "told")

    def __init__(self, prepared: PreparedRequest, token: str, deadline: float, told: Answer) -> None:
        super().__init__(prepared, token, deadline)
        self.may_lie = True
        self.told = told

    def end(self, reply: Reply, failure: RequestFailed | None) -> None:
        if self.outcome is None:
            self.outcome = reply, failure
            self.told(reply, failure)


class Again:
    """One whose script the server did not know, with its text."""

    __slots__ = ("_request", "deadline", "fits", "may_lie", "packed", "script")

    group = None
    ends_anywhere = False

    def __init__(self, request: Any) -> None:
        self._request = request
        self.deadline, self.fits, self.script = request.deadline, request.fits, None
        self.may_lie = request.may_lie
        self.packed = spelled_out(request.packed, request.script)

    @property
    def wanted(self) -> bool:
        return self._request.wanted  # type: ignore[no-any-return]

    def end(self, reply: Reply, failure: RequestFailed | None) -> None:
        self._request.end(reply, failure)


class Bundle:
    """Several of one kind, as one call of a script. What that has left undone is asked alone: by `alone`, anywhere."""

    __slots__ = ("_alone", "_members", "deadline", "may_lie", "packed", "script", "wanted")

    group = None
    ends_anywhere = True

    def __init__(self, members: list[Any], alone: Callable[[Ask], object]) -> None:
        group = members[0].group
        self._members = members
        self._alone = alone
        self.deadline = max(map(_DEADLINE, members))
        self.may_lie = all(map(MAY_LIE, members))
        self.script = group.script
        self.packed = group.packed([(member.prepared, member.token) for member in members])
        self.wanted = True

    def fits(self, reply: Reply) -> bool:
        """True if the reply is a number for each member."""
        return (
            type(reply) is list
            and len(reply) == len(self._members)
            and {*map(type, reply)} == {int}
            and min(reply) >= 0
        )

    def end(self, reply: Reply, failure: RequestFailed | None) -> None:
        """Answer each in the form in which its own script would."""
        if failure is None:
            for member, number in zip(self._members, reply, strict=True):
                if number:
                    member.end([1, number] if member.prepared.grants else number, None)
                else:
                    self._alone(member)
        elif failure.kind in ("broken", "silent", "closed", "nonsense"):
            for member in self._members:
                member.end(None, failure.again(maybe_executed=failure.maybe_executed))
        else:
            for member in self._members:  # the server did nothing: each hears by itself why
                self._alone(member)


class Messages:
    """Stands for a request that messages answer: they are told to the server of that connection, by the engine."""

    __slots__ = ("_server",)

    script = None
    ends_anywhere = False

    def __init__(self, server: Any) -> None:
        self._server = server

    def end(self, message: Reply, failure: RequestFailed | None) -> None:
        if failure is None:
            self._server.on_message(message)

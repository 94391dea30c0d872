"""What is sent to a server and answered once: by its reply, or by a `RequestFailed`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from itertools import groupby
from operator import attrgetter
from typing import Any, TypeAlias, cast

from holdfast._core.effects import Reply
from holdfast._core.failure import RequestFailed
from holdfast._core.kinds import Fits
from holdfast._engine.pack import Group, PreparedRequest, spelled_out
from holdfast._lua import Script

MAY_LIE, DEADLINE, _HOME = attrgetter("may_lie"), attrgetter("deadline"), attrgetter("home")
Answer: TypeAlias = Callable[[Reply, RequestFailed | None], None]


class Request:
    """One of the engine's own. Its reply has to be read also when its asker has left, and so it has an `outcome`."""

    __slots__ = ("answer", "deadline", "fits", "outcome", "packed", "script")

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
        self.answer: Any = answer
        self.outcome: tuple[Reply, RequestFailed | None] | None = None

    @property
    def parts(self) -> Sequence[Request]:
        """Return what ends at a time of its own."""
        return (self,)

    def pack(self) -> bytes:
        """Return its bytes; those of callers are made when it is sent alone."""
        return self.packed

    def spell_out(self) -> None:
        """Become its own repeat: the server did not know the script, and gets its text."""
        if self.script is not None:
            self.packed, self.script = spelled_out(self.packed, self.script), None

    def end(self, reply: Reply, failure: RequestFailed | None) -> None:
        """The first time counts."""
        if self.outcome is None:
            self.outcome = reply, failure
            self.answer(reply, failure)


class Ask(Request):
    """A caller's. The thread that has read the reply calls `answer` with it; or has `home` wake the task that waits for
    it, whose future `answer` is then.
    """

    __slots__ = ("group", "home", "may_lie", "prepared", "token")

    ends_anywhere = True
    script = cast("Any", property(attrgetter("prepared.script")))

    def __init__(
        self, prepared: PreparedRequest, token: str, deadline: float, answer: Any = None, home: Any = None
    ) -> None:
        self.prepared = prepared
        self.token = token
        self.deadline = deadline
        self.fits, self.group = prepared.fits, prepared.group
        self.answer = answer
        self.home = home
        self.outcome = None
        self.may_lie = False

    def pack(self) -> bytes:
        prepared, token = self.prepared, self.token
        return b"%b$%d\r\n%b\r\n%b" % (prepared.before, len(token), token.encode(), prepared.behind)

    def spell_out(self) -> None:
        prepared: Any = copy(self.prepared)  # others have the same
        prepared.before, prepared.script = spelled_out(prepared.before, self.script), None
        self.prepared = prepared

    def end(self, reply: Reply, failure: RequestFailed | None) -> None:
        is_first = self.outcome is None
        if is_first:
            self.outcome = reply, failure
        if self.home is not None:
            self.home.answered((self,))  # each time: a signal handler may have raised before the first
        elif is_first and self.answer is not None:
            self.answer(self)


class Bundle(Request):
    """Several of one kind, as one call of a script. What that has left undone is asked alone: by `alone`, anywhere."""

    __slots__ = ("_alone", "_members", "may_lie")

    ends_anywhere = True

    def __init__(self, members: list[Any], alone: Callable[[Ask], object]) -> None:
        group = members[0].group
        self._members = members
        self._alone = alone
        self.deadline = min(map(DEADLINE, members))
        self.may_lie = all(map(MAY_LIE, members))
        self.script = group.script
        self.packed = group.packed(members)
        self.outcome = None

    @property
    def parts(self) -> Sequence[Request]:
        """Return its members: of tasks, each waits for as long as its caller allows."""
        return self._members

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
            members, grants = self._members, self._members[0].prepared.grants
            for member, number in zip(members, reply, strict=True):
                if not number:
                    self._alone(member)
                elif member.home is None:
                    member.end([1, number] if grants else number, None)
                elif member.outcome is None:
                    member.outcome = [1, number] if grants else number, None
            answered = members if all(reply) else [member for member in members if member.outcome is not None]
            for home, asks in groupby(answered, _HOME):
                if home is not None:
                    home.answered(asks)
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

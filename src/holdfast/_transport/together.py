"""Several requests for locks as one: what is asked for in one turn of an event loop travels in one call of a script.

Laws: each request ends by itself, with an answer of its own form or with trouble of its own; what the script has left
undone is asked alone, on the same connection, so that nothing depends on who else is asked for.

Theory: half of what a short script costs a server is the way into it. So those who acquire or release in the same turn
share one call of `acquire_each` or `release_each`, which do what is usual and leave the rest to the scripts for one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from holdfast._core.effects import Reply
from holdfast._core.failure import RequestFailed
from holdfast._core.mutex import EACH_MAX
from holdfast._transport.pack import PreparedRequest

__all__ = ["EACH_MIN", "Member", "Together", "shares"]

#: Fewer than this go one by one: each is answered at once even where its lock is taken.
EACH_MIN = 3


#: Future, deadline on the monotonic clock, the request and its token.
Member: TypeAlias = "tuple[Any, float, PreparedRequest, str]"


def shares(members: Sequence[Member]) -> list[list[Member]]:
    """Divide the members that still wait into lists of `EACH_MAX` at most, for one request each."""
    waiting = [member for member in members if not member[0].done()]
    return [waiting[at : at + EACH_MAX] for at in range(0, len(waiting), EACH_MAX)]


class Together:
    """Stands where the future of one request would."""

    __slots__ = ("__weakref__", "_alone", "_callbacks", "_done", "_members", "packed", "script")

    def __init__(self, members: list[Member], alone: Callable[[Member], object]) -> None:
        group = members[0][2].group
        assert group is not None
        self._members = members
        self._alone = alone
        self._done = False
        self._callbacks: list[Callable[[Any], object]] = []
        self.script = group.script
        self.packed = group.packed([member[2:] for member in members])

    def fits(self, reply: Reply) -> bool:
        """True if the reply is a number for each."""
        if type(reply) is not list or len(reply) != len(self._members):
            return False
        return {*map(type, reply)} == {int} and min(reply) >= 0

    def done(self) -> bool:
        """True if the request was answered."""
        return self._done

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        """To be called at its end."""
        self._callbacks.append(callback)

    def _end(self) -> None:
        self._done = True
        for callback in self._callbacks:
            callback(self)

    def set_result(self, reply: list[int]) -> None:
        """Answer each in the form in which its own script would."""
        for member, number in zip(self._members, reply, strict=True):
            if not number:
                self._alone(member)
            elif not member[0].done():
                member[0].set_result([1, number] if member[2].grants else number)
        self._end()  # not before: an exception in between ends the others

    def refused(self) -> None:
        """The server did nothing: each hears by itself why."""
        for member in self._members:
            self._alone(member)
        self._end()

    def set_exception(self, failure: RequestFailed) -> None:
        """Trouble, of which each gets one of its own, since exceptions gather tracebacks."""
        for future, _, _, _ in self._members:
            if not future.done():
                future.set_exception(failure.again(maybe_executed=failure.maybe_executed))
                future.exception()  # looked at: asyncio logs what was not
        self._end()

    def exception(self) -> None:
        """Return None, as a future does that has not failed."""

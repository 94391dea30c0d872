"""The only things that a scheme waits for. A driver takes each from the coroutine, does it, and sends the result in."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

__all__ = ["Command", "Effect", "Now", "Random", "Reply", "RequestFailed", "Sleep"]

R = TypeVar("R")
Reply: TypeAlias = Any


class RequestFailed(Exception):
    """A request that did not end in a reply.

    `kind`: the server's error word, or "refused" (no connection), "silent" (no answer in time), "broken" (the
    connection ended).
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Effect(Generic[R]):
    """Something that a driver does; awaiting it gives the result."""

    __slots__ = ()

    def __await__(self) -> Generator[Effect[R], R, R]:
        return (yield self)


class Command(Effect[Reply]):
    """Send a command to the server of the index `node`, and read its reply. Raises `RequestFailed`.

    Commands of one `session` share a connection, for WATCH, MULTI and EXEC.
    """

    __slots__ = ("args", "node", "request_timeout_s", "session")

    def __init__(
        self,
        args: Sequence[str | int | float],
        request_timeout_s: float,
        node: int = 0,
        session: str | None = None,
    ) -> None:
        self.args = args
        self.request_timeout_s = request_timeout_s
        self.node = node
        self.session = session


class Sleep(Effect[None]):
    """Let `seconds` pass; the driver may end the scheme there."""

    __slots__ = ("seconds",)

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds


class Now(Effect[float]):
    """The client's wall clock, s."""

    __slots__ = ()


class Random(Effect[float]):
    """A random number in [0, 1)."""

    __slots__ = ()

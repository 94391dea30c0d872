"""How something is acquired: by a turn for each time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast._core.effects import Call, Protocol
from holdfast._core.mutex import Each
from holdfast._core.record import LeaseRecord
from holdfast._core.replicas import Sync
from holdfast._core.settings import Settings
from holdfast._core.tenure import LocalWaiter, Tenure
from holdfast._core.waiting import Acquisition, Busy, Grant, Seen, request_timeout_for


class ByTurns:
    """Shared by the objects of one name with the same options, so that making one costs little.

    `make`: the turn of a token and a ttl, with settings and `sync`. `listens`: waiters hear of their turn, so that
    `acquire` wants to know whether the inbox is open. `renews`, `most_waiting`, `tells`: as of `Acquisition`. `checks`:
    makes what looks for deadlocks during one acquire; None: nothing does, and its `check` is the `witness`. `bare`: of
    a lock without options but the ttl.
    """

    listens = True
    renews = bare = False
    most_waiting: int | None = None
    checks: Callable[[], Any] | None = None
    witness: Any = None
    tells: Callable[[Seen], Any] | None = None

    #: The first requests of acquire and release, once they were made.
    asks: Any = None

    def __init__(self, name: str, settings: Settings, sync: Sync = None, make: Any = None) -> None:
        self.name = name
        self.settings = settings
        self.sync = sync
        self.make = make

    def turn(self, token: str, ttl_ms: int) -> Any:
        return self.make(token, ttl_ms, self.settings, self.sync)

    def acquire(
        self, token: str, ttl_ms: int, timeout_s: float | None, listening: bool, turn: LocalWaiter | None = None
    ) -> Protocol[Grant | Busy]:
        """Take it, waiting `timeout_s` at most (None: as long as it takes, 0: not at all).

        `turn`: as which it was waited for inside of the client.
        """
        return self.acquired_by(self.turn(token, ttl_ms), timeout_s, listening)

    def acquired_by(self, asks: Acquisition, timeout_s: float | None, listening: bool) -> Protocol[Grant | Busy]:
        """The same by that turn."""
        asks.renews, asks.most_waiting = self.renews, self.most_waiting
        asks.check = self.witness if self.checks is None else self.checks()
        asks.tells = self.tells
        return asks.acquire(timeout_s, listening)

    def first_calls(self, ttl_ms: int) -> tuple[Call, ...] | None:
        """The first requests of `acquire` (not listening) and of a release, with "" for the token; and that of an
        `acquire` that queues, where its caller may stand there (`standing.py`).

        For drivers that have them ready, and start the protocol only for what goes on after them; None where
        there is no one first request.
        """
        if self.sync is not None:
            return None
        first, request_timeout_s = self.turn("", ttl_ms), request_timeout_for(ttl_ms, self.settings)
        return first.ask(False, 0, request_timeout_s), first.undo(0, request_timeout_s)

    def each(self, ttl_ms: int) -> tuple[Each, Each] | tuple[None, None]:
        """The same two as parts of requests for several locks, where there are `first_calls`; None: they go alone."""
        return None, None

    def make_record(self, token: str, grant: Grant, ttl_ms: int) -> LeaseRecord:
        record: LeaseRecord = self.turn(token, ttl_ms).make_record(self.name, grant)
        return record

    def give_back(self, token: str, ttl_ms: int, tenure: Tenure | None = None) -> Protocol[None]:
        """Undo what an interrupted acquisition may have done. `tenure`: which the token is of, if that is known."""
        return self.turn(token, ttl_ms).give_back()  # type: ignore[no-any-return]

"""What is acquired by one `Acquisition`, or several one after the other, with the methods of `Exclusive`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from holdfast._core import multilock
from holdfast._core.effects import Call, Protocol
from holdfast._core.record import LeaseRecord
from holdfast._core.replicas import Sync
from holdfast._core.settings import Settings
from holdfast._core.tenure import LocalWaiter, Tenure
from holdfast._core.waiting import Busy, Grant, request_timeout_for, wait_for

__all__ = ["ByTurns"]


class ByTurns:
    """`make`: the turns of a token and a ttl, with settings and `sync`, in the order of taking.

    The others are as of `Exclusive`.
    """

    __slots__ = ("checks", "make", "most_waiting", "name", "renews", "settings", "sync", "witness")

    listens = True

    def __init__(self, name: str, make: Callable[..., Sequence[Any]], settings: Settings, sync: Sync) -> None:
        self.name = name
        self.make = make
        self.settings = settings
        self.sync = sync
        self.renews = False
        self.most_waiting: int | None = None
        self.checks: Callable[[], Any] | None = None
        self.witness: Any = None

    def turns(self, token: str, ttl_ms: int) -> Sequence[Any]:
        return self.make(token, ttl_ms, self.settings, self.sync)

    def acquire(
        self, token: str, ttl_ms: int, timeout_s: float | None, listening: bool, turn: LocalWaiter | None = None
    ) -> Protocol[Grant | Busy]:
        turns = self.turns(token, ttl_ms)
        for each in turns:
            each.renews, each.most_waiting = self.renews, self.most_waiting
            each.check = self.witness if self.checks is None else self.checks()
        if len(turns) > 1:
            return multilock.acquire(turns, timeout_s, listening=listening)
        return wait_for(turns[0], timeout_s, listening=listening)

    def first_calls(self, ttl_ms: int) -> tuple[Call, Call] | None:
        first, *more = self.turns("", ttl_ms)
        if more or self.sync is not None:
            return None
        request_timeout_s = request_timeout_for(ttl_ms, self.settings)
        return first.ask(False, 0, request_timeout_s), first.undo(0, request_timeout_s)

    def each(self, ttl_ms: int) -> tuple[None, None]:
        return None, None  # they go alone

    def make_record(self, token: str, grant: Grant, ttl_ms: int) -> LeaseRecord:
        return multilock.make_record(self.turns(token, ttl_ms), self.name, grant)

    def give_back(self, token: str, ttl_ms: int, tenure: Tenure | None = None) -> Protocol[None]:
        turns = self.turns(token, ttl_ms)
        return turns[0].give_back() if len(turns) == 1 else multilock.give_back(turns)

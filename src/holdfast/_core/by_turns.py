"""What is acquired by an `Acquisition`, with the methods of `Exclusive`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast._core.effects import Call, Protocol
from holdfast._core.multilock import SeveralTurns
from holdfast._core.record import LeaseRecord
from holdfast._core.replicas import Sync
from holdfast._core.settings import Settings
from holdfast._core.tenure import LocalWaiter, Tenure
from holdfast._core.waiting import Busy, Grant, request_timeout_for, wait_for

__all__ = ["ByTurns"]


class ByTurns:
    """`make`: the turn of a token and a ttl, with settings and `sync`.

    The others are as of `Exclusive`.
    """

    __slots__ = ("checks", "make", "most_waiting", "name", "renews", "settings", "sync", "witness")

    listens = True

    def __init__(self, name: str, make: Callable[..., Any], settings: Settings, sync: Sync) -> None:
        self.name = name
        self.make = make
        self.settings = settings
        self.sync = sync
        self.renews = False
        self.most_waiting: int | None = None
        self.checks: Callable[[], Any] | None = None
        self.witness: Any = None

    def turn(self, token: str, ttl_ms: int) -> Any:
        return self.make(token, ttl_ms, self.settings, self.sync)

    def acquire(
        self, token: str, ttl_ms: int, timeout_s: float | None, listening: bool, turn: LocalWaiter | None = None
    ) -> Protocol[Grant | Busy]:
        asks = self.turn(token, ttl_ms)
        asks.renews, asks.most_waiting = self.renews, self.most_waiting
        asks.check = self.witness if self.checks is None else self.checks()
        if isinstance(asks, SeveralTurns):
            return asks.acquire(timeout_s)
        return wait_for(asks, timeout_s, listening=listening)

    def first_calls(self, ttl_ms: int) -> tuple[Call, Call] | None:
        first = self.turn("", ttl_ms)
        if self.sync is not None or isinstance(first, SeveralTurns):
            return None
        request_timeout_s = request_timeout_for(ttl_ms, self.settings)
        return first.ask(False, 0, request_timeout_s), first.undo(0, request_timeout_s)

    def each(self, ttl_ms: int) -> tuple[None, None]:
        return None, None  # they go alone

    def make_record(self, token: str, grant: Grant, ttl_ms: int) -> LeaseRecord:
        return self.turn(token, ttl_ms).make_record(self.name, grant)  # type: ignore[no-any-return]

    def give_back(self, token: str, ttl_ms: int, tenure: Tenure | None = None) -> Protocol[None]:
        return self.turn(token, ttl_ms).give_back()  # type: ignore[no-any-return]

"""How a client ends.

Laws: waiters are out of the queues before anything is released, so that none of them is handed what is released;
holders are told, and have done what they do then, before their locks are released; all of it together takes no longer
than the budget, however many servers hang.
"""

from __future__ import annotations

import typing
from collections.abc import Callable
from typing import Any

from holdfast._core.agent.renewals import quietly
from holdfast._core.agent.runner import Task, closed
from holdfast._core.effects import AwaitTurn, AwaitWake, Listen, Now, Protocol, Sleep
from holdfast._core.record import LeaseRecord
from holdfast._core.schedule import Schedule
from holdfast._core.tenure import Lines

__all__ = ["HURRY_S", "Closing"]

#: When the client is closed, acquires have this long to end, s: a round trip.
LEAVE_S = 0.25
#: How long callbacks of holders have to return, and blocks to end, before their locks are released, s.
TOLD_S = 1.0
#: A client without progress for this long leaves the rest to the ttl, s.
PATIENCE_S = 1.0
#: While servers answer, what they are told takes no longer than this, s.
RELEASE_MAX_S = 5.0
#: Pauses of what goes on in the background are no longer from then on, s.
HURRY_S = 0.05
#: How often it is looked, at first and at last, s.
_LOOK_S, _LOOK_MAX_S = 0.0002, 0.01
#: How many releases are begun at a time, so that answers are read between them.
_SLICE = 500

_WAITS = (AwaitWake, AwaitTurn, Sleep, Listen)


class Client(typing.Protocol):
    """What ends."""

    tasks: dict[Task, None]
    closing: bool
    schedule: Schedule
    lines: Lines

    def spawn(self, protocol: Protocol[None], label: str) -> Task: ...
    def interrupt(self, task: Task, error: BaseException) -> None: ...
    def is_for_caller(self, task: Task) -> bool: ...
    def has_told(self, record: LeaseRecord) -> bool: ...
    def is_asked(self) -> bool: ...
    def give_back_asked(self) -> None: ...
    def leaving(self) -> list[LeaseRecord]: ...
    def repeat_unconfirmed(self) -> None: ...
    def steps(self) -> int: ...
    def resume(self, task: Task, ticket: int, value: Any) -> None: ...


class Closing:
    """The end of one client."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._mine: Task | None = None
        self._ended = False
        self._on_end: list[Callable[[bool], None]] = []

    def begin(self, on_end: Callable[[bool], None]) -> None:
        """Grant nothing from now on. `on_end` is told whether all was confirmed by the servers."""
        if self._ended:
            on_end(True)
            return
        self._on_end.append(on_end)
        if self._mine is None:
            client = self._client
            client.closing = True
            self._mine = client.spawn(self._end(), "close")

    async def _end(self) -> None:
        client = self._client
        settled = False
        try:
            self._stop(lambda task: isinstance(task.effect, _WAITS))
            client.lines.wake_all()
            if not await self._until(self._have_left, LEAVE_S):
                self._stop(lambda task: True)
                if not await self._until(self._have_left, LEAVE_S):
                    self._client.give_back_asked()
            self._hurry()
            await Sleep(_LOOK_S)  # what the last of them gives back has been submitted
            now = await Now()
            records = [record for record in client.schedule if not record.check_expired(now)]
            for record in records:
                client.schedule.remove(record)
                record.lose("closed")
            await self._until(lambda: all(map(client.has_told, records)), TOLD_S)
            if not await self._until(lambda: not client.leaving(), LEAVE_S):
                records += client.leaving()
            await Sleep(_LOOK_S)  # as above
            client.repeat_unconfirmed()  # what callers have sent is known by now
            settled = await self._released(records)
        finally:
            self._ended = True
            for on_end in self._on_end:
                on_end(settled)

    def _hurry(self) -> None:
        """Have go on what pauses in the background."""
        for task in list(self._client.tasks):
            if task.waiting and type(task.effect) is Sleep:
                self._client.resume(task, task.ticket, None)

    def _callers(self) -> list[Task]:
        return [task for task in self._client.tasks if self._client.is_for_caller(task)]

    def _have_left(self) -> bool:
        return not self._callers() and not self._client.is_asked()

    def _stop(self, which: Callable[[Task], bool]) -> None:
        """End the acquires of callers; each gives back what it may have been granted."""
        for task in self._callers():
            if which(task):
                self._client.interrupt(task, closed())

    async def _released(self, records: list[LeaseRecord]) -> bool:
        """Release them, a slice at a time, and wait for all that is under way as long as there is progress."""
        client, least, steps, look_s = self._client, float("inf"), 0, _LOOK_S
        at_most, until = await Now() + RELEASE_MAX_S, 0.0
        while left := len(client.tasks) + len(records) - 1:
            now = await Now()
            if records or left < least or client.steps() != steps:
                least, steps, until = min(left, least), client.steps(), now + PATIENCE_S
            for record in records[:_SLICE]:
                client.spawn(quietly(record), f"release {record.name}")
            del records[:_SLICE]
            if now >= min(until, at_most):
                return False
            await Sleep(look_s)
            look_s = min(2 * look_s, _LOOK_MAX_S)
        return True

    async def _until(self, condition: Callable[[], bool], patience_s: float) -> bool:
        """Wait until it is true; False when it is not in time."""
        until, look_s = await Now() + patience_s, _LOOK_S
        while not condition():
            if await Now() >= until:
                return False
            await Sleep(look_s)
            look_s = min(2 * look_s, _LOOK_MAX_S)
        return True

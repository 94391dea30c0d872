"""How a client ends.

Laws: waiters are out of the queues before anything is released, so that none of them is handed what is released;
holders are told, and have done what they do then, before their locks are released; all of it together takes no longer
than the budget, however many servers hang.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from holdfast._core.agent.renewals import quietly
from holdfast._core.agent.runner import WAITS, Runner, Task, closed
from holdfast._core.effects import Sleep
from holdfast._core.record import LeaseRecord
from holdfast._core.schedule import Schedule
from holdfast._core.snapshot import snapshot
from holdfast._core.standing import Standings
from holdfast._core.tenure import Lines

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


class Closing(Runner):
    """A runner that ends with its client."""

    schedule: Schedule
    lines: Lines
    standing: Standings
    #: What has what callers ask for (`asking`) and release (`leaving`) by themselves, by its token.
    front: Any = SimpleNamespace(asking={}, leaving={})

    def __init__(self) -> None:
        super().__init__()
        self._closes: Task | None = None
        self._is_over = False
        self._on_end: list[Callable[[bool], None]] = []

    def close(self, on_end: Callable[[bool], None]) -> None:
        """End what waits, tell those who hold, release what they held; `on_end(whether all of it was confirmed)`."""
        if self._is_over:
            on_end(True)
            return
        self._on_end.append(on_end)
        if self._closes is None:
            self.closing = True
            self._closes = self.spawn(self._end(), "close")

    # -- what it is run by ------------------------------------------------------------------------

    def repeat_unconfirmed(self) -> None:
        """Repeat releases that callers have sent by themselves, and that are not answered yet."""

    def steps(self) -> int:
        """Count what shows that the servers do something, beside what ends here."""
        return 0

    @abstractmethod
    def has_told(self, record: LeaseRecord) -> bool:
        """True if what its user does when it is lost (callbacks, the end of a block) is done."""

    # -- the end ----------------------------------------------------------------------------------

    async def _end(self) -> None:
        settled = False
        try:
            self._stop(lambda task: type(task.effect) in WAITS)
            self.lines.wake_all()
            self.standing.wake_all()
            if not await self._until(self._have_left, LEAVE_S):
                self._stop(lambda task: True)
                if not await self._until(self._have_left, LEAVE_S):
                    for asked in snapshot(self.front.asking.values()):
                        asked.undo()
            self._hurry()
            await Sleep(_LOOK_S)  # what the last of them gives back has been submitted
            now = self.now()
            records = [record for record in self.schedule if not record.check_expired(now)]
            for record in records:
                self.schedule.remove(record)
                record.lose("closed")
            await self._until(lambda: all(map(self.has_told, records)), TOLD_S)
            leaving = self.front.leaving
            if not await self._until(lambda: not leaving, LEAVE_S):
                records += snapshot(leaving.values())
            await Sleep(_LOOK_S)  # as above
            self.repeat_unconfirmed()  # what callers have sent is known by now
            settled = await self._released(records)
        finally:
            self._is_over = True
            for on_end in self._on_end:
                on_end(settled)

    def _hurry(self) -> None:
        """Have go on what pauses in the background."""
        for task in list(self.tasks):
            if type(task.effect) is Sleep:
                self.resume(task, task.ticket, None)

    def _callers(self) -> list[Task]:
        return [task for task in self.tasks if self.is_for_caller(task)]

    def _have_left(self) -> bool:
        return not self._callers() and not self.front.asking

    def _stop(self, which: Callable[[Task], bool]) -> None:
        """End the acquires of callers; each gives back what it may have been granted."""
        for task in self._callers():
            if which(task):
                self.interrupt(task, closed())

    async def _released(self, records: list[LeaseRecord]) -> bool:
        """Release them, a slice at a time, and wait for all that is under way as long as there is progress."""
        least, steps, look_s = float("inf"), 0, _LOOK_S
        at_most, until = self.now() + RELEASE_MAX_S, 0.0
        while left := len(self.tasks) + len(records) - 1:
            now = self.now()
            if records or left < least or self.steps() != steps:
                least, steps, until = min(left, least), self.steps(), now + PATIENCE_S
            for record in records[:_SLICE]:
                self.spawn(quietly(record), f"release {record.name}")
            del records[:_SLICE]
            if now >= min(until, at_most):
                return False
            await Sleep(look_s)
            look_s = min(2 * look_s, _LOOK_MAX_S)
        return True

    async def _until(self, condition: Callable[[], bool], patience_s: float) -> bool:
        """Wait until it is true; False when it is not in time."""
        until, look_s = self.now() + patience_s, _LOOK_S
        while not condition():
            if self.now() >= until:
                return False
            await Sleep(look_s)
            look_s = min(2 * look_s, _LOOK_MAX_S)
        return True

"""Messages of servers, and the protocols that wait for them.

Laws: a message that comes before its waiter waits is kept; where an inbox breaks, all waiters look for themselves; an
inbox is opened once, however many want it, and not again at once where it broke as soon as it was open.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from typing import Any

from holdfast._core.agent.reopening import Reopening
from holdfast._core.agent.runner import SUSPENDED, Task
from holdfast._core.effects import AwaitWake, Listen, Unlisten, Wake
from holdfast._core.failure import RequestFailed
from holdfast._core.settings import Settings

__all__ = ["Inboxes"]


class Inboxes:
    """Those of one client, by the places (servers) that they listen at.

    `subscribe(place, patience_s, answer)` opens one, and calls `answer` once: with None, or with the `RequestFailed`.
    """

    def __init__(
        self,
        settings: Settings,
        now: Callable[[], float],
        later: Callable[..., Any],
        resume: Callable[..., None],
        place_of: Callable[[str, int | None], Hashable],
        subscribe: Callable[[Hashable, float, Callable[[RequestFailed | None], None]], None],
        opened: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._now = now
        self._later = later
        self._resume = resume
        self._place_of = place_of
        self._subscribe = subscribe
        self._on_opened = opened
        self._open: set[Hashable] = set()
        #: Those that wait for one to be opened.
        self._opening: dict[Hashable, list[tuple[Task, int]]] = {}
        self._reopening: dict[Hashable, Reopening] = {}
        #: What has come for a token that listens, and who waits for it.
        self._kept: dict[str, deque[Wake]] = {}
        self._awaiting: dict[str, tuple[Task, int]] = {}

    def is_open(self, place: Hashable) -> bool:
        """True if messages come from there."""
        return place in self._open

    def listening(self, key: str, node: int | None = None) -> bool:
        """True if the inbox at that key's server is open, so that a first request may queue."""
        return self._place_of(key, node) in self._open

    def missing(self, key: str) -> Hashable | None:
        """The place at which an inbox is missing to hear of that key."""
        place = self._place_of(key, None)
        return None if place in self._open else place

    def is_awaited(self) -> bool:
        """True if a token listens."""
        return bool(self._kept)

    # -- effects ----------------------------------------------------------------------------------

    def listen(self, task: Task, effect: Listen) -> Any:
        """Register the token; wait for the inbox."""
        place = self._place_of(effect.key, effect.node)
        self._kept.setdefault(effect.token, deque())
        if place in self._open:
            return None
        ticket = task.ticket
        waiting = self._opening.get(place)
        if waiting is None:
            waiting = self._opening[place] = []
            pause_s = self._reopening.setdefault(place, Reopening(self._settings)).pause_s
            if pause_s:
                self._later(pause_s, self._begin, place, effect.request_timeout_s)
            else:
                self._begin(place, effect.request_timeout_s)
        waiting.append((task, ticket))
        task.timer = self._later(effect.request_timeout_s, self._silent, task, ticket)
        return SUSPENDED

    def unlisten(self, _task: Task, effect: Unlisten) -> None:
        """Forget the token."""
        self._kept.pop(effect.token, None)
        self._awaiting.pop(effect.token, None)  # of a wait that was interrupted, or has timed out

    def await_wake(self, task: Task, effect: AwaitWake) -> Any:
        """Wait for its next message."""
        kept = self._kept.get(effect.token)
        if kept:
            return kept.popleft()
        self._awaiting[effect.token] = task, task.ticket
        task.timer = self._later(effect.timeout_s, self._resume, task, task.ticket, None)
        return SUSPENDED

    # -- what comes -------------------------------------------------------------------------------

    def wake(self, token: str, wake: Wake) -> None:
        """Wake a waiter by a message. If there is none, it has left, and sent its give-back."""
        kept = self._kept.get(token)
        if kept is None:
            return
        task, ticket = self._awaiting.pop(token, (None, 0))
        if task is not None and task.ticket == ticket and task.waiting:
            self._resume(task, ticket, wake)
        else:
            kept.append(wake)

    def ask_all(self) -> None:
        """Have all that wait look for themselves."""
        for token in list(self._kept):
            self.wake(token, Wake(Wake.ASK))

    # -- open and closed --------------------------------------------------------------------------

    def _begin(self, place: Hashable, patience_s: float) -> None:
        # In the time of who asked first. Who came later tries again, and is not held up by an attempt that hangs.
        self._subscribe(place, patience_s, lambda failure: self._opened(place, failure))

    def _opened(self, place: Hashable, failure: RequestFailed | None) -> None:
        waiting = self._opening.pop(place, ())
        if failure is None:
            self._open.add(place)
            self._reopening[place].opened(self._now())
            self._on_opened()
        for task, ticket in waiting:
            self._resume(task, ticket, None, failure and failure.again(maybe_executed=False))

    def _silent(self, task: Task, ticket: int) -> None:
        failure = RequestFailed("silent", "no subscription in time", "", maybe_executed=False, transient=True)
        self._resume(task, ticket, None, failure)

    def broke(self, place: Hashable) -> bool:
        """Forget an inbox that ended by itself and have it reopened; False when it was not open. All waiters look."""
        if place not in self._open:
            return False
        self._open.discard(place)
        self._reopening[place].broke(self._now())
        self.ask_all()
        return True

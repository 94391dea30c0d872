"""Trying again: which failures are worth it, for how long, and after which pause.

Laws: only trouble that passes by itself is tried again; every pause is bounded and random, so that clients that failed
together do not come back together; the caller that retries has a moment after which the failure is raised.

Theory: `Backoff` makes pauses, `Retry` decides and pauses, `outlast` is the loop of a request that needs nothing else.
All three are parts of protocols: they know no clock but the driver's.
"""

from __future__ import annotations

from holdfast._core.effects import Effect, Reply, Sleep, driver
from holdfast._core.failure import RequestFailed
from holdfast._core.settings import Settings

#: After this many pauses they have long reached their greatest length.
_DOUBLINGS_MAX = 10
#: Failures after which the first try is repeated at once: an idle connection that was closed meanwhile; more replicas
#: than were known.
_AT_ONCE = frozenset({"broken", "NOACK"})


class Backoff:
    """Pauses that double from `first_s` to `most_s`, each of them random: from `least` to `least + 1` of its length."""

    __slots__ = ("_first_s", "_least", "_most_s", "_number")

    def __init__(self, first_s: float, most_s: float, least: float = 0.5) -> None:
        self._first_s = first_s
        self._most_s = most_s
        self._least = least
        self._number = 0

    def next_s(self) -> float:
        pause_s: float = min(self._most_s, self._first_s * 2 ** min(self._number, _DOUBLINGS_MAX))
        self._number += 1
        return pause_s * (self._least + driver.get().random())

    def reset(self) -> None:
        self._number = 0


class Retry:
    """Outlasts trouble for `limit_s` from the first failure on, and not less than until `until` (local s)."""

    __slots__ = ("_backoff", "_limit_s", "_tries", "_until", "over_at")

    def __init__(self, settings: Settings, limit_s: float = 0.0, until: float = float("-inf")) -> None:
        self._limit_s = limit_s
        self._until = until
        self._tries = 0
        self._backoff = Backoff(settings.trouble_pause_s, settings.trouble_pause_max_s)
        #: When it is given up; None as long as nothing has failed.
        self.over_at: float | None = None

    async def again(self, failure: RequestFailed, *, unsettled: bool = False) -> bool:
        """Pause, and return whether to try again. `unsettled`: also after an answer that made no sense."""
        if not (failure.unsettled if unsettled else failure.transient):
            return False
        now = driver.get().now()
        over_at = self._begin(now)
        if self._limit_s and failure.passes_in_s:
            over_at = max(over_at, now + failure.passes_in_s)
        self._tries += 1
        pause_s = self._backoff.next_s()
        if self._tries == 1 and failure.kind in _AT_ONCE:
            pause_s = 0.0
        if now + pause_s >= over_at:
            return False
        if pause_s:
            await Sleep(pause_s)
        return True

    def in_time(self) -> bool:
        """Return whether to ask again at once, after an answer that says that there is more to do."""
        now = driver.get().now()
        return now < self._begin(now)

    def _begin(self, now: float) -> float:
        if self.over_at is None:
            self.over_at = max(now + self._limit_s, self._until)
        return self.over_at


async def outlast(request: Effect[Reply], settings: Settings) -> Reply:
    """The reply to what may be repeated; trouble that passes is outlasted for as long as a short call may take."""
    retry = Retry(settings, until=driver.get().now() + settings.short_retry_s)
    while True:
        try:
            return await request
        except RequestFailed as failure:
            if not await retry.again(failure):
                raise

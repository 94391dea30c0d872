"""How holders hear what concerns their leases: that one is wanted, or was broken.

Laws: a lease that ends within `LOOK_S` costs nothing for this; nothing of it holds up a renewal, or is needed for one.
A message that comes before its lease is known is for that lease all the same.

Theory: waiters have an inbox open anyway, and holders hear by it, too. Where there is none, it is opened for a lease
that has been held for `LOOK_S`. What was said before it was open stands in a note, which is looked up then: at first a
break is known within that time and some round trips, later with the message. A client that may not subscribe finds the
note when it renews.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Hashable, Iterable
from contextlib import suppress

from holdfast._core.agent.renewals import leave_to_its_time
from holdfast._core.effects import Listen, Protocol, Sleep, Wake
from holdfast._core.failure import RequestFailed
from holdfast._core.record import LeaseRecord, broken_by, note_for
from holdfast._core.schedule import Schedule
from holdfast._core.settings import Settings
from holdfast._core.tokens import MARK

#: After this time held, s, a lease has its client listen. What is over by then costs nothing.
LOOK_S = 0.1
#: Where that was refused, it is tried again after this, s; and where the server was in trouble.
_AGAIN_S, _SOON_S = 30.0, 1.0
#: For how many leases a note is looked for when an inbox was opened; others find theirs when they are renewed.
_NOTES_MAX = 1_000
#: How long what is done for a loss (callbacks, the end of bodies) may delay the release, s; looked at this often.
_TOLD_S, _TOLD_LOOK_S = 0.3, 0.005


class Driver(typing.Protocol):
    """The driver that they are for."""

    schedule: Schedule
    settings: Settings
    closing: bool

    def now(self) -> float: ...
    def missing_inbox(self, key: str) -> Hashable | None: ...
    def unlisten(self, token: str) -> None: ...
    def spawn(self, protocol: Protocol[None]) -> object: ...
    def call(self, act: Callable[..., object], *args: object) -> None: ...
    def has_told(self, record: LeaseRecord) -> bool: ...


class HolderNotices:
    """What one client's holders are told. `one_place`: all its keys are on one server."""

    def __init__(self, driver: Driver, one_place: bool) -> None:
        self._driver = driver
        self._one_place = one_place
        #: Until when inboxes are not asked for again, by their places; and the leases that they are for.
        self._asked: dict[Hashable, float] = {}
        self._behind: dict[Hashable, list[LeaseRecord]] = {}
        #: When those that could not be opened are to be asked for again.
        self._again_at = float("inf")
        driver.schedule.look_s = LOOK_S
        driver.schedule.meets = self._meet
        driver.schedule.outlasts = lambda record: self._soon(self._let_go(record))

    def look(self, now: float) -> None:
        """Have an inbox open for leases that were held for a while. Does not wait."""
        schedule = self._driver.schedule
        outlived, schedule.outlived = schedule.outlived, []
        if now >= self._again_at:
            self._again_at = float("inf")
            self._listen_for_old(now)
        elif outlived:
            self._listen(outlived, now)

    def _listen(self, records: Iterable[LeaseRecord], now: float) -> None:
        driver = self._driver
        for record in records:
            for keys in record.places:
                place = driver.missing_inbox(keys.lock)
                if place is None:
                    if record.alive and record.held_since < driver.schedule.hears_since:
                        driver.spawn(self._look_up(record))  # the inbox was opened since
                    continue
                if place in self._behind:
                    self._behind[place].append(record)
                elif record.alive and now >= self._asked.get(place, 0.0) and not driver.closing:
                    if len(self._asked) >= _NOTES_MAX:
                        self._asked.clear()
                    self._asked[place] = now + _AGAIN_S
                    self._behind[place] = [record]
                    driver.spawn(self._open(record, keys.lock, place))

    async def _open(self, record: LeaseRecord, key: str, place: Hashable) -> None:
        driver = self._driver
        token = f"{record.token} hears"  # no token: a wake-up of that is for waiters
        try:
            await Listen(token, key, driver.settings.request_timeout_s)
        except RequestFailed as failure:
            if failure.transient:
                self._again_at = self._asked[place] = driver.now() + _SOON_S
            return
        finally:
            behind = self._behind.pop(place, [])
            driver.unlisten(token)
        self._asked.pop(place, None)
        if self._one_place:
            driver.schedule.look_s = float("inf")
            behind = [*driver.schedule]  # also those that are younger
        for each in [each for each in behind if each.places][:_NOTES_MAX]:
            if each.alive:  # still
                await self._look_up(each)

    async def _look_up(self, record: LeaseRecord) -> None:
        note = await note_for(record.places, record.token)
        if note is not None and record.alive:
            self._broken(record, note)

    def opened(self, now: float) -> None:
        """Note that an inbox was opened: what was said before that stands in notes."""
        self._driver.schedule.hears_since = now

    def _meet(self, record: LeaseRecord) -> None:
        """Look up what may have been said of a lease before it began."""
        self._heed(record, Wake.WANT)
        self._heed(record, Wake.BREAK)
        if record.alive and record.places and record.held_since < self._driver.schedule.hears_since:
            self._soon(self._look_up(record))

    def _soon(self, protocol: Protocol[None]) -> None:
        """Run it where all protocols run: a lease is added by any thread."""
        self._driver.call(self._driver.spawn, protocol)

    def _heed(self, record: LeaseRecord, kind: str) -> None:
        """Act on that message, if no one has."""
        text = self._driver.schedule.early.take(record.token, kind)
        if text is None or not record.alive:
            return
        if kind == Wake.WANT:
            record.is_wanted(text)
        else:
            self._broken(record, text)

    def inbox_lost(self, now: float) -> None:
        """Have another inbox opened for leases that were held for a while, after one has ended."""
        driver = self._driver
        driver.schedule.look_s = LOOK_S
        driver.schedule.early.inbox_lost()
        self._listen_for_old(now)

    def _listen_for_old(self, now: float) -> None:
        self._listen([record for record in self._driver.schedule if now - record.held_since > LOOK_S], now)

    def told(self, token: str, wake: Wake) -> None:
        """Act on a message to a holder."""
        schedule = self._driver.schedule
        if token.endswith(MARK):
            schedule.early.told(token)
        if wake.kind == Wake.YIELD:
            return
        schedule.early.note(token, wake.kind, wake.text)
        for record in schedule:
            if record.token == token and record.alive:
                self._heed(record, wake.kind)
                return

    def _broken(self, record: LeaseRecord, by: str) -> None:
        record.lose(broken_by(by))
        self._driver.schedule.remove(record)
        self._soon(self._let_go(record))

    async def _let_go(self, record: LeaseRecord) -> None:
        """Release what was broken, or has to end, when those that are told of it have done what they do."""
        driver = self._driver
        until = driver.now() + _TOLD_S
        while not driver.has_told(record) and driver.now() < until:
            await Sleep(_TOLD_LOOK_S)
        leaves = leave_to_its_time(record, driver.settings) if record.kept_until > driver.now() else record.release()
        with suppress(RequestFailed):  # who breaks it does so
            await leaves

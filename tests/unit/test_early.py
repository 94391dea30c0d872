"""Messages that come before their lease is known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from holdfast._core.effects import Command, Protocol, Wake
from holdfast._core.holder_notices import HolderNotices
from holdfast._core.keys import lock_keys
from holdfast._core.record import LeaseRecord
from holdfast._core.schedule import EARLY_MAX, Early, Schedule
from holdfast._core.settings import DEFAULT
from tests.support.steps import drive

TOKEN = "a:1:1"


class Holder:
    """A driver, as `HolderNotices` asks of it."""

    settings = DEFAULT
    closing = False

    def __init__(self) -> None:
        self.schedule = Schedule()
        self.spawned: list[Protocol[None]] = []
        self.called = False
        self.notices = HolderNotices(self, True)

    def now(self) -> float:
        return 10.0

    def unlisten(self, token: str) -> None: ...

    def missing_inbox(self, key: str) -> None:
        return None

    def spawn(self, protocol: Protocol[None]) -> None:
        assert self.called, "who adds a lease is in no thread that runs protocols"
        self.spawned.append(protocol)

    def call(self, act: Callable[..., object], *args: object) -> None:
        self.called = True
        act(*args)
        self.called = False

    def has_told(self, hold: LeaseRecord) -> bool:
        return True

    def begin(self, held_since: float = 10.0, token: str = TOKEN) -> LeaseRecord:
        hold = LeaseRecord("x", token, 1, 30_000, held_since, asks=(_nothing, _nothing))
        hold.places = (lock_keys("holdfast", "x"),)
        self.schedule.add(hold, 0.5)
        return hold

    def close(self) -> None:
        for protocol in self.spawned:
            protocol.close()


async def _nothing(*_: Any) -> Any:
    return 1


@pytest.fixture
def holder() -> Any:
    made = Holder()
    yield made
    made.close()


def test_a_break_that_comes_first_ends_the_lease_as_soon_as_it_is_known(holder: Holder) -> None:
    holder.notices.told(TOKEN, Wake(Wake.BREAK, text="me: stuck"))
    hold = holder.begin()
    assert hold.reason == "broken by me: stuck"
    assert len(holder.spawned) == 1, "it is released"
    assert hold not in tuple(holder.schedule)


def test_an_ask_that_comes_first_is_known_to_the_lease(holder: Holder) -> None:
    holder.notices.told(TOKEN, Wake(Wake.WANT, text="me: please"))
    hold = holder.begin()
    assert hold.alive
    assert hold.wanted_by == "me: please"


def test_both_come_first(holder: Holder) -> None:
    holder.notices.told(TOKEN, Wake(Wake.WANT, text="me: please"))
    holder.notices.told(TOKEN, Wake(Wake.BREAK, text="me: now"))
    hold = holder.begin()
    assert hold.reason == "broken by me: now"
    assert hold.wanted_by == "me: please"


@pytest.mark.parametrize("kind", [Wake.WANT, Wake.BREAK])
def test_each_message_is_for_one_lease(holder: Holder, kind: str) -> None:
    """A tenure has several leases of one token, one after the other."""
    first = holder.begin()
    holder.notices.told(TOKEN, Wake(kind, text="me"))
    assert first.wanted_by == "me" or first.reason == "broken by me"
    second = holder.begin()
    assert second.alive and second.wanted_by is None
    holder.schedule.remove(first)
    holder.schedule.remove(second)
    holder.notices.told(TOKEN, Wake(kind, text="me"))
    third, fourth = holder.begin(), holder.begin()
    assert third.wanted_by == "me" or third.reason == "broken by me"
    assert fourth.alive and fourth.wanted_by is None


def test_messages_of_other_tokens_are_not_for_it(holder: Holder) -> None:
    holder.notices.told(f"{TOKEN}2", Wake(Wake.BREAK, text="me"))
    holder.notices.told(TOKEN, Wake(Wake.WANT, text="you"))
    hold = holder.begin()
    assert hold.alive and hold.wanted_by == "you"


def test_a_lease_that_was_asked_for_before_the_inbox_was_open_looks_for_a_note(holder: Holder) -> None:
    holder.notices.opened(11.0)
    hold = holder.begin(held_since=10.5)
    (looks,) = holder.spawned
    holder.spawned = []
    asked: list[str] = []

    def answer(effect: Any) -> Any:
        assert type(effect) is Command
        asked.append(str(effect.args[0]))
        return b"me: too late"

    drive(looks, answer)
    assert asked == ["GET"]
    assert hold.reason == "broken by me: too late"
    holder.close()
    holder.spawned = []
    assert holder.begin(held_since=11.5).alive
    assert not holder.spawned


def test_what_never_begins_is_forgotten() -> None:
    early = Early()
    for number in range(3 * EARLY_MAX):
        early.note(f"a:1:{number}", Wake.BREAK, "x" * 100_000)
    assert len(early) == EARLY_MAX
    assert early.take("a:1:0", Wake.BREAK) is None
    assert len(early.take(f"a:1:{3 * EARLY_MAX - 1}", Wake.BREAK) or "") == 1_000

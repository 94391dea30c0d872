"""What a lease is worth, by the rules that know no clock."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast._core.exclusive import OneServer
from holdfast._core.keys import lock_keys
from holdfast._core.record import LeaseRecord, LeaseState, Order
from holdfast._core.rwlock import RWAcquisition
from holdfast._core.schedule import Schedule
from holdfast._core.settings import DEFAULT
from holdfast._core.validity import deadline
from holdfast._core.waiting import Grant, granted


def hold_of(ttl_ms: int, sent_at: float = 100.0, max_hold_ms: int | None = None) -> LeaseRecord:
    async def done() -> Any:
        return True

    hold = LeaseRecord("a", "t:1:1", 1, ttl_ms, sent_at, asks=(lambda ttl_ms: done(), done))
    if max_hold_ms is not None:
        hold.end_by(sent_at + max_hold_ms / 1000)
    return hold


def test_a_renewal_that_is_closed_before_it_begins_leaves_nothing_behind() -> None:
    """A client may be closed meanwhile: Python complains of coroutines that were made and never run."""
    made: list[int] = []

    async def asks(ttl_ms: int, *order: Order) -> Any:
        made.append(ttl_ms)

    hold = hold_of(30_000)
    hold._asks = asks, hold.release
    for protocol in (hold.renew(30_000), hold.or_why(10_000, Order(1))):
        protocol.close()
    protocol = hold.renew(20_000)
    with pytest.raises(StopIteration):
        _ = protocol.send(None)
    assert made == [20_000]


def test_a_shorter_ttl_counts_from_before_it_is_asked_for() -> None:
    hold = hold_of(600_000)
    assert hold.shorten(2_000, 110.0)
    assert 111.9 < hold.deadline < 112.0
    assert hold.ttl_ms == 2_000


def test_a_longer_ttl_counts_when_it_is_answered() -> None:
    hold = hold_of(30_000)
    before = hold.deadline
    assert not hold.shorten(60_000, 110.0)
    assert hold.deadline == before


def test_an_answer_from_before_a_shortening_is_not_trusted_for_more() -> None:
    hold = hold_of(30_000)
    hold.shorten(2_000, 110.1)  # while a renewal for 30 s was on its way since 110.0
    assert hold.extended(30_000, 110.0, 110.2)
    assert hold.deadline < 112.1


def test_a_shortened_hold_is_lost_at_its_new_deadline() -> None:
    for known in (False, True):
        schedule = Schedule()
        hold = hold_of(600_000)
        schedule.add(hold, 0.5)
        if known:
            schedule.replan(hold, 0.5)
        hold.shorten(2_000, 110.0)
        at = schedule.shorten(hold)
        assert at == hold.deadline
        next_at = schedule.next_at()
        assert next_at is not None and next_at <= hold.deadline
        assert schedule.due(hold.deadline) == []
        assert hold.state is LeaseState.LOST


def test_a_side_of_a_shared_lock_keeps_what_its_grant_and_its_other_side_say() -> None:
    keys = lock_keys("holdfast", "a")
    turn = RWAcquisition(keys, f"{'0' * 24}:r.1:1", 30_000)
    hold = turn.make_record("a", Grant(1, 100.0, stray=True))
    hold.end_by(105.0)
    assert turn.stray, "its release buries the token"
    assert hold.deadline == 105.0 and hold.renewal_ttl_ms(101.0) is None
    assert not hold.check_expired(104.9) and hold.check_expired(105.0) and hold.reason == "max_hold"


# ---------------------------------------------------------------- extensions, and answers in any order


def extending(hold: LeaseRecord, ttl_ms: int, asked_at: float) -> Order:
    order = hold.extending(ttl_ms, asked_at)
    hold.shorten(ttl_ms, asked_at, order.asks_ms)
    return order


def test_an_answer_to_a_renewal_takes_nothing_back_from_a_later_extension() -> None:
    hold = hold_of(3_000)
    order = extending(hold, 60_000, 101.0)
    assert hold.extended(60_000, 101.0, 101.1, order)
    assert hold.extended(3_000, 100.9, 101.2), "a renewal that was sent before"
    assert hold.deadline > 160.0 and hold.ttl_ms == 60_000


def test_only_the_last_extension_says_what_the_ttl_is() -> None:
    hold = hold_of(30_000)
    long = extending(hold, 60_000, 101.0)
    short = extending(hold, 2_000, 101.0)
    assert hold.extended(2_000, 101.0, 101.1, short)
    assert hold.extended(60_000, 101.0, 101.2, long), "it was answered after the later one"
    assert hold.ttl_ms == 2_000 and hold.deadline < 103.0


def test_an_extension_outdates_what_would_do_something_else_later() -> None:
    hold = hold_of(30_000)
    orders = [extending(hold, ttl_ms, 101.0) for ttl_ms in (60_000, 60_000, 2_000, 2_000, 60_000)]
    assert [order.number for order in orders] == [1, 2, 3, 4, 5]
    assert [order.outdates for order in orders] == [False, False, True, True, True]
    assert [order.mark_ms(order.asks_ms, 10_000) for order in orders] == [0, 0, 10_000, 10_000, 60_000]


def test_an_extension_asks_for_no_more_than_max_hold_leaves() -> None:
    hold = hold_of(30_000, max_hold_ms=40_000)
    order = extending(hold, 60_000, 138.0)
    assert order.asks_ms == 2_000, "what no one may use keeps others waiting"
    assert hold.deadline < 140.0, "and the server may count faster"
    assert not hold.extended(60_000, 138.0, 140.0, order)
    assert hold.reason == "max_hold"


@pytest.mark.parametrize("answered", [True, False])
def test_a_renewal_that_fails_after_a_later_answer_makes_nothing_suspect(answered: bool) -> None:
    schedule = Schedule()
    hold = hold_of(3_000)
    schedule.add(hold, 0.5)
    assert schedule.due(101.0) == [hold]
    order, at = schedule.extending(hold, 60_000, 101.2)
    assert at is None, "a longer end counts when it is answered"
    if answered:
        assert schedule.extended(hold, order, True, 60_000, 101.2, 101.3, 0.5) is not None
    schedule.failed(hold, 101.5, 0.5, sent_at=101.0)
    assert hold.state is (LeaseState.HELD if answered else LeaseState.SUSPECT)
    assert not hold.check_expired(hold.deadline - 0.1)
    assert schedule.due(hold.deadline + 1) == []
    assert hold.check_expired(hold.deadline)


@pytest.mark.parametrize(
    "reason, left_over", [("expired", True), ("max_hold", True), ("taken", False), ("closed", False)]
)
def test_a_late_answer_has_something_given_back_only_when_the_time_was_over(reason: str, left_over: bool) -> None:
    """Over a quorum, what is left of a lease that was lost early keeps others out, as its holder was told."""
    schedule, hold = Schedule(), hold_of(30_000)
    schedule.add(hold, 0.5)
    schedule.replan(hold, 0.5)
    assert not hold.is_left_over
    if reason == "taken":  # an extension has found it gone, while a renewal was on its way that had come there before
        order, _ = schedule.extending(hold, 60_000, 110.0)
        assert schedule.extended(hold, order, 0, 60_000, 110.0, 110.1, 0.5) is None
    else:
        hold.lose(reason)
    assert not schedule.answered(hold, 1, 30_000, 109.0, 110.2, 0.5)
    assert hold.is_left_over is left_over
    assert hold.reason == reason


def test_a_lease_with_crash_release_lasts_for_its_ttl() -> None:
    """Also where its grant had to be answered within the shorter time."""
    token = f"{'c0ffee' * 4}:1:7!2000"
    grant = granted([1, 7], 100.0, 100.1, 2_000)
    assert grant is not None
    record = OneServer(lock_keys("holdfast", "a"), DEFAULT).make_record(token, grant, 30_000)
    assert record.deadline == deadline(100.0, 30_000)

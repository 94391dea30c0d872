"""Validity and the schedule of renewals: what holds whatever the times are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast._core.effects import Protocol
from holdfast._core.record import LeaseRecord, LeaseState, Report
from holdfast._core.schedule import Schedule
from holdfast._core.settings import DEFAULT
from holdfast._core.validity import DRIFT, MARGIN_S, deadline

TTLS = st.integers(min_value=100, max_value=86_400_000)
TIMES = st.floats(min_value=0, max_value=1e6, allow_nan=False)
FRACTIONS = st.floats(min_value=0, max_value=1, exclude_max=True, allow_nan=False)


async def _yes() -> bool:
    return True


def _extension(ttl_ms: int) -> Protocol[bool]:
    return _yes()


def hold_of(ttl_ms: int, sent_at: float, *, renew: bool = True, max_hold_ms: int | None = None) -> LeaseRecord:
    hold = LeaseRecord("a", "t", 1, ttl_ms, sent_at, asks=(_extension, _yes))
    if not renew:
        hold.stop_renewing()
    if max_hold_ms is not None:
        hold.end_by(sent_at + max_hold_ms / 1000)
    return hold


def renewal_at(schedule: Schedule, hold: LeaseRecord, jitter: float) -> float:
    """Watch it, and attend to it until it is to be renewed: when that is."""
    at = schedule.add(hold, jitter)
    for _ in range(3):
        assert at <= hold.deadline
        if schedule.due(at) == [hold]:
            return at
        following = schedule.next_at()
        assert following is not None
        at = following
    raise AssertionError("it is never renewed")


@given(TTLS, TIMES, st.floats(min_value=-DRIFT / 2.1, max_value=DRIFT / 2.1), st.floats(min_value=0, max_value=1e4))
def test_a_deadline_is_over_before_the_servers_time(ttl_ms: int, sent_at: float, drift: float, way_s: float) -> None:
    """The server starts to count `way_s` after the request was sent, on a clock of another rate."""
    server_ends_at = sent_at + way_s + ttl_ms / 1000 / (1 + drift)
    assert deadline(sent_at, ttl_ms) < server_ends_at


@given(TTLS, TIMES)
def test_a_deadline_counts_from_the_sending(ttl_ms: int, sent_at: float) -> None:
    assert deadline(sent_at, ttl_ms) <= sent_at + ttl_ms / 1000 - MARGIN_S


@given(TTLS, TIMES, st.floats(min_value=0.01, max_value=2.0), FRACTIONS)
def test_what_begins_with_less_is_stretched_soon(ttl_ms: int, now: float, lasts_s: float, jitter: float) -> None:
    schedule = Schedule()
    hold = LeaseRecord("a", "t", 1, ttl_ms, now, now + lasts_s, lasts_s, (_extension, _yes))
    at = renewal_at(schedule, hold, jitter)
    soon_s = min(lasts_s / 12, DEFAULT.stretch_s) + 1e-9
    assert at <= now + soon_s, "a renewal that gets no answer can be repeated"
    schedule.failed(hold, at, jitter)
    assert hold.next_at <= at + lasts_s / 8 + 1e-9
    if at + 0.001 < hold.deadline:
        assert schedule.answered(hold, 1, ttl_ms, at, at + 0.001, jitter)
        assert hold.deadline >= now + lasts_s and hold.deadline >= deadline(at, ttl_ms)
        assert hold.next_at >= min(hold.deadline, at + ttl_ms / 1000 * DEFAULT.renew_fraction * 0.9)


@given(TTLS, TIMES, FRACTIONS)
def test_attention_comes_at_the_deadline_at_the_latest(ttl_ms: int, sent_at: float, jitter: float) -> None:
    schedule = Schedule()
    hold = hold_of(ttl_ms, sent_at)
    renewal_at(schedule, hold, jitter)
    again = schedule.next_at()
    assert again is not None and again <= hold.deadline
    assert schedule.due(hold.deadline) == []
    assert hold.state is LeaseState.LOST and hold.reason == "expired"


def test_the_end_of_a_short_lease_is_known_in_time_where_all_are_looked_at() -> None:
    """One that ends before `look_s` is not left for the next look at young ones."""
    schedule = Schedule()
    schedule.look_s = 0.1
    hold = hold_of(10_000, 5.0, max_hold_ms=50)
    assert schedule.add(hold, 0.5) == hold.deadline == 5.05
    assert schedule.due(hold.deadline) == [] and hold.reason == "max_hold"


@given(TTLS, TIMES, FRACTIONS)
def test_one_that_is_due_before_others_is_renewed_in_time(ttl_ms: int, sent_at: float, jitter: float) -> None:
    schedule = Schedule()
    schedule.add(hold_of(20 * ttl_ms, sent_at), jitter)
    hold = hold_of(ttl_ms, sent_at)
    assert renewal_at(schedule, hold, jitter) < hold.deadline
    assert len(schedule) == 2


def test_young_ones_are_looked_at_again() -> None:
    schedule = Schedule()
    schedule.look_s = 0.1
    holds = [hold_of(10_000, sent_at) for sent_at in (5.0, 5.05, 5.06)]
    for hold in holds:
        schedule.add(hold, 0.5)
    renewed: list[LeaseRecord] = []
    while (at := schedule.next_at()) is not None and len(renewed) < 3:
        renewed += schedule.due(at)
    assert renewed == holds == schedule.outlived


def test_what_is_due_outlasts_the_others_that_were_planned_anew() -> None:
    schedule, hold, other = Schedule(), hold_of(10_000, 5.0), hold_of(60_000, 5.0)
    at = renewal_at(schedule, hold, 0.0)
    assert schedule.answered(hold, 1, 10_000, at, at, 0.0)
    schedule.add(other, 0.0)
    for _ in range(2_000):
        schedule.replan(other, 0.0)
    following = schedule.next_at()
    assert following is not None and schedule.due(following) == [hold]


@pytest.mark.parametrize("found", ["when it is due", "before it is planned", "while it is renewed", "by a renewal"])
def test_what_max_hold_has_ended_is_to_be_released(found: str) -> None:
    schedule = Schedule()
    outlasted: list[LeaseRecord] = []
    schedule.outlasts = outlasted.append
    hold, other = hold_of(300, 5.0, max_hold_ms=400), hold_of(200, 5.0)
    for each in (hold, other):
        schedule.add(each, 0.0)
    if found == "before it is planned":
        assert hold.check_expired(6.0)
    elif found != "when it is due":
        assert hold in schedule.due(5.11)
    if found == "by a renewal":
        schedule.failed(hold, 6.0, 0.5)
    assert schedule.due(6.0) == [] and outlasted == [hold], "and not what has expired"


def test_what_an_extension_without_an_answer_leaves_beyond_max_hold_is_to_be_released() -> None:
    """The extension was cut to what max_hold left, which counts at once, and was never carried out."""
    schedule = Schedule()
    outlasted: list[LeaseRecord] = []
    schedule.outlasts = outlasted.append
    hold = hold_of(120_000, 5.0, max_hold_ms=50)
    schedule.add(hold, 0.0)
    order, _ = schedule.extending(hold, 130_000, 5.01)
    assert order.asks_ms < 50 and hold.deadline < 5.05
    assert schedule.due(hold.deadline) == [] and hold.reason == "max_hold" and outlasted == [hold]


@pytest.mark.parametrize("extended", [True, False])
def test_what_an_extension_without_an_answer_leaves_is_to_be_released(extended: bool) -> None:
    """An extension shortens the lease at once, though the server may never hear of it; else both end at their time."""
    schedule = Schedule()
    outlasted: list[LeaseRecord] = []
    schedule.outlasts = outlasted.append
    hold = hold_of(30_000, 5.0)
    hold.renews = False
    schedule.add(hold, 0.0)
    if extended:
        schedule.extending(hold, 200, 5.01)
        assert hold.deadline < 5.3
    assert schedule.due(hold.deadline) == [] and hold.reason == "expired"
    assert outlasted == [hold] * extended


@given(TTLS, TIMES, FRACTIONS, FRACTIONS)
def test_a_failed_renewal_is_tried_again_while_validity_lasts(
    ttl_ms: int, sent_at: float, jitter: float, when: float
) -> None:
    schedule = Schedule()
    hold = hold_of(ttl_ms, sent_at)
    at = renewal_at(schedule, hold, jitter)
    now = at + (hold.deadline - at) * when * 0.5
    schedule.failed(hold, now, jitter)
    if not hold.alive:
        return  # so short that validity was over
    assert hold.state is LeaseState.SUSPECT
    again = schedule.next_at()
    assert again is not None and again <= hold.deadline
    if again < hold.deadline:
        assert schedule.due(again) == [hold], "it is asked for again"


@given(TTLS, TIMES, st.floats(min_value=0, max_value=1e5))
def test_an_answer_after_the_deadline_changes_nothing(ttl_ms: int, sent_at: float, late_s: float) -> None:
    schedule = Schedule()
    hold = hold_of(ttl_ms, sent_at)
    told: list[str] = []
    hold.on_loss = (told.append,)
    at = renewal_at(schedule, hold, 0.0)
    end = hold.deadline
    assert not schedule.answered(hold, True, ttl_ms, at, end + late_s, 0.5)
    assert hold.state is LeaseState.LOST and hold.deadline == end
    assert told == ["expired"]


class Lags(Report):
    """Keeps how late each renewal was."""

    detailed = True

    def __init__(self) -> None:
        self.lags_s: list[float] = []

    def renewed(self, record: LeaseRecord, lag_s: float) -> None:
        self.lags_s.append(lag_s)


def test_a_renewal_is_late_since_it_was_due_first() -> None:
    schedule, report = Schedule(), Lags()
    hold = hold_of(9_000, 0.0)
    hold.report = report
    first_at = renewal_at(schedule, hold, 0.5)
    schedule.failed(hold, first_at + 1.0, 0.5)
    again_at = hold.next_at
    assert schedule.due(again_at) == [hold], "it is tried again"
    now = again_at + 0.5
    assert schedule.answered(hold, 1, 9_000, again_at, now, 0.5)
    next_at = hold.next_at
    assert schedule.due(next_at) == [hold]
    assert schedule.answered(hold, 1, 9_000, next_at, next_at + 0.25, 0.5)
    assert report.lags_s == [pytest.approx(now - first_at), pytest.approx(0.25)] and now - first_at > 1.5


def test_not_the_holder_any_more_is_a_loss_at_once() -> None:
    schedule = Schedule()
    hold = hold_of(1000, 10.0)
    renewal_at(schedule, hold, 0.5)
    assert not schedule.answered(hold, False, 1000, 10.3, 10.31, 0.5)
    assert hold.state is LeaseState.LOST and hold.reason == "taken"
    assert len(schedule) == 0


def test_a_lost_lease_is_not_released_and_not_extended() -> None:
    hold = hold_of(1000, 10.0)
    assert hold.check_expired(hold.deadline)
    assert not hold.mark_released()
    assert not hold.extended(1000, hold.deadline, hold.deadline)
    assert hold.state is LeaseState.LOST


def watched(schedule: Schedule, ttl_ms: int, renew_from: float, *, renew: bool = True) -> LeaseRecord:
    """A hold whose renewal is planned for a third of its ttl from then."""
    hold = hold_of(ttl_ms, renew_from, renew=renew)
    schedule.add(hold, 0.0)
    schedule.replan(hold, 0.0)
    return hold


def test_what_is_soon_due_is_renewed_with_what_is_due() -> None:
    schedule = Schedule()
    first = watched(schedule, 6_000, 0.0)
    soon = watched(schedule, 6_000, 0.09)
    later = watched(schedule, 6_000, 0.11)
    assert schedule.due(1.99) == [], "nothing is renewed early for its own sake"
    assert schedule.due(2.0) == [first, soon]
    assert schedule.next_at() == later.next_at
    assert schedule.due(3.0) == [later]


def test_how_soon_is_a_part_of_its_own_ttl() -> None:
    schedule = Schedule()
    first = watched(schedule, 60_000, 0.0)
    short = watched(schedule, 6_000, 18.2)
    assert short.next_at - first.next_at < 0.25
    assert schedule.due(20.0) == [first], "a sixtieth of its ttl is less than what is left until it is due"


def test_what_is_not_renewed_is_not_taken_along() -> None:
    schedule = Schedule()
    first = watched(schedule, 6_000, 0.0)
    ends = watched(schedule, 2_100, 0.0, renew=False)
    assert 2.0 < ends.deadline < 2.1
    assert schedule.due(2.0) == [first]
    assert ends.state is LeaseState.HELD, "its time is not over"
    assert schedule.next_at() == ends.deadline


def test_a_lease_is_planned_as_soon_as_it_is_seen() -> None:
    """The engine may do so before the thread that adds it has gone on."""
    schedule, hold = Schedule(), hold_of(10_000, 0.0)

    class Seen(dict[int, LeaseRecord]):
        def __setitem__(self, key: int, record: LeaseRecord) -> None:
            super().__setitem__(key, record)
            schedule._plan_new(0.0)

    schedule._new = Seen()
    schedule.add(hold, 0.5)
    assert [*schedule] == [hold]
    assert not schedule._new
    assert 0.0 < (schedule.next_at() or 0.0) < hold.deadline

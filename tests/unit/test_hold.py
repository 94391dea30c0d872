"""What a lease is worth, by the rules that know no clock."""

from __future__ import annotations

from typing import Any

from holdfast._core.hold import Hold, LeaseState, Schedule
from holdfast._core.keys import lock_keys
from holdfast._core.rwlock import RWTurn
from holdfast._core.waiting import Grant


def hold_of(ttl_ms: int, sent_at: float = 100.0) -> Hold:
    async def done() -> Any:
        return True

    return Hold("a", "t:1:1", 1, ttl_ms, sent_at, lambda ttl_ms: done(), done)


def test_a_shorter_ttl_counts_from_before_it_is_asked_for() -> None:
    hold = hold_of(600_000)
    assert hold.shortened(2_000, 110.0)
    assert 111.9 < hold.deadline < 112.0
    assert hold.ttl_ms == 2_000


def test_a_longer_ttl_counts_when_it_is_answered() -> None:
    hold = hold_of(30_000)
    before = hold.deadline
    assert not hold.shortened(60_000, 110.0)
    assert hold.deadline == before


def test_an_answer_from_before_a_shortening_is_not_trusted_for_more() -> None:
    hold = hold_of(30_000)
    hold.shortened(2_000, 110.1)  # while a renewal for 30 s was on its way since 110.0
    assert hold.extended(30_000, 110.0, 110.2)
    assert hold.deadline < 112.1


def test_a_shortened_hold_is_lost_at_its_new_deadline() -> None:
    for known in (False, True):
        schedule = Schedule()
        hold = hold_of(600_000)
        schedule.add(hold, 0.5)
        if known:
            schedule.replan(hold, 0.5)
        hold.shortened(2_000, 110.0)
        at = schedule.shortened(hold)
        assert at == hold.deadline
        next_at = schedule.next_at()
        assert next_at is not None and next_at <= hold.deadline
        assert schedule.due(hold.deadline) == []
        assert hold.state is LeaseState.LOST


def test_a_side_of_a_shared_lock_keeps_what_its_grant_and_its_other_side_say() -> None:
    keys = lock_keys("holdfast", "a")
    turn = RWTurn(keys, f"{'0' * 24}:r.1:1", 30_000)
    hold = turn.hold("a", Grant(1, 100.0, stray=True), True, None, until=105.0)
    assert turn.stray, "its release buries the token"
    assert hold.deadline == 105.0 and hold.renewal_ttl_ms(101.0) is None
    assert not hold.over(104.9) and hold.over(105.0) and hold.reason == "max_hold"

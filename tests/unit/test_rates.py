"""Grants a second, of what looks show."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from holdfast import Holder, Listed
from holdfast.web.rates import OVER_S, Rate, Rates

NOW = datetime(2026, 3, 1, tzinfo=UTC)
CLIENT = "0123456789abcdef01234567"


def look(at_s: float, grants: int | None, *, since_s: float | None = None, kept: bool = False) -> Listed:
    token = f"{CLIENT}:1:1*+" if kept else f"{CLIENT}:1:1"
    since = None if since_s is None else NOW + timedelta(seconds=since_s)
    holder = Holder(token, True, 30.0, 1, since)
    at = NOW + timedelta(seconds=at_s)
    return Listed("lock", "a", (holder,), 1, (), 0, 1, 0, at, grants=grants)


def test_it_is_what_was_counted() -> None:
    rates = Rates()
    for second in range(30):
        rates.saw("a", look(second, None if second < 2 else 130 * second), 1)
        if second in (1, 2):
            assert rates.of("a") == Rate(1.0, True), "not counted for long enough"
        elif second > 2:
            assert rates.of("a") == Rate(130.0, False)


def test_it_follows_within_the_time_that_it_is_taken_over() -> None:
    rates = Rates()
    for second in range(30):
        rates.saw("a", look(second, 100 * min(second, 15)), 0)
    assert rates.of("a").per_s == 0.0
    assert OVER_S < 15


def test_of_a_lease_that_is_kept_it_is_that_before_it() -> None:
    """130 a second, of which the server hears every 8 s."""
    rates = Rates()
    for tenth in range(400):
        at = tenth / 10
        begun = at - at % 8
        rates.saw("a", look(at, int(130 * begun), since_s=begun, kept=True), 0)
        if at >= 16:
            assert rates.of("a").per_s == pytest.approx(130, rel=0.01)


def test_a_count_that_was_forgotten_begins_again() -> None:
    rates = Rates()
    for second, count in enumerate([0, 100, 200, 0, 100, 200]):
        rates.saw("a", look(second, count), 0)
        assert rates.of("a").per_s in (0.0, 100.0)
    assert rates.of("a") == Rate(100.0, False)


def test_what_is_gone_is_forgotten() -> None:
    rates = Rates()
    for second in range(3):
        rates.saw("a", look(second, 10 * second), 0)
    rates.forget(NOW.timestamp() + 20)
    assert rates.of("a").per_s == 10.0
    rates.forget(NOW.timestamp() + 100)
    assert rates.of("a") == Rate(0.0, False)

"""Circles in what two readings have in common."""

from __future__ import annotations

import pytest

from holdfast._core.deadlocks import circle_of, circles, stuck
from holdfast._core.overview import Entry

A, B, C, D = (each * 24 for each in "abcd")


def lock(name: str, holder: str, *waiters: str, kind: str = "lock", permits: int = 1) -> Entry:
    waits = tuple((token, 2.0) for token in waiters)
    return Entry(0, kind, name, 1, len(waits), 7, permits, ((holder, 9_000),), waits)


def test_a_circle_is_told_to_the_wait_that_is_in_it_though_its_party_stands_elsewhere_too() -> None:
    """Before it, by a token of which a late request was executed: the one that waits by that is no more."""
    permits = lock("s", f"{A}:1.1:1", f"{A}:2.1:2", f"{A}:2.1:3", kind="semaphore", permits=2)
    found = circle_of(f"{A}:2.1:3", stuck([permits], {}))
    assert [(step.token, step.held_token) for step in found] == [(f"{A}:2.1:3", f"{A}:1.1:1")]
    entries = [lock("x", f"{B}:1:1", f"{A}:1:2", f"{A}:1:5"), lock("y", f"{A}:1:3", f"{B}:1:4")]
    for token in (f"{A}:1:2", f"{A}:1:5"):
        assert [step.token for step in circle_of(token, stuck(entries, {}))] == [token, f"{B}:1:4"]
    assert len(circles(stuck(entries, {}))) == 1


@pytest.mark.parametrize(("before", "behind"), [("", ""), ("n.", ""), ("", "!1000"), ("n.", "!1000")])
def test_parties_are_told_by_tokens_of_every_form(before: str, behind: str) -> None:
    """With a note, or with `crash_release`."""
    has_a, wants_b = f"{A}:{before}1:3{behind}", f"{A}:{before}1:4{behind}"
    entries = [lock("x", has_a, f"{B}:2:5"), lock("y", f"{B}:2:6", wants_b)]
    (found,) = circles(stuck(entries, {}))
    assert {step.token for step in found} == {wants_b, f"{B}:2:5"}


def test_a_wait_that_is_in_no_circle_is_told_of_none() -> None:
    """Though another wait of its party is in one."""
    entries = [lock("x", f"{B}:1:1", f"{A}:1:2"), lock("y", f"{A}:1:3", f"{B}:1:4")]
    aside = lock("z", f"{B}:2:6", f"{A}:1:7")
    assert circle_of(f"{A}:1:7", stuck([*entries, aside], {})) == ()
    assert circle_of(f"{A}:1:8", stuck(entries, {})) == ()


def test_who_waits_for_one_that_can_go_on_is_in_no_circle() -> None:
    """A waits for a permit, of which B and C have one each, and B for A; but C waits for D, which waits for nothing."""
    permits = lock("s", f"{B}:1.1:1", f"{A}:1.1:2", kind="semaphore", permits=2)
    permits = permits._replace(holders=(*permits.holders, (f"{C}:1.1:3", 9_000)))
    entries = [permits, lock("y", f"{A}:1:4", f"{B}:1:5"), lock("z", f"{D}:1:6", f"{C}:1:7")]
    assert circles(stuck(entries, {})) == [] and circle_of(f"{A}:1.1:2", stuck(entries, {})) == ()
    all_wait = [*entries, lock("x", f"{C}:1:8", f"{D}:1:9")]
    assert len(circle_of(f"{A}:1.1:2", stuck(all_wait, {}))) == 2, "when D waits for C, all do"

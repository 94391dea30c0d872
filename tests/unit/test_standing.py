"""Waiters in the server's queue without a protocol: what they take, and what finds them."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast._core.effects import Wake
from holdfast._core.standing import Standing, Standings
from holdfast._core.tenure import SOON_MS

OTHER = b"%b:1:7" % (b"c0ffee" * 4)
LATER_MS = SOON_MS + 1
GRANT = Wake(Wake.GRANT, 7, 2_000)


class Rung(list[Any]):
    """Bells, in the order in which they rang."""

    def ring(self, bell: Any) -> None:
        self.append(bell)


@pytest.fixture
def rung() -> Rung:
    return Rung()


def standing(rung: Rung, bell: str = "one") -> Standing:
    return Standing("holdfast:{a}", 100.0, bell, rung.ring)


QUEUED = ([0, LATER_MS, OTHER, 0, 5], None)


def queued(rung: Rung, took_s: float = 0.001) -> Standing:
    """One that has asked at 100.0, was told to wait that much later, and waits for a tenth of a second at most."""
    one = standing(rung)
    assert one.left_s(QUEUED, 100.0 + took_s) == pytest.approx(0.1 - took_s)
    return one


@pytest.mark.parametrize(
    "reply, waits",
    [
        ([0, LATER_MS, OTHER, 0, 5], True),
        ([0, LATER_MS, OTHER, 31, 5], True),
        ([0, SOON_MS, OTHER, 0, 5], False),  # a look is due before
        ([0, -1, OTHER, 0, 5], False),
        ([0, 0, b"", 0, 5], False),  # there is more to clear away
        ([0, LATER_MS, b"of another library", 0, 5], False),  # which sends no message
        ([0, LATER_MS, OTHER, -1, 5], False),
        ([0, LATER_MS, OTHER, -2, 5], False),
        ([1, 7], False),
        ([-1], False),
    ],
)
def test_one_waits_where_a_message_will_come(reply: Any, waits: bool) -> None:
    assert Standing.may_wait(reply) is waits


def test_a_grant_is_taken_from_when_it_was_asked_for(rung: Rung) -> None:
    one = queued(rung)
    assert one.take(30_000, 100.1) is None
    one.came.append(GRANT)
    grant = one.take(30_000, 100.1)
    assert grant is not None and (grant.fence, grant.sent_at) == (7, 100.1)
    assert grant.until is not None and 101.9 < grant.until <= 102.0


@pytest.mark.parametrize(
    "took_s, now, came",
    [
        (0.001, 101.1, (GRANT,)),  # less than half of its window is left
        (0.09, 101.0, (GRANT,)),  # a renewal may not be answered in it
        (0.001, 100.1, (Wake(Wake.ASK),)),
        (0.001, 100.1, (Wake(Wake.ASK), GRANT)),
        (0.001, 100.1, (GRANT, Wake(Wake.ASK))),
        (0.001, 100.1, (Wake(Wake.GRANT, 0, 2_000),)),
        (0.001, 100.1, (Wake(Wake.GRANT, 7, 0),)),
    ],
)
def test_whatever_else_comes_is_for_the_protocol(rung: Rung, took_s: float, now: float, came: tuple[Wake, ...]) -> None:
    one = queued(rung, took_s)
    one.came.extend(came)
    assert one.take(30_000, now) is None
    assert [*one.came] == [*came]


def test_one_waits_until_something_comes_or_its_time_is_over(rung: Rung) -> None:
    one = queued(rung)
    assert one.left_s(QUEUED, 100.08) == pytest.approx(0.02)
    assert one.left_s(QUEUED, 100.2) < 0
    one.came.append(GRANT)
    assert one.left_s(QUEUED, 100.05) == 0


@pytest.mark.parametrize("outcome", [([0, SOON_MS, OTHER, 0, 5], None), ([1, 7], None), (None, RuntimeError("broken"))])
def test_one_that_was_not_told_to_wait_takes_nothing(rung: Rung, outcome: Any) -> None:
    one = standing(rung)
    assert one.left_s(outcome, 100.001) == 0
    one.came.append(GRANT)
    assert one.take(30_000, 100.002) is None


def test_a_message_finds_the_one_of_its_token(rung: Rung) -> None:
    standings = Standings(a=standing(rung, "a"), b=standing(rung, "b"))
    assert standings.wake("b", GRANT)
    assert not standings.wake("c", GRANT)
    assert (rung, [*standings["b"].came], [*standings["a"].came]) == (["b"], [GRANT], [])


def test_one_that_has_gone_on_meanwhile_may_not_have_seen_it(rung: Rung) -> None:
    standings = Standings()
    standings["a"] = Standing("holdfast:{a}", 100.0, "a", lambda _bell: standings.clear())
    assert not standings.wake("a", GRANT), "who has read it tells the agent as well"


def test_all_are_told_to_look(rung: Rung) -> None:
    standings = Standings(a=standing(rung, "a"), b=standing(rung, "b"))
    standings.wake_all()
    assert rung == ["a", "b"]
    assert [wake.kind for one in standings.values() for wake in one.came] == [Wake.ASK, Wake.ASK]

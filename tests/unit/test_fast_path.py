"""The fast path: what an answer means, what is told to the protocol, and which locks it is not tried for."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast._core import fast_path
from holdfast._core.effects import Call, Command, Effect, Spawn
from holdfast._core.exclusive import OneServer
from holdfast._core.failure import RequestFailed
from holdfast._core.fast_path import Contention, confirm, replay
from holdfast._core.keys import lock_keys
from holdfast._core.mutex import LockAcquisition
from holdfast._core.record import LeaseRecord, LeaseState
from holdfast._core.settings import DEFAULT
from holdfast._core.waiting import Busy, Grant, granted, released, wait_for
from tests.support.steps import drive

KEY = "holdfast:{a}"
TURN = LockAcquisition(lock_keys("holdfast", "a"), "0" * 24 + ":1:1", 10_000)
SILENT = RequestFailed("silent", "no answer in time", "", maybe_executed=True, transient=False)


class Effects:
    """Notes what a protocol does."""

    def __init__(self) -> None:
        self.seen: list[Effect[Any]] = []

    def __call__(self, effect: Effect[Any]) -> None:
        self.seen.append(effect)
        if isinstance(effect, Spawn):
            effect.protocol.close()

    def count(self, kind: type[Effect[Any]]) -> int:
        return sum(isinstance(effect, kind) for effect in self.seen)


def test_a_grant_counts_from_its_question_and_only_within_its_validity() -> None:
    grant = granted([1, 7], 100.0, 109.8, 10_000)
    assert grant is not None
    assert (grant.fence, grant.sent_at, grant.stray) == (7, 100.0, False)
    assert granted([1, 7], 100.0, 110.0, 10_000) is None
    assert granted([0, 500, b"someone", -1, 0], 100.0, 100.1, 10_000) is None
    assert granted([-1], 100.0, 100.1, 10_000) is None


def test_a_release_that_stopped_early_has_to_go_on() -> None:
    assert [released(reply) for reply in (-1, 0, 1, 2, 3)] == [None, False, True, True, None]


def test_the_protocol_goes_on_from_the_answer_as_if_it_had_asked() -> None:
    effects = Effects()
    got = drive(replay(wait_for(TURN, 0.0), 100.0, [0, 500, b"someone", -1, 0], None), effects, 105.0)
    assert isinstance(got, Busy)
    assert (got.holder, got.waited_s) == ("someone", 5.0), "waited since the request was sent"
    assert effects.count(Call) == 0


@pytest.mark.parametrize("error", [SILENT, KeyboardInterrupt()], ids=["no answer", "interrupted"])
def test_a_doubtful_answer_is_given_back(error: BaseException) -> None:
    effects = Effects()
    with pytest.raises(type(error)):
        drive(replay(wait_for(TURN, 0.0), 100.0, None, error), effects)
    assert effects.count(Spawn) == 1


def test_a_grant_that_came_too_late_is_asked_for_again() -> None:
    asked: list[Call] = []

    def perform(effect: Effect[Any]) -> Any:
        assert isinstance(effect, Call)
        asked.append(effect)
        return [1, 7]

    got = drive(replay(wait_for(TURN, None), 100.0, [1, 7], None), perform, 115.0)
    assert isinstance(got, Grant)
    assert (got.sent_at, got.stray, len(asked)) == (115.0, True, 1)


def test_a_grant_after_a_doubtful_request_is_buried_when_it_is_released() -> None:
    broken = RequestFailed("broken", "the connection ended", "", maybe_executed=True, transient=True)

    def perform(effect: Effect[Any]) -> Any:
        return [1, 7] if isinstance(effect, Call) else None

    got = drive(replay(wait_for(TURN, None), 100.0, None, broken), perform, 105.0)
    assert isinstance(got, Grant)
    assert got.stray, "the first request may still be carried out, after the release"


def test_a_protocol_that_goes_another_way_by_now_is_not_given_the_answer() -> None:
    async def another_way() -> Any:
        return await Command(("SET",), 1.0)

    def perform(effect: Effect[Any]) -> Any:
        return type(effect).__name__

    assert drive(replay(another_way(), 100.0, [1, 7], None), perform) == "Command"


def test_a_contended_lock_is_left_to_the_protocol_for_a_while() -> None:
    contention = Contention(DEFAULT._replace(contended_acquires=3))
    assert not contention.expects(KEY)
    contention.saw(KEY)
    assert [contention.expects(KEY) for _ in range(5)] == [True, True, True, False, False]
    assert not contention.expects("another")


def test_the_memory_of_contention_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast_path, "CONTENDED_MAX", 10)
    contention = Contention()
    for number in range(35):
        contention.saw(f"lock {number}")
        assert len(contention) <= 10
    assert contention.expects("lock 34")


def held_lease() -> tuple[LeaseRecord, list[str]]:
    """A lease that was released without waiting, and what its holder is told."""
    told: list[str] = []
    hold = TURN.make_record("a", Grant(7, 100.0))
    hold.on_loss = (told.append,)
    assert hold.mark_released()
    return hold, told


def test_a_release_that_found_nothing_is_told_as_a_loss() -> None:
    hold, told = held_lease()
    drive(confirm(hold, 0, None), Effects())
    assert (hold.state, hold.reason, told) == (LeaseState.LOST, "taken", ["taken"])


def test_a_release_without_an_answer_is_sent_again_and_is_no_loss() -> None:
    hold, told = held_lease()
    effects = Effects()
    broken = RequestFailed("broken", "closed", "", maybe_executed=True, transient=True)

    def answer(effect: Effect[Any]) -> Any:
        effects(effect)
        return 0 if isinstance(effect, Call) else None

    drive(confirm(hold, None, broken), answer)
    assert effects.count(Call) == 1, "the first one was sent before"
    assert (hold.state, told) == (LeaseState.RELEASED, []), "that one may have released it"


def test_a_release_that_stays_without_an_answer_is_no_loss_either() -> None:
    hold, told = held_lease()
    effects = Effects()
    drive(confirm(hold, None, SILENT), effects)
    assert effects.count(Spawn) == 1, "it is given back in the background"
    assert (hold.state, told) == (LeaseState.RELEASED, [])


def plain_lease() -> LeaseRecord:
    return OneServer(lock_keys("holdfast", "a"), DEFAULT).make_record(TURN.token, Grant(7, 100.0), 10_000)


def test_the_usual_renewal_is_the_first_request_of_its_protocol() -> None:
    lease = plain_lease()
    usual, first = lease.usual_renewal(10_000), lease.renew(10_000).send(None)
    assert isinstance(usual, Call) and isinstance(first, Call)
    assert usual.script == first.script == "renew"
    assert (usual.keys, usual.args) == (first.keys, first.args)


def test_other_renewals_are_protocols_from_the_start() -> None:
    extended, jumped, short = plain_lease(), plain_lease(), plain_lease()
    extended.extending(5_000, 101.0)
    jumped.overlong = True
    short.short_s = 1.0
    for hold in (extended, jumped, short):
        assert hold.usual_renewal(10_000) is None

"""The waiting loop against scripted answers: no server, no clock but the test's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from holdfast._core.describe import Witness, note_parts
from holdfast._core.effects import (
    AwaitWake,
    Call,
    Command,
    Effect,
    Listen,
    Protocol,
    Sleep,
    Spawn,
    Wake,
)
from holdfast._core.exclusive import OneServer
from holdfast._core.failure import RequestFailed
from holdfast._core.keys import lock_keys
from holdfast._core.multilock import MultiAcquisition
from holdfast._core.mutex import LockAcquisition
from holdfast._core.replicas import Sync
from holdfast._core.replies import FULL
from holdfast._core.rwlock import RWAcquisition, downgrade
from holdfast._core.settings import DEFAULT
from holdfast._core.validity import deadline
from holdfast._core.waiting import Acquisition, Busy, Grant, wait_for
from holdfast.errors import LeaseLost
from tests.support.steps import drive

KEYS = lock_keys("holdfast", "a")
TOKEN = "0" * 24 + ":1:1"
OTHER = ("1" * 24 + ":1:1").encode()


class Script:
    """A driver whose server answers as told: each answer is a reply, or an exception, with the time it took."""

    def __init__(self, *answers: tuple[float, Any], wakes: tuple[Wake | None, ...] = ()) -> None:
        self.answers = list(answers)
        self.wakes = list(wakes)
        #: What is found where a note of a break may be.
        self.notes: list[bytes | RequestFailed | None] = []
        self.now = 1000.0
        self.seen: list[Effect[Any]] = []
        #: Tokens that listen no more.
        self.forgotten: list[str] = []

    def run(self, protocol: Protocol[Any], interrupt_at: Callable[[Effect[Any]], bool] | None = None) -> Any:
        def perform(effect: Effect[Any]) -> Any:
            nonlocal interrupt_at
            self.seen.append(effect)
            if interrupt_at is not None and interrupt_at(effect):
                interrupt_at = None
                raise KeyboardInterrupt
            return self.perform(effect)

        return drive(protocol, perform, lambda: self.now, unlisten=self.forgotten.append)

    def perform(self, effect: Effect[Any]) -> Any:
        if isinstance(effect, Sleep):
            self.now += effect.seconds
        elif isinstance(effect, AwaitWake):
            wake = self.wakes.pop(0) if self.wakes else None
            if wake is None:
                self.now += effect.timeout_s
            return wake
        elif isinstance(effect, Spawn):
            effect.protocol.close()
        elif isinstance(effect, Call):
            took_s, answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
            self.now += took_s
            if isinstance(answer, Exception):
                raise answer
            return answer
        elif isinstance(effect, Command) and self.notes:
            note = self.notes.pop(0)
            if isinstance(note, RequestFailed):
                raise note
            return note
        return None

    def count(self, kind: type[Effect[Any]]) -> int:
        return sum(isinstance(effect, kind) for effect in self.seen)

    def scripts(self) -> list[str]:
        return [effect.script for effect in self.seen if isinstance(effect, Call)]


def acquire(timeout_s: float | None, ttl_ms: int = 1000, listening: bool = False) -> Protocol[Grant | Busy]:
    return wait_for(LockAcquisition(KEYS, TOKEN, ttl_ms), timeout_s, listening=listening)


def busy(remaining_ms: int = 500, place: int = 0) -> list[Any]:
    return [0, remaining_ms, OTHER, place, 77]


def passing(sent: bool = True) -> RequestFailed:
    return RequestFailed("broken", "gone", "n", maybe_executed=sent, transient=True)


def test_a_grant_leaves_nothing_behind() -> None:
    driver = Script((0.001, [1, 5]))
    grant = driver.run(acquire(None))
    assert (grant.fence, grant.sent_at) == (5, 1000.0)
    assert [type(effect) for effect in driver.seen] == [Call]


def test_a_late_grant_is_asked_for_again() -> None:
    driver = Script((1.2, [1, 5]), (0.1, [1, 5]))
    grant = driver.run(acquire(None))
    assert grant.sent_at == 1001.2


@pytest.mark.parametrize("timeout_s", [None, 0.0, 5.0, 1000.0])
def test_a_server_that_is_always_too_late_ends_it(timeout_s: float | None) -> None:
    driver = Script((1.2, [1, 5]))
    if timeout_s == 5.0:
        assert isinstance(driver.run(acquire(timeout_s)), Busy)
    else:
        with pytest.raises(RequestFailed, match="longer than the ttl"):
            driver.run(acquire(timeout_s))
    assert driver.now <= 1000 + DEFAULT.retry_limit_s + 2
    assert driver.count(Spawn) == 1, "what the server granted is given back"


@pytest.mark.parametrize("kind", ["READONLY", "OOM"])
def test_what_a_replica_has_refused_leaves_nothing_to_give_back(kind: str) -> None:
    driver = Script((0.01, RequestFailed(kind, "no", "n", maybe_executed=False, transient=kind == "READONLY")))
    with pytest.raises(RequestFailed, match="no"):
        driver.run(acquire(0.0))
    assert driver.count(Spawn) == (kind != "READONLY")


def test_a_replica_that_has_refused_a_repeat_leaves_the_first_request_in_doubt() -> None:
    refused = RequestFailed("READONLY", "no", "n", maybe_executed=False, transient=True)
    driver = Script((0.01, passing()), (0.01, refused))
    with pytest.raises(RequestFailed, match="no"):
        driver.run(acquire(0.0))
    assert driver.count(Spawn) == 1


def test_time_is_up() -> None:
    driver = Script((0.01, busy()))
    end = driver.run(acquire(2.0, listening=True))
    assert isinstance(end, Busy)
    assert end.holder == OTHER.decode()
    assert end.waited_s == pytest.approx(2.0, abs=0.1)
    assert driver.count(Spawn) == 1, "the place in the queue is given back"
    assert driver.forgotten == [TOKEN]


@pytest.mark.parametrize("acked, granted", [(2, True), (1, False)])
def test_a_grant_that_too_few_replicas_have_is_none(acked: int, granted: bool) -> None:
    driver = Script((0.01, ([1, 5], acked)))
    asking = wait_for(LockAcquisition(KEYS, TOKEN, 1000, sync=(2, 100)), 1.0)
    if granted:
        assert driver.run(asking).fence == 5
    else:
        with pytest.raises(RequestFailed, match="1 of 2 replicas"):
            driver.run(asking)
        assert driver.count(Spawn) == 1, "it is given back"


def test_trying_does_not_queue() -> None:
    driver = Script((0.01, busy(place=-1)))
    assert isinstance(driver.run(acquire(0.0)), Busy)
    assert [call.args[2] for call in driver.seen if isinstance(call, Call)] == ["try"]
    assert driver.count(Spawn) == 0 and driver.count(Listen) == 0


def handed(claim_ms: int = 2000) -> Wake:
    return Wake(Wake.GRANT, 9, claim_ms)


def renewing(turn: Acquisition) -> Acquisition:
    turn.renews = True
    return turn


def lock_turn(ttl_ms: int = 10_000, sync: Sync = None) -> Acquisition:
    return renewing(LockAcquisition(KEYS, TOKEN, ttl_ms, sync=sync))


@pytest.mark.parametrize("claim_ms", [2000, 400])
def test_a_pushed_grant_counts_from_before_its_token_was_queued(claim_ms: int) -> None:
    driver = Script((0.01, busy()), wakes=(handed(claim_ms),))
    grant = driver.run(wait_for(lock_turn(), None, listening=True))
    assert driver.scripts() == ["acquire"], "nothing is asked again"
    assert (grant.fence, grant.sent_at) == (9, pytest.approx(1000.01))
    assert grant.until == deadline(1000.0, claim_ms), "the window is that of the client that handed it over"
    assert driver.count(Spawn) == 0 and driver.forgotten == [TOKEN]


def test_a_pushed_grant_lasts_no_longer_than_was_wanted() -> None:
    driver = Script((0.01, busy()), wakes=(handed(),))
    assert driver.run(wait_for(lock_turn(500), None, listening=True)).until == deadline(1000.0, 500)


@pytest.mark.parametrize(
    "turn, answers, wakes",
    [
        (LockAcquisition(KEYS, TOKEN, 10_000), [(0.01, busy())], [handed()]),
        (lock_turn(sync=(1, 100)), [(0.01, (busy(), 0))], [handed()]),
        (lock_turn(), [(0.01, passing()), (0.01, busy())], [handed()]),
        (lock_turn(), [(0.01, busy())], [handed(0)]),
        (lock_turn(), [(0.01, busy(1_100))], [None, handed()]),
        (lock_turn(), [(1.5, busy()), (0.001, busy())], [Wake(Wake.ASK), handed()]),
        (lock_turn(), [(0.2, busy())], [handed()]),
        (renewing(MultiAcquisition([KEYS], TOKEN, 10_000)), [(0.01, busy())], [handed()]),
        (renewing(RWAcquisition(KEYS, f"{'0' * 24}:r.1:1", 10_000)), [(0.01, busy())], [handed()]),
    ],
    ids=[
        "not renewed",
        "replicas have to acknowledge",
        "a request went unanswered",
        "its window is not known",
        "a long wait",
        "a long wait since it was queued",
        "answers take long",
        "one of several locks",
        "a reader",
    ],
)
def test_a_pushed_grant_is_confirmed(turn: Acquisition, answers: list[Any], wakes: list[Wake | None]) -> None:
    confirmation: Any = [1, 11] if turn.sync is None else ([1, 11], 1)
    again = [answers[-1]] * wakes.count(None)
    driver = Script(*answers, *again, (0.01, confirmation), wakes=tuple(wakes))
    grant = driver.run(wait_for(turn, None, listening=True))
    assert (grant.fence, grant.short_s) == (11, 0.0)
    assert grant.sent_at == pytest.approx(driver.now - 0.01)


def test_a_lease_that_was_pushed_is_renewed_with_little_patience() -> None:
    turn = lock_turn()
    grant = Script((0.01, busy()), wakes=(handed(),)).run(wait_for(turn, None, listening=True))
    hold = turn.make_record("a", grant)
    assert (hold.deadline, hold.held_since) == (grant.until, grant.sent_at)
    patience: list[float] = []
    for _ in range(2):
        renewing = Script((0.01, 1))
        assert renewing.run(hold.renew(10_000)) == 1
        patience += [effect.request_timeout_s for effect in renewing.seen if isinstance(effect, Call)]
    assert patience == [pytest.approx((grant.until - grant.sent_at) / 6, rel=0.01), pytest.approx(10 / 3)]


def test_a_pushed_grant_is_confirmed_and_counts_from_before_that() -> None:
    driver = Script((0.01, busy()), (0.01, [1, 11]), wakes=(Wake(Wake.GRANT, 9),))
    grant = driver.run(acquire(None, listening=True))
    assert driver.scripts() == ["acquire", "acquire"]
    assert grant.fence == 11, "the grant that counts need not be the one of the message"
    assert grant.sent_at == pytest.approx(1000.01)


def test_a_claim_that_is_over_keeps_its_place() -> None:
    driver = Script((0.01, busy()), (0.01, busy()), (0.01, [1, 11]), wakes=(Wake(Wake.GRANT, 9), Wake(Wake.GRANT, 11)))
    assert driver.run(acquire(None, listening=True)).fence == 11
    arrivals = [call.args[3] for call in driver.seen if isinstance(call, Call) and call.script == "acquire"]
    assert arrivals == [0, 77, 77]


def test_who_is_turned_away_does_not_wait() -> None:
    turn = lock_turn()
    turn.most_waiting = 3
    driver = Script((0.01, busy(place=FULL)), (0.01, [1, 5]))
    end = driver.run(wait_for(turn, None, listening=True))
    assert isinstance(end, Busy) and end.is_full and driver.scripts() == ["acquire"]


def test_it_looks_for_itself_when_the_holders_time_is_over() -> None:
    driver = Script((0.0, busy(remaining_ms=500)), (0.0, [1, 5]))
    driver.run(acquire(None, listening=True))
    assert 1000.5 <= driver.now <= 1000.5 + 2 * DEFAULT.recheck_late_s


@pytest.mark.parametrize("place", [0, 1, 7])
def test_it_looks_for_itself_when_whom_the_lock_was_handed_to_may_hang(place: int) -> None:
    driver = Script((0.0, busy(remaining_ms=50_000, place=place)), (0.0, [1, 5]))
    driver.run(acquire(None, listening=True))
    claim_s = DEFAULT.claim_ms / 1000
    assert 1000 + claim_s * max(place, 1) <= driver.now <= 1000 + claim_s * (max(place, 1) + 0.5)


@pytest.mark.parametrize(("held", "failed"), [((), False), (("theirs",), False), (("theirs",), True)])
def test_who_waits_for_long_says_what_it_holds_and_waits_on(held: tuple[str, ...], failed: bool) -> None:
    """No request more for the lock, and none at all where nothing is held."""
    driver = Script((0.0, busy(remaining_ms=50_000, place=2)), (0.0, [1, 5]))
    notes: list[Command] = []

    def perform(effect: Effect[Any]) -> Any:
        if isinstance(effect, Command):
            notes.append(effect)
            if failed:
                raise passing()
            return b"OK"
        return driver.perform(effect)

    turn = LockAcquisition(KEYS, TOKEN, 1000)
    turn.check = Witness("holdfast", DEFAULT, lambda token: held if token == TOKEN else (), lambda _: "here")
    drive(wait_for(turn, 60.0, listening=True), perform)
    assert 1000 + 2 * DEFAULT.claim_ms / 1000 <= driver.now < 1000 + 3 * DEFAULT.claim_ms / 1000
    if not held:
        assert notes == []
        return
    (note,) = notes
    key, value, _, ttl_ms = note.args[1:]
    assert (key, note_parts(str(value).encode())) == (f"holdfast:waits:{TOKEN}", (60.0, ["theirs"], "here"))
    assert int(ttl_ms) >= 2 * 10_000, "there until it is left again"


@pytest.mark.parametrize("answers, stray", [([(0.01, [1, 5])], False), ([(0.01, passing()), (0.01, [1, 5])], True)])
def test_what_may_still_be_under_way_is_buried_at_the_release(answers: list[tuple[float, Any]], stray: bool) -> None:
    asking = Script(*answers)
    exclusive = OneServer(KEYS, DEFAULT)
    grant = asking.run(exclusive.acquire(TOKEN, 1000, 3.0, False))
    releasing = Script((0.01, 1))
    assert releasing.run(exclusive.make_record(TOKEN, grant, 1000).release())
    [call] = [effect for effect in releasing.seen if isinstance(effect, Call)]
    assert call.args[-1] == (DEFAULT.tombstone_ms if stray else 0)


def test_a_downgrade_that_is_answered_too_late_has_lost_the_lease() -> None:
    reader, writer = (RWAcquisition(KEYS, f"{'0' * 24}:{kind}.1:1", 1000, DEFAULT, None) for kind in "rw")
    assert Script((0.1, [1, 5])).run(downgrade(writer, reader)).fence == 5
    driver = Script((1.2, [1, 5]))
    with pytest.raises(LeaseLost):
        driver.run(downgrade(writer, reader))
    assert driver.count(Spawn) == 1, "and given back"


def test_a_foreign_holder_is_polled() -> None:
    foreign = [0, -1, b"someone", 0, 77]
    driver = Script(*[(0.0, foreign)] * 20, (0.0, [1, 5]))
    driver.run(acquire(None, listening=True))
    assert driver.now <= 1000 + 20 * DEFAULT.foreign_poll_max_s * 1.5


@pytest.mark.parametrize("timeout_s", [None, 0.0, 3.0])
def test_lasting_trouble_ends_it(timeout_s: float | None) -> None:
    driver = Script((0.01, passing()))
    with pytest.raises(RequestFailed):
        driver.run(acquire(timeout_s))
    allowed_s = {None: DEFAULT.retry_limit_s, 0.0: DEFAULT.try_limit_s, 3.0: 3.0}[timeout_s]
    assert driver.now <= 1000 + allowed_s + 0.5
    assert driver.count(Spawn) == 1, "a request without an answer may have been carried out"


def test_passing_trouble_is_waited_out_with_the_same_token() -> None:
    driver = Script((0.01, passing()), (0.01, passing()), (0.01, [1, 5]))
    assert driver.run(acquire(3.0)).fence == 5
    assert {call.args[0] for call in driver.seen if isinstance(call, Call)} == {TOKEN}
    assert driver.count(Spawn) == 0


def test_trouble_after_queueing_leaves_no_registration() -> None:
    driver = Script((0.01, busy()), (0.01, passing()), wakes=(Wake(Wake.ASK),) * 50)
    with pytest.raises(RequestFailed):
        driver.run(acquire(1.0, listening=True))
    assert driver.forgotten == [TOKEN]


def test_lasting_refusal_ends_it_at_once() -> None:
    driver = Script((0.01, RequestFailed("NOAUTH", "NOAUTH no", "n", maybe_executed=False, transient=False)))
    with pytest.raises(RequestFailed, match="NOAUTH"):
        driver.run(acquire(None))
    assert driver.now == pytest.approx(1000.01)
    assert driver.count(Spawn) == 1, "a script may have been ended behind its first write"


@pytest.mark.parametrize("timeout_s", [0.0, 1.0])
def test_what_was_never_carried_out_is_not_given_back(timeout_s: float) -> None:
    driver = Script((0.01, RequestFailed("refused", "no one listens", "n", maybe_executed=False, transient=True)))
    with pytest.raises(RequestFailed, match="no one listens"):
        driver.run(acquire(timeout_s))
    assert driver.count(Spawn) == 0


@pytest.mark.parametrize(
    "kind, number, gives_back",
    [(Listen, 1, False), (Call, 1, True), (AwaitWake, 1, True), (Call, 2, True), (AwaitWake, 2, True)],
)
def test_an_interruption_anywhere_gives_back(kind: type[Effect[Any]], number: int, gives_back: bool) -> None:
    left = [number]

    def at(effect: Effect[Any]) -> bool:
        left[0] -= isinstance(effect, kind)
        return left[0] == 0

    driver = Script((0.01, busy()), wakes=(Wake(Wake.ASK), None, Wake(Wake.ASK)))
    with pytest.raises(KeyboardInterrupt):
        driver.run(acquire(None, listening=True), at)
    assert driver.count(Spawn) == gives_back
    assert driver.forgotten == [TOKEN]


def test_a_break_before_the_answer_is_told_with_its_reason() -> None:
    driver = Script((1.0, passing()), (0.001, [-1]))
    driver.notes = [passing(), b"me: stuck"]  # asked again, as for the lock itself
    with pytest.raises(LeaseLost) as told:
        driver.run(acquire(None))
    assert (told.value.name, told.value.reason) == ("a", "broken by me: stuck")
    assert driver.count(Spawn) == 1, "the server may hold something of it"


def test_a_break_that_left_no_note_is_told_as_a_loss() -> None:
    driver = Script((0.001, [-1]))
    driver.notes = [None]
    with pytest.raises(LeaseLost) as told:
        driver.run(acquire(None))
    assert told.value.reason == "taken"


def test_a_broken_inbox_is_looked_after_before_asking() -> None:
    taken = [0, 10_000, OTHER, 0, 5]
    script = Script((0.001, taken), (0.001, [1, 7]), wakes=(Wake(Wake.ASK),))
    turn = LockAcquisition(KEYS, TOKEN, 10_000, DEFAULT, None)
    assert isinstance(script.run(wait_for(turn, None, listening=True)), Grant)
    kinds = [type(effect) for effect in script.seen if isinstance(effect, (Listen, Call))]
    assert kinds == [Listen, Call, Listen, Call]


class Stopped(BaseException):
    """An interruption of a caller."""


def test_a_release_that_is_stopped_while_it_asks_is_given_back() -> None:
    protocol: Any = LockAcquisition(KEYS, TOKEN, 30_000).release()
    assert type(protocol.send(None)) is Call
    given_back = protocol.throw(Stopped())
    assert type(given_back) is Spawn
    given_back.protocol.close()
    with pytest.raises(Stopped):
        protocol.send(None)

"""The line of a lock inside of a client: who has the right, and when it is handed on without the server."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast._core.effects import AwaitTurn, Call, Effect, Spawn, Wake
from holdfast._core.exclusive import LocalLease, OneServer
from holdfast._core.keys import lock_keys
from holdfast._core.mutex import LockAcquisition
from holdfast._core.record import RENEWAL, LeaseRecord, Report
from holdfast._core.schedule import EARLY_MAX, Early, Schedule
from holdfast._core.settings import DEFAULT
from holdfast._core.tenure import (
    ALONE_MS,
    Line,
    Lines,
    LocalWaiter,
    Note,
    Tenure,
    is_alone,
    release_in_line,
    wait_in_line,
)
from holdfast._core.tokens import BLOCK, MARK
from holdfast._core.waiting import Busy, Grant
from tests.support.steps import drive, driven

SETTINGS = DEFAULT._replace(tenure_ms=2.0)
TTL_MS = 30_000


class Interrupted(BaseException):
    """As KeyboardInterrupt, which would end the tests."""


async def _nothing(*_: Any) -> Any:
    return 1


def lines() -> Lines:
    return Lines(SETTINGS, nullcontext(), Early())


def joined(of: Lines, token: str, now: float = 0.0) -> LocalWaiter:
    turn = LocalWaiter(token, now)
    turn.join(of, "lock")
    return turn


def hold(turn: LocalWaiter, fence: int = 1, now: float = 0.0, ttl_ms: int = TTL_MS) -> LeaseRecord:
    """The turn is granted the lock by the server."""
    turn.got_at = now
    granted = Grant(fence, now)
    granted.turn = turn
    return OneServer(lock_keys("holdfast", "lock"), SETTINGS).make_record(turn.token, granted, ttl_ms)


def marked(of: Lines) -> tuple[Line, LocalWaiter, LocalWaiter, LeaseRecord]:
    """A line whose owner was granted a block, and another turn behind it."""
    first, second, third = joined(of, "a:1:1"), joined(of, "a:1:2"), joined(of, "a:1:3")
    hold(first)
    assert first.hand_on() and second.line is not None
    return second.line, second, third, hold(second)


def test_the_block_is_as_long_as_the_scripts_say() -> None:
    text = (Path(holdfast.__file__).parent / "_lua" / "fence.lua").read_text(encoding="utf-8")
    assert f"local FENCE_BLOCK = {BLOCK}\n" in text and f"== '{MARK}'" in text
    counting = (Path(holdfast.__file__).parent / "_lua" / "unblock.lua").read_text(encoding="utf-8")
    assert f"local BEHIND_FIRST = {BLOCK - 1}\n" in counting


def test_who_finds_another_asking_or_holding_is_not_alone() -> None:
    of, note = lines(), Note()
    assert is_alone(note, of)
    assert not is_alone(note, of), "the first asks still"
    note.last = lease = LeaseRecord("lock", "a:1:1", 1, TTL_MS, 0.0, asks=(_nothing, _nothing))
    assert not is_alone(note, of), "it holds"
    note.last = lease
    assert lease.mark_released()
    assert is_alone(note, of)


def test_who_comes_behind_a_lost_lease_is_alone() -> None:
    of, note = lines(), Note()
    note.last = lease = LeaseRecord("lock", "a:1:1", 1, TTL_MS, 0.0, asks=(_nothing, _nothing))
    lease.lose("expired")
    assert is_alone(note, of)


def test_who_finds_a_line_is_not_alone() -> None:
    """Whatever the note says: the last to leave one may have been refused."""
    of, note = lines(), Note()
    first = LocalWaiter("a:1:1", 0.0)
    first.join(of, note)
    assert not is_alone(note, of)
    note.last = LeaseRecord("lock", "a:1:1", 1, TTL_MS, 0.0, asks=(_nothing, _nothing))
    note.last.lose("expired")
    assert not is_alone(note, of)
    first.leave()
    note.last = LeaseRecord("lock", "a:1:1", 1, TTL_MS, 0.0, asks=(_nothing, _nothing))
    note.last.lose("expired")
    assert is_alone(note, of)


def test_a_lock_has_a_note_of_its_own() -> None:
    of, one, other = lines(), Note(), Note()
    assert is_alone(one, of) and is_alone(other, of)


def test_the_first_asks_with_a_plain_token_and_the_others_with_a_marked_one() -> None:
    of = lines()
    first, second = joined(of, "a:1:1"), joined(of, "a:1:2")
    assert (first.first, first.token, second.first, second.token) == (True, "a:1:1", False, "a:1:2+")
    assert first.is_called() and not second.is_called()


def test_one_that_is_alone_releases_at_the_server() -> None:
    of = lines()
    first = joined(of, "a:1:1")
    hold(first)
    assert not first.hand_on() and not of, "nothing is left"
    assert first.line is not None and first.line.record is None, "nor kept alive by a circle"


def test_what_has_no_block_is_passed() -> None:
    of = lines()
    first, second = joined(of, "a:1:1"), joined(of, "a:1:2")
    hold(first)
    assert first.hand_on()
    assert second.is_called() and second.passes() == ("a:1:1", "", "")
    assert first.passes() == (), "who has no right releases nothing"


def test_what_has_a_block_is_handed_on_until_the_tenure_is_over() -> None:
    line, second, third, _ = marked(lines())
    assert line.tenure is not None and line.tenure.block == (BLOCK, 1)
    assert second.hand_on() and third.is_called()
    assert third.take(0.0019) is not None and not line.tenure.over
    assert line.tenure.block == (BLOCK, 2)


@pytest.mark.parametrize("doubt", ["time", "block", "validity", "extended", "clock"])
def test_in_doubt_it_is_passed(doubt: str) -> None:
    line, second, third, record = marked(lines())
    assert line.tenure is not None
    now = 0.001
    if doubt == "time":
        now = 0.002
    elif doubt == "block":
        line.tenure.fence = line.tenure.last_fence
    elif doubt == "validity":
        record.end_by(now + SETTINGS.claim_ms / 2000 - 0.001)
    elif doubt == "extended":
        assert record.extending(TTL_MS, 0.0) != RENEWAL
    else:
        record.lasts(10 * TTL_MS)
    assert second.hand_on() and third.is_called() and third.take(now) is None
    assert line.tenure.over and third.passes() == (second.token, BLOCK, line.tenure.fence)


@pytest.mark.parametrize("ttl_ms", [ALONE_MS // 2, TTL_MS])
def test_who_has_waited_for_long_asks_the_server(ttl_ms: int) -> None:
    of = lines()
    hold(joined(of, "a:1:1"))
    turn, now, asked = joined(of, "a:1:2"), 0.0, []

    async def ask(left_s: float | None) -> Any:
        asked.append(now)
        return Busy(None, now)

    def perform(effect: Effect[Any]) -> None:
        nonlocal now
        assert isinstance(effect, AwaitTurn)
        now += effect.timeout_s

    drive(wait_in_line(turn, ask, _nothing, None, ttl_ms), perform, lambda: now)
    assert asked == [min(ttl_ms, ALONE_MS) / 1000]
    assert turn.over


def test_a_release_that_is_repeated_does_nothing() -> None:
    line, second, third, _ = marked(lines())
    assert second.hand_on() and second.hand_on()
    assert line.owner is third and line.tenure is not None and not line.tenure.over


def test_one_that_has_left_is_passed_over() -> None:
    of = lines()
    turns = [joined(of, f"a:1:{number}") for number in range(4)]
    hold(turns[0])
    assert turns[1].leave() is None
    assert turns[0].hand_on() and turns[2].is_called()
    assert turns[2].leave() is None and turns[3].is_called(), "what it had goes on"
    assert turns[3].passes() == ("a:1:0", "", "")
    back = turns[3].leave()
    assert back is not None and back.token == "a:1:0" and not of, "the last one gives it back"


@pytest.mark.parametrize("others", [0, 1])
def test_two_that_look_for_the_next_one_drop_none_that_waits(others: int) -> None:
    """One releases, while another thread has its turn leave: as when the client is closed meanwhile."""

    class Leaving(LocalWaiter):
        looked = False

        @property
        def over(self) -> bool:
            if not self.looked:
                self.looked = True
                assert self.line is not None and self.line.successor() is (turns[1] if others else None)
            return True

        @over.setter
        def over(self, _over: bool) -> None:
            """Not a look."""

    of = lines()
    first, leaving = joined(of, "a:1:1"), Leaving("a:1:2", 0.0)
    hold(first)
    leaving.join(of, "lock")
    turns = [first, *(joined(of, f"a:2:{number}") for number in range(others))]
    assert first.hand_on() is bool(others)
    assert turns[-1].is_called()


@pytest.mark.parametrize("followed", [False, True])
def test_what_a_turn_holds_that_leaves_is_passed_or_given_back(followed: bool) -> None:
    """A client is closed while it is granted: the thread leaves, and the one that closes takes it to be handed on."""
    of = lines()
    first = joined(of, "a:1:1")
    held = hold(first)
    second = joined(of, "a:1:2") if followed else None
    back = first.leave()
    if second is None:
        assert back is not None and back.token == held.token and not of
    else:
        assert back is None and second.is_called() and second.take(0.0) is None
        assert second.passes() == (held.token, "", "")
        assert held.hand_on(0.0), "the next one has it"


def test_who_leaves_while_it_is_made_the_owner_is_noticed() -> None:
    of = lines()
    first, second, third = joined(of, "a:1:1"), joined(of, "a:1:2"), joined(of, "a:1:3")
    hold(first)
    second.bell = lambda: setattr(second, "over", True)  # it leaves, and has looked before it was made the owner
    assert first.hand_on() and third.is_called()


def test_who_hands_on_to_the_last_one_while_that_leaves_releases(monkeypatch: pytest.MonkeyPatch) -> None:
    of = lines()
    first, second = joined(of, "a:1:1"), joined(of, "a:1:2")
    hold(first)
    successor = Line.successor

    def leaving(line: Line) -> LocalWaiter | None:
        found = successor(line)
        if found is second:
            assert second.leave() is None, "it has the right to nothing yet"
        return found

    monkeypatch.setattr(Line, "successor", leaving)
    assert not first.hand_on() and not of
    assert not first.hand_on(), "nor when the release is begun again, behind the look at the line"


@pytest.mark.parametrize("block", [False, True])
def test_the_last_one_that_leaves_as_the_owner_alone_gives_back(block: bool) -> None:
    """Just when it was made the owner, and before the turn that has handed on looks: that releases nothing, too."""
    if block:
        _, first, second, _ = marked(of := lines())
    else:
        first, second = joined(of := lines(), "a:1:1"), joined(of, "a:1:2")
        hold(first)
    back: list[Any] = []

    def leaving() -> None:
        second.bell = None
        back.append(second.leave())

    second.bell = leaving
    assert first.hand_on(), "to one that gives it back"
    assert len(back) == 1 and back[0].token == first.token and not of
    assert first.hand_on() and second.leave() is back[0], "repeated"


def test_what_becomes_of_a_line_is_nothing_to_one_that_has_handed_on() -> None:
    """Hold it up behind that: the next one has had the lease, and released it, or given it to a process."""
    _, second, third, _ = marked(of := lines())
    ends: list[bool] = []

    def holding() -> None:
        third.bell = None
        held = third.take(0.0)
        assert held is not None and not ends
        ends.append(held.hand_on(0.0))

    third.bell = holding
    assert second.hand_on() and ends == [False] and not of


def test_a_grant_of_the_next_one_is_given_back_by_itself() -> None:
    """Not by the one that has handed on to it, whose token is another one."""
    first, second = joined(of := lines(), "a:1:1"), joined(of, "a:1:2")
    hold(first)
    line, back = second.line, list[Any]()
    assert line is not None

    def passing() -> None:
        second.bell = None
        assert second.passes() == ("a:1:1", "", "")
        second.passed()
        hold(second)
        second.over = True  # it begins to leave

    second.bell = passing
    assert first.hand_on() and line.owner is second
    back.append(second.leave())
    assert back[0] is not None and back[0].token == second.token and not of


def test_a_release_that_was_interrupted_looks_again_for_one_that_has_left() -> None:
    first, second = joined(of := lines(), "a:1:1"), joined(of, "a:1:2")
    hold(first)

    def interrupted() -> None:
        second.bell = None
        second.over = True  # it has looked before it was made the owner
        raise Interrupted

    second.bell = interrupted
    with pytest.raises(Interrupted):
        first.hand_on()
    assert not first.hand_on() and not of, "the first one releases"


def test_one_that_has_left_passes_nothing_though_it_is_made_the_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asking the server by itself, it would release what the next turn in the line holds by."""
    line, second, third, _ = marked(of := lines())
    fourth = joined(of, "a:1:4")
    successor, asked = Line.successor, list[Any]()

    def leaving(line: Line) -> LocalWaiter | None:
        found = successor(line)
        if found is third:
            assert third.leave() is None, "it has the right to nothing yet"
        return found

    def asking() -> None:
        assert line.owner is third
        asked.append(third.passes())
        third.passed()

    monkeypatch.setattr(Line, "successor", leaving)
    third.bell = asking
    assert second.hand_on() and line.owner is fourth
    held = fourth.take(0.001)
    assert asked == [()] and isinstance(held, LocalLease) and held.token == second.token


def test_what_was_granted_and_came_to_no_lease_is_not_handed_on() -> None:
    """The token goes back to the server, as the one who was interrupted does not know how far it had come."""
    line, second, third, _ = marked(lines())
    second.disclaim()
    assert second.leave() is None and line.owner is third
    assert third.take(0.001) is None and third.passes() == ()


def test_what_was_handed_to_who_gets_no_lease_goes_on() -> None:
    of = lines()
    line, second, third, _ = marked(of)
    fourth = joined(of, "a:1:4")
    assert second.hand_on() and third.take(0.0006) is not None
    third.disclaim()
    assert third.leave() is None and line.owner is fourth
    assert fourth.take(0.0007) is not None


def test_a_turn_that_was_granted_what_it_asked_for_has_a_tenure_of_its_own() -> None:
    """Drop the one before, which its request has passed on."""
    line, second, third, held = marked(lines())
    former = line.tenure
    assert former is not None and former.token == second.token
    former.over = True
    assert held.mark_released() and second.hand_on() and third.passes()
    hold(third)
    assert line.tenure is not None and line.tenure.token == third.token and not line.tenure.over


def fields_of(held: LeaseRecord) -> dict[str, Any]:
    """All that it knows, by name; `vars` behind what classes name."""
    slots = {name for kind in type(held).__mro__ for name in getattr(kind, "__slots__", ())}
    return {name: getattr(held, name) for name in slots - {"__dict__", "__weakref__"} if hasattr(held, name)} | vars(
        held
    )


@pytest.mark.parametrize("pushed_until", [None, 1.5])
def test_a_lease_that_follows_is_as_one_that_is_made(pushed_until: float | None) -> None:
    """The next lease continues the one before it: nothing is forgotten, and nothing begins again."""
    of = lines()
    line, second, third, _ = marked(of)
    exclusive = OneServer(lock_keys("holdfast", "lock"), SETTINGS)
    granted = Grant(7, 0.0, until=pushed_until, short_s=pushed_until or 0.0)
    granted.turn = second
    before = exclusive.make_record(second.token, granted, TTL_MS)
    tenure = line.tenure
    assert tenure is not None and line.record is before
    before.renew_from = 0.0001  # it was renewed meanwhile
    before.report = Report()
    assert before.mark_released() and second.hand_on()

    follows = third.take(0.0015)
    assert isinstance(follows, LocalLease) and line.record is follows
    assert (follows.turn, follows.token, follows.fence) == (third, before.token, before.fence + 1)
    made = LocalLease("lock", before.token, follows.fence, TTL_MS, 0.0015, before.deadline, before.short_s)
    made.stand_on(exclusive, third, tenure).renew_from = before.renew_from
    assert fields_of(follows) == fields_of(made)
    assert follows.deadline == (pushed_until or before.deadline)


@pytest.mark.parametrize("pushed_until", [None, 2.0])
def test_a_lease_that_follows_has_its_own_max_hold(pushed_until: float | None) -> None:
    """One ended by that of the lease before, as expired, and was not renewed until then."""
    line, second, third, _ = marked(lines())
    granted = Grant(1, 0.0, until=pushed_until, short_s=pushed_until or 0.0)
    granted.turn = second
    before = OneServer(lock_keys("holdfast", "lock"), SETTINGS).make_record(second.token, granted, TTL_MS)
    before.end_by(2.0)
    if pushed_until is not None:
        assert before.extended(1_990, 0.0005, 0.0007)  # for what `max_hold` has left
    assert line.record is before and second.hand_on()
    follows = third.take(0.0015)
    assert isinstance(follows, LocalLease)
    follows.end_by(2.0015)
    schedule = Schedule(SETTINGS)
    schedule.add(follows, 0.0)
    due = schedule.due(0.0015 + SETTINGS.stretch_s)
    assert (follows.deadline, due) == ((2.0015, []) if pushed_until is None else (before.deadline, [follows]))


def test_none_follows_when_the_tenure_is_over() -> None:
    line, second, third, _ = marked(lines())
    assert second.hand_on()
    assert third.take(0.002) is None, "2 ms"
    assert third.passes()[0] == second.token and line.owner is third


def test_a_loss_ends_the_line() -> None:
    of = lines()
    first, second = joined(of, "a:1:1"), joined(of, "a:1:2")
    hold(first)
    first.lost()
    assert second.is_called() and not of and not first.hand_on()
    assert second.line is not None
    second.join(of, second.line.key)
    assert second.first and second.is_called(), "and the next one begins again"


def test_an_interrupted_release_is_not_forgotten() -> None:
    of = lines()
    first = joined(of, "a:1:1")
    hold(first)
    protocol = release_in_line(first, LockAcquisition(lock_keys("holdfast", "x"), "a:1:1", TTL_MS))
    with driven():
        assert type(protocol.send(None)) is Call
    spawned: Any = protocol.throw(Interrupted())
    assert type(spawned) is Spawn
    spawned.protocol.close()
    with pytest.raises(Interrupted):
        protocol.send(None)


def test_a_release_that_is_followed_by_a_turn_waits_for_nothing() -> None:
    of = lines()
    first = joined(of, "a:1:1")
    hold(first)
    second = joined(of, "a:1:2")
    protocol = release_in_line(first, LockAcquisition(lock_keys("holdfast", "x"), "a:1:1", TTL_MS))
    with driven(), pytest.raises(StopIteration):
        protocol.send(None)
    assert second.passes() == ("a:1:1", "", "")


def undisturbed(of: Lines, token: str = "a:1:9", granted_at: float = 10.0) -> Tenure:
    """The tenure of a turn that was granted the lock, where no one else waits."""
    turn = joined(of, token + MARK)
    turn.got_at = granted_at
    tenure = turn.begin(turn.token, 1, TTL_MS, undisturbed="the key")
    assert tenure is not None
    return tenure


@pytest.fixture
def hearing() -> Lines:
    of = lines()
    of.hears = lambda key: key == "the key"
    return of


def test_a_tenure_goes_on_where_no_other_client_waits(hearing: Lines) -> None:
    tenure = undisturbed(hearing)
    assert tenure.ends_at == 10.0 + SETTINGS.undisturbed_ms / 1000
    hearing._early.told("another token" + MARK)
    assert tenure.ends_at > 10.002
    hearing._early.told(tenure.token)
    assert tenure.ends_at == 10.002


def test_a_tenure_is_short_without_an_inbox() -> None:
    assert undisturbed(lines()).ends_at == 10.002


def test_a_tenure_that_was_told_before_it_began_is_short(hearing: Lines) -> None:
    hearing._early.told("a:1:9" + MARK)
    assert undisturbed(hearing).ends_at == 10.002
    assert hearing._early.take("a:1:9" + MARK, Wake.YIELD) is None, "once"


def test_what_was_told_of_tokens_that_never_begin_is_forgotten(hearing: Lines) -> None:
    for number in range(2_500):
        hearing._early.told(f"a:1:{number}{MARK}")
    assert len(hearing._early) <= EARLY_MAX


def test_a_tenure_ends_soon_where_messages_may_have_been_lost(hearing: Lines) -> None:
    tenure = undisturbed(hearing)
    hearing._early.inbox_lost()
    assert tenure.ends_at == 10.002


def test_a_long_tenure_stays_as_it_was_set() -> None:
    of = Lines(DEFAULT._replace(tenure_ms=3_000.0), nullcontext(), Early())
    of.hears = lambda key: True
    tenure = undisturbed(of)
    assert tenure.ends_at == 13.0
    of._early.told(tenure.token)
    assert tenure.ends_at == 13.0

"""The agent by itself: what it owes to protocols, to what is held, and to those who close a client."""

from __future__ import annotations

import gc
import heapq
import itertools
import weakref
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from contextvars import Context
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast._core.agent import inboxes
from holdfast._core.agent.agent import Agent
from holdfast._core.agent.runner import Task
from holdfast._core.effects import (
    AwaitTurn,
    AwaitWake,
    Call,
    CallMany,
    Command,
    Listen,
    Protocol,
    Reply,
    Sleep,
    Wake,
    driver,
)
from holdfast._core.exclusive import OneServer
from holdfast._core.failure import RequestFailed
from holdfast._core.keys import lock_keys
from holdfast._core.mutex import LockAcquisition
from holdfast._core.record import LeaseRecord
from holdfast._core.settings import DEFAULT
from holdfast._core.standing import Standing
from holdfast._core.waiting import Busy, Grant, wait_for

KEYS = lock_keys("holdfast", "made")


class Asked:
    """A request that was sent."""

    def __init__(self, effect: Call | Command, answer: Callable[[Any, RequestFailed | None], None]) -> None:
        self.effect = effect
        self.answer = answer

    @property
    def script(self) -> str:
        return self.effect.script if isinstance(self.effect, Call) else str(self.effect.args[0])


class Made(Agent):
    """One whose time and whose answers are the test's."""

    def __init__(self) -> None:
        self.at = 100.0
        self.sent: list[Asked] = []
        self.subscribing: list[Callable[[RequestFailed | None], None]] = []
        self.raised: list[BaseException] = []
        self.told = True
        #: Where inboxes are, for keys that are not at 0; and which were closed.
        self.places: dict[str, str] = {}
        self.unsubscribed: list[Any] = []
        self._timers: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._numbers = itertools.count()
        super().__init__("c0ffee", "holdfast:inbox:", DEFAULT, nullcontext(), one_place=True, moves=False)

    def now(self) -> float:
        return self.at

    def random(self) -> float:
        return 0.5

    def soon(self, act: Callable[..., None], *args: Any) -> None:
        self.later(0.0, act, *args)

    def later(self, seconds: float, act: Callable[..., None], *args: Any) -> None:
        heapq.heappush(self._timers, (self.at + seconds, next(self._numbers), act, args))

    def forget(self, timer: Any) -> None:
        pass

    def unhandled(self, task: Task, error: BaseException) -> None:
        self.raised.append(error)

    def request(
        self, effect: Call | Command, patience_s: float, answer: Callable[[Any, RequestFailed | None], None]
    ) -> None:
        self.sent.append(Asked(effect, answer))

    def place_of(self, key: str) -> int | str:
        return self.places.get(key, 0)

    def silence(self, place: Any) -> RequestFailed:
        return RequestFailed("silent", "made", f"s{place}", maybe_executed=True, transient=True)

    def unsubscribe(self, place: Any) -> None:
        self.unsubscribed.append(place)

    def subscribe(self, place: Any, effect: Listen, answer: Callable[[RequestFailed | None], None]) -> None:
        self.subscribing.append(answer)

    def has_told(self, hold: LeaseRecord) -> bool:
        return self.told

    def passes(self, seconds: float = 0.0) -> None:
        """Let that time pass."""
        until = self.at + seconds
        while self._timers and self._timers[0][0] <= until:
            self.at, _, act, args = heapq.heappop(self._timers)
            act(*args)
        self.at = until

    def run(self, protocol: Protocol[Any]) -> list[Any]:
        """Begin it; the list gets its result, or what it raises."""
        ended: list[Any] = []
        self.begin(protocol, "test", lambda value, error: ended.append(value if error is None else error))
        self.passes()
        return ended

    def reply(self, reply: Reply, at: int = 0) -> Asked:
        """Answer the request that was sent first of those unanswered."""
        asked = self.sent.pop(at)
        asked.answer(reply, None)
        self.passes()
        return asked


@pytest.fixture
def agent() -> Iterator[Made]:
    made = Made()
    yield made
    made.abandon()


def broken() -> RequestFailed:
    return RequestFailed("broken", "made", "s0", maybe_executed=True, transient=True)


async def waits_for_a_message(token: str = "token", key: str = KEYS.lock) -> Any:
    await Listen(token, key, 1.0)
    try:
        return await AwaitWake(token, 60.0)
    finally:
        driver.get().unlisten(token)


def heard(agent: Made, text: bytes) -> None:
    agent.heard([b"message", agent.channel.encode(), text])
    agent.passes()


def stands(agent: Made, token: str = "token", key: str = KEYS.lock) -> tuple[Standing, list[str]]:
    """Have a caller stand there; the list gets its token when it is woken."""
    rung: list[str] = []
    one = agent.standing[token] = Standing(key, 0.0, token, rung.append)
    return one, rung


def opened(agent: Made, *keys: str) -> None:
    """Have the inboxes of these keys be open."""
    for key in keys:
        agent.run(waits_for_a_message("opens", key))
        agent.subscribing.pop()(None)
        heard(agent, b"ask opens")


@pytest.mark.parametrize("text", [b"grant token 7 2000", b"ask token"])
def test_a_message_wakes_the_caller_that_stands_there(agent: Made, text: bytes) -> None:
    one, rung = stands(agent)
    heard(agent, text.replace(b"token", b"another"))
    assert not rung
    heard(agent, text)
    assert rung == ["token"] and [wake.kind for wake in one.came] == [text.decode().partition(" ")[0]]


def test_any_thread_wakes_those_whose_grant_it_has_read(agent: Made) -> None:
    _, rung = stands(agent)

    def wakes(text: bytes) -> bool:
        return agent.wakes([b"message", agent.channel.encode(), text])

    assert not (wakes(b"grant another 7 2000") or wakes(b"ask token") or wakes(b"yield token") or agent.wakes(None))
    assert not rung
    assert wakes(b"grant token 7 2000") and rung == ["token"]


def test_the_protocol_of_who_stands_there_finds_what_has_come(agent: Made) -> None:
    opened(agent, KEYS.lock)
    stands(agent)
    heard(agent, b"grant token 7 2000")
    assert agent.listens("token", KEYS.lock) and not agent.standing

    async def waits() -> Any:
        return await AwaitWake("token", 60.0)

    ended = agent.run(waits())
    assert [(wake.kind, wake.fence) for wake in ended] == [(Wake.GRANT, 7)]


def test_who_stands_where_an_inbox_breaks_is_told_and_goes_on_as_if_it_listened(agent: Made) -> None:
    opened(agent, KEYS.lock)
    one, rung = stands(agent)
    agent.inbox_broke(0)
    assert rung == ["token"] and [wake.kind for wake in one.came] == [Wake.ASK]
    assert not agent.listens("another", KEYS.lock)
    assert agent.listens("token", KEYS.lock), "its reply is not lost: the message has it look"


def test_who_stands_there_looks_where_all_do(agent: Made) -> None:
    one, rung = stands(agent)
    agent.inboxes.ask_all()
    assert rung == ["token"] and [wake.kind for wake in one.came] == [Wake.ASK]


def test_who_stands_there_listens(agent: Made) -> None:
    assert not agent.inboxes.is_awaited()
    stands(agent)
    assert agent.inboxes.is_awaited()


def test_who_stands_there_is_woken_when_the_client_is_closed(agent: Made) -> None:
    _, rung = stands(agent)
    agent.close(lambda _settled: None)
    agent.passes()
    assert rung == ["token"]


def test_an_inbox_by_which_someone_stands_is_not_closed(agent: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inboxes, "OPEN_MAX", 10)
    agent.places = {str(number): f"at {number}" for number in range(40)}
    opened(agent, "0")
    stands(agent, key="0")
    opened(agent, *map(str, range(1, 40)))
    assert "at 0" in agent.inboxes and agent.unsubscribed


def test_an_inbox_is_opened_once_for_all_that_want_it(agent: Made) -> None:
    first, second = agent.run(waits_for_a_message()), agent.run(waits_for_a_message())
    assert len(agent.subscribing) == 1
    agent.subscribing[0](None)
    heard(agent, b"ask token")
    assert not agent.subscribing[1:] and (first or second)


def test_nothing_is_kept_of_a_wait_that_was_interrupted(agent: Made) -> None:
    waiting = waits_for_a_message()
    kept = weakref.ref(waiting)
    agent.run(waiting)
    del waiting
    agent.subscribing[0](None)
    agent.passes()
    agent.interrupt(next(iter(agent.tasks)), KeyboardInterrupt())
    agent.passes(60.0)  # its timers, too, are over
    gc.collect()
    assert kept() is None


def test_who_waits_looks_when_the_inbox_breaks(agent: Made) -> None:
    ended = agent.run(waits_for_a_message())
    agent.subscribing[0](None)
    agent.passes()
    assert not ended
    agent.inbox_broke(0)
    agent.passes()
    assert ended[0].kind == Wake.ASK


def test_only_those_look_that_wait_where_an_inbox_breaks(agent: Made) -> None:
    agent.places["other"] = "elsewhere"
    first, second = agent.run(waits_for_a_message()), agent.run(waits_for_a_message("another", "other"))
    for answer in agent.subscribing:
        answer(None)
    agent.passes()
    agent.inbox_broke("elsewhere")
    agent.passes()
    assert not first and second[0].kind == Wake.ASK


def moved() -> RequestFailed:
    return RequestFailed("MOVED", "MOVED 1 s1:1", "s0", maybe_executed=False, transient=False)


def test_an_inbox_is_opened_where_its_slot_has_moved(agent: Made) -> None:
    agent.places[KEYS.lock] = "before"
    ended = agent.run(waits_for_a_message())
    agent.places[KEYS.lock] = "behind"
    agent.subscribing[0](moved())
    agent.passes()
    assert not ended and list(agent.inboxes) == [] and len(agent.subscribing) == 2
    agent.subscribing[1](None)
    heard(agent, b"ask token")
    assert ended[0].kind == Wake.ASK and list(agent.inboxes) == ["behind"]


def test_a_server_that_says_moved_without_an_end_is_not_asked_without_an_end(agent: Made) -> None:
    ended = agent.run(waits_for_a_message())
    for number in range(50):
        agent.places[KEYS.lock] = str(number)
        agent.subscribing[-1](moved())
        agent.passes(0.1)
    assert ended[0].kind == "silent" and len(agent.subscribing) < 20


def test_inboxes_that_are_not_needed_any_more_are_closed(agent: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inboxes, "OPEN_MAX", 10)
    agent.places = {str(number): f"at {number}" for number in range(1, 40)} | {KEYS.lock: "at 0"}
    lease(agent).places = (KEYS,)
    agent.run(waits_for_a_message("waiting", "1"))
    agent.subscribing[-1](None)
    for key in (KEYS.lock, *map(str, range(2, 40))):
        ended = agent.run(waits_for_a_message("token", key))
        agent.subscribing[-1](None)
        heard(agent, b"ask token")
        assert ended and len(list(agent.inboxes)) <= 11
    left = list(agent.inboxes)
    assert {"at 0", "at 1", "at 39"} <= set(left), "what a holder hears by, what a waiter does, and what was used last"
    assert sorted([*left, *agent.unsubscribed]) == sorted(agent.places.values())


def test_no_inbox_is_opened_for_a_holder_where_very_many_are(agent: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inboxes, "_FOR_HOLDERS_MAX", 1)
    agent.places = {"a": "at a", "b": "at b"}
    assert agent.missing_inbox("b") == "at b"
    agent.run(waits_for_a_message("token", "a"))
    agent.subscribing[0](None)
    assert agent.missing_inbox("b") is None


def test_an_inbox_that_broke_at_once_is_not_opened_again_at_once(agent: Made) -> None:
    agent.run(waits_for_a_message())
    agent.subscribing[0](None)
    agent.inbox_broke(0)
    agent.passes()
    agent.run(waits_for_a_message())
    assert len(agent.subscribing) == 1
    agent.passes(DEFAULT.trouble_pause_s)
    assert len(agent.subscribing) == 2


def test_an_inbox_that_we_have_broken_is_opened_again_at_once(agent: Made) -> None:
    for number in range(1, 4):
        agent.run(waits_for_a_message())
        assert len(agent.subscribing) == number
        agent.subscribing[-1](None)
        agent.inbox_broke(0, by_us=True)
        agent.passes()


def test_a_pause_lasts_though_we_break_the_inbox_meanwhile(agent: Made) -> None:
    for by_us in (False, True):
        agent.run(waits_for_a_message())
        agent.passes(DEFAULT.trouble_pause_s)
        agent.subscribing[-1](None)
        agent.inbox_broke(0, by_us=by_us)
        agent.passes()
    agent.run(waits_for_a_message())
    assert len(agent.subscribing) == 2


def test_an_attempt_that_hangs_holds_up_no_other(agent: Made) -> None:
    ended = agent.run(waits_for_a_message())
    agent.passes(1.0)
    assert (ended[0].kind, ended[0].node, ended[0].maybe_executed) == ("silent", "s0", False)
    agent.subscribing[0](broken())
    agent.run(waits_for_a_message())
    assert len(agent.subscribing) == 2


def test_a_late_answer_of_many_is_looked_at(agent: Made) -> None:
    seen: list[tuple[int, Reply]] = []

    async def look(index: int, reply: Reply) -> None:
        seen.append((index, reply))

    async def asks() -> Any:
        calls = [Call("renew", (KEYS.lock,), ("token",), 1.0, node) for node in range(3)]
        return await CallMany(calls, 0.1, None, look)

    ended = agent.run(asks())
    agent.reply(1)
    agent.passes(0.1)
    assert ended == [[1, None, None]]
    agent.reply(7)
    agent.sent[0].answer(None, broken())
    agent.passes()
    assert seen == [(1, 7)]


def test_one_of_many_whose_connection_broke_is_sent_again_once(agent: Made) -> None:
    """The end of the second one does not hide that the first one may have been carried out."""

    async def asks() -> Any:
        calls = [Call("renew", (KEYS.lock,), ("token",), 1.0, node) for node in range(3)]
        many = CallMany(calls, 0.1)
        return await many, many.repeated

    ended = agent.run(asks())
    refused = RequestFailed("refused", "no one listens", "s1", maybe_executed=False, transient=True)
    agent.sent[0].answer(None, refused)
    for sent in agent.sent[1:3]:
        sent.answer(None, broken())
    assert [asked.effect.node for asked in agent.sent] == [0, 1, 2, 1, 2]
    agent.sent[3].answer(1, None)
    agent.sent[4].answer(None, refused.again(maybe_executed=False))
    agent.passes()
    ((answers, repeated),) = ended
    assert answers[1] == 1
    assert [(answers[at].kind, answers[at].maybe_executed) for at in (0, 2)] == [("refused", False), ("refused", True)]
    assert repeated == {1: True, 2: True}


def lease(agent: Made, ttl_ms: int = 30_000, token: str = "token") -> LeaseRecord:
    turn = LockAcquisition(KEYS, token, ttl_ms)
    turn.renews = True
    hold = turn.make_record("made", Grant(1, agent.at))
    hold.places = ()
    agent.watch(hold)
    return hold


def test_a_renewal_that_failed_is_repeated_while_the_lease_lasts(agent: Made) -> None:
    hold = lease(agent)
    agent.passes(10.0)
    assert [asked.script for asked in agent.sent] == ["renew"]
    for _ in range(2):  # a broken connection is tried again at once
        agent.sent.pop().answer(None, broken())
        agent.passes()
    assert hold.state.value == "suspect"
    agent.passes(5.0)
    agent.reply(1)
    assert hold.state.value == "held" and hold.deadline > agent.at + 25


def plain_lease(agent: Made) -> LeaseRecord:
    """One whose renewal is one request, for which no protocol begins."""
    hold = OneServer(KEYS, DEFAULT).make_record("0" * 24 + ":1:1", Grant(1, agent.at), 30_000)
    agent.watch(hold)
    agent.passes(10.0)
    assert [asked.script for asked in agent.sent] == ["renew"] and not hold._asks
    return hold


def test_what_max_hold_has_ended_is_left_to_the_time_that_it_has_to_be_held(agent: Made) -> None:
    hold = OneServer(KEYS, DEFAULT).make_record("0" * 24 + ":1:1", Grant(1, agent.at), 30_000)
    hold.end_by(agent.at + 0.05)
    hold.kept_until = agent.at + 9.0
    agent.watch(hold)
    agent.passes(1.0)
    assert hold.reason == "max_hold" and [asked.script for asked in agent.sent] == ["renew"]
    assert 7_900 < int(agent.sent[0].effect.args[1]) <= 9_000


def test_the_usual_renewal_begins_no_protocol(agent: Made) -> None:
    hold = plain_lease(agent)
    agent.reply(1)
    assert not hold._asks and hold.deadline > agent.at + 25


def test_a_renewal_begins_a_protocol_where_none_has_run_yet(agent: Made) -> None:
    """A caller renews instead of the engine at the end of the process: nothing is driven in its thread."""
    lease(agent)
    Context().run(agent.passes, 10.0)
    assert [asked.script for asked in agent.sent] == ["renew"]


def test_a_protocol_goes_on_with_its_own_client_behind_what_another_one_does(agent: Made) -> None:
    other, seen = Made(), []
    other.at = 500.0

    async def look() -> None:
        seen.append(driver.get())

    async def tell() -> None:
        other.begin(look(), "of the other")
        seen.append(driver.get())

    agent.run(tell())
    assert seen == [other, agent]


def test_what_ends_a_wait_that_was_over_at_once_ends_no_later_one(agent: Made) -> None:
    """As a thread that hands a lock on, and rings when its successor has found that out by itself."""

    class Turn:
        bell: Callable[[], None]

        def is_called(self) -> bool:
            return True

    turn = Turn()

    async def wait_and_ask() -> Any:
        await AwaitTurn(turn, 1.0)
        return await Call("release", (KEYS.lock,), (), 1.0)

    ended = agent.run(wait_and_ask())
    turn.bell()
    agent.passes()
    agent.reply(1)
    assert ended == [1]


def test_a_renewal_that_finds_nothing_looks_why(agent: Made) -> None:
    hold = plain_lease(agent)
    agent.reply(0)
    agent.reply(b"by someone")
    assert (hold.reason, agent.sent) == ("broken by by someone", [])


def test_a_renewal_without_an_answer_goes_on_as_the_protocol_does(agent: Made) -> None:
    hold = plain_lease(agent)
    agent.sent.pop().answer(None, broken())
    agent.passes()
    assert [asked.script for asked in agent.sent] == ["renew"]
    agent.reply(1)
    assert hold.state.value == "held" and hold.deadline > agent.at + 25


def test_each_lease_of_a_batch_gets_its_own_answer(agent: Made) -> None:
    held = {token: lease(agent, token=token) for token in ("one", "other")}
    agent.passes(10.0)
    assert [asked.script for asked in agent.sent] == ["renew_many"]
    tokens = [arg for arg in agent.sent[0].effect.args if arg in held]
    agent.reply([1, 0])
    assert [held[str(token)].alive for token in tokens] == [True, False]


def test_an_extension_that_was_answered_too_late_is_released(agent: Made) -> None:
    hold = lease(agent, 1_000)
    hold.stop_renewing()
    ended = agent.run(agent.extend(hold, 1_000))
    agent.passes(2.0)
    assert hold.reason == "expired"
    assert [asked.script for asked in agent.sent] == ["renew", "release"], "the answer may never come"
    agent.reply(1)
    assert ended == [False]
    assert [asked.script for asked in agent.sent] == ["release", "release"], "the first may have come before it"


def test_a_renewal_that_was_answered_too_late_is_released(agent: Made) -> None:
    hold = lease(agent, 3_000)
    agent.passes(1.0)
    agent.passes(3.0)
    assert hold.reason == "expired"
    agent.reply(1)
    assert [asked.script for asked in agent.sent][-1] == "release"


def test_an_acquire_comes_behind_a_release_that_is_not_waited_for(agent: Made) -> None:
    hold = lease(agent)
    agent.schedule.finish(hold)
    turn = LockAcquisition(KEYS, "token", 30_000)
    undo = turn.undo(0, 1.0)
    agent.request(undo, 1.0, agent.releasing.sent(hold, undo.keys[0]))
    agent.passes()
    ask = LockAcquisition(KEYS, "next", 30_000).ask(False, 0, 1.0)
    ended = agent.run(agent.acquire(ask, lambda _timeout_s, _sent: _never(), 0.0, 30_000))
    assert [asked.script for asked in agent.sent] == ["release", "acquire"]
    agent.reply([0, 30_000, b"token", -1, 0], at=1)  # it was overtaken
    assert [asked.script for asked in agent.sent] == ["release"]
    agent.reply(1)
    agent.reply([1, 2])
    assert ended[0].fence == 2


async def _never() -> Grant | Busy:
    raise AssertionError("the protocol is not needed")


def test_waiters_leave_before_anything_is_released(agent: Made) -> None:
    hold = lease(agent)
    waiter = LockAcquisition(KEYS, "waiter", 30_000)
    ended = agent.run(wait_for(waiter, None, listening=False))
    agent.reply([0, 30_000, b"c0ffee:1:1", -1, 0])
    agent.subscribing[0](None)
    agent.passes()
    agent.reply([0, 30_000, b"c0ffee:1:1", 0, 5])
    closed: list[bool] = []
    agent.close(closed.append)
    agent.passes(0.1)
    assert ended[0].kind == "closed"
    assert hold.reason == "closed"
    assert [(asked.script, asked.effect.args[0]) for asked in agent.sent] == [
        ("release", "waiter"),
        ("release", "token"),
    ]
    while agent.sent:
        agent.reply(1)
    agent.passes(0.1)
    assert closed == [True]


def test_holders_are_told_before_their_locks_are_released(agent: Made) -> None:
    hold = lease(agent)
    agent.told = False
    agent.close(lambda _: None)
    agent.passes(0.2)
    assert hold.reason == "closed" and not agent.sent
    agent.told = True
    agent.passes(0.2)
    assert [asked.script for asked in agent.sent] == ["release"]


def test_closing_ends_in_its_time_though_no_server_answers(agent: Made) -> None:
    lease(agent)
    ended = agent.run(agent.acquire(None, lambda _timeout_s, _sent: _asks(), None, 30_000))
    closed: list[bool] = []
    agent.close(closed.append)
    agent.passes(4.0)
    assert closed == [False]
    assert ended[0].kind == "closed"


@pytest.mark.parametrize("returns", [True, False])
def test_what_callers_release_by_themselves_is_waited_for_or_released(
    agent: Made, returns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold = lease(agent)
    leaving = {hold.token: hold}
    repeated: list[int] = []
    monkeypatch.setattr(agent, "front", SimpleNamespace(asking={}, leaving=leaving))
    monkeypatch.setattr(agent, "repeat_unconfirmed", lambda: repeated.append(len(leaving)))
    assert agent.schedule.finish(hold)
    closed: list[bool] = []
    agent.close(closed.append)
    agent.passes(0.2)
    assert closed == [] and repeated == []
    if returns:
        leaving.clear()
    agent.passes(0.1)
    assert repeated == [len(leaving)], "once what they have sent is known"
    assert [asked.effect.args[0] for asked in agent.sent] == ["token"] * len(leaving)
    while agent.sent:
        agent.reply(1)
    agent.passes(0.1)
    assert closed == [True]


def test_many_leases_are_released_a_slice_at_a_time(agent: Made) -> None:
    for number in range(1_200):
        lease(agent, token=f"token-{number}")
    closed: list[bool] = []
    agent.close(closed.append)
    sent = [0]
    for _ in range(100):
        agent.passes(0.0001)  # less than between two slices
        sent.append(len(agent.sent))
    assert sent[-1] == 1_200, "though none of them was answered"
    assert max(after - before for before, after in itertools.pairwise(sent)) <= 500
    while agent.sent:
        agent.reply(1)
    agent.passes(0.1)
    assert closed == [True]


async def _asks() -> Any:
    return await Call("acquire", KEYS.all, ("token",), 60.0)


@pytest.mark.parametrize("effect", [Sleep(60.0), Listen("token", KEYS.lock, 60.0)])
def test_nothing_begins_to_wait_in_a_client_that_is_closed(agent: Made, effect: Any) -> None:
    agent.close(lambda _: None)

    async def waits() -> None:
        await effect

    assert agent.run(waits())[0].kind == "closed"


def test_what_is_raised_in_the_background_is_shown_and_ends_nothing_else(agent: Made) -> None:

    async def fails() -> None:
        raise ZeroDivisionError

    agent.spawn(fails(), "made")
    agent.passes()
    assert [type(error) for error in agent.raised] == [ZeroDivisionError]
    assert agent.run(_returns()) == [5]


async def _returns() -> int:
    return 5

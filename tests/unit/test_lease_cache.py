"""What a client keeps: who has it, what ends it, and what happens when a step is repeated."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest

from holdfast._core.effects import Call, Effect, Protocol
from holdfast._core.exclusive import KeptLease, OneServer
from holdfast._core.failure import RequestFailed
from holdfast._core.keys import lock_keys
from holdfast._core.lease_cache import CachedLease, LeaseCache
from holdfast._core.record import LeaseRecord
from holdfast._core.schedule import Early
from holdfast._core.settings import DEFAULT
from holdfast._core.tenure import Lines, LocalWaiter
from holdfast._core.waiting import Grant
from tests.support.steps import drive

KEYS = lock_keys("holdfast", "x")
TTL_MS = 30_000
TOKEN = f"{'0' * 24}:1:1*+"


class Client:
    """A lease cache, and what it asks of its driver."""

    def __init__(self, cache_for_s: float = 2.0) -> None:
        self.watched: list[LeaseRecord] = []
        self.spawned: list[Protocol[None]] = []
        self.here = True
        self.early = Early()
        self.lease_cache = LeaseCache(DEFAULT, self.watched.append, self.spawned.append, self.early, lambda: self.here)
        self.cache_for_s = cache_for_s

    def grant(self, now: float = 0.0) -> KeptLease:
        grant = Grant(1_000, now)
        grant.kept = self.lease_cache, self.cache_for_s
        hold = OneServer(KEYS, DEFAULT).make_record(TOKEN, grant, TTL_MS)
        assert type(hold) is KeptLease
        return hold

    def again(self, kept: CachedLease, now: float) -> KeptLease:
        hold: KeptLease = kept.record.again(TTL_MS, now)
        return hold

    def requests(self, now: float = 0.0, answer: Callable[[Call], Any] = lambda call: 1) -> list[str]:
        """The scripts of what was spawned, which is run to its end."""
        sent: list[str] = []
        while self.spawned:
            run(self.spawned.pop(0), sent, now, answer)
        return sent


def run(protocol: Protocol[Any], sent: list[str], now: float = 0.0, answer: Callable[[Call], Any] = lambda _: 1) -> Any:
    def perform(effect: Effect[Any]) -> Any:
        assert type(effect) is Call, effect
        sent.append(effect.script)
        return answer(effect)

    return drive(protocol, perform, now)


@pytest.fixture
def client() -> Any:
    made = Client()
    yield made
    for protocol in made.spawned:
        protocol.close()


def test_it_is_kept_and_taken_again(client: Client) -> None:
    hold = client.grant()
    kept = hold.tenure
    assert hold.mark_released() and hold.hand_on(1.0) and not client.spawned
    assert kept.take("a", 1.5) and not kept.take("b", 1.5)
    assert kept.was_taken("a") and not kept.was_taken("b")
    second = client.again(kept, 1.5)
    assert second.fence == hold.fence + 1 and second.deadline == hold.deadline and second.token == hold.token
    assert kept.was_taken("a"), "it has begun, and may not have reached its caller"
    assert second.hand_on(1.6) and not kept.was_taken("a")


def test_a_repeated_release_does_nothing(client: Client) -> None:
    hold = client.grant()
    assert hold.hand_on(1.0) and hold.hand_on(1.0)
    sent: list[str] = []
    assert hold.tenure.take("a", 1.1)
    second = client.again(hold.tenure, 1.1)
    assert hold.hand_on(1.2) and run(hold.release(), sent) is True
    assert sent == [], "it would release the lease of the second one"
    assert run(second.release(), sent) and sent == ["release"]


@pytest.mark.parametrize("late", [2.0, 2.5, 100.0])
def test_it_is_not_taken_after_its_time(client: Client, late: float) -> None:
    hold = client.grant()
    assert hold.hand_on(0.0)
    assert not hold.tenure.take("a", late)


def test_what_an_exception_has_left_unsent_is_released_at_its_end(client: Client) -> None:
    def interrupted(protocol: Any) -> None:
        protocol.close()
        raise KeyboardInterrupt

    spawn, client.lease_cache.spawn = client.lease_cache.spawn, interrupted
    hold = client.grant()
    assert hold.hand_on(1.0)
    with pytest.raises(KeyboardInterrupt):
        client.early.told(TOKEN)
    client.lease_cache.spawn = spawn
    assert not hold.tenure.take("a", 1.1)
    hold.tenure.look(1.0 + client.cache_for_s + 1.5)
    assert client.requests() == ["release"]


def test_who_has_it_lets_go_when_told(client: Client) -> None:
    hold = client.grant()
    client.early.told(TOKEN)
    assert not client.spawned and not hold.hand_on(1.0)
    assert TOKEN not in [kept.token for kept in client.lease_cache.values()]


def test_what_is_idle_is_released_when_told(client: Client) -> None:
    hold = client.grant()
    assert hold.hand_on(1.0)
    client.early.told(TOKEN)
    client.early.told(TOKEN)
    assert not hold.tenure.take("a", 1.0)
    assert client.requests() == ["release"]


def test_what_is_told_before_the_grant_is_known_counts(client: Client) -> None:
    client.early.told(TOKEN)
    assert not client.grant().hand_on(1.0)


def test_a_broken_inbox_ends_it(client: Client) -> None:
    hold = client.grant()
    assert hold.hand_on(1.0)
    client.early.inbox_lost()
    assert client.requests() == ["release"] and not client.lease_cache


def test_a_grant_that_was_waited_for_is_not_kept(client: Client) -> None:
    grant = Grant(1_000, 0.0)
    grant.kept, grant.waited = (client.lease_cache, 2.0), True
    assert not OneServer(KEYS, DEFAULT).make_record(TOKEN, grant, TTL_MS).hand_on(0.1)


def test_what_is_handed_on_lasts_as_long_as_the_lease_before_it(client: Client) -> None:
    exclusive = OneServer(KEYS, DEFAULT)
    of = Lines(DEFAULT._replace(tenure_ms=100.0), nullcontext(), Early())
    turns = [LocalWaiter(f"{'0' * 24}:{number}:1*+", 0.0) for number in (1, 2)]
    for turn in turns:
        turn.join(of, "x")
    grant = Grant(1_000, 0.0)
    grant.kept, grant.turn = (client.lease_cache, 2.0), turns[0]
    first = exclusive.make_record(turns[0].token, grant, TTL_MS)
    first.renew_from = 0.0005  # it was renewed meanwhile
    assert first.mark_released() and first.hand_on(0.001)
    taken = turns[1].take(0.0015)
    assert type(taken) is KeptLease and taken.fence == first.fence + 1
    second = taken
    assert second.token == first.token and second.hand_on(0.002), "it is kept, too"
    assert (second.deadline, second.renew_from, second.short_s) == (first.deadline, first.renew_from, first.short_s)


@pytest.mark.parametrize("what", ["extended", "overlong", "used up", "elsewhere", "late", "lost"])
def test_what_is_not_kept(client: Client, what: str) -> None:
    hold = client.grant()
    now = 1.0
    if what == "extended":
        hold.extending(TTL_MS, 0.5)
    elif what == "overlong":
        hold.lasts(10 * TTL_MS)
    elif what == "used up":
        hold.tenure.fence = hold.tenure.last_fence
    elif what == "elsewhere":
        client.here = False
    elif what == "late":
        now = TTL_MS / 2000
    else:
        hold.lose("taken")
    assert not hold.hand_on(now) and not client.lease_cache


def test_it_is_released_when_its_time_is_over(client: Client) -> None:
    hold = client.grant()
    assert hold.hand_on(0.0)
    (watch,) = client.watched
    assert not watch.check_expired(0.1) and watch.deadline == pytest.approx(2 / 3)
    assert not watch.check_expired(2.0)
    assert client.requests() == ["release"]
    assert watch.check_expired(3.0), "it is looked at no more"


def test_its_ttl_is_cut_once_it_is_idle_for_a_third(client: Client) -> None:
    hold = client.grant()
    kept = hold.tenure
    assert hold.hand_on(0.0)
    (watch,) = client.watched
    assert not watch.check_expired(0.7) and not kept.take("a", 0.7), "the request is under way"
    asked: list[Any] = []

    def answer(call: Call) -> int:
        asked.append(call.args)
        return 1

    assert client.requests(0.7, answer) == ["renew"]
    assert asked == [(TOKEN, 2_300, 1, 0)]
    assert kept.take("b", 0.8)
    second = client.again(kept, 0.8)
    assert 2.9 < second.deadline <= 3.0 and 0 < second.short_s < 2.3

    run(second.renew(TTL_MS), [], 0.8, answer)
    assert asked[-1][2] == 2 and asked[-1][3] > 0, "what cut it may be carried out once more, and changes nothing then"
    assert second.extended(TTL_MS, 0.8, 0.9)
    run(second.renew(TTL_MS), [], 0.8, answer)
    assert asked[-1][2:] == (2, -1)


def test_a_cut_without_an_answer_gives_it_back(client: Client) -> None:
    hold = client.grant()
    assert hold.hand_on(0.0)
    client.watched[0].check_expired(0.7)

    def answer(call: Call) -> int:
        if call.script == "renew":
            raise RequestFailed("silent", "no answer", "", maybe_executed=True, transient=True)
        assert call.args[4], "a request of it may still come: the token is refused from now on"
        return 1

    assert client.requests(0.7, answer) == ["renew", "release"]
    assert not hold.tenure.take("a", 0.8) and not client.lease_cache


def test_told_while_it_is_cut(client: Client) -> None:
    hold = client.grant()
    assert hold.hand_on(0.0)
    client.watched[0].check_expired(0.7)

    def answer(call: Call) -> int:
        client.early.told(TOKEN)
        return 1

    assert client.requests(0.7, answer) == ["renew", "release"]


def test_a_closed_client_releases_what_is_idle(client: Client) -> None:
    hold = client.grant()
    assert hold.hand_on(0.0)
    (watch,) = client.watched
    watch.lose("closed")
    sent: list[str] = []
    run(watch.release(), sent)
    run(watch.release(), sent)
    assert sent == ["release"] and not hold.tenure.take("a", 0.1)


def test_a_closed_client_leaves_what_is_held_to_its_lease(client: Client) -> None:
    hold = client.grant()
    assert hold.hand_on(0.0) and hold.tenure.take("a", 0.1)
    second = client.again(hold.tenure, 0.1)
    sent: list[str] = []
    client.watched[0].lose("closed")
    run(client.watched[0].release(), sent)
    assert sent == [] and not second.hand_on(0.2)


def test_it_ends_with_half_of_its_ttl_though_it_is_used(client: Client) -> None:
    hold: KeptLease = client.grant()
    kept, now, times = hold.tenure, 0.0, 0
    while hold.hand_on(now):
        now += 1.0
        times += 1
        assert times < 100
        if not kept.take("a", now):
            break
        hold = client.again(kept, now)
    assert 14 <= now <= TTL_MS / 2000


def test_it_trusts_no_more_than_its_own_ttl(client: Client) -> None:
    """A renewal sets the end, where the server's clock seems to be wrong: it must not be less than what is trusted."""
    hold = client.grant()
    assert hold.hand_on(0.0) and hold.tenure.take("a", 0.1)
    second = hold.tenure.record.again(5_000, 0.1)
    assert second.deadline <= 5.1 and not second.overlong
    second.lasts(TTL_MS)
    assert not second.overlong, "it was granted for as long as that"


def test_its_requests_are_those_of_a_lock(client: Client) -> None:
    hold = client.grant()
    sent: list[str] = []
    assert run(hold.renew(TTL_MS), sent) == 1 and sent == ["renew"]
    call = hold.asks().undo(0, 1.0)
    assert call.args[-2:] == (hold.tenure.last_fence, hold.fence), "the rest of its block is given back"


def test_what_the_next_turn_gives_back_is_not_kept(client: Client) -> None:
    """Leave as the owner, while the release that has made it the owner goes on."""
    lines = Lines(DEFAULT, nullcontext(), client.early)
    first, second = LocalWaiter(TOKEN, 0.0), LocalWaiter("b+", 0.0)
    for turn in (first, second):
        turn.join(lines, "lock")
    grant = Grant(1_000, 0.0)
    grant.kept, grant.turn = (client.lease_cache, client.cache_for_s), first
    held = OneServer(KEYS, DEFAULT).make_record(TOKEN, grant, TTL_MS)
    back: list[Any] = []

    def leaving() -> None:
        second.bell = None
        back.append(second.leave())

    second.bell = leaving
    assert held.hand_on(0.1)
    assert [each.token for each in back] == [TOKEN] and type(held.tenure.holder) is KeptLease

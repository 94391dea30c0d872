"""What several locks at once promise, whichever API and server."""

from __future__ import annotations

from typing import Any

import pytest

import holdfast
from testbed.waiting import eventually
from tests.support.apis import Api


def key(name: str, part: str = "") -> str:
    return f"holdfast:{{{name}}}{part}"


@pytest.fixture
def names(unique_name: str) -> list[str]:
    return [f"{unique_name}-{letter}" for letter in "abc"]


@pytest.fixture(params=["one script", "slot by slot"])
def apart(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The way over several slots also works on one server, when it is taken there."""
    if request.param == "slot by slot":
        monkeypatch.setattr("holdfast._engine.server.Topology.moves", True)
    return str(request.param)


def test_all_or_none(locks: Any, others: Any, raw: Any, names: list[str], apart: str) -> None:
    lease = locks.multilock(*names).acquire()
    assert [raw.get(key(name)) for name in names] == [lease.token] * 3
    assert all(others.lock(name).try_acquire() is None for name in names)
    lease.release()
    assert not any(raw.exists(key(name)) for name in names)
    with others.lock(names[1]):
        assert locks.multilock(*names).try_acquire() is None
        eventually(lambda: not raw.exists(key(names[0])) and not raw.exists(key(names[2])))
        with pytest.raises(holdfast.AcquireTimeout):
            locks.multilock(*names).acquire(timeout=0.2)
        eventually(lambda: not raw.exists(key(names[0])) and not raw.exists(key(names[2])))
    eventually(lambda: not list(raw.scan_iter(f"holdfast:{{{names[0][:-2]}*:queue")))
    both = locks.multilock(*names).try_acquire()
    assert both is not None
    both.release()


def test_no_deadlock_whatever_the_order(locks: Any, api: Api, url: str, names: list[str], apart: str) -> None:
    inside: list[int] = []
    worst: list[int] = []

    def cycle(number: int) -> int:
        client = api.connect(url)
        turned = names[number % 3 :] + names[: number % 3]
        fences = []
        for _ in range(5):
            with client.multilock(*(turned if number % 2 else turned[::-1])) as lease:
                inside.append(number)
                worst.append(len(inside))
                fences.append(lease.fencing_token)
                inside.remove(number)
        assert fences == sorted(set(fences))
        return len(fences)

    assert [each.result() for each in [api.start(cycle, number) for number in range(6)]] == [5] * 6
    assert max(worst) == 1


def test_waits_for_the_holder_of_one(locks: Any, others: Any, api: Api, raw: Any, names: list[str], apart: str) -> None:
    holding = others.lock(names[1]).acquire()
    waiting = api.start(locks.multilock(*names).acquire)
    eventually(lambda: raw.zcard(key(names[1], ":queue")) == 1)
    if apart == "one script":  # (slots have an order of their own)
        later = others.lock(names[2]).try_acquire()
        assert later is not None, "what comes after the busy one is not held up"
        later.release()
    holding.release()
    lease = waiting.result()
    assert lease.fencing_token > holding.fencing_token
    assert [raw.get(key(name)) for name in names] == [lease.token] * 3
    lease.release()


def test_the_fencing_token_is_known_to_all(locks: Any, others: Any, raw: Any, names: list[str], apart: str) -> None:
    ahead = 9_000_000_000_000_000
    raw.set(key(names[1], ":fence"), ahead, px=60_000)
    with locks.multilock(*names) as lease:
        assert lease.fencing_token == ahead + 1
    for name in names:
        with others.lock(name) as single:
            assert single.fencing_token == ahead + 2
            raw.set(key(name, ":fence"), ahead + 1, px=60_000)


def test_the_loss_of_one_is_the_loss_of_all(locks: Any, raw: Any, names: list[str], apart: str) -> None:
    lease = locks.multilock(*names, ttl=2).acquire()
    raw.set(key(names[2]), "a thief's", px=60_000)
    assert lease.lost.wait(30)
    with pytest.raises(holdfast.LeaseLost):
        lease.ensure_held()
    assert raw.get(key(names[2])) == "a thief's"


def test_release_hands_each_over(locks: Any, others: Any, api: Api, raw: Any, names: list[str], apart: str) -> None:
    lease = locks.multilock(*names).acquire()
    waiting = [api.start(others.lock(name).acquire) for name in names]
    eventually(lambda: all(raw.zcard(key(name, ":queue")) == 1 for name in names))
    next_holders = [raw.zrange(key(name, ":queue"), 0, 0)[0] for name in names]
    lease.release()
    assert [raw.get(key(name)) for name in names] == next_holders, "none was free in between"
    for each in waiting:
        each.result().release()


def test_the_same_owner_waits_not_for_itself(locks: Any, api: Api, names: list[str]) -> None:
    actor = api.actor()
    single = actor.ask(locks.lock(names[1]), "acquire")
    with pytest.raises(holdfast.AlreadyHeld, match=names[1]):
        actor.ask(locks.multilock(*names), "acquire")
    single.release()
    lease = actor.ask(locks.multilock(*names), "acquire")
    with pytest.raises(holdfast.AlreadyHeld):
        actor.ask(locks.lock(names[2]), "acquire")
    lease.release()
    actor.ask(locks.lock(names[2]), "acquire").release()


def test_bad_names_are_refused(locks: Any) -> None:
    for names in ((), ("a", "a"), ("a", ""), ("a", 1), tuple(map(str, range(101)))):
        with pytest.raises(holdfast.ConfigurationError):
            locks.multilock(*names)

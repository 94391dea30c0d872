"""Deadlocks are found, one party of each gives up where that was asked for, and nothing else is taken for one."""

from __future__ import annotations

import inspect
import os
import pickle
from concurrent.futures import Future, wait
from functools import partial
from typing import Any

import pytest

import holdfast
from holdfast._core.settings import DEFAULT
from holdfast.errors import AcquireTimeout, ConfigurationError, DeadlockDetected
from testbed.waiting import PATIENCE_S, eventually
from tests.support.apis import Actor, Api

#: So long that no wait ends by itself before it is seen.
LONG_S = 4 * PATIENCE_S


def deadlocks_of(locks: Any, name: str) -> list[Any]:
    """Return the deadlocks in which something of that name is waited for."""
    return [found for found in locks.deadlocks() if any(name in party.name for party in found.parties)]


def held(actor: Actor, *things: Any, **how: Any) -> list[Any]:
    return [actor.ask(thing, "acquire", **how) for thing in things]


def ends(waiting: dict[Future[Any], tuple[Actor, list[Any]]]) -> tuple[list[BaseException], list[Any]]:
    """Wait for acquires by actors that hold these leases; each that fails or gets in releases all of its own."""
    failed, leases = [], []
    left = dict(waiting)
    while left:
        done, _ = wait(left, timeout=2 * PATIENCE_S, return_when="FIRST_COMPLETED")
        assert done, "they wait still"
        for future in done:
            actor, has = left.pop(future)
            error = future.exception()
            if error is None:
                lease = future.result()
                leases.append(lease)
                has = [*has, lease]
            else:
                failed.append(error)
            for lease in has:
                actor.ask(lease, "release")
    return failed, leases


@pytest.mark.parametrize("check", [None, 0.3])
def test_a_circle_of_two(locks: Any, others: Any, api: Api, unique_name: str, check: float | None) -> None:
    a, b = f"{unique_name}-a", f"{unique_name}-b"
    one, two = api.actor(), api.actor()
    (has_a,), (has_b,) = held(one, locks.lock(a)), held(two, others.lock(b))
    wants_b = one.tell(locks.lock(b, deadlock_check=check), "acquire", timeout=LONG_S)
    wants_a = two.tell(others.lock(a), "acquire", timeout=LONG_S, deadlock_check=check)
    if check is None:
        eventually(lambda: len(deadlocks_of(locks, unique_name)) == 1)
        (found,) = deadlocks_of(others, unique_name)
        by_name = {party.name: party for party in found.parties}
        assert set(by_name) == {a, b}
        assert (by_name[b].held_token, by_name[a].held_token) == (has_a.token, has_b.token)
        for party, other in ((by_name[a], b), (by_name[b], a)):
            assert (party.kind, party.held_kind, party.held_name, party.holds) == ("lock", "lock", other, True)
            assert (party.pid, party.where, party.timeout_left_s) == (os.getpid(), None, None)
            assert 0 <= party.waited_s < LONG_S
        has_a.release()
        second = wants_a.result(PATIENCE_S)
        assert deadlocks_of(locks, unique_name) == []
        for lease in (second, has_b):
            two.ask(lease, "release")
        one.ask(wants_b.result(PATIENCE_S), "release")
        return
    (error,), leases = ends({wants_b: (one, [has_a]), wants_a: (two, [has_b])})
    assert isinstance(error, DeadlockDetected) and len(leases) == 1
    first, second = error.deadlock.parties
    assert error.name == first.name == second.held_name and first.held_name == second.name
    assert {first.name, second.name} == {a, b}
    assert "steps.py" in first.where or "apis.py" in first.where or "thread.py" in first.where, first.where
    assert 0 < first.timeout_left_s <= LONG_S
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.deadlock) == (str(error), error.deadlock)
    assert repr(a) in str(error) and f"pid {os.getpid()}" in str(error)
    assert deadlocks_of(locks, unique_name) == []


def test_of_many_circles_one_party_each_gives_up(locks: Any, others: Any, api: Api, unique_name: str) -> None:
    waiting = {}
    for number in range(3):
        names = [f"{unique_name}-{number}-{each}" for each in "abc"]
        actors = [api.actor() for _ in names]
        has = [held(actor, locks.lock(name)) for actor, name in zip(actors, names, strict=True)]
        for at, actor in enumerate(actors):
            lock = (locks, others)[number % 2 and at % 2].lock(names[at - 1], deadlock_check=0.2)
            if number % 2 and at % 2:
                continue  # another client's wait is another party
            waiting[actor.tell(lock, "acquire", timeout=LONG_S)] = actor, has[at]
        if number % 2:
            actor = actors[1]
            waiting[actor.tell(locks.lock(names[0], deadlock_check=0.2), "acquire", timeout=LONG_S)] = actor, has[1]
    failed, leases = ends(waiting)
    assert [type(error) for error in failed] == [DeadlockDetected] * 3 and len(leases) == 6
    groups = sorted({party.name.rsplit("-", 1)[0] for party in error.deadlock.parties} for error in failed)  # type: ignore[attr-defined]
    assert len({min(group) for group in groups}) == 3 and all(len(group) == 1 for group in groups)


def test_only_who_asked_for_it_gives_up(locks: Any, others: Any, api: Api, unique_name: str) -> None:
    a, b = f"{unique_name}-a", f"{unique_name}-b"
    one, two = api.actor(), api.actor()
    (has_a,), (has_b,) = held(one, locks.lock(a)), held(two, others.lock(b))
    wants_b = one.tell(locks.lock(b), "acquire", timeout=LONG_S)
    eventually(lambda: locks.lock(b).waiters() == 1)
    with pytest.raises(DeadlockDetected):
        two.ask(others.lock(a), "acquire", deadlock_check=0.1)
    assert not wants_b.done()
    two.ask(has_b, "release")
    for lease in (wants_b.result(PATIENCE_S), has_a):
        one.ask(lease, "release")


def test_a_circle_through_the_end_of_a_long_queue(
    locks: Any, others: Any, raw: Any, api: Api, unique_name: str
) -> None:
    """Longer than what one look at a name shows."""
    a, b = f"{unique_name}-a", f"{unique_name}-b"
    one, two = api.actor(), api.actor()
    (has_a,), (has_b,) = held(one, locks.lock(a)), held(two, others.lock(b))
    raw.zadd(f"holdfast:{{{b}}}:queue", {f"{number:024x}:1:{number}": number + 1 for number in range(600)})
    wants_b = one.tell(locks.lock(b), "acquire", timeout=LONG_S)
    wants_a = two.tell(others.lock(a), "acquire", timeout=LONG_S, deadlock_check=0.3)
    failed, _ = ends({wants_b: (one, [has_a]), wants_a: (two, [has_b])})
    assert [*map(type, failed)] == [DeadlockDetected]


def test_a_chain_is_no_circle(locks: Any, others: Any, api: Api, unique_name: str) -> None:
    a, b = f"{unique_name}-a", f"{unique_name}-b"
    one, two, three = api.actor(), api.actor(), api.actor()
    (has_a,), (has_b,) = held(one, locks.lock(a)), held(two, others.lock(b))
    wants_a = two.tell(others.lock(a), "acquire", timeout=LONG_S, deadlock_check=0.1)
    with pytest.raises(AcquireTimeout):
        three.ask(locks.lock(b), "acquire", timeout=1, deadlock_check=0.1)
    assert deadlocks_of(locks, unique_name) == [] and not wants_a.done()
    has_a.release()
    for lease in (wants_a.result(PATIENCE_S), has_b):
        two.ask(lease, "release")


def test_readers_and_writers(locks: Any, others: Any, api: Api, unique_name: str) -> None:
    """A reader keeps a writer out, which stands before another reader, which holds what the first one wants."""
    shared, lock = f"{unique_name}-s", f"{unique_name}-l"
    reader, writer, late = api.actor(), api.actor(), api.actor()
    (reads,), (holds,) = held(reader, locks.rwlock(shared).read()), held(late, others.lock(lock))
    writes = writer.tell(locks.rwlock(shared).write(), "acquire", timeout=LONG_S)
    eventually(lambda: locks.rwlock(shared).waiters() == 1)
    wants_read = late.tell(others.rwlock(shared).read(), "acquire", timeout=LONG_S)
    eventually(lambda: locks.rwlock(shared).waiters() == 2)
    assert deadlocks_of(locks, unique_name) == []
    wants_lock = reader.tell(locks.lock(lock), "acquire", timeout=LONG_S)
    eventually(lambda: len(deadlocks_of(locks, unique_name)) == 1)
    (found,) = deadlocks_of(locks, unique_name)
    assert sorted((party.kind, party.name) for party in found.parties) == [
        ("lock", lock),
        ("rwlock", shared),
        ("rwlock", shared),
    ]
    assert [party.holds for party in found.parties].count(False) == 1
    holds.release()
    for lease in (wants_lock.result(PATIENCE_S), reads):
        reader.ask(lease, "release")
    writer.ask(writes.result(PATIENCE_S), "release")
    late.ask(wants_read.result(PATIENCE_S), "release")


def test_an_upgrade_waits_for_the_other_readers(locks: Any, others: Any, api: Api, unique_name: str) -> None:
    shared, lock = f"{unique_name}-s", f"{unique_name}-l"
    one, two = api.actor(), api.actor()
    (reads, has_lock), (other_reads,) = (
        held(one, locks.rwlock(shared, deadlock_check=0.2).read(), locks.lock(lock)),
        held(two, others.rwlock(shared).read()),
    )
    upgrades = one.tell(reads, "upgrade", timeout=LONG_S)
    eventually(lambda: locks.rwlock(shared).waiters() == 1)
    assert deadlocks_of(locks, unique_name) == []
    wants_lock = two.tell(others.lock(lock), "acquire", timeout=LONG_S, deadlock_check=0.2)
    failed, leases = ends({upgrades: (one, [has_lock, reads]), wants_lock: (two, [other_reads])})
    assert [type(error) for error in failed] == [DeadlockDetected] and len(leases) == 1


def test_a_semaphore_while_one_holder_can_go_on(locks: Any, others: Any, api: Api, unique_name: str) -> None:
    permits, lock = f"{unique_name}-s", f"{unique_name}-l"
    one, two, three = api.actor(), api.actor(), api.actor()
    (first,), (second,), (holds,) = (
        held(one, locks.semaphore(permits, 2)),
        held(two, others.semaphore(permits, 2)),
        held(three, locks.lock(lock)),
    )
    wants_permit = three.tell(locks.semaphore(permits, 2), "acquire", timeout=LONG_S, deadlock_check=0.2)
    wants_lock = one.tell(locks.lock(lock), "acquire", timeout=LONG_S)
    eventually(lambda: locks.lock(lock).waiters() == 1 and locks.semaphore(permits, 2).waiters() == 1)
    assert deadlocks_of(locks, unique_name) == [], "the second one may let go"
    assert not wants_permit.done()
    wants_it_too = two.tell(others.lock(lock), "acquire", timeout=LONG_S)
    with pytest.raises(DeadlockDetected, match="semaphore"):
        wants_permit.result(2 * PATIENCE_S)
    three.ask(holds, "release")
    for actor, wants, lease in ((one, wants_lock, first), (two, wants_it_too, second)):
        actor.ask(wants.result(PATIENCE_S), "release")
        actor.ask(lease, "release")


def test_a_party_that_waits_for_itself(locks: Any, api: Api, unique_name: str) -> None:
    actor = api.actor()
    (lease,) = held(actor, locks.semaphore(unique_name, 2), permits=2)
    with pytest.raises(DeadlockDetected) as caught:
        actor.ask(locks.semaphore(unique_name, 2), "acquire", timeout=LONG_S, deadlock_check=0.1)
    (party,) = caught.value.deadlock.parties
    assert (party.name, party.held_token) == (unique_name, lease.token)
    actor.ask(lease, "release")


def test_several_at_once(locks: Any, others: Any, api: Api, unique_name: str) -> None:
    names = [f"{unique_name}-{each}" for each in "abc"]
    one, two = api.actor(), api.actor()
    (has,), (holds,) = held(one, locks.multilock(*names[:2])), held(two, others.lock(names[2]))
    wants_c = one.tell(locks.lock(names[2], deadlock_check=0.2), "acquire", timeout=LONG_S)
    wants_a = two.tell(others.multilock(*names[:2]), "acquire", timeout=LONG_S, deadlock_check=0.2)
    failed, leases = ends({wants_c: (one, [has]), wants_a: (two, [holds])})
    assert [type(error) for error in failed] == [DeadlockDetected] and len(leases) == 1


def test_several_at_once_are_waited_for_with_looks(locks: Any, others: Any, api: Api, unique_name: str) -> None:
    a, b = f"{unique_name}-a", f"{unique_name}-b"
    one, two = api.actor(), api.actor()
    (has_a,), (has_b,) = held(one, locks.lock(a)), held(two, others.lock(b))
    wants_b = one.tell(locks.multilock(b, f"{b}-2", deadlock_check=0.2), "acquire", timeout=LONG_S)
    wants_a = two.tell(others.lock(a), "acquire", timeout=LONG_S)
    with pytest.raises(DeadlockDetected):
        wants_b.result(PATIENCE_S)
    one.ask(has_a, "release")
    for lease in (wants_a.result(PATIENCE_S), has_b):
        two.ask(lease, "release")


def waits(lock: Any, number: int) -> bool:
    return bool(lock.waiters() == number)


def handed_on(locks: Any, name: str, holder: Actor, others: list[Actor]) -> Any:
    """The lease of the holder, by the token of another one of its client."""
    for _ in range(20):  # one that has waited in the line for a second leaves it
        (before,) = held(others[0], locks.lock(name))
        waiting = []
        for number, actor in enumerate((*others[1:], holder), 1):
            waiting.append((actor, actor.tell(locks.lock(name), "acquire")))
            eventually(partial(waits, locks.lock(name), number))
        others[0].ask(before, "release")
        for actor, future in waiting:
            lease = future.result(PATIENCE_S)
            if actor is holder and lease.token == before.token:
                return lease
            before = lease
            actor.ask(lease, "release")
    pytest.fail("it was not handed on")


def test_who_holds_what_was_handed_on_is_seen_without_any_check(api: Api, url: str, unique_name: str) -> None:
    """A waiter notes within a second what it holds, if tokens do not say; it stands in a line for a second at most."""
    settings = DEFAULT._replace(tenure_ms=60_000.0)
    locks, others = (api.client(api.redis().Redis.from_url(url), _settings=settings) for _ in range(2))
    a, b = f"{unique_name}-a", f"{unique_name}-b"
    one, two, *more = (api.actor() for _ in range(5))
    has_a = handed_on(locks, a, one, more)
    (has_b,) = held(two, others.lock(b))
    wants_b = one.tell(locks.lock(b), "acquire", timeout=LONG_S)
    wants_a = two.tell(others.lock(a), "acquire", timeout=LONG_S)
    eventually(lambda: len(deadlocks_of(locks, unique_name)) == 1)
    (found,) = deadlocks_of(others, unique_name)
    assert {party.held_token for party in found.parties} == {has_a.token, has_b.token}
    assert {party.name: party.where is not None for party in found.parties} == {b: True, a: False}
    behind = [actor.tell(locks.lock(b), "acquire", timeout=LONG_S) for actor in more]
    eventually(lambda: others.lock(b).waiters() == 4)
    has_a.release()
    for lease in (wants_a.result(PATIENCE_S), has_b):
        two.ask(lease, "release")
    ends({wants_b: (one, []), **{future: (actor, []) for actor, future in zip(more, behind, strict=True)}})


@pytest.mark.parametrize("options", [{"tenure": 0.02}, {"cache_for": 1}])
def test_leases_that_a_client_hands_on(api: Api, url: str, unique_name: str, options: dict[str, float]) -> None:
    """Their tokens are those of the first holders: one that waits by `deadlock_check` says that it holds them now."""
    cached = {"cache_for": options.pop("cache_for", None)}
    locks, others = api.connect(url, **options), api.connect(url, **options)
    a, b = f"{unique_name}-a", f"{unique_name}-b"
    zero, one, two = api.actor(), api.actor(), api.actor()
    (before,) = held(zero, locks.lock(a, **cached))
    wants_a = one.tell(locks.lock(a, **cached), "acquire")
    zero.ask(before, "release")
    has_a, (has_b,) = wants_a.result(PATIENCE_S), held(two, others.lock(b, **cached))
    wants_b = one.tell(locks.lock(b, deadlock_check=0.2), "acquire", timeout=LONG_S)
    wants_a = two.tell(others.lock(a, deadlock_check=0.2), "acquire", timeout=LONG_S)
    failed, leases = ends({wants_b: (one, [has_a]), wants_a: (two, [has_b])})
    assert [type(error) for error in failed] == [DeadlockDetected] and len(leases) == 1


@pytest.mark.parametrize("options", [{"tenure": 0}, {"tenure": 0.02}])
def test_a_lease_that_is_passed_on_makes_no_circle_while_its_owner_does_not_wait(
    api: Api, url: str, unique_name: str, options: dict[str, float]
) -> None:
    """Another thread or task releases it, and waits for something else meanwhile."""
    locks, others = api.connect(url, **options), api.connect(url, **options)
    a, b, c = (f"{unique_name}-{each}" for each in "abc")
    one, two, user = api.actor(), api.actor(), api.actor()
    (has_a,), (has_b,) = held(one, locks.lock(a)), held(two, others.lock(b))
    (has_c,) = held(two, others.lock(c))
    wants_a = two.tell(others.lock(a, deadlock_check=0.1), "acquire", timeout=LONG_S)
    wants_b = user.tell(locks.lock(b, deadlock_check=0.1), "acquire", timeout=0.5)
    assert isinstance(wants_b.exception(PATIENCE_S), AcquireTimeout), "it looks several times, and sees no circle"
    assert deadlocks_of(locks, unique_name) == []
    user.ask(has_a, "release")
    got_a = wants_a.result(PATIENCE_S)
    wants_c = one.tell(locks.lock(c, deadlock_check=0.1), "acquire", timeout=0.5)
    assert isinstance(wants_c.exception(PATIENCE_S), AcquireTimeout), "nor is it in one that has nothing any more"
    for lease in (got_a, has_b, has_c):
        two.ask(lease, "release")


def test_what_may_not_be_asked_for(locks: Any, api: Api, url: str, unique_name: str) -> None:
    for bad in (0, 0.09, -1, "soon", True, float("nan")):
        with pytest.raises(ConfigurationError, match="deadlock_check"):
            locks.lock(unique_name, deadlock_check=bad)
        with pytest.raises(ConfigurationError, match="deadlock_check"):
            locks.lock(unique_name).acquire(deadlock_check=bad)
    with pytest.raises(ConfigurationError, match=r"deadlock_check.*without a namespace"):
        api.connect(url, namespace=None).semaphore(unique_name, 1, deadlock_check=1)
    assert inspect.signature(holdfast.Lock.acquire).parameters["deadlock_check"].default is None


def test_a_cancelled_look_leaves_nothing(locks: Any, others: Any, api: Api, raw: Any, unique_name: str) -> None:
    """A wait that ends in the middle of its looks; the next one looks as ever."""
    permits = locks.semaphore(unique_name, 2, deadlock_check=0.1)
    actor = api.actor()
    (lease,) = held(actor, permits, permits=2)
    for timeout in (0.11, 0.2, 0.3):
        with pytest.raises((AcquireTimeout, DeadlockDetected)):
            actor.ask(permits, "acquire", timeout=timeout)
    eventually(lambda: permits.waiters() == 0)
    eventually(lambda: not raw.exists("holdfast:{deadlock}:claim"))
    with pytest.raises(DeadlockDetected):
        actor.ask(permits, "acquire")
    actor.ask(lease, "release")
    notes = raw.keys("holdfast:waits:*")
    assert notes and all(raw.pttl(note) != -1 for note in notes), "each has a ttl, and may be gone"

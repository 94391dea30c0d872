"""What the semaphore promises, whichever API and server."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

import holdfast
from testbed.waiting import eventually
from tests.support.apis import Api
from tests.support.spinning import overtakers


def key(name: str, part: str = "") -> str:
    return f"holdfast:{{{name}}}:sem{part}"


def leftovers(raw: Any, name: str) -> set[str]:
    """Return what is left on the server, but for what is meant to stay for a while."""
    kept = {key(name), key(name, ":fence"), key(name, ":gone")}
    return set(raw.scan_iter(f"holdfast:{{{name}}}*")) - kept


def test_so_many_permits_and_no_more(locks: Any, others: Any, raw: Any, unique_name: str) -> None:
    mine, theirs = locks.semaphore(unique_name, 3), others.semaphore(unique_name, permits=3)
    assert mine.available() == 3
    leases = [mine.acquire(), theirs.acquire(), mine.acquire()]
    assert mine.available() == 0 and mine.permits() == 3
    assert theirs.try_acquire() is None
    leases.pop(1).release()
    leases.append(theirs.try_acquire())
    assert None not in leases
    tokens = [lease.fencing_token for lease in leases]
    assert tokens == sorted(set(tokens))
    for lease in leases:
        lease.release()
    assert mine.available() == 3
    assert leftovers(raw, unique_name) == set()


def test_several_permits_under_one_lease(locks: Any, others: Any, unique_name: str) -> None:
    mine, theirs = locks.semaphore(unique_name, 3), others.semaphore(unique_name, 3)
    two = mine.acquire(permits=2)
    assert theirs.try_acquire(permits=2) is None
    one = theirs.try_acquire()
    assert mine.available() == 0
    two.release()
    assert mine.available() == 2
    one.release()


def test_a_large_request_is_not_passed_by_small_ones(
    locks: Any, others: Any, api: Api, raw: Any, unique_name: str
) -> None:
    mine, theirs = locks.semaphore(unique_name, 3), others.semaphore(unique_name, 3)
    first, second = mine.acquire(), mine.acquire()
    large = api.start(theirs.acquire, permits=3)
    eventually(lambda: mine.waiters() == 1)
    assert mine.try_acquire() is None, "one is free, and the large request comes first"
    small = api.start(mine.acquire)
    eventually(lambda: mine.waiters() == 2)
    first.release()
    assert mine.waiters() == 2
    second.release()
    all_of_them = large.result()
    assert not small.done() and mine.waiters() == 1
    all_of_them.release()
    small.result().release()
    assert leftovers(raw, unique_name) == set()


def test_released_permits_go_to_as_many_as_they_suffice_for(locks: Any, api: Api, url: str, unique_name: str) -> None:
    mine = locks.semaphore(unique_name, 4)
    lease = mine.acquire(permits=4)
    order: list[int] = []
    leases: list[Any] = []

    def take(number: int, permits: int) -> None:
        leases.append(api.connect(url).semaphore(unique_name, 4).acquire(permits=permits))
        order.append(number)

    waiting = []
    for number, permits in enumerate((1, 2, 1, 3, 1)):
        waiting.append(api.start(take, number, permits))
        eventually(lambda: mine.waiters() == len(waiting))
    lease.release()
    eventually(lambda: len(leases) == 3)
    assert sorted(order) == [0, 1, 2]
    assert mine.waiters() == 2 and mine.available() == 0
    while len(order) < 5:
        leases.pop().release()
        eventually(lambda: leases or len(order) == 5)
    for each in waiting:
        each.result()
    for lease in leases:
        lease.release()


def test_one_request_for_all_among_spinning_ones(locks: Any, others: Any, api: Api, raw: Any, unique_name: str) -> None:
    """Twenty that get in between would be a generation of small requests."""
    spin, theirs = locks.semaphore(unique_name, 5).acquire, others.semaphore(unique_name, 5)
    queue, wanted = key(unique_name, ":queue"), partial(theirs.acquire, permits=5)
    assert overtakers(api, raw, spin, theirs.acquire, wanted, queue=queue, mark=":5.", threads=20, turns=100) <= 2 * 20


def test_a_crashed_holders_permits_come_back(locks: Any, others: Any, raw: Any, unique_name: str) -> None:
    crashed = locks.semaphore(unique_name, 2, ttl=1, renew=False).acquire(permits=2)
    until_ms = raw.zscore(key(unique_name, ":holders"), crashed.token)
    lease = others.semaphore(unique_name, 2).acquire(timeout=60)
    assert lease.fencing_token / 1000 >= until_ms, "not before its time was over"
    with pytest.raises(holdfast.LeaseLost):
        crashed.release()
    lease.ensure_held()
    assert others.semaphore(unique_name).available() == 1
    lease.release()


def test_permits_are_renewed(locks: Any, others: Any, raw: Any, unique_name: str) -> None:
    lease = locks.semaphore(unique_name, 1, ttl=3).acquire()
    first = raw.zscore(key(unique_name, ":holders"), lease.token)
    eventually(lambda: raw.zscore(key(unique_name, ":holders"), lease.token) > first)
    lease.ensure_held()
    assert others.semaphore(unique_name, 1).try_acquire() is None
    lease.release()


def test_taken_permits_are_found_out(locks: Any, raw: Any, unique_name: str) -> None:
    lease = locks.semaphore(unique_name, 1, ttl=2).acquire()
    raw.delete(key(unique_name, ":holders"))
    assert lease.lost.wait(30)
    assert not raw.exists(key(unique_name, ":holders")), "a lost lease is never made again"


def test_different_permits_are_an_error(locks: Any, others: Any, unique_name: str) -> None:
    lease = locks.semaphore(unique_name, 3).acquire()
    with pytest.raises(holdfast.DeclarationMismatch, match="resize") as caught:
        others.semaphore(unique_name, 4).acquire()
    assert (caught.value.declared, caught.value.stored) == (4, 3)
    with pytest.raises(holdfast.DeclarationMismatch):
        others.semaphore(unique_name, 2).try_acquire()
    whatever = others.semaphore(unique_name).acquire()
    whatever.release()
    lease.release()


def test_without_permits_somebody_must_have_said(locks: Any, unique_name: str) -> None:
    with pytest.raises(holdfast.DeclarationMismatch, match="does not exist yet"):
        locks.semaphore(unique_name).acquire()


def test_more_than_there_are(locks: Any, unique_name: str) -> None:
    with pytest.raises(holdfast.TooManyPermits) as caught:
        locks.semaphore(unique_name, 3).acquire(permits=4)
    assert (caught.value.asked, caught.value.limit) == (4, 3)


def test_resize_lets_waiters_in(locks: Any, others: Any, api: Api, unique_name: str) -> None:
    mine = locks.semaphore(unique_name, 1)
    lease = mine.acquire()
    waiting = api.start(others.semaphore(unique_name, 1).acquire)
    eventually(lambda: mine.waiters() == 1)
    assert mine.resize(2) == 1
    second = waiting.result()
    assert mine.permits() == 2
    old, new = others.semaphore(unique_name, 1), others.semaphore(unique_name, 2)
    assert old.try_acquire() is None and new.try_acquire() is None
    with pytest.raises(holdfast.DeclarationMismatch):
        others.semaphore(unique_name, 3).try_acquire()
    lease.release()
    second.release()
    both = old.try_acquire(permits=2)
    assert both is not None
    both.release()


def test_resize_below_what_is_held(locks: Any, others: Any, api: Api, unique_name: str) -> None:
    mine = locks.semaphore(unique_name, 3)
    one, two = mine.acquire(), mine.acquire(permits=2)
    too_large = api.start(others.semaphore(unique_name, 3).acquire, permits=2)
    eventually(lambda: mine.waiters() == 1)
    small = api.start(others.semaphore(unique_name, 3).acquire)
    eventually(lambda: mine.waiters() == 2)
    mine.resize(1)
    with pytest.raises(holdfast.TooManyPermits):
        too_large.result()
    one.ensure_held()
    two.ensure_held()
    two.release()
    assert mine.waiters() == 1, "one is held and there is one"
    one.release()
    small.result().release()


def test_every_key_has_a_ttl(locks: Any, others: Any, raw: Any, api: Api, unique_name: str) -> None:
    lease = locks.semaphore(unique_name, 1).acquire()
    waiting = api.start(others.semaphore(unique_name, 1).acquire)
    eventually(lambda: locks.semaphore(unique_name, 1).waiters() == 1)
    keys = sorted(raw.scan_iter(f"holdfast:{{{unique_name}}}*"))
    assert keys == [key(unique_name, part) for part in ("", ":fence", ":holders", ":queue")]
    assert all(raw.pttl(each) > 0 for each in keys)
    lease.release()
    waiting.result().release()


def test_a_waiter_that_leaves_lets_the_next_in(locks: Any, others: Any, api: Api, raw: Any, unique_name: str) -> None:
    mine = locks.semaphore(unique_name, 2)
    lease = mine.acquire()
    large = api.start(others.semaphore(unique_name, 2).acquire, permits=2, timeout=1)
    eventually(lambda: raw.zcard(key(unique_name, ":queue")) == 1)
    small = api.start(mine.acquire)
    with pytest.raises(holdfast.AcquireTimeout):
        large.result()
    small.result().release()
    lease.release()
    eventually(lambda: leftovers(raw, unique_name) == set())


def test_a_dead_waiter_costs_nothing(locks: Any, others: Any, raw: Any, api: Api, unique_name: str) -> None:
    lease = locks.semaphore(unique_name, 1).acquire()
    waiting = api.start(others.semaphore(unique_name, 1).acquire)
    eventually(lambda: raw.zcard(key(unique_name, ":queue")) == 1)
    raw.zadd(key(unique_name, ":queue"), {"0" * 24 + ":1.1:1": 1})
    lease.release()
    waiting.result().release()


def test_one_owner_may_hold_many(locks: Any, api: Api, unique_name: str) -> None:
    actor, semaphore = api.actor(), locks.semaphore(unique_name, 2)
    leases = [actor.ask(semaphore, "acquire") for _ in range(2)]
    assert actor.ask(semaphore, "try_acquire") is None
    for lease in leases:
        lease.release()


def test_not_related_to_the_lock_of_that_name(locks: Any, unique_name: str) -> None:
    with locks.lock(unique_name), locks.semaphore(unique_name, 1):
        pass


@pytest.mark.parametrize("permits", [0, -1, 10_001, 1.5, True, "3"])
def test_bad_numbers_are_refused(locks: Any, unique_name: str, permits: Any) -> None:
    with pytest.raises(holdfast.ConfigurationError, match="permits"):
        locks.semaphore(unique_name, permits)
    semaphore = locks.semaphore(unique_name, 3)
    with pytest.raises(holdfast.ConfigurationError, match="permits"):
        semaphore.acquire(permits=permits)
    with pytest.raises(holdfast.ConfigurationError, match="permits"):
        semaphore.resize(permits)

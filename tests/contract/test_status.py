"""What `status()` says, and that it says it in one request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

import holdfast
from testbed.waiting import eventually
from tests.support.apis import Api


@pytest.fixture
def commands_of(raw: Any) -> Callable[[Callable[[], Any]], Counter[str]]:
    """Which commands an action makes the server run, those inside of scripts included."""

    def count() -> Counter[str]:
        stats = raw.info("commandstats")
        return Counter({name.removeprefix("cmdstat_"): int(each["calls"]) for name, each in stats.items()})

    def of(action: Callable[[], Any]) -> Counter[str]:
        action()  # the script is loaded
        before = count()
        action()
        return count() - before

    return of


def test_each_is_one_request(
    locks: Any, commands_of: Callable[[Callable[[], Any]], Counter[str]], unique_name: str
) -> None:
    lock = locks.lock(unique_name)
    lease = lock.acquire()
    for thing in (lock, locks.rwlock(f"{unique_name}-rw"), locks.semaphore(f"{unique_name}-s", 3)):
        commands = commands_of(thing.status)
        assert commands["evalsha"] + commands["eval"] == 1
        assert commands["getrange"] <= 1, "inside of the script"
    assert commands_of(lock.holder)["getrange"] == 2, "that of a description is counted"
    lease.release()


def test_a_lock_that_is_waited_for(locks: Any, others: Any, api: Api, unique_name: str) -> None:
    lease = locks.lock(unique_name).acquire()
    waiting = api.start(others.lock(unique_name).acquire)
    eventually(lambda: locks.lock(unique_name).status().waiters == 1)
    lease.release()
    second = waiting.result(60)
    assert locks.lock(unique_name).status().fencing_token == second.fencing_token > lease.fencing_token
    second.release()


def test_a_foreign_holder(locks: Any, raw: Any, unique_name: str) -> None:
    raw.set(f"holdfast:{{{unique_name}}}", "someone", px=30_000)
    status = locks.lock(unique_name).status()
    assert (status.holder.token, status.holder.ours, status.since) == ("someone", False, None)
    assert 0 < status.remaining_s <= 30


def test_a_shared_lock(locks: Any, others: Any, unique_name: str) -> None:
    rw = locks.rwlock(unique_name)
    assert rw.status() == holdfast.RWLockStatus(unique_name, None, 0, 0, 0)
    readers = [rw.read().acquire(), others.rwlock(unique_name).read().acquire()]
    status = rw.status()
    assert (status.writer, status.readers, status.waiters) == (None, 2, 0)
    assert status.fencing_token == max(lease.fencing_token for lease in readers)
    for lease in readers:
        lease.release()
    writer = rw.write().acquire()
    status = rw.status()
    assert (status.writer.token, status.readers, status.fencing_token) == (writer.token, 0, writer.fencing_token)
    writer.release()


def test_a_semaphore(locks: Any, others: Any, unique_name: str) -> None:
    semaphore = locks.semaphore(unique_name, 3)
    assert semaphore.status() == holdfast.SemaphoreStatus(unique_name, 3, 0, 0, 0, 0)
    leases = [semaphore.acquire(permits=2), others.semaphore(unique_name, 3).acquire()]
    status = semaphore.status()
    assert (status.permits, status.used, status.holders, status.available, status.waiters) == (3, 3, 2, 0, 0)
    assert status.fencing_token == max(lease.fencing_token for lease in leases)
    for lease in leases:
        lease.release()
    assert semaphore.status().available == 3

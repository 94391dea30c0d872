"""What `status()` says, and that it says it in one request, once it is known who the holder's client is."""

from __future__ import annotations

import os
import socket
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
    eventually(lambda: lock.status().holder.host, "it has said who it is")
    for thing in (lock, locks.rwlock(f"{unique_name}-rw"), locks.semaphore(f"{unique_name}-s", 3)):
        # What the background sends beside one of them is beside no other one.
        commands = min((commands_of(thing.status) for _ in range(3)), key=Counter.total)
        assert commands["evalsha"] + commands["eval"] == 1
        assert commands["getrange"] <= 1, "inside of the script"
    assert min(commands_of(lock.holder)["getrange"] for _ in range(3)) == 1, "its description is known by then"
    lease.release()


def test_the_holder_is_named(locks: Any, others: Any, unique_name: str) -> None:
    """By its host, pid and program, as everywhere; also if it was seen before it had said who it is."""
    lease = locks.lock(unique_name).acquire()
    writer = locks.rwlock(f"{unique_name}-rw").write().acquire()
    eventually(lambda: others.lock(unique_name).status().holder.host)
    me = socket.gethostname(), os.getpid()
    for holder in (
        others.lock(unique_name).status().holder,
        others.rwlock(f"{unique_name}-rw").status().writer,
        others.lock(f"{unique_name}-rw").holder(),
    ):
        assert (holder.host, holder.pid) == me and holder.program and holder.remaining_s > 0
    lease.release()
    writer.release()


def the_one_listed(api: Api, locks: Any, name: str) -> Any:
    found = locks.list(name)

    async def collect() -> list[Any]:
        return [each async for each in found]

    (one,) = found if api.name == "threads" else api.call(collect)  # type: ignore[attr-defined]
    return one


def test_a_client_that_has_not_said_yet_who_it_is(
    api: Api, locks: Any, others: Any, raw: Any, unique_name: str
) -> None:
    """All that name a holder ask again for the client's description."""
    lease = locks.lock(unique_name).acquire()
    key = f"holdfast:client:{lease.token.partition(':')[0]}"
    eventually(lambda: raw.exists(key))
    said = raw.getdel(key)
    assert the_one_listed(api, others, unique_name).holder.host is None
    assert others.lock(unique_name).status().holder.host is None
    raw.set(key, said, px=60_000)
    assert the_one_listed(api, others, unique_name).holder.pid == os.getpid()
    assert others.lock(unique_name).status().holder.pid == os.getpid()
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

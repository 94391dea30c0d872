"""`on_wait`: a waiter is told who holds the lock, and its own place."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Any

import pytest

import holdfast
import holdfast.asyncio
from holdfast.errors import AcquireTimeout, ConfigurationError
from testbed.waiting import PATIENCE_S, eventually
from tests.support.apis import Api

TTL_S = 600.0


class Enough(Exception):
    """Raised by what is told."""


def waits_for(locks: Any, what: str, name: str) -> Any:
    """(what acquires it, what that takes)."""
    if what == "election":
        return locks.election(name, ttl=TTL_S).campaign
    if what == "semaphore":
        return locks.semaphore(name, 1, ttl=TTL_S).acquire
    if what in ("read", "write"):
        return getattr(locks.rwlock(name, ttl=TTL_S), what)().acquire
    if what == "multilock":
        return locks.multilock(name, f"{name}-more", ttl=TTL_S).acquire
    return locks.lock(name, ttl=TTL_S).acquire


@pytest.mark.parametrize("what", ["lock", "read", "write", "semaphore", "election", "multilock"])
def test_who_waits_is_told_for_whom(locks: Any, others: Any, api: Api, what: str, unique_name: str) -> None:
    lease = waits_for(locks, "write" if what == "read" else what, unique_name)()
    told: list[holdfast.Waiting] = []
    waiting = api.start(waits_for(others, what, unique_name), timeout=PATIENCE_S, on_wait=told.append)
    eventually(lambda: len(told) > 1 and told[-1].holder is not None and told[-1].holder.pid is not None)
    first, last = told[0], told[-1]
    assert last.waited_s > first.waited_s
    assert first.place == last.place == 1
    assert last.holder is not None
    assert (last.holder.token, last.holder.pid) == (lease.token, os.getpid())
    assert f"held by {last.holder.host}, pid {os.getpid()}" in str(last)
    lease.release()
    got = waiting.result()
    assert got.held and got.fencing_token > lease.fencing_token
    got.release()


def test_the_place_is_told_as_it_changes(locks: Any, others: Any, api: Api, unique_name: str) -> None:
    lease = locks.lock(unique_name, ttl=TTL_S).acquire()
    first = api.start(others.lock(unique_name, ttl=TTL_S).acquire, PATIENCE_S)
    eventually(lambda: locks.lock(unique_name).waiters() == 1)
    places: list[int | None] = []

    def told(waiting: holdfast.Waiting) -> None:
        places.append(waiting.place)

    second = api.start(others.lock(unique_name, ttl=TTL_S).acquire, PATIENCE_S, on_wait=told)
    eventually(lambda: places[-1:] == [2])
    lease.release()
    following = first.result()
    eventually(lambda: places[-1:] == [1])
    following.release()
    second.result().release()


def test_a_lock_that_is_free_is_not_waited_for(locks: Any, unique_name: str) -> None:
    told: list[Any] = []
    lock = locks.lock(unique_name, ttl=TTL_S)
    lock.acquire(on_wait=told.append).release()
    with pytest.raises(ConfigurationError, match="on_wait"):
        lock.acquire(on_wait="print")
    assert told == []


def test_what_it_raises_ends_the_acquire_and_leaves_nothing(
    locks: Any, others: Any, api: Api, unique_name: str
) -> None:
    lease = locks.lock(unique_name, ttl=TTL_S).acquire()

    def told(waiting: holdfast.Waiting) -> None:
        raise Enough

    with pytest.raises(Enough):
        others.lock(unique_name, ttl=TTL_S).acquire(on_wait=told)
    eventually(lambda: locks.lock(unique_name).waiters() == 0)
    lease.release()
    assert not locks.lock(unique_name).locked()
    others.lock(unique_name, ttl=TTL_S).acquire(PATIENCE_S).release()


def test_the_time_for_waiting_goes_on(locks: Any, others: Any, unique_name: str) -> None:
    lease = locks.lock(unique_name, ttl=TTL_S).acquire()
    told: list[Any] = []
    with pytest.raises(AcquireTimeout) as caught:
        others.lock(unique_name).acquire(timeout=1.3, on_wait=told.append)
    assert caught.value.holder is not None and caught.value.holder.token == lease.token
    assert told and caught.value.waited_s >= 1.3
    lease.release()


def test_a_grant_that_comes_meanwhile_is_taken(locks: Any, others: Any, api: Api, unique_name: str) -> None:
    lease = locks.lock(unique_name, ttl=TTL_S).acquire()
    called, go_on = threading.Event(), threading.Event()

    def told(waiting: holdfast.Waiting) -> None:
        called.set()
        go_on.wait(PATIENCE_S)

    async def told_in_a_loop(waiting: holdfast.Waiting) -> None:
        called.set()
        while not go_on.is_set():
            await asyncio.sleep(0.01)

    on_wait = told if api.name == "threads" else told_in_a_loop
    waiting = api.start(others.lock(unique_name, ttl=TTL_S).acquire, PATIENCE_S, on_wait=on_wait)
    assert called.wait(PATIENCE_S)
    lease.release()
    go_on.set()
    waiting.result().release()


def test_a_coroutine_function_is_awaited(server: Any, unique_name: str) -> None:
    async def main() -> None:
        async with holdfast.asyncio.connect(server.url) as locks, holdfast.asyncio.connect(server.url) as others:
            lease = await locks.lock(unique_name, ttl=TTL_S).acquire()
            told = asyncio.Event()

            async def tell(waiting: holdfast.Waiting) -> None:
                await asyncio.sleep(0)
                told.set()

            waiting = asyncio.create_task(others.lock(unique_name, ttl=TTL_S).acquire(on_wait=tell))
            await asyncio.wait_for(told.wait(), PATIENCE_S)
            await lease.release()
            await (await waiting).release()

            async def refuse(waiting: holdfast.Waiting) -> None:
                raise Enough

            lease = await locks.lock(unique_name, ttl=TTL_S).acquire()
            with pytest.raises(Enough):
                await others.lock(unique_name, ttl=TTL_S).acquire(on_wait=refuse)
            await lease.release()
            await (await others.lock(unique_name, ttl=TTL_S).acquire(PATIENCE_S)).release()

    asyncio.run(main())


def test_threads_take_no_coroutine_function(server: Any, unique_name: str) -> None:
    async def tell(waiting: holdfast.Waiting) -> None:
        pass

    with holdfast.connect(server.url) as locks, holdfast.connect(server.url) as others:
        lease = locks.lock(unique_name, ttl=TTL_S).acquire()
        with pytest.raises(ConfigurationError, match="on_wait"):
            others.lock(unique_name, ttl=TTL_S).acquire(on_wait=tell)
        lease.release()
        eventually(lambda: not locks.lock(unique_name).locked())

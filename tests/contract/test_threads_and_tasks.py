"""One client for threads and for tasks: they share its connection, and hand locks on to each other."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import pytest
import redis
import trio

import holdfast
from holdfast import embedded
from holdfast._engine.link import Link
from testbed.servers import unique
from testbed.waiting import PATIENCE_S, eventually

ROUNDS = 200
#: So long that no wait ends by itself before it is seen.
LONG_S = 4 * PATIENCE_S


@pytest.fixture
def both(valkey_server: embedded.Server) -> Iterator[holdfast.Client]:
    with holdfast.connect(valkey_server.url) as locks:
        yield locks


@pytest.fixture
def others(valkey_server: embedded.Server) -> Iterator[holdfast.Client]:
    with holdfast.connect(valkey_server.url) as locks:
        yield locks


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


class Room:
    """A room under one lock: one is inside at a time, with a greater fencing token each."""

    def __init__(self) -> None:
        self.inside: list[str] = []
        self.entered: list[tuple[str, str, int]] = []

    def enter(self, who: str, lease: Any) -> None:
        self.inside.append(who)
        assert len(self.inside) == 1
        self.entered.append((lease.token, who, lease.fencing_token))

    def leave(self) -> None:
        self.inside.pop()

    def thread(self, locks: holdfast.Client, name: str, rounds: int = ROUNDS) -> None:
        for _ in range(rounds):
            with locks.lock(name) as lease:
                self.enter("thread", lease)
                self.leave()

    async def task(
        self, locks: holdfast.Client, name: str, pause: Callable[[float], Awaitable[None]], rounds: int = ROUNDS
    ) -> None:
        for _ in range(rounds):
            async with locks.tasks.lock(name) as lease:
                self.enter("task", lease)
                await pause(0)
                self.leave()


def connections(raw: redis.Redis, name: str) -> int:
    """Return the number of connections of that name."""
    found: Any = raw.client_list()
    return sum(each["name"] == name for each in found)


def test_they_take_turns_on_one_connection(
    server: embedded.Server, raw: redis.Redis, pool: ThreadPoolExecutor, unique_name: str
) -> None:
    """The lock goes from a thread to a task, and back, under one token of the server."""
    called, room = unique("client").replace("-", ""), Room()
    both_ways = {("thread", "task"), ("task", "thread")}
    until = time.monotonic() + PATIENCE_S

    def turns() -> set[tuple[str, str]]:
        entered = room.entered[:]
        return {(who, then) for (token, who, _), (same, then, _) in pairwise(entered) if token == same}

    def goes_on() -> bool:
        return not both_ways <= turns() and time.monotonic() < until

    with holdfast.connect(f"{server.url}?client_name={called}") as locks:

        async def task() -> None:
            while goes_on():
                await room.task(locks, unique_name, asyncio.sleep)

        def thread() -> None:
            while goes_on():
                room.thread(locks, unique_name)

        async def main() -> None:
            await asyncio.gather(task(), task())

        threads = [pool.submit(thread) for _ in range(2)]
        asyncio.run(main())
        for each in threads:
            each.result(PATIENCE_S)
        assert connections(raw, called) == 1
    fences = [fence for _, _, fence in room.entered]
    assert fences == sorted(set(fences))
    assert both_ways <= turns()


def test_threads_two_event_loops_and_trio_at_once(
    valkey_server: embedded.Server, look: redis.Redis, pool: ThreadPoolExecutor, unique_name: str
) -> None:
    called, room, rounds = unique("client").replace("-", ""), Room(), 30
    with holdfast.connect(f"{valkey_server.url}?client_name={called}") as locks:

        async def on_asyncio() -> None:
            await asyncio.gather(*(room.task(locks, unique_name, asyncio.sleep, rounds) for _ in range(3)))

        async def on_trio() -> None:
            async with trio.open_nursery() as nursery:
                for _ in range(3):
                    nursery.start_soon(room.task, locks, unique_name, trio.sleep, rounds)

        running = [
            *(pool.submit(room.thread, locks, unique_name, rounds) for _ in range(3)),
            *(pool.submit(lambda: asyncio.run(on_asyncio())) for _ in range(2)),
            pool.submit(trio.run, on_trio),
        ]
        for each in running:
            each.result(2 * PATIENCE_S)
        assert connections(look, called) == 1
        status = locks.lock(unique_name).status()
        assert not status.held and status.waiters == 0
    assert len(room.entered) == 12 * rounds


def test_a_loop_sleeps_while_threads_ask(
    both: holdfast.Client, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch, unique_name: str
) -> None:
    """Else each reply to a thread would wake it, again and again, since it reads the connection for its own tasks."""
    reads: list[None] = []
    read_here = Link.read_here
    monkeypatch.setattr(Link, "read_here", lambda link: (reads.append(None), read_here(link))[1])  # type: ignore[func-returns-value]
    lock = both.lock(f"{unique_name}-thread")

    def work() -> None:
        for _ in range(ROUNDS):
            lock.acquire().release()

    async def main() -> None:
        for _ in range(3):
            for _ in range(3):  # the first one has the loop watch
                await (await both.tasks.lock(unique_name).acquire()).release()
            reads.clear()
            await (await both.tasks.lock(unique_name).acquire()).release()
            assert reads, "it reads for its own tasks"
            reads.clear()
            await asyncio.wrap_future(pool.submit(work))
            assert len(reads) < 20

    asyncio.run(main())


def test_it_is_the_same_client_each_time(both: holdfast.Client, unique_name: str) -> None:
    assert both.tasks is both.tasks
    assert (repr(both), both.namespace) == (repr(both.tasks), both.tasks.namespace)

    async def main(lease: Any) -> None:
        assert both.tasks.held() == (), "a thread holds it"
        holder = await both.tasks.lock(unique_name).holder()
        assert holder is not None and holder.token == lease.token

    with both.lock(unique_name) as lease:
        asyncio.run(main(lease))
        assert both.held() == (lease,)


def test_a_reentrant_lock_is_entered_again_by_its_owner_alone(both: holdfast.Client, unique_name: str) -> None:
    """A task that runs in the thread of the holder is another owner."""
    lock, in_tasks = both.lock(unique_name, reentrant=True), both.tasks.lock(unique_name, reentrant=True)

    async def wait_in_vain() -> None:
        with pytest.raises(holdfast.AcquireTimeout):
            await in_tasks.acquire(timeout=0.05)

    async def hold() -> None:
        async with in_tasks, in_tasks:
            with pytest.raises(holdfast.AcquireTimeout):
                await asyncio.to_thread(lock.acquire, 0.05)

    with lock, lock:
        asyncio.run(wait_in_vain())
    asyncio.run(hold())
    assert not lock.locked()


def test_what_a_thread_has_kept_is_taken_by_a_task(both: holdfast.Client, unique_name: str) -> None:
    lock = both.lock(unique_name, cache_for=10)
    eventually(lambda: _released(lock).endswith("*+"), "the inbox is open, so that it can be kept")
    token = _released(lock)

    async def main() -> None:
        async with both.tasks.lock(unique_name, cache_for=10) as lease:
            assert lease.token == token

    asyncio.run(main())
    assert _released(lock) == token


def _released(lock: holdfast.Lock) -> str:
    with lock as lease:
        return lease.token


def test_one_loses_its_lease_and_the_other_does_not(
    both: holdfast.Client, others: holdfast.Client, unique_name: str
) -> None:
    of_thread, of_task, told = f"{unique_name}-thread", f"{unique_name}-task", threading.Event()

    async def main() -> None:
        with pytest.raises(holdfast.LeaseLost, match="stuck"):
            async with both.tasks.lock(of_task):
                assert await asyncio.to_thread(others.break_, of_task, reason="stuck")
                await asyncio.sleep(PATIENCE_S)
        lease.ensure_held()
        async with both.tasks.lock(of_task) as another:
            assert await asyncio.to_thread(others.break_, of_thread, reason="stuck")
            assert await asyncio.to_thread(told.wait, PATIENCE_S)
            another.ensure_held()

    lease = both.lock(of_thread).acquire()
    lease.on_lost(lambda _: told.set())
    asyncio.run(main())
    assert lease.state is holdfast.LeaseState.LOST


class Ends:
    """A thread and a task hold, and one of each waits, until the client is closed."""

    def __init__(self, locks: holdfast.Client, name: str) -> None:
        self.locks = locks
        self.name = name
        self.closed = threading.Event()
        self.inside = [threading.Event(), threading.Event()]

    def thread_holds(self) -> None:
        with pytest.raises(holdfast.LeaseLost, match="closed"), self.locks.lock(f"{self.name}-1"):
            self.inside[0].set()
            assert self.closed.wait(PATIENCE_S)

    async def task_holds(self) -> None:
        with pytest.raises(holdfast.LeaseLost, match="closed"):
            async with self.locks.tasks.lock(f"{self.name}-2"):
                self.inside[1].set()
                await asyncio.sleep(PATIENCE_S)

    def thread_waits(self) -> None:
        with pytest.raises(holdfast.ClientClosed):
            self.locks.lock(f"{self.name}-2").acquire()

    async def task_waits(self) -> None:
        with pytest.raises(holdfast.ClientClosed):
            await self.locks.tasks.lock(f"{self.name}-1").acquire()

    async def both_tasks(self) -> None:
        await asyncio.gather(self.task_holds(), self.task_waits())

    def begin(self, pool: ThreadPoolExecutor) -> list[Any]:
        running = [pool.submit(self.thread_holds), pool.submit(lambda: asyncio.run(self.both_tasks()))]
        names = f"{self.name}-1", f"{self.name}-2"
        assert all(each.wait(PATIENCE_S) for each in self.inside)
        running.append(pool.submit(self.thread_waits))
        eventually(lambda: all(self.locks.lock(name).waiters() == 1 for name in names))
        return running


@pytest.mark.parametrize("by", ["a thread", "a task", "the end of a block of tasks"])
def test_whichever_is_closed_both_end(
    valkey_server: embedded.Server, others: holdfast.Client, pool: ThreadPoolExecutor, unique_name: str, by: str
) -> None:
    locks = holdfast.connect(valkey_server.url)
    tasks, ends = locks.tasks, Ends(locks, unique_name)
    running = ends.begin(pool)

    async def close() -> None:
        if by == "a task":
            await tasks.close()
        else:
            async with tasks:
                pass

    if by == "a thread":
        locks.close()
    else:
        asyncio.run(close())
    for number in (1, 2):
        others.lock(f"{unique_name}-{number}").acquire(timeout=PATIENCE_S).release()
    ends.closed.set()
    for each in running:
        each.result(PATIENCE_S)

    async def acquire() -> None:
        with pytest.raises(holdfast.ClientClosed):
            await tasks.lock(unique_name).acquire()

    asyncio.run(acquire())
    with pytest.raises(holdfast.ClientClosed):
        locks.lock(unique_name).acquire()
    locks.close()
    asyncio.run(tasks.close())


def test_tasks_end_whose_client_is_closed_before_their_loop_has_sent(both: holdfast.Client, unique_name: str) -> None:
    """Requests of one turn of the loop are sent at its end; the client is closed before that."""

    async def main() -> list[Any]:
        async with both.tasks.lock(unique_name):
            pass
        asking = [asyncio.create_task(both.tasks.lock(f"{unique_name}-{number}").acquire()) for number in range(3)]
        asyncio.get_running_loop().call_soon(both.close)
        done, left = await asyncio.wait(asking, timeout=PATIENCE_S)
        for task in left:
            task.cancel()
        return [type(task.exception()) for task in asking if task in done]

    assert asyncio.run(main()) == [holdfast.ClientClosed] * 3


def test_tasks_of_a_closed_client(valkey_server: embedded.Server, unique_name: str) -> None:
    locks = holdfast.connect(valkey_server.url)
    locks.close()

    async def main() -> None:
        with pytest.raises(holdfast.ClientClosed):
            await locks.tasks.lock(unique_name).acquire()
        await locks.tasks.close()

    asyncio.run(main())


def test_a_deadlock_between_a_thread_and_a_task_is_ended(
    both: holdfast.Client, pool: ThreadPoolExecutor, unique_name: str
) -> None:
    a, b = f"{unique_name}-a", f"{unique_name}-b"
    held = threading.Barrier(2)

    def thread() -> None:
        with both.lock(a):
            held.wait(PATIENCE_S)
            both.lock(b).acquire(timeout=LONG_S, deadlock_check=0.3).release()

    async def task() -> None:
        async with both.tasks.lock(b):
            await asyncio.to_thread(held.wait, PATIENCE_S)
            await (await both.tasks.lock(a).acquire(timeout=LONG_S, deadlock_check=0.3)).release()

    running = [pool.submit(thread), pool.submit(lambda: asyncio.run(task()))]
    errors = [error for each in running if (error := each.exception(2 * PATIENCE_S)) is not None]
    assert [*map(type, errors)] == [holdfast.DeadlockDetected], errors
    (error,) = errors
    assert isinstance(error, holdfast.DeadlockDetected)
    first, second = error.deadlock.parties
    assert {first.name, second.name} == {a, b} and first.owner != second.owner
    assert first.token.partition(":")[0] == second.token.partition(":")[0], "both of one client"
    assert both.deadlocks() == ()


def test_an_observer_is_told_once_of_each(valkey_server: embedded.Server, unique_name: str) -> None:
    told: list[str] = []

    class Notes(holdfast.Observer):
        def acquired(self, lease: holdfast.LeaseInfo, waited_s: float) -> None:
            told.append(f"acquired {lease.name}")

        def released(self, lease: holdfast.LeaseInfo, held_s: float) -> None:
            told.append(f"released {lease.name}")

    async def main(locks: holdfast.Client) -> None:
        async with locks.tasks.lock(f"{unique_name}-task"):
            pass

    with holdfast.connect(valkey_server.url, observer=Notes()) as locks:
        with locks.lock(f"{unique_name}-thread"):
            asyncio.run(main(locks))
    expected = ["acquired {}-thread", "acquired {}-task", "released {}-task", "released {}-thread"]
    eventually(lambda: len(told) >= len(expected))
    assert told == [each.format(unique_name) for each in expected]

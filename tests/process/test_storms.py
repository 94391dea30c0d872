"""Everything the family has is acquired and waited for, and given up at any moment: nothing is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Timer
from typing import Any

import pytest

import holdfast
import holdfast.asyncio
from holdfast import embedded
from holdfast._engine.server import Server
from testbed.waiting import eventually

pytestmark = pytest.mark.usefixtures("nothing_left")

#: What is meant to stay for a while: fencing tokens, buried tokens, limits, states of gates and barriers.
KEPT = (":fence", ":gone", ":sem", ":last", ":latch", ":event", ":barrier", ":released")

GIVEN_UP = (holdfast.AcquireTimeout, holdfast.AcquireCancelled, holdfast.BrokenBarrierError)


def check_nothing_is_left(look: Any, name: str) -> None:
    def left() -> dict[str, int]:
        keys = look.scan_iter(f"holdfast:{{{name}*")
        return {key: look.pttl(key) for key in keys if not key.endswith(KEPT)}

    with contextlib.suppress(AssertionError):
        eventually(lambda: not left())
    assert left() == {}, "nothing is left"
    assert all(look.pttl(key) > 0 for key in look.scan_iter(f"holdfast:{{{name}*")), "and nothing lives forever"
    assert look.zcard(f"holdfast:{{{name}}}:sem:holders") == 0


class AsyncioStorm:
    """One action of each kind, by tasks."""

    def __init__(self, name: str, seed: int) -> None:
        self.name = name
        self.rng = random.Random(seed)
        self.done: dict[str, int] = {}

    async def reader(self, client: holdfast.asyncio.Client) -> None:
        async with await client.rwlock(self.name).read().acquire() as lease:
            await self.hold()
            if self.rng.random() < 0.3:
                try:
                    async with await lease.upgrade(timeout=0.01):
                        await self.hold()
                except (holdfast.UpgradeRefused, holdfast.AcquireTimeout):
                    pass

    async def writer(self, client: holdfast.asyncio.Client) -> None:
        lease = await client.rwlock(self.name).write().acquire()
        async with lease:
            await self.hold()
            if self.rng.random() < 0.3:
                async with await lease.downgrade():
                    await self.hold()

    async def permits(self, client: holdfast.asyncio.Client) -> None:
        async with await client.semaphore(self.name, 3).acquire(permits=self.rng.randint(1, 3)):
            await self.hold()

    async def several(self, client: holdfast.asyncio.Client) -> None:
        async with client.multilock(self.name, f"{self.name}-b", f"{self.name}-c"):
            await self.hold()

    async def reentrant(self, client: holdfast.asyncio.Client) -> None:
        lock = client.lock(f"{self.name}-b", reentrant=True)
        async with lock, lock:
            await self.hold()

    async def condition(self, client: holdfast.asyncio.Client) -> None:
        lock = client.lock(f"{self.name}-cond")
        condition = client.condition(lock)
        async with lock:
            if self.rng.random() < 0.5:
                await condition.wait(timeout=self.rng.choice((0.01, 1)))
            else:
                await condition.notify(self.rng.randint(1, 3))

    async def latch(self, client: holdfast.asyncio.Client) -> None:
        await client.latch(f"{self.name}-l", 1_000_000).count_down()
        await client.latch(f"{self.name}-l", 1_000_000).wait(timeout=0.05)

    async def event(self, client: holdfast.asyncio.Client) -> None:
        event = client.event(f"{self.name}-e")
        await event.wait(timeout=0.03)
        await (event.set() if self.rng.random() < 0.5 else event.clear())

    async def barrier(self, client: holdfast.asyncio.Client) -> None:
        barrier = client.barrier(f"{self.name}-p", 3)
        try:
            await barrier.wait(timeout=0.5)
        except holdfast.BrokenBarrierError:
            await barrier.reset()

    async def election(self, client: holdfast.asyncio.Client) -> None:
        async with client.election(f"{self.name}-el"):
            await self.hold()

    async def optimistic(self, client: holdfast.asyncio.Client) -> None:
        key = f"holdfast:{{{self.name}}}:count"

        async def add(tx: holdfast.asyncio.Transaction) -> None:
            value = int(await tx.get(key) or 0)
            await self.hold()
            tx.set(key, value + 1, ttl=60)

        await client.optimistic(key, attempts=1_000).run(add)

    async def hold(self) -> None:
        await asyncio.sleep(self.rng.random() * 0.003)

    KINDS = (
        *("reader", "writer", "permits", "several", "reentrant", "condition"),
        *("latch", "event", "barrier", "election", "optimistic"),
    )

    async def main(self, url: str, look: Any) -> None:
        async with holdfast.asyncio.connect(url) as one, holdfast.asyncio.connect(url) as two:

            async def cancelled(kind: str, request_timeout_s: float) -> None:
                task = asyncio.create_task(getattr(self, kind)(self.rng.choice((one, two))))
                await asyncio.wait((task,), timeout=self.rng.random() * request_timeout_s)
                task.cancel()
                await asyncio.wait((task,))
                if not task.cancelled():
                    if task.exception() is not None:
                        raise task.exception()  # type: ignore[misc]
                    self.done[kind] = self.done.get(kind, 0) + 1

            for number in range(40):
                await asyncio.gather(*(cancelled(kind, 0.2 + number * 0.1) for kind in self.KINDS for _ in range(6)))
                if number >= 3 and len(self.done) == len(self.KINDS):
                    break  # some of each came through
            for name in (self.name, f"{self.name}-b", f"{self.name}-cond"):
                await (await two.lock(name).acquire(timeout=60)).release()
            look.delete(f"holdfast:{{{self.name}}}:count")

            def watching() -> list[Any]:
                ours = (one._session.driver.client_id, two._session.driver.client_id)
                assert ours
                return [each for each in look.client_list() if int(each.get("watch", 0)) > 0]

            async with asyncio.timeout(30):
                while watching():
                    await asyncio.sleep(0.01)


@pytest.mark.parametrize("seed", [1, 2])
def test_cancelled_tasks_leave_nothing(private_server: Any, looking_at: Any, unique_name: str, seed: int) -> None:
    server: embedded.Server = private_server()  # no one else watches anything there
    look = looking_at(server)
    storm = AsyncioStorm(unique_name, seed)
    asyncio.run(storm.main(server.url, look))
    assert set(storm.done) == set(storm.KINDS)
    check_nothing_is_left(look, unique_name)


class ThreadStorm:
    """One action of each kind, by threads, with a `Cancel` that is set at any moment, and with short timeouts."""

    def __init__(self, name: str) -> None:
        self.name = name

    def actions(self) -> dict[str, Callable[[holdfast.Client, holdfast.Cancel, random.Random], None]]:
        name = self.name

        def reader(client: holdfast.Client, cancel: holdfast.Cancel, rng: random.Random) -> None:
            with client.rwlock(name).read().acquire(cancel=cancel) as lease:
                if rng.random() < 0.5:
                    try:
                        lease.upgrade(timeout=0.05, cancel=cancel).release()
                    except holdfast.UpgradeRefused:
                        pass

        def writer(client: holdfast.Client, cancel: holdfast.Cancel, rng: random.Random) -> None:
            client.rwlock(name).write().acquire(cancel=cancel).downgrade().release()

        def permits(client: holdfast.Client, cancel: holdfast.Cancel, rng: random.Random) -> None:
            timeout = rng.choice((None, 0.02))
            client.semaphore(name, 3).acquire(timeout=timeout, cancel=cancel, permits=rng.randint(1, 3)).release()

        def several(client: holdfast.Client, cancel: holdfast.Cancel, rng: random.Random) -> None:
            client.multilock(name, f"{name}-b", f"{name}-c").acquire(rng.choice((None, 0.02)), cancel).release()

        def reentrant(client: holdfast.Client, cancel: holdfast.Cancel, rng: random.Random) -> None:
            lock = client.lock(f"{name}-b", reentrant=True)
            with lock.acquire(cancel=cancel), lock.acquire(cancel=cancel):
                pass

        def condition(client: holdfast.Client, cancel: holdfast.Cancel, rng: random.Random) -> None:
            lock = client.lock(f"{name}-cond")
            changed = client.condition(lock)
            lease = lock.acquire(cancel=cancel)
            try:
                if rng.random() < 0.5:
                    changed.wait(rng.choice((0.01, 1)), cancel)
                else:
                    changed.notify(2)
            finally:
                if lease.state is not holdfast.LeaseState.RELEASED:
                    lease.release()

        def latch(client: holdfast.Client, cancel: holdfast.Cancel, rng: random.Random) -> None:
            client.latch(f"{name}-l", 1_000_000).wait(rng.choice((1, 0.02)), cancel)

        def event(client: holdfast.Client, cancel: holdfast.Cancel, rng: random.Random) -> None:
            event = client.event(f"{name}-e")
            event.wait(0.03, cancel)
            (event.set if rng.random() < 0.5 else event.clear)()

        def barrier(client: holdfast.Client, cancel: holdfast.Cancel, rng: random.Random) -> None:
            meeting = client.barrier(f"{name}-p", 3)
            try:
                meeting.wait(0.5, cancel)
            except holdfast.BrokenBarrierError:
                meeting.reset()

        def election(client: holdfast.Client, cancel: holdfast.Cancel, rng: random.Random) -> None:
            client.election(f"{name}-el").campaign(cancel=cancel).release()

        every = (reader, writer, permits, several, reentrant, condition, latch, event, barrier, election)
        return {action.__name__: action for action in every}


def test_threads_that_give_up_leave_nothing(valkey_server: embedded.Server, look: Any, unique_name: str) -> None:
    actions = ThreadStorm(unique_name).actions()
    with holdfast.connect(valkey_server.url) as one, holdfast.connect(valkey_server.url) as two:

        def session(number: int) -> tuple[str, bool]:
            rng = random.Random(number)
            kind = sorted(actions)[number % len(actions)]
            cancel = holdfast.Cancel()
            timer = Timer(rng.random() * 0.1, cancel.set)
            timer.start()
            try:
                actions[kind](rng.choice((one, two)), cancel, rng)
                return kind, True
            except GIVEN_UP:
                return kind, False
            finally:
                timer.cancel()
                timer.join()

        with ThreadPoolExecutor(24) as pool:
            ended = list(pool.map(session, range(300)))
        assert {came_through for _, came_through in ended} == {True, False}
        for name in (unique_name, f"{unique_name}-b", f"{unique_name}-cond"):
            one.lock(name).acquire(timeout=60).release()
    check_nothing_is_left(look, unique_name)


def test_a_cancel_that_comes_with_the_reply_leaves_no_dead_connection(
    valkey_server: embedded.Server, unique_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancel = holdfast.Cancel()
    send: Any = Server.send

    def and_then_cancelled(self: Server, request: Any) -> None:
        answer = request.answer

        def answered(reply: Any, failure: Any) -> None:
            cancel.set()
            answer(reply, failure)

        request.answer = answered
        send(self, request)

    with holdfast.connect(valkey_server.url) as locks:
        locks.lock(unique_name).acquire().release()
        monkeypatch.setattr(Server, "send", and_then_cancelled)
        with pytest.raises(holdfast.AcquireCancelled):
            locks.lock(unique_name).acquire(cancel=cancel)
        monkeypatch.undo()
        server: Any = locks._session.driver.topology.nodes()[0]
        eventually(lambda: not locks.lock(unique_name).locked(), "it was given back")
        assert server.link._sock.getpeername(), "raises when it was shut down"

"""`holdfast.trio`: scopes that end anywhere, losses, runs that block, end and fail; anyio on either library."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anyio
import pytest
import redis
import trio

import holdfast
import holdfast.trio
from holdfast import embedded
from holdfast.trio import AcquireTimeout, ClientClosed, LeaseLost, LeaseState
from testbed.waiting import eventually

pytestmark = pytest.mark.usefixtures("nothing_left")

PATIENCE_S = 30.0

Main = Callable[[Any], Awaitable[Any]]


def run(server: embedded.Server, main: Main, **options: Any) -> Any:
    """Run it with a client of that server, which is closed at its end."""

    async def inside() -> Any:
        with trio.fail_after(PATIENCE_S * 2):
            async with holdfast.trio.connect(server.url, **options) as locks:
                return await main(locks)

    return trio.run(inside)


def is_free(server: embedded.Server, name: str) -> bool:
    with holdfast.connect(server.url) as others:
        lock = others.lock(name)
        return not lock.locked() and lock.waiters() == 0


def test_the_names_are_those_of_asyncio() -> None:
    import holdfast.asyncio

    names: dict[str, object] = {}
    exec("from holdfast.trio import *", names)
    named = {each: value for each, value in names.items() if each.isidentifier() and each != "__builtins__"}
    assert named == {each: getattr(holdfast.asyncio, each) for each in holdfast.asyncio.__all__}


def test_neither_api_imports_trio_and_its_absence_is_named() -> None:
    program = (
        "import sys, holdfast, holdfast.asyncio\n"
        "locks = holdfast.asyncio.connect('redis://127.0.0.1:1')\n"
        "assert 'trio' not in sys.modules\n"
        "sys.modules['trio'] = None\n"
        "try:\n    import holdfast.trio\n"
        "except ModuleNotFoundError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "holdfast.trio needs trio: pip install trio\n"


# ---- acquire, release, wait ----


def test_a_lock(valkey_server: embedded.Server, unique_name: str) -> None:
    async def main(locks: Any) -> None:
        lock = locks.lock(unique_name, ttl=30)
        lease = await lock.acquire(timeout=5)
        assert lease.held and await lock.locked()

        async def other() -> None:
            assert await lock.try_acquire() is None
            with pytest.raises(AcquireTimeout):
                await lock.acquire(timeout=0.05)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(other)
        await lease.extend(60)
        await lease.release()
        async with lock as held:
            assert held.fencing_token > lease.fencing_token
        assert not await lock.locked()
        assert await lock.holder() is None

    run(valkey_server, main)


def test_one_at_a_time_with_threads_and_loops_of_others(valkey_server: embedded.Server, unique_name: str) -> None:
    """Tasks of trio, tasks of asyncio through the same client, and threads of another one."""
    inside: list[object] = []
    fences: list[int] = []
    rounds = 15
    locks = holdfast.trio.connect(valkey_server.url, ttl=30)

    def note(lease: Any) -> None:
        inside.append(lease)
        assert len(inside) == 1, "two holders"
        fences.append(lease.fencing_token)

    async def task(sleep: Callable[[float], Awaitable[Any]]) -> None:
        for _ in range(rounds):
            async with locks.lock(unique_name) as lease:
                note(lease)
                await sleep(0.001)
                inside.pop()

    async def of_trio() -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(task, trio.sleep)

    async def of_asyncio() -> None:
        await asyncio.gather(*(task(asyncio.sleep) for _ in range(4)))

    def thread() -> None:
        with holdfast.connect(valkey_server.url, ttl=30) as others:
            for _ in range(rounds):
                with others.lock(unique_name) as lease:
                    note(lease)
                    time.sleep(0.001)
                    inside.pop()

    with ThreadPoolExecutor(4) as pool:
        for each in [
            pool.submit(trio.run, of_trio),
            pool.submit(asyncio.run, of_asyncio()),
            pool.submit(thread),
            pool.submit(thread),
        ]:
            each.result(PATIENCE_S * 2)
    trio.run(locks.close)
    assert len(set(fences)) == len(fences) == rounds * 10


def test_the_family(valkey_server: embedded.Server, unique_name: str) -> None:
    async def main(locks: Any) -> None:
        name = unique_name
        semaphore, rwlock = locks.semaphore(name, permits=2), locks.rwlock(name)

        async def read_with(other: Any) -> None:
            async with rwlock.read():
                assert await rwlock.readers() == 2
                assert await semaphore.available() == 1
                assert other.held

        async with semaphore, rwlock.read() as reader, trio.open_nursery() as nursery:
            nursery.start_soon(read_with, reader)
        async with locks.multilock(f"{name}-1", f"{name}-2") as both:
            assert both.held

        lock = locks.lock(name, ttl=30)
        condition = locks.condition(lock)
        ready: list[int] = []

        async def wait() -> None:
            async with lock:
                assert await condition.wait_for(lambda: ready, timeout=PATIENCE_S)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            while not await _notified(lock, condition, ready):
                await trio.sleep(0.01)

        async def lead(lease: Any) -> str:
            return f"led {lease.held}"

        assert await locks.election(name).run(lead) == "led True"
        calls: list[int] = []

        async def make() -> bytes:
            calls.append(1)
            await trio.sleep(0.01)
            return b"made"

        async def get() -> None:
            assert await locks.get_or_set(f"{name}-v", make, expire=30) == b"made"

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(get)
        assert len(calls) == 1
        event = locks.event(name)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(event.wait, PATIENCE_S)
            await event.set()

    run(valkey_server, main)


async def _notified(lock: Any, condition: Any, ready: list[int]) -> bool:
    async with lock:
        if not await condition.notify():
            return False
        ready.append(1)  # before the waiter can have the lock again
        return True


def test_a_watch_and_what_on_wait_awaits(valkey_server: embedded.Server, unique_name: str) -> None:
    async def main(locks: Any) -> None:
        told: list[Any] = []

        async def on_wait(waiting: Any) -> None:
            await trio.lowlevel.checkpoint()
            told.append(waiting)

        async def hold(task_status: Any) -> None:
            async with locks.lock(unique_name):
                task_status.started()
                await told_of(told)

        async with trio.open_nursery() as nursery:
            await nursery.start(hold)
            lease = await locks.lock(unique_name).acquire(timeout=PATIENCE_S, on_wait=on_wait)
        async for change in locks.watch(unique_name):
            assert change.what == "acquired" or change.who is not None
            break
        await lease.release()

    async def told_of(told: list[Any]) -> None:
        while not told:
            await trio.sleep(0.01)

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Async generator .* was garbage collected", ResourceWarning)
        run(valkey_server, main)


# ---- cancellation ----


@pytest.mark.parametrize("contended", [False, True])
def test_a_deadline_at_any_moment_leaves_no_orphan(
    valkey_server: embedded.Server, unique_name: str, contended: bool
) -> None:
    """In the middle of an acquire, a block and a release; also where another task holds or waits."""
    held: list[int] = []

    async def main(locks: Any) -> None:
        async def use() -> None:
            async with locks.lock(unique_name, ttl=60):
                held.append(1)
                await trio.sleep(0.0005)

        async def always() -> None:
            while True:
                await use()

        async with trio.open_nursery() as nursery:
            if contended:
                nursery.start_soon(always)
            for step in range(3_000):
                with trio.move_on_after(step * 0.00003):
                    await use()
                if held and step > 120:  # later on a machine that is busy
                    break
            nursery.cancel_scope.cancel()
        lease = await locks.lock(unique_name, ttl=60).acquire(timeout=PATIENCE_S)
        await lease.release()

    run(valkey_server, main)
    eventually(lambda: is_free(valkey_server, unique_name))
    assert held


def test_a_scope_that_is_cancelled_already(valkey_server: embedded.Server, unique_name: str) -> None:
    """Every await in it raises at once: that of the release, too, which the engine does."""

    async def main(locks: Any) -> None:
        with trio.CancelScope() as scope:
            async with locks.lock(unique_name, ttl=60) as lease:
                scope.cancel()
        assert lease.state is LeaseState.RELEASED
        with trio.CancelScope() as scope:
            scope.cancel()
            await locks.lock(unique_name, ttl=60).acquire()
        assert scope.cancelled_caught
        again = await locks.lock(unique_name, ttl=60).acquire(timeout=PATIENCE_S)
        with pytest.raises(ValueError, match="mine"), trio.CancelScope() as scope:
            async with again:
                raise ValueError("mine")
        await (await locks.lock(unique_name, ttl=60).acquire(timeout=PATIENCE_S)).release()

    run(valkey_server, main)


def test_an_attempt_whose_scope_is_cancelled_leaves_no_connection(
    valkey_server: embedded.Server, unique_name: str
) -> None:
    """In such a scope nothing is waited for: the connection watched on until its client was closed."""

    async def main(locks: Any) -> None:
        cancelled = 0
        for moment in ["before a read", "behind a read", "before the write"] * 10:
            with trio.CancelScope() as scope:

                async def write(tx: Any, moment: str = moment, scope: trio.CancelScope = scope) -> None:
                    if moment == "before a read":
                        scope.cancel()
                    await tx.get(unique_name)
                    scope.cancel()
                    if moment == "behind a read":
                        await trio.lowlevel.checkpoint()
                    tx.set(unique_name, 1)

                await locks.optimistic(unique_name).run(write)
            cancelled += scope.cancelled_caught  # not where all that is left was there already
        assert cancelled
        sessions = locks._session.driver.client._sessions
        with trio.fail_after(PATIENCE_S):
            while sessions:
                await trio.sleep(0.01)

    run(valkey_server, main)
    with redis.Redis.from_url(valkey_server.url) as raw:
        raw.delete(unique_name)


def test_the_end_of_a_wait_leaves_the_queue(valkey_server: embedded.Server, unique_name: str) -> None:
    async def main(locks: Any) -> None:
        async with holdfast.trio.connect(valkey_server.url) as others:
            async with others.lock(unique_name, ttl=60):
                for _ in range(3):
                    with trio.move_on_after(0.05) as scope:
                        await locks.lock(unique_name).acquire()
                    assert scope.cancelled_caught
                while await others.lock(unique_name).waiters():
                    await trio.sleep(0.01)

    run(valkey_server, main)


def test_what_a_signal_handler_raises_as_a_task_is_about_to_wait(
    valkey_server: embedded.Server, unique_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer comes later, and ends nothing else that the task waits for by then."""

    async def interrupted(_abort: object) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    async def main() -> None:
        async with holdfast.trio.connect(valkey_server.url) as locks:
            await (await locks.lock(unique_name).acquire()).release()
            monkeypatch.setattr(trio.lowlevel, "wait_task_rescheduled", interrupted)
            with pytest.raises(KeyboardInterrupt):
                await locks.lock(unique_name).acquire()
            for _ in range(20):
                await trio.sleep(0.005)  # trio itself complains of one that ends before
            with trio.fail_after(30):
                await (await locks.lock(unique_name).acquire()).release()

    trio.run(main)


def test_a_nursery_that_fails(valkey_server: embedded.Server, unique_name: str) -> None:
    """The error comes out, and what its tasks held or waited for is free."""

    async def main(locks: Any) -> None:
        async def work(number: int) -> None:
            async with locks.lock(f"{unique_name}-{number % 3}", ttl=60):
                await trio.sleep(PATIENCE_S)

        with pytest.RaisesGroup(pytest.RaisesExc(ZeroDivisionError)):
            async with trio.open_nursery() as nursery:
                for number in range(9):
                    nursery.start_soon(work, number)
                await trio.sleep(0.1)
                raise ZeroDivisionError
        for number in range(3):
            await (await locks.lock(f"{unique_name}-{number}").acquire(timeout=PATIENCE_S)).release()

    run(valkey_server, main)


# ---- loss ----


def test_a_loss_cancels_the_block(valkey_server: embedded.Server, unique_name: str) -> None:
    """And nothing else: what is around it goes on, and is told by `LeaseLost`."""

    async def main(locks: Any) -> None:
        told: list[LeaseLost] = []
        awaited: list[LeaseLost] = []

        async def on_lost(error: LeaseLost) -> None:
            await trio.lowlevel.checkpoint()
            awaited.append(error)

        with trio.CancelScope() as outer:
            with pytest.raises(LeaseLost) as caught:
                async with locks.lock(unique_name, ttl=0.3) as lease:
                    lease.on_lost(told.append)
                    lease.on_lost(on_lost)
                    with redis.Redis.from_url(valkey_server.url) as raw:
                        raw.delete(f"holdfast:{{{unique_name}}}")
                    await trio.sleep(PATIENCE_S)
            assert isinstance(caught.value.__cause__, trio.Cancelled)
            await trio.lowlevel.checkpoint()
        assert not outer.cancelled_caught
        assert await lease.lost.wait(PATIENCE_S)
        with trio.fail_after(PATIENCE_S):
            while not (told and awaited):
                await trio.sleep(0.001)
        await lease.lost.wait()

    run(valkey_server, main)


def test_a_loss_among_the_tasks_of_a_nursery(valkey_server: embedded.Server, unique_name: str) -> None:
    """A group keeps the errors of others; and an outer cancellation is not taken for the loss."""

    async def main(locks: Any) -> None:
        async def fails() -> None:
            try:
                await trio.sleep(PATIENCE_S)
            finally:
                raise ZeroDivisionError

        async def hold(task_status: Any) -> None:
            async with locks.lock(unique_name, ttl=60) as lease:
                task_status.started(lease)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(trio.sleep, PATIENCE_S)
                    nursery.start_soon(fails)

        with pytest.RaisesGroup(pytest.RaisesGroup(ZeroDivisionError)):
            async with trio.open_nursery() as nursery:
                lease = await nursery.start(hold)
                lease._record.lose("taken")

        async def in_vain(task_status: Any) -> None:
            async with locks.lock(f"{unique_name}-2", ttl=60) as lease:
                task_status.started(lease)
                await trio.sleep(PATIENCE_S)

        async with trio.open_nursery() as nursery:
            lease = await nursery.start(in_vain)
            nursery.cancel_scope.cancel()
            lease._record.lose("taken")
        assert nursery.cancel_scope.cancelled_caught

    run(valkey_server, main)


def test_what_a_callback_raises_ends_no_run(
    valkey_server: embedded.Server, unique_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: seen.append(args.exc_type))

    async def main(locks: Any) -> None:
        async def fails(_: LeaseLost) -> None:
            raise ZeroDivisionError

        def fails_at_once(_: LeaseLost) -> None:
            raise KeyError

        lease = await locks.lock(unique_name, ttl=60).acquire()
        lease.on_lost(fails)
        lease.on_lost(fails_at_once)
        lease._record.lose("taken")
        while len(seen) < 2:
            await trio.sleep(0.001)

    run(valkey_server, main)
    assert set(seen) == {ZeroDivisionError, KeyError}


def test_a_run_that_blocks_keeps_its_leases(valkey_server: embedded.Server, unique_name: str) -> None:
    """And is told of a loss after it."""

    async def main(locks: Any) -> None:
        async with locks.lock(unique_name, ttl=0.5) as lease:
            time.sleep(2.0)  # noqa: ASYNC251
            lease.ensure_held()
        with pytest.raises(LeaseLost):
            async with locks.lock(unique_name, ttl=0.2, renew=False):
                time.sleep(0.3)  # noqa: ASYNC251
                await trio.sleep(PATIENCE_S)

    run(valkey_server, main)


# ---- the end ----


def test_a_close_ends_waits_and_blocks(valkey_server: embedded.Server, unique_name: str) -> None:
    async def main(locks: Any) -> None:
        ended: list[str] = []
        lock = locks.lock(unique_name, ttl=60)

        async def hold(task_status: Any) -> None:
            with pytest.raises(LeaseLost) as caught:
                async with lock:
                    task_status.started()
                    await trio.sleep(PATIENCE_S)
            ended.append(caught.value.reason)

        async def wait() -> None:
            with pytest.raises(ClientClosed):
                await lock.acquire()
            ended.append("waiter")

        async with trio.open_nursery() as nursery:
            await nursery.start(hold)
            nursery.start_soon(wait)
            await trio.sleep(0.05)
            await locks.close()
        assert sorted(ended) == ["closed", "waiter"]
        with pytest.raises(ClientClosed):
            await lock.acquire()

    run(valkey_server, main)
    assert is_free(valkey_server, unique_name)


def test_a_run_that_ends_gives_back(valkey_server: embedded.Server, unique_name: str) -> None:
    """Without `close`; the client serves the next run, and a loop of asyncio."""
    locks = holdfast.trio.connect(valkey_server.url, ttl=60)

    async def take() -> Any:
        return await locks.lock(unique_name).acquire(timeout=PATIENCE_S)

    first = trio.run(take)
    assert first.state is LeaseState.LOST
    assert is_free(valkey_server, unique_name)
    second = trio.run(take)
    third = asyncio.run(take())
    assert first.fencing_token < second.fencing_token < third.fencing_token
    trio.run(locks.close)
    assert is_free(valkey_server, unique_name)


def test_a_process_that_ends_gives_back(valkey_server: embedded.Server, unique_name: str) -> None:
    """With every warning an error."""
    program = (
        "import sys, trio, holdfast.trio\n"
        "locks = holdfast.trio.connect(sys.argv[1], ttl=60)\n"
        "async def main():\n"
        "    global lease\n"
        "    lease = await locks.lock(sys.argv[2]).acquire()\n"
        "    async with locks.lock(sys.argv[2] + '-2'):\n"
        "        raise SystemExit(3)\n"
        "trio.run(main)\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, valkey_server.url, unique_name],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S * 2,
        check=False,
    )
    assert (done.stderr, done.returncode) == ("", 3)
    assert is_free(valkey_server, unique_name) and is_free(valkey_server, f"{unique_name}-2")


def test_a_lease_that_is_dropped_is_warned_of(valkey_server: embedded.Server, unique_name: str) -> None:
    async def main(locks: Any) -> None:
        with pytest.warns(ResourceWarning, match="was dropped without release"):
            await locks.lock(unique_name, ttl=0.5).acquire()
        await (await locks.lock(unique_name).acquire(timeout=PATIENCE_S)).release()

    run(valkey_server, main)


# ---- anyio, and trio inside of asyncio ----


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("api", ["holdfast.asyncio", "holdfast.trio"])
def test_a_program_on_anyio(valkey_server: embedded.Server, unique_name: str, backend: str, api: str) -> None:
    inside: list[int] = []

    async def main() -> None:
        connect = sys.modules[api].connect
        async with connect(valkey_server.url, ttl=60) as locks:

            async def work(number: int) -> None:
                async with locks.lock(unique_name):
                    inside.append(number)
                    assert len(inside) == 1
                    await anyio.sleep(0.001)
                    inside.clear()

            async with anyio.create_task_group() as tasks:
                for number in range(10):
                    tasks.start_soon(work, number)
            for step in range(30):
                with anyio.move_on_after(step * 0.0001):
                    await work(step)
                inside.clear()
            with pytest.raises(LeaseLost):
                async with locks.lock(unique_name) as lease:
                    lease._record.lose("taken")
                    await anyio.sleep(PATIENCE_S)

    anyio.run(main, backend=backend)


def test_trio_as_a_guest_of_asyncio(valkey_server: embedded.Server, unique_name: str) -> None:
    """Tasks of both in one thread, with one client."""
    locks = holdfast.trio.connect(valkey_server.url, ttl=60)
    inside: list[str] = []

    async def work(sleep: Callable[[float], Awaitable[Any]], who: str) -> None:
        for _ in range(20):
            async with locks.lock(unique_name):
                inside.append(who)
                assert len(inside) == 1
                await sleep(0.001)
                inside.clear()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Any] = loop.create_future()
        trio.lowlevel.start_guest_run(
            work,
            trio.sleep,
            "trio",
            run_sync_soon_threadsafe=loop.call_soon_threadsafe,
            done_callback=done.set_result,
        )
        async with asyncio.timeout(PATIENCE_S * 2):
            await work(asyncio.sleep, "asyncio")
            (await done).unwrap()
        await locks.close()

    asyncio.run(main())
    assert is_free(valkey_server, unique_name)

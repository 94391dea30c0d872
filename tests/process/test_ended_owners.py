"""A lease may outlive the thread or task that acquired it, and the system gives their numbers to the next ones."""

from __future__ import annotations

import _thread
import asyncio
import os
import queue
import threading
from collections.abc import Callable
from typing import Any

import pytest

import holdfast
import holdfast.asyncio
from holdfast import embedded
from holdfast._async import kernel, lifecycle
from testbed.waiting import eventually

#: Usually the next thread has the ident of the one that has ended; never in this many attempts would be strange.
ATTEMPTS = 200


def in_thread(act: Callable[[], Any], start: Callable[[Callable[[], None]], Any] | None = None) -> tuple[int, Any]:
    """Run `act` in a thread, to its end; returns the system's number of it, and what `act` gives or raises."""
    got: list[Any] = []

    def main() -> None:
        got[:] = [threading.get_ident(), threading.get_native_id()]
        try:
            got.append(act())
        except Exception as error:
            got.append(error)

    if start is not None:
        start(main)
    else:
        thread = threading.Thread(target=main)
        thread.start()
        thread.join(30)
    has_left(got[1])
    return got[0], got[2]


def has_left(native_id: int) -> None:
    """Wait until a thread has left the system: for Python it ends a little earlier, and its number is not free yet."""
    eventually(lambda: not os.path.exists(f"/proc/self/task/{native_id}"), "the end of the thread")


def foreign(main: Callable[[], None]) -> None:
    """A thread of which the module threading knows nothing, as those of C libraries."""
    done = threading.Event()

    def run() -> None:
        main()
        done.set()

    _thread.start_new_thread(run, ())
    assert done.wait(30)


STARTS = pytest.mark.parametrize("start", [None, foreign], ids=["thread", "foreign thread"])


def _stay(natives: queue.SimpleQueue[int], parked: threading.Event) -> None:
    natives.put(threading.get_native_id())
    parked.wait(30)


def successor(number: int, act: Callable[[], Any], start: Any) -> Any:
    """Run `act` in another thread that has got the system's number of one that has ended."""
    parked = threading.Event()
    try:
        for _ in range(ATTEMPTS):
            ident, got = in_thread(lambda: act() if threading.get_ident() == number else None, start)
            if ident == number:
                return got
            # That number would come again and again: a thread keeps it, unless the one that is looked for has come.
            natives: queue.SimpleQueue[int] = queue.SimpleQueue()
            stays = _thread.start_new_thread(_stay, (natives, parked))
            native_id = natives.get(timeout=30)
            if stays == number:
                parked.set()
                has_left(native_id)
                parked = threading.Event()
    finally:
        parked.set()
    pytest.fail(f"the system did not give {number} to another thread; there are {threading.enumerate()}")


def acquire_of(locks: Any, name: str, kind: str) -> Callable[[], Any]:
    if kind == "lock":
        return lambda: locks.lock(name, reentrant=True).acquire(timeout=0)
    if kind == "plain lock":
        return lambda: locks.lock(name).acquire(timeout=0)
    if kind == "multilock":
        return lambda: locks.multilock(name, f"{name}:2").acquire(timeout=0)
    if kind == "write":
        return lambda: locks.rwlock(name).write().acquire(timeout=0)
    return lambda: locks.election(name).campaign(timeout=0)


@STARTS
@pytest.mark.parametrize("kind", ["lock", "plain lock", "multilock", "write", "election"])
def test_a_thread_with_the_number_of_an_ended_one_does_not_own_its_lease(
    valkey_server: embedded.Server, unique_name: str, kind: str, start: Any
) -> None:
    with holdfast.connect(valkey_server.url) as locks:
        acquire = acquire_of(locks, unique_name, kind)
        number, lease = in_thread(acquire, start)
        assert lease.state.name == "HELD"
        second = successor(number, acquire, start)
        assert isinstance(second, holdfast.AcquireTimeout), second  # neither inside nor AlreadyHeld
        lease.release()  # by any thread that has the handle
        assert lease.state.name == "RELEASED"
        third = successor(number, acquire, start)
        assert third.state.name == "HELD"
        third.release()


@STARTS
def test_another_thread_cannot_use_the_condition_of_an_ended_thread(
    valkey_server: embedded.Server, unique_name: str, start: Any
) -> None:
    with holdfast.connect(valkey_server.url) as locks:
        lock = locks.lock(unique_name)
        changed = locks.condition(lock)
        number, lease = in_thread(lock.acquire, start)
        for operation in (changed.notify, lambda: changed.wait(timeout=0)):
            assert type(successor(number, operation, start)) is holdfast.NotHeld
        assert lease.state.name == "HELD"
        lease.release()


def test_a_reader_with_the_number_of_an_ended_one_reads(valkey_server: embedded.Server, unique_name: str) -> None:
    with holdfast.connect(valkey_server.url) as locks:
        side = locks.rwlock(unique_name).read()
        number, lease = in_thread(side.acquire)
        second = successor(number, side.acquire, None)
        assert isinstance(second, holdfast.Lease) and second is not lease and second.token != lease.token
        lease.release()
        second.release()


def test_the_owner_itself_is_still_known(valkey_server: embedded.Server, unique_name: str) -> None:
    with holdfast.connect(valkey_server.url) as locks:
        lock = locks.lock(unique_name, reentrant=True)
        with lock as outer, lock as inner:
            assert inner is outer
            assert isinstance(in_thread(lambda: lock.acquire(timeout=0))[1], holdfast.AcquireTimeout)
        assert not lock.locked()
        with lock, pytest.raises(holdfast.AlreadyHeld):
            locks.lock(unique_name).acquire()


def test_tasks_that_get_the_address_of_an_ended_one(
    valkey_server: embedded.Server, unique_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def address(task: asyncio.Task[Any]) -> int:
        return 7 if task.get_name() in ("first", "second") else id(task)

    for module in (kernel, lifecycle):
        monkeypatch.setattr(module, "id", address, raising=False)

    async def main() -> None:
        async with holdfast.asyncio.connect(valkey_server.url) as locks:
            lock = locks.lock(unique_name, reentrant=True)

            async def second() -> None:
                with pytest.raises(holdfast.AcquireTimeout):
                    await lock.acquire(timeout=0)
                with pytest.raises(holdfast.NotHeld):
                    await locks.condition(lock).notify()
                await lease.release()
                async with lock as outer, lock as inner:
                    assert inner is outer
                    with pytest.raises(holdfast.AcquireTimeout):
                        await asyncio.create_task(lock.acquire(timeout=0))
                    assert await locks.condition(lock).notify() == 0, "the owner is still known"

            lease = await asyncio.create_task(lock.acquire(timeout=0), name="first")
            await asyncio.create_task(second(), name="second")

    asyncio.run(main())


def test_coroutines_run_by_hand_own_nothing(valkey_server: embedded.Server, unique_name: str) -> None:
    """Without a task no one can be told from anyone else: no one is taken for the holder."""

    async def main() -> None:
        async with holdfast.asyncio.connect(valkey_server.url) as locks:
            lock = locks.lock(unique_name, reentrant=True)
            loop = asyncio.get_running_loop()

            def by_hand(coroutine: Any) -> asyncio.Future[Any]:
                done = loop.create_future()

                def step(_waited: Any = None) -> None:
                    try:
                        waited = coroutine.send(None)
                    except StopIteration as end:
                        done.set_result(end.value)
                    except Exception as error:
                        done.set_exception(error)
                    else:
                        if waited is None:
                            loop.call_soon(step)
                        else:
                            waited._asyncio_future_blocking = False
                            waited.add_done_callback(step)

                loop.call_soon(step)
                return done

            first = await by_hand(lock.acquire(timeout=0))
            with pytest.raises(holdfast.AcquireTimeout):
                await by_hand(lock.acquire(timeout=0))
            with pytest.raises(holdfast.NotHeld):
                await by_hand(locks.condition(lock).notify())
            await first.release()
            with pytest.raises(RuntimeError, match="task"):
                await by_hand(lock.__aenter__())
            until = loop.time() + 5
            while await lock.locked() and loop.time() < until:  # the engine gives it back, which this may overtake
                await asyncio.sleep(0.01)
            assert not await lock.locked(), "what cannot be entered is given back"

    asyncio.run(main())

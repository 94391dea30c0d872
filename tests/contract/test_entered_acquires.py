"""`async with lock.acquire(timeout=1) as lease`, with `await` and without."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import Callable
from typing import Any, assert_type

import pytest

import holdfast.asyncio
from holdfast import embedded
from holdfast.asyncio import Lease

Make = Callable[[holdfast.asyncio.Client, str], Any]
KINDS: dict[str, tuple[Make, dict[str, Any]]] = {
    "lock": (lambda locks, name: locks.lock(name), {}),
    "reentrant": (lambda locks, name: locks.lock(name, reentrant=True), {}),
    "read": (lambda locks, name: locks.rwlock(name).read(), {}),
    "write": (lambda locks, name: locks.rwlock(name).write(), {}),
    "semaphore": (lambda locks, name: locks.semaphore(name, 2), {"permits": 2}),
    "multilock": (lambda locks, name: locks.multilock(name, f"{name}-2"), {}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_entered_without_await(url: str, unique_name: str, kind: str) -> None:
    make, options = KINDS[kind]

    async def main() -> None:
        async with holdfast.asyncio.connect(url) as locks, holdfast.asyncio.connect(url) as others:
            wanted, free = make(locks, unique_name), make(others, unique_name)
            if kind == "read":
                free = others.rwlock(unique_name).write()
            async with wanted.acquire(timeout=20, **options) as lease:
                assert isinstance(lease, Lease) and lease.held
                assert await free.try_acquire() is None
                if kind not in ("read", "semaphore"):
                    with pytest.raises(holdfast.AcquireTimeout):
                        async with free.acquire(timeout=0.02):
                            raise AssertionError("it was held")
            assert lease.state is holdfast.LeaseState.RELEASED
            with pytest.raises(ZeroDivisionError):
                async with wanted.acquire(timeout=20, **options):
                    raise ZeroDivisionError
            async with await wanted.acquire(timeout=20, **options) as lease:
                assert lease.held
            await (await wanted.acquire(timeout=20, **options)).release()
            taken = await free.try_acquire()
            assert taken is not None
            await taken.release()

    asyncio.run(main())


def test_it_is_still_what_a_task_can_run(url: str, unique_name: str) -> None:
    async def main() -> None:
        async with holdfast.asyncio.connect(url) as locks:
            names = [f"{unique_name}-{number}" for number in range(3)]
            waiting = locks.lock(names[0]).acquire()
            assert asyncio.iscoroutine(waiting)
            leases = [
                await asyncio.create_task(waiting),
                await asyncio.wait_for(locks.lock(names[1]).acquire(), 20),
                *await asyncio.gather(locks.lock(names[2]).acquire()),
            ]
            waits = asyncio.create_task(locks.lock(names[0]).acquire())
            await asyncio.sleep(0.05)
            waits.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waits
            for lease in leases:
                await lease.release()

    asyncio.run(main())


def test_what_is_lost_ends_the_block(url: str, unique_name: str) -> None:
    async def main() -> None:
        async with holdfast.asyncio.connect(url) as locks, holdfast.asyncio.connect(url) as others:
            with pytest.raises(holdfast.LeaseLost):
                async with locks.lock(unique_name).acquire(timeout=20):
                    await others.break_(unique_name)
                    await asyncio.sleep(60)

    asyncio.run(main())


def test_where_it_was_acquired_is_the_line_of_the_block(valkey_server: embedded.Server, unique_name: str) -> None:
    """Told in the warning of a lease that was dropped."""

    async def main() -> list[str]:
        async with holdfast.asyncio.connect(valkey_server.url) as locks:
            lock = locks.lock(unique_name)
            async with lock.acquire(timeout=20) as entered:
                lines = [entered._acquired_at()]
            lease = await lock.acquire(timeout=20)
            lines.append(lease._acquired_at())
            await lease.release()
            return lines

    first = main.__code__.co_firstlineno
    assert asyncio.run(main()) == [f"{__file__}:{first + 3}", f"{__file__}:{first + 5}"]


def test_one_that_is_not_awaited_is_warned_of(valkey_server: embedded.Server, unique_name: str) -> None:
    async def main() -> None:
        async with holdfast.asyncio.connect(valkey_server.url) as locks:
            locks.lock(unique_name).acquire()  # type: ignore[unused-awaitable]
            gc.collect()

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        asyncio.run(main())
    assert ["coroutine 'acquire' was never awaited" in str(each.message) for each in told] == [True]


async def types(lock: holdfast.asyncio.Lock, semaphore: holdfast.asyncio.Semaphore) -> None:
    """For mypy."""
    assert_type(await lock.acquire(), Lease)
    async with lock.acquire(timeout=1) as lease, semaphore.acquire(permits=2) as permit:
        assert_type(lease, Lease)
        assert_type(permit, Lease)

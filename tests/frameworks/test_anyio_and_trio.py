"""anyio on asyncio and on trio, where cancel scopes leave nothing behind; trio, by itself and with threads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import holdfast
import holdfast.asyncio
from holdfast import embedded
from tests.frameworks.programs import Programs

BACKENDS = ("asyncio", "trio")


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_anyio_example(valkey_server: embedded.Server, tmp_path: Path, backend: str) -> None:
    said = Programs(tmp_path, HOLDFAST_URL=valkey_server.url, BACKEND=backend).run("examples.frameworks.anyio_tasks")
    assert said == "moved on\n"


def test_the_trio_example(valkey_server: embedded.Server, tmp_path: Path) -> None:
    said = Programs(tmp_path, HOLDFAST_URL=valkey_server.url).run("examples.frameworks.trio_tasks")
    assert said == "sold\n"


@pytest.mark.parametrize("backend", BACKENDS)
def test_scopes_that_end_at_any_step(valkey_server: embedded.Server, unique_name: str, backend: str) -> None:
    """A scope cancels again at each turn of the event loop until it is left, the release included."""
    import anyio
    import anyio.lowlevel

    async def main() -> None:
        async with holdfast.asyncio.connect(valkey_server.url) as locks:
            async with holdfast.asyncio.connect(valkey_server.url) as others:
                for steps in range(40):
                    async with anyio.create_task_group() as tasks:

                        async def hold() -> None:
                            async with locks.lock(unique_name, ttl=60):
                                await anyio.sleep(60)

                        tasks.start_soon(hold)
                        for _ in range(steps):
                            await anyio.lowlevel.checkpoint()
                        tasks.cancel_scope.cancel()
                    lease = await others.lock(unique_name, ttl=60).acquire(timeout=30)
                    await lease.release()

    anyio.run(main, backend=backend)


def test_a_worker_thread_of_anyio(valkey_server: embedded.Server, unique_name: str) -> None:
    import anyio.from_thread
    import anyio.to_thread

    inside: list[int] = []

    async def work(number: int) -> None:
        inside.append(number)
        assert len(inside) == 1
        await anyio.sleep(0.001)
        inside.remove(number)

    with holdfast.connect(valkey_server.url) as locks:

        def locked(number: int) -> None:
            with locks.lock(unique_name).acquire(timeout=30):
                anyio.from_thread.run(work, number)

        async def main() -> None:
            async with anyio.create_task_group() as tasks:
                for number in range(20):
                    tasks.start_soon(anyio.to_thread.run_sync, locked, number)

        anyio.run(main)


def test_a_cancelled_scope_ends_the_block_in_a_thread_of_trio(valkey_server: embedded.Server, unique_name: str) -> None:
    import trio

    with holdfast.connect(valkey_server.url, ttl=60) as locks:

        def work(inside: trio.Event) -> None:
            with locks.lock(unique_name):
                trio.from_thread.run_sync(inside.set)
                trio.from_thread.run(trio.sleep_forever)

        async def main() -> None:
            inside = trio.Event()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.to_thread.run_sync, work, inside)
                await inside.wait()
                nursery.cancel_scope.cancel()

        trio.run(main)
        locks.lock(unique_name).acquire(timeout=30).release()


def test_a_lease_belongs_to_its_thread_of_the_pool(valkey_server: embedded.Server, unique_name: str) -> None:
    """The page warns of this. (It would be good if it waited.)"""
    import trio

    with holdfast.connect(valkey_server.url) as locks:

        async def main() -> None:
            lease = await trio.to_thread.run_sync(locks.lock(unique_name).acquire)
            with pytest.raises(holdfast.AlreadyHeld):
                await trio.to_thread.run_sync(locks.lock(unique_name).acquire)
            lease.release()

        trio.run(main)


@pytest.mark.parametrize("call", ["acquire", "with", "semaphore", "locked", "close"])
def test_trio_without_threads_works(valkey_server: embedded.Server, unique_name: str, call: str) -> None:
    """And the same client does under asyncio, before and after."""
    import asyncio

    import trio

    locks = holdfast.asyncio.connect(valkey_server.url)
    lock = locks.lock(unique_name)

    async def main() -> None:
        if call == "acquire":
            await (await lock.acquire()).release()
        elif call == "semaphore":
            await (await locks.semaphore(unique_name, permits=2).acquire()).release()
        elif call == "locked":
            assert await lock.locked() is False
        elif call == "close":
            await locks.close()
        else:
            async with lock as lease:
                lease.ensure_held()

    async def used_before() -> Any:
        return await lock.locked()

    with asyncio.Runner() as runner:
        assert runner.run(used_before()) is False
        trio.run(main)
        if call == "close":
            with pytest.raises(holdfast.ClientClosed):
                runner.run(used_before())
        else:
            assert runner.run(used_before()) is False
        runner.run(locks.close())

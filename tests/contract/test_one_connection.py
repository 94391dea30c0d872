"""asyncio: the connection of all commands is where wake-ups come in, too; what ends it costs no one the lock."""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import Any

import pytest

import holdfast.asyncio as aio
from holdfast import embedded

WAITERS = 100
#: Of kills, s: enough to strike handshakes, subscriptions, requests and wake-ups.
STORM_S = 2.0
PATIENCE_S = 60.0


def connections(raw: Any, name: str) -> list[dict[str, str]]:
    """Return the connections of that name."""
    return [each for each in raw.client_list() if each["name"] == name]


@pytest.mark.parametrize("protocol", [2, 3])
def test_all_that_wait_need_one_connection(server: embedded.Server, raw: Any, unique_name: str, protocol: int) -> None:
    name = f"c{time.monotonic_ns()}"

    async def main() -> int:
        async with aio.connect(f"{server.url}?client_name={name}&protocol={protocol}") as locks:

            async def work() -> None:
                async with locks.lock(unique_name, ttl=20):
                    await asyncio.sleep(0.001)

            async with await locks.lock(unique_name, ttl=20).acquire():
                tasks = [asyncio.create_task(work()) for _ in range(WAITERS)]
                async with asyncio.timeout(PATIENCE_S):
                    while await locks.lock(unique_name).waiters() < WAITERS:
                        await asyncio.sleep(0.01)
                found = connections(raw, name)
            await asyncio.gather(*tasks)
            found += connections(raw, name)
            return len(found)

    assert asyncio.run(main()) == 2, "looked at twice"


def test_a_storm_of_killed_connections_costs_nobody_the_lock(
    server: embedded.Server, raw: Any, unique_name: str
) -> None:
    name = f"c{time.monotonic_ns()}"
    inside: set[int] = set()
    entered = [0] * WAITERS
    fences: list[int] = []

    async def main() -> int:
        kills = 0
        async with aio.connect(f"{server.url}?client_name={name}") as locks:
            over = asyncio.Event()

            async def work(number: int) -> None:
                while not over.is_set() or not entered[number]:
                    lease = await locks.lock(unique_name, ttl=20).acquire()
                    assert not inside
                    inside.add(number)
                    await asyncio.sleep(0)
                    if lease.state is aio.LeaseState.HELD:
                        fences.append(lease.fencing_token)
                        entered[number] += 1
                    inside.discard(number)
                    await lease.release()

            tasks = [asyncio.create_task(work(number)) for number in range(WAITERS)]
            until = time.monotonic() + STORM_S
            for pause in itertools.cycle((0.0, 0.001, 0.01, 0.05)):
                if time.monotonic() > until + (0.0 if kills > 10 else PATIENCE_S):
                    break  # not before there was a storm, however slow the machine is
                for each in connections(raw, name):
                    kills += raw.client_kill_filter(_id=each["id"])
                await asyncio.sleep(pause)
            over.set()
            async with asyncio.timeout(PATIENCE_S):
                await asyncio.gather(*tasks)
            assert await locks.lock(unique_name).waiters() == 0
        return kills

    assert asyncio.run(main()) > 10
    assert all(entered) and fences == sorted(set(fences))
    assert raw.exists(f"holdfast:{{{unique_name}}}", f"holdfast:{{{unique_name}}}:queue") == 0

"""One client for threads and for tasks: they share its connection, and hand locks on to each other."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import pytest

import holdfast
from holdfast import embedded
from testbed.servers import unique
from testbed.waiting import PATIENCE_S

ROUNDS = 200


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


def test_they_take_turns_on_one_connection(
    server: embedded.Server, raw: Any, pool: ThreadPoolExecutor, unique_name: str
) -> None:
    """The lock goes from a thread to a task, and back, under one token of the server."""
    called = unique("client").replace("-", "")
    inside: list[str] = []
    entered: list[tuple[str, str, int]] = []

    def note(who: str, lease: Any) -> None:
        inside.append(who)
        assert len(inside) == 1
        entered.append((lease.token, who, lease.fencing_token))

    with holdfast.connect(f"{server.url}?client_name={called}") as locks:

        def work() -> None:
            for _ in range(ROUNDS):
                with locks.lock(unique_name) as lease:
                    note("thread", lease)
                    inside.pop()

        async def work_in_a_task() -> None:
            for _ in range(ROUNDS):
                async with locks.tasks.lock(unique_name) as lease:
                    note("task", lease)
                    await asyncio.sleep(0)
                    inside.pop()

        async def main() -> None:
            await asyncio.gather(work_in_a_task(), work_in_a_task())

        threads = [pool.submit(work), pool.submit(work)]
        asyncio.run(main())
        for each in threads:
            each.result(PATIENCE_S)
        assert sum(each["name"] == called for each in raw.client_list()) == 1
    assert len(entered) == 4 * ROUNDS
    fences = [fence for _, _, fence in entered]
    assert fences == sorted(set(fences))
    turns = {(who, next_who) for (token, who, _), (same, next_who, _) in pairwise(entered) if token == same}
    assert {("thread", "task"), ("task", "thread")} <= turns

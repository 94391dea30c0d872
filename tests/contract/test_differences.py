"""How primitives differ from those of `threading` and `asyncio`: the table in docs/primitives/README.md, by rows."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest

import holdfast
import holdfast.asyncio
from testbed.waiting import PATIENCE_S
from tests.support.apis import Api
from tests.support.imports import ROOT

TTL_S = 60.0


def test_a_barrier_has_no_action(locks: Any, api: Api, unique_name: str) -> None:
    with pytest.raises(TypeError, match="action"):
        locks.barrier(unique_name, 2, action=print)
    barriers = [locks.barrier(f"{unique_name}-{number}", 3) for number in range(2)]
    done: list[str] = []

    def party() -> None:
        """Do as the page says: the first one acts, and all meet again."""
        if barriers[0].wait(PATIENCE_S) == 0:
            done.append("action")
        barriers[1].wait(PATIENCE_S)
        done.append("went on")

    for each in [api.start(party) for _ in range(3)]:
        each.result()
    assert done == ["action", *["went on"] * 3]


def test_a_semaphore_has_a_permit(locks: Any, unique_name: str) -> None:
    with pytest.raises(holdfast.ConfigurationError, match="permits"):
        locks.semaphore(unique_name, permits=0)


def test_the_lock_of_a_condition_is_not_reentrant_by_itself(locks: Any, api: Api, unique_name: str) -> None:
    actor = api.actor()
    lock = locks.lock(unique_name, ttl=TTL_S)
    condition = locks.condition(getattr(lock, "_target", lock))
    actor.enter(condition)
    with pytest.raises(holdfast.AlreadyHeld):
        actor.ask(condition, "__aenter__" if api.name == "asyncio" else "__enter__")
    actor.leave(condition)
    reentrant = locks.lock(unique_name, ttl=TTL_S, reentrant=True)
    condition = locks.condition(getattr(reentrant, "_target", reentrant))
    actor.enter(condition)
    actor.enter(condition)
    actor.leave(condition)
    actor.leave(condition)
    assert not lock.locked()


def test_a_wait_that_raises_has_released_the_lock(locks: Any, api: Api, raw: Any, unique_name: str) -> None:
    actor = api.actor()
    lock = locks.lock(unique_name, ttl=TTL_S)
    lease = actor.ask(lock, "acquire")
    raw.set(f"holdfast:{{{unique_name}}}", "another's", px=60_000)
    with pytest.raises(holdfast.LeaseLost):
        actor.ask(locks.condition(getattr(lock, "_target", lock)), "wait", timeout=PATIENCE_S)
    assert not lease.held


def test_waiting_in_another_task(valkey_server: Any, unique_name: str) -> None:
    asyncio.run(_wait_in_another_task(valkey_server.url, unique_name))


async def _wait_in_another_task(url: str, unique_name: str) -> None:
    async with holdfast.asyncio.connect(url) as locks:
        lock = locks.lock(unique_name, ttl=TTL_S)
        changed = locks.condition(lock)
        async with lock:
            waiting = asyncio.wait_for(changed.wait(timeout=0.05), PATIENCE_S)
            if sys.version_info < (3, 12):
                with pytest.raises(holdfast.NotHeld):
                    await waiting
            else:
                assert await waiting is False
        async with lock:
            async with asyncio.timeout(PATIENCE_S):
                assert await changed.wait(timeout=0.05) is False, "what the page says instead"


@pytest.mark.parametrize("page", ["README.md", "README.zh-CN.md"])
def test_the_table_has_a_row_for_each(page: str) -> None:
    text = (ROOT / "docs" / "primitives" / page).read_text(encoding="utf-8")
    rows = [line for line in text.rpartition("\n## ")[2].splitlines() if line.startswith("| ")]
    assert len(rows) - 1 == 5

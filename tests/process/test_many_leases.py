"""Thousands of leases of one client: whatever its threads and tasks do meanwhile, each is renewed, and none is lost."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import holdfast
from holdfast import embedded
from testbed.waiting import eventually
from tests.support.keys import key_of

THREADS, EACH = 8, 400
#: Long enough for a machine that is held up for seconds, short enough to be renewed a few times, s.
TTL_S = 8.0
#: Times that each is seen to be renewed after all is said and done.
RENEWALS = 2


def _held(locks: Any, name: str, seed: int) -> list[Any]:
    """By a thread: acquire many, with others that are extended, released, or acquired again between them."""
    chance = random.Random(seed)
    leases: list[Any] = []
    for number in range(EACH):
        lease = locks.lock(f"{name}-{seed}-{number}").acquire()
        what = chance.random()
        if what < 0.2:
            lease.extend(TTL_S)
        elif what < 0.3:
            lease.extend(2 * TTL_S)
        elif what < 0.4:
            lease.release()
            lease = locks.lock(lease.name).acquire()
        elif what < 0.5 and leases:
            leases.pop(chance.randrange(len(leases))).release()
        leases.append(lease)
    return leases


async def _held_by_tasks(tasks: Any, name: str) -> list[Any]:
    async def one(number: int) -> Any:
        lease = await tasks.lock(f"{name}-task-{number}").acquire()
        if number % 3 == 0:
            await lease.extend(TTL_S)
        return lease

    return await asyncio.gather(*(one(number) for number in range(EACH)))


@contextmanager
def _busy(locks: Any, name: str) -> Iterator[None]:
    """Other threads of the client come and go by locks of their own."""
    over = threading.Event()

    def turns(number: int) -> None:
        while not over.wait(0.002):  # without a pause, they would take all of a core
            with locks.lock(f"{name}-busy-{number}", ttl=20 * TTL_S):
                pass

    with ThreadPoolExecutor(2) as pool:
        others = [pool.submit(turns, number) for number in range(2)]
        try:
            yield
        finally:
            over.set()
    for other in others:
        other.result()


class _Ends:
    """When the keys of leases end, by the server; how often each has come to end later."""

    def __init__(self, look: Any, leases: list[Any]) -> None:
        self._look = look
        self._keys = {key_of(lease.name): lease.token for lease in leases}
        self._ends = dict.fromkeys(self._keys, 0)
        self._times = dict.fromkeys(self._keys, -1)

    def all_are_renewed(self) -> bool:
        time.sleep(0.3)  # they are renewed every few seconds, and to look at thousands of keys takes a while
        pipeline = self._look.pipeline(transaction=False)
        pipeline.mget([*self._keys])
        for key in self._keys:
            pipeline.pexpiretime(key)
        tokens, *ends = pipeline.execute()
        assert tokens == [*self._keys.values()], "each is held by its lease"
        for key, end in zip(self._keys, ends, strict=True):
            if end > self._ends[key]:
                self._ends[key] = end
                self._times[key] += 1
        return min(self._times.values()) >= RENEWALS


def test_thousands_of_leases_are_renewed_until_they_are_released(
    valkey_server: embedded.Server, look: Any, unique_name: str
) -> None:
    with holdfast.connect(valkey_server.url, ttl=TTL_S) as locks, _busy(locks, unique_name):
        with ThreadPoolExecutor(THREADS + 1) as pool:
            made = [pool.submit(_held, locks, unique_name, seed) for seed in range(THREADS)]
            leases = asyncio.run(_live(locks, look, unique_name, made))
        engines = [thread for thread in threading.enumerate() if thread.name == "holdfast"]
        assert len(engines) == 1
        for lease in leases:
            lease.ensure_held()
            lease.release()
    left = look.mget([key_of(lease.name) for lease in leases])
    assert not any(left)


async def _live(locks: Any, look: Any, name: str, made: list[Any]) -> list[Any]:
    """Have tasks hold some, too; look after all until they were renewed. Returns those of threads."""
    in_tasks = await _held_by_tasks(locks.tasks, name)
    leases = [lease for each in made for lease in await asyncio.wrap_future(each)]
    assert len(leases) > THREADS * EACH * 0.8
    told: list[object] = []
    for lease in leases[::50]:
        lease.on_lost(told.append)
    ends = _Ends(look, [*leases, *in_tasks])
    await asyncio.to_thread(eventually, ends.all_are_renewed, "all are renewed again and again")
    assert {lease.state for lease in (*leases, *in_tasks)} <= {holdfast.LeaseState.HELD, holdfast.LeaseState.SUSPECT}
    await asyncio.gather(*(lease.release() for lease in in_tasks))
    assert not told
    return leases

"""A kept lease: what it costs to take it again, and how soon another client gets it."""

from __future__ import annotations

import asyncio
import multiprocessing
import multiprocessing.connection
import time
from collections.abc import Callable
from typing import Any

import redis

import holdfast.asyncio
from bench import crowd, peers
from bench.rows.commands import counted
from bench.run import Run, median, ratio, rounds
from bench.tables import Table, Target, number

__all__ = ["keep"]

_THREADS, _TASKS = "threads, acquire + release", "asyncio, acquire + release"
_HANDOFF, _CONTENDER = "handoff between 2 processes", "another process gets what is kept"
_OPTIONS: Any = {"cache_for": 10.0, "ttl": 30.0}
#: How long the keeper's lease is idle before another client asks; and how long an answer may take.
_IDLE_S, _PATIENCE_S = 0.005, 60.0


def keep(run: Run) -> Table:
    """Measure a kept pair with threads and tasks, and a contender beside a plain handoff."""
    cycles, turns = run.some(300, 50), run.some(15, 3)
    table = Table(
        "keep",
        "Kept leases",
        f"A lease that its client keeps, acquired and released {cycles} times in each of {turns} interleaved rounds; "
        "requests are counted by MONITOR. Below, how long another process waits for a lease that is kept and idle "
        f"({run.some(100, 10)} times a round, p50), beside a plain handoff between two processes that hold for 2 ms.",
        ("", "µs", "requests per pair", "× the handoff"),
    )
    loop = asyncio.new_event_loop()
    locks, tasks = holdfast.connect(run.server.url), holdfast.asyncio.connect(run.server.url)
    try:
        lock, task_lock = locks.lock(peers.unique(), **_OPTIONS), tasks.lock(peers.unique(), **_OPTIONS)

        async def paired(count: int) -> float:
            begin = time.perf_counter()
            for _ in range(count):
                await (await task_lock.acquire()).release()
            return (time.perf_counter() - begin) / count * 1e6

        parties: dict[str, Callable[[], float]] = {
            _THREADS: peers.timed((lock.acquire, lambda lease: lease.release()), cycles),
            _TASKS: lambda: loop.run_until_complete(paired(cycles)),
        }
        for who, once in parties.items():
            # The first acquire has the inbox opened, without which nothing is kept.
            until = time.monotonic() + _PATIENCE_S
            while _requests(run, once):
                if time.monotonic() > until:
                    raise RuntimeError(f"{who}: nothing is kept")
                loop.run_until_complete(asyncio.sleep(0.05))
        found = rounds(run, "keep", turns, parties)
        for who, once in parties.items():
            # The least of a few: in one of them the time for which it is kept may end, and it is acquired again.
            us, sent = median(found[who]), min(_requests(run, once) for _ in range(3)) / (cycles + 1)
            table.lines.append((who, number(us), number(sent), ""))
            table.figures[who] = {"us": us, "requests": sent}
    finally:
        loop.run_until_complete(tasks.close())
        locks.close()
        loop.close()
    _contender(run, table)
    for who, most in ((_THREADS, 10), (_TASKS, 20)):
        table.targets += [
            Target(f"kept lease, {who}, µs", table.figures[who]["us"] or 0.0, most),
            Target(f"kept lease, {who}, requests", table.figures[who]["requests"] or 0.0, 0),
        ]
    table.targets.append(
        Target("contender of an idle kept lease, handoffs", table.figures[_CONTENDER]["ratio"] or 0.0, 1.5)
    )
    return table


def _requests(run: Run, once: Callable[[], object]) -> int:
    with redis.Redis.from_url(run.server.url) as client, counted(client) as count:
        once()
    return count.sent


def _contender(run: Run, table: Table) -> None:
    """Beside the handoff, in the same rounds."""
    lasts_s, times = run.some(10, 3) / 10, run.some(100, 10)
    spawning = multiprocessing.get_context("forkserver")
    name = peers.unique("kept")
    ours, theirs = spawning.Pipe()
    keeper = spawning.Process(target=_keeper, args=(theirs, run.server.url, name), daemon=True)
    keeper.start()
    theirs.close()
    locks = holdfast.connect(run.server.url)
    lock = locks.lock(name, ttl=_OPTIONS["ttl"])

    def handoff() -> float:
        seen = crowd.of_processes(peers.OURS, run.server.url, peers.unique(), 2, 0.002, lasts_s)
        return median(crowd.handoffs_us(seen, lasts_s / 4))

    def contend() -> float:
        waits = []
        for _ in range(times):
            ours.send(None)
            if not ours.poll(_PATIENCE_S):
                raise RuntimeError("the keeper hangs")
            ours.recv()
            time.sleep(_IDLE_S)
            begin = time.perf_counter()
            with lock:
                waits.append((time.perf_counter() - begin) * 1e6)
        return median(waits)

    try:
        contend()
        found = rounds(run, "keep, contender", run.some(5, 2), {_HANDOFF: handoff, _CONTENDER: contend})
    finally:
        ours.close()  # which ends the keeper
        locks.close()
        keeper.join(_PATIENCE_S)
    for who in (_HANDOFF, _CONTENDER):
        us, times_as_long = median(found[who]), ratio(found[who], found[_HANDOFF])
        table.lines.append((who, number(us), "", number(times_as_long)))
        table.figures[who] = {"us": us, "ratio": times_as_long}


def _keeper(pipe: multiprocessing.connection.Connection, url: str, name: str) -> None:
    """Acquire the lease for each message, and let it be idle."""
    with holdfast.connect(url) as locks:
        lock = locks.lock(name, **_OPTIONS)
        try:
            while True:
                pipe.recv()
                with lock:
                    pass
                pipe.send(None)
        except EOFError:
            pass

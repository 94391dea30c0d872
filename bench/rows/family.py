"""The other synchronizers, beside the plain lock."""

from __future__ import annotations

import asyncio
import math
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import redis

import holdfast
import holdfast.asyncio
from bench import crowd
from bench.peers import timed, unique
from bench.peers_family import ABSENT, FAMILY, LOCK, OURS, PEER_OF, STRICT_LOCK, Ours
from bench.run import Run, median, ratio, rounds
from bench.tables import Table, Target, number

__all__ = ["fairness", "family", "handoff", "tasks"]

#: Held for long enough that all others are waiting again.
_HOLD_S = 0.002
_WAITING = 8
#: Of the fairness row.
_SPINNING = 20


#: Which other packages were looked at, and why they are no rows.
_TRIED = (
    "Of what else PyPI has, redis-semaphore (2016) has the import name of py-redis-semaphore, redisrwlock has no "
    "leases (a separate process looks for dead holders), redis-semaphore-eval needs redis-py before 4, "
    "redis-fair-semaphore installs no code, and redsync, redguard and xtr-lock are for asyncio only."
)


def _missing() -> str:
    return f"{', '.join(ABSENT)} (not installed)." if ABSENT else ""


def family(run: Run) -> Table:
    """Acquire and release of each, no one else."""
    cycles = run.some(200, 50)
    table = Table(
        "family",
        "Other synchronizers, compared with the plain lock",
        f"Acquire and release in one thread, {cycles:,} pairs per round, interleaved. {_TRIED}",
        ("", "µs per pair", "× the plain lock"),
        missing=_missing(),
    )
    names = [who for who in FAMILY if not who.endswith("of 1")]
    peers = {who: FAMILY[who](run.server.url) for who in names}
    try:
        pairs = {who: peer.pair(unique()) for who, peer in peers.items()}

        found = rounds(run, "family", run.some(15, 2), {who: timed(pairs[who], cycles) for who in names})
    finally:
        for peer in peers.values():
            peer.close()
    for who in names:
        middle, times = statistics.median(found[who]), ratio(found[who], found[LOCK])
        table.lines.append((who, number(middle), number(times)))
        table.figures[who] = {"us": middle, "ratio": times}
        if who != LOCK and who not in PEER_OF:
            table.targets.append(Target(f"{who}, × the plain lock", times, 1.5))
    return table


def tasks(run: Run) -> Table:
    """The same with asyncio; ours alone."""
    cycles = run.some(200, 50)
    table = Table(
        "family-tasks",
        "Other synchronizers, compared with the plain lock, asyncio",
        f"Acquire and release in one task, {cycles:,} pairs per round, interleaved.",
        ("", "µs per pair", "× the plain lock"),
    )
    names = [who for who in OURS if not who.endswith("of 1")]
    with asyncio.Runner() as runner:

        async def connect() -> Any:
            return holdfast.asyncio.connect(run.server.url)

        locks = runner.run(connect())
        try:
            things = {who: OURS[who](locks, unique()) for who in names}

            async def cycle(who: str) -> float:
                acquire = things[who].acquire
                await (await acquire()).release()
                begin = time.perf_counter()
                for _ in range(cycles):
                    await (await acquire()).release()
                return (time.perf_counter() - begin) / cycles * 1e6

            def measure(who: str) -> Callable[[], float]:
                return lambda: runner.run(cycle(who))

            found = rounds(run, "family-tasks", run.some(15, 2), {who: measure(who) for who in names})
        finally:
            runner.run(locks.close())
    for who in names:
        middle, times = statistics.median(found[who]), ratio(found[who], found[LOCK])
        table.lines.append((who, number(middle), number(times)))
        table.figures[who] = {"us": middle, "ratio": times}
        if who != LOCK:
            table.targets.append(Target(f"{who}, × the plain lock, asyncio", times, 1.5))
    return table


def handoff(run: Run) -> Table:
    """Measure from the start of a release to the next grant."""
    lasts_s = 0.3 if run.quick else 1.0
    turns = run.some(5, 1)
    table = Table(
        "family-handoff",
        "Handoff of other synchronizers, compared with the plain lock",
        f"From the start of a release to the next grant, µs (p50 / p99, medians of {turns} interleaved rounds of "
        f"{lasts_s:g} s), with {_WAITING} threads that hold for {_HOLD_S * 1000:g} ms and queue again. Compared with a "
        "lock that asks the server for each turn, as all the others here do (`tenure=0`).",
        ("", "p50 / p99, µs", "× the strict lock"),
        missing=_missing(),
    )
    make = {STRICT_LOCK: lambda url: Ours(url, OURS[LOCK], tenure=0), **FAMILY}
    names = [who for who in make if "read" not in who and "of 3" not in who and "reentrant" not in who]

    def measure(who: str) -> Callable[[], tuple[float, float]]:
        def once() -> tuple[float, float]:
            seen = crowd.of_peer(make[who](run.server.url), unique("handoff"), _WAITING, _HOLD_S, lasts_s)
            found = crowd.handoffs_us(seen, lasts_s / 4) or crowd.handoffs_us(seen, 0.0)
            if len(found) < 2:
                return math.nan, math.nan  # too few took over from each other
            return statistics.median(found), statistics.quantiles(found, n=100)[98]

        return once

    found = rounds(run, "family-handoff", turns, {who: measure(who) for who in names})
    medians = {who: [p50 for p50, _ in found[who]] for who in names}
    for who in names:
        p50, p99 = median(medians[who]), median(p99 for _, p99 in found[who])
        times = ratio(medians[who], medians[STRICT_LOCK])
        table.lines.append((who, f"{number(p50)} / {number(p99)}", number(times)))
        table.figures[who] = {"p50 us": p50, "p99 us": p99, "ratio": times}
        if who not in (LOCK, STRICT_LOCK) and who not in PEER_OF:
            table.targets.append(Target(f"{who}, handoff p50 × the strict lock's", times, 1.5))
    return table


def fairness(run: Run) -> Table:
    """Count those let in between the arrival of one that needs all and its turn."""
    table = Table(
        "family-fairness",
        "A request for everything, among twenty threads in a loop",
        f"Grants to {_SPINNING} spinning threads between the arrival (server time) of a writer, or of a request for "
        f"all permits, and its turn, in generations of {_SPINNING}; one more holds until the arrival was seen. "
        "First come, first served means: none that came later, so at most those that were already in the queue.",
        ("", "grants between, median", "worst", "generations, worst"),
    )
    cases: dict[str, Callable[[holdfast.Client, str], tuple[Any, Any, str, str]]] = {
        "1 writer among readers": lambda locks, name: (
            locks.rwlock(name).read().acquire,
            locks.rwlock(name).write().acquire,
            f"holdfast:{{{name}}}:queue",
            ":w.",
        ),
        "all 5 permits among single ones": lambda locks, name: (
            locks.semaphore(name, 5).acquire,
            lambda: locks.semaphore(name, 5).acquire(permits=5),
            f"holdfast:{{{name}}}:sem:queue",
            ":5.",
        ),
    }
    with (
        holdfast.connect(run.server.url) as locks,
        holdfast.connect(run.server.url) as other,
        redis.Redis.from_url(run.server.url, decode_responses=True) as look,
    ):

        def measure(who: str) -> Callable[[], float]:
            def once() -> float:
                name = unique("fair")
                spin_acquire, _, queue, mark = cases[who](locks, name)
                pin_acquire, all_acquire, _, _ = cases[who](other, name)
                return float(_between(look, spin_acquire, pin_acquire, all_acquire, queue, mark))

            return once

        found = rounds(run, "family-fairness", run.some(9, 1), {who: measure(who) for who in cases})
    for who in cases:
        worst = max(found[who])
        table.lines.append(
            (who, number(statistics.median(found[who])), number(worst), number(worst / _SPINNING)),
        )
        table.figures[who] = {"median": statistics.median(found[who]), "worst": worst}
        table.targets.append(Target(f"{who}, generations let in before it", worst / _SPINNING, 2.0))
    return table


def _between(look: Any, spin_acquire: Any, pin_acquire: Any, all_acquire: Any, queue: str, mark: str) -> int:
    fences: list[int] = []
    stop: list[bool] = []

    def spin() -> None:
        while not stop:
            lease = spin_acquire()
            fences.append(lease.fencing_token)
            lease.release()

    def arrival() -> float:
        waiting = look.zrange(queue, 0, -1, withscores=True)
        return next((score for token, score in waiting if mark in token), 0.0)

    with ThreadPoolExecutor(_SPINNING + 1) as pool:
        spinning = [pool.submit(spin) for _ in range(_SPINNING)]
        try:
            until = time.monotonic() + 60
            while len(fences) < 5 * _SPINNING and time.monotonic() < until:
                time.sleep(0.005)
            pin = pin_acquire()  # so that it can be seen waiting
            waiting = pool.submit(all_acquire)
            while not (came := arrival()) and time.monotonic() < until:
                time.sleep(0.001)
            pin.release()
            lease = waiting.result(60)
            turn: int = lease.fencing_token
            between = sum(came < fence < turn for fence in tuple(fences))
            lease.release()
        finally:
            stop.append(True)
        for each in spinning:
            each.result(60)
    return between

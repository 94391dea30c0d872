"""The other synchronizers, beside the plain lock."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import holdfast
from bench.peers import Pair, unique
from bench.run import Run, ratio, rounds
from bench.tables import Table, Target, number

__all__ = ["family"]

_LOCK = "lock"


def family(run: Run) -> Table:
    """Acquire and release of each, nobody else."""
    cycles = run.some(200, 50)
    table = Table(
        "family",
        "Other synchronizers beside the plain lock",
        f"Acquire and release in one thread, {cycles:,} pairs a round, interleaved.",
        ("", "µs a pair", "× the plain lock"),
    )
    with holdfast.connect(run.server.url) as locks:
        makers = _makers(locks)
        pairs: dict[str, Pair] = {}
        absent = []
        for who, make in makers.items():
            try:
                thing = make()
            except (AttributeError, TypeError):
                absent.append(who)
                continue
            pairs[who] = (thing.acquire, lambda lease: lease.release())

        def measure(who: str) -> Callable[[], float]:
            acquire, release = pairs[who]

            def once() -> float:
                release(acquire())
                begin = time.perf_counter()
                for _ in range(cycles):
                    release(acquire())
                return (time.perf_counter() - begin) / cycles * 1e6

            return once

        found = rounds(run, "family", run.some(15, 2), {who: measure(who) for who in pairs})
    for who in pairs:
        median, times = statistics.median(found[who]), ratio(found[who], found[_LOCK])
        table.lines.append((who, number(median), number(times)))
        table.figures[who] = {"us": median, "ratio": times}
        if who != _LOCK:
            table.targets.append(Target(f"{who}, × the plain lock", times, 1.5))
    if absent:
        table.missing = f"{', '.join(absent)}: not in this version."
    return table


def _makers(locks: Any) -> dict[str, Callable[[], Any]]:
    return {
        _LOCK: lambda: locks.lock(unique()),
        "lock, reentrant": lambda: locks.lock(unique(), reentrant=True),
        "rwlock, read": lambda: locks.rwlock(unique()).read(),
        "rwlock, write": lambda: locks.rwlock(unique()).write(),
        "semaphore of 3": lambda: locks.semaphore(unique(), permits=3),
        "multilock of 2": lambda: locks.multilock(f"{{m}}{unique()}", f"{{m}}{unique()}"),
    }

"""`python -m spikes.engine.compare URL`: the shipped drivers and the engine, in turn; medians of rounds.

With each figure stands the CPU time of this process for one pair, µs, which other work on the machine moves less.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

__all__ = ["main"]

ROUNDS = 5
PAIRS = 1_000
SECONDS = 1.0


def _pair_us(locks: Any, confirmed: bool) -> tuple[float, float]:
    lock = locks.lock("pair", ttl=30, confirm_release=confirmed)
    for _ in range(50):
        lock.acquire().release()
    began, cpu = time.perf_counter(), time.process_time()
    for _ in range(PAIRS):
        lock.acquire().release()
    return (time.perf_counter() - began) / PAIRS * 1e6, (time.process_time() - cpu) / PAIRS * 1e6


def _threads_per_s(locks: Any, names: Callable[[int], str]) -> tuple[float, float]:
    counts = [0] * 8
    cpu = time.process_time()
    until = time.perf_counter() + SECONDS

    def work(number: int) -> None:
        lock = locks.lock(names(number), ttl=30)
        while time.perf_counter() < until:
            with lock:
                counts[number] += 1

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(counts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / SECONDS, (time.process_time() - cpu) / sum(counts) * 1e6


def measure(url: str, on_engine: bool) -> dict[str, tuple[float, float]]:
    """One round, in this process."""
    import holdfast

    if on_engine:
        from spikes.engine.api import install

        install()
    with holdfast.connect(url) as locks:
        return {
            "pair, us": _pair_us(locks, True),
            "pair, release not waited for, us": _pair_us(locks, False),
            "8 threads, a lock each, pairs/s": _threads_per_s(locks, lambda number: f"own {number}"),
            "8 threads, one lock, /s": _threads_per_s(locks, lambda number: "shared"),
        }


def main(url: str) -> None:
    """All rounds, each in a process of its own."""
    found: dict[str, list[dict[str, list[float]]]] = {"drivers": [], "engine": []}
    for _ in range(ROUNDS):
        for which, rows in found.items():
            command = [sys.executable, "-m", "spikes.engine.compare", url, which]
            rows.append(json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
    for row in found["drivers"][0]:
        (drivers, cpu), (engine, engine_cpu) = (
            [statistics.median(each[row][at] for each in rows) for at in (0, 1)] for rows in found.values()
        )
        print(
            f"{row:34} drivers {drivers:9,.1f}   engine {engine:9,.1f}   × {engine / drivers:.2f}"
            f"   CPU {cpu:6.1f} {engine_cpu:6.1f}   × {engine_cpu / cpu:.2f}"
        )


if __name__ == "__main__":
    if len(sys.argv) > 2:
        print(json.dumps(measure(sys.argv[1], sys.argv[2] == "engine")))
    else:
        main(sys.argv[1])

"""APScheduler in three processes: each tick is swept by one of them."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import redis

from testbed.servers import start
from testbed.waiting import eventually
from tests.frameworks.programs import Programs

PROCESSES = 3
EVERY_S = 2
#: The lock is kept for half of the interval: a process that comes later than that is not kept out of its tick, and a
#: holder that comes later keeps the next tick from all. Such ticks, on a machine that stalls, say nothing.
IN_TIME_S = EVERY_S / 2
PATIENCE_S = 150.0


def test_three_processes_sweep_once_at_each_tick(tmp_path: Path) -> None:
    with start() as server, redis.Redis.from_url(server.url) as store:
        programs = Programs(tmp_path, HOLDFAST_URL=server.url, SWEEP_EVERY_S=str(EVERY_S))

        def told() -> dict[float, list[str]]:
            """Return what the processes made of each tick at which all came in time, as the one before."""
            programs.check()
            ticks: dict[float, list[dict[str, Any]]] = {}
            for line in store.lrange("told", 0, -1):
                event = json.loads(line)
                ticks.setdefault(event["tick"], []).append(event)
            in_time = {
                tick: sorted(event["result"] for event in events)
                for tick, events in ticks.items()
                if len(events) == PROCESSES and all(event["late_s"] < IN_TIME_S for event in events)
            }
            return {tick: results for tick, results in in_time.items() if tick - EVERY_S in in_time}

        try:
            for _ in range(PROCESSES):
                programs.start("tests.frameworks.ticking", "told")
            ticks = eventually(lambda: len(told()) >= 4 and told(), "four ticks with all processes", PATIENCE_S)
        finally:
            programs.close()
        once = ["another process runs it"] * (PROCESSES - 1) + ["swept"]
        assert ticks == dict.fromkeys(ticks, once), programs.logs()


def test_coroutines_sweep_once_at_each_tick(tmp_path: Path) -> None:
    with start() as server:
        programs = Programs(tmp_path, HOLDFAST_URL=server.url, SWEEP_EVERY_S=str(EVERY_S))

        def sweeps() -> int:
            programs.check()
            return programs.logs().count("swept\n")

        begun = time.time() // EVERY_S
        try:
            for _ in range(2):
                programs.start("examples.frameworks.apscheduler_asyncio")
            swept = eventually(lambda: sweeps() >= 4 and sweeps(), "four sweeps", PATIENCE_S)
        finally:
            programs.close()
        ticks = time.time() // EVERY_S - begun
        assert swept <= 1 + 1.5 * ticks, "each process would sweep at each tick"

"""From the start of a release to the next grant, with a crowd waiting."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable

from bench import crowd
from bench.peers import unique
from bench.run import Run, median, ratio, rounds
from bench.tables import Table, Target, number

__all__ = ["processes", "tasks", "threads"]

FLOOR = "BLPOP floor"

#: Held for long enough that all others are waiting again.
_HOLD_S = 0.002
_SIZES = (2, 8, 32, 128)
#: Within one process, where a lock is mostly handed on without the server.
_INSIDE = (8, 64)


def threads(run: Run) -> Table:
    """Threads of one process."""
    return _handoff(run, "threads", crowd.of_threads, [FLOOR, "holdfast", "redis-py Lock", "python-redis-lock"])


def tasks(run: Run) -> Table:
    """Tasks of one event loop."""
    return _handoff(run, "tasks", crowd.of_tasks, [FLOOR, "holdfast", "redis-py Lock"])


def processes(run: Run) -> Table:
    """Processes of one thread each."""
    return _handoff(run, "processes", crowd.of_processes, [FLOOR, "holdfast", "redis-py Lock", "python-redis-lock"])


def _handoff(run: Run, kind: str, compete: Callable[..., list[crowd.Seen]], names: list[str]) -> Table:
    sizes = (2, 8) if run.quick else _SIZES if kind == "processes" else _INSIDE
    lasts_s = 0.3 if run.quick else 1.0
    turns = run.some(3, 1)
    table = Table(
        f"handoff-{kind}",
        f"Handoff between waiting {kind}",
        f"From the start of a release to the next grant, µs (p50 / p99, medians of {turns} interleaved rounds of "
        f"{lasts_s:g} s), with {sizes[0]} … {sizes[-1]} {kind} that hold for {_HOLD_S * 1000:g} ms and queue again. "
        "The floor is a bare socket with BLPOP for everyone, and LPUSH: no lease, no token, no fencing."
        + (" CPU: for each turn, of the clients + of the server." if kind == "processes" else ""),
        (
            *("", *(f"{size} {kind}" for size in sizes), *(f"{size}: × the floor" for size in sizes)),
            *(f"{size}: CPU, µs" for size in sizes if kind == "processes"),
        ),
    )
    medians: dict[int, dict[str, list[float]]] = {}
    cells: dict[str, list[str]] = {who: [who] for who in names}
    cpu: dict[str, list[str]] = {who: [] for who in names}
    for who in names:
        table.figures[who] = {}
    for size in sizes:

        def measure(who: str, size: int = size) -> Callable[[], tuple[float, float, float, float]]:
            def once() -> tuple[float, float, float, float]:
                before_s = run.server_cpu_s()
                seen = compete(who, run.server.url, unique("handoff"), size, _HOLD_S, lasts_s)
                server_us = (run.server_cpu_s() - before_s) * 1e6 / max(1, sum(len(each.turns) for each in seen))
                cpu_us = crowd.cpu_us(seen), server_us
                found = crowd.handoffs_us(seen, lasts_s / 4) or crowd.handoffs_us(seen, 0.0)
                if len(found) < 2:
                    return math.nan, math.nan, *cpu_us  # too few took over from each other
                return statistics.median(found), statistics.quantiles(found, n=100)[98], *cpu_us

            return once

        found = rounds(run, f"handoff, {size} {kind}", turns, {who: measure(who) for who in names})
        medians[size] = {who: [each[0] for each in found[who]] for who in names}
        for who in names:
            p50 = median(medians[size][who])
            p99, client_us, server_us = (median(each[at] for each in found[who]) for at in (1, 2, 3))
            cells[who].append(f"{number(p50)} / {number(p99)}")
            table.figures[who] |= {f"p50 us at {size}": p50, f"p99 us at {size}": p99}
            if kind == "processes":
                table.figures[who] |= {f"client CPU us at {size}": client_us, f"server CPU us at {size}": server_us}
                cpu[who].append(f"{number(client_us)} + {number(server_us)}")
    for size in sizes:
        for who in names:
            times = ratio(medians[size][who], medians[size][FLOOR])
            cells[who].append(number(times))
            table.figures[who][f"ratio at {size}"] = times
    table.lines += [(*cells[who], *cpu[who]) for who in names]
    table.targets += [
        Target(f"holdfast, {size} {kind}, p50 × the floor", table.figures["holdfast"][f"ratio at {size}"] or 0.0, 2.5)
        for size in sizes
    ]
    return table

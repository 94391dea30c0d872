"""What users have: a network between them and their server."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable

from bench import crowd, peers, wire
from bench.peers import FLOOR, IDIOM, OURS, UNCONFIRMED, unique
from bench.run import Run, median, ratio, rounds
from bench.tables import Table, Target, number

__all__ = ["handoff", "pairs"]

_EACH_WAY_S = 0.00025
_SAYS = (
    f"Every message takes {_EACH_WAY_S * 1000:g} ms longer in each direction (a process between client and server that "
    "holds bytes back, which costs some time of its own): a network inside of one data center."
)


def pairs(run: Run) -> Table:
    """Acquire and release, no one else."""
    cycles = run.some(100, 30)
    names = [FLOOR, OURS, UNCONFIRMED, "redis-py Lock", "python-redis-lock"]
    with wire.slow(run.server.url, _EACH_WAY_S) as url, peers.opened(names, url) as pair_of:
        found = rounds(run, "network", run.some(11, 2), {who: peers.timed(pair_of[who], cycles, 5) for who in names})
    table = Table(
        "network",
        "Acquire and release over a network, one thread, uncontended",
        f"{_SAYS} {cycles:,} pairs in each of {len(found[FLOOR])} interleaved rounds. The floor is a bare socket that "
        "sends `SET NX PX`, and a compare-and-delete by `EVALSHA`.",
        ("", "µs per pair", "× the floor"),
    )
    for who in names:
        times = ratio(found[who], found[FLOOR])
        table.lines.append((who, number(statistics.median(found[who])), number(times)))
        table.figures[who] = {"us": statistics.median(found[who]), "ratio": times}
    table.targets.append(Target("holdfast over a network, × the floor", table.figures[OURS]["ratio"] or 0.0, 1.1))
    table.targets.append(
        Target("a release not waited for, over a network, × the floor", table.figures[UNCONFIRMED]["ratio"] or 0.0, 0.6)
    )
    return table


def handoff(run: Run) -> Table:
    """Measure from the start of a release to the next grant."""
    floor, count, hold_s = "BLPOP floor", run.some(8, 2), 0.002
    lasts_s = 0.5 if run.quick else 1.5
    names = [floor, OURS, IDIOM, "redis-py Lock", "python-redis-lock"]
    table = Table(
        "network-handoff",
        "Handoff between waiting processes over a network",
        f"{_SAYS} From the start of a release to the next grant, with {count} processes that hold for "
        f"{hold_s * 1000:g} ms and queue again. The floor is BLPOP and LPUSH: no lease, no token, no fencing.",
        ("", "p50, µs", "p99, µs", "× the floor"),
    )
    with wire.slow(run.server.url, _EACH_WAY_S) as url:

        def measure(who: str) -> Callable[[], tuple[float, float]]:
            def once() -> tuple[float, float]:
                seen = crowd.of_processes(who, url, unique("network"), count, hold_s, lasts_s)
                each = crowd.handoffs_us(seen, lasts_s / 4) or crowd.handoffs_us(seen, 0.0)
                if len(each) < 2:
                    return math.nan, math.nan  # too few took over from each other
                return statistics.median(each), statistics.quantiles(each, n=100)[98]

            return once

        found = rounds(run, "network-handoff", run.some(3, 1), {who: measure(who) for who in names})
    medians = {who: [p50 for p50, _ in found[who]] for who in names}
    for who in names:
        p50, p99, times = (
            median(medians[who]),
            median(p99 for _, p99 in found[who]),
            ratio(medians[who], medians[floor]),
        )
        table.lines.append((who, number(p50), number(p99), number(times)))
        table.figures[who] = {"p50 us": p50, "p99 us": p99, "ratio": times}
    table.targets.append(
        Target("holdfast, handoff over a network, × the floor", table.figures[OURS]["ratio"] or 0.0, 1.35)
    )
    return table

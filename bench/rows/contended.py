"""Everybody wants the same lock, all the time."""

from __future__ import annotations

import statistics
from collections.abc import Callable

from bench import crowd
from bench.peers import unique
from bench.run import Run, ratio, rounds
from bench.tables import Table, Target, number

__all__ = ["contended"]

_NAMES = ["BLPOP floor", "holdfast", "redis-py Lock", "python-redis-lock"]


def contended(run: Run) -> Table:
    """4 processes with 8 threads each."""
    processes, threads = (2, 2) if run.quick else (4, 8)
    lasts_s = 0.5 if run.quick else 2.0

    def measure(who: str) -> Callable[[], tuple[float, float, int]]:
        def once() -> tuple[float, float, int]:
            seen = crowd.of_processes(who, run.server.url, unique("crowd"), processes, 0.0, lasts_s, threads)
            counts = [len(each.turns) for each in seen]
            first = min(each.turns[0][0] for each in seen if each.turns)
            last = max(each.turns[-1][1] for each in seen if each.turns)
            return sum(counts) / (last - first), crowd.jain(counts), sum(count <= 1 for count in counts)

        return once

    found = rounds(run, "contended", run.some(3, 1), {who: measure(who) for who in _NAMES})
    table = Table(
        "contended",
        f"One lock, {processes} processes × {threads} threads",
        f"All threads acquire and release as fast as they can, for {lasts_s:g} s. Jain's index is 1 when all get the "
        f"same, {1 / (processes * threads):.2f} when one gets everything; starved are those who got it once or never.",
        ("", "acquisitions/s", "× redis-py", "Jain's index", f"starved of {processes * threads}"),
    )
    theirs = [each for each, _, _ in found["redis-py Lock"]]
    for who in _NAMES:
        each = [per_s for per_s, _, _ in found[who]]
        fairness = statistics.median(index for _, index, _ in found[who])
        starved = statistics.median(count for _, _, count in found[who])
        times = ratio(each, theirs)
        table.lines.append((who, number(statistics.median(each)), number(times), f"{fairness:.3f}", number(starved)))
        table.figures[who] = {
            "per_s": statistics.median(each),
            "times redis-py": times,
            "jain": fairness,
            "starved": starved,
        }
    ours = table.figures["holdfast"]
    table.targets += [
        Target("holdfast, × the acquisitions/s of redis-py", ours["times redis-py"] or 0.0, 2.0, True),
        Target("holdfast, Jain's index", ours["jain"] or 0.0, 0.99, True),
    ]
    return table

"""All want the same lock, all the time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench import crowd
from bench.peers import FIFO, IDIOM, OURS, STRICT, unique
from bench.run import Run, median, ratio, rounds
from bench.tables import Table, Target, number

__all__ = ["contended", "inside_tasks", "inside_threads"]

_THEIRS = "redis-py Lock"


@dataclass(frozen=True, slots=True)
class _Found:
    """One round of a party."""

    per_s: float
    jain: float
    wait_ms: float
    starved: int
    #: Of a CPU, for each turn, µs.
    client_us: float = math.nan
    server_us: float = math.nan


def _found(seen: Sequence[crowd.Seen], server_s: float = math.nan) -> _Found:
    counts = [len(each.turns) for each in seen]
    starved = sum(count <= 1 for count in counts)
    return _Found(
        crowd.per_s(seen),
        crowd.jain(counts),
        crowd.longest_wait_s(seen) * 1000,
        starved,
        crowd.cpu_us(seen),
        server_s * 1e6 / max(1, sum(counts)),
    )


def _filled(
    table: Table, found: dict[str, list[_Found]], beside: str, times: Callable[[float], str] = number
) -> dict[str, dict[str, float | None]]:
    """A line for each party, and its figures."""
    rates = {who: [each.per_s for each in all_found] for who, all_found in found.items()}
    for who, all_found in found.items():
        part = ratio(rates[who], rates[beside])
        jain = median(each.jain for each in all_found)
        wait_ms = max(each.wait_ms for each in all_found)
        starved = median(each.starved for each in all_found)
        line = (number(median(rates[who])), times(part), f"{jain:.3f}", number(wait_ms), number(starved))
        table.lines.append((who, *line))
        table.figures[who] = {
            "per_s": median(rates[who]),
            "ratio": part,
            "jain": jain,
            "longest wait ms": wait_ms,
            "starved": starved,
        }
    return table.figures


def contended(run: Run) -> Table:
    """4 processes with 8 threads each."""
    processes, threads = (2, 2) if run.quick else (4, 8)
    lasts_s = 0.5 if run.quick else 2.0
    names = ["BLPOP floor", OURS, IDIOM, STRICT, _THEIRS, "python-redis-lock"]

    def measure(who: str) -> Callable[[], _Found]:
        def once() -> _Found:
            before_s = run.server_cpu_s()
            seen = crowd.of_processes(who, run.server.url, unique("crowd"), processes, 0.0, lasts_s, threads)
            return _found(seen, run.server_cpu_s() - before_s)

        return once

    found = rounds(run, "contended", run.some(5, 1), {who: measure(who) for who in names})
    table = Table(
        "contended",
        f"One lock, {processes} processes × {threads} threads",
        f"All threads acquire and release as fast as they can, for {lasts_s:g} s. Jain's index is 1 when all get the "
        f"same, {1 / (processes * threads):.2f} when one gets everything; starved are those that got it once or never. "
        "Threads of a client hand the lock on among themselves for up to 2 ms; strictly, with `tenure=0`, every turn "
        "goes through the server, in the order of arrival there. CPU: user's and system's time for each turn, of the "
        "processes that contend and of the server.",
        (
            *("", "acquisitions/s", "× redis-py", "Jain's index", "longest wait, ms"),
            *(f"starved of {processes * threads}", "clients' CPU, µs", "server's CPU, µs"),
        ),
    )
    figures = _filled(table, found, _THEIRS)
    for at, (who, all_found) in enumerate(found.items()):
        client_us = median(each.client_us for each in all_found)
        server_us = median(each.server_us for each in all_found)
        table.lines[at] = (*table.lines[at], number(client_us), number(server_us))
        figures[who] |= {"client CPU us": client_us, "server CPU us": server_us}
    for who, least, fair in ((OURS, 5.0, 0.95), (IDIOM, 5.0, 0.95), (STRICT, 1.3, 0.99)):
        table.targets += [
            Target(f"{who}, × the acquisitions/s of redis-py", figures[who]["ratio"] or 0.0, least, True),
            Target(f"{who}, Jain's index", figures[who]["jain"] or 0.0, fair, True),
        ]
    for who in (OURS, IDIOM):
        table.targets.append(Target(f"{who}, longest wait, ms", figures[who]["longest wait ms"] or 0.0, 100))
    return table


def inside_threads(run: Run) -> Table:
    """8 threads of one process."""
    return _inside(run, "threads", run.some(8, 2), crowd.of_threads, [FIFO, OURS, IDIOM, STRICT, _THEIRS], 0.25)


def inside_tasks(run: Run) -> Table:
    """100 tasks of one event loop."""
    return _inside(run, "tasks", run.some(100, 5), crowd.of_tasks, [FIFO, OURS, STRICT, _THEIRS], 0.12)


def _inside(
    run: Run, kind: str, count: int, compete: Callable[..., list[crowd.Seen]], names: list[str], least: float
) -> Table:
    lasts_s = 0.5 if run.quick else 1.5

    def measure(who: str) -> Callable[[], _Found]:
        return lambda: _found(compete(who, run.server.url, unique("inside"), count, 0.0, lasts_s))

    found = rounds(run, f"inside-{kind}", run.some(3, 1), {who: measure(who) for who in names})
    table = Table(
        f"inside-{kind}",
        f"One lock, 1 process × {count} {kind}",
        f"All {kind} acquire and release as fast as they can, for {lasts_s:g} s. The floor is a lock of the process "
        "alone that hands on in the order of arrival: no server, no lease, no other process.",
        ("", "acquisitions/s", "part of the floor", "Jain's index", "longest wait, ms", f"starved of {count}"),
    )
    figures = _filled(table, found, FIFO, lambda part: f"{part:.3f}")
    table.targets += [
        Target(f"{who}, {kind}, part of an in-process FIFO", figures[who]["ratio"] or 0.0, least, True)
        for who in (OURS, IDIOM)
        if who in figures
    ]
    return table

"""What telling log and observers costs: CPU of acquire and release, with and without."""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable

import holdfast
from bench.run import Run, ratio, rounds
from bench.tables import Table, Target, number
from holdfast._reports.log import LOG
from holdfast.prometheus import PrometheusObserver

__all__ = ["observers"]

_WITHOUT = "nothing is asked or told"
_IDLE = "no observer, the log at WARNING"
_DEBUG = "the log at DEBUG, a handler that drops all"
_PROMETHEUS = "PrometheusObserver"


def observers(run: Run) -> Table:
    """One thread, uncontended: CPU of the whole process, that of the telling thread included."""
    from prometheus_client import CollectorRegistry

    cycles = run.some(1_000, 100)
    logger = logging.getLogger("holdfast")
    handler, level = logging.NullHandler(), logger.level
    clients = {who: holdfast.connect(run.server.url) for who in (_WITHOUT, _IDLE, _DEBUG)}
    clients[_PROMETHEUS] = holdfast.connect(run.server.url, observer=PrometheusObserver(registry=CollectorRegistry()))
    reports = clients[_WITHOUT]._session.reports
    reports.begin = lambda kind, name, level=0: reports

    def timed(who: str) -> Callable[[], float]:
        lock = clients[who].lock(f"bench-{who}")

        def pairs() -> float:
            logger.setLevel(logging.DEBUG if who == _DEBUG else logging.WARNING)
            began = time.process_time()
            for _ in range(cycles):
                lock.acquire().release()
            for reporter in (LOG, clients[who]._session.reports._reporter):
                if reporter is not None:
                    reporter.settle(time.monotonic() + 60.0)
            return (time.process_time() - began) / cycles * 1e6

        return pairs

    logger.addHandler(handler)
    try:
        found = rounds(run, "observers", run.some(31, 3), {who: timed(who) for who in clients})
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        for client in clients.values():
            client.close()
    table = Table(
        "observers",
        "Log and observers: CPU of acquire and release, one thread",
        f"{cycles:,} pairs in each of {len(found[_IDLE])} interleaved rounds; CPU of all threads of the process.",
        ("", "µs of CPU per pair", "× without"),
    )
    for who, each in found.items():
        times = ratio(each, found[_WITHOUT])
        table.lines.append((who, number(statistics.median(each)), number(times)))
        table.figures[who] = {"us": statistics.median(each), "ratio": times}
    table.targets.append(Target("unused, × without", table.figures[_IDLE]["ratio"] or 0.0, 1.01))
    return table

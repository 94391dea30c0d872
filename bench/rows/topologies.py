"""Where it runs: replicas that acknowledge, a quorum, a Cluster, each beside the single server."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import math
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import redis

import holdfast
from bench.peers import TTL_MS, Pair, unique
from bench.run import Run, median, ratio, rounds
from bench.tables import Table, Target, number
from tests.support import topologies

__all__ = ["cluster", "quorum", "sync"]

_ONE = "one server"


def _cycles(pair: Pair, cycles: int) -> Callable[[], float]:
    """µs a pair."""
    acquire, release = pair

    def once() -> float:
        release(acquire())
        begin = time.perf_counter()
        for _ in range(cycles):
            release(acquire())
        return (time.perf_counter() - begin) / cycles * 1e6

    return once


def _if_it_can(once: Callable[[], float]) -> Callable[[], float]:
    """Not a number where a library's lock fails."""

    failed = False

    def tried() -> float:
        nonlocal failed
        if not failed:
            try:
                return once()
            except Exception:
                failed = True  # once is enough: it may have taken many seconds
        return math.nan

    return tried


def _pair(lock: Any) -> Pair:
    return lock.acquire, lambda lease: lease.release()


def _filled(table: Table, found: dict[str, list[float]], beside: str) -> Table:
    for who, times in found.items():
        middle, more = median(times), ratio(times, found[beside])
        table.lines.append((who, number(middle), number(more)))
        table.figures[who] = {"us": middle, "ratio": more}
    return table


def sync(run: Run) -> Table:
    """A master and two replicas, with WAIT."""
    table = Table(
        "sync",
        "Replicas that must acknowledge",
        "A master and two replicas: a plain lock, and one with `sync_replicas`, in one thread.",
        ("", "µs a pair", "× without"),
    )
    with topologies.Replicated(replicas=2) as servers, holdfast.connect(servers.url) as locks:
        parties = {
            "without": _pair(locks.lock(unique())),
            "sync_replicas=1": _pair(locks.lock(unique(), sync_replicas=1)),
            'sync_replicas="all"': _pair(locks.lock(unique(), sync_replicas="all")),
        }
        measured = {who: _cycles(pair, run.some(100, 20)) for who, pair in parties.items()}
        return _filled(table, rounds(run, "sync", run.some(9, 2), measured), "without")


def cluster(run: Run) -> Table:
    """Three masters."""
    table = Table(
        "cluster",
        "Cluster",
        "Three masters, beside one server, in one thread.",
        ("", "µs a pair", f"× {_ONE}"),
    )
    with (
        topologies.Cluster(replicas=False) as servers,
        holdfast.connect(servers.url) as clustered,
        holdfast.connect(run.server.url) as single,
    ):
        parties = {_ONE: _pair(single.lock(unique())), "Cluster": _pair(clustered.lock(unique()))}
        measured = {who: _cycles(pair, run.some(100, 20)) for who, pair in parties.items()}
        return _filled(table, rounds(run, "cluster", run.some(9, 2), measured), _ONE)


def quorum(run: Run) -> Table:
    """Five servers; none, one, two of them stopped."""
    table = Table(
        "quorum",
        "Redlock over five servers",
        "Healthy, and with one and two of the servers stopped (SIGSTOP), in one thread. The others wait for a stopped "
        "server as long as their clients' `socket_timeout` says, here 0.25 s; –: it failed.",
        ("", "healthy, µs a pair", f"× {_ONE}", "1 stopped", "2 stopped", "2 stopped × healthy"),
    )
    with contextlib.ExitStack() as stack:
        servers = stack.enter_context(topologies.Quorum(5))
        single = stack.enter_context(holdfast.connect(run.server.url, ttl=TTL_MS / 1000))
        many = stack.enter_context(holdfast.Client.quorum(servers.urls, restart_delay=0, ttl=TTL_MS / 1000))
        pairs = {_ONE: _pair(single.lock(unique())), "holdfast": _pair(many.lock(unique()))}
        if not run.quick:
            pairs |= _others(servers.urls)
        absent = sorted({"pottery", "redlock-py"} - pairs.keys())
        if absent and not run.quick:
            table.missing = f"{', '.join(absent)} (`pip install {' '.join(absent)}`)."

        measured: dict[str, Callable[[], float]] = {}
        for stopped in (0, 1, 2):
            for who, pair in pairs.items():
                if who in (_ONE, "holdfast"):
                    once = _cycles(pair, run.some(60, 20))
                else:
                    once = _if_it_can(_cycles(pair, 1 if stopped else run.some(20, 5)))
                measured[f"{who}, {stopped} stopped"] = _while_stopped(servers, stopped, once)
        found = rounds(run, "quorum", run.some(7, 2), measured)
    for who in pairs:
        healthy, _, two = [found[f"{who}, {stopped} stopped"] for stopped in (0, 1, 2)]
        times = ratio(healthy, found[f"{_ONE}, 0 stopped"])
        slower = ratio(two, healthy)
        medians = [median(found[f"{who}, {stopped} stopped"]) for stopped in (0, 1, 2)]
        table.lines.append(
            (who, number(medians[0]), number(times), number(medians[1]), number(medians[2]), number(slower))
        )
        table.figures[who] = {
            "us": medians[0],
            "ratio": times,
            "us, 1 stopped": medians[1],
            "us, 2 stopped": medians[2],
            "2 stopped to healthy": slower,
        }
        if who == "holdfast":
            table.targets += [
                Target("holdfast over 5 healthy servers, × one server", times, 2.0),
                Target("holdfast with 2 of 5 stopped, × healthy", slower, 1.2),
            ]
    return table


def _while_stopped(servers: topologies.Quorum, count: int, once: Callable[[], float]) -> Callable[[], float]:
    def measured() -> float:
        with _stopped(servers, count):
            return once()

    return measured


@contextlib.contextmanager
def _stopped(servers: topologies.Quorum, count: int) -> Iterator[None]:
    for server in servers.servers[:count]:
        server.pause()
    try:
        yield
    finally:
        for server in servers.servers[:count]:
            server.resume()


def _others(urls: list[str]) -> dict[str, Pair]:
    """The Redlocks of other libraries, where they are installed."""
    pairs: dict[str, Pair] = {}
    if importlib.util.find_spec("pottery") is not None:
        module: Any = importlib.import_module("pottery")
        lock = module.Redlock(
            key=unique(),
            masters={redis.Redis.from_url(url, socket_timeout=0.25) for url in urls},
            auto_release_time=TTL_MS / 1000,
        )
        pairs["pottery"] = (lock.acquire, lambda _: lock.release())
    if importlib.util.find_spec("redlock") is not None:
        module = importlib.import_module("redlock")
        members = [
            {"host": where.hostname, "port": where.port, "socket_timeout": 0.25} for where in map(urlsplit, urls)
        ]
        manager = module.Redlock(members)
        name = unique()
        pairs["redlock-py"] = (lambda: manager.lock(name, TTL_MS), manager.unlock)
    return pairs

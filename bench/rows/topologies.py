"""Where it runs: replicas that acknowledge, a quorum, a Cluster, each beside the single server."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import logging
import math
import select
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import redis

import holdfast
from bench.peers import CHECKED_DELETE, TTL_MS, Pair, connect, packed, timed, unique
from bench.run import Run, median, ratio, rounds
from bench.tables import Table, Target, number
from testbed import topologies

__all__ = ["cluster", "quorum", "sync"]

_ONE = "one server"
_BARE_ALL, _BARE_MAJORITY = "bare sockets, all five", "bare sockets, a majority"


def _if_it_can(once: Callable[[], float]) -> Callable[[], float]:
    """Return a function that gives NaN once a library's lock has failed."""

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
        "Acknowledgement by replicas",
        "A master and two replicas: a plain lock, and one with `sync_replicas`, in one thread.",
        ("", "µs per pair", "× without"),
    )
    with topologies.Replicated(replicas=2) as servers, holdfast.connect(servers.url) as locks:
        parties = {
            "without": _pair(locks.lock(unique())),
            "sync_replicas=1": _pair(locks.lock(unique(), sync_replicas=1)),
            'sync_replicas="all"': _pair(locks.lock(unique(), sync_replicas="all")),
        }
        measured = {who: timed(pair, run.some(100, 20)) for who, pair in parties.items()}
        return _filled(table, rounds(run, "sync", run.some(9, 2), measured), "without")


def cluster(run: Run) -> Table:
    """Three masters."""
    table = Table(
        "cluster",
        "Cluster",
        "Three masters, beside one server, in one thread.",
        ("", "µs per pair", f"× {_ONE}"),
    )
    with (
        topologies.Cluster(replicas=False) as servers,
        holdfast.connect(servers.url) as clustered,
        holdfast.connect(run.server.url) as single,
    ):
        parties = {_ONE: _pair(single.lock(unique())), "Cluster": _pair(clustered.lock(unique()))}
        measured = {who: timed(pair, run.some(100, 20)) for who, pair in parties.items()}
        return _filled(table, rounds(run, "cluster", run.some(9, 2), measured), _ONE)


def quorum(run: Run) -> Table:
    """Five servers; none, one, two of them stopped."""
    table = Table(
        "quorum",
        "Redlock over five servers",
        "Healthy, and with one and two of the servers stopped (SIGSTOP), in one thread. The others wait for a stopped "
        "server until their clients' `socket_timeout`, here 0.25 s; –: it failed. Bare sockets send `SET NX PX` and a "
        "compare-and-delete by `EVALSHA` to all five, packed, and wait for all replies or for three: what is "
        "physically possible if six processes share the machine's cores, and not a lock.",
        ("", "healthy, µs per pair", f"× {_ONE}", "1 stopped", "2 stopped", "2 stopped × healthy"),
    )
    with contextlib.ExitStack() as stack:
        servers = stack.enter_context(topologies.Quorum(5))
        single = stack.enter_context(holdfast.connect(run.server.url, ttl=TTL_MS / 1000))
        many = stack.enter_context(holdfast.Client.quorum(servers.urls, restart_delay=0, ttl=TTL_MS / 1000))
        pairs = {
            _ONE: _pair(single.lock(unique())),
            _BARE_ALL: stack.enter_context(_Bare(servers.urls, 5)).pair(unique()),
            _BARE_MAJORITY: stack.enter_context(_Bare(servers.urls, 3)).pair(unique()),
            "holdfast": _pair(many.lock(unique())),
        }
        if not run.quick:
            pairs |= _others(servers.urls)
        absent = sorted({"pottery", "redlock-py"} - pairs.keys())
        if absent and not run.quick:
            table.missing = f"{', '.join(absent)} (`pip install {' '.join(absent)}`)."

        measured: dict[str, Callable[[], float]] = {}
        for stopped in (0, 1, 2):
            for who, pair in pairs.items():
                if who == _BARE_ALL and stopped:
                    continue  # it would wait forever
                if who in (_ONE, _BARE_ALL, _BARE_MAJORITY, "holdfast"):
                    once = timed(pair, run.some(60, 20))
                else:
                    once = _if_it_can(timed(pair, 1 if stopped else run.some(20, 5)))
                measured[f"{who}, {stopped} stopped"] = _while_stopped(servers, stopped, once)
        # The others log every server that does not answer, with a traceback.
        logging.disable(logging.CRITICAL)
        stack.callback(logging.disable, logging.NOTSET)
        found = rounds(run, "quorum", run.some(7, 2), measured)
    for who in pairs:
        nothing = [math.nan] * len(found[f"{who}, 0 stopped"])
        columns = [found.get(f"{who}, {stopped} stopped", nothing) for stopped in (0, 1, 2)]
        healthy, _, two = columns
        times = ratio(healthy, found[f"{_ONE}, 0 stopped"])
        slower = ratio(two, healthy)
        medians = [median(column) for column in columns]
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


class _Bare:
    """`SET NX PX` and a compare-and-delete at all servers at once, waiting for `need` answers to each.

    The others are read when they come; requests follow each other on one connection a server.
    """

    def __init__(self, urls: list[str], need: int) -> None:
        self._need = need
        self._socks = {sock.fileno(): sock for sock in map(connect, urls)}
        self._owed = dict.fromkeys(self._socks, 0)
        self._poll = select.poll()
        for descriptor in self._socks:
            self._poll.register(descriptor, select.POLLIN)
        self._ask(packed(b"SCRIPT", b"LOAD", CHECKED_DELETE), len(urls), lines=2)

    def pair(self, name: str) -> Pair:
        sha = hashlib.sha1(CHECKED_DELETE).hexdigest().encode()
        key, token = f"floor:{name}".encode(), unique().encode()
        take = packed(b"SET", key, token, b"NX", b"PX", b"%d" % TTL_MS)
        give = packed(b"EVALSHA", sha, b"1", key, token)
        return lambda: self._ask(take, self._need), lambda _: self._ask(give, self._need)

    def _ask(self, request: bytes, need: int, lines: int = 1) -> None:
        owed = self._owed
        for descriptor, sock in self._socks.items():
            sock.sendall(request)
            owed[descriptor] += lines
        while sum(count == 0 for count in owed.values()) < need:
            for descriptor, _ in self._poll.poll():
                owed[descriptor] -= self._socks[descriptor].recv(65536).count(b"\r\n")

    def __enter__(self) -> _Bare:
        return self

    def __exit__(self, *_: object) -> None:
        for sock in self._socks.values():
            sock.close()


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

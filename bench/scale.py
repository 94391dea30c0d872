"""Costs of many locks, waiters and clients for a server: bytes, CPU, and the time of a handoff.

    python -m bench.scale [--quick] [memory] [waiters] [clients] [names] [fleet]

CPU is that of the server's process. Waiters by the thousand are made up: scripts queue their tokens through one
connection, which subscribes to all their inboxes. `fleet` measures what one core carries, and simulates many clients
with that.
"""

from __future__ import annotations

import asyncio
import datetime
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import hiredis
import redis

import holdfast.asyncio
from bench.fleet import Costs, Layout, simulate
from holdfast import embedded
from holdfast._core.keys import lock_keys
from holdfast._lua import SCRIPTS
from testbed import servers

__all__ = ["PARTS", "main"]

_TTL_MS, _DAY_MS, _CLAIM_MS, _TOMBSTONE_MS = 600_000, 86_400_000, 2_000, 60_000
_INBOX = "holdfast:inbox:"


def _token(client: int, number: int = 1) -> str:
    return f"{client:024x}:1:{number}"


def _pack(*words: str | int) -> bytes:
    parts = [str(word).encode() for word in words]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)


def _call(script: str, name: str, *args: str | int) -> bytes:
    """A script of the lock, as a client calls it."""
    keys = lock_keys("holdfast", name)
    given = keys.all if script != "renew" else (keys.lock, keys.order_of(str(args[0])))
    return _pack("EVALSHA", SCRIPTS[script].sha, len(given), *given, *args)


def _acquire(name: str, token: str, what: str = "try") -> bytes:
    return _call("acquire", name, token, _TTL_MS, what, 0, _DAY_MS, _CLAIM_MS, lock_keys("holdfast", name).inboxes)


def _release(name: str, token: str) -> bytes:
    return _call("release", name, token, _DAY_MS, _CLAIM_MS, lock_keys("holdfast", name).inboxes, 0)


def _renew(name: str, token: str) -> bytes:
    return _call("renew", name, token, _TTL_MS, 1, -1)


class _Wire:
    """A bare connection that speaks RESP3."""

    def __init__(self, server: embedded.Server) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(str(server.unix_path))
        self._reader = hiredis.Reader()
        self.ask(_pack("HELLO", 3))

    def listen(self, clients: range) -> None:
        """Subscribe to the inboxes of those clients."""
        for first in range(0, len(clients), 500):
            some = [f"{_INBOX}{client:024x}" for client in clients[first : first + 500]]
            self.ask(_pack("SUBSCRIBE", *some), len(some))

    def replies(self, count: int) -> list[Any]:
        """The next `count` replies, messages among them."""
        found: list[Any] = []
        while len(found) < count:
            while len(found) < count and (reply := self._reader.gets()) is not False:
                found.append(reply)
            if len(found) < count:
                self._reader.feed(self.sock.recv(1 << 16))
        errors = [each for each in found if isinstance(each, Exception)]
        assert not errors, errors[0]
        return found

    def ask(self, packed: bytes, count: int = 1) -> Any:
        """The last of that many replies to what is sent."""
        self.sock.sendall(packed)
        return self.replies(count)[-1]

    def ask_all(self, requests: Iterator[bytes], together: int = 500) -> None:
        """Send them by hundreds."""
        while some := [each for _, each in zip(range(together), requests, strict=False)]:
            self.ask(b"".join(some), len(some))


class _Server:
    """A private server, its memory and its CPU."""

    def __init__(self, server: embedded.Server) -> None:
        self.server = server
        self.look = redis.Redis.from_url(server.unix_url)
        for name in ("acquire", "release", "renew"):
            self.look.script_load(SCRIPTS[name].text)
        self._cpu = (
            ~int(self.look.info("server")["process_id"]) << 3 | 2
        )  # as the system numbers the clock of a process

    def cpu_us(self) -> float:
        """The CPU time that its process has used."""
        return time.clock_gettime(self._cpu) * 1e6

    def used(self) -> int:
        """Bytes that it has allocated."""
        return int(self.look.info("memory")["used_memory"])

    def grown(self, count: int, act: Callable[[], object]) -> str:
        """The bytes that each of `count` takes which `act` makes, on an empty server."""
        self.look.flushall()
        time.sleep(0.5)  # in the background
        before = self.used()
        act()
        return f"{(self.used() - before) / count:,.0f}"


def _table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    print(f"\n{title}\n\n| {' | '.join(heads)} |\n|{'-|' + '-:|' * (len(heads) - 1)}")
    for row in rows:
        print(f"| {' | '.join(row)} |")


def _part(ordered: list[float], part: float) -> float:
    return sorted(ordered)[int(len(ordered) * part)]


def memory(server: _Server, quick: bool) -> None:
    """Bytes for each of 10,000 locks, waiters and clients."""
    count, clients = (500, 50) if quick else (10_000, 2_000)
    wire, names = _Wire(server.server), [f"orders:{number:07}" for number in range(count)]
    wires, inboxes = [_Wire(server.server) for _ in range(clients)], _Wire(server.server)
    inboxes.listen(range(count))
    said = '{"host": "web-12.example.org", "pid": 4711, "program": "gunicorn: worker [shop]", "version": 1}'

    def take() -> None:
        wire.ask_all(_acquire(name, _token(1)) for name in names)

    def take_and_release() -> None:
        take()
        wire.ask_all(_release(name, _token(1)) for name in names)

    def wait() -> None:
        wire.ask_all(_acquire("one", _token(client), "wait") for client in range(count))
        assert server.look.zcard(lock_keys("holdfast", "one").queue) == count - 1

    def subscribe() -> None:
        for number, each in enumerate(wires):
            each.ask(_pack("SUBSCRIBE", f"{_INBOX}of-one-{number:017x}"))

    def connect() -> None:
        more = [_Wire(server.server) for _ in range(clients)]
        time.sleep(0.1 if quick else 10)  # until the server has given back the buffers of new connections
        wires.extend(more)

    def describe() -> None:
        wire.ask_all(_pack("SET", f"holdfast:client:{n:024x}", said, "PX", _DAY_MS) for n in range(count))

    time.sleep(0.1 if quick else 10)
    rows = [
        ("a lock that is held, with its fencing token", server.grown(count, take)),
        ("a lock that was held today: its fencing token", server.grown(count, take_and_release)),
        (f"a waiter, in a queue of {count:,}", server.grown(count, wait)),
        ("a client: what it says of itself, for a day", server.grown(count, describe)),
        ("a client: its subscription", server.grown(clients, subscribe)),
        ("a client: its connection, idle", server.grown(clients, connect)),
    ]
    for each in wires:
        each.sock.close()
    _table("Memory", ("what", "bytes"), rows)


class _Crowd:
    """A lock with that many made-up waiters, each of a client of its own."""

    def __init__(self, server: _Server, count: int) -> None:
        self.name = f"many-{count}"
        self.wire, self._inboxes = _Wire(server.server), _Wire(server.server)
        clients = range(count * 100, count * 100 + count + 1)  # of no other crowd
        self._inboxes.listen(clients)
        self._holder, self._turn = _token(clients[0]), 1
        self.wire.ask(_acquire(self.name, self._holder))
        self.wire.ask_all(_acquire(self.name, _token(client), "wait") for client in clients[1:])

    def turn(self) -> float:
        """Hand over, renew, and queue the client that released it again; the time from release to message, µs."""
        self._turn += 1
        began_at = time.perf_counter()
        assert self.wire.ask(_release(self.name, self._holder)) == 2
        message = self._inboxes.replies(1)[0][2].decode().split()
        took_us = (time.perf_counter() - began_at) * 1e6
        last, self._holder = self._holder, message[1]
        assert message[0] == "grant" and self.wire.ask(_renew(self.name, self._holder)) == 1
        self.wire.ask(_acquire(self.name, f"{last.partition(':')[0]}:1:{self._turn}", "wait"))
        return took_us

    def ping(self) -> float:
        """A round trip of that connection, µs."""
        began_at = time.perf_counter()
        self.wire.ask(_pack("PING"))
        return (time.perf_counter() - began_at) * 1e6


def waiters(server: _Server, quick: bool) -> None:
    """Handoffs with many made-up waiters on one lock, by turns with PING, since a machine is seldom quiet."""
    crowds = {count: _Crowd(server, count) for count in ((10, 100) if quick else (10, 1_000, 10_000))}
    acts = {"PING": crowds[10].ping, **{f"{count:,}": crowd.turn for count, crowd in crowds.items()}}
    took_us: dict[str, list[float]] = {what: [] for what in acts}
    cpu_us: dict[str, list[float]] = {what: [] for what in acts}
    for _ in range(5 if quick else 40):
        for what, act in acts.items():
            began_us = server.cpu_us()
            took_us[what] += [act() for _ in range(100)]
            cpu_us[what].append((server.cpu_us() - began_us) / 100)
    _table(
        "Handoffs with made-up waiters: each is renewed, and followed by another waiter; and PING",
        ("waiters", "server CPU, µs", "× PING", "p50, µs", "p99, µs"),
        [
            (
                what,
                f"{_part(cpu_us[what], 0.5):.0f}",
                f"{_part(cpu_us[what], 0.5) / _part(cpu_us['PING'], 0.5):.1f}",
                f"{_part(took_us[what], 0.5):,.0f}",
                f"{_part(took_us[what], 0.99):,.0f}",
            )
            for what in acts
        ],
    )


def clients(server: _Server, quick: bool) -> None:
    """Handoffs between real clients of one process, each with its connection."""
    rows = []
    for count in (5,) if quick else (10, 100, 1_000):
        took_us, cpu_us = asyncio.run(_contend(server, count, 50 if quick else 3_000))
        rows.append((f"{count:,}", f"{cpu_us:.0f}", f"{_part(took_us, 0.5):,.0f}", f"{_part(took_us, 0.99):,.0f}"))
    heads = ("clients", "server CPU per handoff, µs", "release to grant, p50, µs", "p99, µs")
    _table("Handoffs between real clients in one process, each with a connection of its own", heads, rows)


async def _contend(server: _Server, count: int, turns: int) -> tuple[list[float], float]:
    made = [holdfast.asyncio.connect(server.server.unix_url, ttl=60) for _ in range(count)]
    took_us: list[float] = []
    released_at = 0.0

    async def contend(client: holdfast.asyncio.Client) -> None:
        nonlocal released_at
        lock = client.lock(f"shared-{count}")
        while len(took_us) < turns:
            lease = await lock.acquire()
            if released_at:
                took_us.append((time.perf_counter() - released_at) * 1e6)
            released_at = time.perf_counter()
            await lease.release()

    for client in made:
        await client.lock("mine").try_acquire()
    began_us = server.cpu_us()
    await asyncio.gather(*map(contend, made))
    cpu_us = (server.cpu_us() - began_us) / len(took_us)
    for client in made:
        await client.close()
    return took_us, cpu_us


def names(server: _Server, quick: bool) -> None:
    """Many names, each taken once."""
    count, step = (2_000, 500) if quick else (1_000_000, 100_000)
    wire, rows, before = _Wire(server.server), [], server.used()
    for first in range(0, count, step):
        began_us = server.cpu_us()
        some = range(first, first + step)
        wire.ask_all(
            each
            for number in some
            for name in (f"orders:{number:09}",)
            for each in (_acquire(name, _token(1)), _release(name, _token(1)))
        )
        pair_us = (server.cpu_us() - began_us) / step
        if first in (0, count - step):
            taken = server.used() - before
            rows.append(
                (f"{first + step:,}", f"{pair_us:.1f}", f"{taken / 2**20:,.0f}", f"{taken / (first + step):,.0f}")
            )
    heads = ("names used", "server CPU per pair, µs, for the last of them", "MiB", "bytes each")
    _table("Names, each acquired and released once, requests sent by hundreds", heads, rows)
    server.look.flushall()


def _measure_core(server: _Server, quick: bool) -> Costs:
    """CPU of the server for requests that come one by one over 50 connections; by turns with SET and DEL."""
    wires, crowd = [_Wire(server.server) for _ in range(50)], _Crowd(server, 100)
    found: dict[str, list[float]] = {}

    def cost(what: str, make: Callable[[str, str], bytes], turn: int) -> None:
        began_us = server.cpu_us()
        for again in range(5):
            for number, wire in enumerate(wires):
                wire.sock.sendall(make(f"{number}:{turn}:{again}", _token(number)))
            for wire in wires:
                wire.replies(1)
        found.setdefault(what, []).append((server.cpu_us() - began_us) / 5 / len(wires))

    for turn in range(5 if quick else 60):
        cost("set", lambda name, token: _pack("SET", name, token, "NX", "PX", _TTL_MS), turn)
        cost("del", lambda name, token: _pack("DEL", name), turn)
        for what, make in (("acquire", _acquire), ("renew", _renew), ("release", _release)):
            cost(what, make, turn)
        began_us = server.cpu_us()
        for _ in range(100):
            crowd.turn()
        found.setdefault("turn", []).append((server.cpu_us() - began_us) / 100)
    usual = {what: _part(costs_us, 0.5) for what, costs_us in found.items()}
    floor_us = usual["set"] + usual["del"]
    rows = [
        (what, f"{us:.1f}", f"{us / floor_us:.1f}", f"{1e6 / us:,.0f}")
        for what, us in (
            ("SET, DEL", floor_us),
            ("acquire and release, free", usual["acquire"] + usual["release"]),
            ("queue, handed over, renew", usual["turn"]),
            ("renewal", usual["renew"]),
        )
    ]
    _table(
        "One core of a server, requests one by one over 50 connections",
        ("what", "CPU, µs", "× SET, DEL", "a second"),
        rows,
    )
    return Costs(usual["acquire"], usual["release"], usual["turn"] - usual["acquire"])


_LAYOUTS = (
    Layout("one lock for all", 10_000, 5, 1),
    Layout("a lock for each of 100 shops", 10_000, 5, 100),
    Layout("a lock for each of 1,000 shops", 10_000, 5, 1_000),
    Layout("a lock for each of 1,000,000 orders", 10_000, 5, 1_000_000),
    Layout("orders, held for 500 ms", 10_000, 500, 1_000_000),
    Layout("orders, every 3 s", 33_333, 5, 1_000_000),
    Layout("orders, every second", 100_000, 5, 1_000_000),
    Layout("orders, every second, on 4 shards", 100_000, 5, 1_000_000, cores=4),
    Layout("orders, every second, on 8 shards", 100_000, 5, 1_000_000, cores=8),
)


def fleet(server: _Server, quick: bool) -> None:
    """Requests that one core carries; and 100,000 clients that lock every ten seconds, or more often, simulated."""
    costs, rows = _measure_core(server, quick), []
    for layout in _LAYOUTS:
        found = simulate(layout, costs, 2_000 if quick else 200_000)
        waits = ["grows", "grows"] if found.is_overloaded else [f"{found.wait_ms(part):.1f}" for part in (0.5, 0.99)]
        loads = [f"{100 * load:.0f} %" if load >= 0.005 else "< 1 %" for load in (found.core_load, found.lock_load)]
        rows.append((layout.what, f"{layout.turns_per_s:,.0f}", *loads, *waits))
    heads = ("layout", "turns a second", "load of a core", "of a lock", "wait p50, ms", "p99, ms")
    _table("A fleet of 100,000 clients, simulated: each locks every 10 s, for 5 ms; 0.5 ms of network", heads, rows)


PARTS: dict[str, Callable[[_Server, bool], None]] = {
    each.__name__: each for each in (memory, waiters, clients, names, fleet)
}


def main(words: Sequence[str]) -> int:
    """Measure the parts that are named, or all."""
    quick = "--quick" in words
    wanted = [word for word in words if word != "--quick"]
    if unknown := set(wanted) - set(PARTS):
        print(f"bench.scale has no {', '.join(sorted(unknown))}; its parts are {', '.join(PARTS)}", file=sys.stderr)
        return 64
    # As distributions build it, with jemalloc: where that was not fetched, the figures are those of libc's malloc.
    kind: servers.Kind = "valkey" if isinstance(servers.executable("valkey81"), str) else "valkey81"
    print(f"{kind}, {datetime.date.today()}, load {os.getloadavg()[0]:.0f} on {os.cpu_count()} cores")
    for name in wanted or PARTS:
        with servers.start(kind, port=None, config={"save": "", "maxclients": "20000"}) as started:
            PARTS[name](_Server(started), quick)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

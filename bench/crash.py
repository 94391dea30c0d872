"""How long it takes until the next holder is in when one with `crash_release=1` is killed, and what such leases cost.

    python -m bench.crash [--kills N] [--apis threads asyncio command] [--topologies single sentinel cluster]
    python -m bench.crash --cost

Prints the median, the 99th percentile and the longest wait, in s, from `kill -9` of a process that holds a lock with a
ttl of 30 s until a waiter in another process has it; then what a client with such leases sends in a second, and what
that costs its server, beside the same leases without `crash_release`. All processes read the same clock.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import redis

import holdfast
from holdfast import embedded
from testbed.topologies import NEVER_DOWN_MS, Cluster, WithSentinel

__all__ = ["main"]

TTL_S, CRASH_RELEASE_S = 30, 1
#: Pairs of a holder and a waiter at a time.
_PAIRS = 4
_PATIENCE_S = 60.0

_THREADS = """
import sys, time
import holdfast
with holdfast.connect(sys.argv[1]) as client:
    print("asks", flush=True)
    lease = client.lock(sys.argv[2], ttl=float(sys.argv[3]), crash_release=float(sys.argv[4])).acquire()
    print(time.monotonic(), flush=True)
    sys.stdin.read()
"""
_ASYNCIO = """
import asyncio, sys, time
import holdfast.asyncio
async def main():
    async with holdfast.asyncio.connect(sys.argv[1]) as client:
        print("asks", flush=True)
        await client.lock(sys.argv[2], ttl=float(sys.argv[3]), crash_release=float(sys.argv[4])).acquire()
        print(time.monotonic(), flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
asyncio.run(main())
"""
#: What runs under `holdfast run`: it is killed with it, as the guard sees to.
_COMMAND = "import sys, time; print(time.monotonic(), flush=True); time.sleep(600)"


class _Party:
    """A process that asks for a lock, says when it has it, and keeps it."""

    def __init__(self, api: str, url: str, name: str) -> None:
        self._says_when = api != "command"
        if api == "command":
            words = ["-m", "holdfast", "run", "--url", url, "--ttl", f"{TTL_S}s"]
            words += ["--crash-release", f"{CRASH_RELEASE_S}s", name, "--", sys.executable, "-S", "-c", _COMMAND]
        else:
            words = ["-c", _THREADS if api == "threads" else _ASYNCIO, url, name, str(TTL_S), str(CRASH_RELEASE_S)]
        self._process = subprocess.Popen(
            [sys.executable, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def asks(self) -> None:
        """Wait until it is about to ask; of the command line, for long enough."""
        if self._says_when:
            self._line()
        time.sleep(0.5 if self._says_when else 2.5)

    def holds_since(self) -> float:
        """Wait until it has the lock."""
        return float(self._line())

    def kill(self) -> float:
        """Return when."""
        at = time.monotonic()
        self._process.send_signal(signal.SIGKILL)
        return at

    def close(self) -> None:
        """End it, however it is."""
        self._process.kill()
        self._process.communicate(timeout=_PATIENCE_S)

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("a process has ended before it held the lock")
        return line


@contextlib.contextmanager
def _url_of(topology: str) -> Iterator[str]:
    if topology == "single":
        with embedded.server(port=0, password="") as server:
            yield server.url
    else:
        made: Any = Cluster(replicas=False) if topology == "cluster" else WithSentinel(1, down_after_ms=NEVER_DOWN_MS)
        with made:
            yield made.url


def kills(url: str, api: str, number: int) -> list[float]:
    """Kill that many holders; returns how long the waiters had to wait, s."""
    took_s: list[float] = []
    pairs = min(_PAIRS, number)
    holders = [_Party(api, url, f"crash-{api}-{at}") for at in range(pairs)]
    parties = list(holders)
    try:
        for holder in holders:
            if api != "command":
                holder.asks()
            holder.holds_since()
        while len(took_s) < number:
            waiters = [_Party(api, url, f"crash-{api}-{at}") for at in range(pairs)]
            parties = holders + waiters
            for waiter in waiters:
                waiter.asks()
            killed_at = []
            for holder in holders:
                time.sleep(random.uniform(0, 0.3))
                killed_at.append(holder.kill())
            took_s += [waiter.holds_since() - at for waiter, at in zip(waiters, killed_at, strict=True)]
            for holder in holders:
                holder.close()
            holders = waiters
    finally:
        for party in parties:
            party.close()
    return sorted(took_s)


def cost(leases: int, seconds: float, crash_release: float | None) -> dict[str, float]:
    """Measure what a client with that many leases does in a second, as its server counts it."""
    with embedded.server(port=0, password="") as server, redis.Redis.from_url(server.url) as raw:
        with holdfast.connect(server.url) as client:
            held = [client.lock(f"cost-{at}", ttl=TTL_S, crash_release=crash_release).acquire() for at in range(leases)]
            time.sleep(2)
            before, began_at = _counted(raw), time.monotonic()
            time.sleep(seconds)
            after, took_s = _counted(raw), time.monotonic() - began_at
            assert all(lease.held for lease in held)
    return {what: (after[what] - before[what]) / took_s for what in after}


def _counted(raw: Any) -> dict[str, float]:
    stats, cpu = raw.info("commandstats"), raw.info("cpu")
    return {
        "requests": sum(stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("evalsha", "eval")),
        "KB in": raw.info("stats")["total_net_input_bytes"] / 1000,
        "CPU ms": (cpu["used_cpu_user"] + cpu["used_cpu_sys"]) * 1000,
    }


def main(words: Sequence[str] | None = None) -> int:
    """Measure, and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.crash")
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--apis", nargs="*", default=["threads", "asyncio", "command"])
    parser.add_argument("--topologies", nargs="*", default=["single", "sentinel", "cluster"])
    parser.add_argument("--cost", action="store_true", help="measure that alone")
    parser.add_argument("--leases", type=int, nargs="*", default=[1, 1000])
    parser.add_argument("--seconds", type=float, default=20)
    options = parser.parse_args(words)
    for topology in () if options.cost else options.topologies:
        with _url_of(topology) as url:
            for api in options.apis:
                took_s = kills(url, api, options.kills)
                p99_s = took_s[min(len(took_s) - 1, len(took_s) * 99 // 100)]
                said = f"p50 {statistics.median(took_s):.2f} s, p99 {p99_s:.2f} s, longest {took_s[-1]:.2f} s"
                print(f"{topology}, {api}: {said}, of {len(took_s)}", flush=True)
    for leases in options.leases:
        for crash_release in (CRASH_RELEASE_S, None):
            found = cost(leases, options.seconds, crash_release)
            said = ", ".join(f"{value:.1f} {what}" for what, value in found.items())
            print(f"{leases} leases, crash_release={crash_release}: {said}, each second", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""How long two processes stand in a deadlock until one of them is told, and what a look costs.

    python -m bench.circle [ROUNDS [LOCKS]]

Both wait with `deadlock_check=1`. Prints the median and the longest of the times from the later of the two calls to
`DeadlockDetected`; and how long `deadlocks()` takes where LOCKS other locks are held. Both processes read the same
clock.
"""

from __future__ import annotations

import statistics
import sys
import time
from typing import Any

import redis

import holdfast
from bench.beside import beside
from holdfast import embedded

__all__ = ["main"]

_CHECK_S = 1.0
_OTHER = """
import sys
import holdfast
from bench.circle import fall
with holdfast.connect(sys.argv[1]) as client:
    for number, line in enumerate(sys.stdin):
        with client.lock(f"b{number}"):
            print("held", flush=True)
            sys.stdin.readline()
            print(*fall(client, f"a{number}"), flush=True)
"""


def fall(client: Any, name: str) -> tuple[float, float, int]:
    """Wait for it: (when that began, when it ended, whether this was the one that was told)."""
    began_at = time.monotonic()
    try:
        lease = client.lock(name, deadlock_check=_CHECK_S).acquire()
    except holdfast.DeadlockDetected:
        return began_at, time.monotonic(), 1
    ended_at = time.monotonic()
    lease.release()
    return began_at, ended_at, 0


def main(rounds: int, locks: int) -> None:
    """Measure, and print."""
    with embedded.server() as server, holdfast.connect(server.unix_url) as client:
        took_s = []
        with beside(_OTHER, server.unix_url) as other:
            for number in range(rounds):
                with client.lock(f"a{number}"):
                    other.tell()
                    other.heard()
                    other.tell()
                    mine = fall(client, f"b{number}")
                began, ended, told = other.heard().split()
                theirs = float(began), float(ended), int(told)
                assert mine[2] + theirs[2] == 1, "exactly one is told"
                took_s.append((mine if mine[2] else theirs)[1] - max(mine[0], theirs[0]))
        print(f"told after: p50 {statistics.median(took_s):.2f} s, at most {max(took_s):.2f} s, of {rounds}")
        raw = redis.Redis.from_url(server.url)
        pipeline = raw.pipeline(transaction=False)
        for number in range(locks):
            pipeline.set(f"holdfast:{{other-{number}}}", f"{number:024x}:1:1", px=600_000)
            pipeline.set(f"holdfast:{{other-{number}}}:fence", 1, px=600_000)
        pipeline.execute()
        looks_s = []
        used = []
        for _ in range(5):
            before = raw.info("cpu")
            began_at = time.monotonic()
            assert client.deadlocks() == ()
            looks_s.append(time.monotonic() - began_at)
            after = raw.info("cpu")
            used.append(sum(after[key] - before[key] for key in ("used_cpu_sys", "used_cpu_user")))
        middle = statistics.median(looks_s), statistics.median(used)
        print(f"a look among {locks} locks: {middle[0]:.2f} s, of which the server {middle[1]:.2f} s of CPU")


if __name__ == "__main__":
    given = [int(word) for word in sys.argv[1:]]
    main(*(given + [50, 100_000][len(given) :]))

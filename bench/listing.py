"""How long one command of a listing keeps the server busy, at most.

    python -m bench.listing [LOCKS]

Lists that many locks, as `Client.list` does, and prints of each kind of command how many there were and, in ms, the
median, the 99.9th percentile and the longest: by the server's clock (SLOWLOG), which goes on while another process has
the core, and by the CPU time of the server's process, which does not, but includes reading and answering.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import redis

from holdfast import embedded
from holdfast._core import overview
from holdfast._core.keys import lock_keys, name_within
from holdfast._lua import SCRIPTS

__all__ = ["main"]


def main(locks: int) -> None:
    """Measure, and print."""
    with embedded.server() as server, redis.Redis.from_url(server.unix_url) as client:
        _fill(client, locks)
        client.config_set("slowlog-max-len", 10 * locks)
        client.config_set("slowlog-log-slower-than", 0)
        client.slowlog_reset()
        cpu = ~int(client.info("server")["process_id"]) << 3 | 2  # the clock of that process, as the system numbers it
        busy_ms: dict[str, list[float]] = defaultdict(list)
        answers: list[Any] = []
        for what, *rest in _listing(client, answers):
            began_at = time.clock_gettime(cpu)
            answers.append(client.execute_command(what, *rest))
            busy_ms[what].append((time.clock_gettime(cpu) - began_at) * 1000)
        wall_ms: dict[str, list[float]] = defaultdict(list)
        for each in client.slowlog_get(10 * locks):
            wall_ms[each["command"].split()[0].decode()].append(each["duration"] / 1000)
        for what in ("SCAN", "EVALSHA"):
            for clock, took_ms in (("clock", wall_ms[what]), ("CPU", busy_ms[what])):
                took_ms.sort()
                middle, high = took_ms[len(took_ms) // 2], took_ms[len(took_ms) * 999 // 1000]
                over = sum(each > 1 for each in took_ms)
                print(
                    f"{what:<8} {clock:<6} {len(took_ms)}: {middle:.3f} {high:.3f} {took_ms[-1]:.3f}, over 1 ms: {over}"
                )


def _fill(client: redis.Redis, locks: int) -> None:
    with client.pipeline(transaction=False) as pipeline:
        for number in range(locks):
            key = f"holdfast:{{orders:{number:06}}}"
            pipeline.set(key, f"{number % 50:024x}:1:{number}", px=3_600_000)
            pipeline.set(f"{key}:fence", 1_772_373_787_280_000 + number, px=3_600_000)
            if number % 5_000 == 4_999:
                pipeline.execute()
        pipeline.execute()


def _listing(client: redis.Redis, answers: list[Any]) -> Iterator[tuple[Any, ...]]:
    """The commands of a walk; each is answered in `answers` before the next one is asked for."""
    script = SCRIPTS["overview"]
    client.script_load(script.text)
    cursor: Any = b"0"
    known: set[str] = set()
    while True:
        yield "SCAN", cursor, "MATCH", "holdfast:{*}*", "COUNT", overview.SCAN_COUNT
        cursor, found = answers.pop()
        names = {name_within(key.decode()[10:].rpartition("}")[0]) for key in found} - known
        known |= names
        listed = sorted(names)
        for at in range(0, len(listed), overview.NAMES_MAX):
            part = listed[at : at + overview.NAMES_MAX]
            keys = [key for name in part for key in overview.keys_of("lock", lock_keys("holdfast", name))]
            yield "EVALSHA", script.sha, len(keys), *keys, 16, *["lock"] * len(part)
            answers.pop()
        if cursor in (b"0", 0):
            return


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000)

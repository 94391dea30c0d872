"""How long one call of a script keeps the server busy where much has piled up.

    python -m bench.blocking [KIND ...]

Makes each call of `testbed.piles` a few times on a server of each kind, and prints in µs the least and the median that
the server itself has measured (SLOWLOG), without the network. The least says most on a busy machine.
"""

from __future__ import annotations

import statistics
import sys
from typing import Any

import redis

from testbed import servers
from testbed.piles import PILES, Pile, listening

__all__ = ["main"]

_ROUNDS = 7


def main(kinds: list[servers.Kind]) -> None:
    """Measure, and print."""
    found: dict[str, list[str]] = {what: [] for what in PILES}
    for kind in kinds:
        with servers.start(kind) as server, redis.Redis.from_url(server.url) as raw, listening(raw):
            raw.config_set("slowlog-log-slower-than", 0)
            for what, pile in PILES.items():
                took_us = [_took_us(raw, pile) for _ in range(_ROUNDS)]
                found[what].append(f"{min(took_us):>8,} {statistics.median(took_us):>8,}")
    print(f"{'':60}" + "".join(f"{kind:>17}" for kind in kinds))
    for what, times in found.items():
        print(f"{what:60}" + "".join(times))


def _took_us(raw: Any, pile: Pile) -> int:
    pile.set_up(raw)
    raw.slowlog_reset()
    pile.call(raw)
    return next(int(each["duration"]) for each in raw.slowlog_get(10) if each["command"].startswith(b"EVAL"))


if __name__ == "__main__":
    main([kind for kind in servers.KINDS if kind in sys.argv[1:]] or ["valkey", "redis70"])

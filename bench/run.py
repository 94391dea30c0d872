"""One run: its server, how much of everything, and how rounds are interleaved."""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import redis

from holdfast import embedded

__all__ = ["Missing", "Run", "median", "ratio", "rounds"]

T = TypeVar("T")


class Missing(Exception):
    """Cannot be measured here; says why."""


@dataclass(frozen=True, slots=True)
class Run:
    """What rows are given."""

    server: embedded.Server
    quick: bool
    silent: bool = False

    def some(self, full: int, quick: int) -> int:
        """Return the first number, or the second with --quick."""
        return quick if self.quick else full

    def server_cpu_s(self) -> float:
        """Return the CPU time that the server has used so far: user's and system's."""
        with redis.Redis.from_url(self.server.url) as client:
            info: Any = client.info("cpu")
        return float(info["used_cpu_user"]) + float(info["used_cpu_sys"])

    def say(self, what: str) -> None:
        """Progress, on stderr."""
        if not self.silent:
            print(f"\r\x1b[K  {what}" if sys.stderr.isatty() else f"  {what}", end="", file=sys.stderr, flush=True)
            if not sys.stderr.isatty():
                print(file=sys.stderr)


def rounds(run: Run, label: str, count: int, parties: Mapping[str, Callable[[], T]]) -> dict[str, list[T]]:
    """Let the parties take turns, `count` times; every other round in reverse, so that no one is always the first."""
    found: dict[str, list[T]] = {who: [] for who in parties}
    for turn in range(count):
        order = list(parties)
        if turn % 2:
            order.reverse()
        for who in order:
            run.say(f"{label}: round {turn + 1} of {count}, {who}")
            found[who].append(parties[who]())
    return found


def ratio(of: Sequence[float], to: Sequence[float]) -> float:
    """The median of the rounds' ratios."""
    return median(mine / other for mine, other in zip(of, to, strict=True))


def median(values: Iterable[float]) -> float:
    """The median of those that are numbers; a round in which a party came to nothing has none."""
    numbers = [value for value in values if not math.isnan(value)]
    return statistics.median(numbers) if numbers else math.nan

"""Virtual time, the seed's random numbers, and the record of a run: what everything else in a world stands on.

Laws: the seed decides everything, so the same seed gives the same trace to the byte; time moves only from one event to
the next; a violated invariant ends the run and names itself.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappush
from typing import Any

from sim.options import Options

__all__ = ["Clock", "Violation"]


@dataclass(frozen=True)
class Violation:
    """An invariant that did not hold: which one, when (virtual s), and what was seen."""

    kind: str
    at: float
    text: str

    def __str__(self) -> str:
        return f"{self.kind} at {self.at:.6f} s: {self.text}"


class Clock:
    """The time of a run, what is planned, and what has happened."""

    def __init__(self, options: Options, *, trace: bool = False) -> None:
        self.options = options
        self.seed = options.seed
        self.rng = random.Random(f"holdfast {options.mode} {options.seed}")
        self.now = 0.0
        #: Events that did something: a message that arrived, a timer that fired, a fault.
        self.steps = 0
        #: Effects that drivers performed for protocols.
        self.effects = 0
        self.grants = 0
        self.cancelled = 0
        self.counted: Counter[str] = Counter()
        #: Public operations that were played, by the names of the API: see tests/simulation/test_everything_public.py.
        self.played: set[str] = set()
        self.violation: Violation | None = None
        self.trace: list[str] | None = [] if trace else None
        #: "chaos", then "calm", then "drain".
        self.phase = "chaos"
        self.calm_since = float("inf")
        self.heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._sequence = itertools.count(1)

    def after(self, seconds: float, act: Callable[..., None], *args: Any) -> None:
        """Call `act(*args)` this many virtual seconds from now."""
        heappush(self.heap, (self.now + seconds, next(self._sequence), act, args))

    def note(self, who: str, what: str) -> None:
        """A line of the trace. Callers look whether there is one first, for speed."""
        if self.trace is not None:
            self.trace.append(f"{self.now:14.6f}  {who:4}  {what}")

    def fail(self, kind: str, text: str) -> None:
        """An invariant does not hold."""
        if kind in self.options.not_promised:
            self.counted[f"outside the promise: {kind}"] += 1
            return
        if self.violation is None:
            self.violation = Violation(kind, self.now, text)
            if self.trace is not None:
                self.note("!!", f"{kind}: {text}")

"""A fleet that locks through one core of a server, or several, simulated: `bench.scale` prints it with measured costs.

Clients arrive at random, each takes one of `names` locks, waits in its queue, holds it, and releases it. Requests cross
the network and wait for the core that serves their lock: one request at a time, in order of arrival.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from dataclasses import dataclass, field

__all__ = ["Costs", "Layout", "Outcome", "simulate"]


@dataclass(frozen=True)
class Costs:
    """Costs: what the core of a server takes for each request, and the network there and back, µs."""

    acquire_us: float
    release_us: float
    #: A release that hands the lock to a waiter, and the renewal of what was handed over.
    handoff_us: float
    network_us: float = 500.0


@dataclass(frozen=True)
class Layout:
    """A fleet: who locks what, how often, and where."""

    what: str
    turns_per_s: float
    hold_ms: float
    names: int
    cores: int = 1


@dataclass
class Outcome:
    """A result. Loads are parts of what a core or a lock can do; without handoffs where it is overloaded."""

    core_load: float
    lock_load: float
    waits_ms: list[float] = field(default_factory=list)

    @property
    def is_overloaded(self) -> bool:
        """Whether queues grow without end."""
        return self.core_load >= 1 or self.lock_load >= 1

    def wait_ms(self, part: float) -> float:
        """The wait that this part of all clients does not exceed."""
        ordered = sorted(self.waits_ms)
        return ordered[min(int(len(ordered) * part), len(ordered) - 1)]


def simulate(layout: Layout, costs: Costs, turns: int = 50_000, seed: int = 1) -> Outcome:
    """Let `turns` clients come one after the other; nothing is simulated of what is overloaded anyway."""
    per_lock = layout.turns_per_s / layout.names
    turn_us = costs.acquire_us + costs.release_us
    lock_us = layout.hold_ms * 1000 + costs.network_us + costs.handoff_us
    found = Outcome(layout.turns_per_s / layout.cores * turn_us / 1e6, per_lock * lock_us / 1e6)
    if not found.is_overloaded:
        _play(layout, costs, turns, random.Random(seed), found)
    return found


def _play(layout: Layout, costs: Costs, turns: int, chance: random.Random, found: Outcome) -> None:
    one_way_us = costs.network_us / 2
    core_is_free_at = [0.0] * layout.cores
    held: dict[int, deque[float]] = {}  # by name: when each of those that wait came
    # What reaches a core, in order of time: (when, what, name, when its client came).
    coming: list[tuple[float, str, int, float]] = []
    next_at, left, busy_us = 0.0, turns, 0.0
    while left or coming:
        if left and (not coming or next_at + one_way_us < coming[0][0]):
            heapq.heappush(coming, (next_at + one_way_us, "acquire", chance.randrange(layout.names), next_at))
            next_at, left = next_at + chance.expovariate(layout.turns_per_s / 1e6), left - 1
            continue
        at, what, name, came_at = heapq.heappop(coming)
        core = name % layout.cores
        waiting = held.get(name)
        cost_us = costs.acquire_us if what == "acquire" else costs.handoff_us if waiting else costs.release_us
        busy_us += cost_us
        done_at = core_is_free_at[core] = max(at, core_is_free_at[core]) + cost_us
        if what == "acquire" and waiting is not None:
            waiting.append(came_at)
            continue
        if what == "acquire":
            held[name] = deque()
        elif waiting:
            came_at = waiting.popleft()
        else:
            del held[name]
            continue
        granted_at = done_at + one_way_us
        found.waits_ms.append((granted_at - came_at) / 1000)
        heapq.heappush(coming, (granted_at + layout.hold_ms * 1000 + one_way_us, "release", name, 0.0))
    found.core_load = busy_us / layout.cores / next_at

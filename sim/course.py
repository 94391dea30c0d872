"""The course of a run: faults strike, everything is healed, all come to an end.

Theory: three phases. In the first, faults strike (which ones, and how often, the seed draws: a swarm). Then
everything is healed and life goes on, with cancellations only: now waiting must end, and the lock must not lie idle.
At last nothing new begins, every task comes to an end, and nothing may be left on the server.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from heapq import heappop

from sim.clock import Violation
from sim.faults import Nemesis
from sim.world import World

__all__ = ["Course", "Result"]


@dataclass
class Result:
    """What a run came to."""

    seed: int
    violation: Violation | None
    steps: int
    effects: int
    virtual_s: float
    grants: int
    counted: Counter[str] = field(default_factory=Counter)
    #: The primitives that lived in it.
    names: tuple[str, ...] = ()
    #: The public operations that were played.
    played: frozenset[str] = frozenset()


class Course:
    """One run of a world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.nemesis = Nemesis(world)

    def run(self) -> Result:
        """Run from the beginning to the end, or to the first violation."""
        world = self.world
        self.nemesis.begin()
        world.after(world.options.chaos_s, self._calm)
        heap = world.heap
        pop = heappop
        while heap and world.violation is None:
            world.now, _, act, args = pop(heap)
            act(*args)
        for process in world.processes:
            process.end()
        names = tuple(primitive.name for primitive in world.primitives)
        return Result(
            world.seed,
            world.violation,
            world.steps,
            world.effects,
            world.now,
            world.grants,
            world.counted,
            names,
            frozenset(world.played),
        )

    def _calm(self) -> None:
        world = self.world
        self.nemesis.heal()
        world.phase = "calm"
        world.calm_since = world.now
        if world.trace is not None:
            world.note("world", "all is healed")
        world.after(world.options.calm_s, self._drain)

    def _drain(self) -> None:
        world = self.world
        world.phase = "drain"
        self.nemesis.rest()
        world.after(world.options.drain_s(), world.stuck)
        self._wait_for_end()

    def _wait_for_end(self) -> None:
        world = self.world
        if any(process.tasks for process in world.processes):
            world.after(1.0, self._wait_for_end)
        else:
            # What is still under way arrives, and what is not renewed runs out.
            world.after(world.options.settle_s(), self._settled)

    def _settled(self) -> None:
        for primitive in self.world.primitives:
            primitive.settled()
        self.world.heap.clear()

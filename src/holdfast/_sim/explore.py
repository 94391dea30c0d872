"""Small worlds in every order: all ways in which the first messages can be fast or slow, with one fault anywhere.

Theory: the order of what happens is decided by how long each message travels. Every message up to a depth is a choice
(fast, or slower than several fast ones), and as long as the world's one fault is not spent, so are its loss, a journey
longer than any ttl here, and the sender's crash. A run follows a list of choices and notes how many there were at each
point; the next list is the successor of that one, until there is none. What comes after the depth is fast.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from holdfast._core.effects import Call, Command
from holdfast._sim.driver import Process
from holdfast._sim.network import AnswerTo, Network, Node
from holdfast._sim.options import Options
from holdfast._sim.primitives import found
from holdfast._sim.world import Violation, World

__all__ = ["Explored", "explore"]

FAST_S = 0.001
SLOW_S = 0.05
TTL_S = 2.0
#: Longer than a lease.
LATE_S = 2.5

_FAST, _SLOW, _LOST, _LATE, _CRASH = range(5)


class _Choices:
    """A list of choices that is followed, and grows by the first alternative where it ends."""

    def __init__(self, taken: list[int], depth: int) -> None:
        self.taken = taken
        self.counts: list[int] = []
        self.depth = depth
        self.faults = 1

    def next(self) -> int:
        at = len(self.counts)
        if at >= self.depth:
            return _FAST
        self.counts.append(5 if self.faults else 2)
        if at == len(self.taken):
            self.taken.append(_FAST)
        chosen = self.taken[at]
        if chosen > _SLOW:
            self.faults -= 1
        return chosen

    def successor(self) -> list[int] | None:
        """The list after this one, or None after the last."""
        taken = self.taken[: len(self.counts)]
        while taken:
            if taken[-1] + 1 < self.counts[len(taken) - 1]:
                return [*taken[:-1], taken[-1] + 1]
            taken.pop()
        return None


class _Network(Network):
    """Messages travel as chosen."""

    def __init__(self, world: World, choices: _Choices) -> None:
        super().__init__(world)
        self.choices = choices
        self._next_s = FAST_S

    def delay(self) -> float:
        """The requests' delay is chosen in `request`; replies and wake-ups choose here between fast and slow."""
        taken, self._next_s = self._next_s, 0.0
        if taken:
            return taken
        return SLOW_S if self._choose(None) == _SLOW else FAST_S

    def request(self, process: Process, node: Node, call: Call | Command, answer: AnswerTo) -> None:
        chosen = self._choose(process)
        if chosen in (_LOST, _CRASH):
            return
        self._next_s = {_FAST: FAST_S, _SLOW: SLOW_S, _LATE: LATE_S}[chosen]
        super().request(process, node, call, answer)

    def _choose(self, process: Process | None) -> int:
        world = self.world
        if world.phase != "chaos":
            return _FAST
        chosen = self.choices.next()
        if chosen == _CRASH and process is not None:
            world.after(0.0, self._crash, process)
        if world.trace is not None:
            world.note("choice", ("fast", "slow", "lost", "late", "crash")[chosen])
        if process is None and chosen > _SLOW:
            return _SLOW
        return chosen

    def _crash(self, process: Process) -> None:
        if process.alive:
            process.crash()
            for primitive in self.world.primitives:
                primitive.crashed(process)
            for inbox in list(process.inboxes.values()):
                self.close(inbox)


@dataclass(frozen=True)
class Explored:
    """How many worlds there were, whether that is all of them, and the first that broke: its choices and how."""

    worlds: int
    steps: int
    whole: bool
    broken: tuple[list[int], Violation] | None


def _worlds(name: str, clients: int, depth: int, most: int) -> Iterator[tuple[_Choices, World]]:
    options = replace(
        Options(seed=clients, mode="ordinary"),
        processes=clients,
        tasks=1,
        chaos_s=8.0,
        calm_s=2.0,
        latency_s=FAST_S,
        ttl_s=(TTL_S, TTL_S),
        work_s=0.3,
        think_s=1.0,
        patient=0.9,
        claim_ms=500,
        late_s=LATE_S,
    )
    taken: list[int] | None = []
    count = 0
    while taken is not None and count < most:
        choices = _Choices(taken, depth)
        world = World(options, [found()[name]])
        world.network = _Network(world, choices)
        yield choices, world
        taken = choices.successor()
        count += 1


def explore(name: str = "mutex", *, clients: int = 2, depth: int = 6, most: int = 1_000_000) -> Explored:
    """Every world of so many clients with the first `depth` messages in every way; at most `most` worlds."""
    count = steps = 0
    for choices, world in _worlds(name, clients, depth, most):
        result = world.run()
        count += 1
        steps += result.steps + result.effects
        if result.violation is not None:
            return Explored(count, steps, False, (choices.taken, result.violation))
    return Explored(count, steps, count < most, None)

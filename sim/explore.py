"""Every interleaving of a small world, up to a bound: depth-first, each path run from the beginning.

A world (`small`) says what could happen next; a path is a list of choices among that. The next path is the successor of
the last one, until there is none.

Theory: why it is enough to go on from states that are met for the first time, and with the faults that `small` offers.

*States.* What a process does next depends on nothing but what has reached it, and when: protocols have no other input,
and there is no randomness in a small world. So its state is a hash over that. With the server's data and clock, the
messages under way, the memory of the checks, the time, and what may still go wrong, it makes the state of the world:
two paths that come to equal states have equal futures, violations included, and the second may end there. So
all orders of what commutes (arrivals at different processes) meet again after a step or two, and no order is left out.
States count as equal by a hash of 128 bits.

*Faults*, each as early as makes a difference, since it commutes with all that comes between. A message is lost, late or
reset in the step that sent it: nothing else touches it while it is under way, and without it time has only more
freedom. A process crashes or is paused when something has just reached it: between two of those it does nothing. It is
cancelled there, too, or when the clock has moved, since what it then does looks at the clock. A broken inbox and a
restart may come at any point. (What is violated between the early place of a fault and its later one is violated in the
path without it.)

*Processes* that do the same are interchangeable: of those that nothing has come of yet, the first goes first.

The bound is the number of processes, of acquisitions, of faults (one), and of hurries, where time overtakes a message.
There is no other: paths end by themselves. What is not a choice: jitter (the middle), the rate of clocks (equal), and
time within a step (none).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice

from sim.clock import Violation
from sim.primitives import found
from sim.small import FAULTS, SmallWorld

__all__ = ["FAULTS", "Bound", "Explored", "choosable", "explore", "read", "replay", "written"]


def choosable() -> list[str]:
    """Primitives of which small worlds can be made."""
    return [name for name, primitive in found().items() if getattr(primitive, "fits_small_worlds", False)]


@dataclass(frozen=True)
class Bound:
    """How small the world is. `patient`: no wait has a limit."""

    primitive: str = "mutex"
    clients: int = 2
    acquisitions: int = 1
    hurries: int = 0
    faults: tuple[str, ...] = FAULTS
    patient: bool = True

    def world(self, *, trace: bool = False) -> SmallWorld:
        return SmallWorld(
            found()[self.primitive],
            clients=self.clients,
            acquisitions=self.acquisitions,
            hurries=self.hurries,
            faults=self.faults,
            patient=self.patient,
            trace=trace,
        )

    def options(self) -> str:
        """Return the bound as options of the command line."""
        said = f"--primitive {self.primitive} --clients {self.clients} --acquisitions {self.acquisitions}"
        said += f" --hurries {self.hurries} --faults {','.join(self.faults) or 'none'}"
        return said if self.patient else f"{said} --impatient"


@dataclass
class Explored:
    """What was gone through, whether that is all there is within the bound, and the choices that broke something."""

    bound: Bound
    paths: int = 0
    states: int = 0
    steps: int = 0
    #: Steps of the longest path.
    longest: int = 0
    seconds: float = 0.0
    whole: bool = False
    broken: tuple[list[int], Violation] | None = None
    #: Ends of paths that were new, by the fault that was in them.
    ends: Counter[str] = field(default_factory=Counter)

    def text(self) -> str:
        bound = self.bound
        lines = [
            f"{bound.clients} clients, {bound.acquisitions} acquisitions each of the {bound.primitive}, "
            f"{bound.hurries} hurries, one fault of: {', '.join(bound.faults) or 'none'}",
            f"{self.paths:,} worlds, {self.states:,} states, {self.steps:,} steps in {self.seconds:.1f} s, "
            f"{self.longest} steps at most; all of them within the bound: {'yes' if self.whole else 'no'}",
        ]
        if self.broken is not None:
            choices, violation = self.broken
            lines += [
                f"violation: {violation}",
                f"again: python -m sim explore {bound.options()} --choices {written(choices)}",
            ]
        return "\n".join(lines)


def explore(bound: Bound, *, seconds: float | None = None, most: int | None = None) -> Explored:
    """Go through all worlds within the bound; stop at a violation, or after a number of seconds or states."""
    began = time.monotonic()
    explored = Explored(bound)
    met: set[bytes] = set()
    path = _Path()
    while True:
        world = bound.world()
        violation = path.run(world, met, explored.ends)
        explored.paths += 1
        explored.steps += len(path.taken)
        explored.longest = max(explored.longest, len(path.taken))
        explored.states = len(met)
        explored.seconds = time.monotonic() - began
        if violation is not None:
            explored.broken = path.taken, violation
            return explored
        if not path.turn():
            explored.whole = True
            return explored
        if (seconds is not None and explored.seconds > seconds) or (most is not None and len(met) > most):
            return explored


class _Path:
    """The choices of a world, and how many there were each time."""

    def __init__(self) -> None:
        self.taken: list[int] = []
        self.counts: list[int] = []

    def run(self, world: SmallWorld, met: set[bytes], ends: Counter[str]) -> Violation | None:
        """Follow the choices, then the first each time until nothing is new."""
        try:
            for chosen in self.taken:
                world.make(next(islice(world.moves(), chosen, None)))
            while world.violation is None and not world.late():
                moves = list(world.moves())
                if not moves:
                    world.finish()
                    ends[next(iter(world.counted & _FAULTS), "no fault")] += 1
                    break
                if len(moves) > 1:
                    key = world.key()
                    if key in met:
                        break
                    met.add(key)
                self.taken.append(0)
                self.counts.append(len(moves))
                world.make(moves[0])
        finally:
            world.close()
        return world.violation

    def turn(self) -> bool:
        """Go to the next path; False when there is none."""
        while self.taken:
            chosen, count = self.taken.pop() + 1, self.counts[-1]
            if chosen < count:
                self.taken.append(chosen)
                return True
            self.counts.pop()
        return False


_FAULTS = Counter(dict.fromkeys(FAULTS, 1))


def replay(bound: Bound, choices: Iterable[int]) -> tuple[list[str], Violation | None]:
    """One world: its trace, and what broke in it. After the last choice, the first is taken each time."""
    world = bound.world(trace=True)
    left = iter(choices)
    try:
        while world.violation is None and not world.late():
            moves = list(world.moves())
            if not moves:
                world.finish()
                break
            chosen = next(left, 0)
            if not 0 <= chosen < len(moves):
                raise ValueError(f"there is no choice {chosen}: 0 to {len(moves) - 1} at {world.now:.6f} s")
            world.make(moves[chosen])
    finally:
        world.close()
    return world.trace or [], world.violation


def written(choices: Sequence[int]) -> str:
    """Choices as the command line takes them: `12:3` stands for the first choice twelve times, then choice 3."""
    words = []
    firsts = 0
    for chosen in choices:
        if chosen:
            words.append(f"{firsts}:{chosen}")
            firsts = 0
        else:
            firsts += 1
    return ",".join(words) or "0:0"


def read(text: str) -> list[int]:
    """The reverse of `written`. Raises `ValueError`."""
    choices: list[int] = []
    for word in text.split(","):
        firsts, _, chosen = word.partition(":")
        choices += [*([0] * int(firsts)), int(chosen)]
    return choices

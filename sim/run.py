"""Running many seeds, and telling what a failing one did.

Laws: a seed means the same on every machine; a failure prints all that is needed to see it again.
"""

from __future__ import annotations

import gc
import multiprocessing
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sim.clock import Violation
from sim.course import Course, Result
from sim.deadlocks import Deadlocks
from sim.options import MODES, Options
from sim.primitives import found
from sim.quorum import QuorumLock
from sim.world import Primitive, World

__all__ = ["Tally", "commit", "report", "run_modes", "run_seed", "run_seeds", "world_of"]

#: Few of the many objects of a world are in cycles: looking for those seldom saves a twentieth of the time.
_GC = 50_000, 20, 20
#: Seeds that a process takes at a time.
_CHUNK = 4
#: How many lines of its trace a failing seed shows.
_SHOWN = 60


def world_of(
    seed: int,
    mode: str = "ordinary",
    *,
    without: frozenset[str] = frozenset(),
    names: Sequence[str] | None = None,
    trace: bool = False,
    protected: bool = False,
) -> World:
    """The world of a seed. `names`: which primitives live in it; by default the seed draws them."""
    primitives = found()
    if names is None:
        rng = random.Random(f"primitives {mode} {seed}")
        names = rng.sample(list(primitives), min(len(primitives), rng.choice((1, 1, 1, 2))))
        if mode not in ("ordinary", "calm", "empty"):
            names = ["mutex"]  # what a mode demands is seen at the lock
    makers: list[Callable[[World], Primitive]] = [primitives[name] for name in names]
    if mode.startswith("quorum"):
        makers = [QuorumLock]
    elif mode.endswith("deadlocks"):
        makers = [Deadlocks]
    return World(Options.draw(seed, mode, without, protected), makers, trace=trace)


def run_seed(
    seed: int,
    mode: str = "ordinary",
    *,
    without: frozenset[str] = frozenset(),
    names: Sequence[str] | None = None,
    protected: bool = False,
) -> Result:
    """Run one seed to its end or its first violation."""
    return Course(world_of(seed, mode, without=without, names=names, protected=protected)).run()


@dataclass
class Tally:
    """What many seeds came to."""

    mode: str
    seeds: int = 0
    steps: int = 0
    effects: int = 0
    grants: int = 0
    virtual_s: float = 0.0
    cpu_s: float = 0.0
    wall_s: float = 0.0
    counted: Counter[str] = field(default_factory=Counter)
    #: Worlds in which each primitive lived.
    worlds: Counter[str] = field(default_factory=Counter)
    violations: list[tuple[int, Violation]] = field(default_factory=list)

    def add(self, result: Result) -> None:
        self.seeds += 1
        self.steps += result.steps + result.effects
        self.effects += result.effects
        self.grants += result.grants
        self.virtual_s += result.virtual_s
        self.counted.update(result.counted)
        self.worlds.update(result.names)
        if result.violation is not None:
            self.violations.append((result.seed, result.violation))

    def figures(self) -> list[tuple[str, str]]:
        cpu_s = max(self.cpu_s, 1e-9)
        return [
            ("mode", self.mode),
            ("seeds", f"{self.seeds:,}"),
            ("with each primitive", ", ".join(f"{name} {count:,}" for name, count in sorted(self.worlds.items()))),
            ("steps (events and effects)", f"{self.steps:,}"),
            ("of these effects of protocols", f"{self.effects:,}"),
            ("virtual hours", f"{self.virtual_s / 3600:,.1f}"),
            ("grants", f"{self.grants:,}"),
            ("violations", f"{len(self.violations):,}"),
            ("processor time", f"{self.cpu_s:,.1f} s in {self.wall_s:,.1f} s"),
            ("steps/s per core", f"{self.steps / cpu_s:,.0f}"),
            ("× real time per core", f"{self.virtual_s / cpu_s:,.0f}"),
        ]

    def text(self) -> str:
        wide = max(len(name) for name, _ in self.figures())
        lines = [f"  {name:{wide}}  {value}" for name, value in self.figures()]
        struck = ", ".join(f"{kind} {count:,}" for kind, count in sorted(self.counted.items()))
        return "\n".join([*lines, f"  {'faults and ends':{wide}}  {struck}"])

    def markdown(self) -> str:
        rows = [*self.figures(), ("commit", commit())]
        table = ["| | |", "|-|-|", *(f"| {name} | {value} |" for name, value in rows)]
        struck = ["| fault or end | times |", "|-|-:|"]
        struck += [f"| {kind} | {count:,} |" for kind, count in sorted(self.counted.items())]
        return "\n".join([*table, "", *struck, ""])


def _work(job: tuple[int, int, str, Sequence[str] | None]) -> tuple[list[Result], float]:
    first, count, mode, names = job
    gc.set_threshold(*_GC)
    began = time.process_time()
    results = [run_seed(seed, mode, names=names) for seed in range(first, first + count)]
    return results, time.process_time() - began


def run_seeds(
    seeds: tuple[int, int | None],
    mode: str = "ordinary",
    *,
    seconds: float | None = None,
    jobs: int = 1,
    names: Sequence[str] | None = None,
    keep_going: bool = False,
    tell: Callable[[str], None] | None = None,
) -> Tally:
    """Run seeds from the first to before the last (None: no last), for a limited number of seconds.

    Stops at the first violation unless `keep_going`.
    """
    tally = Tally(mode)
    began = told = time.monotonic()

    def chunks() -> Iterator[tuple[int, int, str, Sequence[str] | None]]:
        first, last = seeds
        while last is None or first < last:
            if seconds is not None and time.monotonic() - began >= seconds:
                return
            count = _CHUNK if last is None else min(_CHUNK, last - first)
            yield first, count, mode, names
            first += count

    def take(results: list[Result], cpu_s: float) -> bool:
        nonlocal told
        tally.cpu_s += cpu_s
        for result in results:
            tally.add(result)
            if result.violation is not None and tell is not None:
                tell(f"seed {result.seed}: {result.violation}")
        if tell is not None and time.monotonic() - told > 60:
            told = time.monotonic()
            bad = len(tally.violations)
            tell(f"{told - began:.0f} s: {tally.seeds:,} seeds, {tally.steps:,} steps, {bad} violations")
        return bool(tally.violations) and not keep_going

    if jobs == 1:
        for chunk in chunks():
            if take(*_work(chunk)):
                break
    else:
        waiting = []
        with multiprocessing.get_context("spawn").Pool(jobs) as pool:
            for chunk in chunks():
                waiting.append(pool.apply_async(_work, (chunk,)))
                stop = False
                while len(waiting) >= 2 * jobs:
                    stop = take(*waiting.pop(0).get()) or stop
                if stop:
                    break
            for job in waiting:
                take(*job.get())
    tally.wall_s = time.monotonic() - began
    return tally


#: Number of worlds of a mode that are shown to hold with its protection.
_HELD = 6


def run_modes(tries: int = 300, held: int = _HELD) -> tuple[str, bool]:
    """Run every mode with a demanded violation: (table, whether each was seen and nothing else).

    And with its protection `held` worlds of the same draw, that one among them, do not break.
    """
    lines = []
    good = True
    for mode in MODES.values():
        if mode.demanded is None:
            continue
        seen: Violation | None = None
        seed = 0
        for seed in range(tries):
            seen = run_seed(seed, mode.name).violation
            if seen is not None:
                break
        demanded = seen is not None and seen.kind == mode.demanded
        verdict = "as demanded" if demanded else "NOT AS DEMANDED"
        lines.append(f"  {mode.name:24} {mode.demanded:22} {verdict}: seed {seed}: {seen or 'nothing seen'}")
        broken = [
            (other, violation)
            for other in {seed, *range(held - 1)}
            if (violation := run_seed(other, mode.name, protected=True).violation) is not None
        ]
        verdict = f"BROKEN: seed {broken[0][0]}: {broken[0][1]}" if broken else f"nothing breaks in {held} worlds"
        lines.append(f"  {'':24} protected: {mode.protection}: {verdict}")
        good = good and demanded and not broken
    return "\n".join(lines), good


def commit() -> str:
    """The commit that the code is of, or "unknown"."""
    try:
        said = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError:
        return "unknown"
    return said.stdout.strip() or "unknown"


def report(
    seed: int,
    mode: str,
    *,
    without: frozenset[str] = frozenset(),
    names: Sequence[str] | None = None,
    shrink: bool = True,
    whole: bool = False,
    protected: bool = False,
) -> str:
    """Play a seed and report: its violation, the fewest kinds of faults that show it, the trace, the command."""
    world = world_of(seed, mode, without=without, names=names, trace=True, protected=protected)
    violation = Course(world).run().violation
    if violation is not None and shrink:
        for kind in world.options.faults():
            if kind in without:
                continue
            fewer = world_of(seed, mode, without=without | {kind}, names=names, trace=True, protected=protected)
            seen = Course(fewer).run().violation
            if seen is not None and seen.kind == violation.kind:
                without, world, violation = without | {kind}, fewer, seen
    trace = world.trace or []
    shown = trace if whole else shortened(trace)
    command = f"python -m sim replay {seed} --mode {mode}"
    if protected:
        command += " --protected"
    if without:
        command += f" --without {','.join(sorted(without)).replace(' ', '-')}"
    if names is not None:
        command += f" --primitives {','.join(names)}"
    return "\n".join(
        [
            f"seed {seed}, mode {mode}, commit {commit()}",
            f"faults in it: {', '.join(world.options.faults()) or 'none'}",
            f"{world.options}",
            *shown,
            f"violation: {violation or 'none'}",
            f"again: {command}",
        ]
    )


def shortened(trace: list[str]) -> list[str]:
    """The end of a trace, and before it only the faults of machines."""
    head, tail = trace[:-_SHOWN], trace[-_SHOWN:]
    faults = [line for line in head if line[16:18] == "! "][-20:]
    return [*faults, f"  … {len(head)} lines, of which the faults above …", *tail] if head else tail


if __name__ == "__main__":
    sys.exit("python -m sim")

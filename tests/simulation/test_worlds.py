"""A slice of the simulation small enough for every run of the tests. `make sim` runs it for as long as you like."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sim import run
from sim.course import Course
from sim.options import MODES, Options
from sim.primitives import found
from sim.world import World

ROOT = Path(__file__).resolve().parents[2]


def seeds(short: range, long: range) -> list[Any]:
    """Return the seeds of `make test`, and those of `make test-thorough`."""
    return [pytest.param(short, id="some"), pytest.param(long, id="more", marks=pytest.mark.thorough)]


#: Seeds of every primitive in the ordinary mode, and in the two without violations to be shown.
ORDINARY = seeds(range(4), range(4, 12))
OTHER = seeds(range(1), range(1, 4))
#: Seeds in which what cannot be promised breaks soon, and whose worlds with protection are short, where that is not 0:
#: others are played if it does not break there.
BREAKS = {
    "restart-empty": 7,
    "failover-no-wait": 2,
    "failover-wait-1": 18,
    "drift": 4,
    "quorum-clock-forward": 16,
    "quorum-drift": 5,
    "quorum-not-written-back": 2,
    "careless": 6,
}
#: At which effects a worker is cancelled.
EFFECTS = seeds(range(1, 50, 4), range(1, 50))


@pytest.mark.parametrize("seeds", ORDINARY)
@pytest.mark.parametrize("name", found())
def test_nothing_breaks_that_is_promised(name: str, seeds: range) -> None:
    for seed in seeds:
        result = run.run_seed(seed, names=[name])
        assert result.violation is None, run.report(seed, "ordinary", names=[name])
        assert result.grants > 0


@pytest.mark.parametrize("seed", [25, 172, 321, 1361, 2822, 3335, 10842, 22672, 34328])
def test_seeds_that_found_something(seed: int) -> None:
    """Bugs of the protocol, or of what was demanded of it (1361, 2822, 3335: a forgotten queue, and idle times that a
    lost lease explains): see docs/evidence/simulation.md."""
    assert run.run_seed(seed, names=["mutex"]).violation is None, run.report(seed, "ordinary", names=["mutex"])


@pytest.mark.parametrize("name, seed", [("barrier", 41), (None, 222), (None, 230)])
def test_seeds_that_found_something_in_the_family(name: str | None, seed: int) -> None:
    """An arrival that came after its party had left (41); errors of checks (222, 230). `ORDINARY` has the others."""
    names = None if name is None else [name]
    assert run.run_seed(seed, names=names).violation is None, run.report(seed, "ordinary", names=names)


@pytest.mark.parametrize("seeds", OTHER)
@pytest.mark.parametrize("mode", ["calm", "empty"])
@pytest.mark.parametrize("name", found())
def test_nothing_breaks_without_faults_or_after_data_loss(name: str, mode: str, seeds: range) -> None:
    for seed in seeds:
        assert run.run_seed(seed, mode, names=[name]).violation is None, run.report(seed, mode, names=[name])


def test_only_the_holder_that_was_shown_is_broken_and_ends_first() -> None:
    """But for one that does not answer, which only the faults of the second mode bring about."""
    counted: Counter[str] = Counter()
    for mode, seeds in (("calm-breaks", range(3)), ("breaks", range(4))):
        counted.clear()
        for seed in seeds:
            result = run.run_seed(seed, mode, names=["mutex"])
            assert result.violation is None, run.report(seed, mode, names=["mutex"])
            counted.update(result.counted)
        assert counted["broken: let go"] > 10 and counted["broken: gone"]
    assert counted["broken: forced"]


def test_others_get_in_soon_after_a_crash_and_never_early() -> None:
    """No two trust that they hold a lock whose holder may be replaced as soon as its connections have ended."""
    replaced = 0
    for seed in range(3, 7):  # in which many are
        result = run.run_seed(seed, "crashes", names=["mutex"])
        assert result.violation is None, run.report(seed, "crashes", names=["mutex"])
        replaced += result.counted["replaced"]
    assert replaced > 10


@pytest.mark.parametrize("mode", [mode.name for mode in MODES.values() if mode.demanded is not None])
def test_what_nobody_can_promise_breaks_and_holds_with_its_protection(mode: str) -> None:
    """A checker that never fires proves nothing; nor does one that fails whatever is done."""
    for seed in (BREAKS.get(mode, 0), *range(300)):
        violation = run.run_seed(seed, mode).violation
        if violation is not None:
            assert violation.kind == MODES[mode].demanded, f"seed {seed}: {violation}"
            break
    else:
        raise AssertionError(f"nothing broke in 300 seeds of {mode}")
    grants = 0
    for other in (seed, *range(300)):
        result = run.run_seed(other, mode, protected=True)
        assert result.violation is None, run.report(other, mode, protected=True)
        grants += result.grants
        if grants > 20:
            break
    assert grants > 20, "and locks were given out in it"


@pytest.mark.parametrize("mode", ["ordinary", "failover-no-wait"])
def test_the_same_seed_gives_the_same_trace(mode: str) -> None:
    first, second = (run.world_of(6, mode, trace=True) for _ in range(2))
    assert Course(first).run() == Course(second).run()
    assert first.trace
    assert first.trace == second.trace


#: Prints the course of a world.
_PLAY = """
from sim import run
from sim.course import Course
world = run.world_of(7, "crashes", names=["mutex"], trace=True)
Course(world).run()
print(*world.trace, sep="\\n")
"""


def test_the_same_seed_gives_the_same_trace_in_another_process() -> None:
    """Sets of strings have another order there, on which nothing depends."""
    command = [sys.executable, "-c", _PLAY]
    first, second = (
        subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True)
        for seed in ("0", "2")
    )
    assert first.stdout
    assert first.stdout == second.stdout


def test_a_trace_costs_nothing_but_time() -> None:
    with_trace, without = run.world_of(6, trace=True), run.world_of(6)
    assert Course(with_trace).run() == Course(without).run()


def test_different_seeds_are_different_worlds() -> None:
    assert len({str(replace(Options.draw(seed), seed=0)) for seed in range(50)}) == 50


def test_a_failing_seed_says_how_to_see_it_again() -> None:
    for seed in range(60):
        if run.run_seed(seed, "restart-empty", names=["mutex"]).violation is None:
            continue
        said = run.report(seed, "restart-empty", names=["mutex"])
        assert "violation: overlap" in said
        left = said.splitlines()[1].removeprefix("faults in it: ").split(", ")
        assert "empty" in left
        if len(left) < len(Options.draw(seed, "restart-empty").faults()):
            break  # not every seed can be shortened: without a kind of faults it is another world
    else:
        raise AssertionError("none was shortened")
    command = said.splitlines()[-1]
    assert command.startswith(f"again: python -m sim replay {seed} --mode restart-empty --without ")
    without = frozenset(command.split("--without ")[1].split()[0].replace("-", " ").split(","))
    again = run.report(seed, "restart-empty", without=without, names=["mutex"], shrink=False)
    assert again.splitlines()[-2] == said.splitlines()[-2]


@pytest.mark.parametrize("effects", EFFECTS)
@pytest.mark.parametrize("name", found())
def test_a_cancellation_at_any_effect_leaves_nothing_behind(name: str, effects: range) -> None:
    """The n-th effect of one worker is where it is cancelled, for every n; nothing else is wrong in these worlds."""
    cancelled = 0
    for effect in effects:
        options = replace(
            Options.draw(effect, "calm"),
            processes=3,
            tasks=1,
            locks=1,
            calm_s=20.0,
            think_s=0.5,
            work_s=1.0,
            patient=0.9,
            rates={},
        )
        world = World(options, [found()[name]])
        process = world.processes[0]
        process.doom(next(iter(process.tasks)), effect)
        result = Course(world).run()
        assert result.violation is None, f"cancelled at effect {effect}: {result.violation}"
        cancelled += world.cancelled
    assert cancelled >= 0.6 * len(effects), "most of them met their effect"

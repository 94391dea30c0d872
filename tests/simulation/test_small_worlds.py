"""Small worlds in every order, to bounds that every run of the tests can afford; and bugs that this alone finds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

from holdfast._core import waiting
from holdfast._lua import SCRIPTS, Script
from sim.__main__ import main
from sim.explore import FAULTS, Bound, choosable, explore, read, replay, written
from sim.server import forget_scripts
from tests.mutants.table import MUTANTS, PACKAGE

#: Bounds, and at least how many states they must come to: fewer would mean that something is no choice any more.
BOUNDS = [
    (Bound("mutex", faults=("lost", "reset", "crash", "cancel")), 300),
    (Bound("mutex", hurries=1, faults=()), 250),
    (Bound("mutex", faults=("inbox",), patient=False), 100),
    (Bound("mutex", faults=("break", "want")), 1_200),
    (Bound("rwlock", faults=("crash",)), 50),
    (Bound("semaphore", faults=("lost", "cancel")), 100),
]


@pytest.mark.parametrize("bound, states", BOUNDS, ids=[bound.options().replace("--", "") for bound, _ in BOUNDS])
def test_nothing_breaks_in_any_order(bound: Bound, states: int) -> None:
    explored = explore(bound)
    assert explored.broken is None, explored.text()
    assert explored.whole
    assert explored.states >= states
    assert {*explored.ends} == {*bound.faults, "no fault"}, "each fault has struck, and one world was spared"


def test_orders_that_only_differ_in_what_commutes_are_one() -> None:
    """Two clients of a semaphore with room for both: whatever the order, they meet no one."""
    explored = explore(Bound("semaphore", faults=()))
    assert explored.whole
    assert explored.states < explored.steps / 10


#: Bugs of tests/mutants, and what they look like here.
FOUND = {
    "a release does not compare the token": {"stolen"},
    "a pushed grant counts for the ttl": {"shorter on the server"},
    "a caller that leaves gives nothing back": {"orphan"},
    "a dead waiter is not skipped": {"handed to the dead"},
    "a token with a tombstone is granted": {"orphan"},
    "a release hands over to no waiter": {"order"},
    "a waiter does not check by itself": {"stuck"},
}


@pytest.fixture
def changed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The mutant of that name is in force."""
    mutant = next(mutant for mutant in MUTANTS if mutant.what == request.param)
    assert mutant.fits()
    if mutant.file.startswith("_lua/"):
        for name in ("acquire", "release", "renew"):
            text = SCRIPTS[name].text
            monkeypatch.setitem(SCRIPTS, name, Script(name, text.replace(mutant.old, mutant.new)))
    else:
        assert mutant.file == "_core/waiting.py"
        text = (PACKAGE / mutant.file).read_text(encoding="utf-8").replace(mutant.old, mutant.new)
        there: dict[str, Any] = {"__name__": waiting.__name__}
        exec(compile(text, str(Path(mutant.file)), "exec"), there)
        # Every reference to the functions sees the change.
        for changed in (waiting.wait_for, waiting.pushed):
            monkeypatch.setattr(changed, "__code__", there[changed.__name__].__code__)
        for name, function in vars(there["_Waiting"]).items():
            if isinstance(function, FunctionType):
                monkeypatch.setattr(vars(waiting._Waiting)[name], "__code__", function.__code__)
    forget_scripts()
    yield mutant.what
    monkeypatch.undo()
    forget_scripts()


@pytest.mark.parametrize("changed", [*FOUND], indirect=True)
def test_a_bug_is_found_by_going_through_small_worlds(changed: str, capsys: pytest.CaptureFixture[str]) -> None:
    explored = explore(Bound(faults=("lost", "crash", "cancel")))
    assert explored.broken is not None
    choices, violation = explored.broken
    assert violation.kind in FOUND[changed]
    trace, again = replay(explored.bound, choices)
    assert again == violation
    assert sum(line.split()[1] == "choice" for line in trace) == len(choices)
    # The command that is printed shows the same.
    command = explored.text().splitlines()[-1].removeprefix("again: python -m sim ").split()
    assert main(command) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"violation: {violation}"


def test_what_does_not_fit_is_not_offered() -> None:
    offered = set(choosable())
    assert {"mutex", "rwlock", "semaphore", "condition"} <= offered
    assert not offered & {"barrier", "gates", "optimistic"}


def test_choices_are_written_short() -> None:
    assert written([0] * 12 + [3, 1, 0, 0, 2, 0]) == "12:3,0:1,2:2"
    assert read("12:3,0:1,2:2") == [0] * 12 + [3, 1, 0, 0, 2]
    assert read(written([0, 0])) == [0]  # the first is taken anyway


def test_a_choice_that_is_not_there_is_told() -> None:
    with pytest.raises(ValueError, match="there is no choice 99"):
        replay(Bound(), [0, 0, 99])


def test_the_command_tells_the_bound_and_what_came_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explore", "--clients", "2", "--faults", "none"]) == 0
    said = capsys.readouterr().out
    assert "2 clients, 1 acquisitions each of the mutex, 0 hurries, one fault of: none" in said
    assert "all of them within the bound: yes" in said


def test_all_faults_are_offered_by_default() -> None:
    assert Bound().faults == FAULTS

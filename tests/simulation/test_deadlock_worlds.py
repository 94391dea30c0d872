"""A slice of the simulation of deadlocks: who is told of one is in one, and every wait ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from sim import run
from sim.deadlocks import _Moment, stuck

#: Those that take little time for what there is to judge in them; and others, in parts played side by side. No
#: mutant needs a seed above 5 (docs/evidence/mutants.md): `python -m sim run --mode deadlocks` plays more.
SOME = {"calm-deadlocks": [10, 11], "deadlocks": [8]}
MORE = [range(7), range(7, 21)]


@pytest.mark.parametrize(
    "mode, seeds",
    [
        *(pytest.param(mode, seeds, id=f"{mode}-some") for mode, seeds in SOME.items()),
        *(
            pytest.param(mode, seeds, id=f"{mode}-{seeds[0]}-{seeds[-1]}", marks=pytest.mark.thorough)
            for mode in SOME
            for seeds in MORE
        ),
    ],
)
def test_no_false_alarm_and_no_wait_without_an_end(mode: str, seeds: Sequence[int]) -> None:
    counted: Counter[str] = Counter()
    for seed in seeds:
        result = run.run_seed(seed, mode)
        assert result.violation is None, run.report(seed, mode)
        counted.update(result.counted)
    assert counted["told of a deadlock"] > 20 and counted["deadlocks seen"] > 20, "there is something to judge"
    assert counted["handed on"] > 0


def _moment(*seen: tuple[str, str, str]) -> _Moment:
    """(name, holders, queue), each of which is a letter for its client, and behind it a mark."""
    return _Moment(0.0, tuple((name, _tokens(holders), _tokens(queue)) for name, holders, queue in seen))


def _tokens(words: str) -> tuple[str, ...]:
    return tuple(f"{word[0]}:{word[1:]}1:1" for word in words.split())


@pytest.mark.parametrize(
    "seen, expected",
    [
        ([("l0", "a", "b"), ("l1", "b", "a")], "ab"),
        ([("l0", "a", "b"), ("l1", "c", "a")], ""),
        ([("l0", "a", "b c"), ("l1", "b", "a")], "abc"),
        ([("s", "a1. b1.", "c1."), ("l0", "c", "a")], ""),
        ([("s", "a1. b1.", "c1."), ("l0", "c", "a b")], "abc"),
        ([("s", "a1. b1.", "c2."), ("l0", "c", "a")], "ac"),
        ([("r", "ar.", "bw. cr."), ("l0", "c", "a")], "abc"),
        ([("r", "ar.", "br."), ("l0", "b", "a")], ""),
    ],
)
def test_what_the_worlds_hold_for_a_deadlock(seen: list[tuple[str, str, str]], expected: str) -> None:
    assert "".join(sorted(client for client, _ in stuck(_moment(*seen), None))) == expected

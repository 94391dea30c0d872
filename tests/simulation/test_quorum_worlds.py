"""A slice of the simulation of quorums: members whose clocks differ, that pause, restart, lose data, are cut off."""

from __future__ import annotations

import pytest

from sim import run

#: Four in a row that take little time. What must break without its protection is in test_worlds.py, as for every mode.
SEEDS = range(2, 6)


@pytest.mark.parametrize("mode", ["quorum", "quorum-empty"])
def test_nothing_breaks_that_is_promised(mode: str) -> None:
    grants = 0
    for seed in SEEDS:
        result = run.run_seed(seed, mode)
        assert result.violation is None, run.report(seed, mode)
        grants += result.grants
    assert grants > 100

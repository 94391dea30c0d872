"""A sample of the bugs put into the family's scripts: the simulation sees each. `make mutants` has them all."""

from __future__ import annotations

import itertools

import pytest

from sim import run
from sim.primitives import found
from tests.mutants.inside import changed
from tests.mutants.table import FAMILY, MUTANTS, Mutant

#: How many of each primitive.
EACH = 2
SEEDS = range(12)
MODES = ("ordinary", "calm", "empty")

_SCRIPTS = [mutant for mutant in FAMILY if mutant.file.startswith("_lua/")]
SAMPLE = [
    mutant
    for _, mutants in itertools.groupby(_SCRIPTS, key=lambda mutant: mutant.primitive)
    for mutant in itertools.islice(mutants, EACH)
]


@pytest.mark.parametrize("mutant", SAMPLE, ids=lambda mutant: f"{mutant.primitive}: {mutant.what}")
def test_it_is_seen(mutant: Mutant) -> None:
    with changed(mutant):
        assert any(run.run_seed(seed, mode, names=[mutant.primitive]).violation for seed in SEEDS for mode in MODES)


def test_every_primitive_has_some() -> None:
    for name in found():
        assert sum(mutant.primitive == name for mutant in MUTANTS) >= 4, name

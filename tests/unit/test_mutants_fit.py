"""The mutants' texts stand where they are to be replaced. `make mutants` runs them."""

from __future__ import annotations

import pytest

from tests.mutants.table import MUTANTS, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.what)
def test_a_mutant_fits(mutant: Mutant) -> None:
    assert mutant.fits(), f"{mutant.file} does not hold {mutant.old!r} exactly once: change tests/mutants/table.py"
    assert mutant.new != mutant.old


def test_there_are_enough_of_them() -> None:
    assert len({mutant.what for mutant in MUTANTS}) == len(MUTANTS) >= 30

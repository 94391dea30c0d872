"""A sample of `python -m tests.mutants.real`: the checker convicts mutants by what users of a real server saw."""

from __future__ import annotations

import pytest

from tests.mutants.real import CHOSEN, SCENARIOS, UNSEEN, convict
from tests.mutants.table import MUTANTS, Mutant

SAMPLE = [
    pytest.param("calm", "a handoff leaves the old fencing token", "fencing"),
    pytest.param("semaphore", "one permit too many for the queue", "exclusion", marks=pytest.mark.thorough),
    pytest.param("sparse", "a release frees nothing", "progress", marks=pytest.mark.thorough),
    pytest.param("kept", "an idle lease is not let go", "progress", marks=pytest.mark.thorough),
]


@pytest.mark.parametrize("scenario, what, rule", SAMPLE)
def test_a_mutant_is_convicted(scenario: str, what: str, rule: str) -> None:
    (mutant,) = [each for each in MUTANTS if each.what == what]
    assert what in CHOSEN[scenario]
    found = convict(mutant, scenario)
    assert found.rules.get(rule, 0) > 0, found


def test_all_chosen_mutants_fit() -> None:
    known = {mutant.what for mutant in MUTANTS}
    chosen = [each for some in CHOSEN.values() for each in some]
    assert set(CHOSEN) <= set(SCENARIOS)
    assert [each for each in chosen if isinstance(each, str) and each not in known] == []
    assert [each.what for each in chosen if isinstance(each, Mutant) and not each.fits()] == []
    assert len(chosen) >= 50
    assert set(UNSEEN) <= known
    assert not set(UNSEEN) & {each for each in chosen if isinstance(each, str)}

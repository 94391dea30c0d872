"""A sample of the formal models; `make model` checks all of them."""

from __future__ import annotations

import re
import shutil

import pytest

from models import __main__ as models

needs_spin = pytest.mark.skipif(
    shutil.which("spin") is None or shutil.which("gcc") is None, reason="no spin or no gcc (apt-get install spin gcc)"
)
SAMPLED = ("NO_CONFIRM", "TWOSTEP", "NO_WRITE_BACK", "LOCAL_TRUST", "HAND_AFTER_SEND", "CUTS=1", "MARK_STAYS", "TOKS=2")
#: Three processes take ten times as long as two: `make model` checks them, with all others.
SAMPLE = [row for row in models.ROWS if row.defines.rpartition(" ")[2] in SAMPLED and "W=3" not in row.defines]


@needs_spin
@pytest.mark.parametrize("row", SAMPLE, ids=lambda row: row.defines)
def test_a_model_answers_as_demanded(row: models.Row) -> None:
    assert models.check(row).good


@pytest.mark.parametrize("model", ["handoff", "tenure", "crash"])
def test_every_assumption_of_a_model_has_a_row_without_it(model: str) -> None:
    text = (models.HERE / f"{model}.pml").read_text(encoding="utf-8")
    listed = text.split("the model must fail:")[1].split("*/")[0]
    assumptions = set(re.findall(r"^ \* ([A-Z_]+) ", listed, re.MULTILINE))
    assert assumptions
    denied = {row.defines.split()[-1] for row in models.ROWS if row.model == model and not row.holds}
    assert denied == assumptions
    for assumption in assumptions:
        assert re.search(rf"#\s*(el)?if.*\b{assumption}\b", text), f"{assumption} changes nothing"


def test_every_model_is_checked_both_ways() -> None:
    for name in {path.stem for path in models.HERE.glob("*.pml")}:
        assert {row.holds for row in models.ROWS if row.model == name} == {True, False}

"""The ladder pages name every rung, in both languages, with the same plays."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from holdfast.lab import schemes
from holdfast.lab.faults import FAULTS
from holdfast.lab.handles import ENTRIES
from tests.lab.refresh_ladder import MARK, PAGES


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_rung_is_there_with_a_timeline_of_its_own(page: Path) -> None:
    text = page.read_text()
    rungs = [getattr(schemes, name) for name in schemes.__all__]
    names = {rung.NAME for rung in rungs if hasattr(rung, "NAME")} | {"holdfast"}
    shown = [found[2].split() for found in MARK.finditer(text) if found[1] == "lab"]
    assert {scheme for scheme, _ in shown} == names
    assert all(scheme in ENTRIES and fault in FAULTS for scheme, fault in shown)
    assert len(re.findall(r"^## \d+\. ", text, re.MULTILINE)) == 13
    for scheme, fault in shown:
        assert f"$ holdfast lab run {scheme} {fault}\n" in text


def test_both_languages_show_the_same() -> None:
    english, chinese = (MARK.findall(page.read_text()) for page in PAGES)
    assert english == chinese
    blocks = [re.findall(r"```text\n.*?\n```", page.read_text(), re.DOTALL) for page in PAGES]
    assert blocks[0] == blocks[1]

"""The ladder pages name every rung, in both languages, with the same plays."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from holdfast.lab.faults import FAULTS
from holdfast.lab.handles import ENTRIES
from tests.lab.refresh_ladder import MARK, PAGES, TABLE, table


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_rung_is_there_and_what_is_shown_can_be_played(page: Path) -> None:
    text = page.read_text()
    assert table(page) in text, "python -m tests.lab.refresh_ladder --tables"
    story = TABLE.sub("", text)
    assert [name for name in ENTRIES if f"`{name}`" not in story] == []
    shown = [found[2].split() for found in MARK.finditer(text) if found[1] == "lab"]
    assert len(shown) > 10
    for scheme, fault in shown:
        assert FAULTS[fault].applies_to(ENTRIES[scheme])
        assert f"$ holdfast lab run {scheme} {fault}\n" in text


def test_both_languages_show_the_same() -> None:
    english, chinese = (MARK.findall(page.read_text()) for page in PAGES)
    assert english == chinese
    blocks = [re.findall(r"```text\n.*?\n```", page.read_text(), re.DOTALL) for page in PAGES]
    assert blocks[0] == blocks[1]

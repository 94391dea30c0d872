"""The ladder pages name every rung, in both languages, with the same plays."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from holdfast_lab.faults import FAULTS
from holdfast_lab.handles import ENTRIES
from holdfast_lab.texts import expected, listings, text_of
from lab.tests.refresh_ladder import MARK, PAGES, TABLE, table


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_rung_is_there_and_what_is_shown_can_be_played(page: Path) -> None:
    text = page.read_text()
    for which in ("schemes", "listings"):
        assert table(page, which) in text, "python -m lab.tests.refresh_ladder --tables"
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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_rung_has_one_timeline(page: Path) -> None:
    rungs = re.findall(r"^## (\d+)\. [^\n]*\n(.*?)(?=^## )", page.read_text(), re.DOTALL | re.MULTILINE)
    assert [int(number) for number, _ in rungs] == list(range(1, 13))
    assert [len(MARK.findall(text)) for _, text in rungs] == [1] * 12


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_listing_is_told_on_its_rung(page: Path) -> None:
    rungs = dict(re.findall(r"^## (\d+)\. ([^\n]*\n.*?)(?=^## )", page.read_text(), re.DOTALL | re.MULTILINE))
    assert len(listings()) == 16
    for listing in listings():
        assert f"`{listing.scheme}`" in rungs[str(listing.rung)], listing
        assert listing.faults and all(expected(listing.scheme, *cell) for cell in listing.faults), listing


def test_as_printed_is_said_of_listings_only() -> None:
    assert {listing.article["en"] for listing in listings()} == {
        "Distributed locks with Redis",
        "Redis locks",
        "Distributed locks on Redis (Jedis)",
        "Principles and implementation of Redis distributed locks",
        "Jiang Dejun's lecture on distributed locks",
    }
    for name in ENTRIES:
        assert not any(word in "".join(text_of("scheme", name).values()) for word in ("rinted", "照抄", "所印")), name
    for listing in listings():
        assert listing.text["en"].startswith("As printed in ") and bool(listing.changed) == bool(listing.changed_zh)

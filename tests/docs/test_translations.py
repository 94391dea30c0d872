"""A Chinese page says what its English page says: as far as that can be seen without reading Chinese.

Same headings in the same order (by level), same code but for its comments and texts, tables of the same shape with the
same code in each row, the same options, functions and errors named in each section, links that lead somewhere.

Who changes an English page and fails here: change the Chinese one as well (the difference is shown), or take the old
sentence out of it.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CHINESE = sorted([*ROOT.glob("*.zh-CN.md"), *ROOT.glob("docs/**/*.zh-CN.md")])

_FENCE = re.compile(r"^```([a-z]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def english_of(page: Path) -> Path:
    return page.with_name(page.name.replace(".zh-CN", ""))


@pytest.fixture(params=CHINESE, ids=lambda page: page.name)
def pages(request: pytest.FixtureRequest) -> tuple[str, str]:
    chinese: Path = request.param
    return english_of(chinese).read_text(encoding="utf-8"), chinese.read_text(encoding="utf-8")


def bare(language: str, code: str) -> str:
    """Code without what is translated in it: comments, texts, and the right column where a block is a list."""
    if language == "":
        return re.sub(r"(?<=\S)  .*", "", code)
    code = re.sub(r"(^|\s)#.*", "", code) if language in ("python", "sh", "console") else code
    return re.sub(r'"[^"]*"', '""', code) if language == "python" else code


def blocks(text: str) -> list[tuple[str, str]]:
    return [(language, bare(language, code)) for language, code in _FENCE.findall(text)]


def prose(text: str) -> str:
    return _FENCE.sub("", text)


def headings(text: str) -> list[int]:
    return [len(marks) for marks in re.findall(r"^(#+) ", prose(text), re.MULTILINE)]


def spans(text: str) -> set[str]:
    """Return what is set as code in a text, wherever its lines are broken."""
    return {" ".join(span.split()) for span in re.findall(r"`([^`]+)`", text)}


def rows(text: str) -> list[tuple[int, set[str], list[str]]]:
    """Of each row of a table: how many columns, what is code in it, and the numbers that it begins with."""
    lines = re.findall(r"^\|.*\|$", prose(text), re.MULTILINE)
    return [(line.count("|"), spans(line), re.findall(r"\d+", line.split("|")[1])) for line in lines]


def sections(text: str) -> list[str]:
    return re.split(r"^#+ .*$", prose(text), flags=re.MULTILINE)


def test_same_headings(pages: tuple[str, str]) -> None:
    english, chinese = pages
    assert headings(chinese) == headings(english)


def test_same_code(pages: tuple[str, str]) -> None:
    english, chinese = pages
    assert blocks(chinese) == blocks(english)


def test_same_tables(pages: tuple[str, str]) -> None:
    english, chinese = pages
    assert rows(chinese) == rows(english)


def test_sentences_name_the_same_things(pages: tuple[str, str]) -> None:
    english, chinese = pages
    for number, (theirs, ours) in enumerate(zip(sections(english), sections(chinese), strict=True)):
        assert spans(ours) == spans(theirs), f"section {number}"


@pytest.mark.parametrize("page", CHINESE, ids=lambda page: page.name)
def test_links_lead_somewhere_and_each_page_to_the_other(page: Path) -> None:
    english = english_of(page)
    assert f"]({page.name})" in english.read_text(encoding="utf-8")
    text = page.read_text(encoding="utf-8")
    assert f"]({english.name})" in text
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]+))?\)", text):
        there = page.parent / target if target else page
        assert there.exists(), f"{page.name} → {target}"
        if anchor:
            assert anchor in anchors(there.read_text(encoding="utf-8")), f"{page.name} → {target}#{anchor}"


def anchors(text: str) -> set[str]:
    """Return the anchors that GitHub makes: small letters, blanks to hyphens, no punctuation."""
    titles = re.findall(r"^#+ (.*)$", prose(text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", CHINESE, ids=lambda page: page.name)
def test_chinese_sentences_have_chinese_punctuation(page: Path) -> None:
    text = re.sub(r"`[^`]+`|\]\([^)]*\)", "码", prose(page.read_text(encoding="utf-8")))
    assert re.findall(r".{0,9}[\u4e00-\u9fff][,;:!?()].{0,9}|.{0,9}[,;:!?()][\u4e00-\u9fff].{0,9}", text) == []

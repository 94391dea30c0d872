"""Chinese pages show Chinese pictures, which differ from the English ones in their words alone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools.pictures import PICTURES, in_chinese

DOCS = PICTURES.parent
ENGLISH = sorted(picture for picture in PICTURES.glob("*.svg") if ".zh-CN." not in picture.name)


@pytest.mark.parametrize("picture", ENGLISH, ids=lambda picture: picture.stem)
def test_the_chinese_picture_is_that_of_the_english_one(picture: Path) -> None:
    drawn = picture.with_suffix(".zh-CN.svg").read_text(encoding="utf-8")
    assert drawn == in_chinese(picture.read_text(encoding="utf-8")), "run `python -m tools.pictures`"
    assert len(re.findall(r"[\u4e00-\u9fff]", drawn)) > 20


def test_words_without_a_translation_are_refused() -> None:
    with pytest.raises(KeyError, match="new words"):
        in_chinese('<text x="1">new words</text>')


def test_each_page_shows_the_pictures_of_its_language() -> None:
    seen = 0
    for page in [*DOCS.parent.glob("README*.md"), *DOCS.rglob("*.md")]:
        for picture in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / picture).exists(), f"{page.name} → {picture}"
            assert (".zh-CN." in picture) == (".zh-CN." in page.name), f"{page.name} → {picture}"
            seen += 1
    assert seen >= 12

"""The pages on frameworks show pieces of the examples, word for word; `make frameworks` runs those."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(page for page in (ROOT / "docs" / "frameworks").glob("*.md") if ".zh-CN." not in page.name)
FILES = [file for file in (ROOT / "examples" / "frameworks").rglob("*") if file.is_file() and file.suffix != ".pyc"]
EXAMPLES = [file.read_text(encoding="utf-8") for file in FILES]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_each_piece_stands_in_an_example(page: Path) -> None:
    blocks = re.findall(r"^```([a-z]*)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    pieces = [block for language, block in blocks if language in ("", "python")]
    assert [piece for piece in pieces if not any(piece in example for example in EXAMPLES)] == []
    assert pieces or page.stem == "README"

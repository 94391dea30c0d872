"""The pages on frameworks show whole files, which are the examples that `make frameworks` runs.

What can be seen without the frameworks is tested here, for both languages: each block has a file name, its imports are
complete, and in English it is an example word for word. `tests/frameworks/test_pages.py` pastes and uses them.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.support.pages import files, mistakes

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs" / "frameworks").glob("*.md"))
EXAMPLES = [file for file in (ROOT / "examples" / "frameworks").rglob("*") if file.is_file() and file.suffix != ".pyc"]
#: Not for readers: what the file is for, and what 3.11 does not need.
_HEAD = re.compile(r'\A""".*?"""\n+|^from __future__ import annotations\n+', re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_block_is_a_whole_file(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    shown = files(text)
    assert len(shown) == len(re.findall(r"^```python$", text, re.MULTILINE)), "a block without the name of its file"
    assert {name: mistakes(code) for name, code in shown.items()} == dict.fromkeys(shown, "")
    assert shown or page.name.startswith("README.")


@pytest.mark.parametrize("page", [page for page in PAGES if ".zh-CN." not in page.name], ids=lambda page: page.stem)
def test_each_block_is_an_example(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    whole = [_HEAD.sub("", file.read_text(encoding="utf-8")) for file in EXAMPLES]
    assert [name for name, code in files(text).items() if code not in whole] == []
    blocks = re.findall(r"^```([a-z]*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert [code for kind, code in blocks if kind == "" and not any(code in example for example in whole)] == []


def test_a_missing_import_is_noticed() -> None:
    code = files((ROOT / "docs" / "frameworks" / "web.md").read_text(encoding="utf-8"))["fastapi_app.py"]
    imported = [node for node in ast.parse(code).body if isinstance(node, ast.Import | ast.ImportFrom)]
    assert len(imported) >= 8
    lines = code.splitlines(keepends=True)
    for node in imported:
        assert "F821" in mistakes("".join(lines[: node.lineno - 1] + lines[node.lineno :])), ast.unparse(node)

"""How docstrings of functions begin, in the command line and the page: with a verb, or the name of a thing."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("src/holdfast/cli", "src/holdfast/web", "tests/cli", "tests/web")
REFUSED = frozenset({"It", "That", "Those", "They", "Its", "Who", "What"})


def wrong(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            words = (ast.get_docstring(node) or "").split(maxsplit=1)
            if words and words[0].strip(".,:;") in REFUSED:
                yield node.name


@pytest.mark.parametrize("folder", FOLDERS)
def test_they_begin_with_a_verb_or_a_name(folder: str) -> None:
    files = sorted((ROOT / folder).rglob("*.py"))
    assert files
    assert {file.name: found for file in files if (found := [*wrong(file.read_text(encoding="utf-8"))])} == {}


def test_one_that_does_not_is_found() -> None:
    assert [*wrong('def one():\n    """What it does."""\ndef other():\n    """Do it."""\n')] == ["one"]

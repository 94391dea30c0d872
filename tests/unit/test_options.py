"""An option of a lease is declared, checked and resolved in one file, and acts in few others."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

import holdfast
from holdfast._api.options import Options

PACKAGE = Path(holdfast.__file__).parent
#: What is written by hand. (`ttl_ms` and `renew` are not looked for: requests and renewals are called that as well.)
ROOMS = ("_api", "_async", "_core", "_engine", "_front", "_reports", "_runtime")
FIELDS = [field for field in Options._fields if field not in ("ttl_ms", "renew")]


def names_in(source: str) -> set[str]:
    """Every identifier."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        for part in ("attr", "id", "arg"):
            name = getattr(node, part, None)
            if isinstance(name, str):
                found.add(name)
    return found


@cache
def used() -> dict[str, set[str]]:
    return {
        str(path.relative_to(PACKAGE)): names_in(path.read_text(encoding="utf-8"))
        for room in ROOMS
        for path in sorted((PACKAGE / room).rglob("*.py"))
    }


@pytest.mark.parametrize("field", FIELDS)
def test_an_option_is_not_passed_from_hand_to_hand(field: str) -> None:
    """`max_hold` was once passed through ten files: what acts on an option reads the record of options."""
    files = [file for file, names in used().items() if field in names and file != "_api/options.py"]
    assert 1 <= len(files) <= 2, files

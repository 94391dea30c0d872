"""Only the lease record writes its state: everyone else asks it to."""

from __future__ import annotations

import ast
from pathlib import Path

import holdfast

PACKAGE = Path(holdfast.__file__).parent
#: What only `_core/record.py` may assign or delete, on whatever is called a record.
OWN = {"state", "reason", "renews", "deadline", "unended", "ttl_ms", "limited", "overlong", "renew_from"}
RECORDS = {"hold", "again", "record", "_hold", "_record"}


def writes(source: str) -> list[str]:
    """`hold.state` and the like, where they are assigned or deleted."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, (ast.Store, ast.Del)) and node.attr in OWN:
            whose = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", "")
            if whose in RECORDS:
                found.append(f"line {node.lineno}: {whose}.{node.attr}")
    return found


def test_writes_are_found() -> None:
    assert writes("hold.state = 1\ndel self._hold.unended\nx = hold.state") == [
        "line 1: hold.state",
        "line 2: _hold.unended",
    ]


def test_nobody_else_writes_the_state_of_a_lease() -> None:
    found = {
        str(path.relative_to(PACKAGE)): lines
        for path in PACKAGE.rglob("*.py")
        if path.name != "record.py" and (lines := writes(path.read_text(encoding="utf-8")))
    }
    assert found == {}

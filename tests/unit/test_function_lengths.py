"""No function of core, drivers and transports is longer than a reader can hold in the head, but for a reason."""

from __future__ import annotations

import ast
from pathlib import Path

import holdfast

PACKAGE = Path(holdfast.__file__).parent
LINES_MAX = 60
#: Longer ones: what they may come to, and why they are not cut.
REASONS = {
    "_core/redlock.py:acquire": (100, "one round after the other; its parts share what the last round has shown"),
    "_drivers/aio.py:__init__": (81, "the fields of the driver and the table of effects"),
}


def lengths(path: Path) -> dict[str, int]:
    """Lines of each function, its docstring included."""
    found: dict[str, int] = {}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            name = f"{path.relative_to(PACKAGE)}:{node.name}"
            found[name] = max(found.get(name, 0), node.end_lineno - node.lineno + 1)
    return found


def test_functions_are_short_or_have_a_reason() -> None:
    every: dict[str, int] = {}
    for room in ("_core", "_drivers", "_transport"):
        for path in sorted((PACKAGE / room).glob("*.py")):
            every |= lengths(path)
    too_long = {name: lines for name, lines in every.items() if lines > REASONS.get(name, (LINES_MAX, ""))[0]}
    assert too_long == {}
    assert [name for name in REASONS if every.get(name, 0) <= LINES_MAX] == [], "these need no reason any more"

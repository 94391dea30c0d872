"""No function is longer than a reader can hold in the head, unless its docstring says why."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import NamedTuple

import holdfast
import holdfast_lab

#: Two distributions; files are named from their packages on, those of the lab with its name.
FOLDERS = (Path(holdfast.__file__).parent, Path(holdfast_lab.__file__).parent.parent)
LINES_MAX = 60
#: Longer ones, and what they may come to. Why they are not cut is in their docstrings, after "In one piece".
LONGER = {
    "holdfast_lab/verdicts.py:_blocked": 65,
}
REASON = "In one piece"


class Found(NamedTuple):
    #: Without the docstring.
    lines: int
    has_reason: bool


def functions(text: str) -> dict[str, Found]:
    """Each function of a file, by its name with the classes and functions around it."""
    found: dict[str, Found] = {}

    def look(node: ast.AST, around: str) -> None:
        for child in ast.iter_child_nodes(node):
            name = around
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                name = f"{around}.{child.name}".lstrip(".")
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                said, first = ast.get_docstring(child), child.body[0]
                assert child.end_lineno is not None and first.end_lineno is not None
                lines = child.end_lineno - child.lineno + 1
                if said is not None:
                    lines -= first.end_lineno - first.lineno + 1
                if name not in found or lines > found[name].lines:  # a property and its setter
                    found[name] = Found(lines, REASON in (said or ""))
            look(child, name)

    look(ast.parse(text), "")
    return found


def every() -> dict[str, Found]:
    return {
        f"{path.relative_to(folder).as_posix()}:{name}": each
        for folder in FOLDERS
        for path in sorted(folder.rglob("*.py"))
        for name, each in functions(path.read_text(encoding="utf-8")).items()
    }


def test_functions_are_short_or_say_why_they_are_not() -> None:
    found = every()
    assert len(found) > 1_000
    assert {name: each.lines for name, each in found.items() if each.lines > LONGER.get(name, LINES_MAX)} == {}
    assert [name for name in LONGER if not found[name].has_reason] == [], "say why, in the docstring"
    assert [name for name in LONGER if found[name].lines <= LINES_MAX] == [], "these need no reason any more"


def test_lines_are_counted_without_docstrings() -> None:
    text = '''
class A:
    def f(self):
        """Words.

        In one piece: why.
        """
        def g():
            return 1

        return g
'''
    assert functions(text) == {"A.f": Found(5, True), "A.f.g": Found(2, False)}

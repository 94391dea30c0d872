"""Which file of the repository imports which, and the circles in that."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Mapping
from pathlib import Path

__all__ = ["FOLDERS", "ROOT", "circles", "graph", "imports", "modules"]

ROOT = Path(__file__).resolve().parents[2]
#: Where Python lies in the repository: folder → what stands before the names of its modules.
FOLDERS = {
    "src/holdfast": "holdfast",
    "lab/src/holdfast_lab": "holdfast_lab",
    "lab/tests": "lab.tests",
    **{name: name for name in ("sim", "testbed", "rig", "bench", "examples", "models", "tools", "tests", "verify")},
}


def modules(root: Path = ROOT) -> Iterator[tuple[str, Path, bool]]:
    """(dotted name, file, whether it is a package's ``__init__``) of every Python file in `FOLDERS`."""
    for folder, name in FOLDERS.items():
        for path in sorted((root / folder).rglob("*.py")):
            parts = [name, *path.relative_to(root / folder).with_suffix("").parts]
            is_package = parts[-1] == "__init__"
            yield ".".join(parts[:-1] if is_package else parts), path, is_package


@functools.cache  # several tests look at the same files
def imports(source: str, module: str, *, is_package: bool) -> list[tuple[int, str]]:
    """(line, dotted name) of everything that is imported, of ``from a import b``: ``a.b``.

    Also inside functions and under ``TYPE_CHECKING``, and ``import_module("…")`` of a name that is written out.
    """
    return [*_imports(source, module, is_package)]


def _imports(source: str, module: str, is_package: bool) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for name in node.names:
                yield node.lineno, name.name
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                here = module.split(".") if is_package else module.split(".")[:-1]
                above = here[: len(here) - (node.level - 1)]
                base = ".".join([*above, base] if base else above)
            for name in node.names:
                yield node.lineno, f"{base}.{name.name}"
        elif isinstance(node, ast.Call) and node.args:
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            what = node.args[0]
            if called in ("import_module", "__import__") and isinstance(what, ast.Constant):
                yield node.lineno, str(what.value)


def graph(files: Mapping[str, tuple[str, bool]]) -> dict[str, dict[str, int]]:
    """Module → {module it imports: line}; `files`: dotted name → (source, whether it is a package).

    Only what is named counts: ``import a.b`` is an arrow to ``a.b``, not to ``a``.
    """
    arrows: dict[str, dict[str, int]] = {}
    for module, (source, is_package) in files.items():
        found = arrows.setdefault(module, {})
        for line, dotted in imports(source, module, is_package=is_package):
            target = dotted
            while target and target not in files:
                target = target.rpartition(".")[0]
            if target and target != module:
                found.setdefault(target, line)
    return arrows


def circles(arrows: Mapping[str, Mapping[str, int]]) -> list[list[str]]:
    """The modules that import each other, group by group (the strongly connected components; Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        index[module] = low[module] = len(index)
        stack.append(module)
        for target in arrows.get(module, ()):
            if target not in index:
                visit(target)
                low[module] = min(low[module], low[target])
            elif target in stack:
                low[module] = min(low[module], index[target])
        if low[module] == index[module]:
            group = stack[stack.index(module) :]
            del stack[stack.index(module) :]
            if len(group) > 1:
                found.append(sorted(group))

    for module in arrows:
        if module not in index:
            visit(module)
    return sorted(found)

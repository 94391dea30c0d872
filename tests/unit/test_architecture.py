"""The arrows between the rooms of the package go one way; public modules say what is public."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "holdfast"


@dataclass(frozen=True)
class Room:
    """What the modules of one top-level name of the package may import."""

    holdfast: frozenset[str] = frozenset()
    """Other rooms; ``""`` is the package itself (its public names). A dotted entry opens that module only."""
    libraries: frozenset[str] = frozenset()
    """Beyond the standard library."""
    stdlib_without: frozenset[str] = frozenset()
    """Parts of the standard library it must do without."""


# What a protocol must not touch: everything that blocks, tells the time, rolls dice, runs or logs.
_IMPURE = frozenset(
    {
        *("asyncio", "concurrent", "multiprocessing", "queue", "sched", "threading", "_thread"),
        *("datetime", "time", "random", "secrets", "uuid", "logging"),
        *("os", "select", "selectors", "signal", "socket", "ssl", "subprocess", "tempfile"),
    }
)
_CLIENTS = frozenset({"redis", "valkey", "hiredis"})
_TERMINAL = frozenset({"click", "rich"})
_FACTS = frozenset({"errors", "events", "lease"})
_PUBLIC = frozenset({"", "asyncio", "embedded", "fencing", "testing", "lab", *_FACTS})

ROOMS: dict[str, Room] = {
    "errors": Room(),
    "events": Room(frozenset({"errors"})),
    "lease": Room(frozenset({"errors", "events"})),
    "_lua": Room(),
    "_core": Room(_FACTS, stdlib_without=_IMPURE),
    "_transport": Room(_FACTS | {"_core", "_lua"}, _CLIENTS),
    "_drivers": Room(_FACTS | {"_core", "_lua", "_transport"}),
    "_faces": Room(_FACTS | {"_core", "_lua", "_transport", "_drivers"}, _CLIENTS),
    "": Room(_FACTS | {"_faces", "asyncio"}),
    "asyncio": Room(_FACTS | {"", "_faces"}),
    "embedded": Room(_FACTS),
    "fencing": Room(_FACTS | {"_faces.options"}),
    "testing": Room(_PUBLIC | {"_core", "_faces"}, frozenset({"pytest"})),
    "lab": Room(_PUBLIC | {"_core.effects", "_core.failure"}, _CLIENTS | _TERMINAL),
    "cli": Room(_PUBLIC, _CLIENTS | _TERMINAL),
    "__main__": Room(frozenset({"cli"})),
}


def room_of(module: str) -> str:
    """``holdfast._core.mutex`` → ``_core``; the package itself, and its public names → ``""``."""
    name = module.split(".")[1] if "." in module else ""
    return name if name in ROOMS or name.startswith("_") else ""


def imports(source: str, module: str, *, is_package: bool) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of everything imported, also inside functions; of ``from a import b``: ``a.b``."""
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


def violations(source: str, module: str, *, is_package: bool = False) -> list[str]:
    """Sentences about every import that module must not make."""
    here = module.split(".")[1] if "." in module else ""
    if here not in ROOMS:
        return [f"{module}: room {here!r} is not in the table of this test: say what it may import"]
    room, found = ROOMS[here], []
    for line, dotted in imports(source, module, is_package=is_package):
        top = dotted.split(".")[0]
        where = f"{module}:{line} imports {dotted}"
        if top == "holdfast":
            target = room_of(dotted)
            opened = any(f"{dotted}.".startswith(f"holdfast.{name}.") for name in room.holdfast if "." in name)
            if target != here and target not in room.holdfast and not opened:
                found.append(f"{where}: {here or 'holdfast'} must not know {target or 'the public package'}")
        elif top in room.stdlib_without:
            found.append(f"{where}: {here} must do without it")
        elif top not in sys.stdlib_module_names and top not in room.libraries:
            found.append(f"{where}: that library is not for {here or 'holdfast'}")
    return found


def modules() -> Iterator[tuple[str, Path, bool]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = list(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        is_package = parts[-1] == "__init__"
        yield ".".join(parts[:-1] if is_package else parts), path, is_package


MODULES = list(modules())


@pytest.mark.parametrize("module, path, is_package", MODULES, ids=[name for name, _, _ in MODULES])
def test_arrows(module: str, path: Path, is_package: bool) -> None:
    assert not violations(path.read_text(), module, is_package=is_package)


def declares_all(source: str) -> bool:
    for node in ast.parse(source).body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
            return True
    return False


PUBLIC_MODULES = [(name, path) for name, path, _ in MODULES if not any(p[0] == "_" for p in name.split("."))]


@pytest.mark.parametrize("module, path", PUBLIC_MODULES, ids=[name for name, _ in PUBLIC_MODULES])
def test_public_modules_declare_what_is_public(module: str, path: Path) -> None:
    assert declares_all(path.read_text()), f"{module} has no __all__"


# ---- the checker itself can fail ----


@pytest.mark.parametrize(
    "module, source",
    [
        ("holdfast._core.mutex", "import time"),
        ("holdfast._core.mutex", "from random import random"),
        ("holdfast._core.mutex", "def f():\n    import asyncio"),
        ("holdfast._core.mutex", "import concurrent.futures"),
        ("holdfast._core.mutex", "import redis"),
        ("holdfast._core.mutex", "from holdfast._drivers import threads"),
        ("holdfast._core.mutex", "from .._drivers import threads"),
        ("holdfast._core.mutex", "from .. import _drivers"),
        ("holdfast._core.mutex", "import holdfast"),
        ("holdfast._core.mutex", "from holdfast import connect"),
        ("holdfast._lua", "from holdfast._core import keys"),
        ("holdfast.errors", "from holdfast import events"),
        ("holdfast._transport.port", "from holdfast._drivers.aio import Driver"),
        ("holdfast._drivers.aio", "from holdfast._faces import Lock"),
        ("holdfast._drivers.aio", "import redis.asyncio"),
        ("holdfast._faces.lock", "from holdfast.cli import main"),
        ("holdfast._faces.lock", "from sim import world"),
        ("holdfast.cli.run", "from holdfast._core import effects"),
        ("holdfast.cli.run", "from .._core import effects"),
        ("holdfast.lab.schemes", "from holdfast._core import mutex"),
        ("holdfast.testing", "import sim"),
        ("holdfast.brand_new", "x = 1"),
    ],
)
def test_a_wrong_arrow_is_found(module: str, source: str) -> None:
    assert violations(source, module)


@pytest.mark.parametrize(
    "module, source",
    [
        ("holdfast._core.mutex", "import dataclasses\nfrom holdfast._core.keys import x\nfrom . import keys"),
        ("holdfast._core.mutex", "from holdfast.errors import HoldfastError\nfrom ..errors import LeaseLost"),
        ("holdfast._faces.lock", "import redis\nfrom holdfast._drivers.threads import Driver"),
        ("holdfast.cli.run", "import click\nimport holdfast\nfrom holdfast import connect, embedded"),
        ("holdfast.lab.schemes", "from holdfast._core.effects import Call\nfrom holdfast import connect"),
        ("holdfast.testing", "from holdfast._core import mutex"),
    ],
)
def test_a_right_arrow_is_let_through(module: str, source: str) -> None:
    assert violations(source, module) == []


def test_a_relative_import_of_a_package_starts_at_itself() -> None:
    assert violations("from .keys import x", "holdfast._core", is_package=True) == []
    assert violations("from .. import _drivers", "holdfast._core", is_package=True)


def test_a_missing_all_is_found() -> None:
    assert declares_all("__all__ = ['x']")
    assert declares_all("__all__: list[str] = []")
    assert not declares_all("def f():\n    __all__ = []")

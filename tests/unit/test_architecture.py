"""Imports go one way: between files (no circles), between rooms of the package, between folders of the repository."""

from __future__ import annotations

import ast
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.imports import FOLDERS, ROOT, circles, graph, imports, modules

# ---- circles ----

MODULES = list(modules())


def test_no_files_import_each_other_in_a_circle() -> None:
    """Imports inside functions and under TYPE_CHECKING count as well: a circle is a circle."""
    arrows_of = graph({name: (path.read_text(encoding="utf-8"), is_package) for name, path, is_package in MODULES})
    for circle in circles(arrows_of):
        arrows = [
            f"{one}:{line} imports {other}"
            for one in circle
            for other, line in arrows_of[one].items()
            if other in circle
        ]
        raise AssertionError("a circle:\n" + "\n".join(arrows))


@pytest.mark.parametrize(
    "text",
    [
        "import made.b",
        "from made import b",
        "from made.b import thing",
        "from . import b",
        "from .b import thing",
        "def f():\n    from made.b import thing",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from made.b import Thing",
        "import importlib\nimportlib.import_module('made.b')",
        "__import__('made.b')",
    ],
)
def test_a_circle_is_found(text: str) -> None:
    files = {"made": ("", True), "made.a": (text, False), "made.b": ("import made.c", False), "made.c": ("", False)}
    assert circles(graph(files)) == []
    files["made.c"] = ("from made.a import x", False)
    assert circles(graph(files)) == [["made.a", "made.b", "made.c"]]


def test_two_circles_are_two() -> None:
    files = {
        "a": ("import b", False),
        "b": ("import a, c", False),
        "c": ("import d", False),
        "d": ("import c", False),
        "e": ("import a", False),
    }
    assert circles(graph(files)) == [["a", "b"], ["c", "d"]]


def test_a_package_that_offers_what_its_module_has_is_no_circle() -> None:
    """`import a.b` within the package is an arrow to `a.b`, not to `a`, though Python runs `a` first."""
    files = {"a": ("from a.b import x", True), "a.b": ("from a.c import y", False), "a.c": ("", False)}
    assert circles(graph(files)) == []
    files["a.c"] = ("from a import x", False)
    assert circles(graph(files)) == [["a", "a.b", "a.c"]]


# ---- rooms ----


@dataclass(frozen=True)
class Room:
    """What the modules of a room may import: of the repository, and of other libraries."""

    rooms: frozenset[str] = frozenset()
    """Other rooms; ``""`` is the package itself (its public names). A dotted entry opens that module only."""
    libraries: frozenset[str] = frozenset()
    """Beyond the standard library; ``*``: any."""
    stdlib_without: frozenset[str] = frozenset()
    """Parts of the standard library it must do without."""


# What a protocol must not touch: everything that blocks, tells the time, draws random numbers, runs or logs.
_IMPURE = frozenset(
    {
        *("asyncio", "concurrent", "multiprocessing", "queue", "sched", "threading", "_thread"),
        *("datetime", "time", "random", "secrets", "uuid", "logging"),
        *("os", "select", "selectors", "signal", "socket", "ssl", "subprocess", "tempfile"),
    }
)
_CLIENTS = frozenset({"redis", "valkey", "hiredis"})
_ANY = frozenset({"*"})
_FACTS = frozenset({"errors", "events", "lease"}) & {path.stem for path in (ROOT / "src" / "holdfast").glob("*.py")}
_PUBLIC = frozenset(
    {"", "asyncio", "trio", "embedded", "fencing", "interrupting", "testing", "prometheus", "opentelemetry", *_FACTS}
)

#: The rooms of the package, by their top-level names.
PACKAGE: dict[str, Room] = {
    "errors": Room(),
    "_lua": Room(),
    "_core": Room(_FACTS | {"_lua"}, stdlib_without=_IMPURE),
    "_runtime": Room(_FACTS | {"_core"}),
    "_reports": Room(_FACTS | {"_core", "_runtime"}),
    "_engine": Room(_FACTS | {"_core", "_lua", "_runtime", "_reports"}, _CLIENTS),
    "_front": Room(_FACTS | {"_core", "_runtime", "_reports", "_engine"}, frozenset({"trio"})),
    "_api": Room(_FACTS | {"_core", "_runtime", "_engine"}, _CLIENTS),
    "_async": Room(_FACTS | {"_core", "_runtime", "_reports", "_engine", "_front", "_api"}),
    "_sync": Room(
        _FACTS | {"_core", "_runtime", "_reports", "_engine", "_front", "_api", "_async.client"},  # see Client.tasks
        stdlib_without=frozenset({"asyncio"}),
    ),
    "": Room(_FACTS | {"_api", "_sync", "_runtime.lazily", "_runtime.cancel", "_reports.observing", "asyncio"}),
    "asyncio": Room(_FACTS | {"_api", "_async", "_reports.observing"}),
    "trio": Room(frozenset({"asyncio"}), frozenset({"trio"})),
    "embedded": Room(_FACTS),
    "prometheus": Room(_PUBLIC | {"_api.labels"}, frozenset({"prometheus_client"})),
    "opentelemetry": Room(_PUBLIC | {"_api.labels"}, frozenset({"opentelemetry"})),
    "fencing": Room(_FACTS | {"_api.options"}),
    "interrupting": Room(_FACTS | {"_sync.lease", "_runtime.greenlets"}, stdlib_without=frozenset({"asyncio"})),
    "testing": Room(_PUBLIC | {"_core", "_api"}, frozenset({"pytest", "redis"})),
    "compat": Room(_PUBLIC | {"_async", "_sync"}, frozenset({"redis", "django_redis", "django"})),
    "web": Room(_PUBLIC | {"_api.changes"}, frozenset({"starlette"})),
    "cli": Room(
        _PUBLIC | {"web", "_core.overview", "_core.rights", "_runtime.clock", "_runtime.waits"},
        frozenset({"starlette", "uvicorn"}),
    ),
    "__main__": Room(frozenset({"cli"})),
}
#: What the names of modules in each folder begin with.
TOPS = {name.partition(".")[0] for name in FOLDERS.values()}
#: The other folders of the repository. Nothing of the package may import them, so that none of them is in the wheel.
BESIDE: dict[str, Room] = {
    # What users see, and how a command of ours reads its arguments.
    "holdfast_lab": Room(_PUBLIC | {"cli.exits", "cli.options"}, _CLIENTS | {"redis_lock"}),
    "lab": Room(frozenset({*PACKAGE, *TOPS}), _ANY),  # its tests
    "sim": Room(_FACTS | {"_core", "_lua", "_api.lease_stack"}, frozenset({"lupa"})),
    "models": Room(),
    "tools": Room(_PUBLIC, frozenset({"redis"})),  # the reference is made from what is public
    "examples": Room(_PUBLIC, _ANY),  # they show holdfast together with other libraries
    "testbed": Room(_PUBLIC | {"_lua"}, _CLIENTS),
    # What users of a lock see, and no more: a reader of a history knows nothing of what is inside.
    "rig": Room(_PUBLIC | {"holdfast_lab", "testbed", "verify"}, _ANY),
    "verify": Room(),
    # It sends the requests of a listing itself, to take the time of each, and waits until all is logged.
    "bench": Room(_PUBLIC | {"testbed", "_lua", "_core.keys", "_core.overview", "_reports.log"}, _ANY),
    "tests": Room(frozenset({*PACKAGE, *TOPS}), _ANY),
}
ROOMS = {**PACKAGE, **BESIDE}


def room_of(dotted: str) -> str:
    """``holdfast._core.mutex`` → ``_core``; the package, and its public names → ``""``; ``rig.run`` → ``rig``."""
    top, _, rest = dotted.partition(".")
    if top != "holdfast":
        return top
    name = rest.split(".")[0]
    return name if name in PACKAGE or name.startswith("_") else ""


def violations(source: str, module: str, *, is_package: bool = False) -> list[str]:
    """Sentences about every import that module must not make."""
    top, _, rest = module.partition(".")
    here = rest.split(".")[0] if top == "holdfast" else top
    if here not in ROOMS:
        return [f"{module}: room {here!r} is not in the table of this test: say what it may import"]
    room, found = ROOMS[here], []
    for line, dotted in imports(source, module, is_package=is_package):
        library = dotted.split(".")[0]
        where = f"{module}:{line} imports {dotted}"
        if library in TOPS:
            target = room_of(dotted)
            opened = any(f"{dotted}.".startswith(f"holdfast.{name}.") for name in room.rooms if "." in name)
            if target != here and target not in room.rooms and not opened:
                found.append(f"{where}: {here or 'holdfast'} must not know {target or 'the public package'}")
        elif library in room.stdlib_without:
            found.append(f"{where}: {here} must do without it")
        elif library not in sys.stdlib_module_names and not room.libraries & {library, "*"}:
            found.append(f"{where}: that library is not for {here or 'holdfast'}")
    return found


@pytest.mark.parametrize("folder", sorted({name.split(".")[0] for name, _, _ in MODULES} - {"holdfast"}))
def test_arrows_between_folders(folder: str) -> None:
    found = []
    for module, path, is_package in MODULES:
        if module.split(".")[0] == folder:
            found += violations(path.read_text(encoding="utf-8"), module, is_package=is_package)
    assert not found


IN_PACKAGE = [each for each in MODULES if each[0].split(".")[0] == "holdfast"]


@pytest.mark.parametrize("module, path, is_package", IN_PACKAGE, ids=[name for name, _, _ in IN_PACKAGE])
def test_arrows_between_rooms(module: str, path: Path, is_package: bool) -> None:
    assert not violations(path.read_text(encoding="utf-8"), module, is_package=is_package)


def needing(library: str) -> set[str]:
    wanted = re.compile(rf"^ *(import|from) {library}\b", re.M)
    return {module for module, path, _ in IN_PACKAGE if wanted.search(path.read_text("utf-8"))}


def test_trio_is_needed_under_trio_alone() -> None:
    assert needing("trio") == {"holdfast.trio", "holdfast._front.trio_loop"}


def test_the_engine_connects_for_clients_of_asyncio_but_runs_without_it() -> None:
    assert {module for module in needing("asyncio") if module.startswith("holdfast._engine.")} == {
        "holdfast._engine.twins"
    }


@pytest.mark.parametrize("name", sorted(ROOMS))
def test_every_room_of_the_table_exists(name: str) -> None:
    place = ROOT / "src" / "holdfast" / name
    assert name in TOPS or place.is_dir() or place.with_suffix(".py").is_file(), "take it out of the table"


def test_every_opened_module_exists() -> None:
    opened = {name for room in ROOMS.values() for name in room.rooms if "." in name}
    assert opened <= {name.removeprefix("holdfast.") for name, _, _ in IN_PACKAGE}


def test_every_folder_with_python_is_in_the_table() -> None:
    hidden = {path.name for path in ROOT.iterdir() if path.name.startswith((".", "_"))} | {"build", "dist", "docs"}
    folders = {path.name for path in ROOT.iterdir() if path.is_dir() and any(path.rglob("*.py"))}
    assert folders - hidden == {folder.partition("/")[0] for folder in FOLDERS}
    assert {*BESIDE, "holdfast"} == TOPS


# ---- public modules say what is public ----


def declares_all(source: str) -> bool:
    for node in ast.parse(source).body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
            return True
    return False


SHIPPED = [(name, path) for name, path, _ in MODULES if name.partition(".")[0] in ("holdfast", "holdfast_lab")]
#: Rooms of commands, and no API: what is in them is for them alone.
COMMANDS = ("holdfast.cli.", "holdfast.web.")
#: Has the names of `holdfast.asyncio`, by a star, as type checkers understand it (`test_trio.py` compares them).
STARRED = "holdfast.trio"
PUBLIC_MODULES = [
    (name, path)
    for name, path in SHIPPED
    if not name.startswith(COMMANDS) and name != STARRED and not any(part[0] == "_" for part in name.split("."))
]


@pytest.mark.parametrize("module, path", PUBLIC_MODULES, ids=[name for name, _ in PUBLIC_MODULES])
def test_public_modules_declare_what_is_public(module: str, path: Path) -> None:
    assert declares_all(path.read_text(encoding="utf-8")), f"{module} has no __all__"


# ---- the checker itself can fail ----


@pytest.mark.parametrize(
    "module, source",
    [
        ("holdfast._core.mutex", "import time"),
        ("holdfast._core.mutex", "from random import random"),
        ("holdfast._core.mutex", "def f():\n    import asyncio"),
        ("holdfast._core.mutex", "import concurrent.futures"),
        ("holdfast._core.mutex", "import redis"),
        ("holdfast._core.mutex", "from holdfast._front import threads"),
        ("holdfast._core.mutex", "from .._front import threads"),
        ("holdfast._core.mutex", "from .. import _front"),
        ("holdfast._core.mutex", "import holdfast"),
        ("holdfast._core.mutex", "from holdfast import connect"),
        ("holdfast._lua", "from holdfast._core import keys"),
        ("holdfast.errors", "import holdfast_lab"),
        ("holdfast._engine.server", "from holdfast._front.aio import AioFront"),
        ("holdfast._front.aio", "from holdfast.cli import main"),
        ("holdfast._front.aio", "import redis.asyncio"),
        ("holdfast._front.aio", "from sim import world"),
        ("holdfast._core.mutex", "from tests.support import steps"),
        ("holdfast._front.aio", "from holdfast._sync.lock import Lock"),
        ("holdfast._sync.lock", "from holdfast.cli import main"),
        ("holdfast._sync.lock", "import asyncio"),
        ("holdfast._sync.lock", "from holdfast._async.lock import Lock"),
        ("holdfast._api.options", "from holdfast._sync.lock import Lock"),
        ("holdfast_lab.cli", "import click"),
        ("holdfast.cli.run", "from holdfast._core import effects"),
        ("holdfast.cli.run", "from .._core import effects"),
        ("holdfast.cli.survey", "import redis"),
        ("holdfast_lab.schemes", "from holdfast._core import effects"),
        ("holdfast_lab.schemes", "from sim.server import Server"),
        ("holdfast.testing", "import sim"),
        ("holdfast.brand_new", "x = 1"),
        ("sim.world", "from holdfast._engine import server"),
        ("sim.world", "import holdfast"),
        ("sim.world", "import redis"),
        ("rig.run", "from tests.support import keys"),
        ("rig.run", "from holdfast._core import mutex"),
        ("rig.worker", "from holdfast._core import record"),
        ("verify.check", "import holdfast"),
        ("verify.check", "from rig import history"),
        ("testbed.servers", "from rig import stages"),
        ("examples.one.two", "from testbed import servers"),
        ("bench.run", "import sim"),
        ("brand_new.x", "x = 1"),
    ],
)
def test_a_wrong_arrow_is_found(module: str, source: str) -> None:
    assert violations(source, module)


@pytest.mark.parametrize(
    "module, source",
    [
        ("holdfast._core.mutex", "import dataclasses\nfrom holdfast._core.keys import x\nfrom . import keys"),
        ("holdfast._core.mutex", "from holdfast.errors import HoldfastError\nfrom ..errors import LeaseLost"),
        ("holdfast._engine.server", "import redis\nfrom holdfast._core import keys"),
        ("holdfast._sync.lock", "import threading\nfrom holdfast._front.threads import ThreadsFront"),
        ("holdfast.cli.run", "import uvicorn\nimport holdfast\nfrom holdfast import connect, embedded"),
        ("holdfast_lab.cli", "from holdfast.cli import exits\nfrom holdfast import connect"),
        ("sim.world", "import time\nfrom holdfast._core import mutex\nfrom sim.driver import Process"),
        ("rig.run", "import redis_lock\nfrom testbed import servers\nfrom holdfast_lab import servers"),
        ("tests.unit.test_x", "import pytest\nfrom holdfast._core import mutex\nfrom rig import run"),
    ],
)
def test_a_right_arrow_is_let_through(module: str, source: str) -> None:
    assert violations(source, module) == []


def test_a_relative_import_of_a_package_starts_at_itself() -> None:
    assert violations("from .keys import x", "holdfast._core", is_package=True) == []
    assert violations("from .. import _front", "holdfast._core", is_package=True)


def test_a_missing_all_is_found() -> None:
    assert declares_all("__all__ = ['x']")
    assert declares_all("__all__: list[str] = []")
    assert not declares_all("def f():\n    __all__ = []")


# ---- imports that wait ----

#: Commands and pages are processes that do not fork amid an import; of `_lua`, tests alone ask for all scripts.
_MAY_IMPORT_LATE = ("cli", "web", "embedded", "testing", "_lua")


def late_imports(text: str) -> list[int]:
    """The lines of a file on which a function imports: a fork, or a signal handler, may come in the middle."""
    found = []

    def look(node: ast.AST, late: bool) -> None:
        for each in ast.iter_child_nodes(node):
            if late and isinstance(each, ast.Import | ast.ImportFrom):
                found.append(each.lineno)
            look(each, late or isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))

    look(ast.parse(text), False)
    return found


def test_nothing_comes_amid_a_late_import() -> None:
    package = ROOT / "src" / "holdfast"
    files = {str(path.relative_to(package)): path.read_text(encoding="utf-8") for path in package.rglob("*.py")}
    late = {name: late_imports(text) for name, text in files.items() if not name.startswith(_MAY_IMPORT_LATE)}
    assert not {name: lines for name, lines in late.items() if lines}, "write `lazily(…)`, or import at the top"


def test_a_late_import_is_found() -> None:
    assert late_imports("import a\ndef f():\n    if x:\n        from b import c\n") == [4]
    assert late_imports("def f():\n    a = lazily('b')\n    import d\n") == [3]

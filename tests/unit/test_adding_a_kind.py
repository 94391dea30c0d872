"""A kind is in few files: CONTRIBUTING.md names those of the latch, and no other file of the package says its name."""

from __future__ import annotations

import io
import re
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "holdfast"
#: The latch, its scripts and its protocol, as names or as strings of their own.
NAME = re.compile(r"_*(latch(es)?|count_?down_?latch|gates?|gate_?acquisition)", re.IGNORECASE)
STRING = re.compile(r"""["'](latch|CountDownLatch|gate_\w+)["']""")
#: Written by `make generate`.
GENERATED = "_sync"


def listed() -> set[str]:
    """Return the files that CONTRIBUTING.md lists, from the root of the repository."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    found = re.search(r"The latch is such a one\. It is in (\d+) files: (.*?)\n\(", text, re.DOTALL)
    assert found is not None
    files = re.findall(r"`([^`]+)`", found[2])
    assert len(files) == int(found[1])
    inside = ("_core/", "_lua/", "_async/", "__init__")
    return {f"src/holdfast/{file}" if file.startswith(inside) else file for file in files}


def names_it(path: Path) -> bool:
    tokens = tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline)
    return any(
        (token.type == tokenize.NAME and NAME.fullmatch(token.string))
        or (token.type == tokenize.STRING and STRING.fullmatch(token.string))
        for token in tokens
    )


def test_a_kind_is_in_at_most_13_files() -> None:
    files = listed()
    assert len(files) <= 13
    assert [file for file in files if not (ROOT / file).exists()] == []


def test_what_ships_and_the_simulator_name_it_in_no_other_file() -> None:
    sources = [*PACKAGE.rglob("*.py"), *(ROOT / "sim").rglob("*.py")]
    by_hand = [path for path in sources if GENERATED not in path.parts and path != PACKAGE / "asyncio.py"]
    naming = {path.relative_to(ROOT).as_posix() for path in by_hand if names_it(path)}
    scripts = {path.relative_to(ROOT).as_posix() for path in PACKAGE.glob("_lua/gate_*.lua")}
    assert naming | scripts == {file for file in listed() if file.startswith(("src/", "sim/"))}

"""What the result of a cell depends on, as one value: a cell is played again only when that has changed."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import platform
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType

import holdfast
from holdfast import embedded
from holdfast_lab import schemes
from holdfast_lab.faults import Fault
from holdfast_lab.handles import Entry

__all__ = ["fingerprint"]

_LAB = Path(__file__).parent
#: Of the lab, what has no part in what happens and in how it is judged.
_ONLY_TELLING = frozenset(
    {"cli", "commands", "faults", "fingerprints", "page", "report", "story", "texts", "timeline", "waiting"}
)
_KINDS = {kind.NAME: kind for kind in schemes.LADDER}


@cache
def _digest(folder: Path, pattern: str) -> str:
    """Of all files of a folder that match."""
    files = sorted(path for path in folder.glob(pattern) if path.stem not in _ONLY_TELLING)
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


@cache
def _stage() -> str:
    """Of what every cell is played on."""
    return f"{_digest(_LAB, '*.py')} {embedded.valkey_executable()} {platform.python_version()}"


@cache
def _text(kind: type) -> str:
    """Looking for the text of a class takes some ms."""
    return inspect.getsource(kind)


def _scheme(entry: Entry) -> Iterable[str]:
    if entry.name in _KINDS:
        yield from (_text(kind) for kind in _KINDS[entry.name].__mro__[:-1])
        yield from (_digest(_LAB, f"schemes/{shared}.py") for shared in ("base", "tokens"))
    elif entry.name.startswith("holdfast"):
        yield _digest(Path(holdfast.__file__).parent, "_*/*.*")
    elif entry.needs is not None and (spec := importlib.util.find_spec(entry.needs)) is not None:
        yield _digest(Path(spec.origin or "").parent, "*.py")
    else:
        yield _digest(_LAB, "schemes/*.py")


def _play(function: FunctionType, seen: set[str]) -> Iterable[str]:
    """The text of a play, and of what it uses of its own module."""
    yield inspect.getsource(function)
    for code in (function.__code__, *(part for part in function.__code__.co_consts if isinstance(part, CodeType))):
        for name in code.co_names:
            used = function.__globals__.get(name)
            if name in seen or used is None:
                continue
            seen.add(name)
            if isinstance(used, FunctionType) and used.__module__ == function.__module__:
                yield from _play(used, seen)
            elif isinstance(used, int | float | str):
                yield f"{name} = {used!r}"


def fingerprint(entry: Entry, fault: Fault) -> str:
    """Of one cell: the scheme's own text or the library, the play, and what both stand on."""
    assert isinstance(fault.play, FunctionType)
    how = repr((fault.plays, fault.own_clock, fault.replica, fault.durable, fault.restart_delay_s))
    parts = [entry.name, fault.name, entry.clients, how, *_play(fault.play, set()), _stage(), *_scheme(entry)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]

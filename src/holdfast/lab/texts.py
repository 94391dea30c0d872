"""What the lab says of schemes, faults and verdicts, in two languages (`texts.toml`), and theory (`oracle.toml`)."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

__all__ = ["Expected", "Text", "expected", "text_of", "theory"]

#: Field → sentence; a field with `_zh` behind its name is the same in Chinese.
Text: TypeAlias = dict[str, str]


@cache
def _read(name: str) -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_name(name).read_text(encoding="utf-8"))


def text_of(group: str, name: str) -> Text:
    """What there is to say about that scheme, fault or verdict; empty for a user's own."""
    found: Text = _read("texts.toml")[group].get(name, {})
    return found


@dataclass(frozen=True, slots=True)
class Expected:
    """What theory says of a cell: a verdict and its reason."""

    verdict: str
    why: str
    zh: str


def theory() -> dict[tuple[str, str], list[Expected]]:
    """All of `oracle.toml`, by scheme and fault. A list, so that a cell named twice can be found."""
    cells: dict[tuple[str, str], list[Expected]] = {}
    for fault, groups in _read("oracle.toml").items():
        for group in groups:
            for scheme in group["schemes"].split():
                cells.setdefault((scheme, fault), []).append(Expected(group["verdict"], group["why"], group["zh"]))
    return cells


def expected(scheme: str, fault: str) -> Expected | None:
    """What theory says of that cell; None for a lock that is not in it."""
    return next(iter(theory().get((scheme, fault), ())), None)

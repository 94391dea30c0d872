"""The matrix as one page."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.lab.runs import Cell

__all__ = ["page"]


def page(cells: Sequence[Cell], schemes: Sequence[str], faults: Sequence[str], seconds: float) -> str:
    return ""

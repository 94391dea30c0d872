"""Looking through a collection that other threads change meanwhile."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

__all__ = ["snapshot"]

V = TypeVar("V")


def snapshot(items: Iterable[V]) -> list[V]:
    """What is in a collection, or in a view of a dictionary, at this moment."""
    while True:
        try:
            return list(items)
        except RuntimeError:  # its size changed under us
            pass

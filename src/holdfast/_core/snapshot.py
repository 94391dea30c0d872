"""Looking through a collection that other threads change meanwhile."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

V = TypeVar("V")


def snapshot(items: Iterable[V]) -> list[V]:
    """Copy a collection, or a view of a dictionary, that other threads may change meanwhile."""
    while True:
        try:
            return list(items)
        except RuntimeError as error:
            if "during iteration" not in str(error):  # it did not change: a signal handler's, or too deep a stack
                raise

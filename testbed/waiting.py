"""Waiting for a condition, with a bound."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

__all__ = ["PATIENCE_S", "eventually"]

#: Whatever a test waits for comes much sooner on an idle machine; on a busy one it may take its time.
PATIENCE_S = 30.0


def eventually(condition: Callable[[], Any], what: str = "", patience_s: float = PATIENCE_S) -> Any:
    """The first true value of `condition()`; fails after `patience_s`."""
    until = time.monotonic() + patience_s
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < until, f"did not happen within {patience_s} s: {what or condition}"
        time.sleep(0.005)

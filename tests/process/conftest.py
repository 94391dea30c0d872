"""Tests of faults of the process leave nothing in this process, nor on the server."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from holdfast._runtime.lazily import importing


@pytest.fixture(autouse=True)
def _leaves_nothing(nothing_left: None) -> None:
    """All of them."""


@pytest.fixture(autouse=True)
def _leaves_imports_free() -> Iterator[None]:
    """The lock of imports is free, for all threads: this one would not notice that it has kept it."""
    yield
    free: list[bool] = []

    def look() -> None:
        free.append(importing.acquire(timeout=10))
        if free[0]:
            importing.release()

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert free == [True], "the lock of imports has been left held"

"""Tests of faults of the process leave nothing in this process, nor on the server."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _leaves_nothing(nothing_left: None) -> None:
    """All of them."""

"""Deadlocks at the master that Sentinels name."""

from __future__ import annotations

import pytest

from tests.contract import test_deadlocks as contract

test_a_circle_of_two = contract.test_a_circle_of_two
test_readers_and_writers = contract.test_readers_and_writers


@pytest.fixture
def kind() -> str:
    return "sentinel"

"""The conftest.py of a project whose tests run with pytest-xdist: what is made once, and what is shared."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast

URL = os.environ.get("HOLDFAST_URL", "redis://localhost:6379")


@pytest.fixture(scope="session")
def locks() -> Iterator[holdfast.Client]:
    with holdfast.connect(URL) as locks:
        yield locks


@pytest.fixture(scope="session")
def run_id() -> str:
    return os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))


@pytest.fixture(scope="session")
def database(locks: holdfast.Client, run_id: str) -> Path:
    """Create it in the first worker that needs it; the others wait."""
    path = Path(os.environ.get("TMPDIR", "/tmp"), f"database-{run_id}.sqlite")

    def create(lease: holdfast.Lease) -> None:
        with sqlite3.connect(path) as new:
            new.execute("CREATE TABLE made (by TEXT)")
            new.execute("INSERT INTO made VALUES (?)", (os.environ.get("PYTEST_XDIST_WORKER", "master"),))

    locks.once(f"database:{run_id}", create, retain=3_600)
    return path


@pytest.fixture
def printer(locks: holdfast.Client) -> Iterator[str]:
    """Only one test at a time may use it."""
    with locks.lock("printer").acquire(timeout=300):
        yield "/dev/usb/lp0"

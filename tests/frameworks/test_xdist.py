"""A project's tests under pytest-xdist, with the example as their conftest.py."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from holdfast import embedded
from tests.frameworks.programs import ROOT, Programs

TESTS = """
import os, sqlite3, time
from pathlib import Path
import pytest

@pytest.mark.parametrize("number", range(12))
def test_database(database, number):
    with sqlite3.connect(database) as made:
        assert len(made.execute("SELECT * FROM made").fetchall()) == 1

@pytest.mark.parametrize("number", range(12))
def test_printer(printer, number):
    inside = Path("inside")
    inside.touch(exist_ok=False)
    time.sleep(0.01)
    inside.unlink()
    with open("workers", "a") as workers:
        print(os.environ["PYTEST_XDIST_WORKER"], file=workers)
"""


def test_a_run_with_four_workers(private_server: Callable[[], embedded.Server], tmp_path: Path) -> None:
    conftest = (ROOT / "examples" / "frameworks" / "conftest_of_a_project.py").read_text(encoding="utf-8")
    (tmp_path / "conftest.py").write_text(conftest)
    (tmp_path / "test_project.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    programs = Programs(tmp_path, HOLDFAST_URL=private_server().url, TMPDIR=str(tmp_path))
    said = programs.run("pytest", "-n", "4", "-q", "-p", "no:cacheprovider", timeout_s=200)
    assert re.search(r"\b24 passed\b", said), said
    assert len(list(tmp_path.glob("database-*.sqlite"))) == 1
    assert len(set((tmp_path / "workers").read_text().split())) > 1, "several workers had the printer"

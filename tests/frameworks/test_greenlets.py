"""gevent and eventlet as the examples use them (`tests/process/test_greenlets.py` has what may go wrong)."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast import embedded
from tests.frameworks.programs import Programs


@pytest.mark.parametrize("library", ["gevent", "eventlet"])
def test_the_example_works(valkey_server: embedded.Server, tmp_path: Path, library: str) -> None:
    programs = Programs(tmp_path, HOLDFAST_URL=valkey_server.url, PYTHONWARNINGS="ignore")
    assert programs.run(f"examples.frameworks.{library}_greenlets").endswith("worked\n")

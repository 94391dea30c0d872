"""The script that is interrupted when its lease is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from holdfast import embedded
from testbed.waiting import eventually
from tests.frameworks.programs import Programs


def test_the_script_is_stopped(valkey_server: embedded.Server, look: Any, tmp_path: Path) -> None:
    programs = Programs(tmp_path, HOLDFAST_URL=valkey_server.url)
    try:
        script = programs.start("examples.frameworks.interrupted_script")
        eventually(lambda: "rebuilding" in programs.log_of(script), "it holds the lock")
        look.delete("holdfast:{index}")
        assert script.wait(60) == 0
        assert programs.log_of(script) == "rebuilding\nstopped: taken\n"
    finally:
        programs.close()

"""A short run of the rig, as anyone can start one."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from testbed.waiting import eventually


def rig(*args: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "rig", "torture", *args]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.thorough  # CI has a longer one, `make torture`
@pytest.mark.parametrize("topology", ["single"])
def test_a_short_run(topology: str) -> None:
    process = rig("--seconds", "8", "--seed", "3", "--processes", "2", "--topology", topology, "--json")
    output, errors = process.communicate(timeout=110)
    report: dict[str, Any] = json.loads(output)
    assert report["wrong"] == [], errors
    assert process.returncode == 0
    assert report["grants"] > 10
    assert sum(report["faults"].values()) >= 1
    assert report["violations"] == {}


def state_of(pid: int | str) -> tuple[str, int] | None:
    """(state, parent) of a process, or None when there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    state, parent = text.rpartition(")")[2].split()[:2]  # its name, in parentheses, may hold anything
    return state, int(parent)


def children_of(pid: int) -> list[int]:
    found = [entry.name for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [int(name) for name in found if (state := state_of(name)) is not None and state[1] == pid]


def alive(pid: int) -> bool:
    state = state_of(pid)
    return state is not None and state[0] != "Z"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="this system has no /proc to look for processes in")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_no_process(number: int) -> None:
    process = rig("--seconds", "100", "--processes", "2", "--topology", "single")
    # A server with its guard, and two workers.
    children: list[int] = eventually(lambda: found if len(found := children_of(process.pid)) >= 4 else None)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    eventually(lambda: not any(alive(pid) for pid in children))

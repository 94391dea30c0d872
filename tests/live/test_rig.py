"""A short run of the rig, as anybody can start one."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import Any

import pytest

from tests.support.faces import eventually


def rig(*args: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "rig", "torture", *args]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("topology", ["single"])
def test_a_short_run(topology: str) -> None:
    process = rig("--seconds", "8", "--seed", "3", "--processes", "2", "--topology", topology, "--json")
    output, errors = process.communicate(timeout=110)
    report: dict[str, Any] = json.loads(output)
    assert report["wrong"] == [], errors
    assert process.returncode == 0
    assert report["grants"] > 10
    assert sum(report["faults"].values()) >= 1
    assert report["overlaps"] == 0


def children_of(pid: int) -> list[int]:
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    return [int(line) for line in found.stdout.split()]


def alive(pid: int) -> bool:
    found = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return found.returncode == 0 and "Z" not in found.stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_no_process(number: int) -> None:
    process = rig("--seconds", "100", "--processes", "2", "--topology", "single")
    # A server with its guard, and two workers.
    children: list[int] = eventually(lambda: found if len(found := children_of(process.pid)) >= 4 else None)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    eventually(lambda: not any(alive(pid) for pid in children))

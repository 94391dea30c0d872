"""The examples for systemd and cron: their commands are run, the units are checked by systemd itself."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import embedded
from testbed.waiting import PATIENCE_S

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "frameworks"
HOLDFAST = Path(sys.executable).with_name("holdfast")
TAKEN = 75


def run(command: list[str], url: str) -> int:
    environment = {**os.environ, "HOLDFAST_URL": url}
    return subprocess.run(command, env=environment, timeout=PATIENCE_S, capture_output=True).returncode


def here(text: str, job: Path) -> str:
    """With this machine's programs in place of those of the hosts."""
    text = re.sub(r"(?<=[=\s])(?:/usr/local/bin/)?holdfast run", f"{HOLDFAST} run", text)
    return re.sub(r"-- (?:/usr/local/bin/)?(?:report|sweep)\b", f"-- {job}", text)


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """Notes that it was run."""
    script = tmp_path / "job"
    script.write_text(f'#!/bin/sh\necho "$HOLDFAST_NAME" >> {tmp_path}/done\n')
    script.chmod(0o755)
    return script


def test_the_service_runs_once(private_server: Callable[[], embedded.Server], job: Path) -> None:
    unit = here((EXAMPLES / "report.service").read_text(encoding="utf-8"), job)
    (command,) = re.findall(r"^ExecStart=(.*)", unit, re.MULTILINE)
    url = private_server().url
    assert [run(shlex.split(command), url) for _ in range(2)] == [0, TAKEN]
    assert f"SuccessExitStatus={TAKEN}\n" in unit
    assert job.with_name("done").read_text() == "report\n"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze on PATH (Debian: systemd)")
def test_systemd_can_read_the_units(tmp_path: Path, job: Path) -> None:
    for name in ("report.service", "report.timer"):
        (tmp_path / name).write_text(here((EXAMPLES / name).read_text(encoding="utf-8"), job))
    command = ["systemd-analyze", "verify", f"{tmp_path}/report.service", f"{tmp_path}/report.timer"]
    checked = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    said = checked.stdout + checked.stderr
    assert "report." not in said and checked.returncode == 0, said
    (tmp_path / "report.timer").write_text("[Timer]\nOnCalender=daily\n")
    checked = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert "OnCalender" in checked.stderr, "what is wrong is found"


def test_the_crontab_runs_each_once(private_server: Callable[[], embedded.Server], job: Path) -> None:
    lines = here((EXAMPLES / "report.crontab").read_text(encoding="utf-8"), job).splitlines()
    commands = [line.split(None, 5)[5] for line in lines if re.match(r"[*\d]", line)]
    url = private_server().url
    assert [run(["/bin/sh", "-c", command], url) for command in commands] == [0, 0]
    assert [run(["/bin/sh", "-c", command], url) for command in commands] == [0, TAKEN]
    assert job.with_name("done").read_text() == "report\nsweep\n"

"""The demo as a user runs it, smaller."""

from __future__ import annotations

import re
import subprocess
import sys

from holdfast import embedded


def demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "examples.flash_sale", *arguments],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=100,
        check=False,
    )


def test_oversells_without_and_sells_exactly_with_a_lock() -> None:
    done = demo("--units", "80", "--workers", "4", "--ttl", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    oversold = re.search(r"oversold by (\d+)", done.stdout)
    assert oversold is not None
    assert int(oversold[1]) > 0
    for line in (
        "worker 1 killed (kill -9) inside",
        "worker 2 stopped (SIGSTOP) inside",
        "late write of worker 2 refused",
        "ok    stock exact: 80 sold, 0 left",
        "ok    overlaps 0",
        "ok    tokens strictly increasing",
        "All invariants held",
    ):
        assert line in done.stdout


def test_uses_the_server_it_is_given(valkey_server: embedded.Server) -> None:
    done = demo("--units", "40", "--workers", "4", "--ttl", "1", "--url", valkey_server.url)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{valkey_server.host}:{valkey_server.port}" in done.stdout


def test_no_server_is_one_line_and_status_69() -> None:
    with embedded.server() as server:
        url = server.url
    done = demo("--units", "40", "--workers", "4", "--url", url)
    assert done.returncode == 69
    assert done.stderr.startswith("holdfast demo: ")
    assert "Traceback" not in done.stderr


def test_bad_arguments_are_refused() -> None:
    done = demo("--units", "3")
    assert done.returncode == 2
    assert "units >= 40" in done.stderr

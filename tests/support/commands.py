"""Running the command line as users do: real processes, always ended, every wait bounded."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

__all__ = ["PATIENCE_S", "alive", "holdfast", "started", "wait_for"]

#: Far above what anything here takes on a slow machine, s.
PATIENCE_S = 60.0


def _environment(url: str | None, more: Mapping[str, str] | None) -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    if url is not None:
        environment["HOLDFAST_URL"] = url
    return {**environment, **(more or {})}


def holdfast(
    *words: str, url: str | None = None, env: Mapping[str, str] | None = None, **settings: Any
) -> subprocess.CompletedProcess[bytes]:
    """Run `holdfast WORDS…` to its end."""
    if "input" not in settings:
        settings.setdefault("stdin", subprocess.DEVNULL)
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", *words],
        env=_environment(url, env),
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
        **settings,
    )
    assert b"Traceback" not in done.stderr, done.stderr.decode()
    return done


@contextmanager
def started(
    *words: str, url: str | None = None, env: Mapping[str, str] | None = None, **settings: Any
) -> Iterator[subprocess.Popen[bytes]]:
    """`holdfast WORDS…`, running; ended at the end of the block, and its output closed."""
    settings.setdefault("stdin", subprocess.DEVNULL)
    settings.setdefault("stdout", subprocess.PIPE)
    settings.setdefault("stderr", subprocess.PIPE)
    process = subprocess.Popen([sys.executable, "-m", "holdfast", *words], env=_environment(url, env), **settings)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGCONT)
        process.kill()  # the command dies with it
        process.wait(PATIENCE_S)
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def wait_for(condition: Callable[[], object], what: str, request_timeout_s: float = PATIENCE_S) -> None:
    """Wait until `condition()` is true; fails with `what` when that takes too long."""
    until = time.monotonic() + request_timeout_s
    while not condition():
        assert time.monotonic() < until, f"did not happen within {request_timeout_s:g} s: {what}"
        time.sleep(0.01)


def alive(pid: int) -> bool:
    """True if that process is there and has not ended (a zombie has)."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return stat.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except FileNotFoundError:
        if os.path.isdir("/proc/self"):
            return False
    except ProcessLookupError:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True

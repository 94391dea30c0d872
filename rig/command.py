"""A worker that takes its turns by `holdfast run`, and the command that runs under the lock.

`python -m rig.command JSON` is that command: it has a fencing token in its environment, and no way to ask how long its
lease still lasts. What it relies on is that it is stopped before: so it trusts its lease as long as it runs, and writes
down that it does, again and again.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from rig.history import Log, now_ns
from rig.resource import Writer

__all__ = ["commands"]

#: The exit status of `holdfast run` when its time for waiting was over.
_BUSY = 75
#: Of the commands that are stopped by `--max-hold` if they take too long.
_BOUNDED_SHARE = 0.1


def commands(config: dict[str, Any], log: Log, stopping: threading.Event) -> int:
    """One command after the other until told to stop."""
    rng = random.Random(config["seed"])
    locks = [spec for spec in config["locks"] if spec["kind"] in ("lock", "rwlock", "semaphore")]
    for number in itertools.count(1):
        if stopping.is_set():
            return 0
        spec = rng.choice(locks)
        _one(config, log, rng, spec, f"{config['name']}.{number}")
    raise AssertionError("the numbers do not end")


def _one(config: dict[str, Any], log: Log, rng: random.Random, spec: dict[str, Any], p: str) -> None:
    name, mode = spec["name"], "exclusive"
    options: list[str] = []
    if spec["kind"] == "rwlock":
        mode, options = ("shared", ["--shared"]) if rng.random() < 0.5 else (mode, [])
    said: Any = mode
    if spec["kind"] == "semaphore":
        said, options = {"permits": 1}, ["--slots", str(spec["permits"])]
    if rng.random() < _BOUNDED_SHARE:
        options += ["--max-hold", f"{max(1000, config['ttl_s'] * 750):.0f}ms"]
    long = rng.random() < config["long_share"]
    inside = {"p": p, "lock": name, "mode": said, "log": config["log"], "resource": config["resource"]}
    inside["pause_s"] = config["ttl_s"] * rng.uniform(0.2, 0.6) if long else 0.01
    command = [
        *(sys.executable, "-m", "holdfast", "run", "--wait", f"{config['timeout_s']:g}s"),
        *("--ttl", f"{config['ttl_s'] * 1000:.0f}ms", "--url", config["url"], *options, name, "--"),
        *(sys.executable, "-m", "rig.command", json.dumps(inside)),
    ]
    log.event("ask", p, op=1, lock=name, do="acquire", mode=said)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == _BUSY:
        log.event("not", p, op=1, lock=name, why="timeout")
    elif done.returncode not in (0, 69, 76, 143, 137, -signal.SIGKILL):
        log.note("crash", f"holdfast run ended with {done.returncode}: {done.stderr[-2000:]}")
    if done.returncode:
        log.note("error", "command", str(done.returncode))
    log.event("end", p)


def _inside(config: dict[str, Any]) -> None:
    at_ns = now_ns()
    log, p, lock = Log(Path(config["log"])), config["p"], config["lock"]
    token = int(os.environ["HOLDFAST_FENCING_TOKEN"])
    log.event("got", p, at_ns, op=1, lock=lock, token=token, until=at_ns)
    writer = Writer(config["resource"])
    for _ in range(5):
        log.event("trust", p, op=1, lock=lock, until=now_ns())
        if config["mode"] == "exclusive":
            writer.write(p, 1, lock, token)
        elif config["mode"] == "shared":
            writer.read(p, 1, lock, token)
        log.event("trust", p, op=1, lock=lock, until=now_ns())
        time.sleep(config["pause_s"])
    log.event("ask", p, op=1, lock=lock, do="release")


if __name__ == "__main__":
    _inside(json.loads(sys.argv[1]))

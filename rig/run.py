"""What a run of torture consists of: its workers, their logs, and the clock that they may have."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from holdfast_lab.servers import Clock
from rig.actions import PERMITS
from rig.history import History, Log
from rig.locks import KINDS
from rig.resource import Resource
from rig.stages import Stage

__all__ = ["Run"]

#: How long workers may take to give back and end, s.
_GOODBYE_S = 60.0
#: And to begin.
_BEGIN_S = 30.0


class _Worker:
    """A process that takes turns."""

    def __init__(self, config: dict[str, Any], environment: dict[str, str]) -> None:
        self.name: str = config["name"]
        #: Whether it takes its turns by `holdfast run`.
        self.is_command: bool = config["api"] == "command"
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the worker
        self._process = subprocess.Popen(
            [sys.executable, "-m", "rig.worker", json.dumps(config)],
            stdin=subprocess.DEVNULL,
            stdout=self._said,
            stderr=self._said,
            env=environment,
            cwd=Path(__file__).parent.parent,
        )

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)
        self._process.wait()

    def descendants(self) -> list[int]:
        """The processes below it: of a command worker, `holdfast run`, its guard and its command."""
        found: list[int] = []
        parents = [self._process.pid]
        while parents:
            with contextlib.suppress(OSError):  # it has ended meanwhile
                children = Path(f"/proc/{parents[0]}/task/{parents[0]}/children").read_text(encoding="ascii").split()
                parents += map(int, children)
                found += map(int, children)
            del parents[0]
        return found

    def tell_to_go(self) -> None:
        self._signal(signal.SIGTERM)

    def wait(self, timeout_s: float) -> int | None:
        """Return the exit status, or None when the worker has not ended."""
        try:
            return self._process.wait(max(0.0, timeout_s))
        except subprocess.TimeoutExpired:
            return None

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def said(self) -> str:
        """The end of what it wrote."""
        self._said.seek(0)
        return self._said.read().decode("utf-8", "replace")[-2000:]

    def _signal(self, number: int) -> None:
        if self._process.poll() is None:
            self._process.send_signal(number)

    def close(self) -> None:
        self.kill()
        self._said.close()


class Run:
    """What the nemesis works on."""

    def __init__(
        self,
        library: str,
        stage: Stage,
        folder: Path,
        resource: Resource,
        *,
        seed: int,
        processes: int,
        loops: int,
        locks: int,
        ttl_s: float,
        timeout_s: float,
        kinds: str,
        settings: list[dict[str, Any]] | None,
        fast: bool,
        long_share: float,
        queued: bool,
        commands: int,
        verbose: bool,
        src: Path | None,
        beside: Path | None = None,
    ) -> None:
        self.seed = seed
        self.library = library
        self.stage = stage
        self.ttl_s = ttl_s
        self.stopping = threading.Event()
        self.client_clock: Clock | None = None
        self.commands = commands
        self.workers: list[_Worker] = []
        self.failures: list[str] = []
        self._folder = folder
        self._verbose = verbose
        self._began_at = time.monotonic()
        self._count = 0
        self.environment = dict(os.environ)
        if src is not None:
            self.environment["PYTHONPATH"] = str(src.resolve())
        self._beside = {} if beside is None else {"PYTHONPATH": str(beside.resolve())}
        self._close = contextlib.ExitStack()
        if stage.name == "single" and shutil.which("gcc") is not None:
            clock = self.client_clock = Clock()
            self._close.callback(clock.close)
            home = Path(clock.program).parent
            shim = {"HOLDFAST_LAB_CLOCK": str(clock.offset), "LD_PRELOAD": str(home / "clock.so")}
            self.environment |= shim
        #: Written by the rig itself: what ended when.
        self.log = Log(folder / "rig.log")
        self._close.callback(self.log.close)
        names = [f"torture-{each}" for each in range(locks)]
        self.specs = _specs(names, kinds, stage.name) if library == "holdfast" else _specs(names, "lock", "")
        if library != "holdfast":
            settings = [{}]
        elif settings is None:
            settings = _settings(stage, ttl_s)
        apis = ["threads", "asyncio"] if KINDS[library][1] is not None else ["threads"]
        apis = [apis[number % len(apis)] for number in range(processes)] + ["command"] * commands
        self._configs: list[dict[str, Any]] = [
            {
                "library": library,
                "api": api,
                "url": stage.url_for(number) if library in _BY_URL else stage.urls_for(number),
                "ttl_s": ttl_s,
                "timeout_s": timeout_s,
                "loops": loops,
                "locks": self.specs,
                "settings": settings,
                "fast": fast,
                "long_share": long_share,
                "queued": queued,
                "resource": str(resource.path),
                # Every third one hands nothing on inside of itself.
                "options": (stage.options | ({"tenure": 0} if number % 3 == 2 else {}))
                if library == "holdfast"
                else {},
            }
            for number, api in enumerate(apis)
        ]
        self._life_config: dict[str, Any] = {
            "ttl_s": ttl_s,
            "locks": names,
            "resource": str(resource.path),
            "options": stage.options,
            "over_quorum": stage.name == "quorum",
        }

    def life_config(self) -> dict[str, Any]:
        """Return what all lives have in common. `log` is for `name`."""
        return dict(self._life_config)

    def log_of(self, name: str) -> str:
        """Return the path of the log of a worker or a life."""
        return str(self._folder / f"{name}.log")

    def start(self) -> None:
        """Start the workers, and wait until all have asked: on a busy machine that takes longer than a short run."""
        for number in range(len(self._configs)):
            self.workers.append(self._begin(number))
        until = time.monotonic() + _BEGIN_S
        while not all(self._has_asked(worker) for worker in self.workers):
            if time.monotonic() > until or not all(worker.running for worker in self.workers):
                return  # that it ends by itself is found where the workers are looked at
            time.sleep(0.02)

    def _has_asked(self, worker: _Worker) -> bool:
        log = Path(self.log_of(worker.name))
        return log.exists() and log.stat().st_size > 0

    def _begin(self, number: int) -> _Worker:
        self._count += 1
        name = f"{number}{self._configs[number]['api'][0]}{self._count}"
        config = {
            **self._configs[number],
            "name": name,
            "log": self.log_of(name),
            "seed": f"{self.seed}-{name}",
        }
        return _Worker(config, self.environment | (self._beside if number % 2 else {}))

    def replace(self, number: int) -> None:
        """Kill one, and start another in its place."""
        self.workers[number].close()
        self.log.event("end", self.workers[number].name)
        self.workers[number] = self._begin(number)

    def say(self, text: str) -> None:
        if self._verbose:
            print(f"  {time.monotonic() - self._began_at:6.1f} s  {text}", file=sys.stderr, flush=True)

    def end(self) -> None:
        """Have all workers give back and go."""
        for worker in self.workers:
            worker.resume()
            worker.tell_to_go()
        until = time.monotonic() + _GOODBYE_S
        for worker in self.workers:
            status = worker.wait(until - time.monotonic())
            if status is None:
                self.failures.append(f"a worker did not end within {_GOODBYE_S:g} s: {worker.said()}")
            elif status not in (0, -signal.SIGTERM):  # by SIGTERM: it had not even begun
                self.failures.append(f"a worker ended with status {status}: {worker.said()}")

    def close(self) -> None:
        for worker in self.workers:
            worker.close()
        self._close.close()

    def history(self) -> History:
        return History.read(sorted(self._folder.glob("*.log")))


#: Libraries whose client takes the URL of a topology; others take one of each server.
_BY_URL = ("holdfast", "redis-py", "python-redis-lock")


def _specs(names: list[str], kinds: str, topology: str) -> list[dict[str, Any]]:
    """The locks that workers contend for. `kinds`: "mixed", or one; over a quorum there are not all of them."""
    locks: list[dict[str, Any]] = [{"kind": "lock", "name": name} for name in names]
    if kinds == "lock":
        return locks
    election = {"kind": "election", "name": "torture-election"}
    if topology == "quorum":
        return [*locks, election]
    several = ["torture-several-0", "torture-several-1"]
    family: list[dict[str, Any]] = [
        election,
        {"kind": "rwlock", "name": "torture-rw"},
        {"kind": "semaphore", "name": "torture-sem", "permits": PERMITS},
        {"kind": "multilock", "name": "torture-several", "members": several},
    ]
    beside: list[dict[str, Any]] = [{"kind": "lock", "name": name} for name in several[:1]]
    if kinds == "mixed":
        return [*locks, *family, *beside]
    return [spec for spec in family if spec["kind"] == kinds] + (beside if kinds == "multilock" else [])


def _settings(stage: Stage, ttl_s: float) -> list[dict[str, Any]]:
    """One of these is drawn for each acquire."""
    settings: list[dict[str, Any]] = [{}, {}, {"renew": False}, {"confirm_release": False}, {"ttl": ttl_s * 1.5}]
    settings.append({"max_hold": ttl_s})
    if stage.name in ("single", "cluster") and not stage.options:
        settings.append({"cache_for": ttl_s / 4})
    return settings

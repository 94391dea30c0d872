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

from holdfast.lab.servers import Clock
from rig.history import Fault, History
from rig.locks import KINDS
from rig.resource import Resource
from rig.stages import Stage

__all__ = ["Run"]

#: How long workers may take to give back and end, s.
_GOODBYE_S = 60.0


class _Worker:
    """A process that takes turns."""

    def __init__(self, config: dict[str, Any], environment: dict[str, str]) -> None:
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

    def tell_to_go(self) -> None:
        self._signal(signal.SIGTERM)

    def wait(self, timeout_s: float) -> int | None:
        """Its exit status, or None when it has not ended."""
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
        verbose: bool,
        src: Path | None,
    ) -> None:
        self.seed = seed
        self.library = library
        self.stage = stage
        self.ttl_s = ttl_s
        self.stopping = threading.Event()
        self.client_clock: Clock | None = None
        self.workers: list[_Worker] = []
        self.failures: list[str] = []
        self._folder = folder
        self._verbose = verbose
        self._began_at = time.monotonic()
        self._count = 0
        self.environment = dict(os.environ)
        if src is not None:
            self.environment["PYTHONPATH"] = str(src.resolve())
        self._close = contextlib.ExitStack()
        if stage.name == "single" and shutil.which("gcc") is not None:
            clock = self.client_clock = Clock()
            self._close.callback(clock.close)
            home = Path(clock.program).parent
            self.environment |= {"HOLDFAST_LAB_CLOCK": str(home / "offset"), "LD_PRELOAD": str(home / "clock.so")}
        apis = ["threads", "asyncio"] if KINDS[library][1] is not None else ["threads"]
        self._configs: list[dict[str, Any]] = [
            {
                "library": library,
                "api": apis[number % len(apis)],
                "url": stage.url_for(number),
                "ttl_s": ttl_s,
                "loops": loops,
                "locks": [f"torture-{each}" for each in range(locks)],
                "resource": str(resource.path),
                "options": stage.options if library == "holdfast" else {},
            }
            for number in range(processes)
        ]
        self._life_config: dict[str, Any] = {
            "ttl_s": ttl_s,
            "locks": [f"torture-{each}" for each in range(locks)],
            "resource": str(resource.path),
            "options": stage.options,
            "over_quorum": stage.name == "quorum",
        }

    def life_config(self) -> dict[str, Any]:
        """What all lives have in common. `log` is for `name`."""
        return dict(self._life_config)

    def log_of(self, name: str) -> str:
        """Where a worker or a life writes what it sees."""
        return str(self._folder / f"{name}.log")

    def start(self) -> None:
        for number in range(len(self._configs)):
            self.workers.append(self._begin(number))

    def _begin(self, number: int) -> _Worker:
        self._count += 1
        name = f"{number}{self._configs[number]['api'][0]}{self._count}"
        config = {
            **self._configs[number],
            "name": name,
            "log": self.log_of(name),
            "seed": f"{self.seed}-{name}",
        }
        return _Worker(config, self.environment)

    def replace(self, number: int) -> None:
        """Kill one, and start another in its place."""
        self.workers[number].close()
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
            elif status != 0:
                self.failures.append(f"a worker ended with status {status}: {worker.said()}")

    def close(self) -> None:
        for worker in self.workers:
            worker.close()
        self._close.close()

    def history(self, faults: list[Fault]) -> History:
        history = History.read(sorted(self._folder.glob("*.log")))
        history.faults = faults
        return history

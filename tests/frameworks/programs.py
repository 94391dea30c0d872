"""Workers, schedulers and what else the frameworks start: processes with a log, ended after the test."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

__all__ = ["Programs"]

ROOT = Path(__file__).resolve().parents[2]
#: Until one that was told to end is killed, s.
_GRACE_S = 20.0

Program = subprocess.Popen[bytes]


class Programs:
    """Starts programs in process groups of their own, and ends them all."""

    def __init__(self, folder: Path, **environment: str) -> None:
        self.folder = folder
        self._environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", **environment}
        self._started: dict[Program, Path] = {}

    def start(self, *command: str, **environment: str) -> Program:
        """`python -m COMMAND…`, with its output in a file of the folder."""
        log = self.folder / f"{len(self._started)}-{command[0]}.log"
        with log.open("wb") as output:
            program = subprocess.Popen(
                [sys.executable, "-m", *command],
                cwd=self.folder,
                env={**self._environment, **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._started[program] = log
        return program

    def run(self, *command: str, timeout_s: float = 120, **environment: str) -> str:
        """The same, waited for: what it printed. Fails unless it ends with 0."""
        program = self.start(*command, **environment)
        status = program.wait(timeout_s)
        said = self.log_of(program)
        assert status == 0, said
        return said

    def check(self) -> None:
        """Fails when one has ended by itself with an error."""
        ended = [log.name for program, log in self._started.items() if (program.poll() or 0) > 0]
        assert not ended, f"{ended}\n{self.logs()}"

    def log_of(self, program: Program) -> str:
        """Return what the program has printed."""
        return self._started[program].read_text(errors="replace")

    def logs(self) -> str:
        """Return what all programs have printed."""
        return "\n".join(f"{log.name}:\n{self.log_of(program)}" for program, log in self._started.items())

    def close(self) -> None:
        """End them all; what is left of their groups is killed."""
        for program in self._started:
            if program.poll() is None:
                program.terminate()
        for program in self._started:
            try:
                program.wait(_GRACE_S)
            except subprocess.TimeoutExpired:
                pass
            try:
                os.killpg(program.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            program.wait()

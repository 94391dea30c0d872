"""Another process that does what it is told, a line at a time."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

__all__ = ["Beside", "beside"]


class Beside:
    """The lines to the other process, and those that it prints."""

    def __init__(self, stdin: IO[str], stdout: IO[str]) -> None:
        self._stdin = stdin
        self._stdout = stdout

    def tell(self, line: str = "") -> None:
        """Write one line to it."""
        self._stdin.write(line + "\n")
        self._stdin.flush()

    def heard(self) -> str:
        """The next line that it prints."""
        return self._stdout.readline()


@contextmanager
def beside(program: str, *arguments: str) -> Iterator[Beside]:
    """Run the text of a program; its input ends with the block, and the program has to end then."""
    with subprocess.Popen(
        [sys.executable, "-c", program, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        yield Beside(process.stdin, process.stdout)

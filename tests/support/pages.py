"""Pages that readers follow in a shell: their files are written, their commands run, their outputs compared."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from threading import Timer

#: A file's name in a line that ends with a colon (of either language), a blank line, and the file.
_STEP = re.compile(
    r"`(?P<name>[\w./]+)`[:：]\n\n```python\n(?P<text>.*?)^```$|^```console\n(?P<console>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
#: Said where the machine is too busy for an answer within a second.
_BUSY = re.compile(r"^holdfast: waiting for .*: the server does not answer; trying for .*\n", re.MULTILINE)
#: What one command may take on a busy machine, s.
COMMAND_S = 90.0


def commands(console: str) -> Iterator[tuple[str, str]]:
    """Yield each command of such a block with what it has to print."""
    for part in re.split(r"^\$ ", console, flags=re.MULTILINE)[1:]:
        command, _, output = part.partition("\n")
        yield command, output


def matches(expected: str, printed: str) -> bool:
    """True if this was printed; "…" stands for anything within a line."""
    return re.fullmatch(re.escape(expected).replace("…", ".*"), printed) is not None


def files(page: str) -> dict[str, str]:
    """The files of a page by their names; each is shown whole, in one block."""
    found = [(step["name"], step["text"]) for step in _STEP.finditer(page) if step["name"]]
    assert len(found) == len(dict(found)), "one name for two files"
    return dict(found)


def mistakes(code: str) -> str:
    """Return what ruff says of undefined names and imports that are missing, unused or repeated; "" for nothing."""
    command = [
        sys.executable,
        "-m",
        "ruff",
        "check",
        "--isolated",
        "--select",
        "F,E9",
        "--output-format",
        "concise",
        "-",
    ]
    done = subprocess.run(command, input=code, capture_output=True, text=True, timeout=60)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def play(page: str, folder: Path, environment: Mapping[str, str]) -> int:
    """Do what the page says, in that folder; how many commands that were. What runs in the background is ended."""
    played = 0
    background: list[subprocess.Popen[str]] = []
    try:
        for step in _STEP.finditer(page):
            if step["name"]:
                (folder / step["name"]).write_text(step["text"], encoding="utf-8")
                continue
            for command, expected in commands(step["console"]):
                printed = _BUSY.sub("", _run(command, expected, folder, environment, background))
                assert matches(expected, printed), f"$ {command}\n{printed}\ninstead of\n{expected}"
                played += 1
    finally:
        for process in background:
            process.terminate()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
    return played


def _run(
    command: str,
    expected: str,
    folder: Path,
    environment: Mapping[str, str],
    background: list[subprocess.Popen[str]],
) -> str:
    stays = command.endswith(" &")
    words = ["sh", "-c", f"exec {command[:-2]}" if stays else command]
    process = subprocess.Popen(
        words, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    background.append(process)
    watchdog = Timer(COMMAND_S, process.kill)
    watchdog.start()
    try:
        assert process.stdout is not None
        if stays:
            return "".join(process.stdout.readline() for _ in expected.splitlines())
        return process.stdout.read()
    finally:
        watchdog.cancel()

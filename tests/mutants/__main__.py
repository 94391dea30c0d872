"""`python -m tests.mutants`: every mutant against the simulation, then the unit tests; a table of who saw it."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.mutants.table import API, CRASH, ENGINE, MUTANTS, PACKAGE, Mutant

__all__ = ["main", "seen"]

ROOT = PACKAGE.parents[1]
#: A mutant that is not seen within this has survived, s: far more than a busy machine takes.
PATIENCE_S = 900.0
#: So much CPU has the simulation before the unit tests are asked, s.
SIMULATION_S = 25.0
UNIT_TESTS = (
    "tests/unit/test_agent.py",
    "tests/unit/test_batch.py",
    "tests/unit/test_deadlocks.py",
    "tests/unit/test_detecting.py",
    "tests/unit/test_early.py",
    "tests/unit/test_fast_path.py",
    "tests/unit/test_family_calls.py",
    "tests/unit/test_hold.py",
    "tests/unit/test_lease_cache.py",
    "tests/unit/test_schedule.py",
    "tests/unit/test_standing.py",
    "tests/unit/test_tenure.py",
    "tests/unit/test_waiting.py",
    "tests/simulation/test_scripts.py",
    "tests/simulation/test_late_requests.py",
)
#: For what the simulator does not run.
ENGINE_TESTS = ("tests/unit/test_operation.py", "tests/unit/test_engine_loop.py", "tests/unit/test_link.py")
#: For what is promised by the API alone.
API_TESTS = dict(
    zip(API, [f"tests/contract/test_{name}.py" for name in ("queue_limits", "once", "checks", "notes")], strict=True)
)
#: For the lock over a quorum.
QUORUM_TESTS = ("tests/unit/test_redlock.py",)
#: For `crash_release`.
CRASH_TESTS = ("tests/simulation/test_crash.py",)


def seen(mutant: Mutant, known: str = "") -> tuple[str | None, float]:
    """(who saw it, or None; how long that took). `known`: who saw it last, and is asked first."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        package = Path(folder) / "holdfast"
        shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
        file = package / mutant.file
        file.write_text(file.read_text(encoding="utf-8").replace(mutant.old, mutant.new), encoding="utf-8")
        env = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}", "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            by = _seen(mutant, env, known, began + PATIENCE_S)
        except subprocess.TimeoutExpired:
            by = None  # a mutant that hangs shows nothing of what it was meant for
    return by, time.monotonic() - began


def _seen(mutant: Mutant, env: dict[str, str], known: str, until: float) -> str | None:
    if mutant.primitive in API_TESTS:
        # All of them, on one server; and in one API: `_sync` is not generated from what is changed.
        chosen = "asyncio and not (redis or redict or valkey81)"
        return _by_tests([API_TESTS[mutant.primitive], "-m", "", "-k", chosen, "--timeout", "60"], env, until)
    files = {"quorum": QUORUM_TESTS, ENGINE: ENGINE_TESTS, CRASH: CRASH_TESTS}.get(mutant.primitive, UNIT_TESTS)
    known_test = known.removeprefix("unit: ") if known.startswith("unit: ") else ""
    if known_test and (by := _by_tests(_nodes(known_test, files), env, until)):
        return by
    if mutant.primitive in (ENGINE, CRASH):
        return _by_tests(files, env, until)
    seed = re.search(r"\(seed (\d+), (.+)\)", known)
    kill = [sys.executable, str(Path(__file__).with_name("kill.py")), str(SIMULATION_S), mutant.primitive]
    done = _run([*kill, *(seed.groups() if seed else ())], env, until)
    if done.returncode == 1 and done.stdout.startswith("simulation: "):
        return done.stdout.strip()
    if done.returncode != 0:
        raise RuntimeError(f"the mutant {mutant.what!r} does not run:\n{done.stderr[-2000:]}")
    return _by_tests(files, env, until)


def _nodes(test: str, files: Sequence[str]) -> list[str]:
    """Find that test in these files."""
    name = test.partition("[")[0]
    return [f"{file}::{name}" for file in files if f"def {name}(" in (ROOT / file).read_text(encoding="utf-8")]


def _by_tests(tests: Sequence[str], env: dict[str, str], until: float) -> str | None:
    """The first of them that fails."""
    if not tests:
        return None
    pytest = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", "not thorough"]
    done = _run([*pytest, *tests], env, until)
    if done.returncode != 1:
        return None
    failed = next((line for line in done.stdout.splitlines() if line.startswith("FAILED ")), "unit tests")
    return "unit: " + failed.removeprefix("FAILED ").split("::")[-1].split(" - ")[0]


def _run(command: list[str], env: dict[str, str], until: float) -> subprocess.CompletedProcess[str]:
    left_s = max(until - time.monotonic(), 5.0)
    return subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=left_s, check=False)


def _known(page: Path) -> dict[str, str]:
    """Return the tests that saw each mutant of a table."""
    rows = (line.split(" | ") for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("| "))
    return {row[0].removeprefix("| "): row[3] for row in rows if len(row) == 5}


def main() -> int:
    """Run all, print the table, write it where asked to; 1 when one survived."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", default="", help="those whose description holds this")
    parser.add_argument("--primitive", default="", help="those that are looked for in the worlds of this one")
    parser.add_argument("--markdown", type=Path, default=None)
    parser.add_argument("--known", type=Path, default=None, help="a table: who saw a mutant there is asked first")
    options = parser.parse_args()
    chosen = [
        mutant for mutant in MUTANTS if options.only in mutant.what and options.primitive in ("", mutant.primitive)
    ]
    known = {} if options.known is None else _known(options.known)

    def tried(mutant: Mutant) -> tuple[str | None, float]:
        by, seconds = seen(mutant, known.get(mutant.what, ""))
        print(f"{seconds:6.1f} s  {mutant.what}: {by or 'SURVIVED'}", file=sys.stderr, flush=True)
        return by, seconds

    with ThreadPoolExecutor(options.jobs) as pool:
        results = list(pool.map(tried, chosen))
    lines = ["| mutant | file | primitive | killed by | s |", "|-|-|-|-|-:|"]
    for mutant, (by, seconds) in zip(chosen, results, strict=True):
        lines.append(
            f"| {mutant.what} | `{mutant.file}` | {mutant.primitive} | {by or '**survived**'} | {seconds:.1f} |"
        )
    survivors = sum(by is None for by, _ in results)
    lines += ["", f"{len(chosen)} mutants, {len(chosen) - survivors} killed, {survivors} survived."]
    text = "\n".join(lines)
    print(text)
    if options.markdown is not None:
        head = (
            "# Mutants\n\nDeliberate bugs in the protocols and scripts, and what detects each of them; `make mutants` "
            "prints this table.\n\n"
        )
        options.markdown.write_text(head + text + "\n", encoding="utf-8")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())

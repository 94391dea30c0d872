"""`python -m tests.mutants`: every mutant against the simulation, then the unit tests; a table of who saw it."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.mutants.table import FIRST_WAIT, MUTANTS, PACKAGE, Mutant

__all__ = ["main", "seen"]

ROOT = PACKAGE.parents[1]
#: A mutant that is not seen within this has survived, s.
PATIENCE_S = 120.0
#: Of which the simulation has so much before the unit tests are asked.
SIMULATION_S = 25.0
UNIT_TESTS = (
    "tests/unit/test_batch.py",
    "tests/unit/test_fast_path.py",
    "tests/unit/test_first_wait.py",
    "tests/unit/test_family_calls.py",
    "tests/unit/test_hold.py",
    "tests/unit/test_keeping.py",
    "tests/unit/test_schedule.py",
    "tests/unit/test_tenure.py",
    "tests/unit/test_together.py",
    "tests/unit/test_waiting.py",
    "tests/simulation/test_scripts.py",
    "tests/simulation/test_late_requests.py",
)
#: The simulation has a driver of its own.
UNSIMULATED = (FIRST_WAIT,)
#: For the lock over a quorum.
QUORUM_TESTS = ("tests/unit/test_redlock.py",)


def seen(mutant: Mutant) -> tuple[str | None, float]:
    """(who saw it, or None; how long that took)."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        package = Path(folder) / "holdfast"
        shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
        file = package / mutant.file
        file.write_text(file.read_text(encoding="utf-8").replace(mutant.old, mutant.new), encoding="utf-8")
        env = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}", "PYTHONDONTWRITEBYTECODE": "1"}
        kill = [sys.executable, str(Path(__file__).with_name("kill.py")), str(SIMULATION_S), mutant.primitive]
        try:
            if mutant.file not in UNSIMULATED:
                done = subprocess.run(
                    kill, env=env, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False
                )
                if done.returncode == 1 and done.stdout.startswith("simulation: "):
                    return done.stdout.strip(), time.monotonic() - began
                if done.returncode != 0:
                    raise RuntimeError(f"the mutant {mutant.what!r} does not run:\n{done.stderr[-2000:]}")
            tests = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", "not thorough"]
            tests += QUORUM_TESTS if mutant.primitive == "quorum" else UNIT_TESTS
            left_s = max(PATIENCE_S - (time.monotonic() - began), 5.0)
            done = subprocess.run(tests, env=env, cwd=ROOT, capture_output=True, text=True, timeout=left_s, check=False)
        except subprocess.TimeoutExpired:
            return None, time.monotonic() - began  # a mutant that hangs shows nothing of what it was meant for
        if done.returncode == 1:
            failed = next((line for line in done.stdout.splitlines() if line.startswith("FAILED ")), "unit tests")
            return "unit: " + failed.removeprefix("FAILED ").split("::")[-1].split(" - ")[0], time.monotonic() - began
    return None, time.monotonic() - began


def main() -> int:
    """Run all, print the table, write it where asked to; 1 when one survived."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", default="", help="those whose description holds this")
    parser.add_argument("--primitive", default="", help="those that are looked for in the worlds of this one")
    parser.add_argument("--markdown", type=Path, default=None)
    options = parser.parse_args()
    chosen = [
        mutant for mutant in MUTANTS if options.only in mutant.what and options.primitive in ("", mutant.primitive)
    ]
    with ThreadPoolExecutor(options.jobs) as pool:
        results = list(pool.map(seen, chosen))
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

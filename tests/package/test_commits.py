"""Subjects of commits: imperative, at most 72 characters, one change each (CONTRIBUTING.md, "Commits").

Looks at the commits since the rule was written down. Where they are not there (a tarball, a shallow clone), there is
nothing to look at.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
#: The last commit before the rule. A bad subject that has been pushed cannot be changed any more: move this past it.
BASE = "31dd5f61afea4ef3f862dacf5d245ad58a0c6334"
LONGEST = 72
#: Verbs that only look like "Fixed", "Fixes" or "Fixing".
IMPERATIVE = {
    *("access", "address", "bless", "bring", "bypass", "compress", "discuss", "embed", "exceed", "express", "feed"),
    *("focus", "miss", "need", "pass", "press", "proceed", "process", "seed", "speed", "string", "succeed", "suppress"),
    *("toss", "guess", "progress", "regress", "shed", "spread", "wring", "ring", "cross", "dismiss", "harness"),
}


def problems(subject: str) -> list[str]:
    """Return what is wrong with a subject; a prefix such as "fix(barrier): " is allowed."""
    found = []
    if len(subject) > LONGEST:
        found.append(f"{len(subject)} characters, at most {LONGEST} are allowed")
    text = re.sub(r"^[a-z]+(\([\w./-]+\))?!?: ", "", subject)
    first = text.split(" ")[0].lower()
    if re.search(r"(ed|ing|[^s]s)$", first) and first not in IMPERATIVE:
        found.append(f"{first!r} is not in the imperative")
    if ";" in text:
        found.append("';' joins several changes: make several commits")
    if text.endswith("."):
        found.append("ends with a full stop")
    return found


def git(*args: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "-C", str(ROOT), *args]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_subjects_of_new_commits() -> None:
    if shutil.which("git") is None or git("merge-base", "--is-ancestor", BASE, "HEAD").returncode != 0:
        pytest.skip("the history is not here: no git, a tarball or a shallow clone")
    log = git("log", "--no-merges", "--format=%h %s", f"{BASE}..HEAD")
    assert log.returncode == 0, log.stderr
    wrong = {line: found for line in log.stdout.splitlines() if (found := problems(line.partition(" ")[2]))}
    assert wrong == {}


@pytest.mark.parametrize(
    "subject",
    [
        "Refuse late requests of a finished barrier generation",
        "fix(barrier): refuse late requests of a finished generation",
        "Address every server by its name",
        "Pass the deadline on",
        "x" * LONGEST,
    ],
)
def test_good_subjects(subject: str) -> None:
    assert problems(subject) == []


@pytest.mark.parametrize(
    ("subject", "problem"),
    [
        ("x" * (LONGEST + 1), "73 characters"),
        ("Fixed the barrier", "imperative"),
        ("fix(barrier): fixes late requests", "imperative"),
        ("Refusing late requests", "imperative"),
        ("Faults of the process", "imperative"),
        ("Refuse late requests; bound the queue", "several"),
        ("Refuse late requests.", "full stop"),
    ],
)
def test_bad_subjects(subject: str, problem: str) -> None:
    assert [found for found in problems(subject) if problem in found] != []

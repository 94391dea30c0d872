"""The suites of redis-py and python-redis-lock, run on the drop-ins. They are fetched when they run.

What fails is known by name, and the page says why: more must not fail, and what does not fail any more has to go.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from xml.etree import ElementTree

import pytest

from holdfast import embedded
from testbed import servers

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "drop-ins.md"
#: What pip may take, and a suite on a busy machine, s.
FETCH_S, SUITE_S = 120.0, 500.0

#: Tests of redis-py that cannot pass, by the file they are in.
REDIS_PY = {
    "tests.test_lock.TestLock": {
        "test_lock",
        "test_lock_token",
        "test_lock_token_thread_local_false",
        "test_blocking_timeout",
        "test_context_manager_blocking_timeout",
    },
    "tests.test_asyncio.test_lock.TestLock": {
        "test_lock",
        "test_lock_token",
        "test_lock_token_thread_local_false",
        "test_blocking_timeout",
    },
}
#: Tests of python-redis-lock that cannot pass.
PYTHON_REDIS_LOCK = {
    "tests.test_redis_lock": {
        "test_simple_auto_renewal",
        "test_no_auto_renewal",
        "test_auto_renewal",
        "test_auto_renewal_stops_after_gc",
        "test_no_overlap2",
    }
}
#: Of these, one that counts what happens within a second, and on a busy machine that is too little for it to fail.
SOMETIMES = {"tests.test_redis_lock.test_no_overlap2"}


def pip(*words: str) -> None:
    """Run it, as this machine's pip is set up; without a network the test is skipped."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_S, check=False)
    if done.returncode and ("No matching distribution" in done.stderr or "onnection" in done.stderr):
        pytest.skip(f"pip cannot fetch the suite: {done.stderr.strip()[-200:]}")
    assert done.returncode == 0, done.stderr


def fetched(folder: Path, project: str, *needs: str) -> Path:
    """A folder with the `tests` of the installed version; what these need is installed in `needs` beside them."""
    pip("download", "-q", "--no-deps", "--no-binary", ":all:", "-d", str(folder), f"{project}=={version(project)}")
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as files:
        members = [
            member for member in files.getmembers() if "/tests/" in member.name or member.name.endswith("/tests")
        ]
        top = members[0].name.split("/")[0]
        files.extractall(folder, members, filter="data")
    pip("install", "-q", "--no-deps", "--target", str(folder / "needs"), *needs)
    (folder / "shim").mkdir()
    return folder / top


def outcomes(suite: Path, path: Sequence[Path], words: Sequence[str], **environment: str) -> dict[str, bool]:
    """Run it; whether each test has passed, by `file.class.name[parameters]`. What is skipped is not in it."""
    report = suite / "report.xml"
    environment = {**os.environ, **environment, "PYTHONPATH": os.pathsep.join(map(str, path))}
    command = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "--rootdir", str(suite), f"--junitxml={report}"]
    done = subprocess.run(
        [*command, *words], cwd=suite, env=environment, capture_output=True, text=True, timeout=SUITE_S, check=False
    )
    assert report.exists(), f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return {
        f"{case.get('classname')}.{case.get('name')}": case.find("failure") is None and case.find("error") is None
        for case in ElementTree.parse(report).iter("testcase")
        if case.find("skipped") is None
    }


def compare(found: dict[str, bool], known: dict[str, set[str]], least: int) -> None:
    wanted = {f"{file}.{name}" for file, names in known.items() for name in names}
    failed = {test for test, passed in found.items() if not passed}
    assert {re.sub(r"\[.*", "", test) for test in failed} | (wanted & SOMETIMES) == wanted, sorted(failed)
    passed = len(found) - len(failed)
    print(f"{passed} passed, {len(failed)} failed, all of them known")
    assert passed >= least, sorted(found)


@pytest.mark.thorough
@pytest.mark.timeout(700)
def test_the_suite_of_redis_py(valkey_server: embedded.Server, tmp_path: Path) -> None:
    suite = fetched(tmp_path, "redis", "pytest-asyncio")
    (tmp_path / "shim" / "on_holdfast.py").write_text(
        "import redis.asyncio.lock, redis.lock\n"
        "import holdfast.compat.redis.asyncio\n"
        "redis.lock.Lock = holdfast.compat.redis.Lock\n"
        "redis.asyncio.lock.Lock = holdfast.compat.redis.asyncio.Lock\n"
    )
    found = outcomes(
        suite,
        [tmp_path / "needs", tmp_path / "shim"],
        [
            *("-p", "on_holdfast", "-p", "pytest_asyncio", "-o", "asyncio_mode=auto"),
            *("--redis-url", valkey_server.url, "tests/test_lock.py", "tests/test_asyncio/test_lock.py"),
        ],
    )
    compare(found, REDIS_PY, 75)


@pytest.mark.thorough
@pytest.mark.timeout(700)
def test_the_suite_of_python_redis_lock(tmp_path: Path) -> None:
    """Without what fails on its own lock, too: eventlet, and (on a busy machine) what measures half seconds."""
    program = servers.executable("redis62")
    if isinstance(program, str):
        pytest.skip(program)
    suite = fetched(tmp_path, "python-redis-lock", *("process-tests", "django", "django-redis", "asgiref", "sqlparse"))
    shim = tmp_path / "shim" / "redis_lock"
    shim.mkdir()
    (shim / "__init__.py").write_text("from holdfast.compat.redis_lock import *\n")
    (shim / "django_cache.py").write_text("from holdfast.compat.redis_lock.django_cache import *\n")
    found = outcomes(
        suite,
        [tmp_path / "shim", suite / "tests", tmp_path / "needs"],
        ["tests", "-k", "not eventlet and not test_signal_expiration", "-n", "3"],
        DJANGO_SETTINGS_MODULE="test_project.settings",
        PYTHONUNBUFFERED="yes",
        PATH=f"{program.parent}{os.pathsep}{os.environ['PATH']}",
    )
    compare(found, PYTHON_REDIS_LOCK, 135)


@pytest.mark.parametrize("known", [REDIS_PY, PYTHON_REDIS_LOCK], ids=["redis-py", "python-redis-lock"])
def test_the_page_says_why(known: dict[str, set[str]]) -> None:
    for page in (PAGE, PAGE.with_suffix(".zh-CN.md")):
        text = page.read_text(encoding="utf-8")
        assert [name for names in known.values() for name in names if f"`{name}`" not in text] == []


def test_a_suite_that_fails_otherwise_is_noticed() -> None:
    known = {"a": {"x"}}
    compare({"a.x[1]": False, "a.y": True}, known, 1)
    for found in ({"a.x": True, "a.y": True}, {"a.x": False, "a.y": False}, {"a.x": False}):
        with pytest.raises(AssertionError):
            compare(found, known, 1)

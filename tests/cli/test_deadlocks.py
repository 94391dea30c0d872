"""`holdfast deadlocks`, and what it says of processes that wait for each other."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import holdfast as library
from holdfast import embedded
from holdfast.cli.deadlocks import _lines
from holdfast.cli.report import clean
from testbed.waiting import PATIENCE_S
from tests.support.commands import holdfast, wait_for

#: Holds the first name, says so, and waits for the second when it is told to.
_PARTY = """
import sys
import holdfast
url, first, second, check = sys.argv[1:]
with holdfast.connect(url) as locks, locks.lock(first):
    print("holds", flush=True)
    sys.stdin.readline()
    try:
        with locks.lock(second).acquire(timeout=300, deadlock_check=float(check) if check else None):
            print("got it")
    except holdfast.DeadlockDetected as error:
        print("gave up:", *(party.name for party in error.deadlock.parties))
"""


def parties(url: str, names: list[str], check: str) -> list[subprocess.Popen[str]]:
    """Processes, each of which holds a name and waits for the next one."""
    started = [
        subprocess.Popen(
            [sys.executable, "-c", _PARTY, url, name, names[at + 1 - len(names)], check],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for at, name in enumerate(names)
    ]
    for process in started:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == "holds\n"
    for process in started:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    return started


def end(processes: list[subprocess.Popen[str]]) -> None:
    for process in processes:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("many", [2, 3])
def test_of_several_processes_one_gives_up(valkey_server: embedded.Server, unique_name: str, many: int) -> None:
    names = [f"{unique_name}-{number}" for number in range(many)]
    processes = parties(valkey_server.url, names, "1.0")
    try:
        said = [process.communicate(timeout=PATIENCE_S)[0].split(":") for process in processes]
    finally:
        end(processes)
    assert sorted(first for first, *_ in said) == ["gave up"] + ["got it\n"] * (many - 1)
    (circle,) = (rest[0].split() for _, *rest in said if rest)
    assert sorted(circle) == names


def test_a_deadlock_that_stands_is_shown(valkey_server: embedded.Server, unique_name: str) -> None:
    url = valkey_server.url
    names = [f"{unique_name}-a", f"{unique_name}-b\x1b"]
    processes = parties(url, names, "")
    try:
        with library.connect(url) as client:
            wait_for(lambda: all(client.lock(name).waiters() == 1 for name in names), "both wait")
        shown = holdfast("deadlocks", url=url)
        told = holdfast("deadlocks", "--json", url=url)
        processes[0].kill()
        with library.connect(url) as client:
            # It waits no more, though its lease is there.
            wait_for(lambda: client.deadlocks() == (), "its connection is gone")
        gone = holdfast("deadlocks", url=url)
    finally:
        end(processes)
    assert shown.returncode == told.returncode == 1 and shown.stderr == b""
    text = shown.stdout.decode()
    assert "deadlock 1: 2 parties" in text and names[0] in text and "\x1b" not in text
    report = json.loads(told.stdout)
    assert (report["version"], report["command"], report["ok"]) == (1, "deadlocks", True)
    (found,) = report["deadlocks"]
    assert {party["name"] for party in found["parties"]} == set(names)
    first, second = found["parties"]
    assert (first["held_name"], second["held_name"]) == (second["name"], first["name"])
    assert first["pid"] != second["pid"]
    assert (gone.returncode, gone.stdout) == (0, b"no deadlock\n")


def test_who_holds_what_waits_for_what_and_where() -> None:
    """All that can be known of a party, and one of which nothing is."""
    known = library.DeadlockParty(
        "t1", "semaphore", "s", 4.25, "lock", "a\x1b", "t2", True, "7", "h", 11, "app", "app.py:3 in f", 9.5
    )
    reader = library.DeadlockParty("t3", "lock", "a", 1.0, "rwlock", "s", "t1", False, "")
    lines = [clean(line) for line in _lines([library.Deadlock((known, reader)), library.Deadlock((known,))])]
    assert lines == [
        "deadlock 1: 2 parties that wait for each other",
        "  1. app (h, pid 11, thread or task 7)",
        r"     holds     lock a\x1b",
        "     waits for semaphore s, for 4.2 s, for another 9.5 s at most",
        "     at        app.py:3 in f",
        "  2. token t3",
        "     stands before in the queue of rwlock s",
        "     waits for lock a, for 1.0 s",
        "",
        "deadlock 2: one party that waits for itself",
        *lines[1:5],
    ]


def test_no_server() -> None:
    done = holdfast("deadlocks", "--json", url="redis://127.0.0.1:1")
    assert done.returncode == 69 and json.loads(done.stdout)["error"]["exit"] == 69

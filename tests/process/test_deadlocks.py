"""Deadlocks of two real processes, one of each API, by everything that can be in one: exactly one of them gives up."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import pytest

import holdfast
from holdfast import embedded
from testbed.waiting import PATIENCE_S, eventually

#: Takes what it is told, says so, and takes one thing more when it is told to; then it says what came of it.
_PARTY = """
import asyncio
import dataclasses
import importlib
import json
import os
import sys

import holdfast
from tests.support.steps import arun_steps, run_steps

api, url, check, wants, *holds = sys.argv[1:]


def party(locks, pause):
    held, told = [], None
    for each in holds:
        held.append((yield eval(each)))
    print("holds", flush=True)
    yield pause()
    try:
        held.append((yield eval(wants)))
    except holdfast.DeadlockDetected as error:
        told = dataclasses.asdict(error.deadlock)
    while held:
        yield held.pop().release()
    print(json.dumps({"pid": os.getpid(), "told": told}))


async def tasks(locks):
    await arun_steps(party(locks, lambda: asyncio.to_thread(sys.stdin.readline)))
    await locks.close()


locks = importlib.import_module(api).connect(url, deadlock_check=float(check) if check else None)
if api == "holdfast":
    run_steps(party(locks, sys.stdin.readline))
    locks.close()
else:
    asyncio.run(tasks(locks))
"""
_APIS = ("holdfast", "holdfast.asyncio")
Start: TypeAlias = Callable[..., subprocess.Popen[str]]

#: Two names are P and Q: (what each of the two holds, and last what it waits for), kinds of what is waited for.
CIRCLES: dict[str, tuple[list[str], list[str], set[str]]] = {
    "reentrant locks": (
        ["locks.lock(P, reentrant=True).acquire()"] * 2 + ["locks.lock(Q, reentrant=True).acquire()"],
        ["locks.lock(Q, reentrant=True).acquire()"] * 2 + ["locks.lock(P, reentrant=True).acquire()"],
        {"lock"},
    ),
    "a semaphore": (
        ["locks.semaphore(P, 2).acquire(permits=2)", "locks.lock(Q).acquire()"],
        ["locks.lock(Q).acquire()", "locks.semaphore(P, 2).acquire()"],
        {"lock", "semaphore"},
    ),
    "one permit each, and one more": (
        ["locks.semaphore(P, 2).acquire()", "locks.semaphore(P, 2).acquire()"],
        ["locks.semaphore(P, 2).acquire()", "locks.semaphore(P, 2).acquire()"],
        {"semaphore"},
    ),
    "readers that want to write": (
        ["locks.rwlock(P).read().acquire()", "locks.rwlock(Q).write().acquire()"],
        ["locks.rwlock(Q).read().acquire()", "locks.rwlock(P).write().acquire()"],
        {"rwlock"},
    ),
    "writers that want to read": (
        ["locks.rwlock(P).write().acquire()", "locks.rwlock(Q).read().acquire()"],
        ["locks.rwlock(Q).write().acquire()", "locks.rwlock(P).read().acquire()"],
        {"lock"},  # what a writer holds is listed as the lock of that name
    ),
    "an upgrade": (
        ["locks.rwlock(P).read().acquire()", "locks.lock(Q).acquire()", "held[0].upgrade()"],
        ["locks.rwlock(P).read().acquire()", "locks.lock(Q).acquire()"],
        {"lock", "rwlock"},
    ),
    "an election": (
        ["locks.election(P).campaign()", "locks.lock(Q).acquire()"],
        ["locks.lock(Q).acquire()", "locks.election(P).campaign()"],
        {"lock", "election"},
    ),
}


@pytest.fixture
def start(valkey_server: embedded.Server, unique_name: str) -> Iterator[Start]:
    """`start(api, check, steps)`: a process that has taken all but the last of these."""
    started: list[subprocess.Popen[str]] = []

    def begin(api: str, check: str, steps: Sequence[str]) -> subprocess.Popen[str]:
        *holds, wants = (
            each.replace("P", repr(f"{unique_name}-p")).replace("Q", repr(f"{unique_name}-q")) for each in steps
        )
        process = subprocess.Popen(
            [sys.executable, "-c", _PARTY, api, valkey_server.url, check, wants, *holds],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "holds\n"
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def go_on(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def end_of(process: subprocess.Popen[str]) -> Any:
    said = json.loads(process.communicate(timeout=2 * PATIENCE_S)[0])
    assert process.returncode == 0
    return said


@pytest.mark.parametrize("circle", CIRCLES)
def test_of_two_processes_one_gives_up(
    valkey_server: embedded.Server, start: Start, unique_name: str, circle: str
) -> None:
    *steps, kinds = CIRCLES[circle]
    processes = [start(api, "0.5", each) for api, each in zip(_APIS, steps, strict=True)]
    for process in processes:
        go_on(process)
    ends = [end_of(process) for process in processes]
    (told,) = (each for each in ends if each["told"])
    parties = told["told"]["parties"]
    assert parties[0]["pid"] == told["pid"], "it begins with the one that gave up"
    assert {party["pid"] for party in parties} == {process.pid for process in processes}
    first, second = parties
    assert (first["held_kind"], first["held_name"]) == (second["kind"], second["name"])
    assert (second["held_kind"], second["held_name"]) == (first["kind"], first["name"])
    assert {party["kind"] for party in parties} == kinds and all(party["holds"] for party in parties)
    with holdfast.connect(valkey_server.url) as locks:
        assert not [found for found in locks.deadlocks() if unique_name in str(found)]


def test_a_reader_behind_a_writer_and_the_end_that_a_break_makes(
    valkey_server: embedded.Server, start: Start, unique_name: str
) -> None:
    """A reader keeps a writer out, behind which another reader waits that holds what the first one wants."""
    reads, writes = "locks.rwlock(P).read().acquire()", "locks.rwlock(P).write().acquire()"
    lock = "locks.lock(Q).acquire()"
    with holdfast.connect(valkey_server.url) as locks:
        reader, late = start(_APIS[0], "", [reads, lock]), start(_APIS[1], "", [lock, reads])
        writer = start(_APIS[0], "", [writes])
        shared = locks.rwlock(f"{unique_name}-p")
        for number, process in enumerate((writer, late), 1):
            go_on(process)
            eventually(lambda number=number: shared.waiters() == number)  # type: ignore[misc]

        def found() -> list[holdfast.Deadlock]:
            return [each for each in locks.deadlocks() if unique_name in str(each)]

        assert found() == [], "the reader may end"
        go_on(reader)
        eventually(found)
        (deadlock,) = found()
        by_pid = {party.pid: party for party in deadlock.parties}
        assert set(by_pid) == {reader.pid, late.pid, writer.pid} and len(deadlock.parties) == 3
        assert {pid: party.holds for pid, party in by_pid.items()} == {
            reader.pid: True,
            late.pid: True,
            writer.pid: False,
        }
        assert locks.break_(f"{unique_name}-q", reason="to end the deadlock")
        eventually(lambda: not found())
        assert end_of(reader)["told"] is None and end_of(writer)["told"] is None

"""The runbook of docs/operations.md, as someone follows it who knows no more than the name of a lock."""

from __future__ import annotations

import itertools
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import redis

import holdfast as library
from holdfast import embedded
from testbed.servers import unique
from testbed.waiting import stop
from tests.support.commands import PATIENCE_S, holdfast, started, wait_for

PAGE = Path(__file__).resolve().parents[2] / "docs" / "operations.md"
#: Holds the first name until that is lost, and waits for the second if there is one; says what is logged.
_HOLDER = """
import logging
import sys

import holdfast


class Say(logging.Handler):
    def emit(self, record):
        print(record.holdfast_event, getattr(record, "holdfast_reason", ""), flush=True)


def stuck_here(lease):
    lease.lost.wait()


logging.getLogger("holdfast").addHandler(Say(logging.WARNING))
url, ttl, name, *more = sys.argv[1:]
with holdfast.connect(url, ttl=float(ttl)) as locks:
    lease = locks.lock(name).acquire()
    print("holds", flush=True)
    for other in more:
        sys.stdin.readline()
        locks.lock(other).acquire().release()
        print("got", other, flush=True)
    stuck_here(lease)
"""
Start: TypeAlias = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def url(valkey_server: embedded.Server) -> str:
    return valkey_server.url


@pytest.fixture
def start(url: str) -> Iterator[Start]:
    """`start(ttl, name, …)`: a process that holds it."""
    running: list[subprocess.Popen[str]] = []

    def begin(ttl: float, *names: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", _HOLDER, url, str(ttl), *names]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        running.append(process)
        assert line_of(process) == "holds"
        return process

    yield begin
    for process in running:
        process.kill()
        process.communicate()


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().rstrip()


def go_on(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def said(*words: str, url: str) -> str:
    done = holdfast(*words, url=url)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode()


def test_it_names_these_commands() -> None:
    """Return the commands that are tried below, and the page, which `tests/web` tries."""
    section = PAGE.read_text(encoding="utf-8").partition("\n## Runbook")[2]
    assert set(re.findall(r"`(holdfast [^`]+)`", section)) == {
        *("holdfast status NAME", "holdfast watch NAME", "holdfast top --sort waiters", "holdfast doctor"),
        *("holdfast deadlocks", "holdfast web"),
    }


def test_a_lock_is_stuck(url: str, start: Start, unique_name: str, tmp_path: Path) -> None:
    holder = start(9, unique_name)
    in_turn = tmp_path / "in turn"
    with started("run", unique_name, "--", "touch", str(in_turn), url=url) as waiting:
        wait_for(lambda: "waiters        1\n" in said("status", unique_name, url=url), "it waits")
        status = said("status", unique_name, url=url)
        assert f"{socket.gethostname()}, pid {holder.pid}\n" in status and "\nsince " in status
        left: list[float] = []

        def renewed() -> bool:
            (found,) = re.findall(r"\nremaining +([\d.]+) s", said("status", unique_name, url=url))
            left.append(float(found))
            return any(later > before for before, later in itertools.pairwise(left))

        wait_for(renewed, "its process lives and renews")
        with started("watch", unique_name, url=url) as watching:
            assert watching.stdout is not None
            assert f"pid {holder.pid}".encode() in watching.stdout.readline()
            said("break", "--yes", "--reason", "stuck", unique_name, url=url)
            moves = b"".join(watching.stdout.readline() for _ in range(2))
            assert b"stuck" in moves
        assert re.fullmatch(r"lost broken by .*: stuck", line_of(holder))
        assert waiting.wait(PATIENCE_S) == 0 and in_turn.exists()


def test_many_wait(url: str, start: Start, unique_name: str) -> None:
    names = [f"{unique_name}-few", f"{unique_name}-many"]
    for name in names:
        start(600, name)
    for name, many in zip(names, (1, 3), strict=True):
        for _ in range(many):
            go_on(start(600, unique(f"{name}-"), name))
    with library.connect(url) as client:
        wait_for(lambda: [client.lock(name).waiters() for name in names] == [1, 3], "all wait")
    shown = said("top", "--once", "--sort", "waiters", url=url)
    assert shown.index(names[1]) < shown.index(names[0])


def test_leases_get_lost(url: str, start: Start, unique_name: str) -> None:
    look: Any = redis.Redis.from_url(url)
    key = f"holdfast:{{{unique_name}}}"
    holder = start(1, unique_name)
    stop(holder.pid)
    wait_for(lambda: not look.exists(key), "its time is over")
    holder.send_signal(signal.SIGCONT)
    assert line_of(holder) == "lost expired"
    holder = start(9, unique_name)  # a renewal finds it, long before its time is over
    look.delete(key)
    assert line_of(holder) == "lost taken"
    look.close()
    assert "a restart forgets the locks that are held" in said("doctor", url=url)


def test_a_deadlock(url: str, start: Start, unique_name: str) -> None:
    names = [f"{unique_name}-a", f"{unique_name}-b"]
    one, two = start(600, *names), start(600, *reversed(names))
    for process in (one, two):
        go_on(process)
    wait_for(lambda: unique_name in holdfast("deadlocks", url=url).stdout.decode(), "both wait")
    assert holdfast("deadlocks", url=url).returncode == 1
    said("break", "--yes", names[0], url=url)
    assert line_of(one).startswith("lost broken by")
    assert line_of(two) == f"got {names[0]}"
    wait_for(lambda: unique_name not in holdfast("deadlocks", url=url).stdout.decode(), "it has ended")

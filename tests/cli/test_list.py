"""`holdfast list`: for people, and the JSON contract for programs."""

from __future__ import annotations

import io
import json
import os
import socket
import sys

import pytest

import holdfast as library
from holdfast import embedded
from holdfast.cli.report import clean
from holdfast.cli.table import table
from tests.support.commands import holdfast, started, wait_for

#: What is told of one, whichever command does.
HOLDER = {
    *("token", "holdfast", "host", "pid", "program", "client_since", "note", "since", "remaining_s", "fencing_token"),
    "gone",
}


def test_what_is_held_and_waited_for(valkey_server: embedded.Server, unique_name: str) -> None:
    url = valkey_server.url
    one, other = f"{unique_name}-one", f"{unique_name}-other"
    with library.connect(url, ttl=60) as client, client.lock(one) as lease, client.semaphore(other, 2):
        with started("run", one, "--", "true", url=url):
            wait_for(lambda: client.lock(one).waiters() == 1, "someone waits")
            said = holdfast("list", f"{unique_name}-*", url=url).stdout.decode()
            waiting = holdfast("list", f"{unique_name}-*", "--waiting", url=url).stdout.decode()
            done = holdfast("list", f"{unique_name}-*", "--json", url=url)
            lease.release()
    assert [line.split()[:2] for line in said.splitlines()[:3]] == [
        ["KIND", "NAME"],
        ["lock", one],
        ["semaphore", other],
    ]
    assert said.count(f"({socket.gethostname()}, pid {os.getpid()})") == 2
    assert said.endswith("2 in all, 2 held, 1 waiter\n")
    assert one in waiting and other not in waiting and "  1. " in waiting
    assert (done.returncode, done.stderr, done.stdout.count(b"\n")) == (0, b"", 1)
    report = json.loads(done.stdout)
    assert (report["version"], report["command"], report["ok"], report["pattern"]) == (
        1,
        "list",
        True,
        f"{unique_name}-*",
    )
    (lock,) = (each for each in report["locks"] if each["kind"] == "lock")
    assert set(lock) == {
        *("kind", "name", "held", "holder", "holders", "hold_s", "remaining_s", "waiters", "queue", "oldest_s"),
        *("fencing_token", "permits", "odd"),
    }
    assert lock["holder"] == lock["holders"][0] and 0 < lock["remaining_s"] <= 60 and lock["oldest_s"] >= 0
    assert (lock["name"], lock["held"], lock["waiters"], lock["fencing_token"]) == (one, 1, 1, lease.fencing_token)
    assert set(lock["holders"][0]) == HOLDER
    assert lock["holders"][0]["token"] == lease.token
    assert set(lock["queue"][0]) == {"token", "host", "pid", "program", "age_s"}


def test_nothing_to_list(valkey_server: embedded.Server, unique_name: str) -> None:
    done = holdfast("list", unique_name, url=valkey_server.url)
    assert (done.returncode, done.stdout) == (0, b"no lock is held or waited for\n")
    done = holdfast("list", unique_name, "--waiting", url=valkey_server.url)
    assert (done.returncode, done.stdout) == (0, b"no lock is waited for\n")


def test_no_server() -> None:
    done = holdfast("list", "--json", url="redis://127.0.0.1:1")
    assert done.returncode == 69 and json.loads(done.stdout)["error"]["exit"] == 69


def test_names_cannot_write_to_the_terminal(valkey_server: embedded.Server, unique_name: str) -> None:
    with library.connect(valkey_server.url) as client, client.lock(f"{unique_name}\x1b[31mred\n"):
        said = holdfast("list", f"{unique_name}*", url=valkey_server.url).stdout.decode()
    assert "\x1b" not in said and len(said.splitlines()) == 4


def test_what_is_widest_is_cut_first() -> None:
    """A long name leaves room for its holder."""
    rows = [("NAME", "HELD BY", "LEFT"), ("x" * 100, "worker.py (web1, pid 981)", "1 s")]
    head, line = table(rows, 60, cut=(1, 0))
    assert len(head) <= 60 and len(line) <= 60
    assert "worker.py (web1, pid 981)" in line and line.startswith("x" * 24)
    _, line = table(rows, 40, cut=(1, 0))
    assert len(line) <= 40 and "worker.py (" in line and "xxxxxxxxxx" in line
    assert table(rows, None, cut=(1, 0))[1] == "  ".join(rows[1])


def test_columns_stay_where_the_output_has_no_such_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), "ascii"))
    names = [clean(each) for each in ("a", "锁", "x" * 50)]
    assert names[1] == "\\u9501"
    lines = table([("NAME", "LEFT"), *((name, "1 s") for name in names)], 30, cut=(0,))
    assert [line.index("1 s") for line in lines[1:]] == [lines[0].index("LEFT")] * 3
    assert "".join(lines).isascii() and max(map(len, lines)) <= 30


def test_a_long_name_moves_no_other_line_where_nothing_is_cut() -> None:
    head, line, long = table([("NAME", "LEFT"), ("short", "1 s"), ("x" * 400, "2 s")], None)
    assert (head.index("LEFT"), line.index("1 s")) == (50, 50)
    assert long == "x" * 400 + "  2 s"

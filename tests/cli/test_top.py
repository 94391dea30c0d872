"""`holdfast top`: on a terminal a live table, elsewhere one table."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest

import holdfast as library
from holdfast import embedded
from holdfast.cli.top import _Looks
from holdfast.web.rates import Rates
from tests.support.commands import PATIENCE_S, holdfast, started, wait_for


class Screen:
    """A terminal with `holdfast top` in it."""

    def __init__(self, process: subprocess.Popen[bytes], master: int, slave: int) -> None:
        self.process, self.master, self.slave = process, master, slave
        self.seen = ""

    def until(self, text: str, lines: int | None = None) -> list[str]:
        """The lines that were drawn last, once that is in them, and they are that many."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            drawn = self.seen.rpartition("\x1b[H")[2]
            plain = re.sub(r"\x1b\[[?0-9;]*[a-zA-Z]", "", drawn).splitlines()
            whole = drawn.endswith(("\x1b[J", "\x1b[?1049l")) and lines in (None, len(plain))
            if text in drawn and whole:
                return plain
            assert time.monotonic() < deadline, self.seen[-2000:]
            if select.select([self.master], [], [], 0.1)[0]:
                self.seen += os.read(self.master, 65536).decode()

    def resize(self, lines: int, columns: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.process.send_signal(signal.SIGWINCH)

    def modes(self) -> list[object]:
        return termios.tcgetattr(self.slave)


@contextmanager
def screen(*words: str, url: str) -> Iterator[Screen]:
    master, slave = pty.openpty()
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", 20, 200, 0, 0))
    environment = {**os.environ, "HOLDFAST_URL": url}
    environment.pop("COLUMNS", None)
    environment.pop("LINES", None)
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast", "top", *words], stdin=slave, stdout=slave, stderr=slave, env=environment
    )
    try:
        yield Screen(process, master, slave)
    finally:
        process.kill()
        process.wait()
        os.close(master)
        os.close(slave)


def test_a_terminal(valkey_server: embedded.Server, unique_name: str) -> None:
    url = valkey_server.url
    with library.connect(url) as client, screen(f"{unique_name}*", "--interval", "100ms", url=url) as top:
        before = top.modes()
        top.until("no lock is held")
        with client.lock(f"{unique_name}-a"), client.lock(f"{unique_name}-b"):
            with started("run", f"{unique_name}-b", "--", "true", url=url):
                wait_for(lambda: client.lock(f"{unique_name}-b").waiters() == 1, "there is a waiter")
                lines = top.until("1 waiter")
                assert [line.split()[1] for line in lines[3:5]] == [f"{unique_name}-b", f"{unique_name}-a"]
            os.write(top.master, b"h")
            top.until("by hold")
            top.resize(6, 60)
            assert max(map(len, top.until("by hold", lines=6))) <= 60
            top.resize(4, 60)  # no room for any of them, and still some are held
            assert "2 in all, 2 held" in (low := "".join(top.until("by hold", lines=4))) and "no lock" not in low
        os.write(top.master, b"q")
        assert top.process.wait(PATIENCE_S) == 0
        top.until("\x1b[?1049l")
        assert top.modes() == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_the_terminal_as_it_was(valkey_server: embedded.Server, number: signal.Signals) -> None:
    with screen("nothing-of-that-name", url=valkey_server.url) as top:
        before = top.modes()
        top.until("no lock is held")
        top.process.send_signal(number)
        assert top.process.wait(PATIENCE_S) == 128 + number
        top.until("\x1b[?25h")
        assert top.modes() == before


def test_a_server_that_is_gone_is_said_and_keys_work(private_server: Callable[..., embedded.Server]) -> None:
    server = private_server()
    with screen("--interval", "100ms", url=server.url) as top:
        top.until("no lock is held")
        server.close()
        top.until(" ! ")
        os.write(top.master, b"q")
        assert top.process.wait(PATIENCE_S) == 0


def test_one_table_and_json(valkey_server: embedded.Server, unique_name: str) -> None:
    url = valkey_server.url
    with library.connect(url) as client, client.lock(unique_name) as lease:
        said = holdfast("top", unique_name, url=url).stdout.decode().splitlines()
        assert said[0].split() == ["KIND", "NAME", "HELD", "BY", "FOR", "LEFT", "WAITERS", "OLDEST", "RATE"]
        assert said[1].split()[:2] == ["lock", unique_name] and said[-1] == "1 in all, 1 held, 0 waiters"
        nothing = holdfast("top", f"no-{unique_name}", url=url).stdout.decode().splitlines()
        assert nothing == ["no lock is held or waited for", "", "0 in all, 0 held, 0 waiters"]
        report = json.loads(holdfast("top", unique_name, "--once", "--json", url=url).stdout)
        assert (report["version"], report["command"], report["ok"]) == (1, "top", True)
        (row,) = report["locks"]
        assert (row["name"], row["holder"]["token"], row["takeovers_per_s"]) == (unique_name, lease.token, 0)


def test_takeovers_are_counted(valkey_server: embedded.Server, unique_name: str) -> None:
    url = valkey_server.url
    words = ("top", unique_name, "--json", "--interval", "200ms", "--sort", "rate")
    with library.connect(url) as client, started(*words, url=url) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["locks"] == []
        rate = 0.0
        for _ in range(3):
            with client.lock(unique_name) as lease:
                while not (rows := json.loads(process.stdout.readline())["locks"]) or (
                    rows[0]["holder"]["token"] != lease.token
                ):
                    pass
            rate = rows[0]["takeovers_per_s"]
        assert rate > 0


#: Grants of one lock a second, as regular as the machine allows; it prints when each came.
WORKER = """
import sys, time, holdfast
with holdfast.connect(sys.argv[1]) as locks:
    lock, at = locks.lock(sys.argv[2]), time.monotonic()
    while True:
        at += 1 / 130
        time.sleep(max(0.0, at - time.monotonic()))
        with lock as lease:
            sys.stdout.write(f"{lease.fencing_token}\\n")
            sys.stdout.flush()
            time.sleep(0.005)
"""


def test_130_grants_a_second_are_shown_within_a_tenth(valkey_server: embedded.Server, unique_name: str) -> None:
    url = valkey_server.url
    words = ("top", unique_name, "--json", "--interval", "300ms")
    command = [sys.executable, "-c", WORKER, url, unique_name]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker, started(*words, url=url) as process:
        assert process.stdout is not None and worker.stdout is not None
        granted: list[int] = []
        lines = worker.stdout
        threading.Thread(target=lambda: granted.extend(map(int, lines)), daemon=True).start()
        shown: list[tuple[int, float]] = []  # (fencing token at the look, which is a time; rate)
        began = time.monotonic()
        while len(shown) < 16 and time.monotonic() < began + 60:
            for row in json.loads(process.stdout.readline())["locks"]:
                if not row["at_least"] and row["takeovers_per_s"] and row["holder"]:
                    shown.append((granted[-1], row["takeovers_per_s"]))
        worker.kill()
    assert len(shown) == 16
    for at, rate in shown[5:]:
        begun = max(at - 10_000_000, shown[0][0] - 300_000)
        true = sum(begun < each <= at for each in granted) / ((at - begun) / 1e6)
        assert rate == pytest.approx(true, rel=0.1)


def test_a_renewal_in_a_long_list_is_no_takeover() -> None:
    """Holders stand in the order in which their leases end: a renewal brings one that was behind the cut into view."""
    permits = [library.Holder(f"{number:02}", True, 30.0, None, None) for number in range(20)]
    looks = iter([permits, permits[1:] + permits[:1], permits[2:] + permits[:2]])
    at = datetime.now(UTC)

    class Client:
        def list(self, pattern: str, *, grants: bool) -> list[library.Listed]:
            named = tuple(next(looks)[:16])
            return [library.Listed("semaphore", pattern, named, 20, (), 0, 7, 20, at)]

    client: Any = Client()
    seen = _Looks(client, "a")
    assert [rate for _ in range(3) for _, rate in seen.look()] == [(0.0, False)] * 3


def test_a_look_at_many_locks_drops_old_points_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dropping them goes through all locks: done for each lock, it took a second for 3,000."""
    at = datetime.now(UTC)
    dropped: list[float] = []

    class Client:
        def list(self, pattern: str, *, grants: bool) -> list[library.Listed]:
            return [library.Listed("lock", f"{pattern}{number}", (), 0, (), 1, 7, 0, at) for number in range(9)]

    client: Any = Client()
    seen = _Looks(client, "a")
    monkeypatch.setattr(Rates, "forget", lambda _self, now: dropped.append(now))
    assert len(seen.look()) == 9 and dropped == [at.timestamp()]


def test_what_is_wrong_is_said() -> None:
    assert holdfast("top", "--interval", "1ms").returncode == 64
    assert holdfast("top", "--sort", "name").returncode == 64
    assert holdfast("top", "--once", url="redis://127.0.0.1:1").returncode == 69
    assert json.loads(holdfast("top", "--json", url="redis://127.0.0.1:1").stdout)["error"]["exit"] == 69

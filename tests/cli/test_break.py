"""`holdfast break` and `holdfast ask`: exit statuses, what is shown first, and what becomes of commands."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast as library
from holdfast import embedded
from testbed.waiting import stop
from tests.support.commands import PATIENCE_S, holdfast, started, wait_for


@pytest.fixture
def url(valkey_server: embedded.Server) -> str:
    return valkey_server.url


def test_no_one_holds_it(url: str, unique_name: str) -> None:
    for command in (("break", "--yes"), ("ask",)):
        done = holdfast(*command, unique_name, url=url)
        assert (done.returncode, done.stdout.decode()) == (66, f"no one holds {unique_name}\n")


def test_a_command_is_killed_before_the_next_one_begins(url: str, unique_name: str, tmp_path: Path) -> None:
    held = tmp_path / "held"
    hold = f"trap '' TERM; echo $$ > {held}.new; mv {held}.new {held}; sleep 600"
    with started("run", unique_name, "--", "sh", "-c", hold, url=url, stderr=subprocess.PIPE) as first:
        wait_for(held.exists, "it runs")
        with started("run", unique_name, "--", "sh", "-c", f"kill -0 $(cat {held})", url=url) as second:
            with library.connect(url) as client:
                wait_for(lambda: client.lock(unique_name).waiters() == 1, "the other one waits")
            done = holdfast("break", unique_name, "--yes", "--reason", "it is late", "--json", url=url)
            report = json.loads(done.stdout)
            assert (done.returncode, report["ok"], report["kind"], report["forced"]) == (0, True, "lock", [])
            assert report["holders"][0]["program"] == f"holdfast run {unique_name} -- sh"
            assert first.wait(PATIENCE_S) == 76
            assert first.stderr is not None
            assert b"broken by holdfast break on" in (said := first.stderr.read()) and b": it is late)" in said
            assert second.wait(PATIENCE_S) == 1  # there was no such process any more


def test_only_the_holder_that_is_named(url: str, unique_name: str) -> None:
    with library.connect(url, ttl=600) as client:
        lease = client.lock(unique_name).acquire()
        done = holdfast("break", unique_name, "--yes", "--holder", str(lease.fencing_token - 1), "--json", url=url)
        assert done.returncode == 75
        assert [each["token"] for each in json.loads(done.stdout)["found"]] == [lease.token]
        assert lease.held
        assert holdfast("break", unique_name, "--yes", "--holder", str(lease.fencing_token), url=url).returncode == 0
        assert lease.lost.wait(PATIENCE_S)


def test_it_shows_the_holder_and_asks(url: str, unique_name: str) -> None:
    done = holdfast("break", unique_name, url=url, stdin=subprocess.DEVNULL)
    assert done.returncode == 64 and b"--yes" in done.stderr
    with library.connect(url, ttl=600) as client:
        lease = client.lock(unique_name).acquire()
        assert answered(url, unique_name, b"n\n", lease.token) == 75
        assert lease.held
        assert answered(url, unique_name, b"y\n", lease.token) == 0
        assert lease.lost.wait(PATIENCE_S)


def test_who_comes_after_the_holder_that_was_shown_keeps_it(url: str, unique_name: str) -> None:
    """The lock changes hands while the question is on the terminal."""
    with library.connect(url, ttl=600) as client:
        shown = client.lock(unique_name).acquire()
        following: list[library.Lease] = []

        def hand_on() -> None:
            shown.release()
            following.append(client.lock(unique_name).acquire())

        assert answered(url, unique_name, b"y\n", shown.token, hand_on) == 75
        (lease,) = following
        assert lease.fencing_token > shown.fencing_token
        lease.release()  # raises if it was broken


def answered(url: str, name: str, answer: bytes, shown: str, meanwhile: Callable[[], None] = lambda: None) -> int:
    """Return the exit status on a terminal where that is typed when the holder was shown, and `meanwhile` was done."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "holdfast", "break", name, "--url", url]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        said = b""
        while b"[y/N]" not in said:
            said += os.read(ours, 4096)
        assert shown in said.decode()
        meanwhile()
        os.write(ours, answer)
        status = process.wait(PATIENCE_S)
    os.close(ours)
    return status


def test_a_command_gets_a_signal_when_its_lock_is_wanted(url: str, unique_name: str, tmp_path: Path) -> None:
    ready, asked = tmp_path / "ready", tmp_path / "asked"
    script = f"trap 'touch {asked}; exit 5' USR1; touch {ready}; while :; do sleep 0.02; done"
    run = ("run", "--on-wanted", "usr1", unique_name, "--", "sh", "-c", script)
    with started(*run, url=url, stderr=subprocess.PIPE) as process:
        wait_for(ready.exists, "it runs")
        wait_for(lambda: holdfast("ask", unique_name, "--reason", "please", url=url).returncode == 0, "it hears")
        assert process.wait(PATIENCE_S) == 5
        assert asked.exists()
        assert process.stderr is not None and b"wanted by holdfast ask on" in process.stderr.read()
    assert holdfast("run", "--on-wanted", "no-such", unique_name, "--", "true", url=url).returncode == 64


def test_on_a_terminal_it_says_what_it_waits_for(url: str, unique_name: str) -> None:
    ours, theirs = pty.openpty()
    with library.connect(url, ttl=600) as client:
        lease = client.lock(unique_name).acquire()
        command = [sys.executable, "-m", "holdfast", "run", "--url", url, unique_name, "--", "true"]
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=theirs) as process:
            os.close(theirs)
            said = ""
            while "held by" not in said or not said.endswith("\n"):
                said += os.read(ours, 4096).decode()
            # On a busy machine it may say first that the server does not answer.
            line = said.splitlines()[-1]
            assert line.startswith(f"holdfast: waiting for lock '{unique_name}', held by ")
            assert f", pid {os.getpid()} (" in line and "\x1b" not in said
            lease.release()
            assert process.wait(PATIENCE_S) == 0
    os.close(ours)


def test_a_holder_that_is_stopped(url: str, unique_name: str, tmp_path: Path) -> None:
    """Break a holder that cannot let go: it is released on its behalf, and knows when it goes on."""
    program = (
        "import holdfast, sys, time\n"
        f"client = holdfast.connect({url!r}, ttl=600)\n"
        f"lease = client.lock({unique_name!r}).acquire()\n"
        "time.sleep(0.3)\n"
        "print('held', flush=True)\n"
        "print(lease.lost.wait(60), lease.lost.reason, flush=True)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        stop(process.pid)
        done = holdfast("break", unique_name, "--yes", "--json", "--grace", "200ms", url=url)
        report = json.loads(done.stdout)
        assert (done.returncode, report["forced"]) == (0, [report["holders"][0]["token"]])
        with library.connect(url) as client:
            following = client.lock(unique_name).acquire(timeout=PATIENCE_S)
            assert following.fencing_token > report["holders"][0]["fencing_token"]
            process.send_signal(signal.SIGCONT)
            assert process.stdout.readline().startswith("True broken by holdfast break on ")
            time.sleep(0.05)
            assert following.held  # nothing of the late holder's harms it
            following.release()


def test_a_kind_that_has_to_be_given_is_asked_for(url: str, unique_name: str) -> None:
    with library.connect(url) as client, client.lock(unique_name), client.semaphore(unique_name, 2):
        for words in (("break", unique_name, "--yes"), ("ask", unique_name)):
            done = holdfast(*words, url=url)
            assert done.returncode == 64 and b"holdfast: --kind: one of lock, semaphore" in done.stderr
    assert b"holdfast: --namespace: " in holdfast("list", "--namespace", "", url=url).stderr

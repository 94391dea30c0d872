"""What a command says while it waits for its lock: soon, and on a terminal again and again."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import holdfast
from holdfast.cli import asking
from testbed.waiting import PATIENCE_S, eventually


@contextlib.contextmanager
def waiting(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, what: Any, timeout_s: float | None = None
) -> Iterator[list[str]]:
    """A command that waits until the end of the block: what it has said."""
    said: list[str] = []
    monkeypatch.setattr(asking, "_FIRST_SAID_S", 0.01)
    monkeypatch.setattr(asking, "_SAID_AGAIN_S", 0.02)
    monkeypatch.setattr(asking, "_TROUBLE_S", 0.01)
    monkeypatch.setattr(asking, "say", said.append)
    monkeypatch.setattr(os, "isatty", lambda number: terminal and number == 2)
    with asking.telling(what, "waiting for it", timeout_s):
        yield said
    for thread in threading.enumerate():
        if thread.name == "holdfast-waiting":
            thread.join(PATIENCE_S)


@pytest.mark.parametrize("terminal", [True, False])
def test_it_says_so_once_and_on_a_terminal_again(monkeypatch: pytest.MonkeyPatch, terminal: bool) -> None:
    asked: list[int] = []

    def what() -> str:
        asked.append(1)
        return f", {len(asked)}"

    with waiting(monkeypatch, terminal, what) as said:
        eventually(lambda: len(asked) >= 5)
    numbers = [int(line.removeprefix("waiting for it, ")) for line in said]
    assert numbers == sorted(numbers) and numbers[0] == 1
    assert (len(said) >= 3) is terminal
    assert terminal or len(said) == 1


@pytest.mark.parametrize("most", [0, 1])
def test_a_wait_needs_no_threads_to_be_told(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """Where the system starts no more of them, nothing is said, and that is no mistake of ours."""
    start = threading.Thread.start
    failed: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    begun: list[threading.Thread] = []

    def refused(thread: threading.Thread) -> None:
        begun.append(thread)
        if len(begun) > most:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refused)
    with waiting(monkeypatch, True, lambda: ", free") as said:
        eventually(lambda: len(begun) > most)
    assert (said, failed) == ([], [])


def test_a_server_that_is_away_is_named_once_and_what_follows_too(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[Any] = [holdfast.ServerUnreachable("host:1", "Connection refused")] * 4 + [", held by another"]

    def what() -> str:
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        return str(answer)

    with waiting(monkeypatch, False, what) as said:
        eventually(lambda: len(said) >= 2)
    assert said == [
        "waiting for it: server host:1 cannot be reached (Connection refused); trying for up to 30 s",
        "waiting for it, held by another",
    ]


def test_a_server_that_hangs_holds_up_nothing_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "_LOOK_S", 0.01)
    answers = threading.Event()

    def what() -> str:
        assert answers.wait(PATIENCE_S)
        return ", held by another"

    with waiting(monkeypatch, False, what, 5.0) as said:
        eventually(lambda: said)
        answers.set()
        eventually(lambda: len(said) >= 2)
    assert said == [
        "waiting for it: the server does not answer; trying for up to 5 s",
        "waiting for it, held by another",
    ]


@pytest.mark.parametrize("command", ["run", "elect"])
def test_a_refused_connection_is_told_before_it_is_given_up(command: str) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound and not listening: refuses
        port = closed.getsockname()[1]
        words = [sys.executable, "-m", "holdfast", command, "x", "--url", f"redis://127.0.0.1:{port}", "--", "true"]
        with subprocess.Popen(words, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            # On a busy machine, it says first that there is no answer yet.
            line = next(each for each in process.stderr if "the server does not answer" not in each)
            assert process.poll() is None, "it had been given up"
            process.terminate()
    waits = "lock 'x'" if command == "run" else "to lead 'x'"
    assert f"waiting {'for ' if command == 'run' else ''}{waits}: server 127.0.0.1:{port} cannot be reached" in line
    assert line.endswith("(Connection refused); trying for up to 30 s\n")


@pytest.mark.parametrize("free", [True, False])
def test_what_is_free_is_not_said_to_be_wanted_by_others(valkey_server: Any, unique_name: str, free: bool) -> None:
    with holdfast.connect(valkey_server.url) as client, holdfast.connect(valkey_server.url) as other:
        if free:
            assert asking.held_by(client, unique_name) == "free just now"
        else:
            with other.lock(unique_name):
                assert asking.held_by(client, unique_name).startswith("held by ")


def test_a_wait_for_a_refused_server_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Well before it is given up."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        node = f"127.0.0.1:{closed.getsockname()[1]}"
        with holdfast.connect(f"redis://{node}") as client, caplog.at_level(logging.WARNING, "holdfast"):
            cancel = holdfast.Cancel()

            def wait() -> None:
                with contextlib.suppress(holdfast.AcquireCancelled):
                    client.lock("x").acquire(cancel=cancel)

            waits = threading.Thread(target=wait)
            waits.start()
            eventually(lambda: [each for each in caplog.records if each.__dict__.get("holdfast_server") == node])
            assert waits.is_alive()
            cancel.set()
            waits.join(PATIENCE_S)
    (record,) = (each for each in caplog.records if each.__dict__.get("holdfast_server") == node)
    assert record.__dict__["holdfast_lasts_s"] < 1.0

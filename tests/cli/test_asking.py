"""What a command says while it waits for its lock: on a terminal alone, once in a while."""

from __future__ import annotations

import os
import threading
from typing import Any, cast

import pytest

from holdfast.cli import asking
from holdfast.cli.signals import Signals
from testbed.waiting import PATIENCE_S, eventually


class Poked:
    """Of the signals, what an acquire needs."""

    def __init__(self) -> None:
        self.over = threading.Event()

    def poke(self) -> None:
        self.over.set()

    def wait(self, timeout_s: float | None) -> list[int]:
        assert self.over.wait(PATIENCE_S)
        return []


@pytest.mark.parametrize("terminal", [True, False])
def test_it_says_so_once_in_a_while_and_on_a_terminal_alone(monkeypatch: pytest.MonkeyPatch, terminal: bool) -> None:
    said: list[str] = []
    asked: list[int] = []
    monkeypatch.setattr(asking, "_FIRST_SAID_S", 0.01)
    monkeypatch.setattr(asking, "_SAID_AGAIN_S", 0.02)
    monkeypatch.setattr(asking, "say", said.append)
    monkeypatch.setattr(os, "isatty", lambda number: terminal and number == 2)
    go_on = threading.Event()

    def acquire(cancel: Any) -> Any:
        assert go_on.wait(PATIENCE_S)
        return "a lease"

    def what() -> str:
        asked.append(1)
        return f"waiting, {len(asked)}"

    command = asking.Asked(acquire, cast(Signals, Poked()))
    command.tell_meanwhile(what)
    if terminal:
        eventually(lambda: len(said) >= 3)
    go_on.set()
    assert command.wait() is None and cast(Any, command.lease) == "a lease"
    for thread in threading.enumerate():
        if thread.name == "holdfast-waiting":
            thread.join(PATIENCE_S)
    assert said == [f"waiting, {number + 1}" for number in range(len(said))]
    assert bool(said) is bool(asked) is terminal

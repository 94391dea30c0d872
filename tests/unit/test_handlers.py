"""Signal handlers that have to wait."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast._runtime.handlers import without_handlers

FIRST, SECOND = signal.SIGUSR1, signal.SIGUSR2


class Raised(Exception):
    """By a handler."""


@pytest.fixture
def noted() -> Iterator[list[Any]]:
    """Both signals have handlers that note and raise them."""
    found: list[Any] = []

    def handler(number: int, frame: Any) -> None:
        found.append((signal.Signals(number), frame is not None))
        raise Raised(number)

    before = {number: signal.signal(number, handler) for number in (FIRST, SECOND)}
    yield found
    for number, was in before.items():
        assert signal.getsignal(number) is handler
        signal.signal(number, was)


def test_they_run_behind_it_each_for_its_signal(noted: list[Any]) -> None:
    def act() -> None:
        os.kill(os.getpid(), FIRST)
        os.kill(os.getpid(), SECOND)
        sum(range(1_000))
        noted.append("done")

    with pytest.raises(Raised) as caught:
        without_handlers(act)
    assert noted[0] == "done" and set(noted[1:]) == {(FIRST, True), (SECOND, True)} and len(noted) == 3
    assert isinstance(caught.value.__context__, Raised), "the first one is its context"


def test_what_it_returns_and_raises_comes_out(noted: list[Any]) -> None:
    def fails() -> None:
        raise ZeroDivisionError

    assert without_handlers(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        without_handlers(fails)
    assert not noted


def test_all_are_put_back_where_one_raises_meanwhile(noted: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal comes right when its handler is there again, before the others are."""
    real = signal.signal
    armed: list[int] = []

    def put(number: int, handler: Any) -> Any:
        before = real(number, handler)
        if armed and number == FIRST:
            armed.clear()
            os.kill(os.getpid(), FIRST)
        return before

    monkeypatch.setattr(signal, "signal", put)
    with pytest.raises(Raised):
        without_handlers(lambda: armed.append(1))
    monkeypatch.undo()
    assert noted == [(FIRST, True)]


def test_other_threads_leave_them_as_they_are(noted: list[Any]) -> None:
    found: list[Any] = []
    before = signal.getsignal(FIRST)
    thread = threading.Thread(target=without_handlers, args=(lambda: found.append(signal.getsignal(FIRST)),))
    thread.start()
    thread.join()
    assert found == [before]

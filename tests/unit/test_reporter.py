"""What carries events to log handlers and observers, where these hang."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from holdfast._reports.reporter import EVENTS_MAX, Reporter
from testbed.waiting import PATIENCE_S, eventually


def test_beyond_its_limit_events_are_dropped_and_counted() -> None:
    told: list[tuple[str, tuple[Any, ...]]] = []
    begun, go_on = threading.Event(), threading.Event()

    def sink(at: float, event: str, details: tuple[Any, ...]) -> None:
        begun.set()
        assert go_on.wait(PATIENCE_S)
        told.append((event, details))

    reporter = Reporter(sink, "test-reporter")
    reporter.send("first")
    assert begun.wait(PATIENCE_S), "it hangs in the first one"
    for number in range(EVENTS_MAX + 7):
        reporter.send("more", number)
    go_on.set()
    eventually(lambda: told[-1:] == [("dropped", (7,))])
    assert told[:-1] == [("first", ()), *(("more", (number,)) for number in range(EVENTS_MAX))]
    reporter.send("later")
    eventually(lambda: told[-1] == ("later", ()))
    assert len(told) == EVENTS_MAX + 3, "it was counted once"


def test_an_event_is_told_though_no_thread_could_be_started_when_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container with a limit of processes, which others use up for a moment: no later event has to come."""
    told: list[str] = []
    refused = threading.Event()

    def refuse(*_: object, **__: object) -> None:
        refused.set()
        raise RuntimeError("can't start new thread")

    reporter = Reporter(lambda at, event, details: told.append(event), "test-reporter")
    starts = "_start_joinable_thread" if hasattr(threading, "_start_joinable_thread") else "_start_new_thread"
    with monkeypatch.context() as patched:
        patched.setattr(threading, starts, refuse)
        reporter.send("first")
        assert refused.wait(PATIENCE_S)
        assert not told
    eventually(lambda: told == ["first"], "it is told by itself")
    reporter.send("second")
    eventually(lambda: told == ["first", "second"])

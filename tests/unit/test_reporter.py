"""What carries events to log handlers and observers, where these hang."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast._reports import reporter as reporter_module
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


@pytest.fixture
def hangs() -> Iterator[None]:
    """One that hangs in a sink."""
    begun, go_on = threading.Event(), threading.Event()

    def sink(at: float, event: str, details: tuple[Any, ...]) -> None:
        begun.set()
        go_on.wait(PATIENCE_S)

    reporter = Reporter(sink, "test-reporter")
    reporter.send("first")
    assert begun.wait(PATIENCE_S)
    yield
    go_on.set()
    eventually(lambda: not reporter.telling)


@pytest.mark.usefixtures("hangs")
def test_forks_that_each_interrupt_the_last_one_wait_no_longer_than_the_first() -> None:
    """By a signal handler: the stack would grow for as long as the sink hangs, and signals come."""
    depths: list[int] = []
    signals = iter(range(100))

    def fork(*_: object) -> None:
        if next(signals, None) is None:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
        depths.append(depths[-1] + 1 if depths else 1)
        reporter_module._before_fork()
        reporter_module._after_fork_in_parent()
        depths.append(depths[-1] - 1)

    before = signal.signal(signal.SIGALRM, fork)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
        fork()
        assert depths[-1] == 0
        assert max(depths) <= 0.2 / 0.02 + 2, "one for each signal while the first waits"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("hangs")
def test_a_fork_goes_on_in_the_child_of_the_one_that_interrupts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    sleep, children = time.sleep, list[int]()

    def interrupted(seconds: float) -> None:
        monkeypatch.setattr(time, "sleep", sleep)
        children.append(os.fork())

    monkeypatch.setattr(time, "sleep", interrupted)
    reporter_module._before_fork()
    wrong = True
    try:
        reporter_module._after_fork_in_parent()
        wrong = bool(reporter_module._forks)
    finally:
        if children == [0]:
            os._exit(wrong)
    assert os.waitpid(children[0], 0)[1] == 0
    assert not wrong

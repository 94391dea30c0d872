"""What carries events to log handlers and observers, where these hang."""

from __future__ import annotations

import threading
from typing import Any

from holdfast._drivers.reporter import EVENTS_MAX, Reporter
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

"""Waiting for a contended lock, in the usual course: one request that queues, and the message that hands it over.

Law: whatever else comes of it (an answer, a message, an exception) is told to the protocol, which goes on as if it had
done all this itself. What the usual course is, the core says (`fast_path.py`).

Theory: a wait is nine effects of a protocol, most of them to look at the clock. To go through all of them takes longer
than to make the request, and to read answer and message.
"""

from __future__ import annotations

import random
import typing
from collections.abc import Callable
from typing import Any

from holdfast._core.effects import Protocol, Wake
from holdfast._core.failure import RequestFailed
from holdfast._core.fast_path import pushed, queueing, replay, sleep_s
from holdfast._core.report import Report
from holdfast._core.settings import Settings
from holdfast._core.waiting import Busy, Grant, granted, within
from holdfast._drivers.inboxes import Inboxes
from holdfast._drivers.observing import Troubles
from holdfast._transport.clock import clock
from holdfast._transport.pack import PreparedRequest
from holdfast._transport.threads import Node

__all__ = ["first_wait"]


class Driver(typing.Protocol):
    """Whose waiting it is."""

    settings: Settings
    inboxes: Inboxes
    random: random.Random
    closed: bool
    queueing: dict[str, Report]
    troubles: Troubles

    def run(self, protocol: Protocol[Grant | Busy]) -> Grant | Busy: ...
    def final(self) -> RequestFailed: ...
    def failed(self, node: Node, failure: RequestFailed) -> RequestFailed: ...


def first_wait(
    driver: Driver,
    node: Node,
    first: PreparedRequest,
    start: Callable[[str, float | None, bool | None], Protocol[Grant | Busy]],
    token: str,
    timeout_s: float | None,
    ttl_ms: int,
) -> Grant | Busy:
    """Acquire, where it is expected to be held. `first` and `start` as in `ThreadDriver.acquire`."""
    inboxes = driver.inboxes
    if not inboxes.is_open(node):
        return driver.run(start(token, timeout_s, False))
    request = first.queueing
    if request is None:
        request = first.queueing = PreparedRequest(queueing(first.call))
    request_timeout_s = request.request_timeout_s
    if timeout_s is not None:
        request_timeout_s = within(request_timeout_s, timeout_s)
    reply: Any = None
    waited: tuple[float, float, Wake | None] | None = None
    asked_at = clock()
    try:
        inboxes.listen(token, node, request_timeout_s)
        reply = node.call_packed(request.packed(token), request_timeout_s, request.script)
        now = clock()
        if driver.troubles:
            driver.troubles.passed(node.name)
        grant = granted(reply, asked_at, now, ttl_ms)
        if grant is None:
            until = None if timeout_s is None else asked_at + timeout_s
            chance = driver.random.random()
            wait_s = sleep_s(reply, asked_at, now, until, driver.settings, chance)
            if wait_s is not None:
                waited = now, chance, None
                if driver.queueing and (report := driver.queueing.pop(token, None)) is not None:
                    report.queued()
                wake = None if driver.closed else inboxes.wait(token, wait_s)
                if driver.closed:
                    raise driver.final()
                waited = now, chance, wake
                grant = pushed(wake, asked_at, now - asked_at, clock(), ttl_ms)
        if grant is not None:
            inboxes.unlisten(token)
            return grant
    except BaseException as caught:
        error = caught
        if isinstance(caught, RequestFailed) and waited is None:
            error = driver.failed(node, caught)
        try:
            return driver.run(replay(start(token, timeout_s, None), asked_at, reply, error, True, waited))
        finally:
            del error  # which has this frame
    return driver.run(replay(start(token, timeout_s, None), asked_at, reply, None, True, waited))

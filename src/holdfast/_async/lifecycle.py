"""How a client for asyncio begins and ends.

Theory: a client may meet several event loops (a test suite's, one after the other), so what it does in each of them
is a driver of its own; a lease belongs to the driver that acquired it.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
import time
import weakref
from asyncio import _get_running_loop, current_task
from functools import partial
from typing import Any, TypeVar

from holdfast._api.client_info import CLIENT_INFO_MS, client_key, introduction
from holdfast._api.endpoints import settings_for
from holdfast._api.session import SessionBase
from holdfast._api.topologies import topology_of
from holdfast._core.describe import introduce
from holdfast._core.effects import Protocol
from holdfast._core.failure import RequestFailed
from holdfast._core.keys import inbox_prefix
from holdfast._core.settings import Settings
from holdfast._core.snapshot import snapshot
from holdfast._core.tokens import make_token
from holdfast._front.aio import AioFront
from holdfast._front.base import close_later, running_front
from holdfast._reports.observing import Reports
from holdfast.errors import ClientClosed, ConfigurationError

__all__ = ["Session", "has_ended"]

R = TypeVar("R")

#: How long the interpreter's end may be held up, s.
_EXIT_PATIENCE_S = 2.0
#: Numbers of tasks. When this many are known, those of tasks that have ended are forgotten.
_numbers = itertools.count(1)
_NUMBERS_MAX = 10_000


def has_ended(task: asyncio.Task[Any] | None) -> bool:
    """True if it can leave no block any more."""
    return task is None or task.done()


def _running_loop() -> asyncio.AbstractEventLoop:
    """Return the running loop; its error names a way out, unlike that of asyncio.get_running_loop()."""
    loop = _get_running_loop()
    if loop is None:
        trio = sys.modules.get("trio")
        running = "of trio" if trio is not None and trio.lowlevel.in_trio_run() else None
        allowed = "one of asyncio; elsewhere use holdfast.Client in a thread, as by trio.to_thread.run_sync()"
        raise ConfigurationError("event loop", running, allowed)
    return loop


class Session(SessionBase):
    """What the locks of one client know of it, in whatever event loop they are used."""

    def __init__(self, redis_client: Any, namespace: str | None, settings: Settings, observer: Any = None) -> None:
        settings = settings_for(redis_client, settings)
        self._make_topology = partial(topology_of, redis_client, "asyncio")
        topology = self._make_topology()
        #: Whether keys move from node to node.
        self.moves: bool = getattr(topology, "moves", True)
        super().__init__(redis_client, topology.nodes(), namespace, settings, Reports(observer))
        self.closed = False
        self._numbers_max = _NUMBERS_MAX
        #: By the ids of tasks, which may come again: the task, and a number that does not.
        self.numbers: dict[int, tuple[weakref.ref[asyncio.Task[Any]], int]] = {}
        #: The driver of the event loop in which it was used last.
        self.here: AioFront | None = None
        self.drivers: list[AioFront] = []
        finalizer = weakref.finalize(self, _close_later, self.drivers)
        finalizer.atexit = False  # fronts are closed at exit anyway

    @property
    def driver(self) -> AioFront:
        """The driver of the running event loop."""
        driver = self.here
        if driver is None or driver.closed or driver.loop is not _get_running_loop():
            driver = running_front() or self._begin()
        return driver

    def _begin(self) -> AioFront:
        if self.closed:
            raise ClientClosed()
        loop = _running_loop()
        for driver in [driver for driver in self.drivers if driver.closed or driver.loop.is_closed()]:
            self.drivers.remove(driver)
            driver.begin_close()
        for driver in self.drivers:
            if driver.loop is loop:
                break
        else:
            inboxes = inbox_prefix(self.namespace)
            driver = AioFront(self._make_topology(), os.urandom(12).hex(), inboxes, self.settings, self.reports)
            driver.asking = self.asking
            self.drivers.append(driver)
        self.here = driver
        return driver

    async def run(self, protocol: Protocol[R]) -> R:
        """Run it in the running event loop, with errors as users see them."""
        try:
            driver = self.driver
        except BaseException:
            protocol.close()
            raise
        try:
            return await driver.run(protocol)
        except RequestFailed as failure:
            raise self.public(failure) from None

    def public(self, failure: RequestFailed) -> BaseException:
        """Return the exception that users see."""
        if failure.kind == "closed" and self.closed:
            here = self.drivers[0] if len(self.drivers) == 1 else None
            return asyncio.CancelledError() if here is not None and here.exiting else ClientClosed()
        return failure.public()

    def me(self) -> asyncio.Task[Any] | None:
        """The task that runs; None outside of one (a callback, another thread)."""
        try:
            return current_task()
        except RuntimeError:
            return None  # no event loop runs here

    def new_token(self, owner: str | None = None) -> str:
        """Make a token for a request of the running task, or of `owner`."""
        number = self.number_of(current_task()) if owner is None else owner
        return make_token(self.driver.client_id, number, next(self.sequence))

    def number_of(self, task: asyncio.Task[Any] | None) -> int:
        """Return the number of that task in this process; 0 for none."""
        if task is None:
            return 0
        known = self.numbers.get(id(task))
        if known is not None and known[0]() is task:
            return known[1]
        if len(self.numbers) >= self._numbers_max:
            for ended in [each for each, (ref, _) in snapshot(self.numbers.items()) if ref() is None]:
                self.numbers.pop(ended, None)
            self._numbers_max = max(_NUMBERS_MAX, 2 * len(self.numbers))
        number = next(_numbers)
        self.numbers[id(task)] = weakref.ref(task), number
        return number

    def lease_of(self, owned_as: str) -> Any:
        """The lease by which the running task holds it, or did until that was lost; None when there is none."""
        task = self.me()
        held = self.owners.get((owned_as, self.number_of(task)))
        return held() if held is not None and task is not None else None

    def masters(self) -> int:
        """Return the number of servers that the keys are on, as far as is known."""
        masters = getattr(self.driver.topology, "masters", None)
        return 1 if masters is None else len(masters())

    def introduce(self, driver: AioFront, now: float) -> None:
        """Say again who this client is."""
        driver.introduce_at = now + CLIENT_INFO_MS / 2000
        key = client_key(self.namespace, driver.client_id)
        driver.spawn(introduce(key, partial(introduction, time.time()), CLIENT_INFO_MS))

    async def close(self) -> None:
        """End it, in every event loop."""
        loop = _running_loop()
        self.closed = True
        self.here = None
        drivers, self.drivers[:] = self.drivers[:], []
        for driver in drivers:
            driver.begin_close()  # side by side
        for driver in drivers:
            await driver.closed_for(loop)

    def __str__(self) -> str:
        leases = sum(len(driver.schedule) for driver in self.drivers)
        state = "closed" if self.closed else f"{leases} leases"
        return f"{self.nodes}: {state}, namespace {self.namespace!r}"


def _close_later(drivers: list[AioFront]) -> None:
    """End the fronts of a client that was garbage-collected."""
    for driver in drivers:
        close_later(driver)

"""Ends the client of one event loop, or what its event loop leaves behind.

Laws: as with threads: waiters are out of the queues before anything is released; holders are told before the lock is
released; all of it together takes no longer than the budget, however many servers hang.

Theory: a task of its own does it, so that it goes on where who closes is cancelled. When an event loop ends and the
client is still open, an asynchronous generator closes it, as those who run a loop close its generators then.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import typing
import warnings
import weakref
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

from holdfast._core.effects import Protocol
from holdfast._core.record import LeaseRecord
from holdfast._drivers.awaiting import awaited_by
from holdfast._drivers.background_aio import Background, retrieve
from holdfast._drivers.unconfirmed_aio import Unconfirmed
from holdfast._transport.aio import Node
from holdfast._transport.port import Topology

__all__ = ["Ending", "close_with_the_loop", "closers", "throw_away"]

#: When the client is closed, acquires have this long to end, s: a round trip, and a few turns of the loop.
LEAVE_S = 0.25
#: How long callbacks of holders have to return before the locks are released, and bodies to end, s.
TOLD_S = 0.5
BODIES_S = 1.0
#: A server that has been silent for this long is given up, s.
CLOSE_PATIENCE_S = 1.0
#: While servers answer, what they are told takes no longer than this, s.
RELEASE_MAX_S = 5.0
#: How many leases are released before other tasks run.
RELEASED_A_TURN = 50

#: Tasks that wait for a client to be closed, and what is to be called when they have.
closers: dict[asyncio.Task[Any], list[Callable[[], object]]] = {}
_closing: set[asyncio.Task[None]] = set()


class Driver(typing.Protocol):
    """What ends."""

    loop: asyncio.AbstractEventLoop
    topology: Topology[Node]
    background: Background
    releasing: Unconfirmed
    asking: dict[str, Any]
    bodies: dict[object, LeaseRecord]
    callbacks: set[asyncio.Task[Any]]
    guest: AsyncGenerator[None, None]
    leave: Callable[[Callable[[], Protocol[Any]]], object] | None
    ended: bool
    unconfirmed: int

    def spawn(self, protocol: Protocol[Any]) -> None: ...
    def begin_end(self) -> None: ...
    def give_backs(self) -> list[Callable[[], Protocol[None]]]: ...
    async def close(self) -> None: ...


class Ending:
    """How one client ends."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._task: asyncio.Task[None] | None = None
        #: What the server may still hold for it.
        self.unreleased: dict[LeaseRecord, None] = {}

    async def close(self) -> None:
        """End what waits, tell those who hold, release what they held, end the background. Idempotent."""
        self._driver.begin_end()
        me = asyncio.current_task()
        assert me is not None
        outermost = me not in closers
        later = closers.setdefault(me, [])
        try:
            if not self._driver.ended:
                if self._task is None or self._task.done():
                    # A task of its own: who closes may be cancelled, and what is left has to be done all the same.
                    self._task = self._driver.loop.create_task(self._end())
                    self._task.add_done_callback(retrieve)
                await asyncio.shield(self._task)
        finally:
            if outermost:
                del closers[me]
                for call in later:
                    call()

    async def let_end(self) -> None:
        """Wait for the closing that goes on."""
        if self._task is not None:
            await asyncio.wait((self._task,))

    async def _end(self) -> None:
        servers = self._driver.topology.nodes()
        # First the waiters, so that none of them is handed what we release.
        if not await self._until(lambda: not self._driver.asking, LEAVE_S):
            for server in servers:
                server.abort()
            await self._until(lambda: not self._driver.asking, LEAVE_S)
        for give_back in self._driver.give_backs():
            self._driver.spawn(give_back())
        if not await self._until(lambda: not self._driver.releasing, LEAVE_S):
            for server in servers:
                server.retire_wire()
            self._driver.releasing.repeat()
        # Then those who hold: what a body or a callback still uses comes last.
        await self._until(lambda: all(task in closers for task in self._driver.callbacks), TOLD_S)
        in_bodies = set(self._driver.bodies.values())
        await self._release([hold for hold in self.unreleased if hold not in in_bodies])
        if self.unreleased:
            await self._until(self._bodies_ended, BODIES_S)
            await self._release(tuple(self.unreleased))
        await self._until_quiet(servers)
        self._driver.unconfirmed = len(self._driver.background.tasks)
        end = getattr(self._driver.topology, "end", None)
        reading = end() if end is not None else None
        opening = [task for task in (reading, *(server.opening for server in servers)) if task is not None]
        for server in servers:
            server.close()
        for _ in range(3):  # the end of one may begin another one
            ending = (*self._driver.background.tasks, *opening)
            if not ending:
                break
            for task in ending:
                task.cancel()
            await asyncio.wait(ending, timeout=CLOSE_PATIENCE_S)
            opening = []
        await self._until_gone(servers)
        self._driver.ended = True
        self._driver.leave = None
        with contextlib.suppress(StopIteration, RuntimeError):
            self._driver.guest.aclose().send(None)

    async def _release(self, holds: Sequence[LeaseRecord]) -> None:
        for number, hold in enumerate(holds, 1):
            del self.unreleased[hold]
            self._driver.spawn(hold.release())
            if not number % RELEASED_A_TURN:
                await asyncio.sleep(0)

    def _bodies_ended(self) -> bool:
        """True if only the tasks that close run under what we still have to release."""
        return not any(
            hold in self.unreleased and getattr(body, "task", None) not in closers
            for body, hold in self._driver.bodies.items()
        )

    async def _until(self, condition: Callable[[], bool], request_timeout_s: float) -> bool:
        """Give the others turns until it is true; False when it is not in time."""
        until = self._driver.loop.time() + request_timeout_s
        pause_s = 0.0
        await asyncio.sleep(0)
        while not condition():
            if self._driver.loop.time() >= until:
                return False
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2 or 0.0002, 0.01)
        return True

    async def _until_quiet(self, servers: Sequence[Node]) -> None:
        """Wait for what is under way, and for what it spawns, as long as there is some progress."""
        at_most = self._driver.loop.time() + RELEASE_MAX_S
        until = self._driver.loop.time() + CLOSE_PATIENCE_S
        quiet = 0
        least = sys.maxsize
        while quiet < 3 and self._driver.loop.time() < min(until, at_most):
            left = len(self._driver.background.tasks) + sum(server.owes for server in servers)
            if left < least:
                least = left
                until = self._driver.loop.time() + CLOSE_PATIENCE_S
            quiet = 0 if left else quiet + 1
            await asyncio.sleep(0 if quiet else 0.001)

    async def _until_gone(self, servers: Sequence[Node]) -> None:
        """Connections say goodbye in their own time; those that do not in ours are cut."""
        until = self._driver.loop.time() + CLOSE_PATIENCE_S
        aborted = False
        while not all(server.gone for server in servers):
            if not aborted and self._driver.loop.time() >= until:
                aborted = True
                for server in servers:
                    server.abort()
            elif aborted and self._driver.loop.time() >= until + CLOSE_PATIENCE_S:
                return
            await asyncio.sleep(0.001)

    def close_soon(self) -> None:
        """Close in the background, called by our own event loop."""
        closing = self._driver.loop.create_task(self.close())
        _closing.add(closing)
        closing.add_done_callback(_closing.discard)


async def close_with_the_loop(driver: weakref.ref[Driver]) -> AsyncGenerator[None, None]:
    """Closes a driver that is still open when its event loop ends: those who run a loop close its generators then."""
    try:
        yield
    finally:
        left = driver()
        if left is not None and not left.ended and left.loop is asyncio.get_running_loop():
            await left.close()
            if left.unconfirmed:
                warnings.warn(
                    f"the event loop ended, and the client was not closed: {left.unconfirmed} releases or give-backs "
                    "were not confirmed by the server; their ttl ends them",
                    ResourceWarning,
                    stacklevel=2,
                )


def throw_away(task: asyncio.Task[Any]) -> None:
    """The event loop of this task is closed: have it clean up now, where it waits for something of ours."""
    work: Any = task.get_coro()
    awaited = work
    while (frame := getattr(awaited, "cr_frame", None)) is not None:
        if frame.f_globals.get("__name__", "").startswith("holdfast."):
            with contextlib.suppress(BaseException):
                work.close()
            return
        awaited = awaited_by(awaited)

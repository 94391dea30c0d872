"""What runs in the background of an event loop: releases, give-backs, renewals that go on.

Laws: what is spawned has sent its first request before `spawn` returns, so that it is under way even when the event
loop ends next; an exception out of a signal handler, at any step, loses nothing of it; its trouble is its own.

Theory: a protocol is run up to its first wait at once, and its rest in a task. A task that is cancelled before its
first step has never begun to clean up: that is then done for it.
"""

from __future__ import annotations

import asyncio
import typing
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

from holdfast._core.abandon import abandon
from holdfast._core.effects import Call, Effect, Protocol, Sleep, Spawn
from holdfast._core.failure import RequestFailed
from holdfast._transport.aio import told_already

__all__ = ["Background", "heed", "retrieve"]


class Driver(typing.Protocol):
    """Whose background it is."""

    loop: asyncio.AbstractEventLoop
    at_once: dict[type[Effect[Any]], Callable[[Any], Any]]
    leave: Callable[[Callable[[], Protocol[Any]]], object] | None

    def call(self, call: Call) -> Awaitable[Any]: ...
    async def run(
        self, protocol: Protocol[Any], begun: tuple[Effect[Any], Awaitable[Any] | None] | None = None
    ) -> Any: ...


class Background:
    """What was spawned and has not ended."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self.tasks: set[asyncio.Task[Any]] = set()

    def spawn(self, protocol: Protocol[Any]) -> None:
        """Run it in the background, up to its first wait at once. Its trouble is its own."""
        if self._driver.loop.is_closed():
            if self._driver.leave is not None:
                self._driver.leave(lambda: protocol)  # at the end of the process
            else:
                protocol.close()
            return
        effect: Effect[Any] | None = None
        begun: Awaitable[Any] | None = None
        work: Coroutine[Any, Any, None] | None = None
        try:
            effect = protocol.send(None)
            while type(effect) in self._driver.at_once:
                effect = protocol.send(self._driver.at_once[type(effect)](effect))
            if type(effect) is Call and effect.sync is None:
                try:
                    begun = self._driver.call(effect)
                except RequestFailed as failure:
                    begun = self._driver.loop.create_future()
                    begun.set_exception(failure)
            work = self._finish(protocol, effect, begun)
            self.start(work, partial(self._never_begun, protocol, begun))
        except (StopIteration, RequestFailed):
            return
        except BaseException:
            # Usually out of a signal handler. The loop is run once more to close it.
            if not any(task.get_coro() is work for task in asyncio.all_tasks(self._driver.loop)):
                if work is not None:
                    work.close()
                self._let_go(begun)
                self._driver.loop.call_soon(self._take_up, protocol, effect)
            raise

    def _take_up(self, protocol: Protocol[Any], effect: Effect[Any] | None) -> None:
        """Drive on what an exception has interrupted at `effect`, or at an unknown one, or before it began."""
        if getattr(protocol, "cr_frame", None) is None:
            return
        if getattr(protocol, "cr_suspended", True) is False:
            self.spawn(protocol)
            return
        begun: asyncio.Future[Any] | None = None
        if effect is None or type(effect) is Spawn:
            begun = self._driver.loop.create_future()
            if effect is None:
                effect = Sleep(0)
                begun.set_exception(
                    RequestFailed("broken", "given up", "", maybe_executed=True, transient=True),
                )
            else:
                begun.set_result(None)
        self.start(self._finish(protocol, effect, begun), partial(self._never_begun, protocol, begun))

    def _never_begun(self, protocol: Protocol[Any], begun: Awaitable[Any] | None, task: asyncio.Task[Any]) -> None:
        """A task that is cancelled before its first step leaves all that it was to await."""
        if getattr(protocol, "cr_frame", None) is None or _is_interruption(task):
            return
        self._let_go(begun)
        abandon(protocol, self._driver.at_once)

    def _let_go(self, begun: Awaitable[Any] | None) -> None:
        """Stop awaiting what was begun."""
        if asyncio.iscoroutine(begun):
            frame = getattr(begun, "cr_frame", None)
            asked = None if frame is None else frame.f_locals.get("future")
            begun.close()
            begun = asked
        if isinstance(begun, asyncio.Future):
            heed(begun)

    async def _finish(self, protocol: Protocol[Any], effect: Effect[Any], begun: Awaitable[Any] | None) -> None:
        try:
            await self._driver.run(protocol, (effect, begun))
        except RequestFailed:
            pass  # the ttl ends it
        except (KeyboardInterrupt, SystemExit):
            self._driver.loop.call_soon(self._take_up, protocol, None)
            raise

    def start(self, work: Coroutine[Any, Any, Any], ended: Callable[[asyncio.Task[Any]], None] | None = None) -> None:
        task = self._driver.loop.create_task(work)
        if hasattr(task, "_log_destroy_pending"):
            task._log_destroy_pending = False  # should its event loop be thrown away, it has done what it could
        self.tasks.add(task)
        task.add_done_callback(self._ended)
        if ended is not None:
            task.add_done_callback(ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            told_already(task)

    async def settle(self, request_timeout_s: float) -> bool:
        """Wait until all that was spawned has ended; False when it has not in time."""
        until = self._driver.loop.time() + request_timeout_s
        current = asyncio.current_task()
        while tasks := [task for task in self.tasks if task is not current]:
            left_s = until - self._driver.loop.time()
            if left_s <= 0:
                return False
            await asyncio.wait(tasks, timeout=left_s)
        return True


def _is_interruption(task: asyncio.Task[Any]) -> bool:
    """True if it was ended by what ends the event loop as well."""
    return not task.cancelled() and isinstance(task.exception(), (KeyboardInterrupt, SystemExit))


def heed(future: asyncio.Future[Any]) -> None:
    """Ignore how a future ends that is not waited for."""
    future.add_done_callback(retrieve)


def retrieve(future: asyncio.Future[Any]) -> None:
    """Look at a future's failure, so that asyncio does not log it."""
    if not future.cancelled():
        future.exception()

"""What tasks of asyncio need of their event loop. `trio_loop` has the same for trio."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from asyncio import _get_running_loop
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

from holdfast._front.home import Body, wake
from holdfast._runtime.handlers import raised_by_handler


class _AsyncioBody(Body):
    __slots__ = ("_cancelling",)

    def _enter(self) -> None:
        self._cancelling = self.task.cancelling()
        self._strike = partial(self.task.cancel, "the lease is lost")

    def _exit(self, error: BaseException | None) -> bool:
        ours = self._cancelled and self.task.uncancel() <= self._cancelling
        return ours and isinstance(error, asyncio.CancelledError)


class AsyncioLoop:
    """An event loop of asyncio."""

    body = _AsyncioBody
    #: Where the code is that starts a task.
    starter = asyncio.events.__file__
    #: Requests of one turn of the loop are collected.
    collects = True

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.key = loop
        #: Returns `key` where it runs, and only there.
        self.running: Callable[[], object] = _get_running_loop
        self.task: Callable[[], asyncio.Task[Any] | None] = partial(asyncio.current_task, loop)
        self.future: Callable[[], asyncio.Future[Any]] = loop.create_future
        #: Call something soon: by its own thread, by any.
        self.soon = loop.call_soon
        self.from_thread = loop.call_soon_threadsafe
        self.is_closed = loop.is_closed
        self.is_running = loop.is_running
        self.sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    def watch(self, sock: socket.socket, readable: Callable[[], None]) -> bool:
        """Call it when the socket can be read; False where sockets cannot be watched."""
        try:
            self.key.add_reader(sock, readable)
        except (NotImplementedError, OSError) as error:
            if raised_by_handler(error):
                raise
            return False
        return True

    def unwatch(self, sock: socket.socket) -> None:
        """Watch it no more."""
        if not self.key.is_closed():
            self.key.remove_reader(sock)

    async def within(self, future: asyncio.Future[None], timeout_s: float | None) -> None:
        """Wait for it, that long at most."""
        late = None if timeout_s is None else self.key.call_later(timeout_s, wake, future)
        try:
            await future
        finally:
            if late is not None:
                late.cancel()

    def tell(self, callback: Callable[[Any], Any], argument: Any, untold: dict[object, Any], ticket: object) -> None:
        """Call a user's function; what it returns is awaited in a task. `untold` has it by its ticket until its end."""
        result = None
        try:
            result = callback(argument)
        finally:
            if asyncio.iscoroutine(result):
                task = untold[ticket] = self.key.create_task(result)
                task.add_done_callback(lambda _: untold.pop(ticket, None))
            else:
                untold.pop(ticket, None)

    async def forever(self) -> None:
        """Wait until the process ends."""
        await self.key.create_future()

    async def gather(self, makes: list[Callable[[], Coroutine[Any, Any, object]]], timeout_s: float) -> None:
        """Run them side by side, that long at most."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await asyncio.gather(*(make() for make in makes), return_exceptions=True)

    def shield(self) -> contextlib.AbstractContextManager[object]:
        """Return what keeps the end of the loop from cancelling what runs in it."""
        return contextlib.nullcontext()

"""How tasks of an event loop wait for the engine.

Laws: nothing here blocks the loop; however many tasks of a loop are answered at a time, that is one wake-up of it; what
was granted to a task that has left is given back.

Theory: what the tasks ask for in one turn of the loop is written together. The engine reads the answers, whatever the
loop does meanwhile: it renews, and knows of losses, while the loop computes. Those are told to the loop when it runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import weakref
from asyncio import _get_running_loop
from collections import deque
from collections.abc import AsyncGenerator, Callable
from typing import Any, TypeVar

from holdfast._core.effects import Protocol
from holdfast._core.failure import RequestFailed
from holdfast._core.fast_path import replay
from holdfast._core.record import LeaseRecord
from holdfast._core.snapshot import snapshot
from holdfast._core.tenure import LocalWaiter, TenureLease
from holdfast._core.waiting import Busy, Grant, released
from holdfast._engine.link import Link
from holdfast._engine.operation import Abandoned, Operation
from holdfast._engine.pack import PreparedRequest
from holdfast._engine.requests import Ask, Later
from holdfast._engine.server import Server
from holdfast._front.base import SOON_S, Front, Start
from holdfast._runtime.clock import clock

__all__ = ["AioFront", "closers"]

R = TypeVar("R")

#: Tasks that wait for a client to be closed, and what is to be called when they have.
closers: dict[asyncio.Task[Any], list[Callable[[], object]]] = {}


class _Bell:
    """Wakes a task, from any thread."""

    __slots__ = ("_front", "_loop", "future")

    def __init__(self, front: AioFront, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._front = front
        self._loop = loop or front.loop
        self.future: asyncio.Future[None] = self._loop.create_future()

    def ring(self) -> None:
        if _get_running_loop() is self._loop:
            self.wake()
        elif self._loop is self._front.loop:
            self._front.wake_soon(self)
        else:
            with contextlib.suppress(RuntimeError):  # it is closed
                self._loop.call_soon_threadsafe(self.wake)

    def wake(self) -> None:
        if not self.future.done():
            self.future.set_result(None)


class _TaskAsk(Ask):
    """One that a task waits for."""

    __slots__ = ("_front", "_loop", "future", "may_lie")

    def __init__(self, prepared: PreparedRequest, token: str, deadline: float, front: AioFront) -> None:
        super().__init__(prepared, token, deadline)
        self._front = front
        self.future: asyncio.Future[None] = front.loop.create_future()
        #: Read by the loop, or by the engine where that is late.
        self.may_lie = front.reads

    def end(self, reply: Any, failure: RequestFailed | None) -> None:
        """In whatever thread has read it."""
        if self.outcome is None:
            self.outcome = reply, failure
            if _get_running_loop() is self._front.loop:
                self.wake()
            else:
                self._front.wake_soon(self)

    def wake(self) -> None:
        """In its loop."""
        if not self.future.done():
            self.future.set_result(None)


class AioFront(Front):
    """What the asyncio API asks of one client, in one event loop."""

    def _begin(self, client_id: str) -> None:
        self.loop = asyncio.get_running_loop()
        #: Blocks under leases, and callbacks that are awaited.
        self.bodies: dict[object, LeaseRecord] = {}
        self.callbacks: set[asyncio.Task[Any]] = set()
        self._out: list[Any] = []
        self._woken: deque[_Bell | _TaskAsk] = deque()
        self._waking = False
        #: The connection that the loop reads, too, by which socket, and whether it can.
        self._link: Link | None = None
        self._twin: socket.socket | None = None
        self.reads = False
        super()._begin(client_id)
        self._guest = _close_with_the_loop(weakref.ref(self))
        # Where a loop is run by those who close its generators at its end, this one closes the front.
        with contextlib.suppress(StopIteration):
            self._guest.asend(None).send(None)

    # -- waking tasks -----------------------------------------------------------------------------

    def wake_soon(self, bell: _Bell | _TaskAsk) -> None:
        """By another thread."""
        self._woken.append(bell)
        if not self._waking:
            self._waking = True
            try:
                self.loop.call_soon_threadsafe(self._wake)
            except RuntimeError:
                pass  # the loop is closed, and nothing waits in it

    def _wake(self) -> None:
        self._waking = False  # first: what comes from now on wakes the loop again
        woken = self._woken
        while woken:
            woken.popleft().wake()

    # -- running ----------------------------------------------------------------------------------

    async def run(self, protocol: Protocol[R]) -> R:
        """Have the engine run it, and wait for its end."""
        bell = _Bell(self)
        operation = Operation(self.client, protocol, lambda: bell.ring())
        try:
            self.engine.call(operation.begin)
            while not operation.over:
                await bell.future
                bell = _Bell(self)
                while operation.chores:
                    await self._do(*operation.chores.popleft())
        except BaseException:
            operation.abandon(self.engine.call)
            raise
        if operation.error is not None:
            raise operation.error
        result: R = operation.result
        return result

    async def _do(
        self, function: Callable[[Any], Any], argument: Any, told: Callable[[Any, BaseException | None], None]
    ) -> None:
        value, failed = None, None
        try:
            value = function(argument)
            if hasattr(value, "__await__"):
                value = await value
        except BaseException as error:
            failed = error
        self.engine.call(told, value, failed)

    async def _ask(self, server: Server, first: PreparedRequest, token: str, patience_s: float) -> Any:
        """The reply and the failure; None where there is no connection."""
        if not server.is_open:
            return None
        ask = _TaskAsk(first, token, clock() + patience_s, self)
        self._put(server, ask)
        await ask.future
        return ask.outcome

    def _put(self, server: Server, ask: Ask) -> None:
        if not self._out:
            self.loop.call_soon(self._flush, server)
        self._out.append(ask)

    def _flush(self, server: Server) -> None:
        out, self._out = self._out, []
        server.put_all(out)
        if server.link is not self._link:
            self._read_too(server.link)

    def _read_too(self, link: Link | None) -> None:
        """Have the loop read the connection whenever the engine does not: that spares two switches of threads."""
        self._read_no_more()
        twin = None if link is None else link.watched()
        if twin is None:
            return
        try:
            self.loop.add_reader(twin, self._readable)
        except NotImplementedError:
            twin.close()  # a loop that watches no sockets
        else:
            self._twin, self.reads = twin, True
        self._link = link

    def _readable(self) -> None:
        link = self._link
        if link is None or link.ended:
            self._read_no_more()
        else:
            link.read_here()

    def _read_no_more(self) -> None:
        twin, self._twin, self._link, self.reads = self._twin, None, None, False
        if twin is not None:
            self.loop.remove_reader(twin)
            twin.close()

    # -- acquiring and releasing ------------------------------------------------------------------

    async def acquire(
        self, first: PreparedRequest | None, start: Start, token: str, timeout_s: float | None, ttl_ms: int
    ) -> Grant | Busy:
        """Acquire with this token: by `first` alone where that is granted in time, else by the protocol."""
        if first is None or not self._asks_first(first):
            return await self.run(self._acquires(first, start, token, timeout_s, ttl_ms))
        behind = self.client.releasing.before(first.key)
        server = self.topology.node_for(first.key, None)
        asked_at = clock()
        try:
            outcome = await self._ask(server, first, token, self._patience_s(first, timeout_s))
        except BaseException:
            self.spawn(_undone(replay(start(token, timeout_s, True), asked_at, None, Abandoned())))
            raise
        if outcome is None:
            return await self.run(self._acquires(first, start, token, timeout_s, ttl_ms))
        grant = self._grant(server, outcome, asked_at, ttl_ms)
        if grant is not None:
            return grant
        return await self.run(self._goes_on(first, start, token, timeout_s, ttl_ms, behind, asked_at, outcome))

    async def wait_in_line(
        self,
        turn: LocalWaiter,
        start: Callable[[LocalWaiter, float | None], Protocol[TenureLease | Grant | Busy]],
        timeout_s: float | None,
        ttl_ms: int,
    ) -> TenureLease | Grant | Busy:
        """Wait for that turn: it is handed on soon, or `start(turn, timeout_s)` makes the protocol for all the rest."""
        if self.queueing and (report := self.queueing.pop(turn.token, None)) is not None:
            report.queued()
        if ttl_ms > 1000 * SOON_S and (timeout_s is None or timeout_s > SOON_S):
            bell = _Bell(self)
            turn.bell = bell.ring
            late = self.loop.call_later(SOON_S, bell.wake)
            try:
                if not turn.is_called() and not self.closed:
                    await bell.future
            finally:
                turn.bell = None
                late.cancel()
            taken = turn.take(clock()) if turn.has_the_right() and not self.closed else None
            if taken is not None:
                return taken
        return await self.run(start(turn, timeout_s))

    async def release(self, record: LeaseRecord, first: PreparedRequest | None) -> bool:
        """Release what is held; False when it was not held any more. `first` as in `acquire`."""
        if first is None or not self.can_ask:
            return await self.run(self._releases(record, first))
        server = self.topology.node_for(first.key, None)
        try:
            outcome = await self._ask(server, first, record.token, first.request_timeout_s)
        except BaseException:
            self.spawn(_undone(replay(record.release(), 0.0, None, Abandoned())))
            raise
        held = released(outcome[0]) if outcome is not None and outcome[1] is None else None
        return await self.run(self._releases(record, first, outcome)) if held is None else held

    def _tell(self, server: Server, later: Later) -> bool:
        """As that of `Front`; sent with what others ask for in this turn of the loop."""
        if not server.is_open:
            return False
        self._put(server, later)
        return True

    # -- what is held -----------------------------------------------------------------------------

    def has_told(self, record: LeaseRecord) -> bool:
        """True if its blocks and callbacks have ended, but for those that wait for the end themselves."""
        if self.loop.is_closed():
            return True
        if any(task not in closers for task in tuple(self.callbacks)):
            return False
        bodies = snapshot(self.bodies.items())
        return not any(held is record and getattr(body, "task", None) not in closers for body, held in bodies)

    def in_loop(self, function: Callable[..., object], *args: Any) -> None:
        """Call it in the loop, from whichever thread; not at all where that is closed."""
        with contextlib.suppress(RuntimeError):
            if _get_running_loop() is self.loop:
                self.loop.call_soon(function, *args)
            else:
                self.loop.call_soon_threadsafe(function, *args)

    def call_back(self, callback: Callable[[Any], Any], argument: Any) -> None:
        """Call a user's function; what it returns is awaited in the background."""
        result = callback(argument)
        if asyncio.iscoroutine(result):
            task = self.loop.create_task(result)
            self.callbacks.add(task)
            task.add_done_callback(self.callbacks.discard)

    # -- the end ----------------------------------------------------------------------------------

    async def closed_for(self, loop: asyncio.AbstractEventLoop) -> None:
        """End what waits, tell those who hold, release what they held; wait for that in that loop. Idempotent."""
        bell = _Bell(self, loop)
        me = asyncio.current_task()
        assert me is not None
        outermost = me not in closers
        later = closers.setdefault(me, [])
        self.begin_close(bell.ring)
        try:
            await bell.future
        finally:
            if outermost:
                del closers[me]
                for call in later:
                    call()
            if loop is self.loop:
                self._read_no_more()
                with contextlib.suppress(StopIteration, RuntimeError):
                    self._guest.aclose().send(None)

    def after_fork(self) -> None:
        """As that of `Front`; a child's loop has a client of its own."""
        super().after_fork()
        self.closed = self.ended = True


async def _undone(protocol: Protocol[Any]) -> None:
    """Let it give back what its caller has left."""
    try:
        await protocol
    except (Abandoned, RequestFailed):
        pass


async def _close_with_the_loop(ref: weakref.ref[AioFront]) -> AsyncGenerator[None, None]:
    """Closes a front that is still open when its event loop ends."""
    try:
        yield
    finally:
        front = ref()
        if front is not None and not front.ended and front.loop is _get_running_loop():
            await front.closed_for(front.loop)

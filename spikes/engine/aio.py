"""How tasks of an event loop wait for the engine.

Laws: nothing here blocks the loop; however many tasks of a loop are answered at a time, that is one wake-up of it; what
was granted to a task that has left is given back.

Theory: what the tasks ask for in one turn of the loop is written together. The engine reads the answers, whatever the
loop does meanwhile: it renews, and knows of losses, while the loop computes. Those are told to the loop when it runs.
"""

from __future__ import annotations

import asyncio
import random
from asyncio import _get_running_loop
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from holdfast._core.agent.renewals import quietly
from holdfast._core.agent.runner import closed
from holdfast._core.effects import Protocol
from holdfast._core.failure import RequestFailed
from holdfast._core.fast_path import replay
from holdfast._core.record import LeaseRecord, Order
from holdfast._core.settings import DEFAULT, Settings
from holdfast._core.tenure import SOON_MS, LocalWaiter, TenureLease
from holdfast._core.waiting import Busy, Grant, granted, released, within
from holdfast._drivers.observing import Reports, Troubles
from holdfast._transport.clock import clock
from holdfast._transport.pack import PreparedRequest
from holdfast._transport.port import Topology
from holdfast._transport.waits import ring, silent_bell
from spikes.engine.client import Client, Prepared
from spikes.engine.link import Ask, Later, Server
from spikes.engine.loop import engine
from spikes.engine.operation import Abandoned, Operation

__all__ = ["AioFront"]

R = TypeVar("R")

_SOON_S = SOON_MS / 1000
#: What the loop is held up for at most by what the engine does for it at once, s.
_AT_ONCE_S = 5.0


class _Bell:
    """Wakes a task, from any thread."""

    __slots__ = ("_front", "future")

    def __init__(self, front: AioFront) -> None:
        self._front = front
        self.future: asyncio.Future[None] = front.loop.create_future()

    def ring(self) -> None:
        if _get_running_loop() is self._front.loop:
            self.wake()
        else:
            self._front.wake_soon(self)

    def wake(self) -> None:
        if not self.future.done():
            self.future.set_result(None)


class _TaskAsk(Ask):
    """One that a task waits for."""

    __slots__ = ("_front", "future")

    engine_reads = True

    def __init__(self, prepared: PreparedRequest, token: str, deadline: float, front: AioFront) -> None:
        super().__init__(prepared, token, deadline)
        self._front = front
        self.future: asyncio.Future[None] = front.loop.create_future()

    def end(self, reply: Any, failure: RequestFailed | None) -> None:
        """In whatever thread has read it."""
        if self.outcome is None:
            self.outcome = reply, failure
            self._front.wake_soon(self)

    def wake(self) -> None:
        """In its loop."""
        if not self.future.done():
            self.future.set_result(None)


class AioFront:
    """What the asyncio API asks of one client, in one event loop."""

    def __init__(
        self,
        topology: Topology[Server],
        client_id: str,
        inboxes: str,
        settings: Settings = DEFAULT,
        reports: Reports | None = None,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.topology = topology
        self.settings = settings
        self.client_id = client_id
        self.engine = engine()
        self.troubles = Troubles(reports or Reports())
        self.bodies: dict[object, LeaseRecord] = {}
        self.callbacks: set[asyncio.Task[Any]] = set()
        self.client = client = Client(self.engine, topology, client_id, inboxes, settings, self.troubles, self.has_told)
        self.engine.enter(client)
        self.can_ask = client.can_ask
        self.schedule, self.lines, self.lease_cache = client.schedule, client.lines, client.lease_cache
        self.notices, self.queueing, self.listening = client.notices, client.queueing, client.listening
        self.lease_cache.spawn = self.spawn
        self.random = random.Random().random
        self.introduce_at = float("-inf")
        self.closed = self.ended = self.exiting = False
        self.asking: dict[str, Any] = {}
        self.leave: Any = None
        #: As parts of the driver are called.
        self.releasing = self.ending = self
        self._out: list[Any] = []
        self._woken: deque[_Bell | _TaskAsk] = deque()
        self._waking = False

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

    def spawn(self, protocol: Protocol[None]) -> None:
        """Run it in the background."""
        self.engine.call(self._spawn, protocol)

    def _spawn(self, protocol: Protocol[None]) -> None:
        self.client.spawn(protocol)

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

    # -- acquiring and releasing ------------------------------------------------------------------

    async def acquire(
        self,
        first: PreparedRequest | None,
        start: Callable[[str, float | None, bool], Protocol[Grant | Busy]],
        token: str,
        timeout_s: float | None,
        ttl_ms: int,
    ) -> Grant | Busy:
        """Acquire with this token: by `first` alone where that is granted in time, else by the protocol."""
        client, begin = self.client, partial(start, token)
        if first is None or not self.can_ask or first.key in client.contention:
            call = None if first is None else Prepared(first, token)
            return await self.run(client.acquire(call, begin, timeout_s, ttl_ms))
        patience_s = first.request_timeout_s
        if timeout_s is not None:
            patience_s = within(patience_s, timeout_s or self.settings.try_limit_s)
        behind = client.releasing.before(first.key)
        asked_at = clock()
        server = self.topology.node_for(first.key, None)
        try:
            outcome = await self._ask(server, first, token, patience_s)
        except BaseException:
            self.spawn(_undone(replay(begin(timeout_s, True), asked_at, None, Abandoned())))
            raise
        if outcome is None:
            return await self.run(client.acquire(Prepared(first, token), begin, timeout_s, ttl_ms))
        reply, failure = outcome
        if failure is None:
            grant = granted(reply, asked_at, clock(), ttl_ms)
            if grant is not None:
                if self.troubles:
                    self.troubles.passed(server.name)
                return grant
        again = Prepared(first, token)
        answer = asked_at, reply, self._failed(server, again, failure)
        return await self.run(client.go_on(again, begin, timeout_s, ttl_ms, behind, answer))

    def _failed(self, server: Server, call: Prepared, failure: RequestFailed | None) -> RequestFailed | None:
        if failure is None:
            return None
        self.troubles.saw(failure)
        self.engine.call(self.topology.troubled, server, failure)
        failure.about(call)
        return closed(failure) if self.closed else failure

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
        if ttl_ms > SOON_MS and (timeout_s is None or timeout_s > _SOON_S):
            bell = _Bell(self)
            turn.bell = bell.ring
            late = self.loop.call_later(_SOON_S, bell.wake)
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

    async def release(self, hold: LeaseRecord, first: PreparedRequest | None) -> bool:
        """Release what is held; False when it was not held any more. `first` as in `acquire`."""
        if first is None or not self.can_ask:
            return await self.run(self.client.release(hold, None if first is None else Prepared(first, hold.token)))
        server = self.topology.node_for(first.key, None)
        try:
            outcome = await self._ask(server, first, hold.token, first.request_timeout_s)
        except BaseException:
            self.spawn(_undone(replay(hold.release(), 0.0, None, Abandoned())))
            raise
        if outcome is None:
            return await self.run(self.client.release(hold, Prepared(first, hold.token)))
        reply, failure = outcome
        held = released(reply) if failure is None else None
        if held is not None:
            return held
        failed = self._failed(server, Prepared(first, hold.token), failure)
        return await self.run(replay(hold.release(), 0.0, reply, failed))

    def send(self, hold: LeaseRecord, first: PreparedRequest) -> bool:
        """Release it without waiting for the answer."""
        server = self.topology.node_for(first.key, None)
        answered = self.client.releasing.sent(hold, first.key)

        def told(reply: Any, failure: RequestFailed | None) -> None:
            if failure is not None:
                failure = self._failed(server, Prepared(first, hold.token), failure)
            rest = answered(reply, failure)
            if rest is not None:
                self.spawn(rest)

        later = Later(first, hold.token, clock() + first.request_timeout_s, told)
        if server.is_open:
            self._put(server, later)
        else:
            self.engine.call(server.send_later, later)
        return True

    # -- what is held -----------------------------------------------------------------------------

    def watch(self, hold: LeaseRecord) -> None:
        """Renew it and look after its deadline, until `unwatch`."""
        at = self.schedule.add(hold, self.random())
        armed = self.client.attends_at
        if armed is None or at < armed:
            self.engine.call(self.client.arm, at)

    def unwatch(self, hold: LeaseRecord) -> None:
        """Stop watching a lease that was released."""
        self.schedule.remove(hold)

    def finish(self, hold: LeaseRecord) -> bool:
        """End it for its owner, who then releases it; False when it had ended before, in whatever way."""
        if not hold.mark_released():
            return False
        self.schedule.remove(hold)
        return True

    def spawn_release(self, hold: LeaseRecord) -> None:
        """Release in the background what is not wanted any more."""
        hold.report.released()
        self.spawn(quietly(hold))

    def has_told(self, hold: LeaseRecord) -> bool:
        """True if its blocks and callbacks have ended."""
        return hold not in [*self.bodies.values()] and not self.callbacks

    def drop(self, hold: LeaseRecord) -> None:
        """Stop renewing a lease that was garbage-collected, in any thread."""
        hold.stop_renewing()

    def give_back(self, hold: LeaseRecord) -> None:
        """Give back a lease that reached no caller, or whose block ended without a release. For finalizers."""
        self.engine.call(self.client.sweep, hold)

    def _at_once(self, act: Callable[[], R]) -> R:
        """In the engine, which takes no time for it."""
        bell, found = silent_bell(), []

        def do() -> None:
            found.append(act())
            ring(bell)

        self.engine.call(do)
        bell.acquire(True, _AT_ONCE_S)
        return found[0]

    def extending(self, hold: LeaseRecord, ttl_ms: int, asked_at: float) -> Order:
        """Note an extension that is about to be sent, and return its order."""
        order, at = self._at_once(lambda: self.schedule.extending(hold, ttl_ms, asked_at))
        self.engine.call(self.client.arm, at)
        return order

    def extended(self, hold: LeaseRecord, order: Order, held: int, ttl_ms: int, asked_at: float) -> bool:
        """Record an extension's reply; False if the lease has ended."""
        at = self._at_once(lambda: self.schedule.extended(hold, order, held, ttl_ms, asked_at, clock(), self.random()))
        self.engine.call(self.client.arm, at)
        return at is not None

    def replan(self, hold: LeaseRecord) -> None:
        """Plan again for a lease whose deadline changed."""
        self.engine.call(lambda: self.client.arm(self.schedule.replan(hold, self.random())))

    def call_back(self, callback: Callable[[Any], Any], argument: Any) -> None:
        """Call a user's function; what it returns is awaited in the background."""
        result = callback(argument)
        if asyncio.iscoroutine(result):
            task = self.loop.create_task(result)
            self.callbacks.add(task)
            task.add_done_callback(self.callbacks.discard)

    # -- the end ----------------------------------------------------------------------------------

    async def close(self) -> None:
        """End what waits, tell those who hold, release what they held. Idempotent."""
        self.closed = True
        bell = _Bell(self)
        self.engine.call(self.client.close, partial(self._ended, bell.ring))
        await bell.future
        self.ended = True

    def _ended(self, ring: Callable[[], None], _settled: bool) -> None:
        self.client.end()
        ring()

    def close_soon(self) -> None:
        """Begin to end it."""
        self.closed = True
        self.engine.call(self.client.close, partial(self._ended, lambda: setattr(self, "ended", True)))

    async def let_end(self) -> None:
        """Nothing of ours ends with a loop."""

    def take_over(self) -> list[Callable[[], Protocol[Any]]]:
        """Have the engine end it, since its loop does not run any more; nothing is left for another loop."""
        self.closed = True
        bell = silent_bell()
        self.engine.call(self.client.close, partial(self._ended, partial(ring, bell)))
        bell.acquire(True, _AT_ONCE_S)
        self.ended = True
        return []

    def forget(self, reason: str) -> None:
        """Let go without a word."""
        self.closed = self.ended = True


async def _undone(protocol: Protocol[Any]) -> None:
    """Let it give back what its caller has left."""
    try:
        await protocol
    except (Abandoned, RequestFailed):
        pass

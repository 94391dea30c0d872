"""Performs protocols in tasks of one event loop, and does in the background what happens by itself.

Laws: a protocol is always driven to its end; a cancellation is thrown into it at the effect that it interrupted;
a loss is announced at its deadline even while every server hangs; what is spawned has sent its first request
before `Spawn` returns, so that it is under way even when the event loop ends next.

Theory: `run` sends each effect's result into the coroutine. What can be done at once is done without a turn of the
loop, and a `Call` is one future of a shared connection. Everything here belongs to one event loop and runs in its
thread: there are no locks.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import os
import random
import weakref
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

from holdfast._core.abandon import abandon
from holdfast._core.effects import (
    AwaitTurn,
    AwaitWake,
    Call,
    CallMany,
    Command,
    Effect,
    Listen,
    Now,
    Protocol,
    Random,
    Sleep,
    Spawn,
    Tell,
    Unlisten,
)
from holdfast._core.failure import RequestFailed
from holdfast._core.fast_path import Contention, begin, replay
from holdfast._core.holder_notices import HolderNotices
from holdfast._core.lease_cache import LeaseCache
from holdfast._core.record import LeaseRecord, Order
from holdfast._core.report import Report
from holdfast._core.schedule import Schedule
from holdfast._core.settings import DEFAULT, Settings
from holdfast._core.tenure import SOON_MS, Lines, LocalWaiter, TenureLease
from holdfast._core.waiting import Acquisition, Busy, Grant, granted, released, within
from holdfast._drivers.background_aio import Background
from holdfast._drivers.ending_aio import Ending, close_with_the_loop, throw_away
from holdfast._drivers.observing import Reports, Troubles
from holdfast._drivers.renewals_aio import Renewals
from holdfast._drivers.requests_aio import Requests
from holdfast._drivers.unconfirmed_aio import Unconfirmed
from holdfast._drivers.waits_aio import Waits
from holdfast._transport.aio import Node
from holdfast._transport.clock import clock
from holdfast._transport.connection_aio import forget_half_made
from holdfast._transport.pack import PreparedRequest
from holdfast._transport.port import Topology

__all__ = ["AioDriver"]

R = TypeVar("R")


_drivers: weakref.WeakSet[AioDriver] = weakref.WeakSet()


class AioDriver:
    """Runs protocols for one client in one event loop."""

    def __init__(
        self,
        topology: Topology[Node],
        client_id: str,
        inboxes: str,
        settings: Settings = DEFAULT,
        reports: Reports | None = None,
    ) -> None:
        """In one piece: what each field is for, and the table of effects."""
        self.loop = asyncio.get_running_loop()
        self.topology = topology
        self.client_id = client_id
        self.settings = settings
        self.closed = False
        #: `close` has done all it does.
        self.ended = False
        #: It is closed because the process ends: tasks of other threads are ended, and how they end does not matter.
        self.exiting = False
        #: What was still under way then.
        self.unconfirmed = 0
        #: Acquires that have not ended, by token: what has to be given back when the client ends before they do.
        self.asking: dict[str, Any] = {}
        #: What is wrong with servers; and who is told when the waiter of a token is queued.
        self.troubles = Troubles(reports or Reports())
        self.queueing: dict[str, Report] = {}
        #: Blocks that run under a lease, and what that stands on.
        self.bodies: dict[object, LeaseRecord] = {}
        #: Callbacks of users that have not ended.
        self.callbacks: set[asyncio.Task[Any]] = set()
        self.schedule = Schedule(settings)
        self.random = random.Random().random
        #: When the client publishes its description again.
        self.introduce_at = float("-inf")
        self._node_for = topology.node_for
        moves: bool = getattr(topology, "moves", True)  # whether MOVED and ASK can come
        #: Where all first requests go; None where that depends on the key.
        self._only = topology.nodes()[0] if not moves and len(topology.nodes()) == 1 else None
        #: Whether the fast path can be used: where keys move from node to node, the protocol has to follow them.
        self.can_ask = not moves
        self.notices = HolderNotices(self, self._only is not None)
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = float("inf")
        self.contention = Contention(settings)
        self._renewals = Renewals(self)
        #: Acquires that wait for each other here.
        self.lines = Lines(settings, contextlib.nullcontext(), self.schedule.early)
        #: Releases that were sent and not waited for.
        self.releasing = Unconfirmed(self)
        #: Takes what comes too late to be undone here: the event loop is closed.
        self.leave: Callable[[Callable[[], Protocol[Any]]], object] | None = None
        self._to_give_back: collections.deque[LeaseRecord] = collections.deque()
        self.background = Background(self)
        #: Run it in the background, up to its first wait at once.
        self.spawn = self.background.spawn
        self.settle = self.background.settle
        self.lease_cache = LeaseCache(settings, self.watch, self.background.spawn, self.schedule.early, self._is_here)
        self.ending = Ending(self)
        self.waits = waits = Waits(self, topology, inboxes + client_id, settings)
        self.listening, self.missing_inbox = waits.listening, waits.missing_inbox
        self.lines.hears = lambda key: self.lease_cache.hears(key, waits.listening(key))
        self.requests = requests = Requests(self, topology)
        self.call = requests.call  # send it; the awaitable has the reply
        self.at_once: dict[type[Effect[Any]], Callable[[Any], Any]] = {
            Now: lambda _: clock(),
            Random: lambda _: self.random(),
            Unlisten: waits.unlisten,
            Spawn: lambda spawn: self.spawn(spawn.protocol),
        }
        self._in_time: dict[type[Effect[Any]], Callable[[Any], Awaitable[Any]]] = {
            Call: requests.call,
            Listen: waits.listen,
            AwaitWake: waits.await_wake,
            AwaitTurn: waits.await_turn,
            Sleep: waits.sleep,
            Tell: lambda tell: tell.function(tell.argument),
            Command: requests.command,
            CallMany: requests.call_many,
        }
        self.guest = close_with_the_loop(weakref.ref(self))
        if not getattr(self.loop, "_asyncgens_shutdown_called", False):
            with contextlib.suppress(StopIteration):
                self.guest.__anext__().send(None)
        _drivers.add(self)

    # ------------------------------------------------------------------ running

    async def run(self, protocol: Protocol[R], begun: tuple[Effect[Any], Awaitable[Any] | None] | None = None) -> R:
        """Drive a protocol to its end in this task; `begun` up to that effect, which is under way or not."""
        send = protocol.send
        effect: Effect[Any]
        under_way: Awaitable[Any] | None = None
        result: Any
        try:
            if begun is None:
                effect = send(None)
            else:
                effect, under_way = begun
            while True:
                kind = type(effect)
                try:
                    if kind is Now:
                        result = clock()
                    elif under_way is not None:
                        doing, under_way = under_way, None
                        result = await doing
                    elif kind is Call:
                        result = await self.call(effect)  # type: ignore[arg-type]
                    elif kind in self.at_once:
                        result = self.at_once[kind](effect)
                    else:
                        result = await self._in_time[kind](effect)
                except GeneratorExit:
                    # Its task is thrown away, most likely with its event loop: let it clean up as far as that takes no
                    # time.
                    abandon(protocol, self.at_once)
                    raise
                except BaseException as error:
                    # Trouble; or a cancellation, which the protocol cleans up after.
                    if isinstance(error, RequestFailed):
                        error.about(effect)
                        self.troubles.saw(error)
                    effect = protocol.throw(self._final(error) if self.closed else error)
                else:
                    if self.troubles and type(effect) is Call:
                        self.troubles.passed(self._node_for(effect.keys[0], effect.node).name)
                    effect = send(result)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    async def acquire(
        self,
        first: PreparedRequest | None,
        start: Callable[[str, float | None, bool], Protocol[Grant | Busy]],
        token: str,
        timeout_s: float | None,
        ttl_ms: int,
    ) -> Grant | Busy:
        """Acquire with this token: by `first` alone where that is granted in time, else by the protocol.

        `first`: the protocol's first request, ready but for the token; None where there is no such one. `start(token,
        timeout_s, sent)` makes the protocol; `sent`: its first request, which does not queue, was sent already.
        """
        usual = first is not None and not (first.key in self.contention and self.contention.expects(first.key))
        behind = await self.releasing.before(first, usual) if self.releasing.sent else None
        if first is None or not usual:
            return await self.run(start(token, timeout_s, False))
        request_timeout_s = first.request_timeout_s
        if timeout_s is not None:
            request_timeout_s = within(request_timeout_s, timeout_s or self.settings.try_limit_s)
        asked_at = clock()
        try:
            node = self._only or self._node_for(first.key, None)
            if behind is None:
                reply = await node.submit_prepared(first, token, request_timeout_s)
            else:
                reply = await self.releasing.ask_behind(behind, node, first, token, request_timeout_s)
        except BaseException as error:
            return await self._resume(first, start(token, timeout_s, True), asked_at, None, error)
        grant = granted(reply, asked_at, clock(), ttl_ms)
        if self.troubles:
            self.troubles.passed(self._node_for(first.key, None).name)
        if grant is not None:
            return grant
        self.contention.saw(first.key)
        return await self._resume(first, start(token, timeout_s, True), asked_at, reply, None)

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
        if ttl_ms > SOON_MS and (timeout_s is None or timeout_s * 1000 > SOON_MS):
            await self.waits.rest(turn)
            taken = turn.take(clock()) if turn.has_the_right() and not self.closed else None
            if taken is not None:
                return taken
        return await self.run(start(turn, timeout_s))

    async def release(self, hold: LeaseRecord, first: PreparedRequest | None) -> bool:
        """Release what is held; False when it was not held any more. `first` as in `acquire`."""
        if first is None:
            return await self.run(hold.release())
        try:
            node = self._only or self._node_for(first.key, None)
            reply = await node.submit_prepared(first, hold.token, first.request_timeout_s)
        except BaseException as error:
            return await self._resume(first, hold.release(), 0.0, None, error)
        held = released(reply)
        return await self._resume(first, hold.release(), 0.0, reply, None) if held is None else held

    async def _resume(
        self, first: PreparedRequest, protocol: Protocol[R], asked_at: float, reply: Any, error: BaseException | None
    ) -> R:
        """Run a protocol whose first request was sent at `asked_at`, and ended so."""
        if isinstance(error, GeneratorExit):
            # Its task is thrown away: as in `run`.
            _ = begin(protocol, asked_at)
            abandon(protocol, self.at_once)
            raise error
        if isinstance(error, RequestFailed):
            self.troubles.saw(error)
            self.requests.in_trouble(self._node_for(first.key, None), error)
            error = self._final(error) if self.closed else error
        return await self.run(replay(protocol, asked_at, reply, error))

    def _final(self, error: BaseException) -> BaseException:
        """The client is closed: who waits in the foreground tries nothing again."""
        if not isinstance(error, RequestFailed) or asyncio.current_task() in self.background.tasks:
            return error
        return RequestFailed(
            "closed", "the client is closed", error.node, maybe_executed=error.maybe_executed, transient=False
        )

    def call_back(self, callback: Callable[[Any], Any], argument: Any) -> None:
        """Call a user's function; what it returns is awaited in the background."""
        result = callback(argument)
        if asyncio.iscoroutine(result):
            task = self.loop.create_task(result)
            self.callbacks.add(task)
            task.add_done_callback(self.callbacks.discard)

    # ------------------------------------------------------------------ holds

    def _is_here(self) -> bool:
        return not self.closed and asyncio._get_running_loop() is self.loop

    def watch(self, hold: LeaseRecord) -> None:
        """Renew it and look after its deadline, until `unwatch`."""
        if self.schedule.add(hold, self.random()) < self._alarm_at:
            self._rearm()

    def finish(self, hold: LeaseRecord) -> bool:
        """End it for its owner, who then releases it; False when it had ended before, in whatever way."""
        if not hold.mark_released():
            return False
        self.schedule.remove(hold)
        return True

    def spawn_release(self, hold: LeaseRecord) -> None:
        """Release in the background what is not wanted any more; trouble is left to the ttl."""
        hold.report.released()
        self.spawn(hold.release())

    def unwatch(self, hold: LeaseRecord) -> None:
        """Stop watching a lease that was released."""
        self.schedule.remove(hold)

    def has_told(self, hold: LeaseRecord) -> bool:
        """True if the blocks under it have ended, and callbacks."""
        return hold not in self.bodies.values() and not self.callbacks

    def drop(self, hold: LeaseRecord) -> None:
        """Stop renewing a lease that was garbage-collected, in any thread; its end is found at its deadline."""
        hold.stop_renewing()

    def give_back(self, hold: LeaseRecord) -> None:
        """Release what reached no caller, or whose block ended without a release. For finalizers, in any thread."""
        self._to_give_back.append(hold)
        try:
            self.loop.call_soon_threadsafe(self._sweep)
        except RuntimeError:
            pass  # the event loop is closed, and this is still in the schedule of what to release

    def _sweep(self) -> None:
        while self._to_give_back:
            hold = self._to_give_back.popleft()
            if self.finish(hold) or hold.half_released():
                self.spawn_release(hold)

    def extending(self, hold: LeaseRecord, ttl_ms: int, asked_at: float) -> Order:
        """Note an extension and return its order."""
        order, at = self.schedule.extending(hold, ttl_ms, asked_at)
        if at is not None and at < self._alarm_at:
            self._arm(at)
        return order

    def extended(self, hold: LeaseRecord, order: Order, held: int, ttl_ms: int, asked_at: float) -> bool:
        """Record an extension's reply; False if the lease has ended."""
        at = self.schedule.extended(hold, order, held, ttl_ms, asked_at, clock(), self.random())
        if at is not None and at < self._alarm_at:
            self._arm(at)
        return at is not None

    def replan(self, hold: LeaseRecord) -> None:
        """Plan for a deadline that has changed."""
        at = self.schedule.replan(hold, self.random())
        if at < self._alarm_at:
            self._arm(at)

    def _arm(self, at: float) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_at = at
        self._alarm = self.loop.call_later(max(0.0, at - clock()), self._on_time)

    def _rearm(self) -> None:
        at = self.schedule.next_at()
        if at is not None and at < self._alarm_at:
            self._arm(at)

    def _on_time(self) -> None:
        self._alarm = None
        self._alarm_at = float("inf")
        if self.closed:
            return
        now = clock()
        try:
            self._renewals.start(self.schedule.due(now), now)
            self.notices.look(now)
        finally:
            self._rearm()

    # ------------------------------------------------------------------ ends

    def begin_end(self) -> None:
        """Nothing is granted from now on, all waiting ends, and what is held is lost, and told so."""
        if self.closed:
            return
        self.closed = True
        if self._alarm is not None:
            self._alarm.cancel()
        self.waits.end()
        self.lines.wake_all()
        self.ending.unreleased = dict.fromkeys(self.lose_all("closed"))

    def lose_all(self, reason: str) -> list[LeaseRecord]:
        """Lose all that is held; returns what the server may still hold for us."""
        now = clock()
        holds = [hold for hold in self.schedule if not hold.check_expired(now)]
        self.schedule = Schedule(self.settings)
        for hold in holds:
            hold.lose(reason)
        return holds

    def take_over(self) -> list[Callable[[], Protocol[Any]]]:
        """Return what another loop has to undo, since ours does not run any more; `close` may have been interrupted."""
        if self.loop.is_closed():
            for task in asyncio.all_tasks(self.loop):
                throw_away(task)
        made = self.give_backs()
        holds = list(self.ending.unreleased)
        self.ending.unreleased = {}
        if not self.closed:
            self.closed = True
            holds = self.lose_all("closed")
        return made + [hold.release for hold in holds]

    def give_backs(self) -> list[Callable[[], Protocol[None]]]:
        """For what was asked for and has not ended; each makes a protocol."""
        asking, self.asking = self.asking, {}
        return [
            asker.give_back if isinstance(asker, Acquisition) else partial(asker._give_back, token)
            for token, asker in asking.items()
        ]

    async def close(self) -> None:
        """End what waits, tell those who hold, release what they held, end the background. Idempotent."""
        await self.ending.close()

    def forget(self, reason: str) -> None:
        """Let go without a word: after fork in the child, or after the end of the event loop."""
        self.closed = self.ended = True
        if reason == "forked":
            self.leave = None
        for hold in self.schedule:
            self.schedule.remove(hold)
            if reason != "forked":
                hold.on_loss = None
            try:
                hold.lose(reason)
            except RuntimeError:
                pass  # the event loop of those who wait for the loss is no more
        self.waits.forget()
        for server in self.topology.nodes():
            server.forget()


def _after_fork_in_child() -> None:
    for driver in tuple(_drivers):
        driver.forget("forked")
    forget_half_made()


os.register_at_fork(after_in_child=_after_fork_in_child)

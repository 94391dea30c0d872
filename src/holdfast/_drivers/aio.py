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
import sys
import warnings
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar

from holdfast._core.abandon import abandon
from holdfast._core.effects import (
    Answer,
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
    Reply,
    Sleep,
    Spawn,
    Unlisten,
    Wake,
)
from holdfast._core.failure import RequestFailed
from holdfast._core.fast_path import Contention, begin, replay
from holdfast._core.hearing import Ears
from holdfast._core.record import LeaseRecord, Order, Schedule
from holdfast._core.replies import COUNT, DONE, FITS, MAYBE, wake_of
from holdfast._core.report import Report
from holdfast._core.settings import DEFAULT, Settings
from holdfast._core.tenure import Lines
from holdfast._core.waiting import Acquisition, Busy, Grant, granted, released, within
from holdfast._drivers.observing import Reports, Troubles
from holdfast._drivers.renewals_aio import Renewals
from holdfast._drivers.reopening import Reopening
from holdfast._drivers.unconfirmed_aio import Unconfirmed
from holdfast._lua import SCRIPTS
from holdfast._transport.aio import Hearing, Node, forget_half_made, told_already
from holdfast._transport.clock import clock
from holdfast._transport.cluster_aio import AioCluster
from holdfast._transport.limits import GONE, REDIRECTS_MAX
from holdfast._transport.mailbox_aio import open_inbox
from holdfast._transport.pack import PreparedRequest, pack_command, pack_script, pack_sync, spelled_out
from holdfast._transport.port import Topology

__all__ = ["AioDriver"]

R = TypeVar("R")

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
#: How long a reply that was not waited for is still looked at, s.
LATE_PATIENCE_S = 30.0
#: A member of a quorum that owes a reply for this long, s, is asked on a new connection: the old one may be half-open.
MEMBER_SILENCE_S = 0.25
#: A redirected request has at least this time, s.
REDIRECT_LEAST_S = 0.05

_ASKING = pack_command(("ASKING",))
#: Commands after which a session needs its connection no more.
_SESSION_ENDS = frozenset({"EXEC", "DISCARD", "UNWATCH"})
#: Commands that would hold up all others on a shared connection.
_BLOCKING = frozenset(
    {
        "BLPOP",
        "BRPOP",
        "BLMOVE",
        "BRPOPLPUSH",
        "BLMPOP",
        "BZPOPMIN",
        "BZPOPMAX",
        "BZMPOP",
        "XREAD",
        "XREADGROUP",
        "WAIT",
    }
)
#: The session of calls that wait for replicas: they hold up each other only.
_SYNC_SESSION = "sync"


class _Waiter:
    """A waiter that may be woken: a wake-up that comes before it waits is kept."""

    __slots__ = ("future", "kept")

    def __init__(self) -> None:
        self.future: asyncio.Future[Wake | None] | None = None
        self.kept: Wake | None = None

    def wake(self, wake: Wake) -> None:
        """Hand it over, or keep it: a grant rather than a hint to ask."""
        if self.future is not None and not self.future.done():
            self.future.set_result(wake)
        elif self.kept is None or wake.kind == Wake.GRANT:
            self.kept = wake


_drivers: weakref.WeakSet[AioDriver] = weakref.WeakSet()
#: Tasks that wait for a client to be closed, and what is to be called when they have.
closers: dict[asyncio.Task[Any], list[Callable[[], object]]] = {}
_closing: set[asyncio.Task[None]] = set()


def _look_at(task: asyncio.Task[Any]) -> None:
    """Its failure was seen: asyncio logs what was not."""
    if not task.cancelled():
        task.exception()


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
        self.loop = asyncio.get_running_loop()
        self.topology = topology
        self.client_id = client_id
        self.channel = inboxes + client_id
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
        self._ending: asyncio.Task[None] | None = None
        self._unreleased: dict[LeaseRecord, None] = {}
        self._sleepers: set[asyncio.Future[Wake | None]] = set()
        self._callbacks: set[asyncio.Task[Any]] = set()
        self.schedule = Schedule(settings)
        self.random = random.Random().random
        #: When the client publishes its description again.
        self.introduce_at = float("-inf")
        self._node_for = topology.node_for
        self._moves: bool = getattr(topology, "moves", True)  # whether MOVED and ASK can come
        #: Where all first requests go; None where that depends on the key.
        self._only = topology.nodes()[0] if not self._moves and len(topology.nodes()) == 1 else None
        #: Whether the fast path can be used: where keys move from node to node, the protocol has to follow them.
        self.can_ask = not self._moves
        #: A Cluster of which nothing is known yet.
        self.ears = Ears(self, self._only is not None)
        self._unread: AioCluster | None = topology if isinstance(topology, AioCluster) else None
        self._fails_over: bool = getattr(topology, "fails_over", False)
        self._waiters: dict[str, _Waiter] = {}
        self._reopening: weakref.WeakKeyDictionary[Node, Reopening] = weakref.WeakKeyDictionary()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = float("inf")
        self._numbers = 0
        self.contention = Contention(settings)
        self._renewals = Renewals(self)
        #: Acquires that wait for each other here.
        self.lines = Lines(settings, contextlib.nullcontext())
        #: Releases that were sent and not waited for.
        self.releasing = Unconfirmed(self)
        #: Takes what comes too late to be undone here: the event loop is closed.
        self.leave: Callable[[Callable[[], Protocol[Any]]], object] | None = None
        self._to_give_back: collections.deque[LeaseRecord] = collections.deque()
        self._at_once: dict[type[Effect[Any]], Callable[[Any], Any]] = {
            Now: lambda _: clock(),
            Random: lambda _: self.random(),
            Unlisten: self._unlisten,
            Spawn: self._spawn,
        }
        self._in_time: dict[type[Effect[Any]], Callable[[Any], Awaitable[Any]]] = {
            Call: self.call,
            Listen: self._listen,
            AwaitWake: self._await_wake,
            AwaitTurn: self._await_turn,
            Sleep: self._sleep,
            Command: self._command,
            CallMany: self._call_many,
        }
        self._guest = _close_with_the_loop(weakref.ref(self))
        if not getattr(self.loop, "_asyncgens_shutdown_called", False):
            with contextlib.suppress(StopIteration):
                self._guest.__anext__().send(None)
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
                    elif kind in self._at_once:
                        result = self._at_once[kind](effect)
                    else:
                        result = await self._in_time[kind](effect)
                except GeneratorExit:
                    # Its task is thrown away, most likely with its event loop: let it clean up as far as that takes no
                    # time.
                    abandon(protocol, self._at_once)
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
            request_timeout_s = within(request_timeout_s, timeout_s or self.settings.short_retry_s)
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
            abandon(protocol, self._at_once)
            raise error
        if isinstance(error, RequestFailed):
            self.troubles.saw(error)
            self._in_trouble(self._node_for(first.key, None), error)
            error = self._final(error) if self.closed else error
        return await self.run(replay(protocol, asked_at, reply, error))

    def _final(self, error: BaseException) -> BaseException:
        """The client is closed: who waits in the foreground tries nothing again."""
        if not isinstance(error, RequestFailed) or asyncio.current_task() in self._tasks:
            return error
        return RequestFailed(
            "closed", "the client is closed", error.node, maybe_executed=error.maybe_executed, transient=False
        )

    def spawn(self, protocol: Protocol[Any]) -> None:
        """Run it in the background, up to its first wait at once. Its trouble is its own."""
        if self.loop.is_closed():
            if self.leave is not None:
                self.leave(lambda: protocol)  # at the end of the process
            else:
                protocol.close()
            return
        effect: Effect[Any] | None = None
        begun: Awaitable[Any] | None = None
        work: Coroutine[Any, Any, None] | None = None
        try:
            effect = protocol.send(None)
            while type(effect) in self._at_once:
                effect = protocol.send(self._at_once[type(effect)](effect))
            if type(effect) is Call and effect.sync is None:
                try:
                    begun = self.call(effect)
                except RequestFailed as failure:
                    begun = self.loop.create_future()
                    begun.set_exception(failure)
            work = self._finish(protocol, effect, begun)
            self._background(work, partial(self._never_begun, protocol, begun))
        except (StopIteration, RequestFailed):
            return
        except BaseException:
            # Usually out of a signal handler. The loop is run once more to close it.
            if not any(task.get_coro() is work for task in asyncio.all_tasks(self.loop)):
                if work is not None:
                    work.close()
                self._let_go(begun)
                self.loop.call_soon(self._take_up, protocol, effect)
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
            begun = self.loop.create_future()
            if effect is None:
                effect = Sleep(0)
                begun.set_exception(
                    RequestFailed("broken", "given up", "", maybe_executed=True, transient=True),
                )
            else:
                begun.set_result(None)
        self._background(self._finish(protocol, effect, begun), partial(self._never_begun, protocol, begun))

    def _never_begun(self, protocol: Protocol[Any], begun: Awaitable[Any] | None, task: asyncio.Task[Any]) -> None:
        """A task that is cancelled before its first step leaves all that it was to await."""
        if getattr(protocol, "cr_frame", None) is None or _is_interruption(task):
            return
        self._let_go(begun)
        abandon(protocol, self._at_once)

    def _let_go(self, begun: Awaitable[Any] | None) -> None:
        """It is not awaited any more."""
        if asyncio.iscoroutine(begun):
            frame = getattr(begun, "cr_frame", None)
            asked = None if frame is None else frame.f_locals.get("future")
            begun.close()
            begun = asked
        if isinstance(begun, asyncio.Future):
            _heed(begun)

    async def _finish(self, protocol: Protocol[Any], effect: Effect[Any], begun: Awaitable[Any] | None) -> None:
        try:
            await self.run(protocol, (effect, begun))
        except RequestFailed:
            pass  # the ttl ends it
        except (KeyboardInterrupt, SystemExit):
            self.loop.call_soon(self._take_up, protocol, None)
            raise

    def _background(
        self, work: Coroutine[Any, Any, Any], ended: Callable[[asyncio.Task[Any]], None] | None = None
    ) -> None:
        task = self.loop.create_task(work)
        if hasattr(task, "_log_destroy_pending"):
            task._log_destroy_pending = False  # should its event loop be thrown away, it has done what it could
        self._tasks.add(task)
        task.add_done_callback(self._background_ended)
        if ended is not None:
            task.add_done_callback(ended)

    def _background_ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            told_already(task)

    def call_back(self, callback: Callable[[Any], Any], argument: Any) -> None:
        """Call a user's function; what it returns is awaited in the background."""
        result = callback(argument)
        if asyncio.iscoroutine(result):
            task = self.loop.create_task(result)
            self._callbacks.add(task)
            task.add_done_callback(self._callbacks.discard)

    def _spawn(self, spawn: Spawn) -> None:
        self.spawn(spawn.protocol)

    # ------------------------------------------------------------------ requests

    def call(self, call: Call) -> Awaitable[Any]:
        """Send it; the awaitable has the reply."""
        if self._unread is not None and not self._unread.is_learned:
            return self._call_when_known(call)
        return self._call(call)

    async def _call_when_known(self, call: Call) -> Any:
        assert self._unread is not None
        until = clock() + call.request_timeout_s
        await self._unread.known()
        return await self._call(Call(call.script, call.keys, call.args, _left(until), call.node, call.sync))

    def _call(self, call: Call) -> Awaitable[Any]:
        if call.sync is not None:
            return self._call_synced(call)
        keys = call.keys
        script = SCRIPTS[call.script]
        server = self._node_for(keys[0], call.node)
        future = server.submit(pack_script(script, keys, call.args), call.request_timeout_s, script)
        return self._following(server, call, future) if self._moves or self._fails_over else future

    def _elsewhere(self, server: Node, failure: RequestFailed) -> tuple[Node, bool]:
        """Where MOVED and ASK lead; any other trouble is noted, and raised."""
        elsewhere = self.topology.redirect(server, failure) if failure.kind in ("MOVED", "ASK") else None
        if elsewhere is None:
            self._in_trouble(server, failure)
            raise failure
        if not elsewhere[1]:
            self._ask_all_waiters()  # their inbox is at the node that has owned the slot
        return elsewhere

    def _in_trouble(self, server: Node, failure: RequestFailed) -> None:
        self.topology.troubled(server, failure)
        if self._fails_over and failure.kind in GONE and server.inbox is not None:
            server.inbox.abort()  # it may be connected to what was the master

    async def _following(self, server: Node, call: Call, future: asyncio.Future[Any]) -> Any:
        """The reply, wherever MOVED and ASK lead, in the time of one request."""
        until = clock() + call.request_timeout_s
        for _ in range(REDIRECTS_MAX):
            try:
                return await future
            except RequestFailed as failure:
                server, asking = self._elsewhere(server, failure)
            script = SCRIPTS[call.script]
            packed = pack_script(script, call.keys, call.args)
            left_s = _left(until)
            if asking:
                # Spelled out, since a script that had to be loaded first would come after ASKING's one command.
                _heed(server.submit(_ASKING, left_s, None, DONE))
                future = server.submit(spelled_out(packed, script), left_s, None, FITS[script.name])
            else:
                future = server.submit(packed, left_s, script)
        return await future

    async def _call_synced(self, call: Call) -> Any:
        """The script, and WAIT right behind it on the same connection."""
        assert call.sync is not None
        script = SCRIPTS[call.script]
        packed = pack_script(script, call.keys, call.args)
        tail = pack_sync(call.sync)
        until = clock() + call.request_timeout_s + call.sync[1] / 1000
        server = self._node_for(call.keys[0], call.node)
        asking = False
        for _ in range(REDIRECTS_MAX):
            link = server.lasting_session(_SYNC_SESSION)
            request_timeout_s = _left(until)
            if asking:
                _heed(link.submit(_ASKING, request_timeout_s, None, DONE))
            fits = (FITS[script.name], COUNT, MAYBE)
            replied, *more = [
                link.submit(each, request_timeout_s, None, fit)
                for each, fit in zip((packed, *tail), fits, strict=False)
            ]
            try:
                reply = await replied
            except BaseException as error:
                for future in more:
                    _heed(future)
                if not isinstance(error, RequestFailed):
                    raise
                if error.kind == "NOSCRIPT":
                    packed = spelled_out(packed, script)
                    continue
                if self._fails_over and error.kind in GONE:
                    server.end_session(_SYNC_SESSION)  # it may lead to what was the master
                server, asking = self._elsewhere(server, error)
                continue
            try:
                return (reply, *[await future for future in more])
            except BaseException as error:
                for future in more:
                    _heed(future)
                if isinstance(error, RequestFailed):
                    error.maybe_executed = True
                raise
        raise RequestFailed("MOVED", "the slot keeps moving", server.name, maybe_executed=False, transient=True)

    async def _command(self, command: Command) -> Any:
        server = self._node_for(command.key, command.node)
        word = str(command.args[0]).upper()
        packed = pack_command(command.args)
        if command.session is None and word not in _BLOCKING:
            until = clock() + command.request_timeout_s
            for _ in range(REDIRECTS_MAX):
                try:
                    return await server.submit(packed, _left(until), None, command.fits)
                except RequestFailed as failure:
                    server, asking = self._elsewhere(server, failure)
                if asking:
                    _heed(server.submit(_ASKING, _left(until), None, DONE))
        session = command.session
        if session is None:
            self._numbers += 1
            session = f"alone-{self._numbers}"
        link = server.session(session)
        try:
            reply = await link.submit(packed, command.request_timeout_s, None, command.fits)
        except BaseException as error:
            server.end_session(session)
            link.abort()  # what it owes or has watched does not matter any more
            if isinstance(error, RequestFailed):
                if error.kind == "MOVED":
                    self.topology.redirect(server, error)  # the session has to start over, at the right node
                self._in_trouble(server, error)
            raise
        if command.session is None or word in _SESSION_ENDS:
            server.end_session(session)
        return reply

    async def _call_many(self, many: CallMany) -> list[Answer]:
        """Send all, then take the answers as they come."""
        answers: list[Answer] = [None] * len(many.calls)
        enough = many.enough
        finished: asyncio.Future[None] = self.loop.create_future()
        missing = len(answers)

        def answered(index: int, future: asyncio.Future[Any]) -> None:
            nonlocal missing
            if future.cancelled():
                answer: Answer = RequestFailed("closed", "given up", "", maybe_executed=True, transient=True)
            else:
                error = future.exception()
                answer = future.result() if error is None else error
            if finished.done():
                if many.late is not None and not isinstance(answer, BaseException):
                    protocol = many.late(index, answer)
                    if protocol is not None:
                        self.spawn(protocol)
                return
            if isinstance(answer, BaseException) and not isinstance(answer, RequestFailed):
                finished.set_exception(answer)
                return
            if isinstance(answer, RequestFailed):
                answer.about(many.calls[index])
                self.troubles.saw(answer)
            elif self.troubles:
                self.troubles.passed(self._node_for(many.calls[index].keys[0], many.calls[index].node).name)
            answers[index] = answer
            missing -= 1
            if missing == 0 or (enough is not None and enough(answers)):
                finished.set_result(None)

        def time_is_up() -> None:
            if not finished.done():
                finished.set_result(None)

        for index, call in enumerate(many.calls):
            patient = Call(
                call.script, call.keys, call.args, max(LATE_PATIENCE_S, many.request_timeout_s), call.node, call.sync
            )
            future: asyncio.Future[Any]
            try:
                self._node_for(call.keys[0], call.node).retire_wire(max(MEMBER_SILENCE_S, many.request_timeout_s))
                future = asyncio.ensure_future(self.call(patient))
            except RequestFailed as failure:
                future = self.loop.create_future()
                future.set_exception(failure)
            future.add_done_callback(lambda future, index=index: answered(index, future))  # type: ignore[misc]
        alarm = self.loop.call_later(many.request_timeout_s, time_is_up)
        try:
            if answers:
                await finished
        finally:
            alarm.cancel()
            if not finished.done():
                finished.cancel()
        return answers

    # ------------------------------------------------------------------ waiting

    async def _sleep(self, sleep: Sleep) -> None:
        if asyncio.current_task() in self._tasks:
            await asyncio.sleep(sleep.seconds)
            return
        await self._pause(self._sleepers, sleep.seconds)

    async def _pause(self, sleepers: set[asyncio.Future[Wake | None]], seconds: float) -> None:
        """Until the time is over, or the client is closed, which raises `RequestFailed`."""
        if not self.closed:
            future: asyncio.Future[Wake | None] = self.loop.create_future()
            sleepers.add(future)
            alarm = self.loop.call_later(seconds, _time_is_up, future)
            try:
                await future
            finally:
                alarm.cancel()
                sleepers.discard(future)
        self._raise_if_closed()

    def _raise_if_closed(self) -> None:
        if self.closed:
            raise RequestFailed("closed", "the client is closed", "", maybe_executed=False, transient=False)

    def _unlisten(self, unlisten: Unlisten) -> None:
        self._waiters.pop(unlisten.token, None)

    async def _listen(self, listen: Listen) -> None:
        server = self._node_for(listen.key, listen.node)
        if listen.token not in self._waiters:
            self._waiters[listen.token] = _Waiter()
        if self.closed or server.closed:
            raise RequestFailed("closed", "the client is closed", server.name, maybe_executed=False, transient=False)
        inbox = server.inbox
        if inbox is not None and inbox.open:
            inbox.check()
            return
        task = server.opening
        if task is None:
            task = server.opening = self.loop.create_task(self._open_inbox(server))
            task.add_done_callback(_look_at)  # all who wait for it may be cancelled
        await asyncio.wait((task,), timeout=listen.request_timeout_s)
        if not task.done():
            raise RequestFailed("silent", "no subscription in time", server.name, maybe_executed=False, transient=True)
        if task.cancelled():
            raise RequestFailed("closed", "the client is closed", server.name, maybe_executed=False, transient=False)
        failure = task.exception()
        if isinstance(failure, RequestFailed):
            self.topology.troubled(server, failure)
            raise RequestFailed(
                failure.kind, failure.message, failure.node, maybe_executed=False, transient=failure.transient
            )
        if failure is not None:
            raise failure

    async def _open_inbox(self, server: Node) -> Hearing:
        try:
            reopening = self._reopening.setdefault(server, Reopening(self.settings))
            if reopening.pause_s:
                await self._pause(self._sleepers, reopening.pause_s)
            inbox = await open_inbox(server, self.channel, self._deliver, self._inbox_broken, self.loop)
            reopening.opened(clock())
            server.inbox = inbox
            return inbox
        finally:
            server.opening = None

    def _inbox_broken(self, inbox: Hearing) -> None:
        """The waiters look for themselves, and open it again."""
        self._reopening[inbox.node].broke(clock())
        self._ask_all_waiters()
        if not self.closed:
            self.ears.deaf(clock())

    def _ask_all_waiters(self) -> None:
        for waiter in tuple(self._waiters.values()):
            waiter.wake(Wake(Wake.ASK))

    def _deliver(self, reply: Reply) -> None:
        """What came in the inbox. Without a waiter: the one that left has sent the give-back."""
        wake = wake_of(reply, self.channel)
        if wake is not None and wake[1].is_for_holder:
            self.ears.told(*wake)
            return
        waiter = self._waiters.get(wake[0]) if wake is not None else None
        if wake is not None and waiter is not None:
            waiter.wake(wake[1])

    def listening(self, key: str) -> bool:
        """Whether the inbox at the key's server is open, so that a first request may queue."""
        inbox = self._node_for(key, None).inbox
        return inbox is not None and inbox.open

    def hears_at(self, key: str) -> Node | None:
        """The node at which an inbox is missing to hear of that key."""
        node = self._node_for(key, None)
        return None if node.inbox is not None and node.inbox.open else node

    def has_told(self, hold: LeaseRecord) -> bool:
        """Whether the blocks under it have ended, and callbacks."""
        return hold not in self.bodies.values() and not self._callbacks

    async def _await_wake(self, wait: AwaitWake) -> Wake | None:
        self._raise_if_closed()
        if self.queueing and (report := self.queueing.pop(wait.token, None)) is not None:
            report.queued()
        waiter = self._waiters.get(wait.token)
        if waiter is None:
            waiter = self._waiters[wait.token] = _Waiter()
        if waiter.kept is not None:
            kept, waiter.kept = waiter.kept, None
            return kept
        future: asyncio.Future[Wake | None] = self.loop.create_future()
        waiter.future = future
        alarm = self.loop.call_later(wait.timeout_s, _time_is_up, future)
        try:
            wake = await future
        finally:
            alarm.cancel()
            waiter.future = None
        self._raise_if_closed()
        return wake

    async def _await_turn(self, wait: AwaitTurn) -> None:
        turn = wait.turn
        future: asyncio.Future[Wake | None] = self.loop.create_future()
        turn.bell = partial(self._ring, future)
        self._raise_if_closed()
        if turn.is_called():
            return
        alarm = self.loop.call_later(wait.timeout_s, _time_is_up, future)
        try:
            await future
        finally:
            alarm.cancel()
            turn.bell = None
        self._raise_if_closed()

    def _ring(self, future: asyncio.Future[Wake | None]) -> None:
        if asyncio._get_running_loop() is self.loop:
            _time_is_up(future)
        elif not self.loop.is_closed():
            self.loop.call_soon_threadsafe(_time_is_up, future)  # released in another loop, or at the end

    # ------------------------------------------------------------------ holds

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
        """It was released."""
        self.schedule.remove(hold)

    def drop(self, hold: LeaseRecord) -> None:
        """Its lease was garbage-collected, in whatever thread: renewed no more, its end is found at its deadline."""
        hold.stop_renewing()

    def give_back(self, hold: LeaseRecord) -> None:
        """Its lease reached no caller, or its block ended without a release. For finalizers, in whatever thread."""
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
        """It is going to be asked to last that long, with this order."""
        order, at = self.schedule.extending(hold, ttl_ms, asked_at)
        if at is not None and at < self._alarm_at:
            self._arm(at)
        return order

    def extended(self, hold: LeaseRecord, order: Order, held: int, ttl_ms: int, asked_at: float) -> bool:
        """That was answered; False when the hold has ended."""
        at = self.schedule.extended(hold, order, held, ttl_ms, asked_at, clock(), self.random())
        if at is not None and at < self._alarm_at:
            self._arm(at)
        return at is not None

    def replan(self, hold: LeaseRecord) -> None:
        """Its deadline changed."""
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
            self.ears.look(now)
        finally:
            self._rearm()

    # ------------------------------------------------------------------ ends

    async def settle(self, request_timeout_s: float) -> bool:
        """Wait until all that was spawned has ended; False when it has not in time."""
        until = self.loop.time() + request_timeout_s
        current = asyncio.current_task()
        while tasks := [task for task in self._tasks if task is not current]:
            left_s = until - self.loop.time()
            if left_s <= 0:
                return False
            await asyncio.wait(tasks, timeout=left_s)
        return True

    async def close(self) -> None:
        """End what waits, tell those who hold, release what they held, end the background. Idempotent."""
        self.begin_end()
        me = asyncio.current_task()
        assert me is not None
        outermost = me not in closers
        later = closers.setdefault(me, [])
        try:
            if not self.ended:
                if self._ending is None or self._ending.done():
                    # A task of its own: who closes may be cancelled, and what is left has to be done all the same.
                    self._ending = self.loop.create_task(self._end())
                    self._ending.add_done_callback(_retrieve)
                await asyncio.shield(self._ending)
        finally:
            if outermost:
                del closers[me]
                for call in later:
                    call()

    async def let_end(self) -> None:
        """Wait for the closing that goes on."""
        if self._ending is not None:
            await asyncio.wait((self._ending,))

    def begin_end(self) -> None:
        """Nothing is granted from now on, all waiting ends, and what is held is lost, and told so."""
        if self.closed:
            return
        self.closed = True
        if self._alarm is not None:
            self._alarm.cancel()
        for waiter in tuple(self._waiters.values()):
            waiter.wake(Wake(Wake.ASK))
        for sleeper in tuple(self._sleepers):
            _time_is_up(sleeper)
        self.lines.wake_all()
        self._unreleased = dict.fromkeys(self.lose_all("closed"))

    def lose_all(self, reason: str) -> list[LeaseRecord]:
        """What is held is lost; returns what the server may still hold for us."""
        now = clock()
        holds = [hold for hold in self.schedule if not hold.check_expired(now)]
        self.schedule = Schedule(self.settings)
        for hold in holds:
            hold.lose(reason)
        return holds

    def take_over(self) -> list[Callable[[], Protocol[Any]]]:
        """What another loop has to undo, since ours does not run any more; `close` may have been interrupted."""
        if self.loop.is_closed():
            for task in asyncio.all_tasks(self.loop):
                _throw_away(task)
        made = self.give_backs()
        holds = list(self._unreleased)
        self._unreleased = {}
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

    async def _end(self) -> None:
        servers = self.topology.nodes()
        # First the waiters, so that none of them is handed what we release.
        if not await self._until(lambda: not self.asking, LEAVE_S):
            for server in servers:
                server.abort()
            await self._until(lambda: not self.asking, LEAVE_S)
        for give_back in self.give_backs():
            self.spawn(give_back())
        if not await self._until(lambda: not self.releasing, LEAVE_S):
            for server in servers:
                server.retire_wire()
            self.releasing.repeat()
        # Then those who hold: what a body or a callback still uses comes last.
        await self._until(lambda: all(task in closers for task in self._callbacks), TOLD_S)
        in_bodies = set(self.bodies.values())
        await self._release([hold for hold in self._unreleased if hold not in in_bodies])
        if self._unreleased:
            await self._until(self._bodies_ended, BODIES_S)
            await self._release(tuple(self._unreleased))
        await self._until_quiet(servers)
        self.unconfirmed = len(self._tasks)
        end = getattr(self.topology, "end", None)
        reading = end() if end is not None else None
        opening = [task for task in (reading, *(server.opening for server in servers)) if task is not None]
        for server in servers:
            server.close()
        for _ in range(3):  # the end of one may begin another one
            ending = (*self._tasks, *opening)
            if not ending:
                break
            for task in ending:
                task.cancel()
            await asyncio.wait(ending, timeout=CLOSE_PATIENCE_S)
            opening = []
        await self._until_gone(servers)
        self.ended = True
        self.leave = None
        with contextlib.suppress(StopIteration, RuntimeError):
            self._guest.aclose().send(None)

    async def _release(self, holds: Sequence[LeaseRecord]) -> None:
        for number, hold in enumerate(holds, 1):
            del self._unreleased[hold]
            self.spawn(hold.release())
            if not number % RELEASED_A_TURN:
                await asyncio.sleep(0)

    def _bodies_ended(self) -> bool:
        """Whether only the tasks that close run under what we still have to release."""
        return not any(
            hold in self._unreleased and getattr(body, "task", None) not in closers
            for body, hold in self.bodies.items()
        )

    async def _until(self, condition: Callable[[], bool], request_timeout_s: float) -> bool:
        """Give the others turns until it is true; False when it is not in time."""
        until = self.loop.time() + request_timeout_s
        pause_s = 0.0
        await asyncio.sleep(0)
        while not condition():
            if self.loop.time() >= until:
                return False
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2 or 0.0002, 0.01)
        return True

    async def _until_quiet(self, servers: Sequence[Node]) -> None:
        """What is under way ends, and what it spawns, as long as there is some progress."""
        at_most = self.loop.time() + RELEASE_MAX_S
        until = self.loop.time() + CLOSE_PATIENCE_S
        quiet = 0
        least = sys.maxsize
        while quiet < 3 and self.loop.time() < min(until, at_most):
            left = len(self._tasks) + sum(server.owes for server in servers)
            if left < least:
                least = left
                until = self.loop.time() + CLOSE_PATIENCE_S
            quiet = 0 if left else quiet + 1
            await asyncio.sleep(0 if quiet else 0.001)

    async def _until_gone(self, servers: Sequence[Node]) -> None:
        """Connections say goodbye in their own time; those that do not in ours are cut."""
        until = self.loop.time() + CLOSE_PATIENCE_S
        aborted = False
        while not all(server.gone for server in servers):
            if not aborted and self.loop.time() >= until:
                aborted = True
                for server in servers:
                    server.abort()
            elif aborted and self.loop.time() >= until + CLOSE_PATIENCE_S:
                return
            await asyncio.sleep(0.001)

    def close_soon(self) -> None:
        """Close in the background, called by our own event loop."""
        closing = self.loop.create_task(self.close())
        _closing.add(closing)
        closing.add_done_callback(_closing.discard)

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
        self._waiters.clear()
        for server in self.topology.nodes():
            server.forget()


def _left(until: float) -> float:
    """The time for another request, of that for all of them."""
    return max(REDIRECT_LEAST_S, until - clock())


async def _close_with_the_loop(driver: weakref.ref[AioDriver]) -> AsyncGenerator[None, None]:
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


def _throw_away(task: asyncio.Task[Any]) -> None:
    """The event loop of this task is closed: have it clean up now, where it waits for something of ours."""
    work: Any = task.get_coro()
    awaited = work
    while (frame := getattr(awaited, "cr_frame", None)) is not None:
        if frame.f_globals.get("__name__", "").startswith("holdfast."):
            with contextlib.suppress(BaseException):
                work.close()
            return
        awaited = awaited.cr_await


def _is_interruption(task: asyncio.Task[Any]) -> bool:
    """Whether it was ended by what ends the event loop as well."""
    return not task.cancelled() and isinstance(task.exception(), (KeyboardInterrupt, SystemExit))


def _heed(future: asyncio.Future[Any]) -> None:
    """It is not waited for, and how it ends does not matter."""
    future.add_done_callback(_retrieve)


def _retrieve(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()


def _time_is_up(future: asyncio.Future[Wake | None]) -> None:
    if not future.done():
        future.set_result(None)


def _after_fork_in_child() -> None:
    for driver in tuple(_drivers):
        driver.forget("forked")
    forget_half_made()


os.register_at_fork(after_in_child=_after_fork_in_child)

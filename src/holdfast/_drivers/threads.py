"""Performs protocols in the calling thread, and does in the background what happens by itself.

Laws: a protocol is always driven to its end; what is thrown into it is thrown at the effect that it interrupted;
a loss is announced at its deadline even while every server hangs.

Theory: `run` sends each effect's result into the coroutine. In the background, each started when first
needed: the *agent* reads inboxes and keeps the times (it never waits for a server), the *renewers* (one for each node)
renew in pipelines and may hang with their server, the *chores* are spawned protocols, in a lane for each node.
"""

from __future__ import annotations

import _thread
import collections
import heapq
import os
import random
import selectors
import socket
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from holdfast._core.abandon import abandon
from holdfast._core.effects import (
    Answer,
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
from holdfast._core.fast_path import Contention, replay
from holdfast._core.record import LeaseRecord, LeaseState, Order, Schedule
from holdfast._core.replies import wake_of
from holdfast._core.settings import DEFAULT, Settings
from holdfast._core.waiting import Busy, Grant, granted, released, within
from holdfast._drivers.cancel import Cancel
from holdfast._drivers.ending import end as end_clients
from holdfast._drivers.ending import run_out
from holdfast._drivers.identity import here
from holdfast._drivers.many import GRACE_S, Dialler, ask_all
from holdfast._drivers.reopening import Reopening
from holdfast._drivers.teller import CANNOT_START, Teller, report
from holdfast._transport.clock import clock
from holdfast._transport.greenlets import refuse_half_patched, who_patched
from holdfast._transport.inherited import let_go, ours
from holdfast._transport.limits import GONE, INBOX_QUIET_S, INBOX_TIMEOUT_S, REDIRECTS_MAX
from holdfast._transport.pack import PreparedRequest, pack_command
from holdfast._transport.pending import PendingReply
from holdfast._transport.port import Topology
from holdfast._transport.threads import Node, Wire
from holdfast._transport.waits import Flag, Mailbox, Pulse, snapshot
from holdfast.errors import CannotStartThread, ClientClosed, ConfigurationError, HoldfastError

__all__ = ["Cancelled", "ThreadDriver", "close_later", "left_open"]

R = TypeVar("R")

_PING = pack_command(("PING",))

#: Where no thread could be started, it is tried again after this, s.
_START_AGAIN_S = 0.1
#: How many drivers are closed at a time when their clients were dropped.
_CLOSERS_MAX = 8
#: A closer that cannot be started is tried this often before its place is given to the next one.
_CLOSER_TRIES = 20
#: A redirected request has at least this time, s.
_REDIRECT_LEAST_S = 0.05
#: How often the agent looks whether connections have owed a reply for too long, s.
_OWED_LOOK_S = 1.0
#: How long after its last action the agent checks again by itself, s: usually below the time to the first renewal.
_LINGER_S = 1.0
#: How many threads run what was spawned, beyond which servers share them; and how many of them for several servers.
_LANES_MAX = 64
_LANES_FOR_MANY = 8
#: Threads for renewals that ask several servers each: beyond, they share them.
_RENEWERS_MAX = 64
#: Effects that wait for no server.
_AT_ONCE = frozenset({Now, Random, Spawn, Unlisten, Sleep})
#: Where the agent has no descriptor to wait with, it looks at the times so often, s.
_BLIND_S = 0.05
#: A thread that has had nothing to do for this long ends, s.
_IDLE_S = 10.0
#: At how many dropped holds those that have ended are removed; then at twice the number that remained.
_ABANDONED_MIN = 1000


class Cancelled(BaseException):
    """Thrown into a protocol whose `cancel` was set. A BaseException, so that no protocol takes it for trouble."""


_drivers: weakref.WeakSet[ThreadDriver] = weakref.WeakSet()


class ThreadDriver:
    """Runs protocols for one client. `channel` is the client's inbox."""

    def __init__(self, topology: Topology[Node], client_id: str, inboxes: str, settings: Settings = DEFAULT) -> None:
        self.topology = topology
        #: Whether the fast path can be used: where keys move from node to node, the protocol has to follow them.
        self.can_ask = not getattr(topology, "moves", True)
        self.settings = settings
        self._inboxes = inboxes
        self._fails_over: bool = getattr(topology, "fails_over", False)
        self._random = random.Random()
        self._perform: dict[type[Effect[Any]], Callable[[Any, Cancel | None], Any]] = {
            Call: self._call,
            Now: lambda _effect, _cancel: clock(),
            Random: lambda _effect, _cancel: self._random.random(),
            Spawn: self._spawn,
            Unlisten: self._unlisten,
            Listen: self._listen,
            AwaitWake: self._await_wake,
            Sleep: self._sleep,
            Command: self._command,
            CallMany: self._call_many,
        }
        refuse_half_patched()
        self._reset(client_id)
        _drivers.add(self)

    def _reset(self, client_id: str) -> None:
        self.client_id = client_id
        self.channel = self._inboxes + client_id
        self.closed = False
        self._right_to_close: dict[str, int] = {}  # taken by who closes
        #: What the server may still hold for us, and what was spawned and taken over, until `close` has seen to it.
        self.unreleased: dict[LeaseRecord, None] = {}
        self.undone: dict[int, Protocol[None]] = {}
        #: Set when `close` has done all it does; and the thread in which it does.
        self.ended = Flag()
        self.closer: int | None = None
        #: It was closed because the interpreter ends.
        self.exiting = False
        self._over = Flag()
        #: Acquires that have not ended, by token: what has to be given back when the client ends before they do.
        self.asking: dict[str, Any] = {}
        self.contention = Contention(self.settings)
        self.teller = Teller()
        #: What the calling thread has of its own.
        self.here = here()
        #: What patching replaces, as it was when we began.
        self.patchable_local: object = threading.local
        self.patchable_socket: object = socket.socket
        #: For what reads and changes times. Reentrant: a signal handler may extend what its thread is extending.
        self.lock = threading.RLock()
        self.schedule = Schedule(self.settings)
        self._waiters: dict[str, Mailbox[Wake | None]] = {}
        self._inbox_locks: dict[Node, Any] = {}
        self._inbox_of: dict[Node, Wire] = {}
        self._reopening: dict[Node, Reopening] = {}
        self._sessions: dict[str, Wire] = {}
        self._dropped: collections.deque[LeaseRecord] = collections.deque()
        self._to_give_back: collections.deque[LeaseRecord] = collections.deque()
        self._abandoned: list[LeaseRecord] = []
        self._abandoned_bound = _ABANDONED_MIN
        self._agent = _Agent(self)
        self._chores = _Chores(self)
        self._renewers: dict[object, _Renewer] = {}
        self._diallers: dict[Node, Dialler] = {}

    # ------------------------------------------------------------------ monkey patching

    def look_for_patches(self) -> None:
        """What we wait in has been replaced since we began. By gevent or eventlet?

        Then a driver that has done nothing yet begins anew; any other one has locks, threads and connections of before,
        which would hold up every greenlet, and is refused. ConfigurationError.
        """
        library = who_patched()
        if library:
            refuse_half_patched()
            if self._is_used():
                raise ConfigurationError(
                    "client",
                    f"client of {', '.join(node.name for node in self.topology.nodes())}",
                    f"one that was not used before {library} patched the process: its connections and threads are of "
                    "before. Patch first thing in the program, or make the client after it (in a worker after fork)",
                )
            self.after_fork(_new_client_id())
        # Or it was somebody else: a test, as a rule.
        self.patchable_local, self.patchable_socket = threading.local, socket.socket

    def _is_used(self) -> bool:
        return any(node.connected for node in self.topology.nodes()) or bool(
            self._agent.thread or self._chores.thread or self._renewers or self._diallers or len(self.schedule)
        )

    # ------------------------------------------------------------------ running

    def run(self, protocol: Protocol[R], cancel: Cancel | None = None) -> R:
        """Drive a protocol to its end in this thread. `cancel` ends it with `Cancelled`."""
        if self.patchable_local is not threading.local or self.patchable_socket is not socket.socket:
            try:
                self.look_for_patches()
            except BaseException:
                protocol.close()
                raise
        try:
            return self._drive(protocol, protocol.send(None), cancel)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        except BaseException as error:
            self._interrupted(protocol, error)
            raise

    def _interrupted(self, protocol: Protocol[Any], error: BaseException) -> None:
        """An exception has come up; when it came between two effects, the protocol has not seen it yet."""
        if protocol.cr_frame is None:  # type: ignore[attr-defined]
            return  # it came from there
        try:
            effect = protocol.throw(error)
            while True:
                try:
                    result = self._perform[type(effect)](effect, None)
                except RequestFailed as failure:
                    effect = protocol.throw(failure)
                else:
                    effect = protocol.send(result)
        except BaseException:
            pass  # that error again, or what the protocol makes of it

    def _drive(self, protocol: Protocol[R], effect: Effect[Any], cancel: Cancel | None) -> R:
        """From `effect`, which it awaits, to its end."""
        send = protocol.send
        perform = self._perform
        result: Any = None
        try:
            while True:
                try:
                    if cancel is not None and cancel.is_set():
                        raise Cancelled
                    kind = type(effect)
                    result = clock() if kind is Now else perform[kind](effect, cancel)
                except RequestFailed as failure:
                    failure.about(effect)
                    effect = protocol.throw(self._final(failure) if self.closed else failure)
                except BaseException as interruption:
                    # Whatever ends us is the protocol's to clean up after, and nothing interrupts that.
                    cancel = None
                    effect = protocol.throw(interruption)
                else:
                    effect = send(result)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    # ------------------------------------------------------------------ the fast path

    def acquire(
        self,
        first: PreparedRequest | None,
        start: Callable[[str, float | None, bool], Protocol[Grant | Busy]],
        token: str,
        timeout_s: float | None,
        ttl_ms: int,
        cancel: Cancel | None = None,
    ) -> Grant | Busy:
        """Acquire with this token: by `first` alone where that is granted in time, else by the protocol.

        `first`: the protocol's first request, ready but for the token; None where there is no such one. `start(token,
        timeout_s, sent)` makes the protocol; `sent`: its first request, which queues nobody, was sent already.
        """
        if first is None or cancel is not None or self.contention.expects(first.key):
            return self.run(start(token, timeout_s, False), cancel)
        request_timeout_s = first.request_timeout_s
        if timeout_s is not None:
            request_timeout_s = within(request_timeout_s, timeout_s or self.settings.short_retry_s)
        asked_at = clock()
        try:
            reply = self.topology.node_for(first.key, None).call_packed(
                first.packed(token), request_timeout_s, first.script
            )
        except BaseException as error:
            return self._resume(first, start(token, timeout_s, True), asked_at, None, error)
        grant = granted(reply, asked_at, clock(), ttl_ms)
        if grant is not None:
            return grant
        self.contention.saw(first.key)
        return self._resume(first, start(token, timeout_s, True), asked_at, reply, None)

    def release(self, hold: LeaseRecord, first: PreparedRequest | None) -> bool:
        """Release what is held; False when it was not held any more. `first` as in `acquire`."""
        if first is None:
            return self.run(hold.release())
        try:
            reply = self.topology.node_for(first.key, None).call_packed(
                first.packed(hold.token), first.request_timeout_s, first.script
            )
        except BaseException as error:
            return self._resume(first, hold.release(), 0.0, None, error)
        held = released(reply)
        return self._resume(first, hold.release(), 0.0, reply, None) if held is None else held

    def _resume(
        self, first: PreparedRequest, protocol: Protocol[R], asked_at: float, reply: Any, error: BaseException | None
    ) -> R:
        """Run a protocol whose first request was sent at `asked_at`, and ended so."""
        if isinstance(error, RequestFailed):
            self._in_trouble(self.topology.node_for(first.key, None), error)
            error = self._final(error) if self.closed else error
        return self.run(replay(protocol, asked_at, reply, error))

    # ------------------------------------------------------------------ effects

    def _call(self, call: Call, cancel: Cancel | None) -> Any:
        node = self.topology.node_for(call.keys[0], call.node)
        until = clock() + call.request_timeout_s
        try:
            if cancel is None:
                return node.call(call)
            return self._abortable(lambda on_wire: node.call(call, on_wire), cancel)
        except RequestFailed as failure:
            return self._elsewhere(node, failure, partial(_call_at, call, until))

    def _elsewhere(self, node: Node, failure: RequestFailed, ask: Callable[[Node, bool], Any]) -> Any:
        """Follow MOVED and ASK; any other trouble is noted, and raised."""
        for _ in range(REDIRECTS_MAX):  # a slot can move while we follow it, but not forever
            if failure.kind not in ("MOVED", "ASK"):
                break
            elsewhere = self.topology.redirect(node, failure)
            if elsewhere is None:
                break
            node, asking = elsewhere
            if not asking:
                self._ask_all_waiters()  # their inbox is at the node that has owned the slot
            try:
                return ask(node, asking)
            except RequestFailed as again:
                failure = again
        self._in_trouble(node, failure)
        raise failure

    def _in_trouble(self, node: Node, failure: RequestFailed) -> None:
        self.topology.troubled(node, failure)
        if self._fails_over and failure.kind in GONE and node in self._inbox_of:
            self._agent.drop(node)  # it may be connected to what was the master

    def _abortable(self, act: Callable[[Callable[[Wire | None], None]], Any], cancel: Cancel) -> Any:
        in_use: list[Wire] = []
        turn = threading.RLock()  # so that no connection is aborted after it was said to be in use no more

        def on_wire(wire: Wire | None) -> None:
            with turn:
                in_use.clear()
                if wire is not None:
                    in_use.append(wire)
                    if cancel.is_set():
                        wire.abort()

        def abort() -> None:
            with turn:
                for wire in in_use:
                    wire.abort()

        cancel._watch(abort)
        try:
            return act(on_wire)
        except RequestFailed:
            if cancel.is_set():
                raise Cancelled from None
            raise
        finally:
            cancel._unwatch(abort)

    def _command(self, command: Command, cancel: Cancel | None) -> Any:
        node = self.topology.node_for(command.key, command.node)
        until = clock() + command.request_timeout_s
        try:
            if command.session is None:
                return node.command(command)
            return self._command_in_session(node, command)
        except RequestFailed as failure:
            if command.session is not None:
                if failure.kind == "MOVED":
                    self.topology.redirect(node, failure)  # the session has to begin anew, at the right node
                self._in_trouble(node, failure)
                raise
            return self._elsewhere(node, failure, partial(_command_at, command, until))

    def _command_in_session(self, node: Node, command: Command) -> Any:
        """One connection for all commands of a session; EXEC, DISCARD, UNWATCH and trouble end it."""
        session = command.session
        assert session is not None
        wire = self._sessions.pop(session, None) or node.take(command.request_timeout_s)
        reply = node.command_on(wire, command)  # closes the wire on trouble
        if str(command.args[0]).upper() in ("EXEC", "DISCARD", "UNWATCH"):
            node.put(wire)
        else:
            self._sessions[session] = wire
        return reply

    def _call_many(self, many: CallMany, cancel: Cancel | None) -> list[Answer]:
        nodes = [self.topology.node_for(call.keys[0], call.node) for call in many.calls]
        answers = (self._call_members if self.can_ask else self._call_slots)(many, nodes, cancel)
        for call, answer in zip(many.calls, answers, strict=True):
            if isinstance(answer, RequestFailed):
                answer.about(call)
        return answers

    def _call_slots(self, many: CallMany, nodes: Sequence[Node], cancel: Cancel | None) -> list[Answer]:
        """Several slots, which may have moved; one after the other where replicas have to acknowledge."""
        answers: list[Answer]
        if any(call.sync is not None for call in many.calls):
            answers = []
            for call in many.calls:
                try:
                    answers.append(self._call(call, cancel))
                except RequestFailed as failure:
                    answers.append(failure)
            return answers
        until = clock() + many.request_timeout_s
        answers = self._call_members(many, nodes, cancel)
        for index, answer in enumerate(answers):
            if isinstance(answer, RequestFailed):
                try:
                    call = many.calls[index]
                    answers[index] = self._elsewhere(
                        nodes[index], answer, partial(_call_at, call, max(until, clock() + _REDIRECT_LEAST_S))
                    )
                except RequestFailed as failure:
                    answers[index] = failure
        return answers

    def _call_members(self, many: CallMany, nodes: Sequence[Node], cancel: Cancel | None) -> list[Answer]:
        if cancel is None:
            return ask_all(many, nodes, self._dialler, self._agent.adopt, None)
        watched: list[Callable[[], None]] = []

        def cancelled(wake: Callable[[], None] | None) -> bool:
            if wake is not None:
                watched.append(wake)
                cancel._watch(wake)
            return cancel.is_set()

        try:
            answers = ask_all(many, nodes, self._dialler, self._agent.adopt, cancelled)
        finally:
            for wake in watched:
                cancel._unwatch(wake)
        if cancel.is_set():
            raise Cancelled
        return answers

    def _dialler(self, node: Node) -> Dialler:
        dialler = self._diallers.get(node)
        if dialler is None:
            for other in [other for other in tuple(self._diallers) if other.closed]:  # it has left its Cluster
                self._diallers.pop(other).stop()
            dialler = self._diallers.setdefault(node, Dialler(node))
        return dialler

    def _sleep(self, sleep: Sleep, cancel: Cancel | None) -> None:
        if cancel is None:
            if self._over.wait_s(sleep.seconds):
                raise self._final()
        elif cancel.wait(sleep.seconds):
            raise Cancelled
        elif self.closed:
            raise self._final()

    def _final(self, failure: RequestFailed | None = None) -> RequestFailed:
        """The client is closed: nothing is tried again, and waiting ends."""
        sent = failure is not None and failure.maybe_executed
        return RequestFailed("closed", "the client is closed", "", maybe_executed=sent, transient=False)

    def _spawn(self, spawn: Spawn, cancel: Cancel | None) -> None:
        self._chores.add(spawn.protocol)

    def _unlisten(self, unlisten: Unlisten, cancel: Cancel | None) -> None:
        self._waiters.pop(unlisten.token, None)

    def _listen(self, listen: Listen, cancel: Cancel | None) -> None:
        self._waiters.setdefault(listen.token, Mailbox())
        if self.closed:
            raise self._final()
        node = self.topology.node_for(listen.key, listen.node)
        if node not in self._inbox_of:
            try:
                self._open_inbox(node, listen.request_timeout_s)
            except RequestFailed as failure:
                self.topology.troubled(node, failure)
                raise
        else:
            self._agent.check(node)

    def _await_wake(self, wait: AwaitWake, cancel: Cancel | None) -> Wake | None:
        wakes = self._waiters[wait.token]
        if cancel is None:
            wake = None if self.closed else wakes.get(wait.timeout_s)
            if self.closed:
                raise self._final()
            return wake

        def interrupt() -> None:
            wakes.put(None)

        cancel._watch(interrupt)
        try:
            wake = None if cancel.is_set() else wakes.get(wait.timeout_s)
        finally:
            cancel._unwatch(interrupt)
        if cancel.is_set():
            raise Cancelled
        if self.closed:
            raise self._final()
        return wake

    # ------------------------------------------------------------------ inbox

    def listening(self, key: str) -> bool:
        """Whether the inbox at the key's node is open, so that a first request may queue."""
        return bool(self._inbox_of) and self.topology.node_for(key, None) in self._inbox_of

    def _open_inbox(self, node: Node, request_timeout_s: float) -> None:
        until = clock() + request_timeout_s
        lock = self._inbox_locks.setdefault(node, threading.RLock())
        if not lock.acquire(timeout=request_timeout_s):  # the others wait for the one subscription
            raise RequestFailed("silent", "no subscription in time", node.name, maybe_executed=False, transient=True)
        try:
            if node in self._inbox_of:
                return
            reopening = self._reopening.setdefault(node, Reopening(self.settings))
            if reopening.pause_s:
                self._over.wait_s(min(reopening.pause_s, until - clock()))
            if self.closed:
                raise RequestFailed("closed", "the client is closed", node.name, maybe_executed=False, transient=False)
            wire = node.subscribe(self.channel, max(0.05, until - clock()))
            reopening.opened(clock())
            if self._inbox_of.setdefault(node, wire) is wire:
                self._agent.watch(node, wire)
            else:
                wire.close()  # a signal handler has subscribed meanwhile
        finally:
            lock.release()

    def inbox_broken(self, node: Node) -> None:
        """Its waiters look for themselves, and open it anew."""
        wire = self._inbox_of.pop(node, None)
        if wire is not None:
            wire.close()
            self._reopening[node].broke(clock())
        if node.closed:  # it has left its Cluster
            self._inbox_locks.pop(node, None)
            self._reopening.pop(node, None)
        self._ask_all_waiters()

    def _ask_all_waiters(self) -> None:
        for wakes in snapshot(self._waiters):
            wakes.put(Wake(Wake.ASK))

    def deliver(self, reply: Reply) -> None:
        """What came in the inbox. For nobody: its give-back is under way."""
        wake = wake_of(reply, self.channel)
        wakes = self._waiters.get(wake[0]) if wake is not None else None
        if wake is not None and wakes is not None:
            wakes.put(wake[1])

    # ------------------------------------------------------------------ holds

    def watch(self, hold: LeaseRecord) -> None:
        """Renew it and look after its deadline, until `unwatch`.

        Raises `ClientClosed` when the client was closed meanwhile, `CannotStartThread` when nobody can look after it;
        it is given back then.
        """
        at = self.schedule.add(hold, self._random.random())
        try:
            if self.closed:
                raise self.closed_error()
            self._agent.no_later_than(at)
        except BaseException:
            self.schedule.remove(hold)
            if hold.mark_released():
                self.spawn_release(hold)
            raise

    def finish(self, hold: LeaseRecord) -> bool:
        """End it for its owner, who then releases it; False when it had ended before, in whatever way.

        One step: of an owner, a signal handler, a loss and a close only one ends a lease. Code catching an exception
        out of this, or before the release has begun, asks `hold.half_released()`.
        """
        if not hold.mark_released():
            return False
        self.schedule.remove(hold)
        return True

    def unwatch(self, hold: LeaseRecord) -> None:
        """It was released."""
        self.schedule.remove(hold)

    def extending(self, hold: LeaseRecord, ttl_ms: int, asked_at: float) -> Order:
        """It is going to be asked to last so long, with this order."""
        with self.lock:
            order, at = self.schedule.extending(hold, ttl_ms, asked_at)
            if at is not None:
                self._agent.no_later_than(at)
        return order

    def extended(self, hold: LeaseRecord, order: Order, held: int, ttl_ms: int, asked_at: float) -> bool:
        """That was answered; False when the hold has ended."""
        with self.lock:
            at = self.schedule.extended(hold, order, held, ttl_ms, asked_at, clock(), self._random.random())
            if at is not None:
                self._agent.no_later_than(at)
        return at is not None

    def replan(self, hold: LeaseRecord) -> None:
        """Its deadline changed."""
        with self.lock:
            self._agent.no_later_than(self.schedule.replan(hold, self._random.random()))

    def drop(self, hold: LeaseRecord) -> None:
        """Its lease was garbage-collected: renew it no more. No more than a note, since a collection may come anywhere.

        The agent reads the notes before it renews anything.
        """
        self._dropped.append(hold)

    def give_back(self, hold: LeaseRecord) -> None:
        """Its lease never reached anybody, or its block ended without a release. As `drop`, but it is released soon."""
        self._to_give_back.append(hold)
        self._agent.poke()

    def sweep(self) -> None:
        """Do what `drop` asked for. What was dropped is still released at the end, if its time is not over by then."""
        to_give_back = self._to_give_back
        while to_give_back:
            try:
                hold = to_give_back.popleft()
            except IndexError:
                break
            self.schedule.remove(hold)
            if hold.mark_released() or hold.half_released():
                self.spawn_release(hold)
        dropped = self._dropped
        while dropped:
            try:
                hold = dropped.popleft()
            except IndexError:
                break
            self.schedule.remove(hold)
            self._abandoned.append(hold)
        if len(self._abandoned) > self._abandoned_bound:
            now = clock()
            self._abandoned = [hold for hold in self._abandoned if not hold.check_expired(now)]
            self._abandoned_bound = max(_ABANDONED_MIN, 2 * len(self._abandoned))

    def spawn(self, protocol: Protocol[None]) -> None:
        """Run it in the background."""
        self._chores.add(protocol)

    def spawn_release(self, hold: LeaseRecord) -> None:
        """Release in the background what nobody wants any more; trouble is left to the ttl."""
        self._chores.add(_ignoring_trouble(hold.release()))

    def renew(self, holds: Sequence[LeaseRecord]) -> None:
        """Start renewing what is due; does not wait."""
        now = clock()
        by_place: dict[object, list[tuple[LeaseRecord, int, Protocol[int], Effect[Any]]]] = {}
        for hold in holds:
            if not hold.alive:
                continue  # released just now
            ttl_ms = hold.renewal_ttl_ms(now)
            assert ttl_ms is not None and hold.renewal is not None
            protocol = hold.renew(ttl_ms)
            effect = protocol.send(None)
            by_place.setdefault(self._place_of(effect), []).append((hold, ttl_ms, protocol, effect))
        for place, jobs in by_place.items():
            renewer = self._renewers.get(place)
            if renewer is None:
                node = place if isinstance(place, Node) else self.topology.nodes()[0]
                renewer = self._renewers[place] = _Renewer(self, node)
            try:
                renewer.add(jobs)
            except CannotStartThread:
                self.renewals_failed(jobs)  # tried again, like after trouble

    def _owner_of(self, key: str | None, index: int | None) -> Node:
        """Whom it would be asked of now. Does not wait."""
        owner_of = getattr(self.topology, "owner_of", None)
        return self.topology.node_for(key, index) if owner_of is None else owner_of(key)

    def _place_of(self, effect: Effect[Any]) -> object:
        """Which renewer does it: that of its server, or of the same servers."""
        if isinstance(effect, Call):
            return self._owner_of(effect.keys[0], effect.node)
        if isinstance(effect, Command):
            return self._owner_of(effect.key, effect.node)
        if not isinstance(effect, CallMany):
            return self.topology.nodes()[0]
        servers = frozenset(self._owner_of(call.keys[0], call.node) for call in effect.calls)
        if servers in self._renewers or len(self._renewers) < _RENEWERS_MAX:
            return servers
        return hash(servers) % 8

    def renew_batch(self, node: Node, jobs: list[tuple[LeaseRecord, int, Protocol[int], Effect[Any]]]) -> None:
        """Renew in one pipeline; in a renewer's thread."""
        sent_at = clock()
        plain = [job for job in jobs if isinstance(job[3], Call)]
        calls = [job[3] for job in plain if isinstance(job[3], Call)]
        if calls:
            request_timeout_s = min(call.request_timeout_s for call in calls)
            answers = node.call_all(calls, request_timeout_s)
            for (hold, ttl_ms, protocol, effect), answer in zip(plain, answers, strict=True):
                if isinstance(answer, RequestFailed):
                    assert isinstance(effect, Call)
                    try:
                        answer = self._elsewhere(
                            node, answer, partial(_call_at, effect, sent_at + effect.request_timeout_s)
                        )
                    except RequestFailed as failure:
                        answer = failure
                self._answer(hold, ttl_ms, protocol, answer, sent_at)
        for hold, ttl_ms, protocol, effect in jobs:
            if isinstance(effect, Call):
                continue
            try:
                reply = self._perform[type(effect)](effect, None)
            except RequestFailed as failure:
                reply = failure
            self._answer(hold, ttl_ms, protocol, reply, sent_at)

    def _answer(self, hold: LeaseRecord, ttl_ms: int, protocol: Protocol[int], answer: Any, sent_at: float) -> None:
        """Drive a renewal on with its first answer, and note what came of it."""
        try:
            effect = protocol.throw(answer) if isinstance(answer, RequestFailed) else protocol.send(answer)
            held = self._drive(protocol, effect, None)
        except StopIteration as end:
            held = end.value
        except RequestFailed:
            with self.lock:
                self.schedule.failed(hold, clock(), self._random.random(), sent_at)
                at = hold.next_at
            self._agent.no_later_than(at)
            return
        with self.lock:
            kept = self.schedule.answered(hold, held, ttl_ms, sent_at, clock(), self._random.random())
            at = hold.next_at
        if kept:
            self._agent.no_later_than(at)
        elif held and hold.is_left_over:
            self.spawn_release(hold)  # extended, but too late to be trusted

    def renewals_failed(self, jobs: Sequence[tuple[LeaseRecord, int, Protocol[int], Effect[Any]]]) -> None:
        """Something else than trouble ended them: tried again, like after trouble."""
        for hold, _, protocol, _ in jobs:
            abandon(protocol)
            with self.lock:
                if not hold.asked:
                    continue  # it was answered before
                self.schedule.failed(hold, clock(), self._random.random())
                at = hold.next_at
            self._agent.no_later_than(at)

    def in_agent(self) -> bool:
        """Whether this is the agent's thread, which must not wait for servers."""
        return threading.current_thread() is self._agent.thread

    def starved(self) -> bool:
        """Whether something waits for a thread that could not be started."""
        left = len(_left) > 0 and not _close_left()
        return self._chores.starved() or self.teller.starved() or left

    def agent_ended(self) -> None:
        """Nobody keeps the times: what is held counts as lost at once, since nobody would tell of its end."""
        self._agent = _Agent(self)
        with self.lock:
            for hold in self.schedule:
                self.schedule.remove(hold)
                hold.lose("watchdog ended")
        for node in tuple(self._inbox_of):
            self.inbox_broken(node)

    # ------------------------------------------------------------------ ends

    def settle(self, request_timeout_s: float) -> bool:
        """Wait until all spawned protocols have ended; False when they have not in time."""
        return self._chores.settle(request_timeout_s)

    def close(self) -> None:
        """End what waits, tell those who hold, release what they held, end the background. Idempotent."""
        end_clients((self,))

    # The steps of it, for `end`, which does them for several clients side by side.

    def begin_end(self) -> bool:
        """Nothing is granted from now on; False when another thread ends it."""
        me = threading.get_ident()
        if self._right_to_close.setdefault("closer", me) != me:
            return False
        self.closer = me
        self.closed = True
        return True

    def interrupt_end(self) -> None:
        """An exception has come up while it was ended: the next call may do the rest."""
        if self._right_to_close.get("closer") == threading.get_ident():
            self._right_to_close.clear()

    def closed_error(self, error: HoldfastError | None = None) -> BaseException:
        """`ClientClosed`, or that error.

        At the interpreter's end `SystemExit` for daemon threads, which are ended then: in silence, as far as they have
        nothing to do with us.
        """
        if self.exiting and threading.current_thread().daemon:
            return SystemExit()
        return ClientClosed() if error is None else error

    def wake_all(self) -> None:
        """Who waits finds that it is closed."""
        self._over.set()
        self._ask_all_waiters()

    def lose_all(self, reason: str) -> list[LeaseRecord]:
        """What is held is lost, and told so; returns what the server may still hold for us."""
        self.sweep()
        now = clock()
        for hold in (*self.schedule, *self._abandoned):
            if not hold.check_expired(now):
                self.unreleased[hold] = None
                hold.lose(reason)
        self.schedule = Schedule(self.settings)
        self._abandoned = []
        # Else its owner releases it in this moment.
        return [hold for hold in self.unreleased if hold.state is LeaseState.LOST]

    def busy(self) -> bool:
        """Whether a request is under way."""
        inboxes = snapshot(self._inbox_of)
        return any(wire not in inboxes for node in self.topology.nodes() for wire in node.in_use())

    def cut_off(self) -> None:
        """Requests that are under way end now."""
        for node in self.topology.nodes():
            for wire in node.in_use():
                wire.abort()

    def chores_left(self, last: bool = False) -> list[tuple[Protocol[None], Effect[Any] | None]]:
        """What was spawned and is left to do, for the caller to do. After the `last` time, the spawner does it."""
        return self._chores.hand_over(last)

    def undoes(self) -> bool:
        """Whether a thread of the background has something that was spawned, and that `chores_left` has not taken."""
        return self._chores.unfinished

    def end_background(self) -> None:
        """Tell it to end, and cut off what it may be waiting for."""
        self._agent.stop()
        for renewer in tuple(self._renewers.values()):
            renewer.stop()
        for dialler in tuple(self._diallers.values()):
            dialler.stop()
        self.teller.stop()
        for node in self.topology.nodes():
            node.close()
        self.cut_off()

    def join_background(self, until: float) -> None:
        """Wait for its threads, but not longer than that."""
        for one in (self._agent, *self._chores.everybody(), *self._renewers.values()):
            one.join(until)
        self._agent.disown()
        for wire in (*self._inbox_of.values(), *self._sessions.values()):
            wire.close()
        self._inbox_of.clear()
        self._sessions.clear()

    def after_fork(self, client_id: str) -> None:
        """In the child: nothing is held, nothing runs, every descriptor is closed without a word on it."""
        for hold in self.schedule:
            hold.lose("forked")
        for wire in self._inbox_of.values():
            wire.forget()
        for node in self.topology.nodes():
            node.forget()
        forget = getattr(self.topology, "forget", None)
        if forget is not None:
            forget()
        self._agent.forget()
        self._reset(client_id)


#: Drivers whose clients were garbage-collected, and the right to start a thread that closes some of them.
_left: collections.deque[ThreadDriver] = collections.deque()
_closers: list[None] = [None] * _CLOSERS_MAX


def close_later(driver: ThreadDriver) -> None:
    """Close it in the background: the client was garbage-collected, in any thread and at any bytecode.

    Takes no lock, and waits for nothing, not even for the thread to begin.
    """
    _left.append(driver)
    if not _close_left():
        driver._agent.poke()  # it tries again


def _close_left() -> bool:
    """Have a thread close those that were left; False when none can be started now."""
    try:
        _closers.pop()
    except IndexError:
        return True  # those that are at it look again
    try:
        _thread.start_new_thread(_start_closer, ())
    except CANNOT_START:
        _closers.append(None)  # agents try again; else the next one takes it along, or the end of the process
        return False
    return True


def left_open() -> list[ThreadDriver]:
    """Those that nobody has come to yet; the caller closes them."""
    found = []
    while _left:
        try:
            found.append(_left.popleft())
        except IndexError:
            break
    return found


def _start_closer() -> None:
    # `Thread.start` takes locks and waits, which is nothing for a finalizer.
    for _ in range(_CLOSER_TRIES):
        try:
            threading.Thread(target=_close_some, name="holdfast-closer", daemon=True).start()
            return
        except CANNOT_START:
            time.sleep(_START_AGAIN_S)
    _closers.append(None)  # as above; this thread is perhaps the one too many


def _close_some() -> None:
    try:
        end_clients(left_open())
    finally:
        _closers.append(None)
    end_clients(left_open())  # who came just now may have found nobody free


def _command_at(command: Command, until: float, node: Node, asking: bool) -> Any:
    left_s = max(_REDIRECT_LEAST_S, until - clock())
    return node.command(
        Command(command.args, left_s, command.key, command.node, command.session, command.fits), asking=asking
    )


def _call_at(call: Call, until: float, node: Node, asking: bool) -> Any:
    """Elsewhere, in the time that is left of the first request's."""
    left_s = max(_REDIRECT_LEAST_S, until - clock())
    return node.call(Call(call.script, call.keys, call.args, left_s, call.node, call.sync), asking=asking)


async def _ignoring_trouble(protocol: Protocol[Any]) -> None:
    try:
        await protocol
    except RequestFailed:
        pass  # the ttl ends it


class _Background:
    """A daemon thread that is started when first needed.

    A thread that finds none starts one, without a lock; of several that were started at once the first one stays.
    """

    name = "holdfast"

    def __init__(self, driver: ThreadDriver) -> None:
        self.driver = driver
        self.thread: threading.Thread | None = None
        self._stopping = False
        self._place = [None]  # taken by the one that stays

    def ends(self) -> bool:
        """Whether it has been told to end."""
        return self._stopping

    def start(self) -> None:
        """Start it unless it runs. Raises `CannotStartThread`."""
        if self.thread is None and not self._stopping:
            try:
                threading.Thread(target=self._run, name=self.name, daemon=True).start()
            except CANNOT_START as error:
                raise CannotStartThread(str(error)) from error

    def _run(self) -> None:
        while True:
            try:
                self._place.pop()
            except IndexError:
                return
            self.thread = threading.current_thread()
            try:
                self.main()
            finally:
                self.thread = None
                self._place.append(None)
            if not self.has_work():  # that came at the last moment, and found a thread
                return

    def has_work(self) -> bool:
        """Whether it should go on after all, when `main` has ended."""
        return False

    def main(self) -> None:
        """What the thread does."""
        raise NotImplementedError

    def join(self, until: float) -> None:
        """Wait for its end, unless we are it."""
        thread = self.thread
        if thread is not None and thread.ident != threading.get_ident():
            thread.join(max(0.0, until - clock()))


class _Agent(_Background):
    """Reads inboxes, and keeps the times of the schedule."""

    name = "holdfast-agent"

    def __init__(self, driver: ThreadDriver) -> None:
        super().__init__(driver)
        self._waker: tuple[socket.socket, socket.socket] | None = None
        self._sleeps_until = 0.0
        self._lingers = True
        self._new: list[tuple[Node, Wire]] = []
        self._new_owed: list[PendingReply] = []
        self._owed: set[PendingReply] = set()
        self._to_check: list[Node] = []
        self._heard_at: dict[Node, float] = {}
        self._pong_until: dict[Node, float] = {}

    def no_later_than(self, at: float) -> None:
        """Something is due at `at`."""
        if self.thread is None:
            self.start()
        elif at < self._sleeps_until:
            self.poke()

    def watch(self, node: Node, wire: Wire) -> None:
        """Read this inbox from now on."""
        self._new.append((node, wire))
        if self.thread is None:
            self.start()
        self.poke()

    def check(self, node: Node) -> None:
        """Somebody relies on the inbox of that node: ask for a sign of life when it has been quiet for long."""
        if node not in self._pong_until and clock() - self._heard_at.get(node, float("inf")) > INBOX_QUIET_S:
            self._to_check.append(node)
            self.poke()

    def drop(self, node: Node) -> None:
        """End the inbox of that node; its waiters look for themselves."""
        wire = self.driver._inbox_of.get(node)
        if wire is not None:
            wire.abort()  # reading it finds the end

    def adopt(self, asked: Sequence[PendingReply]) -> None:
        """Read what these connections owe, when it comes."""
        for one in asked:
            one.node.owed += 1
        self._new_owed.extend(asked)
        if self.thread is None:
            try:
                self.start()
            except CannotStartThread:
                pass  # read by the one that is started next; what was asked was answered well enough
        self.poke()

    def disown(self) -> None:
        """Close what still owes something, when no thread was there to read it."""
        if self.thread is None:
            while self._new_owed:
                self._new_owed.pop().wire.close()

    def poke(self) -> None:
        """Let it look again now."""
        waker = self._waker
        if waker is not None:
            try:
                waker[1].send(b"!")
            except OSError:
                pass  # the buffer is full, so it will wake up; or it has ended

    def stop(self) -> None:
        """End the thread."""
        self._stopping = True
        self.poke()

    def forget(self) -> None:
        """After fork, in the child."""
        if self._waker is not None:
            for end in self._waker:
                end.close()
        for asked in (*self._owed, *self._new_owed):
            asked.wire.forget()

    def main(self) -> None:
        try:
            while not self._stopping:
                try:
                    selector, waker = _open_eyes()
                except OSError:
                    # No descriptor is left: the times are kept all the same, and what comes is read when there is one.
                    self._blind_turn()
                    continue
                self._look(selector, waker)
        except BaseException:
            self.driver.agent_ended()
            raise
        finally:
            for asked in (*self._owed, *self._new_owed):
                asked.wire.close()

    def _look(self, selector: selectors.BaseSelector, waker: tuple[socket.socket, socket.socket]) -> None:
        self._waker = waker  # news from before there was a waker is looked at in the first turn
        try:
            while not self._stopping:
                self._round(selector, waker[0])
        finally:
            selector.close()
            for end in waker:
                end.close()

    def _blind_turn(self) -> None:
        driver = self.driver
        driver.sweep()
        driver.starved()
        with driver.lock:
            due = driver.schedule.due(clock())
        if due:
            driver.renew(due)
        time.sleep(_BLIND_S)

    def _round(self, selector: selectors.BaseSelector, waker: socket.socket) -> None:
        driver = self.driver
        driver.sweep()
        starved = driver.starved()
        while self._new:
            node, wire = self._new.pop()
            selector.register(wire.sock, selectors.EVENT_READ, (node, wire))
            self._read(selector, node, wire)  # TLS may have read ahead
        while self._new_owed:
            asked = self._new_owed.pop()
            self._owed.add(asked)
            selector.register(asked.wire.sock, selectors.EVENT_READ, asked)
            self._read_owed(selector, asked)
        while self._to_check:
            self._ping(self._to_check.pop())
        # The promise about when we look next is made before looking at the schedule, so that nothing falls between.
        self._sleeps_until = float("inf")
        with driver.lock:
            next_at = driver.schedule.next_at()
        wait_s = None
        if next_at is not None:
            self._sleeps_until = next_at
            wait_s = max(0.0, next_at - clock())
        elif self._lingers:
            # Where there was a lease there will be another one, and its coming need not wake us.
            self._sleeps_until = clock() + _LINGER_S
            wait_s = _LINGER_S
        if self._owed:
            wait_s = _OWED_LOOK_S if wait_s is None else min(wait_s, _OWED_LOOK_S)
        if self._pong_until:
            pong_s = max(0.0, min(self._pong_until.values()) - clock())
            wait_s = pong_s if wait_s is None else min(wait_s, pong_s)
        if starved:
            wait_s = _START_AGAIN_S if wait_s is None else min(wait_s, _START_AGAIN_S)
        ready = selector.select(wait_s)
        self._lingers = bool(ready)
        for key, _ in ready:
            if isinstance(key.data, PendingReply):
                self._read_owed(selector, key.data)
            elif key.data is None:
                try:
                    waker.recv(4096)
                except OSError:
                    pass
            else:
                self._read(selector, *key.data)
        self._sleeps_until = 0.0
        if self._pong_until:
            now = clock()
            for node in [node for node, until in self._pong_until.items() if until <= now]:
                del self._pong_until[node]
                self.drop(node)  # half-open, or as good as that
        if self._owed:
            now = clock()
            for asked in [asked for asked in self._owed if asked.until <= now]:
                self._disowned(selector, asked)
                asked.wire.close()
        if next_at is not None and clock() >= next_at:
            with driver.lock:
                due = driver.schedule.due(clock())
            if due:
                driver.renew(due)

    def _read_owed(self, selector: selectors.BaseSelector, asked: PendingReply) -> None:
        sock = asked.wire.sock
        try:
            answer = asked.read()
        except ValueError:  # closed under us
            answer = RequestFailed("broken", "closed", asked.node.name, maybe_executed=True, transient=True)
        if answer is None:
            return
        self._disowned(selector, asked, sock)
        if not isinstance(answer, RequestFailed):
            if clock() - asked.sent_at < GRACE_S:
                asked.node.slow = False
            if asked.late is not None:
                protocol = asked.late(asked.index, answer)
                if protocol is not None:
                    self.driver.spawn(protocol)

    def _disowned(
        self, selector: selectors.BaseSelector, asked: PendingReply, sock: socket.socket | None = None
    ) -> None:
        self._owed.discard(asked)
        asked.node.owed -= 1
        try:
            selector.unregister(asked.wire.sock if sock is None else sock)
        except (KeyError, ValueError):
            pass

    def _ping(self, node: Node) -> None:
        wire = self.driver._inbox_of.get(node)
        if wire is not None and node not in self._pong_until:
            self._pong_until[node] = clock() + INBOX_TIMEOUT_S
            try:
                wire.sock.send(_PING)
            except (OSError, ValueError):
                pass  # no sign of life will come

    def _read(self, selector: selectors.BaseSelector, node: Node, wire: Wire) -> None:
        self._heard_at[node] = clock()
        self._pong_until.pop(node, None)
        try:
            for reply in wire.read_ready():
                self.driver.deliver(reply)
        except (OSError, ValueError):
            selector.unregister(wire.sock)
            self._heard_at.pop(node, None)
            self.driver.inbox_broken(node)


def _open_eyes() -> tuple[selectors.BaseSelector, tuple[socket.socket, socket.socket]]:
    """What the agent looks with, and what it is poked with. OSError when no descriptor is left."""
    waker = socket.socketpair()
    try:
        selector = selectors.DefaultSelector()
    except OSError:
        for end in waker:
            end.close()
        raise
    for end in waker:
        ours(end)
        end.setblocking(False)
    ours(selector)
    selector.register(waker[0], selectors.EVENT_READ, None)
    return selector, waker


class _Renewer(_Background):
    """Renews at one node; a server that hangs holds up nobody else."""

    name = "holdfast-renewer"

    def __init__(self, driver: ThreadDriver, node: Node) -> None:
        super().__init__(driver)
        self._node = node
        self._jobs: Mailbox[list[tuple[LeaseRecord, int, Protocol[int], Effect[Any]]] | None] = Mailbox()

    def add(self, jobs: list[tuple[LeaseRecord, int, Protocol[int], Effect[Any]]]) -> None:
        """Renew these soon."""
        self.start()
        self._jobs.put(jobs)
        self.start()  # it may have ended between

    def stop(self) -> None:
        """End the thread."""
        self._stopping = True
        self._jobs.put(None)

    def main(self) -> None:
        while not self._stopping:
            jobs = self._jobs.get()
            if jobs is None:
                continue
            try:
                self.driver.renew_batch(self._node, jobs)
            except Exception:
                self.driver.renewals_failed(jobs)
                report()


class _Chores(_Background):
    """Spawned protocols, taking turns on one thread; where there are several servers, on one for each.

    The thread of the `root` then waits for no server: what a protocol asks of one is done in that server's *lane*, so
    that a server that hangs holds up nothing but what it is asked for.
    """

    name = "holdfast-chores"

    def __init__(self, driver: ThreadDriver, root: _Chores | None = None) -> None:
        super().__init__(driver)
        self._root = self if root is None else root
        self._over = False
        self._lanes: dict[object, _Chores] = {}
        self._acquisition = 0
        self._inbox: Mailbox[tuple[Protocol[None], Effect[Any] | None] | None] = Mailbox()
        self._unfinished: dict[int, Protocol[None]] = {}
        self._settled = Pulse()
        # The thread's own:
        self._waiting: list[tuple[float, int, Protocol[None]]] = []
        self._sequence = 0

    def add(self, protocol: Protocol[None]) -> None:
        """Run it soon; where no thread can be, or after the end, in this one."""
        self._unfinished[id(protocol)] = protocol
        self._put(protocol, None)

    def _put(self, protocol: Protocol[None], effect: Effect[Any] | None) -> None:
        self._inbox.put((protocol, effect))
        by_us = False
        try:
            self.start()
        except CannotStartThread:
            by_us = not self.driver.in_agent()  # else it is tried again
        if by_us or self._root._over:
            run_out(self.driver, self._take())

    def has_work(self) -> bool:
        return len(self._inbox) > 0 and not self._stopping

    def starved(self) -> bool:
        """Whether something waits for a thread that could not be started."""
        if self.thread is None and self.has_work():
            try:
                self.start()
            except CannotStartThread:
                return True
        return False

    def settle(self, request_timeout_s: float) -> bool:
        """Wait until nothing is left."""
        return self._settled.wait(lambda: not self._unfinished, request_timeout_s)

    @property
    def unfinished(self) -> bool:
        """Whether a protocol has not ended, and nobody has taken it over."""
        return bool(self._unfinished)

    def everybody(self) -> list[_Chores]:
        """It, and its lanes."""
        return [self, *snapshot(self._lanes)]

    def hand_over(self, last: bool) -> list[tuple[Protocol[None], Effect[Any] | None]]:
        """End the threads after their present steps; what is left is the caller's to do, and what is added later.

        After the `last` time it is done by the thread that adds it.
        """
        self._over = self._over or last
        taken = []
        for one in self.everybody():
            one._stopping = True
            taken += one._take()
            if one.thread is not None:
                one._inbox.put(None)  # it waits, and has nothing to wait for any more
        return taken

    def _take(self) -> list[tuple[Protocol[None], Effect[Any] | None]]:
        """What nobody has come to. What sleeps belongs to the thread as long as that is there."""
        taken: list[tuple[Protocol[None], Effect[Any] | None]] = []
        while len(self._inbox):
            given = self._inbox.get(0.0)
            if given is not None:
                self.driver.undone[id(given[0])] = given[0]
                taken.append(given)
        while self._waiting and (self.thread is None or not self.thread.is_alive()):
            protocol = self._waiting.pop()[2]
            self.driver.undone[id(protocol)] = protocol
            taken.append((protocol, None))
        for protocol, _ in taken:
            self._root._unfinished.pop(id(protocol), None)
        self._root._settled.ring()
        return taken

    def _done(self, protocol: Protocol[None]) -> None:
        self._root._unfinished.pop(id(protocol), None)
        self._root._settled.ring()

    def main(self) -> None:
        waiting = self._waiting
        while not self._stopping:
            wait_s = max(0.0, waiting[0][0] - clock()) if waiting else _IDLE_S
            given = self._inbox.get(wait_s)
            if given is not None:
                self._step(*given)
            elif waiting:
                if waiting[0][0] <= clock():
                    self._step(heapq.heappop(waiting)[2])
            elif wait_s:
                return  # nothing to do for a while: the next one starts a thread again
        while waiting and self._root._over:  # this thread hung for longer than its client's end waited for it
            abandon(waiting.pop()[2])

    def _lane_of(self, effect: Effect[Any]) -> _Chores:
        """Where an effect is done that may have to wait for a server."""
        topology, root = self.driver.topology, self._root
        if len(topology.nodes()) < 2 or type(effect) in _AT_ONCE:
            return self
        place: object
        if isinstance(effect, Call):
            place = self.driver._owner_of(effect.keys[0], effect.node)
        elif isinstance(effect, Command):
            place = self.driver._owner_of(effect.key, effect.node)
        else:  # for several servers: they are asked at once, and a few of these may wait at a time
            root._acquisition += 1
            place = root._acquisition % _LANES_FOR_MANY
        lane = root._lanes.get(place)
        if lane is None:
            if len(root._lanes) >= _LANES_MAX:
                return tuple(root._lanes.values())[hash(place) % _LANES_MAX]
            lane = root._lanes.setdefault(place, _Chores(self.driver, root))
        return lane

    def _handed_over(self, protocol: Protocol[None], effect: Effect[Any]) -> bool:
        """Whether another lane goes on with it."""
        lane = self._lane_of(effect)
        if lane is self:
            return False
        try:
            lane.start()
        except RuntimeError:  # no more threads
            return False
        lane._put(protocol, effect)
        return True

    def _step(self, protocol: Protocol[None], effect: Effect[Any] | None = None) -> None:
        """Drive it, from an effect that is for this lane, until it sleeps, ends, or turns to another server."""
        driver = self.driver
        result: Any = None
        error: Exception | None = None
        try:
            while True:
                if effect is None:
                    effect = protocol.send(result) if error is None else protocol.throw(error)
                    if self._handed_over(protocol, effect):
                        return
                result = error = None
                if isinstance(effect, Sleep):
                    self._sequence += 1
                    heapq.heappush(self._waiting, (clock() + effect.seconds, self._sequence, protocol))
                    return
                try:
                    result = driver._perform[type(effect)](effect, None)
                except Exception as failure:
                    error = failure
                effect = None
        except (StopIteration, RequestFailed):
            pass
        except Exception:
            report()
        self._done(protocol)


def _new_client_id() -> str:
    return os.urandom(12).hex()


def _after_fork_in_child() -> None:
    for driver in tuple(_drivers):
        driver.after_fork(_new_client_id())
    _left.clear()  # nothing of theirs is open here, and those who were closing them are not here
    _closers[:] = [None] * _CLOSERS_MAX
    let_go()


os.register_at_fork(after_in_child=_after_fork_in_child)

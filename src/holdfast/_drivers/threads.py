"""Performs protocols in the calling thread, and does in the background what happens by itself.

Laws: a protocol is always driven to its end; what is thrown into it is thrown at the effect that it interrupted;
a loss is announced at its deadline even while every server hangs.

Theory: `run` sends each effect's result into the coroutine. In the background, each started when first
needed: the *watchdog* keeps the times (it never waits for a server), the *renewers* (one for each
node) renew in pipelines and may hang with their server, the *background* runs spawned protocols, in a lane per node.
"""

from __future__ import annotations

import collections
import os
import random
import socket
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

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
    Wake,
)
from holdfast._core.failure import RequestFailed
from holdfast._core.fast_path import Contention, replay
from holdfast._core.holder_notices import HolderNotices
from holdfast._core.lease_cache import LeaseCache
from holdfast._core.record import LeaseRecord, LeaseState, Order
from holdfast._core.report import Report
from holdfast._core.schedule import Schedule
from holdfast._core.settings import DEFAULT, Settings
from holdfast._core.tenure import SOON_MS, Lines, LocalWaiter, TenureLease
from holdfast._core.waiting import Busy, Grant, granted, released, within
from holdfast._drivers import closing
from holdfast._drivers.background import Background
from holdfast._drivers.cancel import Cancel, Cancelled
from holdfast._drivers.ending import end as end_clients
from holdfast._drivers.ending import run_out
from holdfast._drivers.identity import here
from holdfast._drivers.inboxes import Inboxes
from holdfast._drivers.observing import Reports, Troubles
from holdfast._drivers.renewer import Renewals
from holdfast._drivers.requests import Requests
from holdfast._drivers.teller import Teller
from holdfast._drivers.unconfirmed import Unconfirmed
from holdfast._drivers.watchdog import Watchdog
from holdfast._transport.clock import clock
from holdfast._transport.greenlets import refuse_half_patched, who_patched
from holdfast._transport.inherited import let_go
from holdfast._transport.pack import PreparedRequest
from holdfast._transport.pending import PendingReply
from holdfast._transport.port import Topology
from holdfast._transport.threads import Node
from holdfast._transport.waits import Bell, Flag, ring, silent_bell
from holdfast.errors import ClientClosed, ConfigurationError, HoldfastError

__all__ = ["ThreadDriver"]

R = TypeVar("R")


_SOON_S = SOON_MS / 1000


_drivers: weakref.WeakSet[ThreadDriver] = weakref.WeakSet()


class ThreadDriver:
    """Runs protocols for one client. `channel` is the client's inbox."""

    def __init__(
        self,
        topology: Topology[Node],
        client_id: str,
        inboxes: str,
        settings: Settings = DEFAULT,
        reports: Reports | None = None,
    ) -> None:
        self.topology = topology
        self._reports = reports or Reports()
        #: Whether the fast path can be used: where keys move from node to node, the protocol has to follow them.
        self.can_ask = not getattr(topology, "moves", True)
        nodes = topology.nodes()
        #: Where all first requests go; None where that depends on the key.
        self._only = nodes[0] if len(nodes) == 1 and self.can_ask else None
        self.settings = settings
        self._inboxes = inboxes
        self.requests = Requests(self, topology)
        self.random = random.Random()
        self._perform: dict[type[Effect[Any]], Callable[[Any, Cancel | None], Any]] = {
            Call: self.requests.call,
            Now: lambda _effect, _cancel: clock(),
            Random: lambda _effect, _cancel: self.random.random(),
            Spawn: self._spawn,
            Unlisten: self._unlisten,
            Listen: self._listen,
            AwaitWake: self._await_wake,
            AwaitTurn: self._await_turn,
            Sleep: self._sleep,
            Tell: lambda tell, _cancel: tell.function(tell.argument),
            Command: self.requests.command,
            CallMany: self.requests.call_many,
        }
        refuse_half_patched()
        self._reset(client_id)
        _drivers.add(self)

    def _reset(self, client_id: str) -> None:
        self.client_id = client_id
        self.introduce_at = float("-inf")  # when the client says again who it is
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
        #: What is wrong with servers; and who is told when the waiter of a token is queued.
        self.troubles = Troubles(self._reports)
        self.queueing: dict[str, Report] = {}
        self.schedule = Schedule(self.settings)
        #: Acquires that wait for each other here; and the threads that do, or are about to.
        self.lines = Lines(self.settings, threading.RLock(), self.schedule.early)
        self.turning: set[int] = set()
        #: Leases that stay here after their release.
        self.lease_cache = LeaseCache(
            self.settings, self.watch, self.spawn, self.schedule.early, lambda: not self.closed
        )
        self.lines.hears = self._hears_at_once
        self.teller = Teller()
        #: What the calling thread has of its own.
        self.here = here()
        #: What patching replaces, as it was when we began.
        self.patchable_local: object = threading.local
        self.patchable_socket: object = socket.socket
        #: For what reads and changes times. Reentrant: a signal handler may extend what its thread is extending.
        self.lock = threading.RLock()
        self.notices = HolderNotices(self, self._only is not None)
        self.inboxes = Inboxes(self, self._over)
        self.requests.forget()
        self._to_give_back: collections.deque[LeaseRecord] = collections.deque()
        self._watchdog = Watchdog(self)
        self._background = Background(self)
        self._renewals = Renewals(self)
        #: Releases that were sent and not waited for.
        self.releasing = Unconfirmed(self)
        self.lease_cache.send = self.releasing.let_go

    # ------------------------------------------------------------------ monkey patching

    def look_for_patches(self) -> None:
        """Start over, or refuse, if gevent or eventlet has replaced since the beginning what the driver waits in.

        Then a driver that has done nothing yet starts over; any other one has locks, threads and connections of before,
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
        # Or it was other code: usually a test.
        self.patchable_local, self.patchable_socket = threading.local, socket.socket

    def _is_used(self) -> bool:
        return any(node.connected for node in self.topology.nodes()) or bool(
            self._watchdog.thread
            or self._background.thread
            or self._renewals
            or self.requests.is_dialling
            or len(self.schedule)
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
            return self.drive(protocol, protocol.send(None), cancel)
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

    def drive(self, protocol: Protocol[R], effect: Effect[Any], cancel: Cancel | None) -> R:
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
                    self.troubles.saw(failure)
                    effect = protocol.throw(self.final(failure) if self.closed else failure)
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
        timeout_s, sent)` makes the protocol; `sent`: its first request, which does not queue, was sent already.
        """
        contention = self.contention
        sent = self.releasing.claim(None if first is None else first.key) if self.releasing.sent else None
        if first is None or cancel is not None or (first.key in contention and contention.expects(first.key)):
            if sent is not None:
                self.releasing.read(sent)
            return self.run(start(token, timeout_s, False), cancel)
        request_timeout_s = first.request_timeout_s
        if timeout_s is not None:
            request_timeout_s = within(request_timeout_s, timeout_s or self.settings.try_limit_s)
        asked_at = clock()
        try:
            if sent is None:
                node = self._only or self.topology.node_for(first.key, None)
                reply = node.call_packed(first.packed(token), request_timeout_s, first.script)
            else:
                reply = self.releasing.exchange(sent, first.packed(token), request_timeout_s, first.script)
        except BaseException as error:
            return self._resume(first, start(token, timeout_s, True), asked_at, None, error)
        grant = granted(reply, asked_at, clock(), ttl_ms)
        if self.troubles:
            self.troubles.passed(self.topology.node_for(first.key, None).name)
        if grant is not None:
            return grant
        contention.saw(first.key)
        return self._resume(first, start(token, timeout_s, True), asked_at, reply, None)

    def wait_in_line(
        self,
        turn: LocalWaiter,
        start: Callable[[LocalWaiter, float | None], Protocol[TenureLease | Grant | Busy]],
        timeout_s: float | None,
        ttl_ms: int,
        cancel: Cancel | None = None,
    ) -> TenureLease | Grant | Busy:
        """Wait for that turn: it is handed on soon, or `start(turn, timeout_s)` makes the protocol for all the rest."""
        if self.queueing and (report := self.queueing.pop(turn.token, None)) is not None:
            report.queued()
        if cancel is None and ttl_ms > SOON_MS and (timeout_s is None or timeout_s > _SOON_S):
            line = turn.line
            if line is not None:
                bell = silent_bell()
                turn.bell = partial(ring, bell)
                try:
                    # Once: whatever else it is woken for is for the protocol to see.
                    if line.owner is not turn and not line.dead and not self.closed:
                        bell.acquire(True, _SOON_S)
                finally:
                    turn.bell = None
                if line.owner is turn and not line.dead and not self.closed:
                    taken = turn.take(clock())
                    if taken is not None:
                        return taken
        return self.run(start(turn, timeout_s), cancel)

    def release(self, hold: LeaseRecord, first: PreparedRequest | None) -> bool:
        """Release what is held; False when it was not held any more. `first` as in `acquire`."""
        if hold.turn is not None and hold.hand_on(clock()):
            return True
        if first is None:
            return self.run(hold.release())
        try:
            node = self._only or self.topology.node_for(first.key, None)
            reply = node.call_packed(first.packed(hold.token), first.request_timeout_s, first.script)
        except BaseException as error:
            return self._resume(first, hold.release(), 0.0, None, error)
        held = released(reply)
        return self._resume(first, hold.release(), 0.0, reply, None) if held is None else held

    def release_later(self, hold: LeaseRecord, first: PreparedRequest) -> bool:
        """Release it without waiting for the answer; False when that cannot be, and nothing was sent."""
        if hold.turn is not None and hold.hand_on(clock()):
            return True
        return self.releasing.send(hold, first)

    def _resume(
        self, first: PreparedRequest, protocol: Protocol[R], asked_at: float, reply: Any, error: BaseException | None
    ) -> R:
        """Run a protocol whose first request was sent at `asked_at`, and ended so."""
        if isinstance(error, RequestFailed):
            error = self.failed(self.topology.node_for(first.key, None), error)
        return self.run(replay(protocol, asked_at, reply, error))

    def failed(self, node: Node, failure: RequestFailed) -> RequestFailed:
        """A request of the fast path has failed; with what the protocol goes on."""
        self.troubles.saw(failure)
        self.requests.in_trouble(node, failure)
        return self.final(failure) if self.closed else failure

    # ------------------------------------------------------------------ effects

    def _sleep(self, sleep: Sleep, cancel: Cancel | None) -> None:
        if cancel is None:
            if self._over.wait_s(sleep.seconds):
                raise self.final()
        elif cancel.wait(sleep.seconds):
            raise Cancelled
        elif self.closed:
            raise self.final()

    def final(self, failure: RequestFailed | None = None) -> RequestFailed:
        """The client is closed: nothing is tried again, and waiting ends."""
        sent = failure is not None and failure.maybe_executed
        return RequestFailed("closed", "the client is closed", "", maybe_executed=sent, transient=False)

    def _spawn(self, spawn: Spawn, cancel: Cancel | None) -> None:
        self._background.add(spawn.protocol)

    def _unlisten(self, unlisten: Unlisten, cancel: Cancel | None) -> None:
        self.inboxes.unlisten(unlisten.token)

    def _listen(self, listen: Listen, cancel: Cancel | None) -> None:
        if self.closed:
            raise self.final()
        node = self.topology.node_for(listen.key, listen.node)
        try:
            self.inboxes.listen(listen.token, node, listen.request_timeout_s)
        except RequestFailed as failure:
            self.topology.troubled(node, failure)
            raise

    def _await_turn(self, wait: AwaitTurn, cancel: Cancel | None) -> None:
        turn, bell = wait.turn, Bell()
        ring = turn.bell = bell.ring
        if cancel is not None:
            cancel._watch(ring)
        try:
            bell.wait(lambda: turn.is_called() or self.closed or bool(cancel and cancel.is_set()), wait.timeout_s)
        finally:
            turn.bell = None
            if cancel is not None:
                cancel._unwatch(ring)
        if cancel is not None and cancel.is_set():
            raise Cancelled
        if self.closed:
            raise self.final()

    def _await_wake(self, wait: AwaitWake, cancel: Cancel | None) -> Wake | None:
        inboxes = self.inboxes
        if self.queueing and (report := self.queueing.pop(wait.token, None)) is not None:
            report.queued()
        if cancel is None:
            wake = None if self.closed else inboxes.wait(wait.token, wait.timeout_s)
        else:
            interrupt = partial(inboxes.interrupt, wait.token)
            cancel._watch(interrupt)
            try:
                wake = None if self.closed or cancel.is_set() else inboxes.wait(wait.token, wait.timeout_s)
            finally:
                cancel._unwatch(interrupt)
            if cancel.is_set():
                raise Cancelled
        if self.closed:
            raise self.final()
        return wake

    def listening(self, key: str) -> bool:
        """True if the inbox at the key's node is open, so that a first request may queue."""
        return self.missing_inbox(key) is None  # which does not wait for the table of a Cluster

    def _hears_at_once(self, key: str) -> bool:
        """True if messages about the key come without delay; if there is no inbox, one is opened."""
        node = self.missing_inbox(key)
        return self.lease_cache.hears(key, node is None) and self.inboxes.hears_at_once(self.owner_of(key, None))

    def missing_inbox(self, key: str) -> Node | None:
        """The node at which an inbox is missing to hear of that key."""
        node = self.owner_of(key, None)
        return None if self.inboxes.is_open(node) else node

    def has_told(self, hold: LeaseRecord) -> bool:
        """True if callbacks have returned."""
        return not self.teller.busy

    # ------------------------------------------------------------------ holds

    def watch(self, hold: LeaseRecord) -> None:
        """Renew it and look after its deadline, until `unwatch`.

        Raises `ClientClosed` when the client was closed meanwhile, `CannotStartThread` when no thread can look
        after it; it is given back then.
        """
        at = self.schedule.add(hold, self.random.random())
        try:
            if self.closed:
                raise self.closed_error()
            self._watchdog.no_later_than(at)
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
        """Stop watching a lease that was released."""
        self.schedule.remove(hold)

    def extending(self, hold: LeaseRecord, ttl_ms: int, asked_at: float) -> Order:
        """Note an extension and return its order."""
        with self.lock:
            order, at = self.schedule.extending(hold, ttl_ms, asked_at)
            if at is not None:
                self._watchdog.no_later_than(at)
        return order

    def extended(self, hold: LeaseRecord, order: Order, held: int, ttl_ms: int, asked_at: float) -> bool:
        """Record an extension's reply; False if the lease has ended."""
        with self.lock:
            at = self.schedule.extended(hold, order, held, ttl_ms, asked_at, clock(), self.random.random())
            if at is not None:
                self._watchdog.no_later_than(at)
        return at is not None

    def replan(self, hold: LeaseRecord) -> None:
        """Plan for a deadline that has changed."""
        with self.lock:
            self._watchdog.no_later_than(self.schedule.replan(hold, self.random.random()))

    def drop(self, hold: LeaseRecord) -> None:
        """Stop renewing a lease that was garbage-collected; its end is found at its deadline."""
        hold.stop_renewing()  # one store, since a collection may come anywhere

    def give_back(self, hold: LeaseRecord) -> None:
        """Release soon a lease that reached no caller, or whose block ended without a release.

        No more than a note, as in `drop`; the watchdog reads it.
        """
        self._to_give_back.append(hold)
        self._watchdog.poke()

    def sweep(self) -> None:
        """Do what `give_back` asked for."""
        to_give_back = self._to_give_back
        while to_give_back:
            try:
                hold = to_give_back.popleft()
            except IndexError:
                break
            self.schedule.remove(hold)
            if hold.mark_released() or hold.half_released():
                self.spawn_release(hold)
        if self.releasing:
            self.releasing.look()

    def spawn(self, protocol: Protocol[None]) -> None:
        """Run it in the background."""
        self._background.add(protocol)

    def spawn_release(self, hold: LeaseRecord) -> None:
        """Release in the background what is not wanted any more; trouble is left to the ttl."""
        hold.report.released()
        self._background.add(_ignoring_trouble(hold.release()))

    def renew(self, holds: Sequence[LeaseRecord]) -> None:
        """Start renewing what is due; does not wait."""
        self._renewals.start(holds)

    def perform(self, effect: Effect[Any]) -> Any:
        """Do one effect of a protocol in the background. Raises `RequestFailed`."""
        return self._perform[type(effect)](effect, None)

    def run_out(self, chores: Sequence[tuple[Protocol[None], Effect[Any] | None]]) -> None:
        """Run what no background thread will, in this one."""
        run_out(self, chores)

    def owner_of(self, key: str | None, index: int | None) -> Node:
        """Return the node that would be asked now. Does not wait."""
        owner_of = getattr(self.topology, "owner_of", None)
        return self.topology.node_for(key, index) if owner_of is None else owner_of(key)

    def follow(self, node: Node, failure: RequestFailed, call: Call, until: float) -> Any:
        """The reply to a call that ended so at this node, if it is to be had elsewhere by then."""
        return self.requests.follow(node, failure, call, until)

    def chance(self) -> float:
        """A random number in [0, 1)."""
        return self.random.random()

    def no_later_than(self, at: float) -> None:
        """Something is due at `at`."""
        self._watchdog.no_later_than(at)

    def poke(self) -> None:
        """Have the watchdog look at once what there is to do."""
        self._watchdog.poke()

    def adopt(self, asked: Sequence[PendingReply]) -> None:
        """Have the watchdog read what those connections owe."""
        self._watchdog.adopt(asked)

    def in_watchdog(self) -> bool:
        """True if this is the watchdog's thread, which must not wait for servers."""
        return threading.current_thread() is self._watchdog.thread

    def starved(self) -> bool:
        """True if something waits for a thread that could not be started."""
        return self._background.starved() or self.teller.starved() or closing.starved()

    def watchdog_ended(self) -> None:
        """No thread keeps the times: what is held counts as lost at once, since its end would not be noticed."""
        self._watchdog = Watchdog(self)
        with self.lock:
            for hold in self.schedule:
                self.schedule.remove(hold)
                hold.lose("watchdog ended")

    # ------------------------------------------------------------------ ends

    def settle(self, request_timeout_s: float) -> bool:
        """Wait until all spawned protocols have ended; False when they have not in time."""
        return self._background.settle(request_timeout_s)

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
        """Wake all waiters, so that they find the client closed."""
        self._over.set()
        self.inboxes.ask_all()
        self.lines.wake_all()

    def lose_all(self, reason: str) -> list[LeaseRecord]:
        """Lose all that is held, and tell so; returns what the server may still hold for us."""
        self.sweep()
        now = clock()
        for hold in self.schedule:
            if hold in self.unreleased:
                hold.lose_again(reason)  # an exception ended an earlier close() there
            elif not hold.check_expired(now):
                self.unreleased[hold] = None
                hold.lose(reason)
        self.schedule = Schedule(self.settings)
        # Else its owner releases it in this moment.
        return [hold for hold in self.unreleased if hold.state is LeaseState.LOST]

    def busy(self) -> bool:
        """True if a request is under way."""
        inboxes = self.inboxes.wires()
        return any(wire not in inboxes for node in self.topology.nodes() for wire in node.in_use())

    def cut_off(self) -> None:
        """Requests that are under way end now."""
        for node in self.topology.nodes():
            for wire in node.in_use():
                wire.abort()

    def chores_left(self, last: bool = False) -> list[tuple[Protocol[None], Effect[Any] | None]]:
        """Hand over what was spawned and is left to do. After the `last` time, the spawner does it."""
        return self._background.hand_over(last)

    def undoes(self) -> bool:
        """True if a thread of the background has something that was spawned, and that `chores_left` has not taken."""
        return self._background.unfinished

    def end_background(self) -> None:
        """Tell it to end, and cut off what it may be waiting for."""
        self._watchdog.stop()
        self._renewals.stop()
        self.requests.stop_dialling()
        self.teller.stop()
        for node in self.topology.nodes():
            node.close()
        self.cut_off()

    def join_background(self, until: float) -> None:
        """Wait for its threads, but not longer than that."""
        for one in (self._watchdog, *self._background.all()):
            one.join(until)
        self._renewals.join(until)
        self._watchdog.disown()
        self.inboxes.close()
        self.requests.end_sessions()

    def after_fork(self, client_id: str) -> None:
        """In the child: nothing is held, nothing runs, every descriptor is closed without a word on it."""
        for hold in self.schedule:
            hold.lose("forked")
        self.inboxes.forget()
        self.releasing.forget()
        for node in self.topology.nodes():
            node.forget()
        forget = getattr(self.topology, "forget", None)
        if forget is not None:
            forget()
        self._watchdog.forget()
        self._reset(client_id)


async def _ignoring_trouble(protocol: Protocol[Any]) -> None:
    try:
        await protocol
    except RequestFailed:
        pass  # the ttl ends it


def _new_client_id() -> str:
    return os.urandom(12).hex()


def _after_fork_in_child() -> None:
    for driver in tuple(_drivers):
        driver.after_fork(_new_client_id())
    closing.forget()
    let_go()


os.register_at_fork(after_in_child=_after_fork_in_child)

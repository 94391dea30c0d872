"""How threads wait for the engine.

Laws: whatever comes up in a thread that waits, what the engine does for it ends, and what was granted is given back;
no thread is started here.

Theory: a call makes an operation and submits it, and waits on a lock primitive until the engine releases that. What
needs no server is done by the caller: handing a lease on to the next waiter of the same client, taking a cached lease,
looking at a lease.
"""

from __future__ import annotations

import os
import random
import socket
import threading
import weakref
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
from holdfast._drivers.cancel import Cancel, Cancelled
from holdfast._drivers.identity import here
from holdfast._drivers.observing import Reports, Troubles
from holdfast._drivers.teller import Teller
from holdfast._transport.clock import clock
from holdfast._transport.inherited import let_go
from holdfast._transport.pack import PreparedRequest
from holdfast._transport.port import Topology
from holdfast._transport.waits import SLICE_S, ring, silent_bell
from holdfast.errors import ClientClosed, HoldfastError
from spikes.engine.client import Client, Prepared
from spikes.engine.link import Ask, Later, Server
from spikes.engine.loop import engine, forget_engines
from spikes.engine.operation import Operation

__all__ = ["Front"]

R = TypeVar("R")

_SOON_S = SOON_MS / 1000
#: `close` waits no longer than this for the engine, s: the budget of closing, and some air.
_CLOSE_MAX_S = 8.0


class Front:
    """What the API for threads asks of one client."""

    def __init__(
        self,
        topology: Topology[Server],
        client_id: str,
        inboxes: str,
        settings: Settings = DEFAULT,
        reports: Reports | None = None,
    ) -> None:
        self.topology = topology
        self.settings = settings
        self._inboxes = inboxes
        self._reports = reports or Reports()
        self._begin(client_id)
        _fronts.add(self)

    def _begin(self, client_id: str) -> None:
        topology, inboxes, settings = self.topology, self._inboxes, self.settings
        self.client_id = client_id
        self.engine = engine()
        self.teller = Teller()
        self.troubles = Troubles(self._reports)
        self.client = client = Client(self.engine, topology, client_id, inboxes, settings, self.troubles, self.has_told)
        self.engine.enter(client)
        self.can_ask = client.can_ask
        self.schedule, self.lines, self.lease_cache = client.schedule, client.lines, client.lease_cache
        self.notices, self.queueing, self.listening = client.notices, client.queueing, client.listening
        self.lease_cache.spawn = self.spawn
        self.random = random.Random().random
        self.introduce_at = float("-inf")  # when the client says again who it is
        self.closed = False
        self.exiting = False
        self.asking: dict[str, Any] = {}
        #: The threads that wait for each other here, or are about to.
        self.turning: set[int] = set()
        #: What the calling thread has of its own.
        self.here = here()
        self.patchable_local: object = threading.local
        self.patchable_socket: object = socket.socket

    def look_for_patches(self) -> None:
        """Note what was patched since we began."""
        self.patchable_local, self.patchable_socket = threading.local, socket.socket

    # -- running ----------------------------------------------------------------------------------

    def run(
        self,
        protocol: Protocol[R],
        cancel: Cancel | None = None,
        give_back: Callable[[Any], Protocol[None] | None] | None = None,
    ) -> R:
        """Have the engine run it, and wait for its end. `cancel` ends it with `Cancelled`."""
        bell = threading.Lock()
        bell.acquire()
        operation = Operation(self.client, protocol, partial(ring, bell), give_back)
        stop = partial(ring, bell)
        try:
            if cancel is not None:
                cancel._watch(stop)
            self.engine.call(operation.begin)
            while not operation.over:
                if cancel is not None and cancel.is_set():
                    raise Cancelled
                bell.acquire(True, SLICE_S)
                if operation.chores:
                    operation.do_chores(self.engine.call)
        except BaseException:
            operation.abandon(self.engine.call)
            raise
        finally:
            if cancel is not None:
                cancel._unwatch(stop)
        if operation.error is not None:
            raise operation.error
        result: R = operation.result
        return result

    def spawn(self, protocol: Protocol[None]) -> None:
        """Run it in the background."""
        self.engine.call(self._spawn, protocol)

    def _spawn(self, protocol: Protocol[None]) -> None:
        self.client.spawn(protocol)

    # -- acquiring and releasing ------------------------------------------------------------------

    def acquire(
        self,
        first: PreparedRequest | None,
        start: Callable[[str, float | None, bool], Protocol[Grant | Busy]],
        token: str,
        timeout_s: float | None,
        ttl_ms: int,
        cancel: Cancel | None = None,
    ) -> Grant | Busy:
        """Acquire with this token: by `first` alone where that is granted in time, else by the protocol."""
        client = self.client
        if first is None or cancel is not None or not self.can_ask or first.key in client.contention:
            call = None if first is None else Prepared(first, token)
            return self.run(client.acquire(call, partial(start, token), timeout_s, ttl_ms), cancel)
        patience_s = first.request_timeout_s
        if timeout_s is not None:
            patience_s = within(patience_s, timeout_s or self.settings.try_limit_s)
        behind = client.releasing.before(first.key)
        asked_at = clock()
        server = self.topology.node_for(first.key, None)
        outcome = server.ask(Ask(first, token, asked_at + patience_s))
        if outcome is None:
            return self.run(client.acquire(Prepared(first, token), partial(start, token), timeout_s, ttl_ms), cancel)
        reply, failure = outcome
        if failure is None:
            grant = granted(reply, asked_at, clock(), ttl_ms)
            if grant is not None:
                if self.troubles:
                    self.troubles.passed(server.name)
                return grant
        again = Prepared(first, token)
        return self.run(
            client.go_on(
                again,
                partial(start, token),
                timeout_s,
                ttl_ms,
                behind,
                (asked_at, reply, self._failed(server, again, failure)),
            )
        )

    def _failed(self, server: Server, call: Prepared, failure: RequestFailed | None) -> RequestFailed | None:
        """With what a protocol goes on whose first request has failed so, if it has."""
        if failure is None:
            return None
        self.troubles.saw(failure)
        self.engine.call(self.topology.troubled, server, failure)
        failure.about(call)
        return closed(failure) if self.closed else failure

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
        line = turn.line
        if line is not None and cancel is None and ttl_ms > SOON_MS and (timeout_s is None or timeout_s > _SOON_S):
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
        if first is not None and self.can_ask:
            ask = Ask(first, hold.token, clock() + first.request_timeout_s)
            server = self.topology.node_for(first.key, None)
            if (outcome := server.ask(ask)) is not None:
                reply, failure = outcome
                held = released(reply) if failure is None else None
                if held is not None:
                    return held
                failed = self._failed(server, Prepared(first, hold.token), failure)
                return self.run(replay(hold.release(), 0.0, reply, failed))
        return self.run(self.client.release(hold, None if first is None else Prepared(first, hold.token)))

    def release_later(self, hold: LeaseRecord, first: PreparedRequest) -> bool:
        """Release it without waiting for the answer; False where it has to be waited for."""
        if hold.turn is not None and hold.hand_on(clock()):
            return True
        if not self.can_ask or self.closed:
            return False
        server = self.topology.node_for(first.key, None)
        answered = self.client.releasing.sent(hold, first.key)

        def told(reply: Any, failure: RequestFailed | None) -> None:
            if failure is not None:
                failure = self._failed(server, Prepared(first, hold.token), failure)
            rest = answered(reply, failure)
            if rest is not None:
                self.spawn(rest)

        later = Later(first, hold.token, clock() + first.request_timeout_s, told)
        if not server.tell(later):
            self.engine.call(server.send_later, later)
        return True

    # -- what is held -----------------------------------------------------------------------------

    def watch(self, hold: LeaseRecord) -> None:
        """Renew it and look after its deadline. Raises `ClientClosed` when the client was closed meanwhile."""
        at = self.schedule.add(hold, self.random())
        if self.closed:
            self.schedule.remove(hold)
            if hold.mark_released():
                self.spawn_release(hold)
            raise self.closed_error()
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

    def extending(self, hold: LeaseRecord, ttl_ms: int, asked_at: float) -> Order:
        """Note an extension that is about to be sent, and return its order."""

        async def extends() -> Order:
            order, at = self.schedule.extending(hold, ttl_ms, asked_at)
            self.client._arm(at)
            return order

        return self.run(extends())

    def extended(self, hold: LeaseRecord, order: Order, held: int, ttl_ms: int, asked_at: float) -> bool:
        """Record an extension's reply; False if the lease has ended."""

        async def was_extended() -> bool:
            at = self.schedule.extended(hold, order, held, ttl_ms, asked_at, clock(), self.random())
            self.client._arm(at)
            return at is not None

        return self.run(was_extended())

    def replan(self, hold: LeaseRecord) -> None:
        """Plan again for a lease whose deadline changed."""
        self.engine.call(lambda: self.client.arm(self.schedule.replan(hold, self.random())))

    def has_told(self, hold: LeaseRecord) -> bool:
        """True if callbacks have returned."""
        return not self.teller.busy

    def drop(self, hold: LeaseRecord) -> None:
        """Stop renewing a lease that was garbage-collected, in any thread."""
        hold.stop_renewing()

    def give_back(self, hold: LeaseRecord) -> None:
        """Give back a lease that reached no caller, or whose block ended without a release. For finalizers."""
        self.engine.call(self.client.sweep, hold)

    # -- the end ----------------------------------------------------------------------------------

    def closed_error(self, error: HoldfastError | None = None) -> BaseException:
        """`ClientClosed`, or that error; at the interpreter's end `SystemExit` for daemon threads."""
        if self.exiting and threading.current_thread().daemon:
            return SystemExit()
        return ClientClosed() if error is None else error

    def close(self) -> None:
        """End what waits, tell those who hold, release what they held. Idempotent."""
        self.begin_close()()

    def begin_close(self) -> Callable[[], None]:
        """The same; returns what waits for the end of it."""
        self.closed = True
        bell = silent_bell()

        def ended(_settled: bool) -> None:
            self.client.end()
            ring(bell)

        self.engine.call(self.client.close, ended)

        def wait() -> None:
            if threading.get_ident() != self.engine.ident:
                bell.acquire(True, _CLOSE_MAX_S)
            self.teller.stop()

        return wait

    def after_fork(self, client_id: str) -> None:
        """In the child: nothing is held, nothing runs."""
        for hold in self.schedule:
            hold.lose("forked")
        for server in self.topology.nodes():
            server.forget(engine())
        self._begin(client_id)

    def poke(self) -> None:
        """For what would start a thread again that could not be started."""


_fronts: weakref.WeakSet[Front] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    forget_engines()
    for front in tuple(_fronts):
        front.after_fork(os.urandom(12).hex())
    let_go()


os.register_at_fork(after_in_child=_after_fork_in_child)

"""What callers of every kind have in common: one client's agent in the engine, and how it is asked.

Law: what needs no server is done by the caller, in one atomic step each: handing a lease on to the next waiter of the
same client, taking a cached lease, looking at a lease. All else is done by the engine.

Theory: the first request of an acquire or a release is sent by the caller, on the engine's connection, and its reply is
usually all that there is to it. Where it is not, the protocol goes on in the engine, as an operation that is told what
came of that request.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Self, TypeVar

from holdfast._core.agent.agent import Outcome, Sent
from holdfast._core.agent.renewals import quietly
from holdfast._core.effects import Protocol
from holdfast._core.record import LeaseRecord
from holdfast._core.settings import DEFAULT, Settings
from holdfast._core.snapshot import snapshot
from holdfast._core.tokens import client_id_of
from holdfast._core.waiting import Busy, Grant
from holdfast._engine.client import Client
from holdfast._engine.loop import engine, forget_engines
from holdfast._engine.pack import PreparedRequest
from holdfast._engine.requests import Ask
from holdfast._engine.server import Server, Topology
from holdfast._reports.observing import Reports, Troubles
from holdfast._runtime import exit_hooks
from holdfast._runtime.clock import clock
from holdfast._runtime.inherited import let_go
from holdfast._runtime.waits import SLICE_S, ring, silent_bell
from holdfast.errors import CannotStartThread

R = TypeVar("R")
#: Makes the protocol of an acquire, of its token, its timeout in s, and whether its first request was sent.
Start = Callable[[str, float | None, bool], Protocol[Grant | Busy]]

#: What may be the matter where the engine's thread does not run.
_DOES_NOT_RUN = "under uWSGI, set enable-threads and py-call-osafterfork"
#: `close` waits no longer than this for the engine, s: the budget of closing, and some air.
_CLOSE_MAX_S = 8.0


class Front:
    """What an API asks of one client."""

    #: Closes it when its session is collected.
    finalizer: Any = None

    def __init__(
        self,
        topology: Topology,
        client_id: str,
        inboxes: str,
        settings: Settings = DEFAULT,
        reports: Reports | None = None,
    ) -> None:
        self.topology = topology
        self.settings = settings
        #: Makes its client: for this process, and for a child of it.
        self._make = partial(_client, topology, inboxes, settings, reports or Reports())
        #: By their tokens, what asks for a lease.
        self.asking: dict[str, Any] = {}
        #: What its caller has ended, and releases or changes now, each by a key of its own: a token may be handed on.
        self.leaving: dict[object, LeaseRecord] = {}
        #: All of this client: this one, and that of another API.
        self.fronts: list[Front] = [self]
        self._begin(client_id)
        _fronts.add(self)

    @classmethod
    def beside(cls, first: Front) -> Self:
        """Make another API's front of the same client."""
        made = cls.__new__(cls)
        made.topology, made.settings, made.finalizer = first.topology, first.settings, first.finalizer
        made.asking, made.leaving, made.fronts = first.asking, first.leaving, first.fronts
        made._join(first.client)
        made.fronts.append(made)  # from here on it is closed with the others
        made.closed, made.ended, made.exiting = first.closed, first.ended, first.exiting
        return made

    def _begin(self, client_id: str) -> None:
        client = self._make(client_id)
        client.front = self
        if self.finalizer is not None:
            client.engine.enter(client)
        for front in self.fronts:
            front._join(client)

    def _join(self, client: Client) -> None:
        """Ask that client from now on."""
        # (All in all no more than 28 attributes: CPython 3.11 finds those of an object that has more slower.)
        self.client, self.client_id = client, client.client_id
        self.engine, self.troubles = client.engine, client.troubles
        self.contention, self.releasing = client.contention, client.releasing
        #: The only server; None where one has to be found by the key: callers send nothing by themselves there.
        self._only: Any = client.only
        self.schedule, self.lines, self.lease_cache = client.schedule, client.lines, client.lease_cache
        self.queueing, self.standing = client.queueing, client.standing
        self.lease_cache.spawn, self.lease_cache.watch = self.spawn, self.watch
        #: When the client says again who it is.
        self.introduce_at = float("-inf")
        #: It takes no more calls; it has ended; the process ends.
        self.closed = self.ended = self.exiting = False

    def belong_to(self, session: object) -> None:
        """Be closed when that is garbage-collected. Only then the engine keeps it."""
        self.finalizer = weakref.finalize(session, _close_later, self)
        self.finalizer.atexit = False  # fronts are closed at exit anyway
        self.engine.enter(self.client)

    def spawn(self, protocol: Protocol[Any] | Callable[[], Protocol[Any]]) -> None:
        """Run it in the background. Where an exception may come between, it is made there, too."""
        self.engine.call(self._spawn, protocol)

    def _spawn(self, protocol: Protocol[Any] | Callable[[], Protocol[Any]]) -> None:
        self.client.spawn(protocol() if callable(protocol) else protocol)

    def look_after_engine(self, turns: int, idle: int) -> tuple[int, int]:
        """By a caller that has waited for long: raise where the engine's thread makes no turn at all.

        The last time it had made that number of turns, and had made none for that many looks.
        """
        if self.engine.turns != turns:
            return self.engine.turns, 0
        if idle >= 2:
            raise CannotStartThread("it was started, but does not run", _DOES_NOT_RUN)
        self.engine.call(int)  # nothing, so that it has to turn
        return turns, idle + 1

    # -- acquiring and releasing ------------------------------------------------------------------

    def _acquires(
        self, asked: Any, first: PreparedRequest | None, start: Start, sent: Sent | None
    ) -> Protocol[Grant | Busy]:
        """The whole of an acquire, or what is left of one whose first request was `sent`."""
        token = asked.token
        call = None if first is None else first.call(token)
        return self.client.acquire(call, partial(start, token), asked.timeout_s, asked.lock._ttl_ms, sent)

    def passed(self) -> None:
        """Tell observers that the server, with which there was trouble, answers."""
        self.troubles.passed(self._only.name)

    def _releases(self, record: LeaseRecord, first: PreparedRequest | None, outcome: Outcome | None) -> Protocol[bool]:
        """The same of a release."""
        return self.client.release(record, None if first is None else first.call(record.token), outcome)

    def release_later(self, record: LeaseRecord, first: PreparedRequest) -> bool:
        """Release it without waiting for the answer; False where it has to be waited for."""
        if self.closed:
            return False
        server = self._only

        def told(ask: Ask) -> None:
            reply, failure = ask.outcome or (None, None)
            if failure is not None:
                self.engine.call(self.client.troubled, server, failure)
            answered(reply, failure)

        later = Ask(first, record.token, clock() + first.request_timeout_s, told)
        try:
            answered = self.releasing.sent(record, first.key)
            if not self._tell(server, later):
                self.engine.call(server.take_over, [later])
            return True
        except BaseException:  # of a signal handler
            self.releasing.interrupted(record, first.key)
            raise

    def _tell(self, server: Server, later: Ask) -> bool:
        """Send it; False where there is no connection yet."""
        link = server.link
        return link is not None and link.put(later)

    # -- what is held -----------------------------------------------------------------------------

    def watch(self, record: LeaseRecord) -> None:
        """Have the engine renew it. Raises `ClientClosed`, `CannotStartThread`: nothing would."""
        at = self.schedule.add(record, self.client.random())
        armed = self.client.attends_at
        if armed is None or at < armed:
            self.engine.call(self.client.arm, at)
        if self.engine.thread is None:
            self._not_renewed(record)
        if self.closed:
            self.schedule.remove(record)
            if record.mark_released():
                self.spawn_release(record)
            raise self.closed_error()

    def take_back(self, record: LeaseRecord) -> bool:
        """End a lease that its caller does not get, and release it in the background; False when it had ended."""
        mine = object()
        try:
            self.leaving[mine] = record  # for one that closes the client meanwhile
            held = self.schedule.finish(record)
            if held:
                self.spawn_release(record)
            return held
        finally:
            self.leaving.pop(mine, None)

    def _not_renewed(self, record: LeaseRecord) -> None:
        """The engine has no thread, as far as is known."""

    def spawn_release(self, record: LeaseRecord) -> None:
        """Release in the background what is not wanted any more."""
        record.report.released()
        self.spawn(quietly(record))

    def give_back(self, record: LeaseRecord) -> None:
        """Give back a lease that reached no caller, or whose block ended without a release. For finalizers."""
        self.engine.call(self.client.sweep, record)

    # -- the end ----------------------------------------------------------------------------------

    def begin_close(self, *then: Callable[[], None]) -> Callable[[], None]:
        """Have the engine end what waits, tell those who hold, and release what they held.

        `then` are called in the engine's thread when that is over. Returns what waits for it. Idempotent.
        """
        for front in self.fronts:
            front.closed = True
        for front in self.fronts:
            front.leave()
        bell = silent_bell()

        def over(_settled: bool) -> None:
            self.client.end()
            for front in self.fronts:
                front.ended = True
            ring(bell)
            for each in (*(front.left for front in self.fronts), *then):
                each()

        self.engine.call(self.client.close, over)

        until = clock() + _CLOSE_MAX_S

        def wait() -> None:
            # In slices: an engine of before eventlet's patch wakes no greenlet.
            while not (self.ended or self.engine.is_mine()) and (left_s := until - clock()) > 0:
                self.engine.wait(bell, min(left_s, SLICE_S))

        return wait

    def look_after(self) -> None:
        """Look, now and then, whether callers miss something."""

    def leave(self) -> None:
        """Give back what no caller will, when the client begins to end."""

    def left(self) -> None:
        """End what is there for callers, by the engine, when the client has ended."""

    def closed_error(self) -> BaseException:
        """Return what calls of a closed client raise."""
        raise NotImplementedError

    def after_fork(self) -> None:
        """In the child: nothing is held, nothing runs; it has a client of its own."""
        for record in self.schedule:
            record.lose("forked")
        self.asking.clear()  # of the parent, which goes on with both
        self.leaving.clear()
        self.client.abandon()
        self.topology.forget(engine())
        self.client.front._begin(os.urandom(12).hex())


def _client(topology: Topology, inboxes: str, settings: Settings, reports: Reports, client_id: str) -> Client:
    client_id = client_id_of(client_id, topology.moves)
    return Client(engine(), topology, client_id, inboxes, settings, Troubles(reports))


#: The first one of each client.
_fronts: weakref.WeakSet[Front] = weakref.WeakSet()


def _close_later(front: Front) -> None:
    """Close it in the background: its client was garbage-collected, in any thread and at any bytecode.

    At the end of the process, where nothing goes on in the background, wait for that.
    """
    wait = front.begin_close()
    if exit_hooks.main_thread_has_ended():
        wait()


def _close_all(fronts: Iterable[Front] = _fronts, look: Callable[[Any], list[Front]] = snapshot) -> None:
    """Release at the end of the process what is held, so that others need not wait for a ttl."""
    waits = []
    for front in look(fronts):  # not by their names, which are gone when modules are
        if not (front.ended or front.exiting):
            for each in front.fronts:
                each.exiting = True
            waits.append(front.begin_close())
    for wait in waits:
        wait()


def forked() -> None:
    """In the child of a fork."""
    forget_engines()
    let_go()
    for front in tuple(_fronts):
        front.after_fork()


exit_hooks.register(_close_all, at_last=True)
os.register_at_fork(after_in_child=forked)

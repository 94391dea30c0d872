"""How threads wait for the engine.

Laws: whatever comes up in a thread that waits, what the engine does for it ends, and what was granted is given back;
no thread is started here.

Theory: a call makes an operation and submits it, and waits on a lock primitive until the engine releases that.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from holdfast._core.agent.agent import Outcome, Sent
from holdfast._core.agent.renewals import quietly
from holdfast._core.effects import Protocol
from holdfast._core.failure import RequestFailed
from holdfast._core.record import LeaseRecord
from holdfast._core.standing import Standing
from holdfast._core.tenure import SOON_MS, SOON_S
from holdfast._core.waiting import Busy, Grant
from holdfast._engine.client import Client
from holdfast._engine.operation import Operation
from holdfast._engine.pack import PreparedRequest
from holdfast._engine.requests import Ask
from holdfast._front.base import Front, Start, forked
from holdfast._runtime.cancel import Cancel, Cancelled
from holdfast._runtime.clock import clock
from holdfast._runtime.exit_hooks import main_thread_has_ended
from holdfast._runtime.greenlets import refuse_half_patched, who_patched
from holdfast._runtime.identity import has_ended, here
from holdfast._runtime.teller import Teller
from holdfast._runtime.waits import SLICE_S, ring, silent_bell
from holdfast.errors import CannotStartThread, ClientClosed, ConfigurationError, HoldfastError

__all__ = ["Teller", "ThreadsFront", "has_ended"]

R = TypeVar("R")

#: What is told of requests of the parent's, in the child of a fork.
_FORKED = "this process was forked meanwhile, and its parent goes on with the request"
#: Where no thread could be started to tell of a loss, it is tried again after this, s.
_AGAIN_S = 0.5


class ThreadsFront(Front):
    """What the API for threads asks of one client."""

    def _join(self, client: Client) -> None:
        super()._join(client)
        #: Where losses are told.
        self.home = Teller(partial(self.engine.call, self.engine.later, _AGAIN_S), self.engine.by_it)
        #: The threads that wait for each other here, or are about to.
        self.turning: set[int] = set()
        #: What the calling thread has of its own.
        self.here = here()
        self.patchable_local: object = threading.local
        self.patchable_socket: object = socket.socket

    def look_again(self) -> None:
        """Begin again in the child of a fork that no hook has seen, and where the process was patched since we began.

        A client that was used before the patch has locks and connections of before, which would hold up every greenlet.
        ConfigurationError.
        """
        if self.engine.pid != os.getpid():
            forked()
        library = who_patched()
        if library and (self.patchable_local, self.patchable_socket) != (threading.local, socket.socket):
            refuse_half_patched()
            if self.client.tasks or len(self.schedule) or any(server.is_used for server in self.topology.nodes()):
                raise ConfigurationError(
                    "client",
                    f"client of {', '.join(server.name for server in self.topology.nodes())}",
                    f"one that was not used before {library} patched the process: its connections and threads are of "
                    "before. Patch first thing in the program, or make the client after it (in a worker after fork)",
                )
            self.engine.leave(self.client)
            self.after_fork()
        # Or it was other code: usually a test.
        self.patchable_local, self.patchable_socket = threading.local, socket.socket

    def me(self) -> int:
        """Return the number of the thread that runs."""
        return self.caller()[1]

    def caller(self) -> tuple[Teller, int]:
        """Return where losses are told, and the number of the thread that runs."""
        if (
            self.patchable_local is not threading.local
            or self.patchable_socket is not socket.socket
            or self.engine.pid != os.getpid()
        ):
            self.look_again()
        return self.home, self.here.number

    # -- running ----------------------------------------------------------------------------------

    def run(
        self,
        protocol: Protocol[R] | Callable[[], Protocol[R]],
        cancel: Cancel | None = None,
        give_back: Callable[[Any], Protocol[None] | None] | None = None,
    ) -> R:
        """Have the engine run it, and wait for its end. `cancel` ends it with `Cancelled`."""
        try:
            self.me()  # which looks whether we are who we were
            if (link := self._only and self._only.link) is not None:
                link.is_below()  # then the engine sends by another one
            if cancel is not None and cancel.is_set():
                raise Cancelled
        except BaseException:
            if not callable(protocol):
                protocol.close()
            raise
        bell, client = silent_bell(), self.client
        stop = partial(ring, bell)
        turns, idle = self.engine.turns, 0
        operation = Operation(client, protocol, stop, give_back)
        try:
            if cancel is not None:
                cancel._watch(stop)
            self.engine.call(operation.begin)
            while not operation.over:
                if cancel is not None and cancel.is_set():
                    raise Cancelled
                if not self.engine.wait(bell, SLICE_S):
                    if self.client is not client:  # a signal handler has forked, and this is the child
                        raise RequestFailed("closed", _FORKED, "", maybe_executed=True, transient=False)
                    turns, idle = self.look_after_engine(turns, idle)
                if operation.chores:
                    operation.do_chores(self.engine.call)
            if cancel is not None and cancel.is_set():
                raise Cancelled  # it was over before we looked at all
        except BaseException:
            operation.abandon(self.engine.call)
            raise
        finally:
            if cancel is not None:
                cancel._unwatch(stop)
        return operation.take()  # type: ignore[no-any-return]

    # -- acquiring and releasing ------------------------------------------------------------------

    def ask(
        self, _home: object, first: PreparedRequest, token: str, deadline: float, standing: Standing | None = None
    ) -> Outcome | None:
        """Send it with that token, and wait for its outcome, and then where it stands, if it does.

        None where nothing can be sent from here.
        """
        link = self._only.link
        return None if link is None else link.ask(Ask(first, token, deadline), standing)

    def stands(self, key: str, asked_at: float) -> Standing:
        """Make what a caller waits by in the server's queue."""
        return Standing(key, asked_at, silent_bell(), ring)

    def acquire(self, asked: Any, first: PreparedRequest | None, start: Start, sent: Sent | None) -> Grant | Busy:
        """Acquire by the protocol, which is told what came of the first request, if that was sent."""
        return self.run(partial(self._acquires, asked, first, start, sent), asked.cancel)

    def take_turn(self, asked: Any) -> LeaseRecord | None:
        """Wait for a moment for what is handed on to its turn; None: it has to ask, or to wait for longer."""
        turn, timeout_s, line = asked.turn, asked.timeout_s, asked.turn.line
        taken: LeaseRecord | None = None
        if asked.cancel is None and asked.lock._ttl_ms > SOON_MS and (timeout_s is None or timeout_s > SOON_S):
            bell = silent_bell()
            turn.bell = partial(ring, bell)
            try:
                # Once: whatever else it is woken for is for the protocol to see.
                if line.owner is not turn and not line.dead and not self.closed:
                    bell.acquire(True, SOON_S)
            finally:
                turn.bell = None
            asked.lock._stay(asked)
            taken = None if self.closed else turn.take(clock())
        return taken

    def wait_in_line(self, asked: Any) -> LeaseRecord | Grant | Busy:
        """Have a protocol wait for its turn, and do all the rest."""
        start: Callable[..., Protocol[LeaseRecord | Grant | Busy]] = asked.lock._wait_in_line
        return self.run(partial(start, asked.turn, asked.timeout_s), asked.cancel)

    def release(self, record: LeaseRecord, first: PreparedRequest | None, outcome: Outcome | None) -> bool:
        """Release by the protocol, which is told what came of the first request, if that was sent."""
        return self.run(partial(self._releases, record, first, outcome))

    # -- what is held -----------------------------------------------------------------------------

    def _not_renewed(self, record: LeaseRecord) -> None:
        # At the end of the process, callers renew what is held.
        if not self.engine.runs() and not main_thread_has_ended():
            if self.schedule.finish(record):
                self.run(quietly(record))
            raise CannotStartThread(str(self.engine.trouble))

    # -- the end ----------------------------------------------------------------------------------

    def closed_error(self, error: HoldfastError | None = None) -> BaseException:
        """`ClientClosed`, or that error; at the interpreter's end `SystemExit` for daemon threads."""
        if self.exiting and threading.current_thread().daemon:
            return SystemExit()
        return ClientClosed() if error is None else error

    def close(self) -> None:
        """End what waits, tell those who hold, release what they held. Idempotent."""
        self.begin_close()()

    def left(self) -> None:
        """End the thread for callbacks."""
        self.home.stop()

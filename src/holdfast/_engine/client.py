"""A client in the engine: the agent of the core, with links to its servers.

Law: everything here runs in the engine's thread.

Theory: the topology finds the server of a key, and a request goes there by the connection that all share; but a session
(WATCH … EXEC) keeps one of its own, and so does a script that replicas have to acknowledge. Where a server sends it on
(MOVED, ASK), it follows. An inbox is open when the server has confirmed the subscription, and a script there has told
us something by it.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

from holdfast._core.agent.agent import Agent, Outcome
from holdfast._core.agent.closing import LEAVE_S
from holdfast._core.agent.runner import SUSPENDED, Task, closed
from holdfast._core.effects import AwaitWake, Call, Command, Listen, Tell
from holdfast._core.failure import RequestFailed
from holdfast._core.keys import sharded_inbox
from holdfast._core.record import LeaseRecord
from holdfast._core.replies import COUNT, FITS, MAYBE
from holdfast._core.settings import Settings
from holdfast._core.tokens import is_sharded
from holdfast._engine.link import Link
from holdfast._engine.loop import Engine
from holdfast._engine.operation import Operation
from holdfast._engine.pack import pack_command, pack_script, pack_sync, spelled_out
from holdfast._engine.requests import Answer, Request
from holdfast._engine.server import ASKING, Server, Topology
from holdfast._lua import SCRIPTS
from holdfast._reports.observing import Troubles
from holdfast._runtime.clock import clock
from holdfast._runtime.teller import report

#: What `hears` says.
_TOLD, _COUNTED = 2, 1
#: How often MOVED and ASK are followed for one request, since a slot can move meanwhile; and its least time there, s.
_REDIRECTS_MAX = 5
_REDIRECT_LEAST_S = 0.05


def _broken(server: Server) -> RequestFailed:
    return RequestFailed("broken", "no message comes from there", server.name, maybe_executed=False, transient=True)


class Client(Agent):
    """One client of this process."""

    def __init__(
        self,
        engine: Engine,
        topology: Topology,
        client_id: str,
        inboxes: str,
        settings: Settings,
        troubles: Troubles,
    ) -> None:
        self.engine = engine
        self.topology = topology
        self._inboxes = inboxes
        self.troubles = troubles
        #: Who is told when the waiter of a token is queued.
        self.queueing: dict[str, Any] = {}
        self.now, self.random = clock, random.Random().random
        self.soon, self.later, self.forget = engine.soon, engine.later, engine.forget
        #: The only server; None where one has to be found by the key.
        self.only = topology.only
        moves = topology.moves
        one_place = not moves and len(topology.nodes()) == 1
        super().__init__(client_id, inboxes, settings, threading.RLock(), one_place=one_place, moves=moves)
        self._perform |= {Tell: self._tell, Listen: self._listen, AwaitWake: self._await_wake}
        self._is_sharded = is_sharded(client_id)
        #: When a lease that begins short is looked after, at the earliest.
        self._short_s = settings.stretch_s * (1 - settings.renew_jitter)
        #: How often an inbox has ended.
        self._breaks = 0
        self.missing_inbox = self._missing
        topology.on_moved = self._moved
        #: The connections of sessions, which stay on theirs.
        self._sessions: dict[str, Link] = {}

    def unhandled(self, task: Task, error: BaseException) -> None:
        if not isinstance(error, RequestFailed):
            try:
                raise error
            except BaseException:
                report()

    def call(self, act: Callable[..., object], *args: Any) -> None:
        self.engine.call(act, *args)

    # -- requests ---------------------------------------------------------------------------------

    def troubled(self, server: Server, failure: RequestFailed) -> None:
        """Note that a request has ended so, whether the engine or a caller has sent it."""
        self.troubles.saw(failure)
        self.topology.troubled(server, failure)

    def known(self, first: Call, outcome: Outcome) -> Any:
        if outcome[1] is not None:
            self.troubled(self.topology.node_for(first.keys[0], None), outcome[1])
        return super().known(first, outcome)

    def request(
        self, effect: Call | Command, patience_s: float, answer: Callable[[Any, RequestFailed | None], None]
    ) -> None:
        """Send it to the owner of its key, and in time to where that sends it on; but a session stays where it is."""
        session, until = effect.session, clock() + patience_s
        send, redirects = (self._send, _REDIRECTS_MAX) if session is None else (self._send_in, 0)

        def go(server: Server, asking: bool = False) -> None:
            send(effect, server, max(until, clock() + _REDIRECT_LEAST_S), asking, partial(answered, server))

        def answered(server: Server, reply: Any, failure: RequestFailed | None) -> None:
            nonlocal redirects
            if failure is not None:
                elsewhere = self.topology.redirect(server, failure)
                if elsewhere is not None and redirects:
                    redirects -= 1
                    go(*elsewhere)
                    return
                self.troubled(server, failure)
            elif self.troubles:
                self.troubles.passed(server.name)
            answer(reply, failure)

        if self.only is not None:
            go(self.only)
        else:
            key = effect.key if isinstance(effect, Command) else effect.keys[0]
            self.topology.find(key, effect.node, go)

    def _send(self, effect: Call | Command, server: Server, until: float, asking: bool, answer: Answer) -> None:
        """`asking`: to the node that a slot is moving to, which takes it only behind ASKING."""
        if isinstance(effect, Command):
            packed, fits, script = pack_command(effect.args), effect.fits, None
        else:
            script, fits = SCRIPTS[effect.script], FITS[effect.script]
            packed = pack_script(script, effect.keys, effect.args)
            if asking:
                packed = spelled_out(packed, script)
            if effect.sync is not None:
                parts = [(packed, fits), *zip(pack_sync(effect.sync), (COUNT, MAYBE), strict=False)]
                server.send_all(parts, script, until, asking, answer)
                return
        if asking:
            server.send(Request(ASKING, until, None, None, lambda _reply, _failure: None))
        server.send(Request(packed, until, fits, None if asking else script, answer))

    def _send_in(self, effect: Any, server: Server, until: float, _asking: bool, answer: Answer) -> None:
        """On the connection of its session, which WATCH begins; it may end it, as trouble does."""
        session, sessions, command = effect.session, self._sessions, str(effect.args[0]).upper()
        link = sessions.pop(session, None) or (server.private() if command == "WATCH" else None)
        if link is None:
            over = None if command == "UNWATCH" else server.gone() if server.closed else server.ended()
            self.engine.soon(answer, b"OK", over)
            return
        ends = command in ("EXEC", "DISCARD", "UNWATCH")
        if not ends:
            sessions[session] = link  # also for what ends it before the answer, since its caller was interrupted

        def answered(reply: Any, failure: RequestFailed | None) -> None:
            if failure is not None:
                link.close()
                sessions.pop(session, None)
            elif ends:
                link.server.give(link)
            answer(reply, failure)

        link.send(Request(pack_command(effect.args), until, effect.fits, None, answered))

    # -- inboxes ----------------------------------------------------------------------------------

    def place_of(self, key: str) -> Server | tuple[Server, str]:
        """The server, or it and a channel in the slot of the key."""
        server = self.only or self.topology.node_for(key, None)
        if self._is_sharded and server.shards:
            return server, sharded_inbox(self._inboxes, key, self.client_id)
        return server

    def subscribe(self, place: Any, effect: Listen, answer: Callable[[RequestFailed | None], None]) -> None:
        server, channel = place if type(place) is tuple else (place, None)
        patience_s = effect.request_timeout_s
        server.wakes = self.wakes
        server.on_message, server.is_awaited = partial(self._heard, server), self.inboxes.is_awaited
        server.on_deaf = partial(self._deaf, server)

        def answered(_reply: Any, failure: RequestFailed | None) -> None:
            if failure is None and server.tells is None:
                self._check(server, effect, answer)
                return
            if failure is not None:
                if channel is not None and server.shards and failure.kind in ("ERR", "NOPERM"):
                    server.shards = False
                    server.subscribe("SUBSCRIBE", self.channel, patience_s, answered)
                    return
                if failure.lacks_command:
                    server.tells = False
                    failure = _broken(server)
                else:
                    self.topology.redirect(server, failure)
                    self.topology.troubled(server, failure)
            answer(failure)

        command = "SUBSCRIBE" if channel is None else "SSUBSCRIBE"
        server.subscribe(command, channel or self.channel, patience_s, answered)

    def _check(self, server: Server, effect: Listen, answer: Callable[..., None]) -> None:
        """Have a script tell us something: some servers let none do that, and some do not know who subscribes."""
        key, patience_s, breaks = effect.key, effect.request_timeout_s, self._breaks
        keys = (sharded_inbox(self._inboxes, key, self.client_id) if self._is_sharded else key,)
        call = Call("hears", keys, (self.client_id, self._inboxes), patience_s)

        def answered(reply: Any, failure: RequestFailed | None) -> None:
            if failure is not None:
                self.topology.redirect(server, failure)
                failure.request = call
                failure.way_out, failure.request = failure.denied(), None
            if reply == _COUNTED:
                server.reconnect()  # without a subscription that scripts would count
            if failure is None and breaks != self._breaks:
                failure = server.ended()  # it is open no more
            if failure is None:
                server.tells = reply == _TOLD
            answer(failure if failure is not None or reply == _TOLD else _broken(server))

        self._send(call, server, clock() + patience_s, False, answered)

    def _listen(self, task: Task, effect: Listen) -> Any:
        """As an agent; True where no message can come."""
        server = self.only or self.topology.node_for(effect.key, None)
        return True if server.tells is False else self.inboxes.listen(task, effect)

    def _missing(self, key: str) -> Hashable | None:
        """The same of an inbox for holders: None where it would be of no use."""
        return None if self.topology.node_for(key, None).tells is False else self.inboxes.missing(key)

    def silence(self, place: Any) -> RequestFailed:
        server: Server = place[0] if type(place) is tuple else place
        return server.silent(server.is_open)

    def unsubscribe(self, place: Any) -> None:
        if type(place) is tuple:
            place[0].unsubscribe(place[1])

    def _heard(self, server: Server, message: Any) -> None:
        if message[:1] == [b"sunsubscribe"] and type(message[1]) is bytes:
            self.inbox_broke((server, message[1].decode("utf-8", "replace")))  # its slot is elsewhere
        else:
            if self.attends_at is None:
                # A lease that is pushed begins short: else its caller would wake us to have it looked after.
                self.arm(self.now() + self._short_s)
            self.heard(message)

    def _deaf(self, server: Server, is_torn: bool) -> None:
        self._breaks += 1
        server.shards = True  # as the next connection will say
        places = [place for place in self.inboxes if type(place) is tuple and place[0] is server]
        self.inbox_broke(server, *places, by_us=is_torn)

    def _moved(self) -> None:
        """Have those look again that listen where the slot is no more."""
        sharded: list[Any] = [place for place in self.inboxes if type(place) is tuple]
        moved = [place for place in sharded if self.topology.node_for(place[1], None) is not place[0]]
        for place in moved:
            self.unsubscribe(place)
        self.inbox_broke(*moved)
        if any(type(place) is not tuple for place in self.inboxes):
            self.inboxes.ask_all()

    def repeat_unconfirmed(self) -> None:
        self.spawn(self.releasing.hurry(LEAVE_S, self._reconnect), "unconfirmed")

    def steps(self) -> int:
        return sum(server.steps for server in self.topology.nodes())

    def has_told(self, hold: LeaseRecord) -> bool:
        return hold.home is None or hold.home.has_told(hold)

    # -- what callers ask for ---------------------------------------------------------------------

    def _await_wake(self, task: Task, effect: AwaitWake) -> Any:
        if self.queueing and (queued := self.queueing.pop(effect.token, None)) is not None:
            queued.queued()
        return self.inboxes.await_wake(task, effect)

    def _tell(self, task: Task, effect: Tell) -> Any:
        """By its caller, whose function it is: what it calls may wait, for the engine, too."""
        operation = getattr(task.on_end, "__self__", None)
        if not isinstance(operation, Operation):
            return effect.function(effect.argument)
        operation.tell(effect.function, effect.argument, partial(self.resume, task, task.ticket))
        return SUSPENDED

    def close(self, on_end: Callable[[bool], None]) -> None:
        """As an agent; what its connections have to say is read."""
        for server in self.topology.nodes():
            server.rescue()
        super().close(on_end)

    def _reconnect(self) -> None:
        for server in self.topology.nodes():
            server.reconnect()

    def look_after(self) -> None:
        """Have fronts look; and close where the session is gone.

        An exception may have come up in its finalizer: Python passes over that.
        """
        if not self.closing and self.front.finalizer.peek() is None:
            self.front.finalizer()  # which keeps it; where it did that, the exception came later
            self.front.begin_close()
        for front in self.front.fronts:
            front.look_after()

    def sweep(self, hold: LeaseRecord) -> None:
        """Give back a lease that reached no caller, or whose block ended without a release."""
        self.schedule.remove(hold)
        if hold.mark_released() or hold.half_released():
            hold.report.released()
            self.spawn_release(hold)

    def end(self) -> None:
        """Close its connections, and leave the engine."""
        for server in self.topology.nodes():
            server.close()
        self.engine.soon(self.abandon, closed())  # what pauses between its tries has nothing to try any more
        self.engine.leave(self)

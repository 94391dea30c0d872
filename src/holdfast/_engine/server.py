"""The servers of a client, which of them a key belongs to, and their connections, made when they are first needed.

Theory: `link` is shared by all requests, and where the server speaks RESP3, its messages come by it, too; else by a
second one (`_inbox`). What blocks takes one of its own (`private`), and returns it (`give`). A link that is retired, or
has ended, says so (`forget_link`), and the next request makes another one. With the shared one, and with one that
fails while it is used, go those that are idle: another server may be in charge, and one that hangs would cost each its
time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from holdfast._core.effects import Reply
from holdfast._core.failure import RequestFailed
from holdfast._core.kinds import Fits
from holdfast._engine.handshake import late
from holdfast._engine.link import Link
from holdfast._engine.loop import Engine
from holdfast._engine.matching import MISPLACED, is_no_reply, is_none_either
from holdfast._engine.pack import pack_command, spelled_out
from holdfast._engine.requests import Answer, Request
from holdfast._lua import Script
from holdfast._runtime.clock import clock

#: An inbox that has been quiet for this long is sent a PING while it is relied on, s.
INBOX_QUIET_S = 10.0
#: How long a subscription, and the answer to that PING, may take, s.
INBOX_TIMEOUT_S = 5.0
#: Idle connections that are kept for what blocks.
SPARES_MAX = 16

ASKING, _PING = pack_command(("ASKING",)), pack_command(("PING",))


def _is_pong(reply: Reply) -> bool:
    """True of an answer to PING, also among messages."""
    return reply == b"PONG" or (type(reply) is list and reply[:1] == [b"pong"])


class Server:
    """What is known of a server, and who is told how its connections fare."""

    def __init__(self, engine: Engine, name: str, make: Callable[[], Any]) -> None:
        self.engine = engine
        self.name = name
        self.make = make
        self.closed = False
        #: Whether its connections are encrypted, as far as is known; and whether it has closed one at HELLO.
        self.tls = self.hello_closes = False
        #: How often one of its connections got on while it was made; threads that connect.
        self.steps = 0
        self.dialling: set[threading.Thread] = set()
        #: The shared connection, and that for messages, where the server has no RESP3, if there are such.
        self.link: Any = None
        self._inbox: Link | None = None
        self.on_message: Callable[[Reply], None] = lambda _: None
        #: The same in any thread, for those that it wakes there: True.
        self.wakes: Callable[[Reply], bool] = lambda _: False
        self.on_deaf: Callable[[bool], None] = lambda _: None
        #: Whether anything waits for messages.
        self.is_awaited: Callable[[], bool] = lambda: False
        #: Whether it has sharded channels, and this user may listen to them, as far as is known.
        self.shards = True
        #: Whether scripts there can tell us something, as far as is known: until its connection ends.
        self.tells: bool | None = None
        #: What blocks may take; and has, of those that may be taken again.
        self._spares: list[Link] = []
        self._taken: set[Link] = set()
        self._all: set[Link] = set()

    def send(self, request: Any) -> None:
        """By the engine: send it on the shared connection."""
        if self.link is not None and self.link.is_silent:
            self.link.retire()  # what it owes may be waited for longer than others wait
        if self.link is None:
            if self.closed:
                self.engine.soon(request.end, None, self.gone())
                return
            self.link = self._new()
        self.link.send(request)

    @property
    def is_open(self) -> bool:
        """Whether callers may send by themselves."""
        return self.link is not None and self.link.is_open

    def put_all(self, asks: list[Any]) -> None:
        """By an event loop: send those."""
        link = self.link
        if link is not None and link.is_open:
            link.put_all(asks)
        else:
            self.engine.call(self.take_over, [*asks])  # the caller goes on with its own list

    def send_all(
        self, parts: list[tuple[bytes, Fits]], script: Script, deadline: float, asking: bool, answer: Answer
    ) -> None:
        """Send a script and commands that wait behind it on a connection of their own; the result has all replies."""
        link = self.private()
        if link is None:
            self.engine.soon(answer, None, self.gone())
            return
        replies: list[Reply] = []
        failures: list[RequestFailed] = []

        def answered(reply: Reply, failure: RequestFailed | None) -> None:
            if failure is not None:
                failure.maybe_executed = failure.maybe_executed or bool(replies)
                failures.append(failure)
            replies.append(reply)
            if len(replies) < len(parts):
                return
            if not failures:
                self.give(link)
                answer(tuple(replies), None)
                return
            link.retire()
            if failures[0].kind == "NOSCRIPT":
                spelled = [(spelled_out(parts[0][0], script), parts[0][1]), *parts[1:]]
                self.send_all(spelled, script, deadline, asking, answer)
            else:
                answer(None, failures[0])

        if asking:
            link.send(Request(ASKING, deadline, None, None, lambda _reply, _failure: None))
        for packed, fits in parts:
            link.send(Request(packed, deadline, fits, None, answered))

    def private(self) -> Link | None:
        """A connection that no other request uses, for what may block; None where the client is closed."""
        while self._spares and not self._spares[-1].is_open:
            self._spares.pop()
        if self.closed and not self._spares:
            return None
        link = self._spares.pop() if self._spares else self._new()
        self._taken.add(link)
        return link

    def give(self, link: Link) -> None:
        """Take back what `private` has returned, for the next one."""
        is_kept = link in self._taken and len(self._spares) < SPARES_MAX
        self._taken.discard(link)
        if is_kept:
            self._spares.append(link)
        else:
            link.close()

    def gone(self) -> RequestFailed:
        return RequestFailed("closed", "the client is closed", self.name, maybe_executed=False, transient=False)

    def _new(self, is_inbox: bool = False) -> Link:
        link = Link(self, is_inbox=is_inbox)
        self._all.add(link)
        return link

    def take_over(self, requests: list[Any]) -> None:
        """By the engine: send those that have no connection, or instead of one that cannot."""
        for request in requests:
            self.send(request)

    def subscribe(self, command: str, channel: str, patience_s: float, answer: Answer) -> None:
        """Hear that channel, by SUBSCRIBE or SSUBSCRIBE; `on_deaf` is called when nothing more is heard of any."""
        until = clock() + patience_s

        def connected(_reply: Reply, failure: RequestFailed | None) -> None:
            link = self.link
            if link is None or not link.is_open:
                answer(None, failure or self.ended())
                return
            if not link.pushes:
                link = self._inbox = self._inbox or self._new(is_inbox=True)
            link.send(Request(pack_command((command, channel)), until, is_no_reply, None, partial(subscribed, link)))

        def subscribed(link: Link, reply: Reply, failure: RequestFailed | None) -> None:
            if failure is None and not link.is_open:
                failure = self.ended()
            if failure is None and link.on_deaf is None:
                link.on_deaf = self.on_deaf
                self._look_after(link)
            elif failure is not None and link is self._inbox and link.on_deaf is None:
                link.close()
            answer(reply, failure)

        if self.is_open:
            connected(None, None)
        else:  # to know what it speaks
            self.send(Request(_PING, until, None, None, connected))

    def unsubscribe(self, channel: str) -> None:
        """Hear a sharded channel no more."""
        link = self._inbox or self.link
        if link is not None and link.on_deaf is not None:
            packed, until = pack_command(("SUNSUBSCRIBE", channel)), clock() + INBOX_TIMEOUT_S
            link.send(Request(packed, until, is_none_either, None, lambda _reply, _failure: None))

    def _look_after(self, link: Link) -> None:
        """Ask whether it is still there when it has been quiet: it may be half-open."""
        if link.on_deaf is None:
            return
        left_s = INBOX_QUIET_S - link.quiet_s()
        if left_s <= 0:
            left_s = INBOX_QUIET_S
            if self.is_awaited():
                link.send(Request(_PING, clock() + INBOX_TIMEOUT_S, _is_pong, None, lambda _reply, _failure: None))
        self.engine.later(left_s, self._look_after, link)

    def silent(self, connected: bool) -> RequestFailed:
        """A request was not answered in time."""
        if connected:
            return RequestFailed("silent", "no answer in time", self.name, maybe_executed=True, transient=True)
        return late(self.name, None, tls=self.tls)

    def unfit(self, connection: object) -> RequestFailed:
        """Return the failure for connections without a socket to take over."""
        kind = getattr(connection, "kind", type(connection))
        said = f"connections with a socket: {kind.__name__} has none after connect()"
        return RequestFailed("unfit", said, self.name, maybe_executed=False, transient=False)

    def ended(self) -> RequestFailed:
        return RequestFailed("broken", "the connection ended", self.name, maybe_executed=False, transient=True)

    def forget_link(self, link: Link) -> None:
        """Forget a link that takes no more requests."""
        others_stay = self.link is not link and link not in self._taken
        if self._inbox is link:
            self._inbox = None
        if self.link is link:
            self.link = self.tells = None
            if self._inbox is not None:
                self._inbox.is_torn = link.is_torn
                self._inbox.retire()
        if link.ended:
            self._all.discard(link)
        if not others_stay:
            spares, self._spares = self._spares, []
            self._taken.clear()
            for spare in spares:
                spare.close()

    def rescue(self) -> None:
        """Read what its connections have to say, for any waiter."""
        for link in tuple(self._all):
            link.rescue()

    def reconnect(self) -> None:
        """Let the next request go on a new connection."""
        if self.link is not None:
            self.link.retire()

    @property
    def is_used(self) -> bool:
        """Whether it has connections."""
        return bool(self._all)

    def close(self) -> None:
        """End all its connections."""
        self.closed = True
        for link in tuple(self._all):
            link.close()

    def forget(self, engine: Engine) -> None:
        """After fork, in the child, which has an engine of its own."""
        for link in self._all:
            link.forget()
        for each in (self._all, self._spares, self._taken, self.dialling):
            each.clear()
        self.link = self._inbox = None
        self.engine = engine


class Topology:
    """Servers that stay what they are: one, a Sentinel's master, or the members of a quorum, each by its index."""

    #: Whether keys move from server to server.
    moves = False

    def __init__(self, *servers: Server, fails_over: bool = False) -> None:
        """`fails_over`: Sentinels may name another one for it."""
        self._servers = servers
        self._fails_over = fails_over
        #: The only one; None where one has to be chosen.
        self.only = servers[0] if len(servers) == 1 else None
        #: Called when keys have moved: waiters for a message from their old owner have to look.
        self.on_moved: Callable[[], None] = lambda: None

    def node_for(self, key: str | None, index: int | None) -> Server:
        """The server that owns the key; the `index`-th member of a quorum or master; any when both are None."""
        return self._servers[index or 0]

    def find(self, key: str | None, index: int | None, then: Callable[[Server], None]) -> None:
        """Have `then` called with that server, in a moment where it is about to be found out."""
        then(self.node_for(key, index))

    def nodes(self) -> Sequence[Server]:
        """All servers that are known now."""
        return self._servers

    def masters(self) -> Sequence[Server]:
        """Return those that have keys of their own, as far as is known: members of a quorum have the same ones."""
        return self._servers[:1]

    def redirect(self, node: Server, failure: RequestFailed) -> tuple[Server, bool] | None:
        """Return the server that a refusal leads to, and whether to say ASKING there first; None: nowhere."""
        return None

    def troubled(self, node: Server, failure: RequestFailed) -> None:
        """A request to the server ended so: what is known of the topology may be out of date."""
        # A connection that broke is not used again anyway.
        if self._fails_over and (failure.kind == "silent" or failure.kind in MISPLACED):
            node.reconnect()

    def forget(self, engine: Engine) -> None:
        """After fork, in the child, which has an engine of its own."""
        for node in self.nodes():
            node.forget(engine)

"""One server of one client: its connections, made when they are first needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast._core.effects import Reply
from holdfast._core.failure import RequestFailed
from holdfast._core.replies import Fits
from holdfast._engine.link import Link, is_no_reply
from holdfast._engine.loop import Engine
from holdfast._engine.pack import pack_command, spelled_out
from holdfast._engine.place import Place
from holdfast._engine.requests import Answer, Ask, Later, Request
from holdfast._lua import Script
from holdfast._runtime.clock import clock

__all__ = ["Server"]


class Server(Place):
    """One server of one client: its connection, made when it is first needed."""

    def __init__(self, engine: Engine, name: str, make: Callable[[], Any]) -> None:
        super().__init__(engine, name, make)
        self.closed = False
        self._link: Link | None = None
        #: Those of sessions, and what blocks may take.
        self._sessions: dict[str, Link] = {}
        self._spares: list[Link] = []
        self._all: set[Link] = set()

    def send(self, packed: bytes, patience_s: float, fits: Fits | None, script: Script | None, answer: Answer) -> None:
        """Send it on the shared connection. By the engine."""
        request = Request(packed, clock() + patience_s, fits, script, answer)
        link = self._link
        if link is None:
            if self.closed:
                self.engine.soon(request.end, None, self._closed())
                return
            link = self._connect()
        link.send(request)

    @property
    def link(self) -> Link | None:
        """The shared connection, if there is one."""
        return self._link

    @property
    def is_open(self) -> bool:
        """Whether callers may send by themselves."""
        return self._link is not None and self._link.is_open

    def put_all(self, asks: list[Any]) -> None:
        """By an event loop: send those."""
        link = self._link
        if link is not None and link.is_open:
            link.put_all(asks)
        else:
            self.engine.call(self.take_over, asks)

    def send_in(
        self, session: str, ends: bool, packed: bytes, patience_s: float, fits: Fits | None, answer: Answer
    ) -> None:
        """Send it on the connection of that session; `ends` it, as trouble does."""
        link = self._sessions.pop(session, None) or self._private()

        def answered(reply: Reply, failure: RequestFailed | None) -> None:
            if failure is not None:
                link.close()
            elif ends:
                self._spares.append(link)
            else:
                self._sessions[session] = link
            answer(reply, failure)

        link.send(Request(packed, clock() + patience_s, fits, None, answered))

    def send_all(
        self, parts: list[tuple[bytes, Fits | None]], script: Script, patience_s: float, answer: Answer
    ) -> None:
        """Send a script and commands that wait behind it on a connection of their own; the result has all replies."""
        link = self._private()
        deadline = clock() + patience_s
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
                self._spares.append(link)
                answer(tuple(replies), None)
                return
            link.retire()
            if failures[0].kind == "NOSCRIPT":
                spelled = [(spelled_out(parts[0][0], script), parts[0][1]), *parts[1:]]
                self.send_all(spelled, script, deadline - clock(), answer)
            else:
                answer(None, failures[0])

        for packed, fits in parts:
            link.send(Request(packed, deadline, fits, None, answered))

    def _private(self) -> Link:
        while self._spares:
            if (link := self._spares.pop()).is_open:
                return link
        link = Link(self)
        self._all.add(link)
        return link

    def _closed(self) -> RequestFailed:
        return RequestFailed("closed", "the client is closed", self.name, maybe_executed=False, transient=False)

    def _connect(self) -> Link:
        link = self._link = Link(self)
        self._all.add(link)
        return link

    def send_later(self, later: Later) -> None:
        """By the engine: send it."""
        if self._link is None and self.closed:
            later.end(None, self._closed())
        else:
            self.take_over([later])

    def take_over(self, requests: list[Any]) -> None:
        """Send those instead of a connection that cannot."""
        if requests:
            link = self._link or self._connect()
            for request in requests:
                link.send(request)

    def ask(self, ask: Ask) -> tuple[Reply, RequestFailed | None] | None:
        """By a caller: send it and wait for its outcome; None where there is no connection, and nothing was sent."""
        link = self._link
        if link is None or not link.is_open:
            return None
        if link.is_below():
            self.engine.call(link.retire)
            return None
        link.ask(ask)
        if ask.outcome is None:
            ask.end(None, self.silent(True))
            self.engine.call(link.overdue)
        return ask.outcome

    def tell(self, later: Later) -> bool:
        """By a caller: send it; False where there is no connection yet."""
        link = self._link
        if link is None or not link.is_open:
            return False
        if link.is_below():
            self.engine.call(link.retire)
            return False
        link.put(later)
        return True

    def subscribe(self, channel: str, patience_s: float, answer: Answer, on_deaf: Callable[[], None]) -> None:
        """Hear that channel by the shared connection; `on_deaf` is called once when nothing more is heard."""

        def subscribed(reply: Reply, failure: RequestFailed | None) -> None:
            link = self._link
            if failure is None and (link is None or link.ended):
                failure = RequestFailed(
                    "broken", "the connection ended", self.name, maybe_executed=False, transient=True
                )
            if failure is None and link is not None:
                link.on_deaf = on_deaf
            answer(reply, failure)

        self.send(pack_command(("SUBSCRIBE", channel)), patience_s, is_no_reply, None, subscribed)

    def forget_link(self, link: Link) -> None:
        """Forget a link that takes no more requests."""
        if self._link is link:
            self._link = None
        if link.ended:
            self._all.discard(link)

    def rescue(self) -> None:
        """Read what its connections have to say, for any waiter."""
        for link in tuple(self._all):
            link.rescue()

    def reconnect(self) -> None:
        """Let the next request go on a new connection."""
        if self._link is not None:
            self._link.retire()

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
        self._all.clear()
        self._sessions.clear()
        self._spares.clear()
        self._link = None
        self.engine = engine

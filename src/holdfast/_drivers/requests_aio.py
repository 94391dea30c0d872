"""Requests of protocols in an event loop, to the node that has their keys.

Laws: MOVED and ASK are followed within the time of one request; what WAIT has to vouch for was sent on the same
connection right before it; a command that would block, or that belongs to a session, has a connection of its own.

Theory: a `Call` is one future of a shared connection. Only where keys move, or a master may be another one next, does
a coroutine look at the reply.
"""

from __future__ import annotations

import asyncio
import typing
from collections.abc import Awaitable
from typing import Any

from holdfast._core.effects import Answer, Call, CallMany, Command, Protocol
from holdfast._core.failure import RequestFailed
from holdfast._core.replies import COUNT, DONE, FITS, MAYBE
from holdfast._drivers.background_aio import heed
from holdfast._drivers.observing import Troubles
from holdfast._drivers.waits_aio import Waits
from holdfast._lua import SCRIPTS
from holdfast._transport.aio import Node
from holdfast._transport.clock import clock
from holdfast._transport.cluster_aio import AioCluster
from holdfast._transport.limits import GONE, REDIRECTS_MAX, redirect_timeout_s
from holdfast._transport.pack import pack_command, pack_script, pack_sync, spelled_out
from holdfast._transport.port import Topology

__all__ = ["Requests"]

#: How long a reply that was not waited for is still looked at, s.
LATE_PATIENCE_S = 30.0
#: A member of a quorum that owes a reply for this long, s, is asked on a new connection: the old one may be half-open.
MEMBER_SILENCE_S = 0.25


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


class Driver(typing.Protocol):
    """Whose requests they are."""

    loop: asyncio.AbstractEventLoop
    waits: Waits
    troubles: Troubles

    def spawn(self, protocol: Protocol[Any]) -> None: ...


class Requests:
    """Sends those of one client."""

    def __init__(self, driver: Driver, topology: Topology[Node]) -> None:
        self._driver = driver
        self.topology = topology
        self._node_for = topology.node_for
        self._moves: bool = getattr(topology, "moves", True)  # whether MOVED and ASK can come
        self._fails_over: bool = getattr(topology, "fails_over", False)
        #: A Cluster of which nothing is known yet.
        self._unread: AioCluster | None = topology if isinstance(topology, AioCluster) else None
        #: Of commands that have a connection of their own.
        self._numbers = 0

    def call(self, call: Call) -> Awaitable[Any]:
        """Send it; the awaitable has the reply."""
        if self._unread is not None and not self._unread.is_learned:
            return self._call_when_known(call)
        return self._call(call)

    async def _call_when_known(self, call: Call) -> Any:
        assert self._unread is not None
        until = clock() + call.request_timeout_s
        await self._unread.known()
        return await self._call(
            Call(call.script, call.keys, call.args, redirect_timeout_s(until), call.node, call.sync)
        )

    def _call(self, call: Call) -> Awaitable[Any]:
        if call.sync is not None:
            return self._call_synced(call)
        keys = call.keys
        script = SCRIPTS[call.script]
        server = self._node_for(keys[0], call.node)
        future = server.submit(pack_script(script, keys, call.args), call.request_timeout_s, script)
        return self._following(server, call, future) if self._moves or self._fails_over else future

    def _elsewhere(self, server: Node, failure: RequestFailed) -> tuple[Node, bool]:
        """Follow MOVED and ASK; any other trouble is noted, and raised."""
        elsewhere = self.topology.redirect(server, failure) if failure.kind in ("MOVED", "ASK") else None
        if elsewhere is None:
            self.in_trouble(server, failure)
            raise failure
        if not elsewhere[1]:
            self._driver.waits.ask_all()  # their inbox is at the node that has owned the slot
        return elsewhere

    def in_trouble(self, server: Node, failure: RequestFailed) -> None:
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
            left_s = redirect_timeout_s(until)
            if asking:
                # Spelled out, since a script that had to be loaded first would come after ASKING's one command.
                heed(server.submit(_ASKING, left_s, None, DONE))
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
            request_timeout_s = redirect_timeout_s(until)
            if asking:
                heed(link.submit(_ASKING, request_timeout_s, None, DONE))
            fits = (FITS[script.name], COUNT, MAYBE)
            replied, *more = [
                link.submit(each, request_timeout_s, None, fit)
                for each, fit in zip((packed, *tail), fits, strict=False)
            ]
            try:
                reply = await replied
            except BaseException as error:
                for future in more:
                    heed(future)
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
                    heed(future)
                if isinstance(error, RequestFailed):
                    error.maybe_executed = True
                raise
        raise RequestFailed("MOVED", "the slot keeps moving", server.name, maybe_executed=False, transient=True)

    async def command(self, command: Command) -> Any:
        server = self._node_for(command.key, command.node)
        word = str(command.args[0]).upper()
        packed = pack_command(command.args)
        if command.session is None and word not in _BLOCKING:
            until = clock() + command.request_timeout_s
            for _ in range(REDIRECTS_MAX):
                try:
                    return await server.submit(packed, redirect_timeout_s(until), None, command.fits)
                except RequestFailed as failure:
                    server, asking = self._elsewhere(server, failure)
                if asking:
                    heed(server.submit(_ASKING, redirect_timeout_s(until), None, DONE))
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
                self.in_trouble(server, error)
            raise
        if command.session is None or word in _SESSION_ENDS:
            server.end_session(session)
        return reply

    async def call_many(self, many: CallMany) -> list[Answer]:
        """Send all, then take the answers as they come."""
        answers: list[Answer] = [None] * len(many.calls)
        enough = many.enough
        finished: asyncio.Future[None] = self._driver.loop.create_future()
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
                        self._driver.spawn(protocol)
                return
            if isinstance(answer, BaseException) and not isinstance(answer, RequestFailed):
                finished.set_exception(answer)
                return
            if isinstance(answer, RequestFailed):
                answer.about(many.calls[index])
                self._driver.troubles.saw(answer)
            elif self._driver.troubles:
                call = many.calls[index]
                self._driver.troubles.passed(self._node_for(call.keys[0], call.node).name)
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
                future = self._driver.loop.create_future()
                future.set_exception(failure)
            future.add_done_callback(lambda future, index=index: answered(index, future))  # type: ignore[misc]
        alarm = self._driver.loop.call_later(many.request_timeout_s, time_is_up)
        try:
            if answers:
                await finished
        finally:
            alarm.cancel()
            if not finished.done():
                finished.cancel()
        return answers

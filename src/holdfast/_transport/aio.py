"""Multiplexed connections to servers, for asyncio.

Laws: nothing is repeated here but a script that the server does not know yet; replies are matched to requests in
order, also those that are no longer waited for; a connection that has been silent for too long gets no new
requests.

Theory: one connection per server carries the commands of all tasks. What is submitted within one turn of the
event loop leaves in one write; a request that finds the connection idle leaves at once, since waiting for the
turn's end would only cost it a turn. `connection_aio.py` makes the connections.
"""

from __future__ import annotations

import asyncio
import math
import select
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Any, Protocol, TypeAlias
from weakref import WeakSet

import hiredis

from holdfast._core.effects import Reply
from holdfast._core.failure import RequestFailed, refusal
from holdfast._core.replies import FITS, MAYBE, Fits, expected_of, nonsense, promises_too_much
from holdfast._lua import Script
from holdfast._transport.connection_aio import connect, drop, forget_transport, take_over
from holdfast._transport.handshake import late
from holdfast._transport.limits import MISPLACED
from holdfast._transport.pack import Group, PreparedRequest, pack_command, spelled_out
from holdfast._transport.pushes import Push
from holdfast._transport.single import describe
from holdfast._transport.together import EACH_MIN, Member, Together, shares

__all__ = [
    "Hearing",
    "Node",
    "Wire",
    "node_of_client",
    "spelled_out",
    "told_already",
]

#: A connection that owes replies and says nothing gets no new requests after this, s: they may do better on a new one.
SILENCE_S = 1.0
#: One that has been silent for this long is checked before it is used, s: the event loop may have been held up, and
#: the connection be closed.
UNSEEN_S = 0.0005
#: How many requests of an ended connection are failed before other tasks run.
_FAILED_A_TURN = 100
#: And it is closed after this much more, s: until then, late replies are still matched.
LINGER_S = 10.0
#: Dedicated connections that are kept for the next user.
IDLE_WIRES_MAX = 8

_MORE = object()
#: The end of a connection, where the system tells it from other news.
_HUNG_UP = getattr(select, "POLLRDHUP", 0)

#: Future, deadline on the monotonic clock, bytes, the script that may have to be loaded, and which replies fit.
_Request: TypeAlias = "tuple[asyncio.Future[Any] | Together, float, bytes, Script | None, Fits | None]"


class Hearing(Protocol):
    """What hears the messages of one channel at a node."""

    node: Node
    open: bool

    @property
    def gone(self) -> bool: ...
    def check(self) -> None: ...
    def abort(self) -> None: ...
    def forget(self) -> None: ...


class _Subscription:
    """For whom a connection for commands hears messages beside its replies, and who minds its end."""

    __slots__ = ("on_end", "on_message")

    def __init__(self, on_message: Callable[[Reply], None], on_end: Callable[[], None]) -> None:
        self.on_message = on_message
        self.on_end = on_end


def _fail(future: asyncio.Future[Any] | Together, failure: RequestFailed) -> None:
    """End a request. Where it is no longer waited for (a cancelled task), its exception counts as retrieved."""
    future.set_exception(failure)
    future.exception()  # looked at: asyncio logs what was not


def _is_no_reply(reply: Reply) -> bool:
    return False


class Wire(asyncio.Protocol):
    """One connection for the commands of many tasks. It may be used before it is connected."""

    def __init__(self, node: Node, loop: asyncio.AbstractEventLoop) -> None:
        self.node = node
        self._loop = loop
        self._create_future = loop.create_future
        self._reader = hiredis.Reader(notEnoughData=_MORE)
        self._has_more = self._reader.has_data
        #: What was written (or will be, once it is connected) and not answered yet.
        self.pending: deque[_Request] = deque()
        #: Not written yet: requests, and lists of those that go together.
        self._out: list[_Request | list[Member]] = []
        self._groups: dict[tuple[Group, float], list[Member]] = {}  # those lists
        self._transport: asyncio.Transport | None = None
        self._kept: Any = None
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = math.inf
        #: When something came, or was sent to a connection that owed nothing, on the monotonic clock.
        self.heard_at = 0.0
        self._midway = False  # a reply has begun
        self._loading: set[str] = set()
        #: Requests that were sent again because another one loads their script.
        self._again: WeakSet[asyncio.Future[Any] | Together] = WeakSet()
        self._retired = False
        self.ended = False
        self._subscription: _Subscription | None = None
        self._opening: asyncio.Task[None] | None = loop.create_task(self._open())
        self._opening.add_done_callback(told_already)

    # ------------------------------------------------------------------ requests

    def submit(
        self, packed: bytes, request_timeout_s: float, script: Script | None = None, fits: Fits | None = None
    ) -> asyncio.Future[Any]:
        """Send it; the future ends with the reply, or with `RequestFailed`. `fits`: a script's are known."""
        future: asyncio.Future[Any] = self._create_future()
        now = monotonic()
        deadline = now + request_timeout_s
        pending = self.pending
        if script is not None:
            fits = FITS[script.name]
        transport = self._transport
        if transport is None:
            pending.append((future, deadline, packed, script, fits))
        elif self._out or pending:
            self._put((future, deadline, packed, script, fits))
        else:
            self.heard_at = now  # it owed nothing until now
            pending.append((future, deadline, packed, script, fits))
            transport.write(packed)
        if deadline < self._alarm_at:
            self._arm(deadline)
        return future

    def join(self, group: Group, request: PreparedRequest, token: str, request_timeout_s: float) -> asyncio.Future[Any]:
        """The same, together with others of its group that are submitted in this turn of the event loop."""
        if self._transport is None:
            return self.submit(request.packed(token), request_timeout_s, request.script)
        future: asyncio.Future[Any] = self._create_future()
        deadline = monotonic() + request_timeout_s
        kind = group, request_timeout_s
        members = self._groups.get(kind)
        if members is None:
            members = self._groups[kind] = []
            self._put(members)
        members.append((future, deadline, request, token))
        if deadline < self._alarm_at:
            self._arm(deadline)
        return future

    def hear(
        self, channel: str, on_message: Callable[[Reply], None], on_end: Callable[[], None], request_timeout_s: float
    ) -> asyncio.Future[Any]:
        """Subscribe to the channel (RESP3 is spoken); `on_end` is called once when nothing more will be heard."""
        if not self.usable:
            raise RequestFailed(
                "broken", "the connection was closed", self.node.name, maybe_executed=False, transient=True
            )
        self._subscription = _Subscription(on_message, on_end)
        # A refusal is a reply; the confirmation is a push in its place.
        return self.submit(pack_command(("SUBSCRIBE", channel)), request_timeout_s, None, _is_no_reply)

    def _pushed(self, push: Reply) -> None:
        pending, subscription = self.pending, self._subscription
        if pending and pending[0][4] is _is_no_reply and push[:1] == [b"subscribe"]:
            future = pending.popleft()[0]
            if isinstance(future, asyncio.Future) and not future.done():
                future.set_result(None)
        elif subscription is not None:
            subscription.on_message(push)

    def _deaf(self) -> None:
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            subscription.on_end()

    def _put(self, request: _Request | list[Member]) -> None:
        self._out.append(request)
        if len(self._out) == 1:
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        out, transport = self._out, self._transport
        if not out or transport is None:
            return
        try:
            requests: list[_Request] = []
            for each in out:
                if isinstance(each, tuple):
                    requests.append(each)
                else:
                    for share in shares(each):
                        requests += self._together(share)
            self.pending += requests
            self._out = []
            self._groups.clear()
            transport.write(b"".join([request[2] for request in requests]))
        except BaseException:
            self._end("an exception has interrupted the writing of requests")
            raise

    def _together(self, members: list[Member]) -> list[_Request]:
        if len(members) < EACH_MIN:
            return [self._alone(member) for member in members]
        together = Together(members, self._put_alone)
        deadline = max([member[1] for member in members])
        return [(together, deadline, together.packed, together.script, together.fits)]

    @staticmethod
    def _alone(member: Member) -> _Request:
        future, deadline, request, token = member
        return future, deadline, request.packed(token), request.script, FITS[request.script.name]

    def _put_alone(self, member: Member) -> None:
        if not member[0].done():
            self._put(self._alone(member))

    # ------------------------------------------------------------------ replies

    def data_received(self, data: bytes) -> None:
        """Match replies with requests."""
        self.heard_at = monotonic()
        reader = self._reader
        pending = self.pending
        future: asyncio.Future[Any] | Together | None = None
        midway = True
        try:
            if data.find(b"\r", 0, 9) < 0 and promises_too_much(data) and not self._midway:
                raise ValueError(repr(data[:20]))
            reader.feed(data)
            gets = reader.gets
            while (reply := gets()) is not _MORE:
                kind = reply.__class__
                if kind is Push:
                    midway = self._has_more()
                    self._pushed(reply)
                    continue
                request = pending[0]
                future = request[0]
                pending.popleft()  # now that it is known whose the reply is, whatever comes between
                fits = request[4]
                midway = self._has_more()
                if midway and not pending and not self._only_pushes():
                    self._nonsense(future, "more than one reply", expected_of(None))
                    return
                if kind is hiredis.ReplyError:
                    self._refused(reply, request)
                elif fits is not None and not fits(reply):
                    self._nonsense(future, repr(reply), expected_of(fits))
                    return
                elif not future.done():
                    future.set_result(reply)
        except Exception as error:  # of the parser, which runs out of memory for some; or not asked for
            first = future
            if first is None or first.done():
                first = pending.popleft()[0] if pending else None
            self._nonsense(first, f"{type(error).__name__}: {error}", expected_of(None))
            return
        except BaseException:
            # Out of a signal handler: the reply that was being looked at is no longer waited for.
            if future is not None and not future.done():
                _fail(future, self._interrupted())
            self._end("an exception has interrupted the reading of replies")
            raise
        self._midway = midway
        if self._retired and not pending and not self._out:
            self.close()

    def _interrupted(self) -> RequestFailed:
        said = "an exception has interrupted the reading of its reply"
        return RequestFailed("broken", said, self.node.name, maybe_executed=True, transient=True)

    def _only_pushes(self) -> bool:
        """True if what was read beyond the last reply is nothing but pushes."""
        while self._has_more():
            more = self._reader.gets()
            if more is _MORE and self._subscription is not None:
                return True  # the begin of one
            if more.__class__ is not Push:
                return False
            self._pushed(more)
        return True

    def _nonsense(self, future: asyncio.Future[Any] | Together | None, said: str, expected: str) -> None:
        """No further reply on this connection can be trusted to be for its request."""
        failure = nonsense(said, expected, self.node.name)
        if future is not None and not future.done():
            _fail(future, failure)
        self._end(f"another answer on this connection made no sense: {failure.message}")

    def _refused(self, reply: Any, request: _Request) -> None:
        future, deadline, packed, script, fits = request
        said = str(reply)
        if said.startswith("NOSCRIPT") and script is not None:
            if not future.done():
                self._load(script, future, deadline, packed, fits)
            return
        failure = refusal(said, self.node.name)
        if failure.kind in MISPLACED:
            self.retire()
        if type(future) is Together:
            future.refused()
        elif not future.done():
            _fail(future, failure)

    def _load(
        self, script: Script, future: asyncio.Future[Any] | Together, deadline: float, packed: bytes, fits: Fits | None
    ) -> None:
        """Say the script in full. Others that wait for the same find it loaded: they come later on this connection."""
        if script.sha in self._loading and future not in self._again:
            self._again.add(future)  # once: it may be forgotten as fast as it is loaded
            self._put((future, deadline, packed, script, fits))
            return
        self._loading.add(script.sha)

        def loaded(_: asyncio.Future[Any] | Together) -> None:
            self._loading.discard(script.sha)

        # SCRIPT LOAD is what the server keeps; EVAL works also for users who may not LOAD.
        unawaited = self._loop.create_future()
        unawaited.cancel()
        self._put((unawaited, math.inf, pack_command(("SCRIPT", "LOAD", script.text)), None, MAYBE))
        future.add_done_callback(loaded)
        self._put((future, deadline, spelled_out(packed, script), None, fits))

    # ------------------------------------------------------------------ times

    def _arm(self, at: float) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_at = at
        self._alarm = self._loop.call_later(max(0.0, at - monotonic()), self._expire)

    def _expire(self) -> None:
        """End what has waited long enough."""
        self._flush()
        now = monotonic()
        self._alarm = None
        self._alarm_at = next_at = math.inf
        connected = self._transport is not None
        expired = False
        for future, deadline, _, _, _ in self.pending:
            if future.done():
                continue
            if deadline <= now:
                expired = True
                _fail(future, self._silent(connected))
            elif deadline < next_at:
                next_at = deadline
        if next_at < math.inf:
            self._arm(next_at)
        if connected and expired and (self._midway or now - self.heard_at >= SILENCE_S):
            self.retire()

    def _silent(self, connected: bool) -> RequestFailed:
        if connected:
            return RequestFailed("silent", "no answer in time", self.node.name, maybe_executed=True, transient=True)
        return late(self.node.name, None, tls=self.node.tls)

    # ------------------------------------------------------------------ beginning and end

    async def _open(self) -> None:
        try:
            connection = await connect(self.node)
        except RequestFailed as failure:
            self._fail(failure)
            return
        except BaseException:
            self._fail(
                RequestFailed("closed", "the client was closed", self.node.name, maybe_executed=False, transient=False)
            )
            raise
        finally:
            self._opening = None
        if self.ended:
            drop(connection)
            return
        transport, self._kept, ahead = take_over(connection, self)
        if transport.is_closing():
            self._fail(
                RequestFailed(
                    "broken", "the connection was closed", self.node.name, maybe_executed=False, transient=True
                )
            )
            self._kept = None
            return
        # Those whose asker has gone meanwhile need not be sent at all.
        self.pending = deque(request for request in self.pending if not request[0].done())
        self._transport = transport
        self.heard_at = monotonic()
        if self.pending:
            transport.write(b"".join(request[2] for request in self.pending))
        if ahead:
            self.data_received(ahead)

    def _fail(self, failure: RequestFailed, sent: int = 0) -> None:
        """End everything that is pending; all but the first `sent` requests have certainly not left."""
        self.ended = True
        self.node.forget_wire(self)
        self._deaf()
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        pending: deque[Any] = self.pending
        self.pending = deque()
        out, self._out = self._out, []
        self._groups.clear()
        for each in out:
            pending += [each] if isinstance(each, tuple) else each
        self._fail_some(failure, pending, sent)

    def _fail_some(self, failure: RequestFailed, pending: deque[Any], sent: int) -> None:
        """The first `sent` of these may have been executed. Where there are many, others have their turn between."""
        for _ in range(min(len(pending), _FAILED_A_TURN)):
            future = pending.popleft()[0]
            if not future.done():
                _fail(future, failure.again(maybe_executed=sent > 0))
            sent -= 1
        if pending:
            self._loop.call_soon(self._fail_some, failure, pending, sent)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended: what was written may have been executed."""
        self._transport = self._kept = None
        if not self.ended:
            said = str(exc) if exc is not None and str(exc) else "the connection was closed"
            failure = RequestFailed("broken", said, self.node.name, maybe_executed=True, transient=True)
            self._fail(failure, len(self.pending))

    def _end(self, said: str) -> None:
        if self._transport is not None:
            self._transport.abort()
        self.connection_lost(ConnectionError(said))

    def retire(self) -> None:
        """No new requests; closed when it owes nothing any more, or has lingered long enough."""
        if self._retired or self.ended:
            return
        self._retired = True
        self.node.forget_wire(self)
        self._deaf()
        self._flush()
        self._loop.call_later(LINGER_S, self.abort)
        if not self.pending:
            self._loop.call_soon(self.close)

    def close(self) -> None:
        """Write what is to be written, and end."""
        if self._opening is not None:
            self._opening.cancel()
        elif self._transport is not None:
            self._flush()
            self._transport.close()

    def abort(self) -> None:
        """End at once."""
        if self._opening is not None:
            self._opening.cancel()
        elif self._transport is not None:
            self._transport.abort()

    def is_unread(self) -> bool:
        """True if an idle connection has something to read that the event loop has not seen: most likely its end."""
        transport = self._transport
        if transport is None or self.pending or monotonic() - self.heard_at < UNSEEN_S:
            return False
        sock = transport.get_extra_info("socket")
        if sock is None or sock.fileno() < 0:
            return transport.is_closing()
        poll = select.poll()
        poll.register(sock.fileno(), select.POLLIN if self._subscription is None else _HUNG_UP)
        return bool(poll.poll(0))

    @property
    def usable(self) -> bool:
        """Whether it takes new requests."""
        return not self.ended and not self._retired

    @property
    def gone(self) -> bool:
        """Nothing is left of it, neither a connection nor an attempt."""
        return self._transport is None and self._opening is None

    def silent_for(self, now: float) -> float:
        """How long it has owed replies and said nothing, s; 0 while it is being made."""
        return now - self.heard_at if self.pending and self._transport is not None else 0.0

    @property
    def owes(self) -> int:
        """Replies that have not come yet."""
        return len(self.pending) + len(self._out)

    def forget(self) -> None:
        """In another process, or after its event loop: let go of the descriptor without a word on it."""
        transport, self._transport = self._transport, None
        forget_transport(transport)
        self._kept = None


def told_already(task: asyncio.Task[Any]) -> None:
    """For tasks that are not awaited: what comes out of the event loop is not logged as well."""
    error = None if task.cancelled() else task.exception()
    if isinstance(error, Exception):
        message = "Task exception was never retrieved"
        task.get_loop().call_exception_handler({"message": message, "exception": error, "future": task})


class Node:
    """One server: its connections, made when first needed. Belongs to one event loop."""

    def __init__(self, name: str, make: Callable[[], Any]) -> None:
        self.name = name
        self.make = make
        #: Whether its connections are encrypted, as far as is known.
        self.tls = False
        self.closed = False
        #: Whether it has left its Cluster: who is on the way to it is served, and no connection is kept.
        self.retired = False
        self.inbox: Hearing | None = None
        self.opening: asyncio.Task[Hearing] | None = None
        #: Whether it has refused RESP3.
        self.only_resp2 = False
        self._wire: Wire | None = None
        self._all: set[Wire] = set()
        self._in_session: dict[str, Wire] = {}
        self._idle: list[Wire] = []

    def submit(
        self, packed: bytes, request_timeout_s: float, script: Script | None = None, fits: Fits | None = None
    ) -> asyncio.Future[Any]:
        """Send it on the shared connection. Raises `RequestFailed` when closed."""
        return self.shared().submit(packed, request_timeout_s, script, fits)

    def submit_on(self, packed: bytes, request_timeout_s: float, script: Script) -> tuple[asyncio.Future[Any], Wire]:
        """The same, and on which connection."""
        wire = self.shared()
        return wire.submit(packed, request_timeout_s, script), wire

    def sends_on(self, wire: Wire) -> bool:
        """True if the next request goes on this connection, behind what was sent there."""
        return self._wire is wire and wire.usable and not wire.is_unread()

    def submit_prepared(self, request: PreparedRequest, token: str, request_timeout_s: float) -> asyncio.Future[Any]:
        """The same, perhaps together with others."""
        wire = self._wire
        if wire is None or (not wire.pending and monotonic() - wire.heard_at >= UNSEEN_S):
            wire = self.shared()
        if wire.pending and request.group is not None:
            return wire.join(request.group, request, token, request_timeout_s)
        return wire.submit(request.packed(token), request_timeout_s, request.script)

    def shared(self) -> Wire:
        """The shared connection, as it is now. Raises `RequestFailed` when closed."""
        wire = self._wire
        if wire is None or wire.is_unread():
            if wire is not None:
                wire.retire()
            wire = self._wire = self._new_wire()
        return wire

    def session(self, name: str) -> Wire:
        """The connection of that session alone."""
        wire = self._in_session.get(name)
        if wire is None:
            wire = self._in_session[name] = self._take()
        elif not wire.usable:
            # What the session has watched or begun went with it: another connection would know nothing of that.
            del self._in_session[name]
            raise RequestFailed("broken", "the connection was closed", self.name, maybe_executed=False, transient=True)
        return wire

    def lasting_session(self, name: str) -> Wire:
        """The same for a session whose requests know nothing of each other: on a new connection when need be."""
        wire = self._in_session.get(name)
        if wire is not None and (not wire.usable or wire.is_unread()):
            self.end_session(name)
            wire.retire()
        return self.session(name)

    def end_session(self, name: str) -> None:
        """Others may have its connection now, when it owes nothing."""
        wire = self._in_session.pop(name, None)
        if wire is None or not wire.usable:
            return
        if wire.owes or len(self._idle) >= IDLE_WIRES_MAX or self.closed:
            wire.abort()
        else:
            self._idle.append(wire)

    def _take(self) -> Wire:
        while self._idle:
            wire = self._idle.pop()
            if wire.usable and not wire.is_unread():
                return wire
        return self._new_wire()

    def _new_wire(self) -> Wire:
        if self.closed:
            raise RequestFailed("closed", "the client is closed", self.name, maybe_executed=False, transient=False)
        self._all = {wire for wire in self._all if not wire.gone}
        wire = Wire(self, asyncio.get_running_loop())
        self._all.add(wire)
        if self.retired:
            asyncio.get_running_loop().call_soon(wire.retire)
        return wire

    def forget_wire(self, wire: Wire) -> None:
        """Forget a connection that takes no more requests."""
        if self._wire is wire:
            self._wire = None

    def retire_wire(self, silent_s: float = 0.0) -> None:
        """The next request goes on a new connection, if this one has been silent for that long."""
        wire = self._wire
        if wire is not None and (not silent_s or wire.silent_for(monotonic()) > silent_s):
            wire.retire()

    def reconnect(self) -> None:
        """Let the next request go on a new connection."""
        self.retire_wire()

    def retire(self) -> None:
        """Retire a node that has left its Cluster: connections end when they owe nothing, and its inbox does now."""
        self.retired = True
        for wire in tuple(self._all):
            wire.retire()
        if self.inbox is not None:
            self.inbox.abort()

    def close(self) -> None:
        """End every connection; what is buffered is written."""
        self.closed = True
        for wire in tuple(self._all):
            wire.close()
        if self.opening is not None:
            self.opening.cancel()
        if self.inbox is not None:
            self.inbox.abort()

    def abort(self) -> None:
        """End every connection at once."""
        for wire in tuple(self._all):
            wire.abort()
        if self.inbox is not None:
            self.inbox.abort()

    @property
    def owes(self) -> int:
        """Replies that have not come yet."""
        return sum(wire.owes for wire in self._all)

    @property
    def gone(self) -> bool:
        """Nothing is left of its connections."""
        return all(wire.gone for wire in self._all) and (self.inbox is None or self.inbox.gone)

    def forget(self) -> None:
        """After fork in the child, or after the end of the event loop."""
        for wire in self._all:
            wire.forget()
        if self.inbox is not None:
            self.inbox.forget()


def node_of_client(client: Any, name: str | None = None) -> Node:
    """The server behind a redis-py asyncio client (single, or a Sentinel's master)."""
    pool = client.connection_pool

    def make() -> Any:
        # Not pool.make_connection(): some pools count what they made, and never learn that ours has ended.
        return pool.connection_class(**pool.connection_kwargs)

    return Node(name or describe(pool), make)

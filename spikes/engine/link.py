"""A connection of the engine to a server: commands of all callers, and messages between their replies.

Laws: nothing is repeated here but a script that the server does not know; replies are matched to requests in order,
also those that nobody waits for any more; every request is answered once, by its reply or a `RequestFailed`.

Theory: a helper thread makes the connection, with the user's client library (names, TLS, users, Sentinels), and hands
its socket over. What is sent meanwhile waits here. Requests leave together at the end of the engine's turn. A
connection that owes replies and is silent gets no new requests: the next one goes on a new connection, and the old one
lingers for what may still come.
"""

from __future__ import annotations

import selectors
import socket
import ssl
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import hiredis

from holdfast._core.effects import Reply
from holdfast._core.failure import RequestFailed, refusal
from holdfast._core.replies import Fits, expected_of, nonsense, promises_too_much
from holdfast._lua import Script
from holdfast._transport.clock import clock
from holdfast._transport.handshake import is_tls, late
from holdfast._transport.inherited import ours
from holdfast._transport.lazily import importing
from holdfast._transport.limits import MISPLACED
from holdfast._transport.pack import pack_command, spelled_out
from holdfast._transport.pushes import Push
from spikes.engine.loop import Engine, Timer

__all__ = ["Answer", "Server"]

Answer = Callable[[Reply, RequestFailed | None], None]

#: An attempt to connect is given up after this, s.
CONNECT_TIMEOUT_S = 5.0
#: A connection that owes replies and says nothing gets no new requests after this, s.
SILENCE_S = 1.0
#: And is closed after this much more, s: until then, late replies are still matched.
LINGER_S = 10.0

_MORE = object()
_HELLO = pack_command(("HELLO", 3))
_WANTS = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class _Request:
    """One that was not answered yet. `answer` is None once it was."""

    __slots__ = ("answer", "deadline", "fits", "packed", "script")

    def __init__(
        self, packed: bytes, deadline: float, fits: Fits | None, script: Script | None, answer: Answer | None
    ) -> None:
        self.packed = packed
        self.deadline = deadline
        self.fits = fits
        self.script = script
        self.answer = answer

    def end(self, reply: Reply, failure: RequestFailed | None) -> None:
        answer, self.answer = self.answer, None
        if answer is not None:
            answer(reply, failure)


def _is_no_reply(reply: Reply) -> bool:
    return False


class Wire:
    """One connection."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._engine = server.engine
        self._reader = hiredis.Reader(notEnoughData=_MORE)
        self._pending: deque[_Request] = deque()
        self._out: list[bytes] = []
        self._is_flushed_later = False
        self._connection: Any = None
        self._sock: socket.socket | None = None
        self._fd = -1
        self._is_tls = False
        self._alarm: Timer | None = None
        self._alarm_at = float("inf")
        self._heard_at = clock()
        self._retired = False
        self.ended = False
        #: Called once when no more messages come by it, where some did.
        self.on_deaf: Callable[[], None] | None = None
        self._dial()

    # -- connecting -------------------------------------------------------------------------------

    def _dial(self) -> None:
        server, engine = self.server, self._engine

        def run() -> None:
            connection: Any = None
            try:
                connection = server.make()
                server.tls = is_tls(connection)
                _prepare(connection)
                connection.connect()
            except BaseException as error:
                engine.call(self._not_connected, _failed(error, server))
                return
            engine.call(self._connected, connection)

        self._dial_until = engine.later(CONNECT_TIMEOUT_S, self._late)
        try:
            threading.Thread(target=run, name="holdfast-connect", daemon=True).start()
        except RuntimeError as error:
            failure = RequestFailed("refused", str(error), server.name, maybe_executed=False, transient=True)
            engine.soon(self._not_connected, failure)

    def _late(self) -> None:
        self._not_connected(late(self.server.name, CONNECT_TIMEOUT_S, tls=self.server.tls))

    def _not_connected(self, failure: RequestFailed) -> None:
        if not self.ended and self._sock is None:
            self._engine.forget(self._dial_until)
            self._end(failure, sent=0)

    def _connected(self, connection: Any) -> None:
        self._engine.forget(self._dial_until)
        sock = getattr(connection, "_sock", None)
        if self.ended or sock is None:
            connection.disconnect()
            if sock is None and not self.ended:
                self._end(self.server.unfit(connection), sent=0)
            return
        ours(sock)
        sock.setblocking(False)
        self._connection, self._sock = connection, sock
        self._fd = sock.fileno()
        self._is_tls = hasattr(sock, "pending")
        self._heard_at = clock()
        # Those whose asker has gone meanwhile need not be sent at all.
        waiting = [request for request in self._pending if request.answer is not None]
        self._pending = deque(waiting)
        self._out = [request.packed for request in waiting]
        if not self.server.only_resp2:
            self._pending.appendleft(_Request(_HELLO, float("inf"), None, None, self._greeted))
            self._out.insert(0, _HELLO)
        self._engine.register(sock, selectors.EVENT_READ, self)
        self.flush()

    def _greeted(self, reply: Reply, failure: RequestFailed | None) -> None:
        if failure is not None and failure.kind not in ("broken", "closed"):
            self.server.only_resp2 = True

    # -- requests ---------------------------------------------------------------------------------

    def send(self, request: _Request) -> None:
        """Send it with others of this turn."""
        if not self._pending:
            self._heard_at = clock()  # it owed nothing until now
        self._pending.append(request)
        if self._sock is not None:
            self._put(request.packed)
        if request.deadline < self._alarm_at:
            self._arm(request.deadline)

    def _put(self, packed: bytes) -> None:
        self._out.append(packed)
        if not self._is_flushed_later:
            self._is_flushed_later = True
            self._engine.flush(self)

    def flush(self) -> None:
        """Write what was sent."""
        self._is_flushed_later = False
        sock, out = self._sock, self._out
        if sock is None or not out:
            return
        data = out[0] if len(out) == 1 else b"".join(out)
        self._out = []
        try:
            sent = sock.send(data)
        except _WANTS:
            sent = 0
        except OSError as error:
            self._lost(error)
            return
        if sent < len(data):
            self._out.insert(0, data[sent:])
            self._engine.register(sock, selectors.EVENT_READ | selectors.EVENT_WRITE, self)

    def ready(self, mask: int) -> None:
        """The socket can be read or written."""
        if mask & selectors.EVENT_WRITE and self._sock is not None:
            self._engine.register(self._sock, selectors.EVENT_READ, self)
            self.flush()
        if mask & selectors.EVENT_READ:
            self._read()

    def _read(self) -> None:
        while (sock := self._sock) is not None:
            try:
                data = sock.recv(65536)
            except _WANTS:
                return
            except OSError as error:
                self._lost(error)
                return
            if not data:
                self._lost(None)
                return
            self._take(data)
            if len(data) < 65536 and not self._is_tls:
                return

    # -- replies ----------------------------------------------------------------------------------

    def _take(self, data: bytes) -> None:
        """Match replies with requests."""
        self._heard_at = clock()
        reader, pending = self._reader, self._pending
        request: _Request | None = None
        try:
            if data.find(b"\r", 0, 9) < 0 and promises_too_much(data) and not reader.has_data():
                raise ValueError(repr(data[:20]))
            reader.feed(data)
            while (reply := reader.gets()) is not _MORE:
                if reply.__class__ is Push:
                    self._pushed(reply)
                    continue
                if not pending:
                    self._nonsense(None, "more than one reply", None)
                    return
                request = pending.popleft()
                if reply.__class__ is hiredis.ReplyError:
                    self._refused(str(reply), request)
                elif request.fits is not None and not request.fits(reply):
                    self._nonsense(request, repr(reply), request.fits)
                    return
                else:
                    request.end(reply, None)
                if self.ended:
                    return
        except (ValueError, MemoryError, hiredis.ProtocolError) as error:
            self._nonsense(
                request or (pending.popleft() if pending else None), f"{type(error).__name__}: {error}", None
            )
            return
        if self._retired and not pending and not self._out:
            self.close()

    def _pushed(self, push: Reply) -> None:
        pending = self._pending
        if pending and pending[0].fits is _is_no_reply and push[:1] == [b"subscribe"]:
            pending.popleft().end(None, None)
        else:
            self.server.on_message(push)

    def _refused(self, said: str, request: _Request) -> None:
        script = request.script
        if said.startswith("NOSCRIPT") and script is not None:
            if request.answer is not None:
                again = _Request(spelled_out(request.packed, script), request.deadline, request.fits, None, None)
                again.answer, request.answer = request.answer, None
                self._pending.append(again)
                self._put(again.packed)
            return
        failure = refusal(said, self.server.name)
        if failure.kind in MISPLACED:
            self.retire()
        request.end(None, failure)

    def _nonsense(self, request: _Request | None, said: str, fits: Fits | None) -> None:
        """No further reply on this connection can be trusted to be for its request."""
        failure = nonsense(said, expected_of(fits), self.server.name)
        if request is not None:
            request.end(None, failure)
        text = f"another answer on this connection made no sense: {failure.message}"
        self._end(RequestFailed("broken", text, self.server.name, maybe_executed=True, transient=True))

    # -- times ------------------------------------------------------------------------------------

    def _arm(self, at: float) -> None:
        if self._alarm is not None:
            self._engine.forget(self._alarm)
        self._alarm_at = at
        self._alarm = self._engine.later(max(0.0, at - clock()), self._expire)

    def _expire(self) -> None:
        """End what has waited long enough."""
        now, next_at = clock(), float("inf")
        self._alarm, self._alarm_at = None, float("inf")
        expired = [request for request in self._pending if request.answer is not None and request.deadline <= now]
        for request in self._pending:
            if request.answer is not None and now < request.deadline < next_at:
                next_at = request.deadline
        if next_at < float("inf"):
            self._arm(next_at)
        connected = self._sock is not None
        for request in expired:
            request.end(None, self.server.silent(connected))
        if connected and expired and now - self._heard_at >= SILENCE_S:
            self.retire()

    # -- the end ----------------------------------------------------------------------------------

    @property
    def usable(self) -> bool:
        """Whether it takes new requests."""
        return not self.ended and not self._retired

    def silent_for(self, now: float) -> float:
        """How long it has owed replies and said nothing, s."""
        return now - self._heard_at if self._pending and self._sock is not None else 0.0

    def _lost(self, error: OSError | None) -> None:
        said = str(error) if error is not None and str(error) else "the connection was closed"
        self._end(RequestFailed("broken", said, self.server.name, maybe_executed=True, transient=True))

    def _end(self, failure: RequestFailed, sent: int | None = None) -> None:
        """All that is pending ends; the first `sent` (None: all) may have been executed."""
        if self.ended:
            return
        self.ended = True
        self._close()
        self.server.forget_wire(self)
        if self._alarm is not None:
            self._engine.forget(self._alarm)
        pending, self._pending = self._pending, deque()
        for index, request in enumerate(pending):
            maybe = sent is None or index < sent
            request.end(None, failure.again(maybe_executed=maybe))
        self._deaf()

    def _close(self) -> None:
        sock, self._sock = self._sock, None
        connection, self._connection = self._connection, None
        self._out = []
        if sock is not None:
            self._engine.unregister(sock)
        if connection is not None:
            try:
                connection.disconnect()
            except Exception:  # nothing can be done, and nothing depends on it
                pass

    def _deaf(self) -> None:
        on_deaf, self.on_deaf = self.on_deaf, None
        if on_deaf is not None:
            on_deaf()

    def retire(self) -> None:
        """No new requests; closed when it owes nothing any more, or has lingered long enough."""
        if self._retired or self.ended:
            return
        self._retired = True
        self.server.forget_wire(self)
        self._deaf()
        self.flush()
        self._engine.later(LINGER_S, self.close)
        if not self._pending:
            self._engine.soon(self.close)

    def close(self) -> None:
        """End it: what it still owes is not waited for."""
        self.flush()
        self._end(
            RequestFailed("closed", "the client is closed", self.server.name, maybe_executed=True, transient=False)
        )

    def forget(self) -> None:
        """After fork, in the child: the socket is closed by `inherited.let_go`, without a word on it."""
        self.ended = True
        self._sock = self._connection = None
        self._pending.clear()


class Server:
    """One server of one client: its connection, made when it is first needed."""

    def __init__(self, engine: Engine, name: str, make: Callable[[], Any]) -> None:
        self.engine = engine
        self.name = name
        self.make = make
        #: Whether its connections are encrypted, as far as is known; and whether it has refused RESP3.
        self.tls = False
        self.only_resp2 = False
        self.closed = False
        self.on_message: Callable[[Reply], None] = lambda _: None
        self._wire: Wire | None = None
        self._all: set[Wire] = set()

    def send(self, packed: bytes, patience_s: float, fits: Fits | None, script: Script | None, answer: Answer) -> None:
        """Send it on the shared connection."""
        request = _Request(packed, clock() + patience_s, fits, script, answer)
        wire = self._wire
        if wire is None:
            if self.closed:
                failure = RequestFailed(
                    "closed", "the client is closed", self.name, maybe_executed=False, transient=False
                )
                self.engine.soon(request.end, None, failure)
                return
            wire = self._wire = Wire(self)
            self._all.add(wire)
        wire.send(request)

    def subscribe(self, channel: str, patience_s: float, answer: Answer, on_deaf: Callable[[], None]) -> None:
        """Hear that channel by the shared connection; `on_deaf` is called once when nothing more is heard."""

        def subscribed(reply: Reply, failure: RequestFailed | None) -> None:
            wire = self._wire
            if failure is None and (wire is None or wire.ended):
                failure = RequestFailed(
                    "broken", "the connection ended", self.name, maybe_executed=False, transient=True
                )
            if failure is None and wire is not None:
                wire.on_deaf = on_deaf
            answer(reply, failure)

        self.send(pack_command(("SUBSCRIBE", channel)), patience_s, _is_no_reply, None, subscribed)

    def forget_wire(self, wire: Wire) -> None:
        """It takes no more requests."""
        if self._wire is wire:
            self._wire = None
        if wire.ended:
            self._all.discard(wire)

    def reconnect(self) -> None:
        """Let the next request go on a new connection."""
        if self._wire is not None:
            self._wire.retire()

    def silent(self, connected: bool) -> RequestFailed:
        """A request was not answered in time."""
        if connected:
            return RequestFailed("silent", "no answer in time", self.name, maybe_executed=True, transient=True)
        return late(self.name, None, tls=self.tls)

    def unfit(self, connection: object) -> RequestFailed:
        """Its connections have no socket to take over."""
        said = f"connections with a socket: {type(connection).__name__} has none after connect()"
        return RequestFailed("unfit", said, self.name, maybe_executed=False, transient=False)

    def close(self) -> None:
        """End all its connections."""
        self.closed = True
        for wire in tuple(self._all):
            wire.close()

    def forget(self) -> None:
        """After fork, in the child."""
        for wire in self._all:
            wire.forget()
        self._all.clear()
        self._wire = None


def _failed(error: BaseException, server: Server) -> RequestFailed:
    """Why there is no connection."""
    if isinstance(error, RequestFailed):
        return error  # a connection of our own says what is wrong
    # Imported here: it knows the errors of redis-py, which takes longer to import than all else together.
    try:
        with importing:
            from holdfast._transport.refusals import connection_failed
    except (OSError, ImportError):  # no descriptor is left to import it with
        return RequestFailed("refused", str(error), server.name, maybe_executed=False, transient=True)
    return connection_failed(error, server.name, tls=server.tls)


def _prepare(connection: Any) -> None:
    """Nothing is repeated behind our back; each step has a limit; notices of maintenance would not be read."""
    if hasattr(connection, "until"):
        connection.until = clock() + CONNECT_TIMEOUT_S  # one of our own
    if hasattr(connection, "retry"):
        with importing:
            from redis.backoff import NoBackoff
            from redis.retry import Retry
        connection.retry = Retry(NoBackoff(), 0)
        connection.maint_notifications_config = None
    for limit in ("socket_connect_timeout", "socket_timeout"):
        if hasattr(connection, limit):
            given = getattr(connection, limit)
            setattr(connection, limit, CONNECT_TIMEOUT_S if given is None else min(given, CONNECT_TIMEOUT_S))

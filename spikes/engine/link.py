"""A connection of the engine to a server: commands of all callers, and messages between their replies.

Laws: nothing is repeated here but a script that the server does not know; replies are matched to requests in order,
also those that are not waited for any more; every request is answered once, by its reply or a `RequestFailed`.

Theory: a helper thread makes the connection, with the user's client library (names, TLS, users, Sentinels), and hands
its socket over. What is sent meanwhile waits here. Requests of the engine leave together at the end of its turn, those
of callers at once. A connection that owes replies and is silent gets no new requests: the next one goes on a new
connection, and the old one lingers for what may still come.
"""

from __future__ import annotations

import select
import socket
import ssl
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import hiredis

from holdfast._core.effects import Reply
from holdfast._core.failure import RequestFailed, refusal
from holdfast._core.mutex import EACH_MAX
from holdfast._core.replies import Fits, expected_of, nonsense, promises_too_much
from holdfast._core.snapshot import snapshot
from holdfast._lua import Script
from holdfast._transport.clock import clock
from holdfast._transport.handlers import raised_by_handler
from holdfast._transport.handshake import is_tls, late
from holdfast._transport.inherited import ours
from holdfast._transport.lazily import importing
from holdfast._transport.limits import MISPLACED
from holdfast._transport.pack import Group, PreparedRequest, pack_command, spelled_out
from holdfast._transport.pushes import Push
from holdfast._transport.waits import ring, silent_bell
from spikes.engine.loop import READ, WRITE, Engine, Timer

__all__ = ["Answer", "Ask", "Later", "Server"]

Answer = Callable[[Reply, RequestFailed | None], None]

#: An attempt to connect is given up after this, s.
CONNECT_TIMEOUT_S = 5.0
#: A connection that owes replies and says nothing gets no new requests after this, s: less than requests wait for.
SILENCE_S = 0.5
#: And is closed after this much more, s: until then, late replies are still matched.
LINGER_S = 10.0

#: A caller whose reply has not come after this looks whether it is read at all, s.
RESCUE_S = 0.02
#: No thread holds a seat for longer than this, but below a signal handler, s.
STUCK_S = 0.05
#: A connection that was idle for this long is looked at before it is used, s.
UNSEEN_S = 0.01
#: Replies that are not waited for are read after this at the latest, s, or twice this.
LIE_S = 0.01
#: Fewer than this go one by one.
EACH_MIN = 3

_MORE = object()
_HELLO = pack_command(("HELLO", 3))
_WANTS = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Request:
    """One of the engine's own. `wanted` is False once its asker has left; its reply still has to be read."""

    __slots__ = ("_answer", "_engine", "deadline", "fits", "packed", "script", "wanted")

    #: What it may be sent together with others by; whether its reply may lie unread for a while; whether the engine
    #: is to read it.
    group: Group | None = None
    may_lie = False
    engine_reads = True

    def __init__(
        self, packed: bytes, deadline: float, fits: Fits | None, script: Script | None, answer: Answer, engine: Engine
    ) -> None:
        self.packed = packed
        self.deadline = deadline
        self.fits = fits
        self.script = script
        self.wanted = True
        self._answer = answer
        self._engine = engine

    def end(self, reply: Reply, failure: RequestFailed | None) -> None:
        """Called by the thread that read the reply; the answer is told in the engine's thread."""
        if threading.get_ident() == self._engine.ident:
            self.told(reply, failure)
        else:
            self._engine.call(self.told, reply, failure)

    def told(self, reply: Reply, failure: RequestFailed | None) -> None:
        """In the engine's thread; the first time counts."""
        if self.wanted:
            self.wanted = False
            self._answer(reply, failure)


class Ask:
    """One that a caller waits for: until it has an `outcome`. `bell` wakes who does not read by itself."""

    __slots__ = (
        *("bell", "deadline", "duty", "fits", "group", "outcome", "packed", "places", "prepared", "script"),
        "token",
    )

    may_lie = engine_reads = False
    places: list[None]

    def __init__(self, prepared: PreparedRequest, token: str, deadline: float) -> None:
        self.prepared = prepared
        self.token = token
        self.deadline = deadline
        self.packed = prepared.packed(token)
        self.fits = prepared.fits
        self.script = prepared.script
        self.group = prepared.group
        self.outcome: tuple[Reply, RequestFailed | None] | None = None
        self.bell: Any = None
        #: Handed over by who has read so far; in `places` the right to that, taken by who hands over, or by who leaves.
        self.duty: Any = None

    @property
    def wanted(self) -> bool:
        return self.outcome is None

    def end(self, reply: Reply, failure: RequestFailed | None) -> None:
        """In whatever thread has read it."""
        if self.outcome is None:
            self.outcome = reply, failure
            if self.bell is not None:
                ring(self.bell)


class Later(Ask):
    """One that no caller waits for. `told(reply, failure)` is called in whatever thread has read it."""

    __slots__ = ("told",)

    may_lie = True

    def __init__(self, prepared: PreparedRequest, token: str, deadline: float, told: Answer) -> None:
        super().__init__(prepared, token, deadline)
        self.told = told

    def end(self, reply: Reply, failure: RequestFailed | None) -> None:
        if self.outcome is None:
            self.outcome = reply, failure
            self.told(reply, failure)


class _Again:
    """One whose script the server did not know, with its text."""

    __slots__ = ("_request", "deadline", "fits", "may_lie", "packed", "script")

    group = None
    engine_reads = True

    def __init__(self, request: Any) -> None:
        self._request = request
        self.deadline, self.fits, self.script = request.deadline, request.fits, None
        self.may_lie = request.may_lie
        self.packed = spelled_out(request.packed, request.script)

    @property
    def wanted(self) -> bool:
        return self._request.wanted  # type: ignore[no-any-return]

    def end(self, reply: Reply, failure: RequestFailed | None) -> None:
        self._request.end(reply, failure)


class _Bundle:
    """Several of one kind, as one call of a script. What that has left undone is asked alone."""

    __slots__ = ("_members", "_wire", "deadline", "engine_reads", "may_lie", "packed", "script", "wanted")

    group = None

    def __init__(self, members: list[Any], wire: Wire) -> None:
        group = members[0].group
        self._members = members
        self._wire = wire
        self.deadline = max(member.deadline for member in members)
        self.may_lie = all(member.may_lie for member in members)
        self.engine_reads = any(member.engine_reads for member in members)
        self.script = group.script
        self.packed = group.packed([(member.prepared, member.token) for member in members])
        self.wanted = True

    def fits(self, reply: Reply) -> bool:
        """True if the reply is a number for each member."""
        return (
            type(reply) is list
            and len(reply) == len(self._members)
            and {*map(type, reply)} == {int}
            and min(reply) >= 0
        )

    def end(self, reply: Reply, failure: RequestFailed | None) -> None:
        """Answer each in the form in which its own script would."""
        if failure is None:
            for member, number in zip(self._members, reply, strict=True):
                if number:
                    member.end([1, number] if member.prepared.grants else number, None)
                else:
                    self._wire.alone(member)
        elif failure.kind in ("broken", "silent", "closed", "nonsense"):
            for member in self._members:
                member.end(None, failure.again(maybe_executed=failure.maybe_executed))
        else:
            for member in self._members:  # the server did nothing: each hears by itself why
                self._wire.alone(member)


def _is_no_reply(reply: Reply) -> bool:
    return False


class Wire:
    """One connection.

    Threads: `_seat` is held for what never waits: to write, and to read what has come. The *duty* to wait for what
    comes is a lock, too, with one thread at a time: a caller, or the engine, which then watches the socket. Who leaves
    hands it to another caller, or to the engine. It may be taken away from one that a signal handler holds up: by
    another lock in its place.
    """

    def __init__(self, server: Server) -> None:
        self.server = server
        self._engine = server.engine
        self._reader = hiredis.Reader(notEnoughData=_MORE)
        self._queue: deque[Any] = deque()
        self._pending: deque[Any] = deque()
        self._out = b""
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
        #: Something was read that is no part of the last reply; and pushes may come.
        self._midway = self._subscribes = False
        self._failure: RequestFailed
        self._seat = threading.Lock()
        #: The engine has it until there is a connection.
        self._duty = silent_bell()
        self._held = True
        #: Whether the engine watches the socket; and whether the main thread waits, whom signal handlers hold up.
        self._armed = False
        self._main_waits = False
        #: Callers that would take the duty.
        self._followers: deque[Ask] = deque()
        self._polls: list[Any] = []
        #: Whether callers may send by themselves: it is connected, and takes new requests.
        self.is_open = False
        self._ticks = False
        #: How often a caller has taken the duty.
        self._leads = 0
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
                if getattr(connection, "_sock", None) is not None:
                    server.only_resp2 = not _speaks_resp3(connection._sock)
            except BaseException as error:
                if connection is not None:
                    _disconnect(connection)
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
            self._end(failure)

    def _connected(self, connection: Any) -> None:
        self._engine.forget(self._dial_until)
        sock = getattr(connection, "_sock", None)
        if self.ended or sock is None:
            _disconnect(connection)
            if sock is None and not self.ended:
                self._end(self.server.unfit(connection))
            return
        ours(sock)
        sock.setblocking(False)
        self._connection, self._sock = connection, sock
        self._fd = sock.fileno()
        self._is_tls = hasattr(sock, "pending")
        self._heard_at = clock()
        # Those whose asker has gone meanwhile need not be sent at all.
        waiting = [request for request in self._queue if request.wanted]
        self._queue.clear()
        self._queue.extend(waiting)
        self._engine.register(self._fd, self)
        self._arm()
        self.is_open = not self._retired
        self.flush()

    # -- requests ---------------------------------------------------------------------------------

    def send(self, request: Any) -> None:
        """By the engine: send it with others of this turn, and read the reply."""
        if self.ended:
            self._engine.soon(request.end, None, self._failure.again(maybe_executed=False))
            return
        self._queue.append(request)
        if request.fits is _is_no_reply:
            self._subscribes = True
        if request.deadline < self._alarm_at:
            self._alarm_for(request.deadline)
        if not self._is_flushed_later:
            self._is_flushed_later = True
            self._engine.flush(self)

    def alone(self, ask: Ask) -> None:
        """Send it not together with others."""
        ask.group = None
        self._queue.append(ask)

    def flush(self) -> None:
        """At the end of the engine's turn."""
        self._is_flushed_later = False
        if self._sock is not None:
            self.write()
            self._keep_watch()

    def write(self) -> None:
        """Write what is queued; any thread may."""
        queue, seat = self._queue, self._seat
        while queue and seat.acquire(False):
            data = b""
            lost: OSError | None = None
            try:
                sock, pending = self._sock, self._pending
                if sock is None or self._out:
                    return
                if not pending:
                    self._heard_at = clock()  # it owed nothing until now
                request = queue.popleft()
                if queue:
                    data = self._gather(request)
                else:
                    pending.append(request)
                    data = request.packed
                sent = sock.send(data)
                if sent < len(data):
                    self._leave(data[sent:])
            except _WANTS:
                self._leave(data)
            except OSError as error:
                lost = error
            except BaseException:
                self._engine.call(self._lost, None)  # a signal handler, perhaps between a request and its note
                raise
            finally:
                seat.release()
            if lost is not None:
                self._engine.call(self._lost, lost)
                return

    def _leave(self, rest: bytes) -> None:
        self._out = rest
        self._engine.call(self._watch)

    def _gather(self, first: Any) -> bytes:
        requests, queue = [first], self._queue
        while queue:
            requests.append(queue.popleft())
        if len(requests) >= EACH_MIN:
            requests = self._bundled(requests)
        self._pending.extend(requests)
        return b"".join([request.packed for request in requests])

    def _bundled(self, requests: list[Any]) -> list[Any]:
        """Together, what can be asked together. Releases go first; where other requests are between, all stay so."""
        groups: dict[Group, list[Any]] = {}
        for request in requests:
            group = request.group
            if group is None:
                return requests
            groups.setdefault(group, []).append(request)
        found: list[Any] = []
        for members in sorted(groups.values(), key=lambda members: members[0].prepared.grants):
            if len(members) < EACH_MIN:
                found += members
            else:
                found += [_Bundle(members[at : at + EACH_MAX], self) for at in range(0, len(members), EACH_MAX)]
        return found

    def put(self, later: Later) -> None:
        """By a caller, who does not wait for the reply."""
        if self._armed and self._is_quiet() and (duty := self._duty).acquire(False):
            self._disarm(duty)  # no thread is to wake up for it
            self._pass_on(duty)
        self._queue.append(later)
        self.write()
        if not self._ticks and not self._held:
            self._engine.call(self.tick)

    def put_all(self, asks: list[Any]) -> None:
        """By an event loop, whose tasks wait for what the engine reads."""
        self._queue.extend(asks)
        self.write()
        if asks[0].deadline < self._alarm_at:
            self._engine.call(self.alarm, asks[0].deadline)
        if not self._armed or self.ended:
            self._engine.call(self.rescue)

    def alarm(self, at: float) -> None:
        """By the engine: look then whether something is late."""
        if at < self._alarm_at:
            self._alarm_for(at)

    # -- who waits for replies --------------------------------------------------------------------

    def ask(self, ask: Ask) -> None:
        """By a caller: send it, and wait for its reply until its deadline."""
        duty, is_main = self._duty, threading.get_ident() == self._engine.main
        if (not is_main or self._is_light()) and duty.acquire(False):
            self._main_waits = is_main
            if is_main and self.on_deaf is not None and not self._ticks:
                self._engine.call(self.tick)
            self._queue.append(ask)
            self._lead(ask, duty)
        else:
            ask.bell = silent_bell()
            ask.places = [None]
            self._queue.append(ask)
            if not is_main:
                self._followers.append(ask)
            self.write()
            if self._main_waits:
                self._engine.call(self.rescue)
            elif not is_main and duty is self._duty and duty.acquire(False):  # it was left meanwhile
                self._lead(ask, duty)
        if ask.outcome is None:
            self._follow(ask)

    def _is_quiet(self) -> bool:
        """True if nothing depends on which thread reads."""
        return self.on_deaf is None and self._is_light()

    def _is_light(self) -> bool:
        """True if it owes no reply that a caller waits for."""
        return not self._pending or all(request.may_lie for request in snapshot(self._pending))

    def _lead(self, ask: Ask, duty: Any) -> None:
        """Wait for what comes, for all, until its own reply has."""
        self._leads += 1
        try:
            poll = self._polls.pop()
        except IndexError:
            poll = select.poll()
            poll.register(self._fd, READ)
        try:
            if self._armed:
                self._disarm(duty)
            now = clock()
            if now - self._heard_at > UNSEEN_S and poll.poll(0):
                self._read()
            self.write()
            while ask.outcome is None and not self.ended:
                if not poll.poll(max(0.0, ask.deadline - now) * 1000) or duty is not self._duty:
                    break
                self._read()
                if self._queue:
                    self.write()
                now = self._heard_at
        finally:
            self._polls.append(poll)
            self._main_waits = False
            if duty is self._duty:
                if self._followers or self._pending or self.on_deaf is not None:
                    self._pass_on(duty)
                else:
                    duty.release()
                    if self._followers or self._pending:
                        self._engine.call(self.rescue)

    def _pass_on(self, duty: Any) -> None:
        """Hand the duty to read to another waiter, or back to the engine."""
        followers = self._followers
        while True:
            while followers:
                try:
                    ask = followers.popleft()
                    if ask.outcome is not None:
                        continue
                    ask.duty = duty  # before: who leaves looks whether it has it
                    ask.places.pop()
                except IndexError:
                    continue
                ring(ask.bell)
                return
            if self.on_deaf is not None or not self._is_quiet():
                self._arm()
            duty.release()
            if not followers and (self._armed or self._is_quiet()):
                return
            if not duty.acquire(False):
                return

    def _follow(self, ask: Ask) -> None:
        """Wait until another one has read its reply, or hands over the duty."""
        if ask.bell is None:  # it has lost the duty
            ask.places = []
            ask.bell = silent_bell()
        patience_s = RESCUE_S
        try:
            while ask.outcome is None and (left_s := ask.deadline - clock()) > 0:
                if not ask.bell.acquire(True, min(left_s, patience_s)):
                    self._engine.call(self.rescue)
                    patience_s *= 2
                elif (duty := ask.duty) is not None:
                    ask.duty = None
                    if duty is self._duty:
                        self._lead(ask, duty)
        finally:
            try:
                ask.places.pop()
            except IndexError:
                if (duty := ask.duty) is not None and duty is self._duty:
                    self._pass_on(duty)

    def rescue(self) -> None:
        """Called by the engine: what is under way is for it to read, also where callers wait."""
        if self.ended:
            self._end_queue()
        elif self._sock is not None and (self._pending or self._queue or self._is_deaf()):
            if not self._seat.acquire(True, STUCK_S):
                self._stuck()
                return
            self._seat.release()
            self.write()
            self._armed = False  # whatever it was told
            self._keep_watch()

    def _stuck(self) -> None:
        """A signal handler goes on and on, above a thread that was writing or reading: others go by another way."""
        self.retire()
        waiting: list[Any] = []
        while self._queue:
            waiting.append(self._queue.popleft())
        self.server.take_over(waiting)

    def _keep_watch(self) -> None:
        """Have the duty, as long as something is under way."""
        if not self._held:
            if not self._duty.acquire(False):
                self._duty = silent_bell()
                self._armed = False
            self._held = True
        if not self._armed:
            self._arm()

    def _arm(self) -> None:
        self._armed = True
        self._watch()

    def _disarm(self, duty: Any) -> None:
        self._armed = False
        self._watch()
        if duty is not self._duty:
            self._arm()  # the engine has taken it meanwhile

    def _watch(self) -> None:
        self._engine.watch(self._fd, (READ if self._armed else 0) | (WRITE if self._out else 0))

    def ready(self, mask: int) -> None:
        """The socket can be read or written."""
        if mask & WRITE and self._out:
            self._write_rest()
        if mask & ~WRITE:
            if not self._held:
                if not self._duty.acquire(False):
                    return  # a caller reads it
                self._held = True
            self._read()
            if self._queue and not self._is_flushed_later:
                self.write()
            if self._held and not any(request.engine_reads for request in snapshot(self._pending)):
                self._held = False
                self._pass_on(self._duty)

    def _write_rest(self) -> None:
        with self._seat:
            sock, out = self._sock, self._out
            try:
                sent = 0 if sock is None else sock.send(out)
            except _WANTS:
                sent = 0
            except OSError as error:
                self._engine.soon(self._lost, error)
                return
            self._out = out[sent:]
        if not self._out:
            self._watch()
            self.write()

    # -- replies ----------------------------------------------------------------------------------

    def _read(self) -> None:
        """Take what has come. By who has the duty."""
        ends: list[tuple[Any, Reply, RequestFailed | None]] = []
        trouble: RequestFailed | None = None
        if not self._seat.acquire(True, STUCK_S):
            return
        try:
            trouble = self._receive(ends)
        except BaseException:
            self._engine.call(self._lost, None)  # a signal handler: what was read may not be known
            raise
        finally:
            self._seat.release()
        for request, reply, failure in ends:
            request.end(reply, failure)
        if trouble is not None:
            self._engine.call(self._end, trouble)
        elif self._retired and not self._pending and not self._out:
            self._engine.call(self.close)

    def _receive(self, ends: list[tuple[Any, Reply, RequestFailed | None]]) -> RequestFailed | None:
        reader = self._reader
        while (sock := self._sock) is not None:
            try:
                data = sock.recv(65536)
            except _WANTS:
                return None
            except OSError as error:
                return self._broken(error)
            if not data:
                return self._broken(None)
            self._heard_at = clock()
            pending = self._pending
            try:
                if data.find(b"\r", 0, 9) < 0 and promises_too_much(data) and not reader.has_data():
                    raise ValueError(repr(data[:20]))
                reader.feed(data)
                midway = True
                while (reply := reader.gets()) is not _MORE:
                    midway = reader.has_data()
                    if pending and (fits := pending[0].fits) is not None and fits(reply):
                        ends.append((pending.popleft(), reply, None))
                    elif (trouble := self._match(reply, ends)) is not None:
                        return trouble
                self._midway = midway
                if midway and not pending and not self._subscribes:
                    return self._too_much(ends)
            except Exception as error:  # of the parser, which runs out of memory for some
                if raised_by_handler(error):
                    raise
                request = self._pending.popleft() if self._pending else None
                return self._nonsense(ends, request, f"{type(error).__name__}: {error}", None)
            if len(data) < 65536 and not self._is_tls:
                return None
        return None

    def _match(self, reply: Reply, ends: list[tuple[Any, Reply, RequestFailed | None]]) -> RequestFailed | None:
        """Find whose it is."""
        pending = self._pending
        if isinstance(reply, Push):
            push: Any = reply
            if pending and pending[0].fits is _is_no_reply and push[:1] == [b"subscribe"]:
                ends.append((pending.popleft(), None, None))
            else:
                self._engine.call(self.server.on_message, reply)
            return None
        if not pending:
            return self._too_much(ends)
        request = pending.popleft()
        if reply.__class__ is hiredis.ReplyError:
            said = str(reply)
            if said.startswith("NOSCRIPT") and request.script is not None:
                if request.wanted:
                    self._queue.append(_Again(request))
                return None
            failure = refusal(said, self.server.name)
            if failure.kind in MISPLACED:
                self._engine.call(self.retire)
            ends.append((request, None, failure))
        elif request.fits is not None and not request.fits(reply):
            return self._nonsense(ends, request, repr(reply), request.fits)
        else:
            ends.append((request, reply, None))
        return None

    def _too_much(self, ends: list[tuple[Any, Reply, RequestFailed | None]]) -> RequestFailed:
        """More than was asked for: none of what came with it can be trusted."""
        failure = nonsense("more than one reply", expected_of(None), self.server.name)
        ends[:] = [(request, None, failure.again(maybe_executed=True)) for request, _, _ in ends]
        return self._nonsense(ends, None, "more than one reply", None)

    def _nonsense(
        self, ends: list[tuple[Any, Reply, RequestFailed | None]], request: Any, said: str, fits: Fits | None
    ) -> RequestFailed:
        """No further reply on this connection can be trusted to be for its request."""
        failure = nonsense(said, expected_of(fits), self.server.name)
        if request is not None:
            ends.append((request, None, failure))
        text = f"another answer on this connection made no sense: {failure.message}"
        return RequestFailed("broken", text, self.server.name, maybe_executed=True, transient=True)

    # -- times ------------------------------------------------------------------------------------

    def _alarm_for(self, at: float) -> None:
        if self._alarm is not None:
            self._engine.forget(self._alarm)
        self._alarm_at = at
        self._alarm = self._engine.later(max(0.0, at - clock()), self.expire)

    def expire(self) -> None:
        """By the engine: end what has waited long enough."""
        now, next_at = clock(), float("inf")
        self._alarm, self._alarm_at = None, float("inf")
        expired: list[Any] = []
        for request in [*snapshot(self._pending), *snapshot(self._queue)]:
            if request.wanted:
                if request.deadline <= now:
                    expired.append(request)
                else:
                    next_at = min(next_at, request.deadline)
        if next_at < float("inf"):
            self._alarm_for(next_at)
        connected = self._sock is not None
        for request in expired:
            request.end(None, self.server.silent(connected))
        if expired:
            self.overdue()

    def overdue(self) -> None:
        """By the engine: an answer has not come in time."""
        if self._sock is not None and (self._midway or clock() - self._heard_at >= SILENCE_S):
            self.retire()

    def tick(self) -> None:
        """Have replies read that are not waited for, when no caller has come by for a while."""
        if not self._ticks:
            self._ticks = True
            self._engine.later(LIE_S, self._tick, None, self._leads)

    def _tick(self, first: Any, leads: int) -> None:
        """Also where a caller reads messages for all: the main thread may be held up there, by a signal handler."""
        pending = snapshot(self._pending)
        stays = pending and pending[0] is first
        if self._held or self.ended or not (pending or self._is_deaf()):
            self._ticks = False
        elif stays or (self._is_deaf() and self._leads == leads):
            self._ticks = False
            self.rescue()
            if stays:
                self._alarm_for(first.deadline)
        else:
            self._engine.later(LIE_S, self._tick, pending[0] if pending else None, self._leads)

    def _is_deaf(self) -> bool:
        """True if the engine hears no messages just now."""
        return self.on_deaf is not None and not self._armed

    # -- the end ----------------------------------------------------------------------------------

    @property
    def usable(self) -> bool:
        """Whether it takes new requests."""
        return not self.ended and not self._retired

    def silent_for(self, now: float) -> float:
        """How long it has owed replies and said nothing, s."""
        return now - self._heard_at if self._pending and self._sock is not None else 0.0

    def _broken(self, error: OSError | None) -> RequestFailed:
        said = str(error) if error is not None and str(error) else "the connection was closed"
        return RequestFailed("broken", said, self.server.name, maybe_executed=True, transient=True)

    def _lost(self, error: OSError | None) -> None:
        self._end(self._broken(error))

    def _end(self, failure: RequestFailed) -> None:
        """By the engine: all that is under way ends; what was not sent was not executed."""
        if self.ended:
            return
        seated = self._seat.acquire(True, STUCK_S)  # else it ends below a signal handler
        self.ended, self.is_open = True, False
        self._close()
        pending, self._pending = self._pending, deque()
        if seated:
            self._seat.release()
        if not self._held:
            self._duty = silent_bell()
            self._held = True
        self.server.forget_wire(self)
        if self._alarm is not None:
            self._engine.forget(self._alarm)
        for request in pending:
            request.end(None, failure.again(maybe_executed=True))
        self._failure = failure.again(maybe_executed=False)
        self._end_queue()
        self._deaf()

    def _end_queue(self) -> None:
        while self._queue:
            self._queue.popleft().end(None, self._failure.again(maybe_executed=False))

    def _close(self) -> None:
        sock, self._sock = self._sock, None
        connection, self._connection = self._connection, None
        self._out = b""
        if sock is not None:
            self._engine.unregister(self._fd)
        if connection is not None:
            _disconnect(connection)

    def _deaf(self) -> None:
        on_deaf, self.on_deaf = self.on_deaf, None
        if on_deaf is not None:
            on_deaf()

    def retire(self) -> None:
        """No new requests; closed when it owes nothing any more, or has lingered long enough."""
        if self._retired or self.ended:
            return
        self._retired, self.is_open = True, False
        self.server.forget_wire(self)
        self._deaf()
        self.write()
        self._engine.later(LINGER_S, self.close)
        if not self._pending:
            self._engine.soon(self.close)

    def close(self) -> None:
        """End it: what it still owes is not waited for."""
        self.write()
        self._end(
            RequestFailed("closed", "the client is closed", self.server.name, maybe_executed=True, transient=False)
        )

    def forget(self) -> None:
        """After fork, in the child: the socket is closed by `inherited.let_go`, without a word on it."""
        self.ended, self.is_open = True, False
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
        #: Those of sessions, and what blocks may take.
        self._sessions: dict[str, Wire] = {}
        self._spares: list[Wire] = []
        self._all: set[Wire] = set()

    def send(self, packed: bytes, patience_s: float, fits: Fits | None, script: Script | None, answer: Answer) -> None:
        """Send it on the shared connection. By the engine."""
        request = Request(packed, clock() + patience_s, fits, script, answer, self.engine)
        wire = self._wire
        if wire is None:
            if self.closed:
                self.engine.soon(request.end, None, self._closed())
                return
            wire = self._connect()
        wire.send(request)

    @property
    def is_open(self) -> bool:
        """Whether callers may send by themselves."""
        return self._wire is not None and self._wire.is_open

    def put_all(self, asks: list[Any]) -> None:
        """By an event loop: send those."""
        wire = self._wire
        if wire is not None and wire.is_open:
            wire.put_all(asks)
        else:
            self.engine.call(self.take_over, asks)

    def send_in(
        self, session: str, ends: bool, packed: bytes, patience_s: float, fits: Fits | None, answer: Answer
    ) -> None:
        """Send it on the connection of that session; `ends` it, as trouble does."""
        wire = self._sessions.pop(session, None) or self._private()

        def answered(reply: Reply, failure: RequestFailed | None) -> None:
            if failure is not None:
                wire.close()
            elif ends:
                self._spares.append(wire)
            else:
                self._sessions[session] = wire
            answer(reply, failure)

        wire.send(Request(packed, clock() + patience_s, fits, None, answered, self.engine))

    def send_all(
        self, parts: list[tuple[bytes, Fits | None]], script: Script, patience_s: float, answer: Answer
    ) -> None:
        """Send a script and commands that wait behind it on a connection of their own; the result has all replies."""
        wire = self._private()
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
                self._spares.append(wire)
                answer(tuple(replies), None)
                return
            wire.retire()
            if failures[0].kind == "NOSCRIPT":
                spelled = [(spelled_out(parts[0][0], script), parts[0][1]), *parts[1:]]
                self.send_all(spelled, script, deadline - clock(), answer)
            else:
                answer(None, failures[0])

        for packed, fits in parts:
            wire.send(Request(packed, deadline, fits, None, answered, self.engine))

    def _private(self) -> Wire:
        while self._spares:
            if (wire := self._spares.pop()).is_open:
                return wire
        wire = Wire(self)
        self._all.add(wire)
        return wire

    def _closed(self) -> RequestFailed:
        return RequestFailed("closed", "the client is closed", self.name, maybe_executed=False, transient=False)

    def _connect(self) -> Wire:
        wire = self._wire = Wire(self)
        self._all.add(wire)
        return wire

    def send_later(self, later: Later) -> None:
        """By the engine: send it."""
        if self._wire is None and self.closed:
            later.end(None, self._closed())
        else:
            self.take_over([later])

    def take_over(self, requests: list[Any]) -> None:
        """Send those instead of a connection that cannot."""
        if requests:
            wire = self._wire or self._connect()
            for request in requests:
                wire.send(request)

    def ask(self, ask: Ask) -> tuple[Reply, RequestFailed | None] | None:
        """By a caller: send it and wait for its outcome; None where there is no connection, and nothing was sent."""
        wire = self._wire
        if wire is None or not wire.is_open:
            return None
        wire.ask(ask)
        if ask.outcome is None:
            ask.end(None, self.silent(True))
            self.engine.call(wire.overdue)
        return ask.outcome

    def tell(self, later: Later) -> bool:
        """By a caller: send it; False where there is no connection yet."""
        wire = self._wire
        if wire is None or not wire.is_open:
            return False
        wire.put(later)
        return True

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
        """Forget a wire that takes no more requests."""
        if self._wire is wire:
            self._wire = None
        if wire.ended:
            self._all.discard(wire)

    def rescue(self) -> None:
        """Read what its connections have to say, for any waiter."""
        for wire in tuple(self._all):
            wire.rescue()

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
        """Return the failure for connections without a socket to take over."""
        said = f"connections with a socket: {type(connection).__name__} has none after connect()"
        return RequestFailed("unfit", said, self.name, maybe_executed=False, transient=False)

    def close(self) -> None:
        """End all its connections."""
        self.closed = True
        for wire in tuple(self._all):
            wire.close()

    def forget(self, engine: Engine) -> None:
        """After fork, in the child, which has an engine of its own."""
        for wire in self._all:
            wire.forget()
        self._all.clear()
        self._sessions.clear()
        self._spares.clear()
        self._wire = None
        self.engine = engine


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


def _disconnect(connection: Any) -> None:
    try:
        connection.disconnect()
    except Exception:  # nothing can be done, and nothing depends on it
        pass


def _speaks_resp3(sock: socket.socket) -> bool:
    """In the helper thread: whether the server does, from now on."""
    sock.sendall(_HELLO)
    reader = hiredis.Reader(notEnoughData=_MORE)
    while (reply := reader.gets()) is _MORE:
        data = sock.recv(65536)
        if not data:
            raise ConnectionResetError("the server closed the connection")
        reader.feed(data)
    return not isinstance(reply, hiredis.ReplyError)


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

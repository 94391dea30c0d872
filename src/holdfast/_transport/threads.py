"""Blocking connections to servers, for threads.

Laws: nothing is repeated here but a script that the server does not know yet; a connection on which something
went wrong is closed, never used again; what a thread has not finished reading is read by no other.

Theory: the user's redis-py client says how to connect (TLS, users, Sentinel, sockets, database), and its connection
class does that; after the handshake we write packed bytes to its socket and parse the replies ourselves. Idle
connections lie on a stack, which is a list: append and pop are atomic.
"""

from __future__ import annotations

import _socket
import os
import select
import socket
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import hiredis

from holdfast._core.effects import Call, Command, Reply
from holdfast._core.failure import RequestFailed, refusal
from holdfast._core.replies import (
    COUNT,
    DONE,
    FITS,
    MAYBE,
    Fits,
    expected_of,
    is_confirmation,
    nonsense,
    promises_too_much,
)
from holdfast._lua import SCRIPTS, Script
from holdfast._transport.clock import clock
from holdfast._transport.dial import Attempts
from holdfast._transport.greenlets import poll_of_the_system
from holdfast._transport.handlers import interruption, raised_by_handler
from holdfast._transport.handshake import is_tls, late
from holdfast._transport.inherited import ours
from holdfast._transport.lazily import importing
from holdfast._transport.limits import MISPLACED
from holdfast._transport.pack import pack_command, pack_script, pack_sync, spelled_out
from holdfast._transport.pushes import Push
from holdfast._transport.single import describe

__all__ = ["Node", "Wire", "node_of_client"]

_ASKING = pack_command(("ASKING",))
#: What is left of a time is not worth a system call when it differs by less from what the socket knows, s.
_NEGLIGIBLE_S = 0.01
#: A connection that leaves less than this for the request is too late, s.
_LEAST_S = 0.001
#: A connection that was idle for this long is checked before it is used, s: where request follows request there is
#: hardly anything to see yet, and a look costs a system call, and lets another thread have the interpreter.
_UNSEEN_S = 0.01


class Wire:
    """One connection: bytes out, parsed replies in."""

    __slots__ = (
        "__weakref__",
        "_connection",
        "_fd",
        "_home",
        "_is_plain",
        "_is_tls",
        "_reader",
        "_recv",
        "aborted",
        "has_more",
        "request_timeout_s",
        "sock",
        "stirs",
        "until",
        "used_at",
    )

    def __init__(self, connection: Any, home: weakref.WeakSet[Wire] | None = None) -> None:
        self._connection = connection
        self.sock: socket.socket = connection._sock
        self.aborted = False
        self._home = home
        if home is not None:
            home.add(self)  # from here on it may be aborted by others
        ours(self.sock)
        self._recv = self.sock.recv
        self._reader = hiredis.Reader()
        self._is_tls = hasattr(self.sock, "pending")
        # Those of gevent and eventlet never let the system wait, and know their own limits only.
        self._is_plain = isinstance(self.sock, _socket.socket) and not self._is_tls
        #: Whether something was read that is no part of the last reply.
        self.has_more = self._reader.has_data
        poll = poll_of_the_system()
        poll.register(self.sock.fileno(), select.POLLIN)
        #: `stirs(0)`: empty while nothing has come; much cheaper than to read.
        self.stirs: Callable[[int], Any] = poll.poll
        #: What the system is written to without asking it before; -1 where that would not do.
        self._fd = self.sock.fileno() if self._is_plain else -1
        #: What `patience` was told last.
        self.request_timeout_s = -1.0
        #: When what is under way has to have ended, on our clock.
        self.until = 0.0
        #: When its last reply had come, on our clock.
        self.used_at = 0.0

    def patience(self, seconds: float) -> None:
        """The longest wait for one read; 0: none.

        Python keeps it over signals. The system does not: SO_RCVTIMEO starts over after each of them.
        """
        if seconds != self.request_timeout_s:
            self.sock.settimeout(seconds)
            self.request_timeout_s = seconds

    def begin(self, request_timeout_s: float) -> None:
        """Set the time for all that is sent and read from now on, together."""
        self.until = clock() + request_timeout_s
        self.patience(request_timeout_s)

    def _limit(self) -> None:
        """Not the first wait since `begin`: no longer than what is left."""
        left_s = self.until - clock()
        if left_s <= 0:
            raise TimeoutError("the time is over")
        if self.request_timeout_s - left_s > _NEGLIGIBLE_S:
            self.patience(left_s)

    def sendall(self, packed: bytes) -> None:
        """Send all of it. Raises OSError; when the wait was too long that is TimeoutError or BlockingIOError."""
        sent = 0
        if self._fd >= 0:
            # A socket that may wait is asked by poll() before each write, which is hardly ever needed.
            try:
                sent = os.write(self._fd, packed)
            except BlockingIOError:
                if not self.request_timeout_s:
                    raise
            if sent == len(packed):
                return
        rest = memoryview(packed)[sent:]
        while rest:
            if self.request_timeout_s:
                self._limit()
            rest = rest[self.sock.send(rest) :]

    def read(self) -> Reply:
        """The next reply; server errors are returned as `hiredis.ReplyError`. Raises OSError, as `sendall`."""
        reader = self._reader
        reply = reader.gets()
        if reply is False and not self.has_more():
            self._limit()
            reply = self.read_first()
        while reply is False or type(reply) is Push:  # a push may come at any time, and is not a reply
            reply = self.read_more() if reply is False else reader.gets()
        return reply

    def read_first(self) -> Reply:
        """The next reply, of which nothing has been read yet, or False."""
        data = self._recv(65536)
        if not data:
            raise ConnectionResetError("the server closed the connection")
        if data.find(b"\r", 0, 9) < 0 and promises_too_much(data):
            raise ValueError(repr(data[:20]))
        self._reader.feed(data)
        return self._reader.gets()

    def read_any(self) -> Reply:
        """The same, or a push: with RESP3 a subscription is confirmed by one."""
        reply = self._reader.gets()
        while reply is False:
            reply = self.read_more()
        return reply

    def is_idle(self) -> bool:
        """True if it can be used again: it has not ended, and brought nothing that was not asked for."""
        if not self.stirs(0):
            return True
        if not self._is_tls:
            return False
        try:  # perhaps a message of TLS itself
            self.patience(0.0)
            self._recv(1)
            return False
        except (OSError, ValueError) as error:
            return would_block(error)

    def is_done(self) -> bool:
        """True if everything that was read was asked for; pushes do not count."""
        while self.has_more():
            if type(self._reader.gets()) is not Push:
                return False
        return True

    def read_more(self) -> Reply:
        """The next reply, of which something may have been read, or False."""
        self._limit()
        data = self._recv(65536)
        if not data:
            raise ConnectionResetError("the server closed the connection")
        self._reader.feed(data)
        return self._reader.gets()

    def read_ready(self) -> list[Reply]:
        """All replies that can be had without waiting. The socket does not block."""
        replies: list[Reply] = []
        reader = self._reader
        try:
            while True:
                data = self._recv(65536)
                if not data:
                    raise ConnectionResetError("the server closed the connection")
                if promises_too_much(data):
                    raise ConnectionAbortedError(repr(data[:20]))
                reader.feed(data)
                if len(data) < 65536 and not self._is_tls:
                    break
        except OSError as error:
            if raised_by_handler(error) or not would_block(error):
                raise
        try:
            while (reply := reader.gets()) is not False:
                replies.append(reply)
        except Exception as error:  # of the parser, or of memory
            if raised_by_handler(error):
                raise
            raise ConnectionAbortedError(str(error)) from error
        return replies

    def close(self) -> None:
        """End the connection; never fails."""
        self._fd = -1
        connection, self._connection = self._connection, None
        if self._home is not None:
            self._home.discard(self)
        if connection is not None:
            try:
                connection.disconnect()
            except Exception:  # nothing can be done, and nothing depends on it
                pass

    def abort(self) -> None:
        """Wake a thread that is reading from it; the reader closes it."""
        self.aborted = True
        try:
            self.sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def forget(self) -> None:
        """After fork, in the child: close our copy of the descriptor, leaving the parent's connection alone."""
        self._connection = None
        self._fd = -1
        try:
            os.close(self.sock.detach())
        except OSError:
            pass


def would_block(error: Exception) -> bool:
    """True if it says that nothing can be read, or written, just now."""
    return isinstance(error, (BlockingIOError, InterruptedError)) or type(error).__name__ in (
        "SSLWantReadError",
        "SSLWantWriteError",
    )


def _fits_of_tail(call: Call) -> tuple[Fits, ...]:
    """Return the forms of what the commands behind a script answer: WAIT, and perhaps INFO."""
    return () if call.sync is None else (COUNT, MAYBE)[: len(call.sync) - 1]


def _tail(call: Call) -> list[bytes]:
    return [] if call.sync is None else pack_sync(call.sync)


class Node:
    """One server: a stack of idle connections and how to make more."""

    __slots__ = (
        "_attempts",
        "_idle",
        "_inbox",
        "_make",
        "_tls",
        "_wires",
        "closed",
        "connected",
        "is_ours",
        "name",
        "owed",
        "retired",
        "slow",
    )

    #: Whether its connections can be polled; those of a simulated server cannot.
    pipelines = True

    def __init__(self, name: str, make: Callable[[], Any], is_ours: bool = False) -> None:
        self.name = name
        #: Whether its connections keep their time by themselves.
        self.is_ours = is_ours
        self._make = make
        self._tls = False
        self._idle: list[Wire] = []
        self._attempts: Attempts[Wire] = Attempts(Wire.close)
        #: All connections that are open, idle or in use; those that an exception has left behind go by themselves.
        self._wires: weakref.WeakSet[Wire] = weakref.WeakSet()
        self._inbox: Wire | None = None
        self.closed = False
        #: Whether it has left its Cluster: who is on the way to it is served, and no connection is kept.
        self.retired = False
        #: Whether a connection was ever wanted (in this process).
        self.connected = False
        #: Connections that owe replies to calls that have ended, and whether the last answer came too late.
        self.owed = 0
        self.slow = False

    def connect(self, request_timeout_s: float, last: bool = False) -> Wire:
        """A new connection. Raises `RequestFailed`. `last`: also when closed, for what is undone after the end."""
        if self.closed and not last and not self.retired:
            raise RequestFailed("closed", "the client is closed", self.name, maybe_executed=False, transient=False)
        self.connected = True
        if self.is_ours:
            return self._connected(request_timeout_s)
        wire = self._attempts.make(lambda: self._connected(request_timeout_s), request_timeout_s)
        if wire is None:
            raise late(self.name, request_timeout_s, tls=self._tls)
        return wire

    def _connected(self, request_timeout_s: float) -> Wire:
        until = clock() + request_timeout_s
        connection = None
        before = sys.exc_info()[1]
        try:
            connection = self._make()
            self._tls = is_tls(connection)
            ours(connection)
            if hasattr(connection, "until"):
                connection.until = until
            if hasattr(connection, "retry"):
                connection.retry = _no_retry()
            for limit in ("socket_connect_timeout", "socket_timeout"):
                if hasattr(connection, limit):
                    given = getattr(connection, limit)
                    setattr(connection, limit, request_timeout_s if given is None else min(given, request_timeout_s))
            connection.connect()
            return Wire(connection, self._wires)
        except Exception as error:
            if connection is not None:
                connection.disconnect()
            if (raised := interruption(error, before)) is not None:
                raise raised from None
            if isinstance(error, RequestFailed):
                raise  # a connection of our own says what is wrong
            # Imported here: it knows the errors of redis-py, which takes longer to import than all else together.
            try:
                with importing:
                    from holdfast._transport.refusals import connection_failed
            except (OSError, ImportError):  # no descriptor is left to import it with, here or in another thread
                raise RequestFailed("refused", str(error), self.name, maybe_executed=False, transient=True) from error
            raise connection_failed(error, self.name, tls=self._tls) from error
        except BaseException:
            if connection is not None:
                connection.disconnect()
            raise

    def take(self, request_timeout_s: float) -> Wire:
        """An idle connection, or a new one."""
        return self.idle() or self.connect(request_timeout_s)

    def _take_by(self, until: float, request_timeout_s: float) -> tuple[Wire, float]:
        """A connection, and the time that is left."""
        wire = self.idle()
        return self._connect_by(until, request_timeout_s) if wire is None else (wire, request_timeout_s)

    def _connect_by(self, until: float, request_timeout_s: float) -> tuple[Wire, float]:
        wire = self.connect(request_timeout_s)
        left_s = until - clock()
        if left_s < _LEAST_S:
            self.put(wire)
            raise late(self.name, request_timeout_s, tls=self._tls)
        return wire, left_s

    def idle(self) -> Wire | None:
        """An idle connection that can be used, if there is one: the server may have closed it meanwhile."""
        while True:
            try:
                wire = self._idle.pop()
            except IndexError:
                return None
            if wire.is_idle():
                return wire
            wire.close()

    def put(self, wire: Wire) -> None:
        """A connection on which every reply was read."""
        self._idle.append(wire)
        if self.closed:
            self.close()

    def drop_idle(self) -> None:
        """Close what lies on the stack."""
        while self._idle:
            try:
                self._idle.pop().close()
            except IndexError:
                return

    def reconnect(self) -> None:
        """Let the next request go on a new connection."""
        self.drop_idle()

    def close(self) -> None:
        """No new connections; those in use are closed when they come back."""
        self.closed = True
        self.drop_idle()

    def retire(self) -> None:
        """Retire a node that has left its Cluster: close its inbox and idle connections; others when they come back."""
        self.retired = True
        self.close()
        inbox, self._inbox = self._inbox, None
        if inbox is not None:
            inbox.abort()  # its reader finds the end

    def in_use(self) -> list[Wire]:
        """Connections that are not idle."""
        while True:
            try:
                return [wire for wire in list(self._wires) if wire not in self._idle]
            except RuntimeError:  # another thread has just connected
                pass

    def forget(self) -> None:
        """After fork, in the child."""
        self.connected = False
        idle, self._idle = self._idle, []
        self._wires = weakref.WeakSet()
        for wire in idle:
            wire.forget()

    def call(self, call: Call, on_wire: Callable[[Wire | None], None] | None = None, asking: bool = False) -> Reply:
        """Run a script. `on_wire` is told which connection is in use, so that it can be aborted."""
        script = SCRIPTS[call.script]
        packed = pack_script(script, call.keys, call.args)
        if call.sync is not None or asking:
            return self._call_with(call, script, packed, on_wire, asking)
        if on_wire is not None:
            reply = self._exchange(packed, (FITS[script.name],), call.request_timeout_s, on_wire, script)[0]
            if type(reply) is hiredis.ReplyError:
                raise self.refused(reply)
            return reply
        return self.call_packed(packed, call.request_timeout_s, script)

    def call_packed(self, packed: bytes, request_timeout_s: float, script: Script) -> Reply:
        """Run a script whose request is ready: the most frequent case, in the fewest steps."""
        idle = self._idle
        now = clock()
        until = now + request_timeout_s
        try:
            wire = idle.pop()
        except IndexError:
            wire, request_timeout_s = self._connect_by(until, request_timeout_s)
        else:
            if now - wire.used_at > _UNSEEN_S and wire.stirs(0):
                idle.append(wire)
                wire, request_timeout_s = self._take_by(until, request_timeout_s)
        try:
            wire.until = until
            if wire.request_timeout_s != request_timeout_s:
                wire.patience(request_timeout_s)
            wire.sendall(packed)
            reply = wire.read_first()
            if reply is False or type(reply) is Push:
                reply = wire.read()
        except BaseException as error:
            failure = self._failed(wire, error, request_timeout_s)
            if failure is None:
                raise
            raise failure from error
        fits = FITS[script.name]
        if wire.has_more() or not fits(reply):
            refused = self._checked(wire, (reply,), (fits,))
            if refused is not None and str(refused).startswith("NOSCRIPT"):
                whole = spelled_out(packed, script)
                reply = self._exchange_on(wire, whole, (fits,), max(_LEAST_S, until - clock()), None)[0]
                refused = reply if type(reply) is hiredis.ReplyError else None
            if refused is not None:
                self.put(wire)
                raise self.refused(refused)
        wire.used_at = clock()
        idle.append(wire)
        if self.closed:
            self.close()
        return reply

    def _checked(self, wire: Wire, replies: Sequence[Reply], fits: Sequence[Fits | None]) -> Reply | None:
        """The first error among the replies. Raises `RequestFailed`, the connection closed, when they make no sense."""
        refused = None
        for reply, fit in zip(replies, fits, strict=True):
            if type(reply) is hiredis.ReplyError:
                refused = reply if refused is None else refused
            elif fit is not None and not fit(reply):
                raise self._nonsense(wire, repr(reply), expected_of(fit))
        try:
            done = wire.is_done()
        except Exception as error:
            if raised_by_handler(error):
                wire.close()
                raise
            raise self._nonsense(wire, str(error), expected_of(None)) from error
        if not done:
            raise self._nonsense(wire, "more than one reply", expected_of(None))
        return refused

    def _nonsense(self, wire: Wire, said: str, expected: str) -> RequestFailed:
        wire.close()
        self.drop_idle()  # they lead to the same place
        return nonsense(said, expected, self.name)

    def _failed(self, wire: Wire, error: BaseException, request_timeout_s: float) -> RequestFailed | None:
        """Closes the connection. The trouble that it was, or None for what is not the server's."""
        wire.close()
        if raised_by_handler(error):
            return None
        if isinstance(error, (TimeoutError, BlockingIOError)):
            self.drop_idle()  # if the network is gone they are as dead, and each would cost as long
            said = f"no answer within {request_timeout_s:.3g} s"
            return RequestFailed("silent", said, self.name, maybe_executed=True, transient=True)
        if isinstance(error, OSError):
            self.drop_idle()  # the others were most likely closed with it
            return RequestFailed("broken", str(error), self.name, maybe_executed=True, transient=True)
        if isinstance(error, Exception):  # of the parser, which runs out of memory for some
            self.drop_idle()
            return nonsense(f"{type(error).__name__}: {error}", expected_of(None), self.name)
        return None

    def _call_with(
        self,
        call: Call,
        script: Script,
        packed: bytes,
        on_wire: Callable[[Wire | None], None] | None,
        asking: bool,
    ) -> Reply:
        """With ASKING before it or WAIT behind it."""
        fits = [FITS[script.name], *_fits_of_tail(call)]
        request_timeout_s = call.request_timeout_s
        if asking:
            packed = _ASKING + packed
            fits.insert(0, DONE)
        if call.sync is not None:
            packed += b"".join(pack_sync(call.sync))
            request_timeout_s += call.sync[1] / 1000
        replies = self._exchange(packed, fits, request_timeout_s, on_wire, script)
        if asking:
            replies = replies[1:]
        for reply in replies:
            if type(reply) is hiredis.ReplyError:
                refused = self.refused(reply)
                refused.maybe_executed = refused.maybe_executed or reply is not replies[0]
                raise refused
        return replies[0] if call.sync is None else tuple(replies)

    def command(
        self, command: Command, on_wire: Callable[[Wire | None], None] | None = None, asking: bool = False
    ) -> Reply:
        """Run a plain command."""
        packed = pack_command(command.args)
        if asking:
            packed = _ASKING + packed
        fits = (DONE, command.fits) if asking else (command.fits,)
        reply = self._exchange(packed, fits, command.request_timeout_s, on_wire, None)[-1]
        if isinstance(reply, hiredis.ReplyError):
            raise self.refused(reply)
        return reply

    def command_on(self, wire: Wire, command: Command) -> Reply:
        """Run a plain command on a connection that the caller took; it is closed when anything goes wrong."""
        reply = self._exchange_on(wire, pack_command(command.args), (command.fits,), command.request_timeout_s, None)[0]
        if isinstance(reply, hiredis.ReplyError):
            wire.close()
            raise self.refused(reply)
        return reply

    def call_all(self, calls: Sequence[Call], request_timeout_s: float) -> list[Reply | RequestFailed]:
        """Run many scripts in one pipeline. What could not be asked or answered is a `RequestFailed` in its place."""
        tails = [_tail(call) for call in calls]
        packed = [pack_script(SCRIPTS[call.script], call.keys, call.args) for call in calls]
        request_timeout_s += sum(call.sync[1] / 1000 for call in calls if call.sync is not None)
        until = clock() + request_timeout_s
        answers: list[Reply | RequestFailed] = [None] * len(calls)
        left = [*range(len(calls))]
        for turn in range(3):
            said: set[str] = set()
            fits: list[Fits | None] = []
            request: list[bytes] = []
            for at in left:
                script = SCRIPTS[calls[at].script]
                # What the server has forgotten is said in full once; should it forget that at once, each time.
                whole = turn == 2 or (turn == 1 and script.name not in said)
                said.add(script.name)
                request += (spelled_out(packed[at], script) if whole else packed[at], *tails[at])
                fits += (FITS[script.name], *_fits_of_tail(calls[at]))
            try:
                replies = iter(self._exchange(b"".join(request), fits, max(_LEAST_S, until - clock()), None, None))
            except RequestFailed as failure:
                for at in left:
                    answers[at] = failure
                break
            again: list[int] = []
            for at in left:
                own = [next(replies) for _ in range(1 + len(tails[at]))]
                errors = [reply for reply in own if isinstance(reply, hiredis.ReplyError)]
                if errors and str(errors[0]).startswith("NOSCRIPT"):
                    again.append(at)
                answers[at] = self.refused(errors[0]) if errors else own[0] if len(own) == 1 else tuple(own)
            left = again
            if not left:
                break
        return answers

    def _exchange(
        self,
        packed: bytes,
        fits: Sequence[Fits | None],
        request_timeout_s: float,
        on_wire: Callable[[Wire | None], None] | None,
        script: Script | None,
    ) -> list[Reply]:
        """Send, and read a reply for each of `fits`, on a connection from the stack."""
        wire, request_timeout_s = self._take_by(clock() + request_timeout_s, request_timeout_s)
        if on_wire is None:
            replies = self._exchange_on(wire, packed, fits, request_timeout_s, script)
        else:
            on_wire(wire)
            try:
                replies = self._exchange_on(wire, packed, fits, request_timeout_s, script)
            finally:
                on_wire(None)
            if wire.aborted:  # after its reply had come: it must reach no other caller
                wire.close()
                return replies
        self.put(wire)
        return replies

    def _exchange_on(
        self, wire: Wire, packed: bytes, fits: Sequence[Fits | None], request_timeout_s: float, script: Script | None
    ) -> list[Reply]:
        """The same on a given connection, which is closed when anything goes wrong."""
        try:
            wire.begin(request_timeout_s)
            wire.sendall(packed)
            replies = [wire.read() for _ in fits]
            if script is not None and any(
                type(reply) is hiredis.ReplyError and str(reply).startswith("NOSCRIPT") for reply in replies
            ):
                wire.sendall(spelled_out(packed, script))
                replies = [wire.read() for _ in fits]
        except BaseException as error:
            failure = self._failed(wire, error, request_timeout_s)
            if failure is None:
                raise
            raise failure from error
        self._checked(wire, replies, fits)
        return replies

    def refused(self, reply: Any) -> RequestFailed:
        """The trouble behind a server's error."""
        failure = refusal(str(reply), self.name)
        if failure.kind in MISPLACED:
            self.drop_idle()
        return failure

    def subscribe(self, channel: str, request_timeout_s: float) -> Wire:
        """A connection that is subscribed to `channel`, confirmed."""
        wire, request_timeout_s = self._connect_by(clock() + request_timeout_s, request_timeout_s)
        try:
            wire.begin(request_timeout_s)
            wire.sendall(pack_command(("SUBSCRIBE", channel)))
            reply = wire.read_any()
            if type(reply) is not hiredis.ReplyError and not is_confirmation(reply, channel):
                raise self._nonsense(wire, repr(reply), "a confirmation of SUBSCRIBE")
        except RequestFailed:
            raise
        except BaseException as error:
            failure = self._failed(wire, error, request_timeout_s)
            if failure is None:
                raise
            if failure.kind == "nonsense":
                raise nonsense(str(error), "a confirmation of SUBSCRIBE", self.name) from error
            message = "no answer to SUBSCRIBE" if failure.kind == "silent" else failure.message
            raise RequestFailed(failure.kind, message, self.name, maybe_executed=False, transient=True) from error
        if isinstance(reply, hiredis.ReplyError):
            wire.close()
            raise self.refused(reply)
        wire.patience(0.0)
        self._inbox = wire
        if self.retired:
            self.retire()  # meanwhile
        return wire


def _no_retry() -> Any:
    """Repeats are the protocol's. The connection is redis-py's, so that it has been imported."""
    with importing:
        from redis.backoff import NoBackoff
        from redis.retry import Retry
    return Retry(NoBackoff(), 0)


def node_of_client(client: Any, name: str | None = None) -> Node:
    """The node behind a redis-py client (single server, or a Sentinel's master)."""
    pool = client.connection_pool

    def make() -> Any:
        # Not pool.make_connection(): that counts against max_connections, and never counts down.
        return pool.connection_class(**pool.connection_kwargs)

    return Node(name or describe(pool), make)

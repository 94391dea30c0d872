"""A connection of the engine to a server: commands of all callers, and messages between their replies.

Laws: nothing is repeated here but a script that the server does not know; replies are matched to requests in order,
also those that are not waited for any more; every request is answered once, by its reply or a `RequestFailed`.

Theory: a helper thread connects (`dial.py`); what is sent meanwhile waits here. To write, a thread takes the *seat*,
and keeps it only for what never waits. Requests of callers leave at once, those of the engine together at the end of
its turn. A thread that finds the seat taken leaves its request to the one in it, which looks for more before and after
it gets up.

The engine reads. But where nothing is under way, a caller reads the reply itself, as the *leader*, and spares two
switches of threads; whatever else comes meanwhile it reads, too, until its own reply is there. Of those that stand in
queues (`standing.py`), the first one reads: the next message is likely to be its own. An event loop that has a copy of
the socket reads, too. Where messages can come, the engine is told to read again when no reply is waited for, and looks
every `GUARD_S` whether a signal handler holds the reader up, and the messages. The reply to a request that is not
waited for wakes no thread: while only those are under way, the socket is not watched, and they are read together with
the next reply, or after `LIE_S`.

A signal handler may raise wherever a caller writes or reads. So a seat is not a lock: it holds a thread's number, so
that this thread can tell whether it has the seat, wherever it was interrupted. A request leaves the queue and arrives
among those that are `_gathered` in one step; it leaves what is pending when its reply is among the `_ends`. A
connection that was interrupted between bytes and their note is ended. A handler may also go on for long: callers that
wait have the engine look, which sends what is under way here by another connection; a handler that itself asks does so
at once. TLS is not for two threads at a time: there the engine does it all. Nor does a greenlet lead, which cannot be
told from another one of its thread.

A connection that owes replies and is silent gets no new requests: the next one goes on a new connection, and the old
one lingers for what may still come.
"""

from __future__ import annotations

import select
import socket
import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import groupby, repeat
from operator import attrgetter
from threading import get_ident
from typing import Any

from holdfast._core.agent.agent import Outcome
from holdfast._core.effects import Reply
from holdfast._core.failure import RequestFailed
from holdfast._core.mutex import EACH_MAX
from holdfast._core.snapshot import snapshot
from holdfast._core.standing import Standing
from holdfast._engine.dial import Dial, disconnect
from holdfast._engine.loop import READ, WRITE, Timer
from holdfast._engine.matching import BEFORE_VAST, VAST, Matching, is_no_reply
from holdfast._engine.pack import Group
from holdfast._engine.requests import DEADLINE, MAY_LIE, Ask, Bundle, Messages
from holdfast._runtime.clock import clock
from holdfast._runtime.greenlets import who_patched
from holdfast._runtime.handlers import raised_by_handler
from holdfast._runtime.inherited import ours
from holdfast._runtime.waits import ring, silent_bell

#: A connection that owes replies and says nothing gets no new requests after this, s: less than requests wait for.
SILENCE_S = 0.5
#: And is closed after this much more, s: until then, late replies are still matched.
LINGER_S = 10.0
#: Where no connection was made after this, s, and a request has run out of time, another attempt is made.
CONNECT_SILENCE_S = 1.0
#: A caller whose reply has not come after this has the engine look whether it was sent at all, s.
RESCUE_S = 0.02
#: No thread has the seat, or leads without a step, for longer than this, but below a signal handler, s.
STUCK_S = 0.25
#: A look for that which comes later says that the whole process was held up, s: that thread gets the same time again.
LATE_S = 0.05
#: The leader looks whether the connection has ended, and all is sent, at least this often, s.
SLICE_S = 0.02
#: Replies that are not waited for are read after this, s, or twice this.
LIE_S = 0.01
#: While callers read what may be messages, the engine looks this often whether one is held up, s.
GUARD_S = 0.05
#: Fewer than this go one by one.
EACH_MIN = 6
#: Read in one turn of the loop, bytes.
_READ_MAX = 65_536

_POP, _GROUP = deque[Any].popleft, attrgetter("group")
_WANTS: tuple[type[OSError], ...] = (BlockingIOError, InterruptedError)


def _shut(sock: socket.socket) -> None:
    """End the connection of the socket, whatever copies there are of it."""
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass


class Link(Matching):
    """One connection."""

    def __init__(self, server: Any, *, is_inbox: bool = False) -> None:
        super().__init__(server.name, is_inbox, Messages(server))
        self.server = server
        #: Whether messages come between its replies.
        self.pushes = False
        self._engine = server.engine
        self._queue: deque[Any] = deque()
        self._gathered: deque[Any] = deque()
        #: What is left of the last piece, which the socket did not take at once.
        self._out: bytes | memoryview = b""
        #: The thread that writes, and the one that reads, by one key: its number in a tuple of its own.
        self._seat: dict[str, tuple[int]] = {}
        self._reading: dict[str, tuple[int]] = {}
        #: Whether a caller reads, what it waits with, and whether it is between bytes and what they say.
        self._led = self._inside = False
        self._poll: Any = None
        #: Callers that stand in queues, in their order.
        self._standers: dict[Standing, None] = {}
        #: How often something was written, and read.
        self._writes = self._reads = 0
        self._connection: Any = None
        self._sock: socket.socket | None = None
        self._fd = -1
        self._is_tls = self._has_twins = False
        #: What a socket raises that has to be tried again.
        self._wants = _WANTS
        #: Whether the engine reads what comes at once; and whether it looks now and then for what lies unread.
        self._armed = False
        self._ticks = False
        #: Whether it looks now and then for a reader that is held up.
        self._guarded = False
        self._alarm: Timer | None = None
        self._alarm_at = float("inf")
        self._heard_at = clock()
        self._retired = False
        #: It is over; and was the parent's.
        self.ended = self.forgotten = False
        #: Whether callers may send by themselves: it is connected, and takes new requests.
        self.is_open = False
        self._failure: RequestFailed
        #: Whether it ends by a signal handler of this process.
        self.is_torn = False
        #: Called once when no more messages come by it, where some did; with `is_torn`.
        self.on_deaf: Callable[[bool], None] | None = None
        self._dial = Dial(server, self._connected, self._end)

    # -- connecting -------------------------------------------------------------------------------

    def _connected(self, connection: Any, pushes: bool) -> None:
        sock = getattr(connection, "_sock", None)
        if self.ended or sock is None:
            disconnect(connection)
            if not self.ended:
                self._end(self.server.unfit(connection))
            return
        ours(sock)
        self.server.steps += 1
        sock.setblocking(False)
        self._connection, self._sock, self.pushes = connection, sock, pushes
        self._fd = sock.fileno()
        self._is_tls = hasattr(sock, "pending")
        if self._is_tls:  # then it is loaded; for others it would take long
            ssl: Any = sys.modules["ssl"]
            self._wants = (*_WANTS, ssl.SSLWantReadError, ssl.SSLWantWriteError)
        self._heard_at = clock()
        # Those whose asker has gone meanwhile need not be sent at all.
        waiting = [request for request in self._queue if request.outcome is None]
        self._queue.clear()
        self._queue.extend(waiting)
        self._engine.register(self._fd, self)
        self._watch(True)
        if not (self._is_tls or who_patched()):
            self._poll = select.poll()
            self._poll.register(self._fd, select.POLLIN)
        self.is_open = not self._retired
        self.write()

    def watched(self) -> socket.socket | None:
        """Make a socket by which an event loop can watch for what comes; None with TLS, which the engine does alone."""
        sock = self._sock
        if sock is None or self._is_tls or not self.is_open:
            return None
        self._has_twins = True
        try:
            twin = sock.dup()
        except OSError as error:  # the engine has just closed it, or no descriptor is left
            if raised_by_handler(error):
                raise
            return None
        ours(twin)
        if self._sock is not sock:  # closed meanwhile: this may be another one by the same number
            twin.close()
            return None
        return twin

    # -- requests of the engine -------------------------------------------------------------------

    def send(self, request: Any) -> None:
        """Send it with others of this turn."""
        if self.ended:
            self._engine.soon(request.end, None, self._failure.again(maybe_executed=False))
            return
        if request.may_lie:
            request.may_lie = False  # who would have read its reply has sent it elsewhere, or reads no more
        self._queue.append(request)
        if request.fits is is_no_reply:
            self._subscribes = True
        if request.deadline < self._alarm_at:
            self.alarm(request.deadline)
        self._engine.flushes[self] = None

    def alone(self, ask: Ask) -> None:
        """By the engine: send it not together with others, if it is still waited for."""
        if ask.outcome is None:
            ask.group = None
            self.send(ask)

    # -- requests of callers ----------------------------------------------------------------------

    def is_below(self) -> bool:
        """True if the calling thread writes or reads here, below the signal handler that calls this: others go on."""
        if (get_ident(),) not in (self._seat.get(""), self._reading.get("")):
            return False
        self._torn(self.retire)
        return True

    def ask(self, ask: Ask, standing: Standing | None = None) -> Outcome | None:
        """Send it, and wait for its outcome until its deadline; None where nothing can be sent from here.

        Where no other reply is waited for, read what comes until its own has; or its message, where it is `standing`.
        """
        reading = self._reading
        if not self.is_open or ((self._seat or reading) and self.is_below()):
            return None
        me = (get_ident(),)
        try:
            busy = self._poll is None or (self._pending and not self._is_quiet())
            if busy or reading.setdefault("", me) is not me:
                return self._follow(ask, me, False, standing)
            self._led = True
            self._queue.append(ask)
            self.write()
            if self._subscribes and not self._guarded:
                self._engine.call(self._have_guard)
            while ask.outcome is None and not self.ended:
                left_s = ask.deadline - clock()
                # A last look in any case: this thread may have been held up, and the reply be there.
                if not self._poll.poll(1000 * (left_s if left_s < SLICE_S else SLICE_S) if left_s > 0 else 0):
                    if left_s <= 0 or self._engine.trouble is not None:
                        break  # without a thread, a waiting caller has to turn the engine: it may send the ask again
                    self._reads += 1
                    if self._queue:
                        self._engine.call(self.rescue)  # the thread in the seat is held up
                elif not self._read_for_callers():
                    break
            self._led = False
            del reading[""]
            if self._queue or self._retired:
                self._engine.call(self.rescue)
            elif (standing is None or ask.outcome is None) and (self._pending or self._subscribes):
                self._arm(me)
            return self._follow(ask, me, True, standing) if ask.outcome is None or standing is not None else ask.outcome
        except BaseException:
            if standing is not None:
                self._standers.pop(standing, None)  # a second one may have kept `_stand` from it
            self._read_no_more(me)
            raise

    def read_here(self) -> None:
        """By an event loop that watches the socket, too: read what comes, unless another one is about to."""
        reading, me = self._reading, (get_ident(),)
        try:
            if self._led or reading.setdefault("", me) is not me:
                return
            if self._subscribes and not self._guarded:
                self._engine.call(self._have_guard)
            goes_on = self._read_for_callers()
            del reading[""]
            if goes_on and not (self._is_quiet() if self._pending else not self._subscribes):
                self._arm(me)
        except BaseException:
            self._read_no_more(me)
            raise

    @property
    def lies(self) -> bool:
        """Whether replies are under way that the engine leaves to event loops for a while."""
        return not self._led and any(map(MAY_LIE, (*snapshot(self._queue), *self._under_way())))

    def _read_no_more(self, me: tuple[int]) -> None:
        """By who was reading, perhaps, when a signal handler raised."""
        if self._reading.get("") is me:
            if self._inside:
                self._torn(self._lost, None)  # what was read may not be known
            self._led = False
            del self._reading[""]
        self._engine.call(self.rescue)

    def _arm(self, me: tuple[int]) -> None:
        """By who reads no more: have the engine read what may come."""
        seat = self._seat
        try:
            if seat.setdefault("", me) is not me:
                self._engine.call(self.rescue)
                return
            if self._sock is not None and not self._armed:
                self._watch(True)
            del seat[""]
            if self._queue:
                self.write()
        except BaseException:
            if seat.get("") is me:
                del seat[""]
            self._engine.call(self.rescue)
            raise

    def _read_for_callers(self) -> bool:
        """By who is not the engine: read what has come; False where that was the end."""
        self._inside = True
        trouble = self._receive()
        ends = self._ends
        while ends:
            request, reply, failure = ends[0]
            if failure is None and request.ends_anywhere:
                request.end(reply, None)
            else:
                self._hand_out(request, reply, failure, False)
            ends.popleft()
        self._inside = False
        if trouble is not None:
            self._engine.call(self._end, trouble)
            return False
        if self._queue:
            self.write()
        return True

    def _follow(self, ask: Ask, me: tuple[int], is_sent: bool, standing: Standing | None) -> Outcome | None:
        """Wait for what another thread reads."""
        bell, patience_s = silent_bell() if standing is None else standing.bell, RESCUE_S
        ask.answer = lambda _ask: ring(bell)
        if not is_sent:
            self._queue.append(ask)
            self.write()
            if not (self._led or self._armed or self._is_tls):
                self._arm(me)  # the leader has left meanwhile, and found us in the seat
        while ask.outcome is None and not self.forgotten and (left_s := ask.deadline - clock()) > 0:
            if not self._engine.wait(bell, left_s if left_s < patience_s else patience_s):
                self._engine.call(self.rescue)
                patience_s *= 2
        if ask.outcome is None:
            ask.end(None, self.server.silent(True))
            self._engine.call(self.overdue)
        elif standing is not None:
            self._stand(ask.outcome, me, standing)
        return ask.outcome

    def _stand(self, outcome: Outcome, me: tuple[int], standing: Standing) -> None:
        """Wait for its message, and read what comes, where it is the first that stands here."""
        standers, reading, goes_on = self._standers, self._reading, self._poll is not None
        try:
            standers[standing] = None
            if not reading:
                ring(snapshot(standers)[0].bell)
            while not self.forgotten and (left_s := standing.left_s(outcome, clock())) > 0:
                may_lead = goes_on and self._subscribes and snapshot(standers)[0] is standing
                if not may_lead or reading.setdefault("", me) is not me:
                    self._engine.wait(standing.bell, left_s)
                    continue
                self._led = True
                if not self._guarded:
                    self._engine.call(self._have_guard)
                if self._poll.poll(1000 * min(left_s, SLICE_S)):
                    goes_on = self._read_for_callers() and not self.ended
                else:
                    self._reads += 1
                self._led = False
                del reading[""]
                if self._queue:
                    self._engine.call(self.rescue)
        finally:
            standers.pop(standing, None)
        if not (self._armed or reading):
            self._arm(me)

    def put(self, later: Ask) -> bool:
        """Send it, and wait for nothing; False where nothing can be sent from here."""
        if not self.is_open or ((self._seat or self._reading) and self.is_below()):
            return False
        later.may_lie = not self._subscribes
        self._queue.append(later)
        self.write()
        if not self._ticks:
            self._engine.call(self._have_ticks)
        if self.ended:
            self._engine.call(self.rescue)
        return True

    def put_all(self, asks: list[Any]) -> None:
        """Send those of an event loop, whose tasks wait for them. The engine looks for what is late."""
        self._queue.extend(asks)
        self.write()
        first_at = min(map(DEADLINE, asks))
        if first_at < self._alarm_at:
            self._engine.call(self.alarm, first_at)
        if asks[-1].may_lie and not self._ticks:
            self._engine.call(self._have_ticks)
        if self.ended or self._seat:
            self._engine.call(self.rescue)

    def _hand_out(self, request: Any, reply: Reply, failure: RequestFailed | None, by_engine: bool) -> None:
        if failure is not None and failure.kind == "NOSCRIPT" and request.script is not None:
            if request.outcome is None:
                request.spell_out()
                if by_engine:
                    self.send(request)  # at once: a connection that is retired ends when it owes nothing
                else:
                    self._engine.call(self.send, request)
        elif by_engine or request.ends_anywhere:
            request.end(reply, failure)
        elif request is not self._messages or failure is not None or not self.server.wakes(reply):
            self._engine.call(request.end, reply, failure)

    # -- writing ----------------------------------------------------------------------------------

    def write(self) -> None:
        """Write what is queued; with TLS, the engine does it."""
        if self._is_tls and not self._engine.is_mine():
            self._engine.call(self.write)
            return
        seat, me = self._seat, (get_ident(),)
        try:
            goes_on = True
            while goes_on and (self._queue or self._out) and seat.setdefault("", me) is me:
                try:
                    goes_on = self._write_some()
                finally:
                    self._writes += 1
                    del seat[""]
        except BaseException:
            if seat.get("") is me:
                del seat[""]
            self._torn(self._lost, None)  # a signal handler, perhaps between a request and its note
            raise

    def _write_some(self) -> bool:
        """With the seat; False where no more can be written now."""
        sock, data = self._sock, self._out
        pending, gathered = self._pending, self._gathered
        if sock is None:
            return False
        if not data:
            if not pending:
                self._heard_at = clock()  # it owed nothing until now
            try:  # one step each, in which no signal handler comes
                gathered.extend(map(_POP, repeat(self._queue, len(self._queue))))
            except IndexError:
                pass  # the engine has taken them for another connection
            if len(gathered) == 1:
                request = gathered[0]
                pending.append(request)
                gathered.clear()
                data, lies = request.pack(), request.may_lie
            elif gathered:
                data, lies = self._pack_many()
            else:
                return False
            # The engine reads what comes, unless a caller does, or all of it may lie.
            if not self._armed:
                if not (lies or self._led):
                    self._watch(True)
            elif self._led or (lies and self._is_quiet()):
                self._watch(False)
        try:
            sent = sock.send(data)
        except self._wants:
            sent = 0
        except OSError as error:
            if raised_by_handler(error):
                raise
            self._engine.call(self._lost, error)
            return False
        is_left = sent < len(data)
        if is_left or self._out:
            self._out = memoryview(data)[sent:] if is_left else b""  # not a copy of megabytes
            self._watch(is_left or self._armed)
        return not is_left

    def _is_quiet(self) -> bool:
        """True if no reply is waited for."""
        return all(map(MAY_LIE, snapshot(self._pending)))

    def _watch(self, armed: bool) -> None:
        """With the seat, or in the engine; where both do at a time, the last word counts."""
        self._armed = armed
        self._engine.watch(self._fd, (READ if armed else 0) | (WRITE if self._out else 0))
        if self._armed != armed:
            self._watch(self._armed)

    def _pack_many(self) -> tuple[bytes, bool]:
        """Of what is gathered: its bytes, and whether all replies may lie."""
        requests = list(self._gathered)
        if len(requests) >= EACH_MIN:
            requests = self._bundled(requests)
        self._pending.extend(requests)
        self._gathered.clear()
        return b"".join([request.pack() for request in requests]), all(map(MAY_LIE, requests))

    def _bundled(self, requests: list[Any]) -> list[Any]:
        """Together, what can be asked together. Releases go first; where other requests are between, all stay so."""
        groups: dict[Group, list[Any]] = {}
        for group, alike in groupby(requests, _GROUP):
            if group is None:
                return requests
            groups.setdefault(group, []).extend(alike)
        found: list[Any] = []
        for members in sorted(groups.values(), key=lambda members: members[0].prepared.grants):
            if len(members) < EACH_MIN:
                found += members
            else:
                alone = partial(self._engine.call, self.alone)
                found += [Bundle(members[at : at + EACH_MAX], alone) for at in range(0, len(members), EACH_MAX)]
        return found

    def rescue(self) -> None:
        """By the engine: look whether what is queued is sent, and what comes is read."""
        if self.ended:
            if self._sock is None:  # else it is about to end all
                self._end_all()
        elif self._sock is not None:
            self.write()
            if self._seat or self._reading:
                late_at = clock() + STUCK_S + LATE_S
                self._engine.later(STUCK_S, self._look_for_stuck, self._writes, self._reads, late_at)
            elif self._pending or (self._subscribes and not self._retired):
                self._watch(True)
            else:
                self._end_if_done()

    def _have_guard(self) -> None:
        """By the engine, which alone sets and clears what says so: no signal handler comes between."""
        if not self._guarded:
            self._guarded = True
            self._engine.later(GUARD_S, self._guard, None, 0)

    def _guard(self, last: object, reads: int) -> None:
        """Look whether the caller that reads moves on: messages may come, and a signal handler may hold it up."""
        self._guarded = False  # before the look: who reads behind that is looked after again
        reader = self._reading.get("")
        if self.ended or (reader is None and self._reads == reads):
            if self._subscribes and not self._armed:
                self.rescue()
            return
        if reader is not None and reader is last:
            self.rescue()
        self._guarded = True
        self._engine.later(GUARD_S, self._guard, reader, self._reads)

    def _look_for_stuck(self, writes: int, reads: int, late_at: float) -> None:
        """A signal handler goes on and on, above a thread that was writing or reading: others go by another way."""
        if self.ended or not (self._seat or self._reading) or clock() > late_at:
            self.rescue()
        elif (self._seat and self._writes == writes) or (self._reading and self._reads == reads):
            self.is_torn = True
            self._replace()
            for request in self._under_way():
                request.end(None, self._broken(None))  # it stays where it is: it may be answered yet

    def _replace(self) -> None:
        """Have others send what was not sent."""
        self.retire()
        waiting: list[Any] = []
        with suppress(IndexError):  # the thread that was held up may go on at this moment, and take some
            while True:
                waiting.append(self._queue.popleft())
        self.server.take_over(waiting)

    def _have_ticks(self) -> None:
        """The same of what lies unread."""
        if not self._ticks:
            self._ticks = True
            self._engine.later(LIE_S, self._tick, None)

    def _tick(self, first: Any) -> None:
        """Read replies that are not waited for, when no other request has come by for a while; and look for late ones.

        Where they are read at once, they may be late all the same.
        """
        self._ticks = False  # before the look: who sends behind that has ticks again
        waiting = [*snapshot(self._queue), *self._under_way()]
        if self.ended or not waiting:
            return
        if self._armed or waiting[0] is first:
            self.alarm(min(map(DEADLINE, waiting)))
            self.rescue()
        else:
            self._ticks = True
            self._engine.later(LIE_S, self._tick, waiting[0])

    # -- reading ----------------------------------------------------------------------------------

    def ready(self, mask: int) -> None:
        """The socket can be read or written."""
        if mask & WRITE and self._out:
            self.write()
        if mask & ~WRITE:
            self._read()

    def _read(self) -> None:
        """Take what has come."""
        me = (get_ident(),)
        if self._reading.setdefault("", me) is not me:
            self._watch(False)  # a caller reads, and has us watch again afterwards
            if not self._reading:
                self._watch(True)  # but it left before that
            return
        try:
            trouble = self._receive()
            ends = [*self._ends]  # now: a caller may read from here on, and hands out its own
            self._ends.clear()
        finally:
            del self._reading[""]
        for request, reply, failure in ends:
            if failure is None:
                self._engine.do(request.end, (reply, None))
            else:
                self._engine.do(self._hand_out, (request, reply, failure, True))
        if trouble is not None:
            self._end(trouble)
            return
        if self._queue and self not in self._engine.flushes:
            self.write()
        if self._retired:
            self._end_if_done()

    def _receive(self) -> RequestFailed | None:
        while (sock := self._sock) is not None:
            try:
                data = sock.recv(_READ_MAX)
            except self._wants:
                return None
            except OSError as error:
                if raised_by_handler(error):
                    raise
                return self._broken(error)
            if not data:
                return self._broken(None)
            self._heard_at = clock()
            self._reads += 1
            for piece in (data,) if VAST.search(data) is None else BEFORE_VAST.split(data):
                if (trouble := self._parse(piece)) is not None:
                    return trouble
            if not (self._is_tls and sock.pending()):  # type: ignore[attr-defined]
                return None
        return None

    def _misplaced(self) -> None:
        self._engine.call(self.retire)

    # -- times ------------------------------------------------------------------------------------

    def alarm(self, at: float) -> None:
        """By the engine: look then whether something is late."""
        if at < self._alarm_at:
            if self._alarm is not None:
                self._engine.forget(self._alarm)
            self._alarm_at = at
            self._alarm = self._engine.later(max(0.0, at - clock()), self.expire)

    def expire(self) -> None:
        """By the engine: end what has waited long enough, and was not answered: all may have been held up."""
        if self._sock is not None:
            self._read()
        if self.ended:
            return
        now = clock()
        self._alarm, self._alarm_at = None, float("inf")
        requests = [*snapshot(self._queue), *self._under_way()]
        waiting = [part for request in requests for part in request.parts if part.outcome is None]
        expired = [part for part in waiting if part.deadline <= now]
        if len(expired) < len(waiting):
            self.alarm(min(part.deadline for part in waiting if part.deadline > now))
        connected = self._sock is not None
        for request in expired:
            request.end(None, self.server.silent(connected))
        if expired:
            self.overdue()

    def overdue(self) -> None:
        """By the engine: an answer has not come in time."""
        silent_s = self.quiet_s()
        if self._sock is not None and (self._midway or silent_s >= SILENCE_S):
            self.retire()
        elif self._sock is None and silent_s >= CONNECT_SILENCE_S and self.server.link is self:
            self._replace()

    # -- the end ----------------------------------------------------------------------------------

    def quiet_s(self) -> float:
        """How long ago something was heard, or it owed nothing, s."""
        return clock() - self._heard_at

    @property
    def owes(self) -> bool:
        """Whether replies are under way."""
        return bool(self._pending)

    @property
    def is_silent(self) -> bool:
        """Whether it owes replies, and says nothing."""
        return bool(self._pending) and self._sock is not None and self.quiet_s() >= SILENCE_S

    def _broken(self, error: OSError | None) -> RequestFailed:
        said = str(error) if error is not None and str(error) else "the connection was closed"
        return RequestFailed("broken", said, self.server.name, maybe_executed=True, transient=True)

    def _torn(self, end: Callable[..., None], *args: Any) -> None:
        self.is_torn = True
        self._engine.call(end, *args)

    def _lost(self, error: OSError | None) -> None:
        self._end(self._broken(error))

    def _end(self, failure: RequestFailed) -> None:
        """All that is under way ends; what was not sent was not executed."""
        if self.ended:
            return
        self.ended, self.is_open = True, False
        self._failure = failure
        self.server.forget_link(self)
        if self._alarm is not None:
            self._engine.forget(self._alarm)
        self._engine.unregister(self._fd)  # which would be told of the end again and again until that is finished
        if self._reading and self._sock is not None and not self._is_tls:
            _shut(self._sock)  # for the reader
        self._finish(clock() + STUCK_S)

    def _finish(self, until: float) -> None:
        """Wait for the thread that writes or reads at this moment, unless it is below a signal handler."""
        if (self._seat or self._reading) and clock() < until:
            self._engine.enter(self)  # whose thread could end before
            self._engine.later(0.001, self._finish, until)
            return
        self._engine.leave(self)
        self._close()
        again = [*snapshot(self._queue), *self._under_way()]
        for request, reply, failure in snapshot(self._ends):
            # Where a signal handler has raised behind the repeat of a script, that is not answered by what came before.
            if failure is None or failure.kind != "NOSCRIPT" or request not in again:
                self._engine.do(self._hand_out, (request, reply, failure, True))
        self._end_all()
        self._deaf()

    def _under_way(self) -> list[Any]:
        """Return what was taken to be written. It goes from the gathered to the pending: those are looked at last."""
        gathered = snapshot(self._gathered)
        return [*snapshot(self._pending), *gathered]

    def _end_all(self) -> None:
        queued = snapshot(self._queue)
        for request in self._under_way():
            request.end(None, self._failure.again(maybe_executed=True))
        for request in queued:
            request.end(None, self._failure.again(maybe_executed=False))

    def _close(self) -> None:
        sock, self._sock = self._sock, None
        connection, self._connection = self._connection, None
        self._out = b""
        self._dial.give_up()
        if sock is not None and self._has_twins:
            _shut(sock)  # event loops that watch it hear of it, and close theirs
        if connection is not None:
            disconnect(connection)

    def _deaf(self) -> None:
        on_deaf, self.on_deaf = self.on_deaf, None
        if on_deaf is not None:
            self._engine.soon(on_deaf, self.is_torn)  # protocols go on by that, and one of them may be what runs now

    def retire(self) -> None:
        """No new requests; closed when it owes nothing any more, or has lingered long enough."""
        if self._retired or self.ended:
            return
        self._retired, self.is_open = True, False
        self.server.forget_link(self)
        self._deaf()
        self.write()
        self._engine.later(LINGER_S, self._lost, None)
        self._engine.soon(self._end_if_done)

    def _end_if_done(self) -> None:
        """End it where it is retired, and owes nothing; no thread is about to write by it, either."""
        busy = self._pending or self._queue or self._gathered or self._out or self._seat or self._reading
        if self._retired and not busy:
            self._lost(None)

    def close(self) -> None:
        """End it: what it still owes is not waited for."""
        self.write()
        self._end(
            RequestFailed("closed", "the client is closed", self.server.name, maybe_executed=True, transient=False)
        )

    def forget(self) -> None:
        """After fork, in the child: the socket is closed by `inherited.let_go`, without a byte on it."""
        self.ended, self.forgotten, self.is_open = True, True, False
        self._sock = self._connection = None
        self._pending.clear()

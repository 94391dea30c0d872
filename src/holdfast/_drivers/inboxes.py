"""The inboxes of a client with threads, one for each server: a thread that waits reads them, for itself and all others.

Laws: no thread waits for messages while none reads; an inbox whose reading was interrupted is never read again, and all
that rely on it look for themselves; waking takes no lock, and never waits.

Theory: of the threads that wait, one is the *reader*: it polls all inboxes, and a pair of sockets by which others wake
it. A message for it gets there without a switch of threads; others are put where their threads wait for a bell. A
reader that leaves rings the one that has waited longest, to which messages tend to come next. While no thread waits,
the watchdog reads, for holders. It is slow to begin with that: threads that wait again soon are not to wake it.

The place of the reader is taken by one atomic operation, as is the right to read an inbox: so any exception may come
up anywhere. A place that was not given back, or whose thread is held up (by a signal handler that takes its time), is
taken over after `STUCK_S`; at once by a handler that waits itself, in the thread that reads. An inbox that is found in
the middle of being read is given up.
"""

from __future__ import annotations

import select
import selectors
import socket
import threading
import typing
from collections import deque
from typing import NamedTuple, TypeAlias

from holdfast._core.agent.reopening import Reopening
from holdfast._core.effects import Reply, Wake
from holdfast._core.failure import RequestFailed
from holdfast._core.holder_notices import HolderNotices
from holdfast._core.replies import wake_of
from holdfast._core.settings import Settings
from holdfast._core.snapshot import snapshot
from holdfast._transport.clock import clock
from holdfast._transport.greenlets import Poll, new_poll
from holdfast._transport.handlers import raised_by_handler
from holdfast._transport.inherited import ours
from holdfast._transport.limits import INBOX_QUIET_S, INBOX_TIMEOUT_S
from holdfast._transport.pack import pack_command
from holdfast._transport.threads import Node, Wire
from holdfast._transport.waits import SLICE_S, Bell, Flag

__all__ = ["STUCK_S", "Inboxes", "Unattended"]

_PING = pack_command(("PING",))

#: A reader looks at the clock every `SLICE_S`. One that has not for this long is held up, s.
STUCK_S = 2.5 * SLICE_S
#: Where no descriptor is left to wake the reader by, it looks so often whether there is something for it, s.
_BLIND_S = 0.05
#: An inbox that was not looked at for this long may have ended meanwhile, which is cheaper to see than to find out, s.
_UNSEEN_S = 1.0
#: A subscription is given this time at least, s.
_LEAST_S = 0.05

#: While threads wait again and again, it is looked so often whether any still does, s.
_ATTENDED_S = 0.05

#: How many sets of descriptors are remembered: usually there is one.
_POLLS_MAX = 4

_Pair: TypeAlias = tuple[socket.socket, socket.socket]


class _Waiter:
    """One token, and what came for it."""

    __slots__ = ("began_at", "bell", "looked_at", "polls", "thread", "wakes")

    def __init__(self) -> None:
        self.wakes: deque[Wake | None] = deque()
        self.bell = Bell()
        #: Whether it may be waiting in a poll, rather than for its bell.
        self.polls = False
        self.thread = 0
        self.began_at = 0.0
        #: When it has last looked at the clock, as a reader.
        self.looked_at = 0.0


class _Inbox:
    """A subscription at one node."""

    __slots__ = ("broken", "heard_at", "is_new", "is_watched", "node", "pong_until", "right", "wire")

    def __init__(self, node: Node, wire: Wire, now: float) -> None:
        self.node = node
        self.wire = wire
        #: Something may have been read together with its confirmation.
        self.is_new = True
        self.broken = False
        #: A selector has it, which has to let it go before it is closed.
        self.is_watched = False
        self.heard_at = now
        #: By when a PING has to be answered; None: none is under way.
        self.pong_until: float | None = None
        #: Taken by the one that reads.
        self.right: list[None] = [None]

    def take(self) -> bool:
        """Claim the inbox for this thread to read, or close; True if it may."""
        try:
            self.right.pop()
        except IndexError:
            return False
        return True

    def put_back(self) -> None:
        """The opposite of `take`. What was given up meanwhile is closed."""
        self.right.append(None)
        if self.broken:
            self.end()

    def end(self) -> None:
        """Close it, if no other thread reads it."""
        if not self.is_watched and self.take():
            self.wire.close()


class _Opening(NamedTuple):
    """A subscription under way: in which thread, and by when it has ended, however it ends."""

    until: float
    thread: int
    done: Flag


class Driver(typing.Protocol):
    """Whose inboxes they are."""

    channel: str
    settings: Settings
    closed: bool
    notices: HolderNotices

    def poke(self) -> None: ...


class Inboxes:
    """Who waits for messages, and where they come in. `over` is set when the client is closed."""

    def __init__(self, driver: Driver, over: Flag) -> None:
        self._driver = driver
        self._over = over
        self._waiters: dict[str, _Waiter] = {}
        #: Those that wait just now, in the order in which they began to.
        self._waiting: dict[_Waiter, None] = {}
        #: The one that reads.
        self._reader: dict[str, _Waiter] = {}
        self._looked_at = self._waited_at = 0.0
        self._open: dict[Node, _Inbox] = {}
        self._opening: dict[Node, _Opening] = {}
        self._reopening: dict[Node, Reopening] = {}
        self._wakers: dict[str, _Pair] = {}
        #: What to poll with, by the descriptors that it knows.
        self._polls: dict[tuple[int, ...], Poll] = {}
        #: Whether the watchdog is to be poked when a thread has waited.
        self.pokes = False

    # ------------------------------------------------------------------ who waits

    def hears_at_once(self, node: Node) -> bool:
        """True if the watchdog watches it: threads that wait read it as well, but may leave it for `_ATTENDED_S`."""
        inbox = self._open.get(node)
        return inbox is not None and inbox.is_watched

    def is_open(self, node: Node) -> bool:
        """True if an inbox is open at that node."""
        inbox = self._open.get(node)
        return inbox is not None and not inbox.broken

    def wires(self) -> list[Wire]:
        """Their connections."""
        return [inbox.wire for inbox in snapshot(self._open.values())]

    def listen(self, token: str, node: Node, request_timeout_s: float) -> None:
        """Keep what comes for that token from now on. Raises `RequestFailed` where the node cannot be subscribed at."""
        self._waiters.setdefault(token, _Waiter())
        if self._over.is_set():
            raise _failed("closed", "the client is closed", node)
        if self._open and not self._reader and clock() - self._looked_at > _UNSEEN_S:
            self.glance()
        if not self.is_open(node):
            self._subscribe(node, request_timeout_s)

    def unlisten(self, token: str) -> None:
        """Drop what still comes for it."""
        if (waiter := self._waiters.pop(token, None)) is not None:
            self._step_back(waiter)  # once more: an exception may have come up in that

    def interrupt(self, token: str) -> None:
        """Have `wait` return None, now or the next time."""
        if (waiter := self._waiters.get(token)) is not None:
            self._put(waiter, None)

    def ask_all(self) -> None:
        """Have all that wait look for themselves."""
        for waiter in snapshot(self._waiters.values()):
            self._put(waiter, Wake(Wake.ASK))

    def wait(self, token: str, timeout_s: float | None) -> Wake | None:
        """Wait for a message for that token (`timeout_s` None: without a limit)."""
        waiter = self._waiters.get(token) or self._waiters.setdefault(token, _Waiter())
        wakes = waiter.wakes
        waiter.began_at = now = clock()
        until = None if timeout_s is None else now + timeout_s
        waiter.thread = threading.get_ident()
        try:
            self._waiting[waiter] = None
            while not wakes:
                left_s = SLICE_S if until is None else until - clock()
                if left_s <= 0:
                    return None
                if self._may_read(waiter):
                    self._reader["reader"] = waiter
                    self._read_all(waiter, left_s if left_s < SLICE_S else SLICE_S)
                else:
                    waiter.bell.wait(lambda: bool(wakes) or self._may_read(waiter), left_s)
            return wakes.popleft()
        finally:
            self._step_back(waiter)

    def _put(self, waiter: _Waiter, wake: Wake | None) -> None:
        waiter.wakes.append(wake)
        self._ring(waiter)

    def _ring(self, waiter: _Waiter) -> None:
        waiter.bell.ring()
        if waiter.polls:
            self._poke()

    # ------------------------------------------------------------------ who reads

    def _may_read(self, waiter: _Waiter) -> bool:
        """True if no other thread reads, or will any more."""
        now = waiter.looked_at = self._waited_at = clock()
        reader = self._reader.setdefault("reader", waiter)
        # In our own thread it waits for us: this is a signal handler.
        return reader is waiter or reader.thread == waiter.thread or now - reader.looked_at > STUCK_S

    def _step_back(self, waiter: _Waiter) -> None:
        """Remove a waiter. Idempotent."""
        self._waiting.pop(waiter, None)
        if self._reader.get("reader") is waiter:
            self._reader.pop("reader", None)
        waiter.polls = False
        while self._waiting and not self._reader:
            try:
                self._ring(next(iter(self._waiting)))
                break
            except (RuntimeError, StopIteration):  # it has changed under us
                pass
        if self.pokes:
            self.pokes = False
            self._driver.poke()

    def _poke(self) -> None:
        waker = self._wakers.get("waker")
        if waker is not None:
            try:
                waker[1].send(b"!")
            except OSError:
                pass  # the buffer is full, so it will wake up; or it has ended

    def _waker(self) -> _Pair | None:
        """Return the pair of sockets that wakes the reader; None when no descriptor is left."""
        waker = self._wakers.get("waker")
        if waker is None:
            try:
                made = socket.socketpair()
            except OSError:
                return None
            for end in made:
                ours(end)
                end.setblocking(False)
            waker = self._wakers.setdefault("waker", made)
            if waker is not made:
                _close(made)
        return waker

    def glance(self) -> bool:
        """Read what is there; False when another thread reads."""
        looks = _Waiter()
        looks.thread = threading.get_ident()
        waited_at = self._waited_at
        try:
            if self._may_read(looks):
                self._waited_at = waited_at
                self._reader["reader"] = looks
                self._read_all(looks, 0.0)
                return True
            return False
        finally:
            self._step_back(looks)

    def waited_since(self, since: float) -> bool:
        """True if a thread waits for messages, or has since then."""
        return bool(self._waiting) or self._waited_at >= since

    def waiting_since(self) -> float | None:
        """When the one began that has waited longest; None: no thread waits."""
        return min((waiter.began_at for waiter in snapshot(self._waiting)), default=None)

    def all(self) -> list[_Inbox]:
        """Return the open inboxes."""
        return [inbox for inbox in snapshot(self._open.values()) if not inbox.broken]

    def _read_all(self, waiter: _Waiter, wait_s: float) -> None:
        """Wait as the reader until something comes, and read it."""
        waker = self._waker()
        waiter.polls = True
        # What was put, or opened, before that is seen now.
        inboxes = snapshot(self._open.values())
        if waiter.wakes:
            return
        by_descriptor: dict[int, _Inbox] = {}
        for inbox in inboxes:
            if inbox.is_new:
                inbox.is_new = False
                self._read(inbox, waiter)
                wait_s = 0.0
            elif waiter.looked_at - inbox.heard_at > INBOX_QUIET_S and inbox.pong_until is None:
                self._ping(inbox)
            if not inbox.broken and (descriptor := inbox.wire.sock.fileno()) >= 0:
                by_descriptor[descriptor] = inbox
        descriptors = (*by_descriptor, -1 if waker is None else waker[0].fileno())
        if descriptors[-1] < 0:
            wait_s = min(wait_s, _BLIND_S)
        # Taken out, since only one thread may poll with it at a time.
        poll = self._polls.pop(descriptors, None) or _poll_for(descriptors)
        ready = poll.poll(wait_s * 1000)
        if len(self._polls) < _POLLS_MAX and type(poll).__module__ == "select":  # gevent's belong to one thread
            self._polls[descriptors] = poll
        self._looked_at = clock()
        if self._reader.get("reader") is not waiter:
            return  # taken over meanwhile
        for descriptor, _ in ready:
            found = by_descriptor.pop(descriptor, None)
            if found is not None:
                self._read(found, waiter)
            elif waker is not None:
                try:
                    waker[0].recv(4096)
                except OSError:
                    pass
        for inbox in by_descriptor.values():
            if inbox.pong_until is not None and inbox.pong_until <= self._looked_at:
                self._give_up(inbox)  # half-open, or as good as that

    def _read(self, inbox: _Inbox, reader: _Waiter) -> None:
        if inbox.broken:
            return
        if not inbox.take():
            self._give_up(inbox)  # in the middle of a message, perhaps
            return
        try:
            inbox.heard_at = clock()
            inbox.pong_until = None
            for reply in inbox.wire.read_ready():
                self._deliver(reply, reader)
        except BaseException as error:
            self._give_up(inbox)
            inbox.put_back()
            if not isinstance(error, (OSError, ValueError)) or raised_by_handler(error):
                raise
        else:
            inbox.put_back()

    def _deliver(self, reply: Reply, reader: _Waiter) -> None:
        """Deliver a message of an inbox. Not waited for: its give-back is under way."""
        found = wake_of(reply, self._driver.channel)
        if found is None:
            return
        token, wake = found
        if wake.kind != Wake.GRANT and wake.is_for_holder:
            self._driver.notices.told(token, wake)
        elif (waiter := self._waiters.get(token)) is not None:
            waiter.wakes.append(wake)
            if waiter is not reader:
                self._ring(waiter)

    def _ping(self, inbox: _Inbox) -> None:
        inbox.pong_until = clock() + INBOX_TIMEOUT_S
        try:
            inbox.wire.sock.send(_PING)
        except (OSError, ValueError) as error:
            if raised_by_handler(error):
                raise
            # Else no sign of life will come.

    # ------------------------------------------------------------------ open and closed

    def _subscribe(self, node: Node, request_timeout_s: float) -> None:
        mine = _Opening(clock() + request_timeout_s, threading.get_ident(), Flag())
        try:
            while (first := self._opening.setdefault(node, mine)) is not mine:  # the others wait for the one
                now = clock()
                if first.thread == mine.thread:
                    break  # it waits for us: this is a signal handler
                if first.until <= now:  # what has ended it may have come before it could say so
                    self._opening[node] = mine
                elif mine.until <= now:
                    raise _failed("silent", "no subscription in time", node)
                else:
                    first.done.wait_s(min(first.until, mine.until) - now)
            if self.is_open(node):
                return
            reopening = self._reopening.setdefault(node, Reopening(self._driver.settings))
            if reopening.pause_s:
                self._over.wait_s(min(reopening.pause_s, mine.until - clock()))
            if self._over.is_set():
                raise _failed("closed", "the client is closed", node)
            wire = node.subscribe(self._driver.channel, max(_LEAST_S, mine.until - clock()))
            reopening.opened(clock())
            if self.is_open(node):
                wire.close()  # a signal handler has subscribed meanwhile
            else:
                self._open[node] = _Inbox(node, wire, clock())
                self._driver.notices.opened(clock())
        finally:
            if self._opening.get(node) is mine:
                self._opening.pop(node, None)
            mine.done.set()
        for reader in snapshot(self._reader.values()):
            self._ring(reader)  # it does not poll this one yet
        self._driver.poke()
        for other in self.all():
            if other.node.closed:
                self._give_up(other)  # it has left its Cluster

    def _give_up(self, inbox: _Inbox) -> None:
        """Give up an inbox that ended, or is not to be trusted: its waiters look, and open it again."""
        node = inbox.node
        if not inbox.broken:
            inbox.broken = True
            if (reopening := self._reopening.get(node)) is not None:
                reopening.broke(clock())
        if node.closed:  # it has left its Cluster
            for each in (self._open, self._opening, self._reopening):
                each.pop(node, None)
        inbox.wire.abort()  # a thread that polls it, or reads, finds the end
        inbox.end()
        self.ask_all()
        if not self._driver.closed:
            self._driver.notices.inbox_lost(clock())

    def drop(self, node: Node) -> None:
        """End the inbox of that node: it may lead to the wrong server."""
        if (inbox := self._open.get(node)) is not None and not inbox.broken:
            self._give_up(inbox)

    def close(self) -> None:
        """End them all: the client has ended."""
        for inbox in snapshot(self._open.values()):
            inbox.is_watched = False
            self._give_up(inbox)
        waker = self._wakers.pop("waker", None)
        if waker is not None:
            _close(waker)

    def forget(self) -> None:
        """After fork, in the child."""
        for inbox in self._open.values():
            inbox.wire.forget()
        for waker in self._wakers.values():
            _close(waker)


class Unattended:
    """Has a selector tell of what comes while no thread waits: holders hear by these inboxes, too.

    For one thread, which reads then. What a waiting thread is there for does not wake it, but for the first time.
    """

    def __init__(self, inboxes: Inboxes) -> None:
        self._inboxes = inboxes
        self._watched: dict[_Inbox, socket.socket] = {}
        self._looked_at = 0.0
        #: Whether threads wait again and again, each for a short time.
        self.is_brisk = False

    def prepare(self, selector: selectors.BaseSelector) -> float | None:
        """Before that selects; returns after how long at most this is called again, s."""
        self.is_brisk = False
        found = self._inboxes.all()
        if not found and not self._watched:
            return None
        looked_at, now = self._looked_at, clock()
        self._looked_at = now
        is_attended = self._inboxes.waited_since(min(looked_at, now - _ATTENDED_S))
        for inbox in [inbox for inbox in self._watched if is_attended or inbox.broken]:
            self._let_go(selector, inbox)
        if is_attended:
            return self._pause_s(now, now - looked_at)
        new = [inbox for inbox in found if inbox not in self._watched]
        for inbox in new:
            self._watch(selector, inbox)
        if new:
            self._inboxes.glance()  # TLS may have read ahead
        # eventlet refuses a second greenlet that waits for a connection.
        return None if len(self._watched) == len(found) else _ATTENDED_S

    def _pause_s(self, now: float, since_last_s: float) -> float | None:
        """Return how long to leave it to those that wait; None: until one of them, which has waited for long, pokes."""
        is_time = self._inboxes.pokes = since_last_s >= _ATTENDED_S
        began_at = self._inboxes.waiting_since()
        self.is_brisk = began_at is None or now - began_at < _ATTENDED_S
        if is_time and not self.is_brisk:
            return None
        self._inboxes.pokes = False
        return _ATTENDED_S

    def _watch(self, selector: selectors.BaseSelector, inbox: _Inbox) -> None:
        if not hasattr(select, "poll"):
            return
        inbox.is_watched = True
        sock = inbox.wire.sock
        try:
            selector.register(sock, selectors.EVENT_READ, self)
            self._watched[inbox] = sock
        except (OSError, ValueError, KeyError):  # closed meanwhile
            inbox.is_watched = False

    def _let_go(self, selector: selectors.BaseSelector, inbox: _Inbox) -> None:
        sock = self._watched.pop(inbox)
        try:
            selector.unregister(sock)
        except (ValueError, KeyError):
            pass
        inbox.is_watched = False
        if inbox.broken:
            inbox.end()

    def look(self, selector: selectors.BaseSelector) -> None:
        """Something has come."""
        if not self._inboxes.glance():
            self.end(selector)

    def end(self, selector: selectors.BaseSelector) -> None:
        """Let all of them go."""
        for inbox in tuple(self._watched):
            self._let_go(selector, inbox)


def _poll_for(descriptors: tuple[int, ...]) -> Poll:
    poll = new_poll()
    for descriptor in descriptors:
        if descriptor >= 0:
            poll.register(descriptor, select.POLLIN)
    return poll


def _close(pair: _Pair) -> None:
    for end in pair:
        end.close()


def _failed(kind: str, said: str, node: Node) -> RequestFailed:
    return RequestFailed(kind, said, node.name, maybe_executed=False, transient=kind == "silent")

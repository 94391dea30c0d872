"""The engine's loop: one daemon thread for each process, which never blocks but in its selector.

Laws: what is submitted is done in order, soon, and once; submitting never raises, takes no lock and starts no thread
that it waits for, so that signal handlers, finalizers and any thread may do it; an exception of one act ends no other.

Theory: acts come from other threads by `call`, and from acts themselves by `soon` and `later`. A turn runs those that
had come when it began, then timers that are due, lets links write what was sent meanwhile in one piece, and looks what
sockets have to say. A thread that submits rings only when the loop is asleep: it says so before it looks for acts a
last time, so that either it sees the act, or the submitter sees it asleep.

Of several threads that are started at a time one becomes the loop's: who puts itself into `_running`. Where none can be
started, those who wait for the loop take turns as its thread (`wait`). Without descriptors the loop sleeps for moments.

Where gevent or eventlet has patched the process, the thread is a greenlet, which waits in a selector of theirs. What
was made before the patch keeps its own engine, in a thread of the system.
"""

from __future__ import annotations

import heapq
import itertools
import os
import posix
import select
import selectors
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, TypeAlias

from holdfast._core.agent.runner import abandon
from holdfast._core.snapshot import snapshot
from holdfast._runtime.clock import clock
from holdfast._runtime.greenlets import who_patched
from holdfast._runtime.handlers import without_handlers
from holdfast._runtime.inherited import ours
from holdfast._runtime.starting import start_thread
from holdfast._runtime.teller import report

#: What a socket is watched for; 0: for nothing but its end, which is told once.
READ, WRITE = 1, 4
_NOTHING = getattr(select, "EPOLLONESHOT", 0) | getattr(select, "EPOLLRDHUP", 0)

#: Timers that were forgotten are thrown out where there are more than this, and than twice those that count.
_TIMERS_MAX = 1_000
#: Acts of other threads that run in one turn, before sockets and timers are looked at again.
_ACTS_MAX = 1_000
#: Nothing waits longer than this for what no wake-up has told of, s; and where nothing can wake it.
_SLEEP_MAX_S = 5.0
_DOZE_S = 0.005
#: How often it is tried to start its thread, s; how long it may take to run; how long one stands in for it at a time.
_START_S = 0.05
_STARTED_S = 5.0
_STAND_IN_S = 0.02


class Link(Protocol):
    """What has a socket that the loop watches."""

    def ready(self, mask: int) -> None:
        """The socket can be read or written."""

    def write(self) -> None:
        """Write what was sent."""


#: An act at a time, as a heap can have it: the time, a number, the act, which is None once it is not to be called, and
#: its arguments.
Timer: TypeAlias = "list[Any]"


class _Bell:
    """Ends the wait of a selector from any thread.

    By `posix`: eventlet puts functions into `os` that let other greenlets run, and allow but one to write.
    """

    def __init__(self) -> None:
        self.fd, self._end = os.pipe()
        for fd in (self.fd, self._end):
            os.set_blocking(fd, False)

    def ring(self) -> None:
        try:
            posix.write(self._end, b"!")
        except OSError:
            pass  # it rings already, or has ended

    def ready(self, _mask: int) -> None:
        """Be silent again after a ring."""
        try:
            posix.read(self.fd, 4096)
        except OSError:
            pass

    def close(self) -> None:
        ends, self.fd, self._end = (self._end, self.fd), -1, -1  # first: a ring from now on reaches nothing else
        for fd in ends:
            os.close(fd)


class _Poller:
    """As `select.epoll`, where there is none. Other threads may change what it watches while it waits.

    Only that of kqueue heeds this at once: `modify` returns whether one that waits has to begin again.
    """

    def __init__(self, selector: Any) -> None:
        self._selector = selector
        ours(selector)
        #: What each descriptor is watched for.
        self.masks: dict[int, int] = {}

    def register(self, fd: int, mask: int) -> None:
        self.masks[fd] = mask
        events = (selectors.EVENT_READ if mask & READ else 0) | (selectors.EVENT_WRITE if mask & WRITE else 0)
        if events:
            self._selector.register(fd, events)

    def unregister(self, fd: int) -> None:
        self.masks.pop(fd, None)
        try:
            self._selector.unregister(fd)
        except (KeyError, ValueError):
            pass

    def modify(self, fd: int, mask: int) -> bool:
        if fd in self.masks:
            self.unregister(fd)
            self.register(fd, mask)
        return not hasattr(select, "kqueue")

    def close(self) -> None:
        self._selector.close()

    def poll(self, timeout_s: float) -> list[tuple[int, int]]:
        found = self._selector.select(timeout_s)
        return [
            (key.fd, (READ if mask & selectors.EVENT_READ else 0) | (WRITE if mask & selectors.EVENT_WRITE else 0))
            for key, mask in found
        ]


class Engine:
    """The loop. Everything but `call`, `wait`, `enter`, `leave` and `watch` is for acts, in its own thread."""

    def __init__(self) -> None:
        self._acts: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._soon: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        #: A heap; and of how many those that are forgotten are thrown out.
        self._timers: list[Timer] = []
        self._full = _TIMERS_MAX
        self._sequence = itertools.count()
        #: What writes at the end of this turn.
        self.flushes: dict[Link, None] = {}
        self._poller: Any = None
        self._links: dict[int, Link | _Bell] = {}
        self._bell: _Bell | None = None
        #: Whether it waits in its selector, so that who submits has to ring.
        self.asleep = False
        self._clients: set[object] = set()
        #: What runs it, by one key: the thread's number in a tuple of its own.
        self._running: dict[str, tuple[int]] = {}
        self._start_at = float("-inf")
        #: Its thread.
        self.thread: threading.Thread | None = None
        #: Why its thread could not be started, if that is so.
        self.trouble: BaseException | None = None
        #: How many turns it has made.
        self.turns = 0
        self.pid = os.getpid()

    # -- any thread -------------------------------------------------------------------------------

    def call(self, act: Callable[..., object], *args: Any) -> None:
        """Do it in the engine's thread, soon."""
        try:
            self._acts.append((act, args))
        finally:  # a signal handler may raise behind the append
            # It says by itself that it has woken up: a signal handler between that and the ring would not ring again.
            if self.asleep and (bell := self._bell) is not None:
                try:
                    bell.ring()
                except BaseException:
                    bell.ring()
                    raise
            if not self._running and self._acts:  # else it was done, and the thread has ended since
                self.start()

    def by_it(self, act: Callable[..., object], *args: Any) -> None:
        """Do it in the engine's thread: now where that is this one."""
        if self.is_mine():
            act(*args)
        else:
            self.call(act, *args)

    def start(self) -> None:
        """Have its thread run, where one can be started; else there is `trouble`."""
        if self._running or clock() < self._start_at:
            return
        start_thread("holdfast", self._run, self._cannot_start)
        self._start_at = clock() + _START_S  # not before: where a handler raises there, the next call starts it

    def _cannot_start(self, error: BaseException) -> None:
        if not self._running:
            self.trouble = error

    def runs(self) -> bool:
        """True if it has a thread, or gets one now; waits until that is known."""
        if self._running and self.trouble is None:
            return True
        self.trouble, self._start_at = None, float("-inf")
        until = clock() + _STARTED_S
        while not (self._running or self.trouble) and clock() < until:
            self.start()
            time.sleep(0.0001)
        return not self.trouble

    def wait(self, bell: Any, timeout_s: float) -> bool:
        """Wait for that bell, which an act will ring. True if it was."""
        if self._running and self.trouble is None and not sys.is_finalizing():
            return bell.acquire(True, timeout_s)  # type: ignore[no-any-return]
        until = clock() + timeout_s
        while not bell.acquire(False):
            wait_s = min(until - clock(), _STAND_IN_S)
            if wait_s <= 0:
                return False
            self.start()
            alone = self.trouble is not None or sys.is_finalizing()
            # What a signal handler raises would leave an act half done.
            stood_in = alone and without_handlers(partial(self._stand_in, wait_s))
            if not stood_in and bell.acquire(True, wait_s):
                return True
        return True

    def _stand_in(self, for_s: float) -> bool:
        """Make a turn instead of the thread; False where another one does."""
        if sys.is_finalizing():
            self._running.clear()  # whatever ran it does not any more
        me = (threading.get_ident(),)
        try:
            if self._running.setdefault("", me) is not me:
                return False
            self._turn(for_s)
            if not self._clients:
                self._turn(0.0)  # the last client may have ended in the one before: no one else does what that left
            if not (self._clients or self._acts or self._soon or self.flushes):
                self._tear_down()
            return True
        finally:
            if self._running.get("") is me:
                del self._running[""]

    def is_mine(self) -> bool:
        """True if the engine's own thread calls this."""
        return self._running.get("") == (threading.get_ident(),)

    def enter(self, client: object) -> None:
        """Add a client that has work for the engine, until it leaves."""
        self._clients.add(client)

    def leave(self, client: object) -> None:
        """Remove a client that has ended."""
        self._clients.discard(client)

    def forget_all(self) -> None:
        """After fork, in the child."""
        self._links.clear()
        for _, args in (*self._acts, *self._soon):
            for protocol in args:
                abandon(protocol)
        self._acts.clear()
        self._running[""] = (0,)  # of the parent: who still submits here is not heard
        self._tear_down()

    # -- its own thread ---------------------------------------------------------------------------

    def soon(self, act: Callable[..., object], *args: Any) -> None:
        """Do it in this turn, behind what was said before."""
        self._soon.append((act, args))

    def later(self, seconds: float, act: Callable[..., object], *args: Any) -> Timer:
        """Do it after that time."""
        timer = [clock() + seconds, next(self._sequence), act, args]
        heapq.heappush(self._timers, timer)
        return timer

    def forget(self, timer: Timer) -> None:
        """Do not do it."""
        timer[2:] = None, ()
        if len(self._timers) > self._full:
            self._timers = [each for each in self._timers if each[2] is not None]
            heapq.heapify(self._timers)
            self._full = 2 * len(self._timers) + _TIMERS_MAX

    def register(self, fd: int, link: Link) -> None:
        """Tell it what the socket can do, once it is watched for that."""
        self._links[fd] = link
        self._poller.register(fd, _NOTHING)

    def watch(self, fd: int, mask: int) -> None:
        """Set what the socket is watched for. Any thread may call this."""
        try:
            begins_again = self._poller.modify(fd, mask or _NOTHING)
        except (OSError, ValueError, AttributeError):
            return  # it was closed meanwhile, or the loop has ended
        if begins_again and self.asleep and (bell := self._bell) is not None:
            bell.ring()

    def unregister(self, fd: int) -> None:
        """Tell nothing of it any more."""
        if self._links.pop(fd, None) is not None:
            try:
                self._poller.unregister(fd)
            except OSError:
                pass

    def _run(self) -> None:
        me = (threading.get_ident(),)
        while self._running.setdefault("", me) is not me:
            if self.trouble is None:
                return
            time.sleep(_DOZE_S)  # one that waits makes a turn
        self.trouble, self.thread = None, threading.current_thread()
        while True:
            try:
                self._turn(_SLEEP_MAX_S)
                while self._clients:
                    self._turn(_SLEEP_MAX_S)
            except BaseException:
                report()
            if not self._clients and self._ends(me):
                return

    def _ends(self, me: tuple[int]) -> bool:
        """Without clients: whether there is nothing to do, so that the thread has ended."""
        if self._acts or self._soon or self.flushes:
            return False
        self._tear_down()
        thread, self.thread = self.thread, None
        self._start_at = float("-inf")
        del self._running[""]  # the next one that submits starts another one
        if self._acts and self._running.setdefault("", me) is me:
            self.thread = thread
            return False
        return True

    def _set_up(self) -> bool:
        """Have what it sleeps with; without descriptors, what needs none, and cannot be woken: False."""
        poller: Any = None
        try:
            poller = select.epoll() if hasattr(select, "epoll") else _Poller(selectors.DefaultSelector())
            bell = _Bell()
        except OSError:
            if poller is not None:
                poller.close()
            if self._poller is None:
                self._poller = _Poller(selectors.PollSelector())
            return False
        poller.register(bell.fd, READ)
        self._links[bell.fd] = bell
        if self._poller is not None:
            for fd, mask in self._poller.masks.items():
                poller.register(fd, mask)
        self._poller, self._bell = poller, bell
        self.later(_SLEEP_MAX_S, self._look_after)
        return True

    def _look_after(self) -> None:
        """Have clients look whether they are still used."""
        for client in snapshot(self._clients):
            self.do(getattr(client, "look_after", int), ())  # of a link that ends there is nothing to look after
        self.later(_SLEEP_MAX_S, self._look_after)

    def _tear_down(self) -> None:
        bell, poller = self._bell, self._poller
        self._bell = self._poller = None
        self._links.clear()
        self._timers.clear()
        if bell is not None:
            bell.close()
        if poller is not None:
            poller.close()

    def _turn(self, most_s: float) -> None:
        """Do what is to be done, and look what sockets have to say; sleep that long at most where there is nothing."""
        self.turns += 1
        if self._bell is None and not self._set_up():
            most_s = min(most_s, _DOZE_S)
        acts, soon, flushes = self._acts, self._soon, self.flushes
        if acts:
            for _ in range(min(len(acts), _ACTS_MAX)):
                self.do(*acts.popleft())
        while soon:
            self.do(*soon.popleft())
        wait_s = self._due(most_s)
        if soon:  # by a timer: what that sets another one for may be due before
            while soon:
                self.do(*soon.popleft())
            wait_s = self._due(most_s)
        while flushes:
            self.do(flushes.popitem()[0].write, ())
        self.asleep = True
        try:
            events = self._poller.poll(wait_s if self._clients and not (acts or soon) else 0)
        finally:
            self.asleep = False
        for fd, mask in events:
            if (watched := self._links.get(fd)) is not None:
                self.do(watched.ready, (mask,))

    def do(self, act: Callable[..., object], args: tuple[Any, ...]) -> None:
        """Do it now. An exception is shown, and ends nothing else."""
        try:
            act(*args)
        except Exception:
            report()

    def _due(self, most_s: float) -> float:
        """Do what is due; until when nothing else is, `most_s` at most."""
        now = clock()
        while timers := self._timers:  # which may be replaced
            at, _, act, args = timer = timers[0]
            if act is not None and at > now:
                return at - now if at - now < most_s else most_s
            heapq.heappop(timers)  # one that is forgotten also before its time, for which nothing need wake up
            if act is not None:
                timer[2:] = None, ()
                self.do(act, args)
        return most_s


_engines: dict[tuple[int, str], Engine] = {}


def forget_engines() -> None:
    """After fork, in the child: the parent's is closed here, without a byte on any socket."""
    for inherited in _engines.values():
        inherited.forget_all()
    _engines.clear()


def engine() -> Engine:
    """The one of this process; another one after monkey patching."""
    key = os.getpid(), who_patched()
    found = _engines.get(key)
    return _engines.setdefault(key, Engine()) if found is None else found

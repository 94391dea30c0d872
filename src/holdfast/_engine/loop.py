"""The engine's loop: one daemon thread for each process, which never blocks but in its selector.

Laws: what is submitted is done in order, soon, and once; submitting is one append and takes no lock, so that signal
handlers, finalizers and any thread may do it; an exception of one act ends no other.

Theory: acts come from other threads by `call`, and from acts themselves by `soon` and `later`. A turn runs those that
had come when it began, then timers that are due, lets links write what was sent meanwhile in one piece, and looks what
sockets have to say. A thread that submits rings only when the loop is asleep: it says so before it looks for acts a
last time, so that either it sees the act, or the submitter sees it asleep.
"""

from __future__ import annotations

import heapq
import itertools
import os
import select
import selectors
import socket
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from holdfast._core.abandon import abandon
from holdfast._runtime.clock import clock
from holdfast._runtime.inherited import ours
from holdfast._runtime.teller import report

__all__ = ["READ", "WRITE", "Engine", "Link", "Timer", "engine", "forget_engines"]

#: What a socket is watched for; 0: for nothing but its end, which is told once.
READ, WRITE = 1, 4
_NOTHING = getattr(select, "EPOLLONESHOT", 0) | getattr(select, "EPOLLRDHUP", 0)

#: Acts of other threads that run in one turn, before sockets and timers are looked at again.
_ACTS_MAX = 1_000
#: Nothing waits longer than this for what no wake-up has told of, s.
_SLEEP_MAX_S = 5.0


class Link(Protocol):
    """What has a socket that the loop watches."""

    def ready(self, mask: int) -> None:
        """The socket can be read or written."""

    def flush(self) -> None:
        """Write what was sent."""


class Timer:
    """An act at a time. `act` is None once it was called, or is not to be."""

    __slots__ = ("act", "args")

    def __init__(self, act: Callable[..., object], args: tuple[Any, ...]) -> None:
        self.act: Callable[..., object] | None = act
        self.args = args


class _Bell:
    """Ends the wait of a selector from any thread."""

    def __init__(self) -> None:
        self._pair: tuple[socket.socket, socket.socket] | None = None
        if hasattr(os, "eventfd"):
            self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        else:
            self._pair = socket.socketpair()
            for end in self._pair:
                ours(end)
                end.setblocking(False)
            self.fd = self._pair[0].fileno()

    def ring(self) -> None:
        try:
            if self._pair is None:
                os.eventfd_write(self.fd, 1)
            else:
                self._pair[1].send(b"!")
        except OSError:
            pass  # it rings already, or has ended

    def silence(self) -> None:
        try:
            if self._pair is None:
                os.eventfd_read(self.fd)
            else:
                self._pair[0].recv(4096)
        except OSError:
            pass

    def close(self) -> None:
        if self._pair is None:
            os.close(self.fd)
        else:
            for end in self._pair:
                end.close()


class _Poller:
    """As `select.epoll`, where there is none. Other threads may change what it watches while it waits."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        ours(self._selector)

    def register(self, fd: int, mask: int) -> None:
        events = (selectors.EVENT_READ if mask & READ else 0) | (selectors.EVENT_WRITE if mask & WRITE else 0)
        if events:
            self._selector.register(fd, events)

    def unregister(self, fd: int) -> None:
        try:
            self._selector.unregister(fd)
        except (KeyError, ValueError):
            pass

    def modify(self, fd: int, mask: int) -> None:
        self.unregister(fd)
        self.register(fd, mask)

    def close(self) -> None:
        self._selector.close()

    def poll(self, timeout_s: float) -> list[tuple[int, int]]:
        found = self._selector.select(timeout_s)
        return [
            (key.fd, (READ if mask & selectors.EVENT_READ else 0) | (WRITE if mask & selectors.EVENT_WRITE else 0))
            for key, mask in found
        ]


class Engine:
    """The loop. Everything but `call`, `enter`, `leave` and `watch` is for acts, in its own thread."""

    def __init__(self) -> None:
        self._acts: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._soon: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._timers: list[tuple[float, int, Timer]] = []
        self._forgotten = 0
        self._sequence = itertools.count()
        self._flushes: list[Link] = []
        self._poller: Any = None
        self._links: dict[int, Link] = {}
        self._bell: _Bell | None = None
        #: Whether it waits in its selector, so that who submits has to ring.
        self.asleep = False
        self._clients: set[object] = set()
        self._starting = threading.RLock()
        self.thread: threading.Thread | None = None
        #: Its thread's, while that runs.
        self.ident = 0
        #: Whose protocol runs.
        self.client: Any = None

    # -- any thread -------------------------------------------------------------------------------

    def call(self, act: Callable[..., object], *args: Any) -> None:
        """Do it in the engine's thread, soon."""
        self._acts.append((act, args))
        if self.asleep:
            self.asleep = False
            bell = self._bell
            if bell is not None:
                bell.ring()
        if self.thread is None and self._acts:  # else it was done, and the thread has ended since
            self.start()

    def start(self) -> None:
        """Have its thread run."""
        with self._starting:
            if self.thread is None:
                self._poller = select.epoll() if hasattr(select, "epoll") else _Poller()
                self._bell = _Bell()
                self._poller.register(self._bell.fd, READ)
                self.thread = threading.Thread(target=self._run, name="holdfast", daemon=True)
                try:
                    self.thread.start()
                except BaseException:
                    self.thread = None
                    raise

    def is_mine(self) -> bool:
        """True if the engine's own thread calls this."""
        return threading.get_ident() == self.ident

    def enter(self, client: object) -> None:
        """Add a client that has work for the engine, until it leaves."""
        self._clients.add(client)

    def leave(self, client: object) -> None:
        """Remove a client that has ended."""
        self._clients.discard(client)
        if self.client is client:
            self.client = None

    def forget_all(self) -> None:
        """After fork, in the child."""
        self._links.clear()
        for _, args in (*self._acts, *self._soon):
            for protocol in args:
                abandon(protocol)
        self._acts.clear()
        if self._bell is not None:
            self._bell.close()
            self._bell = None
        if self._poller is not None:
            self._poller.close()

    # -- its own thread ---------------------------------------------------------------------------

    def soon(self, act: Callable[..., object], *args: Any) -> None:
        """Do it in this turn, behind what was said before."""
        self._soon.append((act, args))

    def later(self, seconds: float, act: Callable[..., object], *args: Any) -> Timer:
        """Do it after that time."""
        timer = Timer(act, args)
        heapq.heappush(self._timers, (clock() + seconds, next(self._sequence), timer))
        return timer

    def forget(self, timer: Timer) -> None:
        """Do not do it."""
        if timer.act is not None:
            timer.act = None
            timer.args = ()
            self._forgotten += 1
            if self._forgotten > 1_000 and self._forgotten > len(self._timers) // 2:
                self._timers = [entry for entry in self._timers if entry[2].act is not None]
                heapq.heapify(self._timers)
                self._forgotten = 0

    def flush(self, link: Link) -> None:
        """Have it write at the end of this turn."""
        self._flushes.append(link)

    def register(self, fd: int, link: Link) -> None:
        """Tell it what the socket can do, once it is watched for that."""
        self._links[fd] = link
        self._poller.register(fd, _NOTHING)

    def watch(self, fd: int, mask: int) -> None:
        """Set what the socket is watched for. Any thread may call this."""
        try:
            self._poller.modify(fd, mask or _NOTHING)
        except (OSError, ValueError, AttributeError):
            pass  # it was closed meanwhile, or the loop has ended

    def unregister(self, fd: int) -> None:
        """Tell nothing of it any more."""
        if self._links.pop(fd, None) is not None:
            try:
                self._poller.unregister(fd)
            except OSError:
                pass

    def _run(self) -> None:
        self.ident = threading.get_ident()
        while True:
            try:
                self._turn()
            except BaseException:
                report()
            if not self._clients and self._ends():
                return

    def _ends(self) -> bool:
        """Without clients: whether there is nothing to do, so that the thread has ended."""
        with self._starting:
            thread, self.thread = self.thread, None  # first: who submits from now on starts another one
            if self._acts or self._soon or self._clients:
                self.thread = thread
                return False
            self.ident = 0
            bell, poller = self._bell, self._poller
            self._bell = self._poller = None
            self._links.clear()
            self._timers.clear()
            if bell is not None:
                bell.close()
            poller.close()
            return True

    def _turn(self) -> None:
        acts, soon = self._acts, self._soon
        for _ in range(min(len(acts), _ACTS_MAX)):
            act, args = acts.popleft()
            self._do(act, args)
        while soon:
            act, args = soon.popleft()
            self._do(act, args)
        wait_s = self._due()
        while soon:
            act, args = soon.popleft()
            self._do(act, args)
        flushes = self._flushes
        if flushes:
            self._flushes = []
            for link in flushes:
                self._do(link.flush, ())
        self._look(wait_s)

    def _do(self, act: Callable[..., object], args: tuple[Any, ...]) -> None:
        try:
            act(*args)
        except Exception:
            report()

    def _due(self) -> float:
        """Do what is due; until when nothing else is, s."""
        timers = self._timers
        if not timers:
            return _SLEEP_MAX_S
        now = clock()
        while timers and timers[0][0] <= now:
            timer = heapq.heappop(timers)[2]
            act, args = timer.act, timer.args
            if act is None:
                self._forgotten -= 1
                continue
            timer.act, timer.args = None, ()
            self._do(act, args)
            timers = self._timers  # it may have been replaced
        return min(_SLEEP_MAX_S, timers[0][0] - now) if timers else _SLEEP_MAX_S

    def _look(self, wait_s: float) -> None:
        bell, links = self._bell, self._links
        assert bell is not None
        if self._soon or self._flushes or not self._clients:
            wait_s = 0.0
        self.asleep = True
        if self._acts:
            self.asleep = False
            wait_s = 0.0
        try:
            events = self._poller.poll(wait_s if wait_s > 0 else 0)
        finally:
            self.asleep = False
        for fd, mask in events:
            if fd == bell.fd:
                bell.silence()
            elif (link := links.get(fd)) is not None:
                self._do(link.ready, (mask,))


_engines: dict[int, Engine] = {}


def forget_engines() -> None:
    """After fork, in the child: the parent's is closed here, without a byte on any socket."""
    for inherited in _engines.values():
        inherited.forget_all()
    _engines.clear()


def engine() -> Engine:
    """The one of this process."""
    pid = os.getpid()
    found = _engines.get(pid)
    return _engines.setdefault(pid, Engine()) if found is None else found

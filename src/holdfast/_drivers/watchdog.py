"""The watchdog: the thread that keeps the times of leases, and hears what concerns them.

Law: it never waits for a server, so that a loss is announced at its deadline even while every server hangs.

Theory: it sleeps in a selector until something can be read, or until the schedule has something due; a thread that
brings a time forward wakes it through a pair of sockets. What takes a server's time (renewals, give-backs) it hands on.
"""

from __future__ import annotations

import selectors
import socket
import time
import typing
from collections.abc import Sequence
from typing import Any

from holdfast._core.effects import Protocol
from holdfast._core.failure import RequestFailed
from holdfast._core.holder_notices import HolderNotices
from holdfast._core.record import LeaseRecord
from holdfast._core.schedule import Schedule
from holdfast._drivers.inboxes import Inboxes, Unattended
from holdfast._drivers.many import GRACE_S
from holdfast._drivers.unconfirmed import LOOK_S, Unconfirmed
from holdfast._drivers.worker import Worker
from holdfast._transport.clock import clock
from holdfast._transport.inherited import ours
from holdfast._transport.pending import PendingReply
from holdfast.errors import CannotStartThread

__all__ = ["Watchdog"]

#: Where no thread could be started, it is tried again after this, s.
_START_AGAIN_S = 0.1
#: How often the watchdog looks whether connections have owed a reply for too long, s.
_OWED_LOOK_S = 1.0
#: How long after its last action the watchdog checks again by itself, s: usually below the time to the first renewal.
#: Less where what woke it left less, within these bounds.
_LINGER_S = 1.0
_LINGER_MIN_S = 0.01
#: Where the watchdog has no descriptor to wait with, it looks at the times this often, s.
_BLIND_S = 0.05


class Watched(typing.Protocol):
    """What it looks after: the driver."""

    lock: Any
    schedule: Schedule
    releasing: Unconfirmed
    notices: HolderNotices
    inboxes: Inboxes

    def sweep(self) -> None: ...
    def starved(self) -> bool: ...
    def renew(self, holds: Sequence[LeaseRecord]) -> None: ...
    def spawn(self, protocol: Protocol[None]) -> None: ...
    def watchdog_ended(self) -> None: ...


class Watchdog(Worker):
    """Keeps the times of the schedule; reads what connections owe, and inboxes while no thread waits."""

    name = "holdfast-watchdog"

    def __init__(self, driver: Watched) -> None:
        super().__init__()
        self.driver = driver
        self._waker: tuple[socket.socket, socket.socket] | None = None
        self._sleeps_until = 0.0
        self._lingers = True
        self._linger_s = _LINGER_S
        self._new_owed: list[PendingReply] = []
        self._owed: set[PendingReply] = set()

    def no_later_than(self, at: float) -> None:
        """Something is due at `at`."""
        if self.thread is None:
            self.start()
        elif at < self._sleeps_until:
            # Leases that follow each other, and end before anything is due, need not wake it each.
            self._linger_s = min(max(at - clock(), _LINGER_MIN_S), _LINGER_S)
            self.poke()

    def adopt(self, asked: Sequence[PendingReply]) -> None:
        """Read what these connections owe, when it comes."""
        for one in asked:
            one.node.owed += 1
        self._new_owed.extend(asked)
        if self.thread is None:
            try:
                self.start()
            except CannotStartThread:
                pass  # read by the one that is started next; what was asked was answered well enough
        self.poke()

    def disown(self) -> None:
        """Close what still owes something, when no thread was there to read it."""
        if self.thread is None:
            while self._new_owed:
                self._new_owed.pop().wire.close()

    def poke(self) -> None:
        """Let it look again now."""
        waker = self._waker
        if waker is not None:
            try:
                waker[1].send(b"!")
            except OSError:
                pass  # the buffer is full, so it will wake up; or it has ended

    def stop(self) -> None:
        """End the thread."""
        self._stopping = True
        self.poke()

    def forget(self) -> None:
        """After fork, in the child."""
        if self._waker is not None:
            for end in self._waker:
                end.close()
        for asked in (*self._owed, *self._new_owed):
            asked.wire.forget()

    def main(self) -> None:
        try:
            while not self._stopping:
                try:
                    selector, waker = _open_eyes()
                except OSError:
                    # No descriptor is left: the times are kept all the same, and what comes is read when there is one.
                    self._blind_turn()
                    continue
                self._look(selector, waker)
        except BaseException:
            self.driver.watchdog_ended()
            raise
        finally:
            for asked in (*self._owed, *self._new_owed):
                asked.wire.close()

    def _look(self, selector: selectors.BaseSelector, waker: tuple[socket.socket, socket.socket]) -> None:
        self._waker = waker  # news from before there was a waker is looked at in the first turn
        unattended = Unattended(self.driver.inboxes)
        try:
            while not self._stopping:
                self._round(selector, waker[0], unattended)
        finally:
            unattended.end(selector)
            selector.close()
            for end in waker:
                end.close()

    def _blind_turn(self) -> None:
        driver = self.driver
        driver.sweep()
        driver.starved()
        with driver.lock:
            due = driver.schedule.due(clock())
        if due:
            driver.renew(due)
        driver.inboxes.glance()
        time.sleep(_BLIND_S)

    def _round(self, selector: selectors.BaseSelector, waker: socket.socket, unattended: Unattended) -> None:
        driver = self.driver
        driver.sweep()
        starved = driver.starved()
        self._adopt_new(selector)
        pause_s = unattended.prepare(selector)
        # The promise about when we look next is made before looking at the schedule, so that nothing falls between.
        self._sleeps_until = float("inf")
        with driver.lock:
            next_at = driver.schedule.next_at()
        wait_s = None
        if next_at is not None:
            self._sleeps_until = next_at
            wait_s = max(0.0, next_at - clock())
        elif self._lingers:
            # Where there was a lease there will be another one, and its coming need not wake us.
            wait_s = self._linger_s
            self._sleeps_until = clock() + wait_s
        if self._owed:
            wait_s = _OWED_LOOK_S if wait_s is None else min(wait_s, _OWED_LOOK_S)
        if driver.releasing:
            wait_s = LOOK_S if wait_s is None else min(wait_s, LOOK_S)
            self._sleeps_until = min(self._sleeps_until, clock() + LOOK_S)
        if starved:
            wait_s = _START_AGAIN_S if wait_s is None else min(wait_s, _START_AGAIN_S)
        if pause_s is not None:
            wait_s = pause_s if wait_s is None else min(wait_s, pause_s)
        ready = selector.select(wait_s)
        # While locks are fought over, the next lease comes soon, and may be due as soon.
        self._lingers = bool(ready) or next_at is not None or unattended.is_brisk
        for key, _ in ready:
            if isinstance(key.data, PendingReply):
                self._read_owed(selector, key.data)
            elif key.data is unattended:
                unattended.look(selector)
            else:
                try:
                    waker.recv(4096)
                except OSError:
                    pass
        self._sleeps_until = 0.0
        if self._owed:
            now = clock()
            for asked in [asked for asked in self._owed if asked.until <= now]:
                self._disowned(selector, asked)
                asked.wire.close()
                if asked.failed is not None:
                    said = "no answer in time"
                    asked.failed(RequestFailed("silent", said, asked.node.name, maybe_executed=True, transient=True))
        if next_at is not None and clock() >= next_at:
            with driver.lock:
                due = driver.schedule.due(clock())
            if due:
                driver.renew(due)
            driver.notices.look(clock())

    def _adopt_new(self, selector: selectors.BaseSelector) -> None:
        while self._new_owed:
            asked = self._new_owed.pop()
            self._owed.add(asked)
            try:
                selector.register(asked.wire.sock, selectors.EVENT_READ, asked)
            except ValueError:
                pass  # closed meanwhile, as reading it finds
            self._read_owed(selector, asked)

    def _read_owed(self, selector: selectors.BaseSelector, asked: PendingReply) -> None:
        sock = asked.wire.sock
        try:
            answer = asked.read()
        except ValueError:  # closed under us
            answer = RequestFailed("broken", "closed", asked.node.name, maybe_executed=True, transient=True)
        if answer is None:
            return
        self._disowned(selector, asked, sock)
        if isinstance(answer, RequestFailed):
            if asked.failed is not None:
                asked.failed(answer)
        else:
            if clock() - asked.sent_at < GRACE_S:
                asked.node.slow = False
            if asked.late is not None:
                protocol = asked.late(asked.index, answer)
                if protocol is not None:
                    self.driver.spawn(protocol)

    def _disowned(
        self, selector: selectors.BaseSelector, asked: PendingReply, sock: socket.socket | None = None
    ) -> None:
        self._owed.discard(asked)
        asked.node.owed -= 1
        try:
            selector.unregister(asked.wire.sock if sock is None else sock)
        except (KeyError, ValueError):
            pass


def _open_eyes() -> tuple[selectors.BaseSelector, tuple[socket.socket, socket.socket]]:
    """Open the watchdog's selector, and the sockets that wake it. OSError when no descriptor is left."""
    waker = socket.socketpair()
    try:
        selector = selectors.DefaultSelector()
    except OSError:
        for end in waker:
            end.close()
        raise
    for end in waker:
        ours(end)
        end.setblocking(False)
    ours(selector)
    selector.register(waker[0], selectors.EVENT_READ, None)
    return selector, waker

"""The background: runs what was spawned (give-backs, releases), without a caller that waits for it.

Law: what is added is run, or handed over when the client ends; a server that hangs holds up only what it is asked for.
"""

from __future__ import annotations

import heapq
import typing
from collections.abc import Sequence
from typing import Any

from holdfast._core.abandon import abandon
from holdfast._core.effects import Call, Command, Effect, Now, Protocol, Random, Sleep, Spawn, Unlisten
from holdfast._core.failure import RequestFailed
from holdfast._core.snapshot import snapshot
from holdfast._drivers.teller import report
from holdfast._drivers.worker import Worker
from holdfast._transport.clock import clock
from holdfast._transport.port import Topology
from holdfast._transport.threads import Node
from holdfast._transport.waits import Mailbox, Pulse
from holdfast.errors import CannotStartThread

__all__ = ["Background"]

#: How many threads run what was spawned, beyond which servers share them; and how many of them for several servers.
_LANES_MAX = 64
_LANES_FOR_MANY = 8
#: Effects that wait for no server.
_AT_ONCE = frozenset({Now, Random, Spawn, Unlisten, Sleep})
#: A thread that has had nothing to do for this long ends, s.
_IDLE_S = 10.0


class Performs(typing.Protocol):
    """What it runs protocols with: the driver."""

    topology: Topology[Node]
    undone: dict[int, Protocol[None]]

    def perform(self, effect: Effect[Any]) -> Any: ...
    def owner_of(self, key: str | None, index: int | None) -> Node: ...
    def in_watchdog(self) -> bool: ...
    def run_out(self, chores: Sequence[tuple[Protocol[None], Effect[Any] | None]]) -> None: ...


class Background(Worker):
    """Spawned protocols, taking turns on one thread; where there are several servers, on one for each.

    The thread of the `root` then waits for no server: what a protocol asks of one is done in that server's *lane*, so
    that a server that hangs holds up nothing but what it is asked for.
    """

    name = "holdfast-background"

    def __init__(self, driver: Performs, root: Background | None = None) -> None:
        super().__init__()
        self.driver = driver
        self._root = self if root is None else root
        self._over = False
        self._lanes: dict[object, Background] = {}
        self._turn = 0
        self._inbox: Mailbox[tuple[Protocol[None], Effect[Any] | None] | None] = Mailbox()
        self._unfinished: dict[int, Protocol[None]] = {}
        self._settled = Pulse()
        # The thread's own:
        self._waiting: list[tuple[float, int, Protocol[None]]] = []
        self._sequence = 0

    def add(self, protocol: Protocol[None]) -> None:
        """Run it soon; where no thread can be, or after the end, in this one."""
        self._unfinished[id(protocol)] = protocol
        self._put(protocol, None)

    def _put(self, protocol: Protocol[None], effect: Effect[Any] | None) -> None:
        self._inbox.put((protocol, effect))
        by_us = False
        try:
            self.start()
        except CannotStartThread:
            by_us = not self.driver.in_watchdog()  # else it is tried again
        if by_us or self._root._over:
            self.driver.run_out(self._take())

    def has_work(self) -> bool:
        return len(self._inbox) > 0 and not self._stopping

    def starved(self) -> bool:
        """True if something waits for a thread that could not be started."""
        if self.thread is None and self.has_work():
            try:
                self.start()
            except CannotStartThread:
                return True
        return False

    def settle(self, request_timeout_s: float) -> bool:
        """Wait until nothing is left."""
        return self._settled.wait(lambda: not self._unfinished, request_timeout_s)

    @property
    def unfinished(self) -> bool:
        """Whether a protocol has neither ended nor been taken over."""
        return bool(self._unfinished)

    def all(self) -> list[Background]:
        """Return this one and its lanes."""
        return [self, *snapshot(self._lanes.values())]

    def hand_over(self, last: bool) -> list[tuple[Protocol[None], Effect[Any] | None]]:
        """End the threads after their present steps; what is left is the caller's to do, and what is added later.

        After the `last` time it is done by the thread that adds it.
        """
        self._over = self._over or last
        taken = []
        for one in self.all():
            one._stopping = True
            taken += one._take()
            if one.thread is not None:
                one._inbox.put(None)  # it waits, and has nothing to wait for any more
        return taken

    def _take(self) -> list[tuple[Protocol[None], Effect[Any] | None]]:
        """Take what has not been started, and from a thread that is gone also what sleeps."""
        taken: list[tuple[Protocol[None], Effect[Any] | None]] = []
        while len(self._inbox):
            given = self._inbox.get(0.0)
            if given is not None:
                self.driver.undone[id(given[0])] = given[0]
                taken.append(given)
        while self._waiting and (self.thread is None or not self.thread.is_alive()):
            protocol = self._waiting.pop()[2]
            self.driver.undone[id(protocol)] = protocol
            taken.append((protocol, None))
        for protocol, _ in taken:
            self._root._unfinished.pop(id(protocol), None)
        self._root._settled.ring()
        return taken

    def _done(self, protocol: Protocol[None]) -> None:
        self._root._unfinished.pop(id(protocol), None)
        self._root._settled.ring()

    def main(self) -> None:
        waiting = self._waiting
        while not self._stopping:
            wait_s = max(0.0, waiting[0][0] - clock()) if waiting else _IDLE_S
            given = self._inbox.get(wait_s)
            if given is not None:
                self._step(*given)
            elif waiting:
                if waiting[0][0] <= clock():
                    self._step(heapq.heappop(waiting)[2])
            elif wait_s:
                return  # nothing to do for a while: the next one starts a thread again
        while waiting and self._root._over:  # this thread hung for longer than its client's end waited for it
            abandon(waiting.pop()[2])

    def _lane_of(self, effect: Effect[Any]) -> Background:
        """Return the lane for an effect that may have to wait for a server."""
        topology, root = self.driver.topology, self._root
        if len(topology.nodes()) < 2 or type(effect) in _AT_ONCE:
            return self
        place: object
        if isinstance(effect, Call):
            place = self.driver.owner_of(effect.keys[0], effect.node)
        elif isinstance(effect, Command):
            place = self.driver.owner_of(effect.key, effect.node)
        else:  # for several servers: they are asked at once, and a few of these may wait at a time
            root._turn += 1
            place = root._turn % _LANES_FOR_MANY
        lane = root._lanes.get(place)
        if lane is None:
            if len(root._lanes) >= _LANES_MAX:
                return tuple(root._lanes.values())[hash(place) % _LANES_MAX]
            lane = root._lanes.setdefault(place, Background(self.driver, root))
        return lane

    def _handed_over(self, protocol: Protocol[None], effect: Effect[Any]) -> bool:
        """True if another lane goes on with it."""
        lane = self._lane_of(effect)
        if lane is self:
            return False
        try:
            lane.start()
        except RuntimeError:  # no more threads
            return False
        lane._put(protocol, effect)
        return True

    def _step(self, protocol: Protocol[None], effect: Effect[Any] | None = None) -> None:
        """Drive it, from an effect that is for this lane, until it sleeps, ends, or turns to another server."""
        driver = self.driver
        result: Any = None
        error: Exception | None = None
        try:
            while True:
                if effect is None:
                    effect = protocol.send(result) if error is None else protocol.throw(error)
                    if self._handed_over(protocol, effect):
                        return
                result = error = None
                if isinstance(effect, Sleep):
                    self._sequence += 1
                    heapq.heappush(self._waiting, (clock() + effect.seconds, self._sequence, protocol))
                    return
                try:
                    result = driver.perform(effect)
                except Exception as failure:
                    error = failure
                effect = None
        except (StopIteration, RequestFailed):
            pass
        except Exception:
            report()
        self._done(protocol)

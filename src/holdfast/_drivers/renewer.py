"""Renewals with threads: those that are due go to the renewer of their server, which asks in pipelines.

Law: the code that finds them due waits for no server; a server that hangs holds up the renewals of no other.

Theory: the watchdog starts each renewal's protocol, up to its first request, and hands it to a thread that belongs to
the server that is to be asked (or to the same set of servers). That thread sends the requests of a batch at once, and
tells the schedule what came of them.
"""

from __future__ import annotations

import typing
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from holdfast._core.abandon import abandon
from holdfast._core.batch import Batch, batches
from holdfast._core.effects import Call, CallMany, Command, Effect, Protocol
from holdfast._core.failure import RequestFailed
from holdfast._core.record import LeaseRecord
from holdfast._core.schedule import Schedule
from holdfast._drivers.observing import Troubles
from holdfast._drivers.teller import report
from holdfast._drivers.worker import Worker
from holdfast._transport.clock import clock
from holdfast._transport.port import Topology
from holdfast._transport.threads import Node
from holdfast._transport.waits import Mailbox
from holdfast.errors import CannotStartThread

__all__ = ["Renewals"]

#: What to renew, for how many ms, by which protocol, which waits for that effect.
Renewal: TypeAlias = "tuple[LeaseRecord, int, Protocol[int], Effect[Any]]"

#: Threads for renewals that ask several servers each: beyond, they share them.
_RENEWERS_MAX = 64


class Driver(typing.Protocol):
    """What it renews for."""

    lock: Any
    schedule: Schedule
    topology: Topology[Node]
    can_ask: bool
    troubles: Troubles

    def chance(self) -> float: ...
    def no_later_than(self, at: float) -> None: ...
    def owner_of(self, key: str | None, index: int | None) -> Node: ...
    def perform(self, effect: Effect[Any]) -> Any: ...
    def drive(self, protocol: Protocol[int], effect: Effect[Any], cancel: None) -> int: ...
    def follow(self, node: Node, failure: RequestFailed, call: Call, until: float) -> Any: ...
    def spawn_release(self, hold: LeaseRecord) -> None: ...


class Renewals:
    """Starts what is due, and notes what came of it."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._renewers: dict[object, _Renewer] = {}

    def __len__(self) -> int:
        return len(self._renewers)

    def start(self, holds: Sequence[LeaseRecord]) -> None:
        """Start renewing what is due; does not wait."""
        now = clock()
        by_place: dict[object, list[Renewal]] = {}
        known: dict[object, object] = {}
        for hold in holds:
            if not hold.alive:
                continue  # released just now
            ttl_ms = hold.renewal_ttl_ms(now)
            assert ttl_ms is not None and hold.renews
            protocol = hold.renew(ttl_ms)
            try:
                effect = protocol.send(None)
            except RequestFailed:
                self._note([(hold, ttl_ms, None)], now)
                continue
            place = known.get(effect.node) if type(effect) is Call else None
            if place is None:
                place = self._place_of(effect)
                if type(effect) is Call and self._driver.can_ask:  # where keys stay where they are
                    known[effect.node] = place
            by_place.setdefault(place, []).append((hold, ttl_ms, protocol, effect))
        for place, jobs in by_place.items():
            renewer = self._renewers.get(place)
            if renewer is None:
                node = place if isinstance(place, Node) else self._driver.topology.nodes()[0]
                renewer = self._renewers[place] = _Renewer(self, node)
            try:
                renewer.add(jobs)
            except CannotStartThread:
                self.failed(jobs)  # tried again, like after trouble

    def _place_of(self, effect: Effect[Any]) -> object:
        """Which renewer does it: that of its server, or of the same servers."""
        driver = self._driver
        if isinstance(effect, Call):
            return driver.owner_of(effect.keys[0], effect.node)
        if isinstance(effect, Command):
            return driver.owner_of(effect.key, effect.node)
        if not isinstance(effect, CallMany):
            return driver.topology.nodes()[0]
        servers = frozenset(driver.owner_of(call.keys[0], call.node) for call in effect.calls)
        if servers in self._renewers or len(self._renewers) < _RENEWERS_MAX:
            return servers
        return hash(servers) % 8

    def renew(self, node: Node, jobs: list[Renewal]) -> None:
        """Renew in one pipeline, many with one request; in a renewer's thread."""
        sent_at = clock()
        goes_on = [job for job in jobs if not isinstance(job[3], Call)]
        asked = batches([job[3] for job in jobs], not self._driver.can_ask)
        while asked:
            alone: list[Batch] = []
            answered: list[tuple[Renewal, Any]] = []
            for batch, reply in self._ask(node, asked, sent_at):
                for position, answer in zip(batch.members, batch.answers(reply), strict=True):
                    effect = jobs[position][3]
                    if answer is None and isinstance(effect, Call):
                        alone.append(Batch(effect, [position]))
                    else:
                        answered.append((jobs[position], answer))
            goes_on += self._tell(answered, sent_at)
            asked = alone
        for hold, ttl_ms, protocol, effect in goes_on:
            held: int | None = None
            try:
                held = self._driver.drive(protocol, effect, None)
            except RequestFailed:
                pass
            self._note([(hold, ttl_ms, held)], sent_at)

    def _ask(self, node: Node, asked: Sequence[Batch], sent_at: float) -> Iterator[tuple[Batch, Any]]:
        """Each with its reply, wherever that is to be had."""
        replies = node.call_all([batch.call for batch in asked], min(batch.call.request_timeout_s for batch in asked))
        for batch, reply in zip(asked, replies, strict=True):
            if isinstance(reply, RequestFailed):
                try:
                    reply = self._driver.follow(node, reply, batch.call, sent_at + batch.call.request_timeout_s)
                except RequestFailed as failure:
                    self._driver.troubles.saw(failure)
                    reply = failure
            elif self._driver.troubles:
                self._driver.troubles.passed(node.name)
            yield batch, reply

    def _tell(self, answered: Sequence[tuple[Renewal, Any]], sent_at: float) -> list[Renewal]:
        """Hand protocols their first answers, and note what came of it; returns those that go on."""
        ended: list[tuple[LeaseRecord, int, int | None]] = []
        goes_on: list[Renewal] = []
        for (hold, ttl_ms, protocol, effect), answer in answered:
            try:
                effect = protocol.throw(answer) if isinstance(answer, RequestFailed) else protocol.send(answer)
            except StopIteration as end:
                ended.append((hold, ttl_ms, end.value))
            except RequestFailed:
                ended.append((hold, ttl_ms, None))
            else:
                goes_on.append((hold, ttl_ms, protocol, effect))
        self._note(ended, sent_at)
        return goes_on

    def _note(self, ended: Sequence[tuple[LeaseRecord, int, int | None]], sent_at: float) -> None:
        """Renewals for that many ms have ended, with their results; None: in trouble."""
        driver = self._driver
        next_at = float("inf")
        left_over: list[LeaseRecord] = []
        with driver.lock:
            schedule, now = driver.schedule, clock()
            for hold, ttl_ms, held in ended:
                if held is None:
                    schedule.failed(hold, now, driver.chance(), sent_at)
                elif not schedule.answered(hold, held, ttl_ms, sent_at, now, driver.chance()):
                    if held and hold.is_left_over:
                        left_over.append(hold)
                    continue
                next_at = min(next_at, hold.next_at)
        driver.no_later_than(next_at)
        for hold in left_over:
            driver.spawn_release(hold)  # extended, but too late to be trusted

    def failed(self, jobs: list[Renewal]) -> None:
        """Something else than trouble ended them: tried again, like after trouble."""
        driver = self._driver
        for hold, _, protocol, _ in jobs:
            abandon(protocol)
            with driver.lock:
                if not driver.schedule.is_asked(hold):
                    continue  # it was answered before
                driver.schedule.failed(hold, clock(), driver.chance())
                at = hold.next_at
            driver.no_later_than(at)

    def stop(self) -> None:
        """End the threads."""
        for renewer in tuple(self._renewers.values()):
            renewer.stop()

    def join(self, until: float) -> None:
        """Wait for their end, but not longer than that."""
        for renewer in tuple(self._renewers.values()):
            renewer.join(until)


class _Renewer(Worker):
    """Renews at one node; a server that hangs holds up nothing else."""

    name = "holdfast-renewer"

    def __init__(self, renewals: Renewals, node: Node) -> None:
        super().__init__()
        self._renewals = renewals
        self._node = node
        self._jobs: Mailbox[list[Renewal] | None] = Mailbox()

    def add(self, jobs: list[Renewal]) -> None:
        """Renew these soon."""
        self.start()
        self._jobs.put(jobs)
        self.start()  # it may have ended between

    def stop(self) -> None:
        """End the thread."""
        self._stopping = True
        self._jobs.put(None)

    def main(self) -> None:
        while not self._stopping:
            jobs = self._jobs.get()
            if jobs is None:
                continue
            try:
                self._renewals.renew(self._node, jobs)
            except Exception:
                self._renewals.failed(jobs)
                report()

"""Parties that take several things one after the other, in any order, and look for deadlocks while they wait.

Laws: who is told of a deadlock was in one at one moment, and that moment came after the last party that was told before
had left its queue; none is told before it has left its own; every wait ends, since of each deadlock one party is told.

Theory: whatever a server executes changes who holds and who waits; after each such step the world writes that down.
When a party is told, what was written down says whether it was so: `stuck` knows nothing of the code that it checks,
and asks the other way round, who may come to an end. Not among the `primitives`, as it needs worlds of its own.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import NamedTuple, TypeAlias

from holdfast._core.describe import Witness
from holdfast._core.detecting import Check, Detector, Found
from holdfast._core.effects import Spawn
from holdfast._core.failure import RequestFailed
from holdfast._core.keys import LockKeys, lock_keys
from holdfast._core.kinds import SEMAPHORE
from holdfast._core.mutex import LockAcquisition
from holdfast._core.record import LeaseRecord
from holdfast._core.rwlock import RWAcquisition
from holdfast._core.semaphore import SemaphoreAcquisition
from holdfast._core.tokens import MARK, make_token, owner_of
from holdfast._core.waiting import Acquisition, Grant, wait_for
from sim.driver import Cancelled, Process, Work
from sim.network import Node, Request
from sim.sessions import quietly
from sim.world import Primitive, World

__all__ = ["Deadlocks"]

#: Permits of the semaphore.
_PERMITS = 2
Party: TypeAlias = tuple[str, str]


class _Told(Exception):
    """A party is to give up."""

    def __init__(self, found: Found) -> None:
        self.found = found


class _Thing(NamedTuple):
    name: str
    kind: str
    keys: LockKeys


class _Place:
    """Of a party that waits in its client for a lease to be handed on."""

    def __init__(self, party: Party) -> None:
        self.party = party
        self.record: LeaseRecord | None = None


class _Moment(NamedTuple):
    """The holders and the waiters from one time on: by name, (holders, queue) in order. One that has died
    waits for as long as the server has not noticed.
    """

    since: float
    seen: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...]


def party_of(token: str) -> Party:
    client, owner, _ = token.split(":")
    return client, owner.rpartition(".")[2]


def _weight(token: str) -> int:
    mark = token.split(":")[1].partition(".")[0]
    return int(mark) if mark.isdigit() and "." in token.split(":")[1] else 1


def _reads(token: str) -> bool:
    return ":r." in token


def stuck(moment: _Moment, waiting: Collection[str] | None) -> set[Party]:
    """Return the parties that can never end, even if all others do. `waiting`: the tokens that count; None: all."""
    queues = {name: [token for token in queue if waiting is None or token in waiting] for name, _, queue in moment.seen}
    waits = {token: party_of(token) for queue in queues.values() for token in queue}
    ending = {party_of(token) for _, holders, _ in moment.seen for token in holders} - {*waits.values()}
    while True:
        more = set()
        for name, holders, _ in moment.seen:
            left = [token for token in holders if party_of(token) not in ending]
            before: list[str] = []
            for token in queues[name]:
                if all(party_of(each) in ending for each in before if not (_reads(each) and _reads(token))):
                    free = _PERMITS - sum(map(_weight, left)) >= _weight(token) if name[0] == "s" else not left
                    if free or (_reads(token) and all(map(_reads, left))):
                        more.add(token)
                before.append(token)
        can = {party for party in waits.values() if all(token in more for token in waits if waits[token] == party)}
        if can <= ending:
            return {*waits.values()} - ending
        ending |= can


class Deadlocks(Primitive):
    """Workload and invariants of deadlocks."""

    name = "deadlocks"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.things = [_Thing(f"l{number}", "lock", lock_keys("holdfast", f"l{number}")) for number in range(3)]
        self.things.append(_Thing("r", "rwlock", lock_keys("holdfast", "r")))
        self.things.append(_Thing("s", "semaphore", lock_keys("holdfast", "s").of(SEMAPHORE)))
        self.detectors: dict[str, Detector] = {}
        self.moments: list[_Moment] = []
        #: Tokens of acquires that have begun and not ended, and what that was at each moment.
        self.waiting: frozenset[str] = frozenset()
        self.asked: list[frozenset[str]] = []
        self.dead: set[str] = set()
        #: What parties hold by tokens that do not tell: of leases that a client hands on.
        self.marked: dict[Party, list[str]] = {}
        #: The waiters for that in its client, and the holders by a token that its client has handed on.
        self.lines: dict[tuple[str, str], list[_Place]] = {}
        self.handed_to: dict[str, Party] = {}
        #: Of which lock a token is that may be handed on.
        self.locked: dict[str, str] = {}
        #: Since when no party that was told stands in a queue.
        self.left_at = 0.0
        self.sequence = 0

    @property
    def calm(self) -> bool:
        """Whether clients and server agree but for what is under way."""
        return self.world.options.mode == "calm-deadlocks"

    # -- workload ---------------------------------------------------------------------------------

    def start(self, process: Process) -> None:
        for number in range(self.world.options.tasks):
            process.begin(self.work(process, number + 1), f"party {number}")
        process.begin(self.look_on(process), "looker")

    def detector(self, process: Process) -> Detector:
        made = self.detectors.get(process.id)
        if made is None:
            made = self.detectors[process.id] = Detector("holdfast", True, process.settings, lambda: 1)
        return made

    def token(self, process: Process, owner: str) -> str:
        self.sequence += 1
        return make_token(process.id, owner, self.sequence)

    async def work(self, process: Process, number: int) -> None:
        world, rng, options = self.world, self.world.rng, self.world.options
        while world.phase != "drain" and not process.closing:
            try:
                await Work(rng.expovariate(1 / options.think_s))
                if world.phase != "drain" and not process.closing:
                    await self.session(process, number)
            except Cancelled:
                continue

    async def look_on(self, process: Process) -> None:
        """Do what `Client.deadlocks` does, again and again."""
        world, rng = self.world, self.world.rng
        while world.phase != "drain" and not process.closing:
            try:
                await Work(rng.expovariate(1 / 5.0))
                since = world.now
                for found in await self.detector(process).deadlocks():
                    world.counted["deadlocks seen"] += 1
                    self.was_real(found, since, f"{process.name} was shown")
            except RequestFailed:
                continue
            except Cancelled:
                continue

    async def session(self, process: Process, number: int) -> None:
        """Take some of them, in any order."""
        rng, options = self.world.rng, self.world.options
        things = rng.sample([*self.things, self.things[-1]], rng.choice((1, 2, 2, 3)))
        if things.count(self.things[3]) > 1:
            return
        held: list[LeaseRecord] = []
        marked = self.marked[process.id, str(number)] = []
        cancelled = False
        try:
            for thing in things:
                record = await self.take(process, number, thing)
                if record is None:
                    break
                held.append(record)
                if record.token.endswith(MARK):
                    marked.append(record.token)
                await Work(rng.expovariate(1 / options.work_s))
        except Cancelled:
            cancelled = True
        for record in reversed(held):
            record.check_expired(process.now())
            if record.token in marked:
                marked.remove(record.token)
                if self.hands_on(process, record):
                    continue
            process.schedule.remove(record)
            if record.mark_released():
                await Spawn(quietly(record))
        if cancelled:
            raise Cancelled

    async def take(self, process: Process, number: int, thing: _Thing) -> LeaseRecord | None:
        """One acquire; None where it came to nothing."""
        world, rng = self.world, self.world.rng
        if thing.kind == "lock" and (handed := await self.stand_in_line(process, number, thing)) is not None:
            return handed
        acquisition = self.acquisition(process, number, thing)
        token = acquisition.token
        timeout_s = None if rng.random() < 0.7 else rng.random() * 8
        held, where = partial(self.held, process), lambda _: "here"
        acquisition.check = witness = Witness("holdfast", process.settings, held, where)
        if timeout_s is None or rng.random() < 0.5:
            every_s = rng.choice((0.3, 1.0, 3.0))
            claim = partial(self.token, process, "deadlock")
            acquisition.check = Check(self.detector(process), witness, every_s, claim, _Told)
        acquisition.renews = True
        began_at = world.now
        self.note(self.waiting | {token})
        try:
            got = await wait_for(acquisition, timeout_s, listening=process.listening(thing.keys.lock))
        except _Told as told:
            world.counted["told of a deadlock"] += 1
            self.gave_up(token, told.found, began_at)
            return None
        except RequestFailed as failure:
            # The last request before a timeout has little time, which a slow answer may outlast in calm worlds, too.
            cut = timeout_s is not None and failure.kind == "silent" and world.now >= began_at + timeout_s
            if self.calm and not cut and not process.closing:
                world.fail("refused", f"{token}: {failure!r}")
            return None
        finally:
            self.note(self.waiting - {token})
        if not isinstance(got, Grant):
            world.counted["timeout"] += 1
            return None
        world.grants += 1
        record = acquisition.make_record(thing.name, got)
        process.watch(record)
        return record

    async def stand_in_line(self, process: Process, number: int, thing: _Thing) -> LeaseRecord | None:
        """Wait for a while for what another party of the client has, or waits for, by a token that it may hand on."""
        rng = self.world.rng
        held = [each for (client, _), tokens in self.marked.items() if client == process.id for each in tokens]
        held += [each for each in self.waiting if each.startswith(process.id)]
        if thing.name not in {self.locked.get(token) for token in held} or rng.random() < 0.2:
            return None
        place = _Place((process.id, str(number)))
        line = self.lines.setdefault((process.id, thing.name), [])
        line.append(place)
        until = process.now() + rng.uniform(0.1, 1.0)
        try:
            while place.record is None and process.now() < until:
                await Work(0.02)
        except Cancelled:
            if place.record is not None:
                process.schedule.remove(place.record)
                if place.record.mark_released():
                    await Spawn(quietly(place.record))
            raise
        finally:
            if place in line:
                line.remove(place)
        return place.record

    def hands_on(self, process: Process, record: LeaseRecord) -> bool:
        """True if another party of the client holds by that token from now on."""
        line = self.lines.get((process.id, record.name))
        if not line or not record.alive or process.closing:
            return False
        place = line.pop(0)
        place.record = record
        self.handed_to[record.token] = place.party
        self.world.counted["handed on"] += 1
        self.note(self.waiting)
        return True

    def holder(self, token: str) -> str:
        """The same token, as of the party that holds by it."""
        client, _, number = token.split(":")
        return f"{client}:{self.handed_to[token][1]}:{number}" if token in self.handed_to else token

    def acquisition(self, process: Process, number: int, thing: _Thing) -> Acquisition:
        rng, keys, settings = self.world.rng, thing.keys, process.settings
        ttl_ms = int(1000 * rng.uniform(*self.world.options.ttl_s))
        if thing.kind == "semaphore":
            token = self.token(process, f"{rng.choice((1, 1, _PERMITS))}.{number}")
            return SemaphoreAcquisition(keys, token, ttl_ms, _PERMITS, settings)
        if thing.kind == "rwlock":
            return RWAcquisition(keys, self.token(process, f"{rng.choice('rrw')}.{number}"), ttl_ms, settings)
        token = self.token(process, str(number))
        if rng.random() < 0.5:
            token += MARK
            self.locked[token] = thing.name
        return LockAcquisition(keys, token, ttl_ms, settings)

    def held(self, process: Process, token: str) -> list[str]:
        """Return what the waiter with that token holds by tokens that do not tell."""
        return self.marked.get((process.id, owner_of(token)), [])

    # -- what happens -----------------------------------------------------------------------------

    def executed(self, node: Node, request: Request, value: object, error: RequestFailed | None) -> None:
        self.note(self.waiting)

    def crashed(self, process: Process) -> None:
        self.dead.add(process.id)
        self.note(frozenset(token for token in self.waiting if not token.startswith(process.id)))

    def lost_data(self, node: Node) -> None:
        self.note(self.waiting)

    def note(self, waiting: frozenset[str]) -> None:
        """Write down what is so from now on."""
        self.waiting = waiting
        listens = self.world.master.server.listens
        seen = []
        for thing in self.things:
            holders, queue = self.look(thing)
            there = tuple(token for token in queue if listens(thing.keys, token.encode()))
            seen.append((thing.name, tuple(map(self.holder, holders)), there))
        self.moments.append(_Moment(self.world.now, tuple(seen)))
        self.asked.append(waiting)

    def look(self, thing: _Thing) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """(holders, queue) by the server's word."""
        node = self.world.home(thing.keys.lock)
        now_ms, base = node.wall_ms(), thing.keys.base
        if thing.kind == "semaphore":
            many = node.server.peek(f"{base}:holders".encode(), now_ms)
        else:
            many = node.server.peek(f"{base}:readers".encode(), now_ms)
        holders = [token for token, over_ms in many.scores.items() if over_ms > now_ms] if many is not None else []
        alone = None if thing.kind == "semaphore" else node.server.peek(thing.keys.lock.encode(), now_ms)
        if alone is not None and b":shared:" not in alone:
            holders = [alone]
        queue = node.server.peek(thing.keys.queue.encode(), now_ms)
        waits = [member for _, member in queue.order] if queue is not None else []
        return tuple(token.decode() for token in holders), tuple(token.decode() for token in waits)

    def gave_up(self, token: str, found: Found, since: float) -> None:
        """A party was told, and has left its queue."""
        self.was_real(found, max(since, self.left_at) if self.calm else since, f"{token} was told")
        if self.calm and any(token in queue for _, _, queue in self.moments[-1].seen):
            self.world.fail("told too early", f"{token} was told of a deadlock, and is still queued")
        for moment in reversed(self.moments):
            if any(token in queue for _, _, queue in moment.seen):
                break
            self.left_at = moment.since

    def was_real(self, found: Found, since: float, who: str) -> None:
        """Check that all parties of that circle were stuck at one moment since then."""
        world = self.world
        world.counted["over what was handed on"] += any(step.held_token in self.handed_to for step in found.circle)
        parties = {party_of(step.token) for step in found.circle}
        tokens = {step.token for step in found.circle}
        for moment, asked in zip(reversed(self.moments), reversed(self.asked), strict=True):
            all_wait = not self.calm or tokens <= asked
            if all_wait and parties <= stuck(moment, asked if self.calm else None):
                return
            if moment.since <= since:
                break
        world.fail("false alarm", f"{who}: {[(step.token, step.name) for step in found.circle]}, and that was not so")

    def settled(self) -> None:
        for thing in self.things:
            holders, queue = self.look(thing)
            for token in holders:
                self.world.fail("orphan", f"{thing.name} is held by {token} when all is over")
            for token in queue:
                if token.partition(":")[0] not in self.dead:
                    self.world.fail("orphan", f"{token} is queued for {thing.name} when all is over")

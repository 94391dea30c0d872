"""What workers of a primitive with leases do, as the APIs do it: ask, work while the lease lasts, release.

Laws: an acquisition that ends without a grant leaves nothing on the server; nothing is held when all is over.

Theory: a `Thing` is what is contended for under one name: its ledger, and who holds and waits by the server's word.
A primitive says how one session goes; everything around it (the worker's life, the ways out, the looks at what was
left) is here.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from holdfast._core.effects import Call, Protocol, Spawn
from holdfast._core.failure import RequestFailed
from holdfast._core.keys import LockKeys
from holdfast._core.record import LeaseRecord
from holdfast._core.waiting import UNHEARD, Acquisition, Busy, Grant, request_timeout_for
from sim.check import Belief, Ledger
from sim.driver import Cancelled, Process, Work
from sim.network import Node
from sim.world import Primitive, World

__all__ = ["Sessions", "Thing", "quietly"]

#: Scripts that extend what is held; where their arguments have the ttl, the number and what kind of extension it is.
_EXTENDING = {
    "renew": (1, 2, 3),
    "crash_renew": (1, 2, 3),
    "multi_renew": (1, 4, 5),
    "sem_renew": (1, 3, 4),
    "rw_renew": (1, 5, 6),
}


class Thing:
    """What is contended for under one name."""

    #: Whether a lease that turns out to be lost keeps others out until the end that its holder was told.
    keeps_out = False

    def __init__(
        self, world: World, keys: LockKeys, *, conflict: Callable[[str, str], bool] = lambda one, other: True
    ) -> None:
        self.world = world
        self.keys = keys
        self.key = keys.lock.encode()
        self.fence_key = keys.fence.encode()
        self.queue_key = keys.queue.encode()
        self.ledger = Ledger(world, keys.name, conflict=conflict, until=self.until, keeps_out=self.keeps_out)
        #: Who held it when it was looked at last.
        self.last_held: set[bytes] = set()
        #: Those that someone breaks.
        self.shown: set[bytes] = set()
        #: By token: the last of its extensions that was carried out.
        self.extensions: dict[bytes, int] = {}

    @property
    def node(self) -> Node:
        """The node that has its keys now."""
        return self.world.home(self.keys.lock)

    def until(self, token: bytes, kind: str) -> float | None:
        """The virtual time up to which the server keeps it for that token; None when it does not."""
        node = self.node
        if node.server.peek(self.key, node.wall_ms()) != token:
            return None
        return node.until(node.server.expires.get(self.key, 0))

    def held(self) -> list[bytes]:
        """Return the holders that the server has now."""
        node = self.node
        holder = node.server.peek(self.key, node.wall_ms())
        return [] if holder is None else [holder]

    def queued(self) -> list[bytes]:
        """Return the waiters that the server has now."""
        node = self.node
        queue = node.server.peek(self.queue_key, node.wall_ms())
        return [] if queue is None else list(queue.scores)


T = TypeVar("T", bound=Thing)
G = TypeVar("G")

#: How long helpers pause on average, s.
_HELP_S = 15.0


class Sessions(Primitive, Generic[T]):
    """Workers that use `things` again and again. Subclasses write `session`."""

    #: What a worker is called in traces.
    worker = "worker"
    #: What its locks and leases are called in public: for `plays`.
    public, public_lease = "", "Lease"
    #: Errors with which an acquisition may end.
    refusals: tuple[type[Exception], ...] = (RequestFailed,)
    #: As what its leases are broken and asked for in small worlds; "": they are not.
    kind = ""
    #: Whether processes do different things in small worlds, so that none can stand for another.
    differ = False
    #: Workers of a process wait for each other.
    in_lines = False

    #: Whether small worlds can be made of it: a session comes to an end whatever becomes of the others, and there is
    #: nothing on the server but keys and subscriptions.
    fits_small_worlds = True

    def __init__(self, world: World, things: Sequence[T]) -> None:
        super().__init__(world)
        self.things = list(things)
        self.by_key = {thing.keys.lock: thing for thing in self.things}
        #: Acquisitions that wait, without a limit, for what someone else has to do.
        self.inside: dict[str, Process] = {}
        #: By token: the one request that releases what the fast path may have acquired.
        self.releases: dict[str, Call] = {}

    # -- workload ---------------------------------------------------------------------------------

    def start(self, process: Process) -> None:
        for number in range(self.world.options.tasks):
            process.begin(self.work(process), f"{self.worker} {number}")

    async def work(self, process: Process) -> None:
        """One session after the other, until the world ends."""
        world, rng, options = self.world, self.world.rng, self.world.options
        while world.phase != "drain" and not process.closing:
            try:
                others = options.others_think if process.number % options.processes else 1.0
                await Work(rng.expovariate(1 / options.think_s) * others)
                if world.phase != "drain" and not process.closing:
                    await self.session(process, rng.choice(self.things))
            except Cancelled:
                continue

    async def session(self, process: Process, thing: T) -> None:
        """One acquisition and what follows it."""
        raise NotImplementedError

    def once(self, process: Process) -> Protocol[None]:
        """One session of a small world."""
        return self.session(process, self.things[0])

    async def help_out(self, process: Process) -> None:
        """Help again and again: until no one waits any more who cannot end by himself."""
        world, rng = self.world, self.world.rng
        while world.phase != "drain" or any(whose.alive for whose in self.inside.values()):
            try:
                await Work(rng.random() * (2 * _HELP_S if world.phase != "drain" else 2.0))
                if process.closing:
                    return
                await self.help(process, rng.choice(self.things))
            except Cancelled:
                continue

    async def help(self, process: Process, thing: T) -> None:
        """Do what lets waiters go on."""
        raise NotImplementedError

    def ttl_ms(self) -> int:
        """Draw a ttl."""
        return int(1000 * self.world.rng.uniform(*self.world.options.ttl_s))

    def timeout_s(self) -> float | None:
        """None: indefinitely, 0: not at all, or about as long as a worker works."""
        rng, options = self.world.rng, self.world.options
        r = rng.random()
        if r < options.patient:
            return None
        return 0.0 if r < options.patient + 0.1 else rng.random() * 2 * options.work_s

    def asks(self, public: str, timeout_s: float | None) -> None:
        """An acquisition of a lock that is called so in public."""
        if public:
            self.plays(f"{public}.try_acquire" if timeout_s == 0 else f"{public}.acquire")

    async def ask(self, process: Process, things: Sequence[T], token: str, asking: Protocol[G | Busy]) -> G | None:
        """Drive an acquisition of those things to its end."""
        world = self.world
        began_at = world.now
        for thing in things:
            thing.ledger.begins(process, token)
        try:
            got = await asking
        except self.refusals as error:
            self.left(process, things, token)
            world.counted[type(error).__name__] += 1
            if world.trace is not None:
                world.note(process.name, f"{token}: {error!r}")
            self.refused(token, error)
            return None
        except Cancelled:
            self.left(process, things, token)
            raise
        if isinstance(got, Busy):
            self.left(process, things, token)
            self.not_behind_itself(process, got.holder, began_at)
            world.counted["timeout"] += 1
            return None
        return got

    def not_behind_itself(self, process: Process, holder: str | None, began_at: float) -> None:
        """Check that in calm times no acquire is refused for what its own client had released, not waiting for that."""
        world = self.world
        released_at = process.released_later.get(holder or "")
        calm = world.phase != "chaos" and began_at > world.calm_since + world.options.waiting_s()
        # Those that wait in a line of their client ask by themselves, and here their requests overtake each other.
        if calm and not self.in_lines and released_at is not None and released_at < began_at:
            world.fail("behind itself", f"{holder} was released, and kept an acquire of {process.name} out")

    def first(
        self,
        process: Process,
        turn: Acquisition,
        timeout_s: float | None,
        start: Callable[[float | None, bool], Protocol[Grant | Busy]],
    ) -> Protocol[Grant | Busy]:
        """An acquisition that the fast path may do, as the APIs do it."""
        first: Call | None = None
        if turn.sync is None and not self.world.options.cluster:
            request_timeout_s = request_timeout_for(turn.ttl_ms, turn.settings)
            first = turn.ask(False, 0, request_timeout_s)
            self.releases[turn.token] = turn.undo(0, request_timeout_s)
        return process.acquire(first, start, timeout_s, turn.ttl_ms)

    def newcomers(self, thing: T, holders: Sequence[bytes]) -> set[bytes]:
        """Return the holders that the server has had since the last look, but not before it."""
        new = set(holders) - thing.last_held
        thing.last_held = set(holders)
        for token in new:
            if token in thing.ledger.ended and token not in thing.ledger.waiting:
                thing.ledger.handed_to_nobody(token)
        return new

    def lost_data(self, node: Node) -> None:
        for thing in self.things:
            # What it holds now has not come to hold it by anything that was asked for.
            thing.last_held = set(thing.held())

    def refused(self, token: str, error: Exception) -> None:
        """An acquisition ended with this error."""

    def count(self, record: LeaseRecord) -> None:
        """Count the ways in which leases came about."""
        if record.short_s:
            self.world.counted["taken as pushed"] += 1

    async def live(self, process: Process, record: LeaseRecord, parts: Sequence[tuple[T, Belief]]) -> None:
        """Work under a lease and release it, whatever happens."""
        cancelled = False
        try:
            await self.hold_on(process, record)
        except Cancelled:
            cancelled = True
        await self.end(process, record, parts, cancelled)
        if cancelled:
            raise Cancelled

    async def hold_on(self, process: Process, record: LeaseRecord) -> None:
        """Work while the lease lasts; some extend it now and then."""
        rng, options = self.world.rng, self.world.options
        now = process.now()
        until = now + rng.expovariate(1 / options.work_s)
        self.plays(f"{self.lease_of(record)}.ensure_held")
        extends = rng.random() < 0.4 and not options.careless
        while now < until:
            if options.careless:
                record.deadline = now + 1e6
            if record.check_expired(now):
                return
            if now >= record.proved_until:
                self.world.counted["suspect"] += 1
            pause_s = min(until - now, max(0.01, record.deadline - now))
            if extends and rng.random() < 0.5:
                await Work(pause_s * rng.random())
                if rng.random() < 0.3:  # another one beside it
                    process.spawn(self.extend(process, record), "extender")
                await self.extend(process, record)
            else:
                await Work(pause_s)
            now = process.now()

    async def extend(self, process: Process, record: LeaseRecord) -> None:
        """Extend the lease to more or to less than it was."""
        self.plays(f"{self.lease_of(record)}.extend")
        self.world.counted["extended"] += 1
        ttl_ms = self.ttl_ms()
        self.world.after(0.001, self.replan, record)
        try:
            await process.extend(record, ttl_ms)
        except RequestFailed:
            self.world.counted["extension without an answer"] += 1
        self.replan(record)

    def lease_of(self, record: LeaseRecord) -> str:
        """Return the public name of its lease."""
        return self.public_lease

    def replan(self, record: LeaseRecord) -> None:
        """Look at its new deadline, too."""
        for thing in self.things:
            thing.ledger.replan(record.token.encode())

    def lasts(self, node: Node, thing: T, call: Call, value: Any) -> None:
        """Check that a request leaves no less on the server than its client trusts, or its extension asked for."""
        token = str(call.args[0]).encode() if call.args else b""
        belief = thing.ledger.look_at(token)
        if belief is None or call.script not in _EXTENDING or value not in (1, UNHEARD):
            return
        ttl_ms, number, kind = (int(call.args[at]) for at in _EXTENDING[call.script])
        if kind >= 0 and number >= thing.extensions.get(token, 0):
            thing.extensions[token] = number
            until = thing.until(token, belief.kind)
            if until != node.until(node.server.now_ms + ttl_ms):
                self.world.fail("not as asked for", f"{belief} was extended to {ttl_ms} ms, and lasts until {until}")

    async def end(
        self, process: Process, record: LeaseRecord, parts: Sequence[tuple[T, Belief]], cancelled: bool
    ) -> None:
        """Release it, as the APIs do it."""
        world = self.world
        record.check_expired(process.now())
        process.schedule.remove(record)
        for thing, belief in parts:
            self.gone(thing, belief)
            thing.ledger.ended[belief.token] = world.now
        if not record.mark_released():
            world.counted[f"lost: {record.reason}"] += 1
        elif cancelled:
            await Spawn(quietly(record))
        else:
            self.plays(f"{self.lease_of(record)}.release")
            try:
                first = self.releases.pop(record.token, None)
                # Of its own, so that it moves no other draw of a seed.
                if first is not None and not record.stray and random.Random(record.token).random() < 0.2:
                    process.release_later(record, first)
                    for thing, belief in parts:
                        self.left(process, [thing], belief.record.token)
                    return
                if not await process.release(record, None if record.stray else first):
                    record.mark_taken()
                    world.counted["lost: at release"] += 1
            except RequestFailed:
                pass  # it is repeated in the background

    def gone(self, thing: T, belief: Belief) -> None:
        """Note that a lease is lost, or that its holder begins to give it back."""
        if thing.ledger.beliefs.get(belief.token) is belief:
            thing.ledger.released(belief)

    def left(self, process: Process, things: Sequence[T], token: str) -> None:
        """An acquisition ended without a grant: in calm times its traces on the server are gone at once."""
        world = self.world
        for thing in things:
            thing.ledger.leaves(process, token)
            if world.phase != "chaos" and world.now > world.calm_since + world.options.waiting_s():
                world.after(world.options.short_retry_s(), self.no_traces, thing, token.encode())

    def no_traces(self, thing: T, token: bytes) -> None:
        if token in thing.held() or token in thing.queued():
            self.world.fail("orphan", f"{token.decode()} is still on the server, long after its acquisition ended")

    # -- what happens -----------------------------------------------------------------------------

    def crashed(self, process: Process) -> None:
        for thing in self.things:
            thing.ledger.crashed(process)

    def closed(self, process: Process) -> None:
        world = self.world
        if world.phase == "chaos" or world.now < world.calm_since + world.options.waiting_s():
            return  # requests from before may still be under way
        mine = f"{process.id}:".encode()
        for thing in self.things:
            for token in (*thing.held(), *thing.queued()):
                if token.startswith(mine):
                    self.world.fail("orphan", f"{token.decode()} is on the server, and its client was closed")

    def settled(self) -> None:
        for thing in self.things:
            for token in thing.held():
                self.world.fail("orphan", f"{thing.ledger.name} is held by {token.decode()} when all is over")
            for token in thing.queued():
                # Of a process that crashed it may stay for as long as the queue does.
                if token in thing.ledger.ended:
                    self.world.fail("orphan", f"{token.decode()} is queued for {thing.ledger.name} when all is over")


async def quietly(record: LeaseRecord) -> None:
    """Release it in the background."""
    try:
        await record.release()
    except RequestFailed:
        pass

"""The lock over a quorum: the same life as that of the lock on one server, on members whose clocks differ.

Not among the `primitives`, since it needs worlds of its own: the modes whose names begin with "quorum".
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeVar

from holdfast._core import redlock
from holdfast._core.effects import CallMany, Effect, Now, Protocol, Sleep, Spawn
from holdfast._core.hold import Hold, LeaseState
from holdfast._core.keys import LockKeys, lock_keys
from holdfast._core.redlock import Quorum
from holdfast._core.trouble import Trouble
from holdfast._core.waiting import Busy, Grant
from holdfast._sim.check import Belief, Ledger, Primitive
from holdfast._sim.driver import Cancelled, Process
from holdfast._sim.world import World

__all__ = ["QuorumLock"]

R = TypeVar("R")

#: The members' clocks differ by so much at most, µs.
_APART_US = 3_000_000


class _Lock:
    """One lock's ledger, and where to look at it."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.keys: LockKeys = lock_keys("holdfast", name)
        self.key = self.keys.lock.encode()
        self.ledger = Ledger(world, name, until=self.until)

    def until(self, token: bytes, kind: str) -> float | None:
        """How long a majority of the members keeps it for that token."""
        nodes = self.world.nodes
        ends = [
            node.until(node.server.expires.get(self.key, 0))
            for node in nodes
            if node.server.peek(self.key, node.wall_ms()) == token
        ]
        need = len(nodes) // 2 + 1
        return sorted(ends, reverse=True)[need - 1] if len(ends) >= need else None


class _NoHints(Quorum):
    """Proposes no fencing tokens, so that writing them back is all that keeps them in order."""

    __slots__ = ()

    def hint_us(self, now: float) -> int:
        return 0


class _NotWrittenBack:
    """A protocol whose write-backs of fencing tokens do not happen."""

    def __init__(self, protocol: Protocol[Any]) -> None:
        self._protocol = protocol

    def __await__(self) -> Generator[Effect[Any], Any, Any]:
        protocol = self._protocol
        try:
            effect = protocol.send(None)
            while True:
                try:
                    if type(effect) is CallMany and effect.calls[0].script == "raise_fence":
                        result: Any = [1] * len(effect.calls)
                    else:
                        result = yield effect
                except BaseException as error:
                    effect = protocol.throw(error)
                else:
                    effect = protocol.send(result)
        except StopIteration as end:
            return end.value


class QuorumLock(Primitive):
    """Workload and invariants."""

    name = "quorum"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        for node in world.nodes:
            node.offset_us += world.rng.randrange(_APART_US)
        self.locks = [_Lock(world, f"q{number}") for number in range(world.options.locks)]
        self.quorums: dict[Process, Quorum] = {}
        self._safe_fences = world.options.mode != "quorum-not-written-back"

    def start(self, process: Process) -> None:
        options = self.world.options
        names = [node.name for node in self.world.nodes]
        delay_ms = 0 if options.mode == "quorum-instant-restart" else int(options.ttl_s[1] * 1000)
        kind = Quorum if self._safe_fences else _NoHints
        self.quorums[process] = kind(names, delay_ms, None, process.settings)
        for number in range(options.tasks):
            process.spawn(self.work(process), f"worker {number}")

    async def work(self, process: Process) -> None:
        """Contend for the lock again and again, until the world ends."""
        world, rng, options = self.world, self.world.rng, self.world.options
        while world.phase != "drain":
            try:
                await Sleep(rng.expovariate(1 / options.think_s))
                if world.phase != "drain":
                    await self.session(process, rng.choice(self.locks))
            except Cancelled:
                continue

    async def session(self, process: Process, lock: _Lock) -> None:
        """One acquisition and what follows it, done as the faces do it."""
        world, rng, options = self.world, self.world.rng, self.world.options
        quorum, keys, ledger = self.quorums[process], lock.keys, lock.ledger
        ttl_ms = int(1000 * rng.uniform(*options.ttl_s))
        r = rng.random()
        timeout_s = (
            None if r < options.patient else 0.0 if r < options.patient + 0.1 else rng.random() * 2 * options.work_s
        )
        token = process.token()
        ledger.begins(process, token)
        asking = redlock.acquire(quorum, keys, token, ttl_ms, timeout_s)
        got: Grant | Busy
        try:
            got = await (asking if self._safe_fences else _NotWrittenBack(asking))
        except Trouble as trouble:
            self.left(process, lock, token)
            if world.trace is not None:
                world.note(process.name, f"{token}: {trouble!r}")
            return
        except Cancelled:
            self.left(process, lock, token)
            raise
        if not isinstance(got, Grant):
            self.left(process, lock, token)
            world.counted["timeout"] += 1
            return
        quorum.used.pop(token, None)
        assert got.more is not None
        held, unsure = got.more
        ledger.waiting[held.encode()] = ledger.waiting.pop(token.encode())
        hold = Hold(
            ledger.name,
            held,
            got.fence,
            ttl_ms,
            got.sent_at,
            lambda ttl: redlock.renew(quorum, keys, held, ttl),
            lambda: redlock.release(quorum, keys, held, ttl_ms, unsure),
            rng.random() < 0.8,
            int(ttl_ms * 1.5) if rng.random() < 0.1 else None,
        )
        belief = ledger.granted(process, hold)
        process.watch(hold)
        cancelled = False
        try:
            await self.hold_on(belief)
        except Cancelled:
            cancelled = True
        hold.over(process.local())
        process.unwatch(hold)
        ledger.released(belief)
        ledger.ended[held.encode()] = world.now
        if not hold.released():
            world.counted[f"lost: {hold.reason}"] += 1
        elif cancelled:
            await Spawn(_quietly(hold))
        else:
            try:
                if not await hold.release():
                    hold.state = LeaseState.LOST
                    world.counted["lost: at release"] += 1
            except Trouble:
                pass  # it is repeated in the background
        if cancelled:
            raise Cancelled

    async def hold_on(self, belief: Belief) -> None:
        """Work while the lease lasts."""
        rng, options = self.world.rng, self.world.options
        hold = belief.hold
        now = await Now()
        until = now + rng.expovariate(1 / options.work_s)
        while now < until:
            if hold.over(now):
                return
            await Sleep(min(until - now, max(0.01, hold.deadline - now)))
            now = await Now()

    def left(self, process: Process, lock: _Lock, token: str) -> None:
        """An acquisition ended without a grant: in calm times its traces on the members are gone at once."""
        lock.ledger.leaves(process, token)
        world = self.world
        if world.phase != "chaos" and world.now > world.calm_since + world.options.waiting_s():
            world.after(world.options.brief_s(), self.no_traces, lock, token)

    def no_traces(self, lock: _Lock, token: str) -> None:
        world = self.world
        client, owner, sequence = token.split(":")
        for node in world.nodes:
            holder = node.server.peek(lock.key, node.wall_ms())
            if holder is not None:
                held = holder.decode().split(":")
                if (held[0], held[1].partition("~")[0], held[2]) == (client, owner, sequence):
                    world.fail("orphan", f"{holder.decode()} is still on {node.name}, long after its acquisition ended")

    def crashed(self, process: Process) -> None:
        for lock in self.locks:
            lock.ledger.crashed(process)

    def settled(self) -> None:
        world = self.world
        for lock in self.locks:
            for node in world.nodes:
                holder = node.server.peek(lock.key, node.wall_ms())
                if holder is not None:
                    world.fail("orphan", f"{lock.ledger.name} is held by {holder.decode()} when all is over")


async def _quietly(hold: Hold) -> None:
    try:
        await hold.release()
    except Trouble:
        pass

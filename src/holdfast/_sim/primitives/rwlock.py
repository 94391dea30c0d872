"""The shared lock: readers, writers, upgrades and downgrades; never a reader beside a writer."""

from __future__ import annotations

from typing import Any

from holdfast._core import rwlock
from holdfast._core.effects import Call, Now, Sleep, Spawn
from holdfast._core.hold import Hold, LeaseState
from holdfast._core.keys import LockKeys, lock_keys
from holdfast._core.rwlock import READER, WRITER, RWTurn, upgrade_token
from holdfast._core.trouble import Trouble
from holdfast._core.waiting import Grant, wait_for
from holdfast._sim.check import Belief, Ledger, Primitive
from holdfast._sim.driver import Cancelled, Process
from holdfast._sim.network import Node, Request
from holdfast._sim.world import World
from holdfast.errors import LeaseLost, UpgradeRefused

__all__ = ["PRIMITIVE"]

_SHARED = b"0" * 24 + b":shared:0"


def _reader_of(token: bytes) -> bytes | None:
    """The reader beneath an upgrade."""
    client, middle, number = token.split(b":")
    return client + b":r." + middle.partition(b".")[2] + b":" + number if middle.startswith(b"u") else None


def _conflict(one: str, other: str) -> bool:
    """Kinds are `read:TOKEN`, `write` and `upgrade:TOKEN of the reader beneath`, who is in nobody's way."""
    if one.startswith("read") and other.startswith("read"):
        return False
    return one.replace("upgrade", "read") != other.replace("upgrade", "read")


class _Shared:
    """One shared lock."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.keys: LockKeys = lock_keys("holdfast", name)
        self.key = self.keys.lock.encode()
        self.queue_key = self.keys.queue.encode()
        self.readers_key = f"{self.keys.base}:readers".encode()
        self.upgraded_key = f"{self.keys.base}:upgraded".encode()
        self.ledger = Ledger(world, name, conflict=_conflict, until=self.until)
        #: The greatest fencing token that any writer's client was told: readers' and writers' must exceed it.
        self.writer_fence = 0
        self.greatest_fence = 0

    def until(self, token: bytes, kind: str) -> float | None:
        """How long the server keeps it for that token."""
        node = self.world.master
        server = node.server
        now_ms = node.wall_ms()
        if kind.startswith("read"):
            readers = server.peek(self.readers_key, now_ms)
            score = readers.scores.get(token) if readers is not None else None
            return None if score is None else node.until(int(score))
        key = self.upgraded_key if kind.startswith("upgrade") else self.key
        if server.peek(key, now_ms) != token:
            return None
        return node.until(server.expires.get(key, 0))


class SharedLock(Primitive):
    """Workload and invariants of the shared lock."""

    name = "rwlock"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.locks = [_Shared(world, f"rw{number}") for number in range(world.options.locks)]
        self.by_key = {lock.keys.lock: lock for lock in self.locks}

    # -- workload ---------------------------------------------------------------------------------

    def start(self, process: Process) -> None:
        for number in range(self.world.options.tasks):
            process.spawn(self.work(process), f"reader or writer {number}")

    async def work(self, process: Process) -> None:
        """Read or write again and again, until the world ends."""
        world, rng, options = self.world, self.world.rng, self.world.options
        while world.phase != "drain":
            try:
                await Sleep(rng.expovariate(1 / options.think_s))
                if world.phase != "drain":
                    await self.session(process, rng.choice(self.locks), READER if rng.random() < 0.65 else WRITER)
            except Cancelled:
                continue

    async def take(
        self, process: Process, lock: _Shared, token: str, ttl_ms: int, timeout_s: float | None, kind: str
    ) -> tuple[Belief, RWTurn] | None:
        """One acquisition, as the faces do it."""
        world, ledger = self.world, lock.ledger
        turn = RWTurn(lock.keys, token, ttl_ms, process.settings, self.world.options.sync)
        ledger.begins(process, token)
        try:
            got = await wait_for(turn, timeout_s, listening=process.listening(None, lock.keys.lock))
        except (Trouble, UpgradeRefused, LeaseLost) as error:
            self.left(process, lock, token)
            world.counted[type(error).__name__] += 1
            return None
        except Cancelled:
            self.left(process, lock, token)
            raise
        if not isinstance(got, Grant):
            self.left(process, lock, token)
            world.counted["timeout"] += 1
            return None
        return self.believe(process, lock, token, ttl_ms, got, kind), turn

    def believe(self, process: Process, lock: _Shared, token: str, ttl_ms: int, got: Grant, kind: str) -> Belief:
        turn = RWTurn(lock.keys, token, ttl_ms, process.settings, self.world.options.sync)
        renew = self.world.rng.random() < 0.8
        hold = Hold(lock.ledger.name, token, got.fence, ttl_ms, got.sent_at, turn.renew, turn.release, renew)
        belief = lock.ledger.granted(process, hold, kind, ordered=False)
        self.fences(lock, belief)
        # A reader that waits to be the writer does not look after its own reading.
        hold.on_loss = lambda _: self.gone(lock, belief)
        process.watch(hold)
        return belief

    def gone(self, lock: _Shared, belief: Belief) -> None:
        """It is lost, or its holder begins to give it back."""
        if lock.ledger.beliefs.get(belief.token) is belief:
            lock.ledger.released(belief)

    def fences(self, lock: _Shared, belief: Belief) -> None:
        """A writer's is greater than all before it, a reader's than that of each writer before it."""
        fence = belief.hold.fence
        least = lock.writer_fence if belief.kind.startswith("read") else lock.greatest_fence
        if fence <= least:
            self.world.fail("fence", f"{lock.ledger.name}: {belief} comes after fence {least}")
        lock.greatest_fence = max(lock.greatest_fence, fence)
        if not belief.kind.startswith("read"):
            lock.writer_fence = max(lock.writer_fence, fence)

    async def session(self, process: Process, lock: _Shared, mark: str) -> None:
        rng, options = self.world.rng, self.world.options
        ttl_ms = int(1000 * rng.uniform(*options.ttl_s))
        r = rng.random()
        timeout_s = (
            None if r < options.patient else 0.0 if r < options.patient + 0.1 else rng.random() * 2 * options.work_s
        )
        client, owner, number = process.token().split(":")
        token = f"{client}:{mark}{owner}:{number}"
        reads = mark == READER
        kind = f"read:{token}" if reads else "write"
        taken = await self.take(process, lock, token, ttl_ms, timeout_s, kind)
        if taken is None:
            return
        belief, turn = taken
        cancelled = False
        try:
            await self.hold_on(belief)
            if belief.lives() and reads and rng.random() < 0.3:
                await self.upgrade(process, lock, belief, ttl_ms)
            elif belief.lives() and not reads and rng.random() < 0.3:
                belief = await self.downgrade(process, lock, belief, turn, ttl_ms)
                await self.hold_on(belief)
        except Cancelled:
            cancelled = True
        await self.end(process, lock, belief, cancelled)
        if cancelled:
            raise Cancelled

    async def upgrade(self, process: Process, lock: _Shared, reader: Belief, ttl_ms: int) -> None:
        """Write for a while on top of reading."""
        rng, options = self.world.rng, self.world.options
        number = int(process.token().rpartition(":")[2])
        token = upgrade_token(reader.hold.token, number)
        timeout_s = None if rng.random() < 0.5 else rng.random() * options.work_s
        taken = await self.take(process, lock, token, ttl_ms, timeout_s, f"upgrade:{reader.hold.token}")
        if taken is None:
            return
        cancelled = False
        try:
            await self.hold_on(taken[0])
        except Cancelled:
            cancelled = True
        await self.end(process, lock, taken[0], cancelled)
        if cancelled:
            raise Cancelled

    async def downgrade(self, process: Process, lock: _Shared, writer: Belief, turn: RWTurn, ttl_ms: int) -> Belief:
        """Go on as a reader."""
        client, owner, number = process.token().split(":")
        token = f"{client}:{READER}{owner}:{number}"
        hold = writer.hold
        process.unwatch(hold)
        if not hold.released():
            return writer
        lock.ledger.released(writer)
        lock.ledger.ended[writer.token] = self.world.now
        lock.ledger.begins(process, token)
        try:
            got = await rwlock.downgrade(
                turn, RWTurn(lock.keys, token, ttl_ms, process.settings, self.world.options.sync)
            )
        except Trouble:
            self.left(process, lock, token)
            return writer
        except Cancelled:
            self.left(process, lock, token)
            raise
        if got is None:
            self.left(process, lock, token)
            return writer
        return self.believe(process, lock, token, ttl_ms, got, f"read:{token}")

    async def hold_on(self, belief: Belief) -> None:
        """Work while the lease lasts."""
        rng, options = self.world.rng, self.world.options
        hold = belief.hold
        now = await Now()
        until = now + rng.expovariate(1 / options.work_s)
        while now < until and not hold.over(now):
            await Sleep(min(until - now, max(0.01, hold.deadline - now)))
            now = await Now()

    async def end(self, process: Process, lock: _Shared, belief: Belief, cancelled: bool) -> None:
        """Release it, as the faces do it."""
        hold = belief.hold
        hold.over(process.local())
        process.unwatch(hold)
        self.gone(lock, belief)
        lock.ledger.ended[belief.token] = self.world.now
        if not hold.released():
            self.world.counted[f"lost: {hold.reason}"] += 1
        elif cancelled:
            await Spawn(_quietly(hold))
        else:
            try:
                if not await hold.release():
                    hold.state = LeaseState.LOST
                    self.world.counted["lost: at release"] += 1
            except Trouble:
                pass  # it is repeated in the background

    def left(self, process: Process, lock: _Shared, token: str) -> None:
        """An acquisition ended without a grant: in calm times its traces on the server are gone at once."""
        lock.ledger.leaves(process, token)
        world = self.world
        if world.phase != "chaos" and world.now > world.calm_since + world.options.waiting_s():
            world.after(world.options.brief_s(), self.no_traces, lock, token.encode())

    def no_traces(self, lock: _Shared, token: bytes) -> None:
        if token in self.on_server(lock):
            self.world.fail("orphan", f"{token.decode()} is still on the server, long after its acquisition ended")

    def on_server(self, lock: _Shared) -> list[bytes]:
        """All tokens that live there."""
        node = self.world.master
        server, now_ms = node.server, node.wall_ms()
        alone = [server.peek(key, now_ms) for key in (lock.key, lock.upgraded_key)]
        queue = server.peek(lock.queue_key, now_ms)
        tokens = list(queue.scores) if queue is not None else []
        return tokens + self.readers(node, lock, now_ms) + [token for token in alone if token not in (None, _SHARED)]

    def readers(self, node: Node, lock: _Shared, now_ms: int) -> list[bytes]:
        readers = node.server.peek(lock.readers_key, now_ms)
        return [token for token, over_ms in readers.scores.items() if over_ms > now_ms] if readers is not None else []

    # -- invariants on the server -----------------------------------------------------------------

    def executed(self, node: Node, request: Request, value: Any, error: Trouble | None) -> None:
        call = request.call
        if type(call) is not Call or error is not None:
            return
        lock = self.by_key.get(call.keys[0])
        if lock is None or node is not self.world.master:
            return
        server = node.server
        now_ms = server.now_ms
        holder = server.peek(lock.key, now_ms)
        readers = self.readers(node, lock, now_ms)
        upgraded = server.peek(lock.upgraded_key, now_ms)
        scores = server.data[lock.readers_key].scores if readers else {}
        ends = [scores[token] for token in readers]
        if upgraded is not None:
            ends.append(server.expires.get(lock.upgraded_key, 0))
        if holder is None or holder == _SHARED:
            # Whoever knows only the lock's key must be kept out for as long as anybody reads.
            if ends and (holder is None or server.expires.get(lock.key, 0) < max(ends)):
                self.world.fail("unseen readers", "the lock's key forgets the readers before their time is over")
            others = [token for token in readers if upgraded is not None and token != _reader_of(upgraded)]
        else:
            others = readers if b":r." not in holder else []
        if others:
            alone = (upgraded or holder or b"").decode()
            self.world.fail("reader beside writer", f"{alone} writes while {others[0].decode()} reads")

    def crashed(self, process: Process) -> None:
        for lock in self.locks:
            lock.ledger.crashed(process)

    def lost_data(self, node: Node) -> None:
        for lock in self.locks:
            lock.greatest_fence = lock.writer_fence = 0

    def settled(self) -> None:
        for lock in self.locks:
            left = self.on_server(lock)
            if left:
                self.world.fail("orphan", f"{left[0].decode()} is on the server when all is over")


async def _quietly(hold: Hold) -> None:
    try:
        await hold.release()
    except Trouble:
        pass


PRIMITIVE = SharedLock

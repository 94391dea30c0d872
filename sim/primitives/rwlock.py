"""The shared lock: readers, writers, upgrades and downgrades; never a reader beside a writer."""

from __future__ import annotations

from typing import Any

from holdfast._core import rwlock
from holdfast._core.effects import Call, Protocol
from holdfast._core.failure import RequestFailed
from holdfast._core.keys import lock_keys
from holdfast._core.record import LeaseRecord
from holdfast._core.rwlock import READER, WRITER, RWAcquisition, upgrade_token
from holdfast._core.waiting import Busy, Grant, wait_for
from holdfast.errors import LeaseLost, UpgradeRefused
from sim.check import Belief
from sim.driver import Cancelled, Process
from sim.network import Node, Request
from sim.sessions import Sessions, Thing
from sim.world import World

__all__ = ["PRIMITIVE"]

_SHARED = b"0" * 24 + b":shared:0"


def _reader_of(token: bytes) -> bytes | None:
    """The reader beneath an upgrade."""
    client, middle, number = token.split(b":")
    return client + b":r." + middle.partition(b".")[2] + b":" + number if middle.startswith(b"u") else None


def _conflict(one: str, other: str) -> bool:
    """Kinds are `read:TOKEN`, `write` and `upgrade:TOKEN of the reader beneath`, who is in no client's way."""
    if one.startswith("read") and other.startswith("read"):
        return False
    return one.replace("upgrade", "read") != other.replace("upgrade", "read")


class _Shared(Thing):
    """One shared lock."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, lock_keys("holdfast", name), conflict=_conflict)
        self.readers_key = f"{self.keys.base}:readers".encode()
        self.upgraded_key = f"{self.keys.base}:upgraded".encode()
        #: The greatest fencing token that any writer's client was told: readers' and writers' must exceed it.
        self.writer_fence = 0
        self.greatest_fence = 0

    def until(self, token: bytes, kind: str) -> float | None:
        node = self.node
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

    def held(self) -> list[bytes]:
        node = self.node
        now_ms = node.wall_ms()
        alone = [node.server.peek(key, now_ms) for key in (self.key, self.upgraded_key)]
        return self.readers(node, now_ms) + [token for token in alone if token not in (None, _SHARED)]

    def readers(self, node: Node, now_ms: int) -> list[bytes]:
        """Return the readers whose time is not over."""
        readers = node.server.peek(self.readers_key, now_ms)
        return [token for token, over_ms in readers.scores.items() if over_ms > now_ms] if readers is not None else []


class SharedLock(Sessions[_Shared]):
    """Workload and invariants of the shared lock."""

    name = "rwlock"
    differ = True
    worker = "reader or writer"
    refusals = (RequestFailed, UpgradeRefused, LeaseLost)

    def __init__(self, world: World) -> None:
        super().__init__(world, [_Shared(world, f"rw{number}") for number in range(world.options.locks)])

    # -- workload ---------------------------------------------------------------------------------

    async def take(
        self, process: Process, lock: _Shared, token: str, ttl_ms: int, timeout_s: float | None, kind: str
    ) -> tuple[Belief, RWAcquisition] | None:
        """One acquisition, as the APIs do it."""
        turn = RWAcquisition(lock.keys, token, ttl_ms, process.settings, self.world.options.sync)
        turn.renews = self.world.rng.random() < 0.8

        def start(timeout_s: float | None, sent: bool) -> Protocol[Grant | Busy]:
            listening = not sent and process.listening(lock.keys.lock)
            return wait_for(turn, timeout_s, listening=listening)

        if kind.startswith("upgrade"):
            asking = start(timeout_s, False)
        else:
            self.asks("ReadLock" if kind.startswith("read") else "WriteLock", timeout_s)
            asking = self.first(process, turn, timeout_s, start)
        got = await self.ask(process, [lock], token, asking)
        if got is None:
            return None
        return self.believe(process, lock, token, ttl_ms, got, kind, turn.renews), turn

    def believe(
        self, process: Process, lock: _Shared, token: str, ttl_ms: int, got: Grant, kind: str, renew: bool
    ) -> Belief:
        turn = RWAcquisition(lock.keys, token, ttl_ms, process.settings, self.world.options.sync)
        record = turn.make_record(lock.ledger.name, got)
        if not renew:
            record.stop_renewing()
        self.count(record)
        belief = lock.ledger.granted(process, record, kind, ordered=False)
        self.fences(lock, belief)
        # A reader that waits to be the writer does not look after its own reading.
        record.on_loss = (lambda _: self.gone(lock, belief),)
        process.watch(record)
        return belief

    def fences(self, lock: _Shared, belief: Belief) -> None:
        """A writer's is greater than all before it, a reader's than that of each writer before it."""
        fence = belief.record.fence
        least = lock.writer_fence if belief.kind.startswith("read") else lock.greatest_fence
        if fence <= least:
            self.world.fail("fence", f"{lock.ledger.name}: {belief} comes after fence {least}")
        lock.greatest_fence = max(lock.greatest_fence, fence)
        if not belief.kind.startswith("read"):
            lock.writer_fence = max(lock.writer_fence, fence)

    def lease_of(self, record: LeaseRecord) -> str:
        return "ReadLease" if f":{READER}" in record.token else "WriteLease"

    async def session(self, process: Process, thing: _Shared) -> None:
        await self.use(process, thing, self.world.rng.random() < 0.65)

    def once(self, process: Process) -> Protocol[None]:
        """Odd numbers write, even ones read."""
        return self.use(process, self.things[0], process.number % 2 == 0)

    async def use(self, process: Process, thing: _Shared, reads: bool) -> None:
        """One acquisition and what follows it."""
        rng = self.world.rng
        ttl_ms, timeout_s = self.ttl_ms(), self.timeout_s()
        client, owner, number = process.token().split(":")
        token = f"{client}:{READER if reads else WRITER}{owner}:{number}"
        taken = await self.take(process, thing, token, ttl_ms, timeout_s, f"read:{token}" if reads else "write")
        if taken is None:
            return
        belief, turn = taken
        cancelled = False
        try:
            await self.hold_on(process, belief.record)
            if belief.lives() and reads and rng.random() < 0.3:
                await self.upgrade(process, thing, belief, ttl_ms)
            elif belief.lives() and not reads and rng.random() < 0.3:
                belief = await self.downgrade(process, thing, belief, turn, ttl_ms)
                await self.hold_on(process, belief.record)
        except Cancelled:
            cancelled = True
        await self.end(process, belief.record, [(thing, belief)], cancelled)
        if cancelled:
            raise Cancelled

    async def upgrade(self, process: Process, lock: _Shared, reader: Belief, ttl_ms: int) -> None:
        """Write for a while on top of reading."""
        rng, options = self.world.rng, self.world.options
        self.plays("ReadLease.upgrade")
        number = int(process.token().rpartition(":")[2])
        token = upgrade_token(reader.record.token, number)
        timeout_s = None if rng.random() < 0.5 else rng.random() * options.work_s
        taken = await self.take(process, lock, token, ttl_ms, timeout_s, f"upgrade:{reader.record.token}")
        if taken is not None:
            await self.live(process, taken[0].record, [(lock, taken[0])])

    async def downgrade(
        self, process: Process, lock: _Shared, writer: Belief, turn: RWAcquisition, ttl_ms: int
    ) -> Belief:
        """Go on as a reader."""
        self.plays("WriteLease.downgrade")
        client, owner, number = process.token().split(":")
        token = f"{client}:{READER}{owner}:{number}"
        record = writer.record
        process.schedule.remove(record)
        if not record.mark_released():
            return writer
        lock.ledger.released(writer)
        lock.ledger.ended[writer.token] = self.world.now
        turn.stray = record.stray
        reader = RWAcquisition(lock.keys, token, ttl_ms, process.settings, self.world.options.sync)
        got = await self.ask(process, [lock], token, _granted(rwlock.downgrade(turn, reader)))
        if got is None:
            return writer
        renew = self.world.rng.random() < 0.8
        return self.believe(process, lock, token, ttl_ms, got, f"read:{token}", renew)

    # -- invariants on the server -----------------------------------------------------------------

    def executed(self, node: Node, request: Request, value: Any, error: RequestFailed | None) -> None:
        call = request.call
        if type(call) is not Call or error is not None:
            return
        lock = self.by_key.get(call.keys[0])
        if lock is None or node is not lock.node:
            return
        self.newcomers(lock, lock.held())
        self.lasts(node, lock, call, value)
        if call.script == "rw_acquire" and value[0] == 0:
            lock.ledger.placed(value[3])
        server = node.server
        now_ms = server.now_ms
        holder = server.peek(lock.key, now_ms)
        readers = lock.readers(node, now_ms)
        upgraded = server.peek(lock.upgraded_key, now_ms)
        scores = server.data[lock.readers_key].scores if readers else {}
        ends = [scores[token] for token in readers]
        if upgraded is not None:
            ends.append(server.expires.get(lock.upgraded_key, 0))
        if holder is None or holder == _SHARED:
            # Clients that only know the lock's key must be kept out for as long as there are readers.
            if ends and (holder is None or server.expires.get(lock.key, 0) < max(ends)):
                self.world.fail("unseen readers", "the lock's key forgets the readers before their time is over")
            others = [token for token in readers if upgraded is not None and token != _reader_of(upgraded)]
        else:
            others = readers if b":r." not in holder else []
        if others:
            alone = (upgraded or holder or b"").decode()
            self.world.fail("reader beside writer", f"{alone} writes while {others[0].decode()} reads")

    def lost_data(self, node: Node) -> None:
        super().lost_data(node)
        for lock in self.things:
            lock.greatest_fence = lock.writer_fence = 0


async def _granted(downgrading: Protocol[Grant]) -> Grant | Busy:
    try:
        return await downgrading
    except LeaseLost:
        return Busy(None, 0.0)


PRIMITIVE = SharedLock

"""Several locks at once, beside workers that take one of them: all or none, and no one waits in a circle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast._core import multilock
from holdfast._core.effects import Call, Protocol
from holdfast._core.failure import RequestFailed
from holdfast._core.waiting import Busy, Grant, wait_for
from holdfast.errors import LeaseLost
from sim.driver import Process
from sim.network import Node, Request
from sim.primitives.mutex import Lock, Locks
from sim.world import World

__all__ = ["PRIMITIVE"]

#: Number of locks; a session takes some of them.
_LOCKS = 4


class MultiLock(Locks):
    """Workload and invariants of several locks under one lease."""

    name = "multilock"
    refusals = (RequestFailed, LeaseLost)

    def __init__(self, world: World) -> None:
        super().__init__(world, [Lock(world, f"ml{number}") for number in range(_LOCKS)])
        #: As in a Cluster: one after the other, in the order of their slots.
        self.apart = world.options.cluster or world.rng.random() < 0.4

    # -- workload ---------------------------------------------------------------------------------

    async def session(self, process: Process, thing: Lock) -> None:
        rng, options = self.world.rng, self.world.options
        if rng.random() < 0.3:
            await super().session(process, thing)
            return
        locks = rng.sample(self.things, rng.choice((2, 2, 3)))
        ttl_ms, timeout_s, token = self.ttl_ms(), self.timeout_s(), process.token()
        all_keys = [lock.keys for lock in locks]
        turn = multilock.turn_for(all_keys, not self.apart, token, ttl_ms, process.settings, options.sync)

        def start(timeout_s: float | None, sent: bool) -> Protocol[Grant | Busy]:
            if isinstance(turn, multilock.SeveralTurns):
                return turn.acquire(timeout_s)
            return wait_for(turn, timeout_s, listening=not sent and process.listening(turn.key))

        self.asks("MultiLock", timeout_s)
        several = isinstance(turn, multilock.SeveralTurns)
        asking = start(timeout_s, False) if several else self.first(process, turn, timeout_s, start)
        got = await self.ask(process, locks, token, asking)
        if got is None:
            return
        name = " + ".join(keys.name for keys in all_keys)
        record = turn.make_record(name, got)
        if rng.random() >= 0.8:
            record.stop_renewing()
        if rng.random() < 0.1:
            record.end_by(record.held_since + ttl_ms * 1.5 / 1000)
        await self.live(process, record, self.believe(process, locks, record))

    def left(self, process: Process, things: Sequence[Lock], token: str) -> None:
        super().left(process, things, token)
        if len(things) > 1:
            for lock in things:  # it may have held some of them, while it waited for the others
                lock.ledger.idle_since = max(lock.ledger.idle_since, self.world.now)

    # -- invariants on the server -----------------------------------------------------------------

    def executed(self, node: Node, request: Request, value: Any, error: RequestFailed | None) -> None:
        call = request.call
        tries = type(call) is Call and call.script == "multi_acquire" and call.args[2] == "try"
        held_before = self.held_by(call, node) if tries else 0
        super().executed(node, request, value, error)
        if tries and error is None and value[0] == 0 and self.held_by(call, node) > held_before:
            self.world.fail("not all", f"{call.args[0]!r} was refused, and took a part of what it tried to take")

    def held_by(self, call: Any, node: Node) -> int:
        """Return how many of the call's locks its asker has, as far as has been seen."""
        holders = [self.by_key[key].holders.get(node.number) for key in call.keys[::4] if key in self.by_key]
        return sum(holder is not None and holder[0] == call.args[0].encode() for holder in holders)

    #: A repeat of a request gets a later one, whichever answer comes first.
    one_fence = False

    def is_fenced(self, call: Call, asker: bytes, token: bytes) -> bool:
        # Who takes several writes it when he has them all.
        return call.script != "multi_acquire" or token != asker

    def answered(self, node: Node, lock: Lock, call: Call, asker: bytes, value: Any) -> None:
        super().answered(node, lock, call, asker, value)
        world, server = self.world, node.server
        if call.script == "multi_acquire":
            if value[0] == 1:
                if server.peek(lock.key, server.now_ms) != asker:
                    world.fail("not all", f"{asker.decode()} was granted all, and has not got {lock.ledger.name}")
                self.fenced(node, lock, asker)
                if server.data.get(lock.fence_key) != b"%d" % value[1]:
                    world.fail("fence", f"{asker.decode()} was told fence {value[1]}, not that of {lock.ledger.name}")
            elif value[0] == 0 and value[3] >= 0:
                queue = server.data.get(lock.queue_key)
                if queue is not None and asker in queue.scores:
                    self.queued(node, lock, asker, int(call.args[3]), value[4])
        elif call.script == "multi_renew" and value > 0 and int(call.args[2]):
            fence = int(server.data.get(lock.fence_key, b"0"))
            if fence < int(call.args[2]):
                world.fail("fence", f"{lock.ledger.name} has not seen the common fence {call.args[2]!r} of several")
            if fence > lock.last_fence.get(node.number, 0):
                self.fenced(node, lock, asker)
            # Where a repeated request has got a later one meanwhile, that one stays the last.
            lock.fences.setdefault(asker, set()).add(int(call.args[2]))


PRIMITIVE = MultiLock

"""The lock over a quorum: the same life as that of the lock on one server, on members whose clocks differ.

Not among the `primitives`, since it needs worlds of its own: the modes whose names begin with "quorum".
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeVar

from holdfast._core.effects import Call, CallMany, Effect, Protocol
from holdfast._core.exclusive import OverQuorum
from holdfast._core.failure import RequestFailed
from holdfast._core.keys import lock_keys
from holdfast._core.redlock import Quorum
from sim.driver import Process
from sim.network import Node, Request
from sim.sessions import Sessions, Thing
from sim.world import World

__all__ = ["QuorumLock"]

R = TypeVar("R")

#: The members' clocks differ by so much at most, µs.
_APART_US = 3_000_000


class _Lock(Thing):
    """One lock on all members."""

    #: What is left of its votes, and members that do not vote yet.
    keeps_out = True

    def until(self, token: bytes, kind: str) -> float | None:
        """Return how long a majority of the members keeps it for that token."""
        nodes = self.world.nodes
        ends = [
            node.until(node.server.expires.get(self.key, 0))
            for node in nodes
            if node.server.peek(self.key, node.wall_ms()) == token
        ]
        need = len(nodes) // 2 + 1
        return sorted(ends, reverse=True)[need - 1] if len(ends) >= need else None

    def held(self) -> list[bytes]:
        """Return the holder of each member's lock, without the mark of the attempt."""
        holders = [node.server.peek(self.key, node.wall_ms()) for node in self.world.nodes]
        parts = [holder.split(b":") for holder in holders if holder is not None]
        return [b":".join((client, owner.partition(b"~")[0], number)) for client, owner, number in parts]

    def queued(self) -> list[bytes]:
        return []


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
                    if type(effect) is CallMany and effect.calls[0].script == "multi_renew":
                        result: Any = [1] * len(effect.calls)
                    else:
                        result = yield effect
                except BaseException as error:
                    effect = protocol.throw(error)
                else:
                    effect = protocol.send(result)
        except StopIteration as end:
            return end.value


async def _without_write_back(protocol: Protocol[R]) -> R:
    result: R = await _NotWrittenBack(protocol)
    return result


class QuorumLock(Sessions[_Lock]):
    """Workload and invariants."""

    name = "quorum"

    def __init__(self, world: World) -> None:
        for node in world.nodes:
            node.offset_us += world.rng.randrange(_APART_US)
        super().__init__(world, [_Lock(world, lock_keys("holdfast", f"q{n}")) for n in range(world.options.locks)])
        self.quorums: dict[Process, Quorum] = {}
        unhinted = world.options.mode == "quorum-not-written-back"
        self._quorum = _NoHints if unhinted else Quorum
        self._written_back = world.options.protected or not unhinted

    def start(self, process: Process) -> None:
        options = self.world.options
        names = [node.name for node in self.world.nodes]
        at_once = options.mode == "quorum-instant-restart" and not options.protected
        delay_ms = 0 if at_once else int(options.ttl_s[1] * 1000)
        self.quorums[process] = self._quorum(names, delay_ms, None, process.settings)
        super().start(process)

    def executed(self, node: Node, request: Request, value: Any, error: RequestFailed | None) -> None:
        call = request.call
        if type(call) is Call and error is None and call.script == "renew":
            self.by_key[call.keys[0]].ledger.look_at(str(call.args[0]).encode())

    async def session(self, process: Process, thing: _Lock) -> None:
        rng = self.world.rng
        quorum, keys, ledger = self.quorums[process], thing.keys, thing.ledger
        ttl_ms, timeout_s, token = self.ttl_ms(), self.timeout_s(), process.token()
        self.plays("Client.quorum")
        self.asks("Lock", timeout_s)
        exclusive = OverQuorum(keys, process.settings, quorum)
        asking = exclusive.acquire(token, ttl_ms, timeout_s, False)
        got = await self.ask(process, [thing], token, asking if self._written_back else _without_write_back(asking))
        if got is None:
            return
        record = exclusive.make_record(token, got, ttl_ms)
        if rng.random() >= 0.8:
            record.stop_renewing()
        if rng.random() < 0.1:
            record.end_by(record.held_since + ttl_ms * 1.5 / 1000)
        ledger.waiting[record.token.encode()] = ledger.waiting.pop(token.encode())
        belief = ledger.granted(process, record)
        process.watch(record)
        await self.live(process, record, [(thing, belief)])

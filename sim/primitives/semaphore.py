"""The semaphore: requests of all sizes, resized now and then; never more permits out than there are."""

from __future__ import annotations

from typing import Any

from holdfast._core.effects import Call, Protocol
from holdfast._core.failure import RequestFailed
from holdfast._core.keys import lock_keys
from holdfast._core.kinds import SEMAPHORE
from holdfast._core.semaphore import SemaphoreAcquisition, resize
from holdfast._core.waiting import Busy, Grant, wait_for
from holdfast.errors import DeclarationMismatch, TooManyPermits
from sim.driver import Process
from sim.network import Node, Request
from sim.sessions import Sessions, Thing
from sim.world import World

__all__ = ["PRIMITIVE"]

#: Permits as declared, and as a resize may leave them.
_DECLARED = 4
_LEAST, _MOST = 2, 6


def _weight(token: bytes | str) -> int:
    text = token.decode() if isinstance(token, bytes) else token
    return int(text.split(":")[1].partition(".")[0])


class _Permits(Thing):
    """One semaphore."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, lock_keys("holdfast", name).of(SEMAPHORE), conflict=lambda one, other: False)
        self.holders_key = f"{self.keys.base}:holders".encode()
        #: Who held by the server's last word, to see who is new.

    def until(self, token: bytes, kind: str) -> float | None:
        node = self.node
        holders = node.server.peek(self.holders_key, node.wall_ms())
        score = holders.scores.get(token) if holders is not None else None
        return None if score is None else node.until(int(score))

    def held(self) -> list[bytes]:
        return self.holders(self.node, self.node.wall_ms())

    def holders(self, node: Node, now_ms: int) -> list[bytes]:
        """Return the holders whose time is not over."""
        holders = node.server.peek(self.holders_key, now_ms)
        return [token for token, over_ms in holders.scores.items() if over_ms > now_ms] if holders is not None else []


class Semaphore(Sessions[_Permits]):
    """Workload and invariants of the semaphore."""

    name = "semaphore"
    public = "Semaphore"
    worker = "user"
    refusals = (RequestFailed, TooManyPermits, DeclarationMismatch)

    def __init__(self, world: World) -> None:
        super().__init__(world, [_Permits(world, f"s{number}") for number in range(world.options.locks)])
        #: Resizing makes "never more than the limit" a matter of the moment of the grant alone.
        self.resizes = world.rng.random() < 0.3

    # -- workload ---------------------------------------------------------------------------------

    async def session(self, process: Process, thing: _Permits) -> None:
        rng, options = self.world.rng, self.world.options
        if self.resizes and rng.random() < 0.1:
            self.plays("Semaphore.resize")
            try:
                await resize(
                    thing.keys, rng.randint(_LEAST, _MOST), process.settings.request_timeout_s, process.settings
                )
            except RequestFailed:
                pass
            return
        ttl_ms, timeout_s = self.ttl_ms(), self.timeout_s()
        client, owner, number = process.token().split(":")
        token = f"{client}:{rng.choice((1, 1, 1, 2, 3, _DECLARED))}.{owner}:{number}"
        turn = SemaphoreAcquisition(thing.keys, token, ttl_ms, _DECLARED, process.settings, options.sync)
        renew = rng.random() < 0.8

        def start(timeout_s: float | None, sent: bool) -> Protocol[Grant | Busy]:
            turn = SemaphoreAcquisition(thing.keys, token, ttl_ms, _DECLARED, process.settings, options.sync)
            turn.renews = renew
            return wait_for(turn, timeout_s, listening=not sent and process.listening(thing.keys.lock))

        self.asks(self.public, timeout_s)
        got = await self.ask(process, [thing], token, self.first(process, turn, timeout_s, start))
        if got is None:
            return
        record = turn.make_record(thing.ledger.name, got)
        if not renew:
            record.stop_renewing()
        self.count(record)
        belief = thing.ledger.granted(process, record, "permits", ordered=False)
        self.look_at_beliefs(thing)
        process.watch(record)
        await self.live(process, record, [(thing, belief)])

    def refused(self, token: str, error: Exception) -> None:
        if not self.resizes and not isinstance(error, RequestFailed):
            self.world.fail("refused", f"{token}: {error}")

    def look_at_beliefs(self, permits: _Permits) -> None:
        """Check what all clients believe to hold together."""
        living = [belief for belief in permits.ledger.beliefs.values() if belief.lives()]
        total = sum(_weight(belief.token) for belief in living)
        # A resize may have come between two grants, and those of the larger limit keep theirs.
        allowed = _MOST if self.resizes else _DECLARED
        if total > allowed:
            shown = ", ".join(map(str, living))
            self.world.fail("overlap", f"{permits.ledger.name}: {total} of {allowed} permits are held: {shown}")

    # -- invariants on the server -----------------------------------------------------------------

    def executed(self, node: Node, request: Request, value: Any, error: RequestFailed | None) -> None:
        call = request.call
        if type(call) is not Call or error is not None:
            return
        permits = self.by_key.get(call.keys[0])
        if permits is None or node is not permits.node:
            return
        server = node.server
        now_ms = server.now_ms
        holders = permits.holders(node, now_ms)
        new = self.newcomers(permits, holders)
        self.lasts(node, permits, call, value)
        if call.script == "sem_acquire" and value[0] == 0:
            permits.ledger.placed(value[3])
        stored = server.peek(permits.key, now_ms)
        if new and stored is not None:
            limit = int(stored.split()[0])
            total = sum(map(_weight, holders))
            if total > limit:
                names = ", ".join(token.decode() for token in new)
                self.world.fail("too many", f"{call.script} let in {names}: {total} of {limit} permits are out")


PRIMITIVE = Semaphore

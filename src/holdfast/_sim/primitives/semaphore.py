"""The semaphore: requests of all sizes, resized now and then; never more permits out than there are."""

from __future__ import annotations

from typing import Any

from holdfast._core.effects import Call, Now, Sleep, Spawn
from holdfast._core.hold import Hold, LeaseState
from holdfast._core.keys import LockKeys, lock_keys
from holdfast._core.semaphore import SemaphoreTurn, resize, semaphore_keys
from holdfast._core.trouble import Trouble
from holdfast._core.waiting import Grant, wait_for
from holdfast._sim.check import Belief, Ledger, Primitive
from holdfast._sim.driver import Cancelled, Process
from holdfast._sim.network import Node, Request
from holdfast._sim.world import World
from holdfast.errors import DeclaredDifferently, TooManyPermits

__all__ = ["PRIMITIVE"]

#: Permits as declared, and as a resize may leave them.
_DECLARED = 4
_LEAST, _MOST = 2, 6


def _weight(token: bytes | str) -> int:
    text = token.decode() if isinstance(token, bytes) else token
    return int(text.split(":")[1].partition(".")[0])


class _Permits:
    """One semaphore."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.keys: LockKeys = semaphore_keys(lock_keys("holdfast", name))
        self.limit_key = self.keys.lock.encode()
        self.queue_key = self.keys.queue.encode()
        self.holders_key = f"{self.keys.base}:holders".encode()
        self.ledger = Ledger(world, name, conflict=lambda one, other: False, until=self.until)
        #: Who held by the server's last word, to see who is new.
        self.held: set[bytes] = set()

    def until(self, token: bytes, kind: str) -> float | None:
        """How long the server keeps it for that token."""
        node = self.world.master
        holders = node.server.peek(self.holders_key, node.wall_ms())
        score = holders.scores.get(token) if holders is not None else None
        return None if score is None else node.until(int(score))

    def holders(self, node: Node, now_ms: int) -> list[bytes]:
        """Whose time is not over."""
        holders = node.server.peek(self.holders_key, now_ms)
        return [token for token, over_ms in holders.scores.items() if over_ms > now_ms] if holders is not None else []


class Semaphore(Primitive):
    """Workload and invariants of the semaphore."""

    name = "semaphore"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.all = [_Permits(world, f"s{number}") for number in range(world.options.locks)]
        self.by_key = {permits.keys.lock: permits for permits in self.all}
        #: Resizing makes "never more than the limit" a matter of the moment of the grant alone.
        self.resizes = world.rng.random() < 0.3

    # -- workload ---------------------------------------------------------------------------------

    def start(self, process: Process) -> None:
        for number in range(self.world.options.tasks):
            process.spawn(self.work(process), f"user {number}")

    async def work(self, process: Process) -> None:
        """Use permits again and again, until the world ends."""
        world, rng, options = self.world, self.world.rng, self.world.options
        while world.phase != "drain":
            try:
                await Sleep(rng.expovariate(1 / options.think_s))
                if world.phase == "drain":
                    return
                permits = rng.choice(self.all)
                if self.resizes and rng.random() < 0.1:
                    await self.resize(process, permits)
                else:
                    await self.session(process, permits)
            except Cancelled:
                continue

    async def resize(self, process: Process, permits: _Permits) -> None:
        """To anything."""
        limit = self.world.rng.randint(_LEAST, _MOST)
        try:
            await resize(permits.keys, limit, process.settings.patience_s, process.settings)
        except Trouble:
            pass

    async def session(self, process: Process, permits: _Permits) -> None:
        """One acquisition and what follows it, done as the faces do it."""
        world, rng, options = self.world, self.world.rng, self.world.options
        ledger = permits.ledger
        ttl_ms = int(1000 * rng.uniform(*options.ttl_s))
        r = rng.random()
        timeout_s = (
            None if r < options.patient else 0.0 if r < options.patient + 0.1 else rng.random() * 2 * options.work_s
        )
        client, owner, number = process.token().split(":")
        weight = rng.choice((1, 1, 1, 2, 3, _DECLARED))
        token = f"{client}:{weight}.{owner}:{number}"
        turn = SemaphoreTurn(permits.keys, token, ttl_ms, _DECLARED, process.settings, options.sync)
        ledger.begins(process, token)
        try:
            got = await wait_for(turn, timeout_s, listening=process.listening(None, permits.keys.lock))
        except (Trouble, TooManyPermits, DeclaredDifferently) as error:
            self.left(process, permits, token)
            world.counted[type(error).__name__] += 1
            if not self.resizes and not isinstance(error, Trouble):
                world.fail("refused", f"{token}: {error}")
            return
        except Cancelled:
            self.left(process, permits, token)
            raise
        if not isinstance(got, Grant):
            self.left(process, permits, token)
            world.counted["timeout"] += 1
            return
        renew = rng.random() < 0.8
        hold = Hold(ledger.name, token, got.fence, ttl_ms, got.sent_at, turn.renew, turn.release, renew)
        belief = ledger.granted(process, hold, "permits", ordered=False)
        self.look_at_beliefs(permits)
        process.watch(hold)
        cancelled = False
        try:
            await self.hold_on(belief)
        except Cancelled:
            cancelled = True
        hold.over(process.local())
        process.unwatch(hold)
        ledger.released(belief)
        ledger.ended[belief.token] = world.now
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

    def look_at_beliefs(self, permits: _Permits) -> None:
        """What all clients believe to hold together."""
        living = [belief for belief in permits.ledger.beliefs.values() if belief.lives()]
        total = sum(_weight(belief.token) for belief in living)
        # A resize may have come between two grants, and those of the larger limit keep theirs.
        allowed = _MOST if self.resizes else _DECLARED
        if total > allowed:
            shown = ", ".join(map(str, living))
            self.world.fail("overlap", f"{permits.ledger.name}: {total} of {allowed} permits are held: {shown}")

    async def hold_on(self, belief: Belief) -> None:
        """Work while the lease lasts."""
        rng, options = self.world.rng, self.world.options
        hold = belief.hold
        now = await Now()
        until = now + rng.expovariate(1 / options.work_s)
        while now < until and not hold.over(now):
            await Sleep(min(until - now, max(0.01, hold.deadline - now)))
            now = await Now()

    def left(self, process: Process, permits: _Permits, token: str) -> None:
        """An acquisition ended without a grant: in calm times its traces on the server are gone at once."""
        permits.ledger.leaves(process, token)
        world = self.world
        if world.phase != "chaos" and world.now > world.calm_since + world.options.waiting_s():
            world.after(world.options.brief_s(), self.no_traces, permits, token.encode())

    def no_traces(self, permits: _Permits, token: bytes) -> None:
        if token in self.on_server(permits):
            self.world.fail("orphan", f"{token.decode()} is still on the server, long after its acquisition ended")

    def on_server(self, permits: _Permits) -> list[bytes]:
        """All tokens that live there."""
        node = self.world.master
        now_ms = node.wall_ms()
        queue = node.server.peek(permits.queue_key, now_ms)
        return (list(queue.scores) if queue is not None else []) + permits.holders(node, now_ms)

    # -- invariants on the server -----------------------------------------------------------------

    def executed(self, node: Node, request: Request, value: Any, error: Trouble | None) -> None:
        call = request.call
        if type(call) is not Call or error is not None or node is not self.world.master:
            return
        permits = self.by_key.get(call.keys[0])
        if permits is None:
            return
        server = node.server
        now_ms = server.now_ms
        holders = permits.holders(node, now_ms)
        new = set(holders) - permits.held
        permits.held = set(holders)
        stored = server.peek(permits.limit_key, now_ms)
        if new and stored is not None:
            limit = int(stored.split()[0])
            total = sum(map(_weight, holders))
            if total > limit:
                names = ", ".join(token.decode() for token in new)
                self.world.fail("too many", f"{call.script} let in {names}: {total} of {limit} permits are out")

    def crashed(self, process: Process) -> None:
        for permits in self.all:
            permits.ledger.crashed(process)

    def lost_data(self, node: Node) -> None:
        for permits in self.all:
            permits.held.clear()

    def settled(self) -> None:
        for permits in self.all:
            left = self.on_server(permits)
            if left:
                self.world.fail("orphan", f"{left[0].decode()} is on the server when all is over")


async def _quietly(hold: Hold) -> None:
    try:
        await hold.release()
    except Trouble:
        pass


PRIMITIVE = Semaphore

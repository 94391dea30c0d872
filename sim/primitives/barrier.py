"""Barriers: all parties of a generation go on together, or learn that it is broken; generations never mix."""

from __future__ import annotations

from typing import Any

from holdfast._core.effects import Call
from holdfast._core.failure import RequestFailed
from holdfast._core.keys import lock_keys
from holdfast._core.kinds import BARRIER
from holdfast._core.openings import BarrierAcquisition, move_barrier
from holdfast._core.waiting import wait_for
from holdfast.errors import BrokenBarrierError, DeclarationMismatch
from sim.driver import Process
from sim.network import Node, Request
from sim.sessions import Sessions, Thing
from sim.world import World

__all__ = ["PRIMITIVE"]

#: Longer than any world.
_KEEP_MS = 86_400_000


class _Barrier(Thing):
    """One barrier, and how it stands by the server's last word."""

    def __init__(self, world: World, name: str, parties: int) -> None:
        super().__init__(world, lock_keys("holdfast", name).of(BARRIER))
        self.parties = parties
        self.queue_key = f"{self.keys.base}:arrived".encode()
        self.released_key = f"{self.keys.base}:released".encode()
        self.generation = 0
        self.broken = False
        self.arrived: list[bytes] = []
        #: The parties that were let go on, and as which of their generation.
        self.released: dict[bytes, tuple[int, int]] = {}
        #: The generation that a party was told to be in.
        self.told: dict[bytes, int] = {}
        #: When data were lost: what was so before is not known any more.
        self.lost_at = -1.0
        #: When it was last broken or made usable again, and when which generation went on.
        self.ended_at: list[float] = []
        self.went_on_at: dict[int, float] = {}

    def held(self) -> list[bytes]:
        return []

    def look(self, node: Node, now_ms: int) -> tuple[int, bool, list[bytes], dict[bytes, float]]:
        """(generation, broken?, who has arrived, in order, who was let go on)."""
        server = node.server
        state = server.peek(self.key, now_ms) or {}
        arrived = server.peek(self.queue_key, now_ms)
        released = server.peek(self.released_key, now_ms)
        return (
            int(state.get(b"generation", b"0")),
            state.get(b"broken") == b"1",
            [] if arrived is None else [token for _, token in arrived.order],
            {} if released is None else released.scores,
        )


class Barriers(Sessions[_Barrier]):
    """Workload and invariants of the barrier."""

    name = "barrier"
    fits_small_worlds = False  # a waiter needs others
    worker = "party"
    refusals = (RequestFailed, BrokenBarrierError, DeclarationMismatch)

    def __init__(self, world: World) -> None:
        options = world.options
        most = max(2, min(4, options.processes * options.tasks))
        super().__init__(
            world, [_Barrier(world, f"b{number}", world.rng.randint(2, most)) for number in range(options.locks)]
        )
        #: What `aborts` and resets there are, beside those that must be.
        self.breaks = world.rng.choice((0.0, 0.0, 0.05))
        self.began: dict[str, tuple[_Barrier, float]] = {}
        #: When a party's first request was carried out: what ended before that is nothing to it.
        self.came_at: dict[str, float] = {}

    # -- workload ---------------------------------------------------------------------------------

    def start(self, process: Process) -> None:
        super().start(process)
        process.begin(self.help_out(process), "helper")

    async def session(self, process: Process, thing: _Barrier) -> None:
        world, rng = self.world, self.world.rng
        if rng.random() < self.breaks:
            await self.move(process, thing, rng.choice(("abort", "reset")))
            return
        timeout_s, token = self.timeout_s(), process.token()
        turn = BarrierAcquisition(thing.keys, token, thing.parties, _KEEP_MS, process.settings)
        self.plays("Barrier.wait")
        if timeout_s is None:
            self.inside[token] = process
        self.began[token] = thing, world.now
        try:
            got = await self.ask(process, [thing], token, wait_for(turn, timeout_s, listening=True))
        finally:
            self.inside.pop(token, None)
            began = self.began.pop(token)[1]
            self.came_at.pop(token, None)
        if got is None:
            return
        thing.ledger.leaves(process, token)
        world.grants += 1
        released = thing.released.get(token.encode())
        if began <= thing.lost_at or world.options.replicas:
            return
        if released is None or released[0] != got.fence:
            world.fail("let through", f"{token} was told to go on as {got.fence}, the server let it go on: {released}")
        elif world.phase != "chaos":
            self.look_at_lateness(max(thing.went_on_at.get(released[1], began), began), f"{token} went on")

    async def help(self, process: Process, thing: _Barrier) -> None:
        # In the end no one waits for parties that do not come any more.
        for each in self.things:
            if self.world.phase == "drain":
                await self.move(process, each, "abort")
            elif each.broken:
                await self.move(process, each, "reset")

    async def move(self, process: Process, thing: _Barrier, what: str) -> None:
        self.plays(f"Barrier.{what}")
        try:
            await move_barrier(thing.keys, what, thing.parties, _KEEP_MS, process.settings)
        except RequestFailed:
            pass

    def refused(self, token: str, error: Exception) -> None:
        world = self.world
        if isinstance(error, RequestFailed):
            return
        thing, began = self.began[token]
        if not isinstance(error, BrokenBarrierError):
            world.fail("refused", f"{token}: {error}")
        elif began <= thing.lost_at or world.options.replicas:
            return
        elif token.encode() in thing.released:
            world.fail("generations mixed", f"{token} was let go on, and told that the barrier is broken")
        elif not thing.broken and not any(at >= began for at in thing.ended_at) and not thing.went_on_at:
            world.fail("refused", f"{token} was told that {thing.keys.lock} is broken, and it was not")
        elif world.phase != "chaos":
            came_at = self.came_at.get(token, began)
            broken_at = [at for at in thing.ended_at if at >= came_at]
            self.look_at_lateness(broken_at[0] if broken_at else world.now, f"{token} was told that it is broken")

    def look_at_lateness(self, since: float, what: str) -> None:
        """Check that in calm times all hear at once."""
        world, options = self.world, self.world.options
        settled = world.calm_since + (0.0 if options.mode == "calm" else options.waiting_s())
        late = world.now - max(since, world.calm_since)
        looks_s = options.waiting_s() + world.settings.signal_recheck_ms / 1000
        allowed = options.short_retry_s() if since > settled else looks_s
        if late > allowed:
            world.fail("idle", f"{what} {late:.3f} s after it was so")

    # -- invariants on the server -----------------------------------------------------------------

    def executed(self, node: Node, request: Request, value: Any, error: RequestFailed | None) -> None:
        call = request.call
        thing = self.by_key.get(call.keys[0]) if type(call) is Call else None
        if thing is None or node is not thing.node or error is not None:
            return
        assert type(call) is Call
        world, server = self.world, node.server
        generation, broken, arrived, released = thing.look(node, server.now_ms)
        moves = call.script == "barrier_move"
        asker = b"" if moves else str(call.args[0]).encode()
        if asker.decode() in self.began:
            self.came_at.setdefault(asker.decode(), world.now)
        what = str(call.args[0] if moves else call.args[1])
        if not moves and int(call.args[2]):
            thing.told[asker] = int(call.args[2]) - 1
        new = {token: score for token, score in released.items() if token not in thing.released}
        if moves and what == "reset":
            expected = thing.generation + 1, False
        elif moves and what == "abort":
            expected = thing.generation, True
        elif new:
            expected = thing.generation + 1, False
        else:
            # A party whose generation is over does not break the next one.
            theirs = not moves and int(call.args[2]) in (0, thing.generation + 1)
            expected = thing.generation, thing.broken or (what == "break" and theirs and value[0] == -2)
        if (generation, broken) != expected:
            world.fail("generations mixed", f"{call.script} {what}: {(generation, broken)}, and not {expected}")
        if new:
            self.went_on(node, thing, asker, new)
        elif not moves and value[0] == 1 and asker not in released:
            world.fail("let through", f"{asker.decode()} was told to go on, and was not let go on")
        if generation != thing.generation or broken:
            if arrived:
                world.fail("generations mixed", f"{arrived[0].decode()} is still there in the next generation")
            if not new and (broken, generation) != (thing.broken, thing.generation):
                thing.ended_at.append(world.now)
        elif len(arrived) >= thing.parties:
            world.fail("kept out", f"{len(arrived)} of {thing.parties} parties have arrived, and stay")
        for token in thing.arrived:
            gone = token not in arrived and token not in new and token != asker
            if gone and generation == thing.generation and not broken and self.is_there(node, thing, token):
                world.fail("forgotten", f"{call.script} {what} took {token.decode()} from those who have arrived")
        thing.generation, thing.broken, thing.arrived = generation, broken, arrived

    def is_there(self, node: Node, thing: _Barrier, token: bytes) -> bool:
        return node.server.listens(thing.keys, token)

    def went_on(self, node: Node, thing: _Barrier, asker: bytes, new: dict[bytes, float]) -> None:
        """A generation is complete."""
        world = self.world
        if len(new) != thing.parties:
            world.fail("let through", f"{len(new)} of {thing.parties} parties went on")
        if thing.broken:
            world.fail("let through", f"{thing.keys.lock} let parties go on, and is broken")
        order = [token for token in thing.arrived if token in new]
        order += [token for token in new if token not in order]
        for token, score in new.items():
            if token != asker and token not in thing.arrived:
                world.fail("let through", f"{token.decode()} was let go on, and had not arrived")
            if token != asker and not self.is_there(node, thing, token):
                world.fail("handed to the dead", f"{token.decode()} counted as arrived, and its process is not there")
            if thing.told.get(token, thing.generation) != thing.generation:
                world.fail("generations mixed", f"{token.decode()} of {thing.told[token]} in {thing.generation}")
            if int(score) % 1000 != order.index(token):
                world.fail("order", f"{token.decode()} is told to be number {int(score) % 1000}: {order}")
            thing.released[token] = int(score) % 1000, thing.generation
        thing.went_on_at[thing.generation] = world.now

    def lost_data(self, node: Node) -> None:
        for thing in self.things:
            if node is thing.node:
                thing.generation, thing.broken, thing.arrived, released = thing.look(node, node.wall_ms())
                thing.released = {token: (int(score) % 1000, thing.generation) for token, score in released.items()}
                thing.told.clear()
                thing.lost_at = self.world.now


PRIMITIVE = Barriers

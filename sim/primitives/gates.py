"""Events and latches: waiters go through once it is or was open, and not before; an action counts once."""

from __future__ import annotations

from typing import Any

from holdfast._core.effects import Call, Protocol
from holdfast._core.failure import RequestFailed
from holdfast._core.keys import lock_keys
from holdfast._core.kinds import EVENT, LATCH, Kind
from holdfast._core.openings import GateAcquisition, move
from holdfast._core.waiting import Busy, Grant, wait_for
from holdfast.errors import DeclarationMismatch
from sim.driver import Process
from sim.network import Node, Request
from sim.sessions import Sessions, Thing
from sim.world import World

__all__ = ["PRIMITIVE"]

#: Longer than any world: what is kept for less is forgotten on purpose.
_KEEP_MS = 86_400_000
_COUNT = 5
#: Number of latches, one after the other, since each opens for good.
_LATCHES = 20


class _Gate(Thing):
    """One event or latch, and how it stands by the server's last word."""

    def __init__(self, world: World, kind: Kind, name: str, declared: int) -> None:
        super().__init__(world, lock_keys("holdfast", name).of(kind))
        self.gone_key = self.keys.gone.encode()
        self.kind = kind
        self.declared = declared
        self.missing = declared
        #: Actions that count no more, and until which ms the server knows them.
        self.done: set[bytes] = set()
        self.done_until_ms = 0
        #: Since when it is open; until when it was, or is.
        self.opened_at: float | None = None
        self.open_until = -1.0
        #: How often it has opened; and, of those that were queued, how often it had when they came, and as which number
        #: the server has told them that.
        self.openings = 0
        self.came: dict[bytes, tuple[int, int]] = {}
        #: Those of them that the server may have forgotten.
        self.forgotten: set[bytes] = set()
        #: When it opened for those that had come.
        self.opened_for: dict[bytes, float] = {}

    def held(self) -> list[bytes]:
        return []

    def state(self, node: Node, now_ms: int) -> int:
        """Return how many are missing, on that server."""
        found = node.server.peek(self.key, now_ms)
        return self.declared if found is None else int(found.split()[0])

    def stands(self, missing: int) -> None:
        """Note how the gate was seen: open if nothing is missing."""
        now = self.world.now
        if missing == 0:
            self.opened_at = now if self.opened_at is None else self.opened_at
        elif self.opened_at is not None:
            self.opened_at, self.open_until = None, now
        self.missing = missing


class Gates(Sessions[_Gate]):
    """Workload and invariants of events and latches."""

    name = "gates"
    fits_small_worlds = False  # a waiter needs others
    refusals = (RequestFailed, DeclarationMismatch)

    def __init__(self, world: World) -> None:
        events = [_Gate(world, EVENT, f"e{number}", 1) for number in range(world.options.locks)]
        self.latches = [_Gate(world, LATCH, f"l{number}", _COUNT) for number in range(_LATCHES)]
        super().__init__(world, events + self.latches)
        self.events = events

    # -- workload ---------------------------------------------------------------------------------

    def start(self, process: Process) -> None:
        super().start(process)
        process.begin(self.help_out(process), "opener")

    async def session(self, process: Process, thing: _Gate) -> None:
        rng = self.world.rng
        chosen = rng.choice(self.events) if rng.random() < 0.5 else self.latch()
        r = rng.random()
        if r < 0.6:
            await self.wait(process, chosen)
        elif chosen.kind is EVENT:
            await self.move(process, chosen, rng.choice(("open", "shut", "shut", "look")))
        else:
            await self.move(process, chosen, rng.choice((1, 1, 2, "look")))

    def latch(self) -> _Gate:
        """The first that is shut, or at times the one before: some come late."""
        shut = next((at for at, latch in enumerate(self.latches) if latch.missing), _LATCHES - 1)
        return self.latches[max(0, shut - (self.world.rng.random() < 0.2))]

    async def help(self, process: Process, thing: _Gate) -> None:
        # In the end everything is opened in which someone waits.
        chosen = self.world.rng.choice(self.events) if self.world.rng.random() < 0.5 else self.latch()
        if self.world.phase == "drain":
            inside = {name for name, *_ in (token.split(" ") for token in self.inside)}
            for waited in self.things:
                if waited.keys.lock in inside:
                    await self.move(process, waited, "open" if waited.kind is EVENT else _COUNT)
        else:
            await self.move(process, chosen, "open" if chosen.kind is EVENT else 1)

    async def move(self, process: Process, thing: _Gate, what: str | int) -> None:
        if thing.kind is EVENT:
            self.plays(f"Event.{ {'open': 'set', 'shut': 'clear', 'look': 'is_set'}[str(what)] }")
        else:
            self.plays("CountDownLatch.remaining" if what == "look" else "CountDownLatch.count_down")
        try:
            await move(thing.kind, thing.keys, process.token(), what, thing.declared, _KEEP_MS, process.settings)
        except RequestFailed:
            pass

    async def wait(self, process: Process, thing: _Gate) -> None:
        """Wait as the APIs do."""
        world = self.world
        self.plays("Event.wait" if thing.kind is EVENT else "CountDownLatch.wait")
        timeout_s, token = self.timeout_s(), process.token()
        turn = GateAcquisition(thing.kind, thing.keys, token, thing.declared, _KEEP_MS, process.settings)
        asking = wait_for(turn, timeout_s, listening=process.listening(thing.keys.lock))
        began = world.now
        mark = f"{thing.keys.lock} {token}"
        if timeout_s is None:
            self.inside[mark] = process
        try:
            got = await self.ask(process, [thing], token, self.looked(thing, token, began, asking))
        finally:
            self.inside.pop(mark, None)
        if got is not None:
            thing.ledger.leaves(process, token)
            world.grants += 1
            self.let_through(thing, token, began)

    async def looked(self, thing: _Gate, token: str, began: float, asking: Protocol[Grant | Busy]) -> Grant | Busy:
        got = await asking
        world, options = self.world, self.world.options
        if isinstance(got, Busy) and thing.opened_at is not None and not options.replicas:
            open_s = world.now - max(thing.opened_at, began)
            calm = options.mode == "calm" and open_s > options.short_retry_s()
            if thing.opened_at < began or calm:
                world.fail("kept out", f"{thing.keys.lock} was open for {open_s:.3f} s, and time was up for a waiter")
        opened_at = thing.opened_for.pop(token.encode(), world.now)
        if isinstance(got, Busy) and options.mode == "calm" and world.now - opened_at > options.short_retry_s():
            world.fail("kept out", f"{thing.keys.lock} opened for {token} at {opened_at:.3f} s, and time was up for it")
        return got

    def let_through(self, thing: _Gate, token: str, began: float) -> None:
        """Check that the gate was open during the wait, and that no waiter stands before an open gate for long."""
        world, options = self.world, self.world.options
        if thing.opened_at is None and thing.open_until < began and not options.replicas:  # nor a former master
            world.fail("let through", f"{token} went through {thing.keys.lock}, which was shut all the time")
        if thing.opened_at is None or world.phase == "chaos":
            return
        settled = world.calm_since + (0.0 if options.mode == "calm" else options.waiting_s())
        since = max(thing.opened_at, began)
        late = world.now - max(since, world.calm_since)
        allowed = (
            options.short_retry_s()
            if since > settled
            else options.waiting_s() + world.settings.signal_recheck_ms / 1000
        )
        if late > allowed:
            world.fail("idle", f"{token} stood before {thing.keys.lock} for {late:.3f} s, and it was open")

    def refused(self, token: str, error: Exception) -> None:
        if not isinstance(error, RequestFailed):
            self.world.fail("refused", f"{token}: {error}")

    # -- invariants on the server -----------------------------------------------------------------

    def executed(self, node: Node, request: Request, value: Any, error: RequestFailed | None) -> None:
        call = request.call
        thing = self.by_key.get(call.keys[0]) if type(call) is Call else None
        if thing is None or node is not thing.node:
            return
        assert type(call) is Call
        server = node.server
        now_ms = server.now_ms
        before, after = thing.missing, thing.state(node, now_ms)
        if now_ms > thing.done_until_ms:
            thing.done.clear()
        token, what = str(call.args[0]).encode(), call.args[1]
        expected = before
        if call.script == "gate_move" and error is None:
            if what == "look" or token in thing.done:
                expected = before
            elif what in ("open", "shut"):
                expected = 0 if what == "open" else thing.declared
            else:
                expected = max(before - int(what), 0)
            if expected != before:
                thing.done.add(token)
            if before and not expected:
                thing.openings += 1
                thing.opened_for |= dict.fromkeys(thing.came, self.world.now)
            if value != [1, expected]:
                self.world.fail("miscounted", f"{what!r} at {thing.keys.lock}: told {value}, {expected} are missing")
        elif call.script == "gate_wait" and error is None:
            self.waited(thing, token, call, value, after == 0)
        if after != expected:
            self.world.fail("miscounted", f"{call.script} {what!r} at {thing.keys.lock}: {before} missing, now {after}")
        thing.done_until_ms = server.expires.get(thing.gone_key, 0)
        thing.stands(after)

    def waited(self, thing: _Gate, token: bytes, call: Call, value: Any, is_open: bool) -> None:
        """A waiter has looked: it goes through where it is open, or has opened since it came."""
        if call.args[1] == "leave":
            return  # a late request of it may still find that it has opened
        came, number = thing.came.get(token, (thing.openings, 0))
        through = is_open or came < thing.openings
        if (value[0] == 1 and not through) or (value[0] == 0 and is_open):
            self.world.fail("let through", f"{token.decode()} was told {value} at {thing.keys.lock}, open: {is_open}")
        elif value[0] == 0 and through and int(call.args[2]) == number > 0 and token not in thing.forgotten:
            self.world.fail("kept out", f"{token.decode()} was told {value}, and {thing.keys.lock} had opened for it")
        elif value[0] == 0 and value[3] >= 0:
            thing.came[token] = thing.openings, value[4]
            thing.forgotten.discard(token)
        elif value[0] == 1:
            thing.opened_for.pop(token, None)

    def lost_data(self, node: Node) -> None:
        now_ms = node.wall_ms()
        for thing in self.things:
            if node is thing.node:
                thing.forgotten |= thing.came.keys()
                thing.opened_for.clear()
                thing.stands(thing.state(node, now_ms))
                gone = node.server.peek(thing.gone_key, now_ms)
                thing.done = set(gone.scores) if gone else set()
                thing.done_until_ms = node.server.expires.get(thing.gone_key, 0)


PRIMITIVE = Gates

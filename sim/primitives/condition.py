"""The condition of a lock: waiters, those who notify, those who leave; no one is forgotten, nothing is told twice."""

from __future__ import annotations

from typing import Any

from holdfast._core import condition
from holdfast._core.condition import ConditionAcquisition, condition_key
from holdfast._core.effects import Call, Spawn
from holdfast._core.failure import RequestFailed
from holdfast._core.record import LeaseRecord
from holdfast._core.waiting import wait_for
from holdfast.errors import NotHeld
from sim.check import Belief
from sim.driver import Cancelled, Process
from sim.network import Node, Request
from sim.primitives.mutex import Lock, Locks
from sim.sessions import quietly
from sim.world import World

__all__ = ["PRIMITIVE"]

#: What `notify_all` passes.
_ALL = 1_000_000


class _Waiters:
    """Who stands at one condition, by the server's last word."""

    def __init__(self, lock: Lock) -> None:
        self.key_name = condition_key(lock.keys, "changed")
        self.key = self.key_name.encode()
        self.standing: dict[bytes, float] = {}
        #: The ms at which the server forgets them all.
        self.until_ms = 0
        #: The last notification: the holder and its number, and how many it moved.
        self.last: tuple[bytes, int, int] | None = None


class Condition(Locks):
    """Workload and invariants: those of the lock hold on."""

    name = "condition"
    refusals = (RequestFailed, NotHeld)

    def __init__(self, world: World) -> None:
        super().__init__(world, [Lock(world, f"c{number}") for number in range(world.options.locks)])
        self.waiters = {lock: _Waiters(lock) for lock in self.things}
        #: Tokens of requests that the network has copied.
        self.twinned: set[bytes] = set()
        for lock in self.things:
            # Who is called is not told so: it hears of its turn, or looks for itself.
            lock.ledger.looks_after_s = min(world.settings.signal_recheck_ms / 1000, world.options.ttl_s[1])

    # -- workload ---------------------------------------------------------------------------------

    def start(self, process: Process) -> None:
        super().start(process)
        process.begin(self.help_out(process), "caller")

    async def session(self, process: Process, thing: Lock) -> None:
        rng = self.world.rng
        taken = await self.take(process, thing)
        if taken is None:
            return
        record, parts = taken
        cancelled = False
        try:
            for _ in range(rng.choice((1, 1, 2, 3))):
                await self.hold_on(process, record)
                if record.check_expired(process.now()):
                    break
                r = rng.random()
                if r < 0.5 and self.world.phase != "drain":
                    (_, belief), *_ = parts
                    parts = []
                    again = await self.wait(process, thing, record, belief)
                    if again is None:
                        return
                    record, parts = again
                elif r < 0.85:
                    await self.notify(process, thing, record, rng.choice((1, 1, 2, _ALL)))
        except Cancelled:
            cancelled = True
        if parts:
            await self.end(process, record, parts, cancelled)
        if cancelled:
            raise Cancelled

    async def wait(
        self, process: Process, lock: Lock, record: LeaseRecord, belief: Belief
    ) -> tuple[LeaseRecord, list[tuple[Lock, Belief]]] | None:
        """Wait as the APIs do: the lease before, and the one after."""
        world, rng = self.world, self.world.rng
        token, ttl_ms = process.token(), record.ttl_ms
        turn = ConditionAcquisition(
            lock.keys,
            self.waiters[lock].key_name,
            record.token,
            token,
            ttl_ms,
            process.settings,
            world.options.sync,
        )
        turn.renews, turn.stray_holder = rng.random() < 0.8, record.stray
        timeout_s = None if rng.random() < world.options.patient else 0.001 + rng.random() * 4 * world.options.work_s
        record.mark_released()
        process.schedule.remove(record)
        self.gone(lock, belief)
        lock.ledger.ended[belief.token] = world.now
        self.plays("Condition.wait")
        if timeout_s is None:
            self.inside[token] = process
        got = None
        try:
            got = await self.ask(process, [lock], token, wait_for(turn, timeout_s, listening=True))
        finally:
            self.inside.pop(token, None)
            if got is None and process.alive:
                await Spawn(quietly(record))
                await Spawn(turn.give_back())
        if got is None:
            return None
        world.counted["notified" if turn.notified else "not notified in time"] += 1
        again = self.hold_of(process, lock, token, ttl_ms, got, turn.renews)
        return again, self.believe(process, [lock], again)

    async def notify(self, process: Process, lock: Lock, record: LeaseRecord, count: int) -> None:
        """Move that many to the lock's queue."""
        self.plays("Condition.notify_all" if count == _ALL else "Condition.notify")
        number = int(process.token().rpartition(":")[2])
        key = self.waiters[lock].key_name
        try:
            moved = await condition.notify(lock.keys, key, record.token, number, count, record.ttl_ms, process.settings)
        except RequestFailed:
            return
        if moved < 0:
            record.lose("taken")

    async def help(self, process: Process, thing: Lock) -> None:
        taken = await self.take(process, thing)
        if taken is None:
            return
        cancelled = False
        try:
            await self.notify(process, thing, taken[0], _ALL)
        except Cancelled:
            cancelled = True
        await self.end(process, *taken, cancelled)

    def refused(self, token: str, error: Exception) -> None:
        if isinstance(error, NotHeld) and self.world.options.mode == "calm":
            self.world.fail("refused", f"{token}: {error}, and nothing was wrong")

    def no_traces(self, thing: Lock, token: bytes) -> None:
        super().no_traces(thing, token)
        if token in self.standing(thing):
            self.world.fail("orphan", f"{token.decode()} waits for a notification, long after it has left")

    def standing(self, lock: Lock) -> dict[bytes, float]:
        """Return the tokens that stand at the lock's condition now."""
        node = lock.node
        waiters = node.server.peek(self.waiters[lock].key, node.wall_ms())
        return {} if waiters is None else dict(waiters.scores)

    # -- invariants on the server -----------------------------------------------------------------

    def lets_go(self, call: Call) -> bytes | None:
        return str(call.args[7]).encode() if call.script == "cond_wait" else None

    def executed(self, node: Node, request: Request, value: Any, error: RequestFailed | None) -> None:
        call = request.call
        lock = self.by_key.get(call.keys[0]) if type(call) is Call and call.script.startswith("cond_") else None
        if lock is not None and node is lock.node:
            assert type(call) is Call
            asker = str(call.args[0]).encode()
            if request.twin:
                self.twinned.add(asker)
            if call.script == "cond_wait" and call.args[3] and asker not in self.waiters[lock].standing:
                known = int(call.args[3])
                if node.server.peek(lock.key, node.server.now_ms) == asker and known < lock.arrivals.get(asker, known):
                    # Called and handed the lock before it knew of its place, it came back by when it began to wait.
                    lock.leave_queue(asker)
                    lock.arrivals[asker] = known
                lock.arrivals.setdefault(asker, known)
            self.enter(node, lock)
        super().executed(node, request, value, error)
        if lock is not None and node is lock.node and error is None:
            assert type(call) is Call
            self.moved(node, lock, call, value)

    def enter(self, node: Node, lock: Lock) -> None:
        """Note that waiters which have come into the lock's queue wait for the lock from now on."""
        queue = node.server.peek(lock.queue_key, node.server.now_ms)
        holder = node.server.peek(lock.key, node.server.now_ms)
        standing = self.waiters[lock].standing
        for token, score in list(queue.scores.items()) if queue is not None else ():
            if token in self.twinned and int(score) > lock.arrivals.get(token, int(score)):
                # A copy of an earlier request had given it an earlier place, of which no one was told.
                lock.leave_queue(token)
                lock.arrivals[token] = int(score)
            if token in standing:
                self.begins(lock, token)
            elif int(score) > lock.arrivals.get(token, int(score)) and token in lock.ledger.waiting:
                self.world.fail("order", f"{token.decode()} has lost its place of {lock.arrivals[token]}")
            self.queued(node, lock, token, 0, int(score))
        if holder is not None and holder in standing:
            self.begins(lock, holder)

    def begins(self, lock: Lock, token: bytes) -> None:
        waiting = lock.ledger.waiting
        if token in waiting:
            waiting[token] = self.world.now, waiting[token][1]

    def moved(self, node: Node, lock: Lock, call: Call, value: Any) -> None:
        """Check that a waiter that has left the condition is on to the lock, in the order of coming, or not there."""
        world, server, waiters = self.world, node.server, self.waiters[lock]
        now_ms = server.now_ms
        asker = str(call.args[0]).encode()
        before = waiters.standing if now_ms <= waiters.until_ms else {}
        found = server.peek(waiters.key, now_ms)
        after: dict[bytes, float] = {} if found is None else dict(found.scores)
        waiters.standing = after
        waiters.until_ms = server.expires.get(waiters.key, 0)
        queue = server.peek(lock.queue_key, now_ms)
        holder = server.peek(lock.key, now_ms)
        onward = set(queue.scores) if queue is not None else set()
        if holder is not None:
            onward.add(holder)
        gone = [token for token in before if token not in after]
        called = [token for token in gone if token in onward and token != asker]
        for token in gone:
            there = server.listens(lock.keys, token)
            if token not in onward and there and not (token == asker and call.script == "cond_leave"):
                world.fail("forgotten", f"{call.script} took {token.decode()} from the waiters, and it is nowhere")
        if called and after and max(before[token] for token in called) > min(after.values()):
            world.fail("order", f"{call.script} called {called[-1].decode()} before one who waits for longer")
        if call.script == "cond_notify":
            self.notified(node, lock, call, value, holder, called)
        elif call.script == "cond_wait":
            if value[0] == 0 and asker not in after and asker not in onward:
                world.fail("forgotten", f"{asker.decode()} was told to wait, and stands nowhere")
            if called:
                world.fail("told twice", f"{asker.decode()} began to wait, and {called[0].decode()} was called")
            if asker in after and asker not in before and asker in lock.ledger.waiting and holder == self.lets_go(call):
                world.fail("not at once", f"{asker.decode()} waits, and the lock is still held by {holder!r}")
        elif len(called) > 1:
            world.fail("told twice", f"{asker.decode()} left, and called {len(called)} in its place")
        elif not called and int(call.args[5]) and (value == 2 or (value == 1 and asker not in before)):
            others = [token for token in after if server.listens(lock.keys, token)]
            if others and asker not in after:
                world.fail("forgotten", f"{asker.decode()} was called and left, and {others[0].decode()} was not told")

    def notified(
        self, node: Node, lock: Lock, call: Call, value: int, holder: bytes | None, called: list[bytes]
    ) -> None:
        world, waiters = self.world, self.waiters[lock]
        asker, wanted, number = str(call.args[0]).encode(), int(call.args[1]), int(call.args[3])
        if value < 0:
            return
        if holder != asker:
            world.fail("not the holder", f"{asker.decode()} notified, and {holder!r} holds {lock.ledger.name}")
        last = waiters.last
        if last is not None and last[:2] == (asker, number):
            if called or value != last[2]:
                world.fail("told twice", f"notification {number} of {asker.decode()} was repeated, and called again")
            return
        if not node.server.out_of_memory or value:  # after the first write a server without memory lets all pass
            waiters.last = asker, number, value
        if value != len(called):
            world.fail("forgotten", f"{asker.decode()} was told that {value} were called, and {len(called)} were")
        if value < wanted and waiters.standing:
            left = next(iter(waiters.standing)).decode()
            world.fail("forgotten", f"{value} of {wanted} were called, and {left} waits on")

    def lost_data(self, node: Node) -> None:
        super().lost_data(node)
        for waiters in self.waiters.values():
            found = node.server.data.get(waiters.key)
            waiters.standing = {} if found is None else dict(found.scores)
            waiters.until_ms = node.server.expires.get(waiters.key, 0)
            waiters.last = None

    def settled(self) -> None:
        super().settled()
        for lock in self.things:
            for token in self.standing(lock):
                if token in lock.ledger.ended:
                    self.world.fail("orphan", f"{token.decode()} waits for a notification when all is over")


PRIMITIVE = Condition

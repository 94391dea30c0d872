"""The lock: workers that acquire, work, look at the deadline, release, give up, are cancelled; and what must hold."""

from __future__ import annotations

import bisect
from typing import Any

from holdfast._core import mutex
from holdfast._core.effects import Call, Now, Sleep, Spawn
from holdfast._core.hold import Hold, LeaseState
from holdfast._core.keys import LockKeys, lock_keys
from holdfast._core.trouble import Trouble
from holdfast._sim.check import Belief, Ledger, Primitive
from holdfast._sim.driver import Cancelled, Process
from holdfast._sim.network import Node, Request
from holdfast._sim.world import World

__all__ = ["PRIMITIVE"]


class _Lock:
    """One lock's ledger, and what the servers have done with it."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.keys: LockKeys = lock_keys("holdfast", name)
        self.key = self.keys.lock.encode()
        self.fence_key = self.keys.fence.encode()
        self.queue_key = self.keys.queue.encode()
        self.ledger = Ledger(world, name, until=self.until)
        #: By node: the holder's token and the ms of its end, as of the last change.
        self.holders: dict[int, tuple[bytes, int]] = {}
        #: By node: the greatest fencing token so far, whatever was lost meanwhile.
        self.last_fence: dict[int, int] = {}
        #: The fencing tokens that servers have written for each token; after a failover there may be two.
        self.fences: dict[bytes, set[int]] = {}
        #: Tokens that a server has buried: until which ms of its clock they are refused.
        self.buried: dict[bytes, int] = {}
        #: When each token was first queued (µs of the server), and who waits in that order.
        self.arrivals: dict[bytes, int] = {}
        self.queue: list[tuple[int, bytes]] = []
        #: By node: the ms at which it forgets the queue, as of the last request.
        self.queue_until: dict[int, int] = {}

    def until(self, token: bytes, kind: str) -> float | None:
        """How long the server keeps it for that token."""
        node = self.world.master
        server = node.server
        if server.peek(self.key, node.wall_ms()) != token:
            return None
        return node.until(server.expires.get(self.key, 0))

    def leave_queue(self, token: bytes) -> None:
        arrival = self.arrivals.get(token)
        if arrival is not None:
            at = bisect.bisect_left(self.queue, (arrival, token))
            if at < len(self.queue) and self.queue[at] == (arrival, token):
                del self.queue[at]


class Mutex(Primitive):
    """Workload and invariants of the lock."""

    name = "mutex"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.locks = [_Lock(world, f"m{number}") for number in range(world.options.locks)]
        self.by_key = {lock.keys.lock: lock for lock in self.locks}

    # -- workload ---------------------------------------------------------------------------------

    def start(self, process: Process) -> None:
        for number in range(self.world.options.tasks):
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
        ttl_ms = int(1000 * rng.uniform(*options.ttl_s))
        r = rng.random()
        timeout_s = (
            None if r < options.patient else 0.0 if r < options.patient + 0.1 else rng.random() * 2 * options.work_s
        )
        token = process.token()
        name = token.encode()
        keys, ledger, settings = lock.keys, lock.ledger, process.settings
        ledger.begins(process, token)
        try:
            got = await mutex.acquire(
                keys,
                token,
                ttl_ms,
                timeout_s,
                listening=process.listening(None, keys.lock),
                settings=settings,
                sync=options.sync,
            )
        except Trouble as trouble:
            self.left(process, lock, token)
            if world.trace is not None:
                world.note(process.name, f"{token}: {trouble!r}")
            return
        except Cancelled:
            self.left(process, lock, token)
            raise
        if not isinstance(got, mutex.Grant):
            self.left(process, lock, token)
            world.counted["timeout"] += 1
            return
        patience_s = mutex.patience_for(ttl_ms, settings)
        hold = Hold(
            ledger.name,
            token,
            got.fence,
            ttl_ms,
            got.sent_at,
            lambda ttl: mutex.renew(keys, token, patience_s, ttl, options.sync),
            lambda: mutex.release(keys, token, ttl_ms, settings),
            rng.random() < 0.8,
            int(ttl_ms * 1.5) if rng.random() < 0.1 else None,
        )
        belief = ledger.granted(process, hold)
        if got.fence not in lock.fences.get(name, ()):
            world.fail("told fence", f"{token} was told fence {got.fence}, the server wrote {lock.fences.get(name)}")
        process.watch(hold)
        cancelled = False
        try:
            await self.hold_on(belief)
        except Cancelled:
            cancelled = True
        hold.over(process.local())
        process.unwatch(hold)
        ledger.released(belief)
        ledger.ended[name] = world.now
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
            if options.careless:
                hold.deadline = now + 1e6
            if hold.over(now):
                return
            await Sleep(min(until - now, max(0.01, hold.deadline - now)))
            now = await Now()

    def left(self, process: Process, lock: _Lock, token: str) -> None:
        """An acquisition ended without a grant: in calm times its traces on the server are gone at once."""
        lock.ledger.leaves(process, token)
        world = self.world
        if world.phase != "chaos" and world.now > world.calm_since + world.options.waiting_s():
            world.after(world.options.brief_s(), self.no_traces, lock, token.encode())

    def no_traces(self, lock: _Lock, token: bytes) -> None:
        world = self.world
        server = world.master.server
        now_ms = world.master.wall_ms()
        queue = server.peek(lock.queue_key, now_ms)
        if server.peek(lock.key, now_ms) == token or (queue is not None and token in queue.scores):
            world.fail("orphan", f"{token.decode()} is still on the server, long after its acquisition ended")

    # -- invariants on the server -----------------------------------------------------------------

    def executed(self, node: Node, request: Request, value: Any, error: Trouble | None) -> None:
        call = request.call
        if type(call) is not Call:
            return
        lock = self.by_key.get(call.keys[0])
        if lock is None:
            return
        world = self.world
        server = node.server
        now_ms = server.now_ms
        script = call.script
        asker = str(call.args[0]).encode() if call.args else b""
        before = lock.holders.get(node.number)
        if before is not None and now_ms > before[1]:
            before = None  # its time was over
        if lock.queue and now_ms > lock.queue_until.get(node.number, now_ms) and node is world.master:
            lock.queue.clear()  # nobody had asked for so long that the server has forgotten the queue
            world.counted["queue forgotten"] += 1
        if lock.queue_key in server.expires:
            lock.queue_until[node.number] = server.expires[lock.queue_key]
        token = server.data.get(lock.key)
        if script == "acquire" and call.args[3]:
            lock.arrivals.setdefault(asker, int(call.args[3]))
        if token is None:
            if before is not None and before[0] != asker:
                world.fail("stolen", f"{script} of {asker.decode()} removed {before[0].decode()}")
            lock.holders.pop(node.number, None)
            if before is not None and script == "release":
                self.in_order(node, lock, None)
        else:
            until = server.expires.get(lock.key, 0)
            if before is not None and before[0] != token and before[0] != asker:
                world.fail("stolen", f"{script} of {asker.decode()} replaced {before[0].decode()}")
            if before is None or before[0] != token:
                if token != asker and not server.numsub(lock.keys.inboxes.encode() + token.split(b":")[0]):
                    world.fail("handed to the dead", f"{token.decode()} got the lock, and its process is not there")
                self.new_holder(node, lock, token)
            elif until > before[1]:
                ended = lock.ledger.ended.get(token)
                if script == "renew" and ended is not None and request.sent_at > ended:
                    world.fail("orphan", f"{token.decode()} was renewed after its end")
            lock.holders[node.number] = token, until
        if script == "acquire" and type(value) is list and value[0] == 0 and value[3] >= 0:
            self.queued(node, lock, asker, int(call.args[3]), value[4])
        elif script == "release" and call.args[4] and error is None and node is world.master:
            lock.leave_queue(asker)
            if not server.out_of_memory:
                lock.buried[asker] = now_ms + int(call.args[4])

    def queued(self, node: Node, lock: _Lock, token: bytes, known: int, told: int) -> None:
        """It has a place now. `known`: the arrival that it was told before, or 0; with it, it keeps its place."""
        if token not in lock.ledger.waiting or node is not self.world.master:
            return  # nobody waits for that any more
        if known and told != known:
            self.world.fail("order", f"{token.decode()} asked with arrival {known} and was told {told}")
        arrival = lock.arrivals.get(token, 0)
        if (arrival, token) not in lock.queue:
            lock.arrivals[token] = told
            bisect.insort(lock.queue, (told, token))
        elif told < arrival:
            lock.queue.remove((arrival, token))
            lock.arrivals[token] = told
            bisect.insort(lock.queue, (told, token))
        elif told > arrival:
            self.world.fail("order", f"{token.decode()} arrived at {arrival} and was told {told}")

    def new_holder(self, node: Node, lock: _Lock, token: bytes) -> None:
        """The lock has changed hands on a server."""
        world = self.world
        server = node.server
        fence = int(server.data.get(lock.fence_key, b"0"))
        last = lock.last_fence.get(node.number, 0)
        if fence <= last:
            world.fail("fence", f"{token.decode()} got fence {fence} after {last}")
        lock.last_fence[node.number] = max(last, fence)
        if node is world.master:
            lock.fences.setdefault(token, set()).add(fence)
            if token not in lock.ledger.waiting:
                lock.ledger.handed_to_nobody(token)
        if node is world.master and server.now_ms <= lock.buried.get(token, -1):
            world.fail("orphan", f"{token.decode()} was given back, and got the lock again")
        self.in_order(node, lock, token)
        lock.leave_queue(token)

    def in_order(self, node: Node, lock: _Lock, token: bytes | None) -> None:
        """First come, first served, among those who wait and whose process is there; None: it was left free."""
        world = self.world
        if node is not world.master:
            return
        mine = lock.arrivals.get(token) if token is not None else None
        inbox = lock.keys.inboxes.encode()
        for arrival, other in list(lock.queue):
            if other == token or (mine is not None and arrival >= mine):
                break
            if not node.server.numsub(inbox + other.split(b":")[0]):
                lock.leave_queue(other)  # skipped; it asks again
            elif other in lock.ledger.waiting and (token is None or token in lock.ledger.waiting):
                first = f"{token.decode()} (arrived {mine})" if token is not None else "nobody"
                since = lock.ledger.waiting[other][0]
                world.fail("order", f"{first} before {other.decode()} (arrived {arrival}, waiting since {since:.6f} s)")
                break

    def crashed(self, process: Process) -> None:
        for lock in self.locks:
            lock.ledger.crashed(process)

    def lost_data(self, node: Node) -> None:
        for lock in self.locks:
            lock.holders.pop(node.number, None)
            token = node.server.data.get(lock.key)
            if token is not None:
                lock.holders[node.number] = token, node.server.expires.get(lock.key, 0)
            lock.queue.clear()
            lock.buried.clear()

    def settled(self) -> None:
        world = self.world
        node = world.master
        for lock in self.locks:
            holder = node.server.peek(lock.key, node.wall_ms())
            if holder is not None:
                world.fail("orphan", f"{lock.ledger.name} is held by {holder.decode()} when all is over")
            queue = node.server.peek(lock.queue_key, node.wall_ms())
            for token in queue.scores if queue is not None else ():
                if token in lock.ledger.ended:
                    world.fail("orphan", f"{token.decode()} is queued for {lock.ledger.name} when all is over")


async def _quietly(hold: Hold) -> None:
    try:
        await hold.release()
    except Trouble:
        pass


PRIMITIVE = Mutex

"""The lock: workers that acquire, work, look at the deadline, release, give up, are cancelled; and what must hold."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from functools import partial
from typing import Any

from holdfast._core.breaking import FORCED, GONE, held_by, holders, take_away
from holdfast._core.effects import Call, Protocol
from holdfast._core.exclusive import OneServer
from holdfast._core.failure import RequestFailed
from holdfast._core.keys import LockKeys, lock_keys
from holdfast._core.lease_cache import CachedLease
from holdfast._core.mutex import LockAcquisition
from holdfast._core.record import LeaseRecord
from holdfast._core.tenure import LocalWaiter, Note, Tenure, as_owner, is_alone, left, wait_in_line
from holdfast._core.tokens import BLOCK, KEPT, MARK
from holdfast._core.validity import DRIFT
from holdfast._core.waiting import Busy, Grant, request_timeout_for
from holdfast.errors import LeaseLost
from sim.check import Belief
from sim.driver import Cancelled, Process, Work
from sim.network import Node, Request
from sim.sessions import Sessions, Thing
from sim.world import World

__all__ = ["PRIMITIVE", "Lock", "Locks"]

#: Scripts that give back; their fifth argument is how long the token is refused.
_GIVING_BACK = frozenset({"release", "multi_release", "cond_leave"})
_RENEWING = frozenset({"renew", "crash_renew", "multi_renew"})
_ASKING = frozenset({"acquire", "crash_acquire"})
#: What holders have to let go what is broken; and after which time, since the grant, they listen. Both in s.
_GRACE_S, _LISTENS_AFTER_S = 0.5, 1.0


class Lock(Thing):
    """One lock, and what the servers have done with it."""

    def __init__(self, world: World, name: str, keys: LockKeys | None = None) -> None:
        super().__init__(world, lock_keys("holdfast", name) if keys is None else keys)
        #: By node: the holder's token and the ms of its end, as of the last change.
        self.holders: dict[int, tuple[bytes, int]] = {}
        #: By node: the greatest fencing token so far, whatever was lost meanwhile.
        self.last_fence: dict[int, int] = {}
        #: The fencing token that the master wrote last for each token; several, where it comes about in several steps.
        self.fences: dict[bytes, set[int]] = {}
        #: Tokens that a server has tombstones of: until which ms of its clock they are refused.
        self.tombstones: dict[bytes, int] = {}
        #: Tokens that were released or given back: until which ms of its clock none may hold again.
        self.released: dict[bytes, int] = {}
        #: When each token was first queued (µs of the server), and who waits in that order.
        self.arrivals: dict[bytes, int] = {}
        self.queue: list[tuple[int, bytes]] = []
        #: By node: the ms at which it forgets the queue, as of the last request.
        self.queue_until: dict[int, int] = {}
        #: By waiting token and line: the tenures in which others that came later were granted the lock before it.
        self.overtaken: dict[bytes, dict[str, set[str]]] = {}
        #: When the first lease of each tenure was granted.
        self.tenures: dict[str, float] = {}
        #: By process: when acquires there ended without a grant.
        self.left_at: dict[str, list[float]] = {}

    def overtakes(self, process: Process, line: str, tenure: str, since: float) -> None:
        """A worker that waits since then is granted it: one that has waited for longer elsewhere is overtaken."""
        world = self.world
        waiting = self.ledger.waiting
        began = self.tenures.setdefault(tenure, world.now)
        lasts_s = world.settings.tenure_ms / 1000 * (1 + 2 * DRIFT) + world.options.short_retry_s()
        # Of those that wait in one process, only one or two do so at the server.
        others = [waits_since for waits_since, whose in waiting.values() if whose is not process]
        owed_from = max(began, min(others, default=world.now))
        if world.options.mode == "calm-tenures" and world.now - owed_from > lasts_s:
            world.fail("tenure", f"{tenure} was handed on {world.now - owed_from:.6f} s later")
        world.counted["undisturbed"] += world.now - began > world.settings.tenure_ms / 1000 * (1 + 2 * DRIFT)
        for token in [token for token in self.overtaken if token not in waiting]:
            del self.overtaken[token]
        calm = world.options.mode == "calm-tenures" and world.phase != "chaos"
        slack_s = world.options.short_retry_s()
        for token, (waits_since, whose) in waiting.items():
            if calm and whose is not process and waits_since + slack_s < since and waits_since > world.calm_since:
                tenures = self.overtaken.setdefault(token, {}).setdefault(line, set())
                tenures.add(tenure)
                world.counted["overtaken"] += 1
                # Where the one before it in its process has left, it asks again, and may just have missed its turn.
                missed = sum(at > waits_since for at in self.left_at.get(whose.id, ()))
                if len(tenures) > 1 + missed:
                    world.fail("overtaken", f"{token.decode()} was overtaken by {sorted(tenures)} of {process.name}")

    def leave_queue(self, token: bytes) -> None:
        arrival = self.arrivals.get(token)
        if arrival is not None:
            at = bisect.bisect_left(self.queue, (arrival, token))
            if at < len(self.queue) and self.queue[at] == (arrival, token):
                del self.queue[at]


class Locks(Sessions[Lock]):
    """What holds of locks, however they are used: also several at once, or with a condition."""

    #: A token has no other fencing token than the last that was written for it.
    one_fence = True
    # -- workload ---------------------------------------------------------------------------------

    async def session(self, process: Process, thing: Lock) -> None:
        taken = await self.take(process, thing)
        if taken is not None:
            await self.live(process, *taken)

    async def take(self, process: Process, lock: Lock) -> tuple[LeaseRecord, list[tuple[Lock, Belief]]] | None:
        """One acquisition, as the APIs do it."""
        options = self.world.options
        ttl_ms, timeout_s = self.ttl_ms(), self.timeout_s()
        keys, settings, token = lock.keys, process.settings, process.token()
        exclusive = OneServer(keys, settings, options.sync)
        exclusive.renews = self.world.rng.random() < 0.8 or options.others_think > 1  # then there is one line
        if self.in_lines and options.keep_s:
            kept = process.lease_cache.get(keys.lock)
            if kept is not None and kept.take(token, process.now()):
                return self.take_kept(process, lock, kept, ttl_ms)
            if process.lease_cache.hears(keys.lock, process.listening(keys.lock)):
                token += KEPT
        if options.crash_part and self.world.rng.random() < options.crash_part:
            exclusive.crash_ms = self.world.rng.choice((300, 500, min(1_000, ttl_ms // 2)))
            exclusive.renews = True
            token += f"!{exclusive.crash_ms}"
        note: Note | None = None
        if self.in_lines and settings.tenure_ms:
            # Those that wait for each other have the same options.
            ttl_ms = options.line_ttl_ms(exclusive.renews)
            note = process.notes.setdefault((keys.lock, exclusive.renews), Note())
            if not is_alone(note, process.lines) and timeout_s != 0:
                return await self.take_turn(process, lock, exclusive, note, token, ttl_ms, timeout_s)

        def start(timeout_s: float | None, sent: bool) -> Protocol[Grant | Busy]:
            return exclusive.acquire(token, ttl_ms, timeout_s, not sent and process.listening(keys.lock))

        self.asks(self.public, timeout_s)
        turn = LockAcquisition(keys, token, ttl_ms, settings, options.sync)
        first = self.first(process, turn, timeout_s, start)
        if exclusive.crash_ms:
            first.close()
            first = process.acquire(None, start, timeout_s, ttl_ms)
        got = await self.ask(process, [lock], token, first)
        if got is None:
            return None
        record = self.hold_of(process, lock, token, ttl_ms, got, exclusive.renews)
        if note is not None:
            note.last = record
        return record, self.believe(process, [lock], record)

    def take_kept(
        self, process: Process, lock: Lock, kept: CachedLease, ttl_ms: int
    ) -> tuple[LeaseRecord, list[tuple[Lock, Belief]]]:
        """The same of what the process has kept."""
        self.world.counted["taken again"] += 1
        record = self.under_options(kept.record.again(ttl_ms, process.now()), ttl_ms, True)
        lock.ledger.ended.pop(record.token.encode(), None)
        return record, self.believe(process, [lock], record)

    async def take_turn(
        self,
        process: Process,
        lock: Lock,
        exclusive: OneServer,
        note: Note,
        token: str,
        ttl_ms: int,
        timeout_s: float | None,
    ) -> tuple[LeaseRecord, list[tuple[Lock, Belief]]] | None:
        """The same where workers of a process wait for each other."""
        keys, settings = lock.keys, process.settings
        turn = LocalWaiter(token, process.now())
        turn.join(process.lines, note)
        token, ledger = turn.token, lock.ledger

        def ask(timeout_s: float | None, sent: bool = False) -> Protocol[Grant | Busy]:
            listening = not sent and process.listening(keys.lock)
            return exclusive.acquire(token, ttl_ms, timeout_s, listening, turn)

        def give_back(token: str, tenure: Tenure | None = None) -> Protocol[None]:
            return exclusive.give_back(token, ttl_ms, tenure)

        def start(timeout_s: float | None, sent: bool) -> Protocol[Grant | Busy]:
            return as_owner(turn, partial(ask, sent=sent), give_back, timeout_s)

        self.asks(self.public, timeout_s)
        if turn.first:
            asking: Protocol[LeaseRecord | Grant | Busy] = self.first(
                process, LockAcquisition(keys, token, ttl_ms, settings), timeout_s, start
            )
        else:
            asking = wait_in_line(turn, ask, give_back, timeout_s, ttl_ms)
        got: LeaseRecord | Grant | None = None
        try:
            got = await self.ask(process, [lock], token, asking)
        finally:
            if got is None:
                lock.left_at.setdefault(process.id, []).append(self.world.now)
        if got is None:
            return None
        if isinstance(got, LeaseRecord):
            record = self.under_options(got, ttl_ms, exclusive.renews)
        else:
            if not turn.over:
                got.turn, turn.got_at = turn, process.now()
            record = self.hold_of(process, lock, token, ttl_ms, got, exclusive.renews)
        note.last = record
        if record.turn is None:
            process.spawn(left(turn, give_back), "left")
        since = ledger.waiting.pop(token.encode())
        if record.token != token:
            self.world.counted["handed on"] += 1
            ledger.ended.pop(record.token.encode(), None)
        ledger.waiting[record.token.encode()] = since
        lock.overtakes(process, f"{process.id} {exclusive.renews}", record.token, since[0])
        return record, self.believe(process, [lock], record)

    def hold_of(self, process: Process, lock: Lock, token: str, ttl_ms: int, got: Grant, renew: bool) -> LeaseRecord:
        """Make the record of a lease on one lock."""
        keep_s = min(self.world.options.keep_s, ttl_ms / 2000)
        if keep_s and got.kept is None and token.endswith(KEPT):
            got.kept = process.lease_cache, keep_s
            self.releases.pop(token, None)  # it is not the usual one
        exclusive = OneServer(lock.keys, process.settings, self.world.options.sync)
        return self.under_options(exclusive.make_record(token, got, ttl_ms), ttl_ms, renew)

    def under_options(self, record: LeaseRecord, ttl_ms: int, renew: bool) -> LeaseRecord:
        """The same, with what not every lease has."""
        if not renew:
            record.stop_renewing()
        if self.world.rng.random() < 0.1:
            record.end_by(record.held_since + ttl_ms * 1.5 / 1000)
        return record

    def believe(self, process: Process, locks: list[Lock], record: LeaseRecord) -> list[tuple[Lock, Belief]]:
        """The caller has its lease on all of them."""
        self.count(record)
        free_since = max(lock.ledger.held_until() for lock in locks)
        parts = []
        for lock in locks:
            # One that gets several at once has waited for the last of them.
            lock.ledger.idle_since = free_since
            parts.append((lock, lock.ledger.granted(process, record)))
            written = lock.fences.get(parts[-1][1].token, ())
            width = BLOCK if record.token.endswith(MARK) else 1
            if not any(first <= record.fence < first + width for first in written):
                self.world.fail(
                    "told fence", f"{record.token} was told fence {record.fence}, the server wrote {written}"
                )
        process.watch(record)
        return parts

    # -- breaking ---------------------------------------------------------------------------------

    def start(self, process: Process) -> None:
        super().start(process)
        if self.world.options.break_s:
            process.begin(self.break_again(process), "breaker")

    async def break_again(self, process: Process) -> None:
        """Break what is held, again and again, and as slowly as people do."""
        world, rng, options = self.world, self.world.rng, self.world.options
        while world.phase != "drain" and not process.closing:
            try:
                await Work(rng.expovariate(1 / options.break_s))
                await self.break_one(process, rng.choice(self.things))
            except RequestFailed:
                world.counted["break without an answer"] += 1
            except Cancelled:
                continue

    async def break_one(self, process: Process, lock: Lock) -> None:
        """Look who holds it, and take it away from that one, perhaps after a while."""
        world, rng = self.world, self.world.rng
        for seen in await holders("holdfast", lock.keys.name, ["lock"], process.settings):
            await Work(rng.choice((0.0, 0.0, rng.random() * world.options.work_s)))
            for held in held_by(seen, "holdfast"):
                token = held.token.encode()
                lock.shown.add(token)
                belief = lock.ledger.beliefs.get(token)
                steady = belief is not None and self.listens(belief)
                (became,) = await take_away([held], "p: because", _GRACE_S, process.settings)
                world.counted[f"broken: {became}"] += 1
                if became != GONE and token in lock.held():
                    world.fail("not broken", f"{token.decode()} was broken ({became}), and holds")
                calm = world.options.mode == "calm-breaks" and world.phase != "chaos"
                if became == FORCED and calm and steady and belief is not None and not belief.process.closing:
                    world.fail("not told", f"{belief} listens, and was released on its behalf")

    def listens(self, belief: Belief) -> bool:
        """True if its client has had the time to, and is not about to end."""
        process = belief.process
        return belief.lives() and not process.closing and process.now() - belief.record.held_since > _LISTENS_AFTER_S

    def broke(self, node: Node, lock: Lock, request: Request, call: Call, token: bytes, value: Any) -> None:
        """A script has been run that may tell or release what is broken."""
        world = self.world
        if call.script == "tell":
            if value > 0 and lock.holders.get(node.number, (b"",))[0] != token:
                world.fail("told wrong", f"{token.decode()} holds nothing, and is said to")
        elif call.script == "release":
            if token in lock.shown and int(call.args[4]) > 0:  # its holder gives it back without a tombstone
                lock.ledger.force(token)
            elif not token.startswith(request.process.id.encode()) and token not in lock.shown:
                world.fail("broken", f"{token.decode()} was released by {request.process.name}, and was not shown")

    async def end(
        self, process: Process, record: LeaseRecord, parts: Sequence[tuple[Lock, Belief]], cancelled: bool
    ) -> None:
        if (record.reason or "").startswith("broken by ") and not any(
            record.token.encode() in lock.shown for lock in self.things
        ):
            self.world.fail(
                "broken", f"{record.token} was lost as {record.reason}, and was not shown to the one that breaks"
            )
        await super().end(process, record, parts, cancelled)

    # -- invariants on the server -----------------------------------------------------------------

    def executed(self, node: Node, request: Request, value: Any, error: RequestFailed | None) -> None:
        call = request.call
        if type(call) is Call:
            for key in call.keys[::4] if call.script.startswith("multi_") else call.keys[:1]:
                lock = self.by_key.get(key)
                if lock is not None:
                    self.changed(node, lock, request, call, value, error)

    def changed(
        self, node: Node, lock: Lock, request: Request, call: Call, value: Any, error: RequestFailed | None
    ) -> None:
        """A script has been run that may have changed the lock."""
        world = self.world
        server = node.server
        now_ms = server.now_ms
        script = call.script
        asker = str(call.args[0]).encode() if call.args else b""
        if world.options.break_s and error is None and node is lock.node:
            self.broke(node, lock, request, call, asker, value)
        before = lock.holders.get(node.number)
        if before is not None and now_ms > before[1]:
            before = None  # its time was over
        if lock.queue and now_ms > lock.queue_until.get(node.number, now_ms) and node is lock.node:
            lock.queue.clear()  # no client had asked for long enough that the server has forgotten the queue
            world.counted["queue forgotten"] += 1
        if lock.queue and lock.queue_key in server.touched and node is lock.node:
            self.skipped(node, lock)
        if lock.queue_key in server.expires:
            lock.queue_until[node.number] = server.expires[lock.queue_key]
        token = server.peek(lock.key, now_ms)
        mine = before is None or before[0] == asker or before[0] == self.lets_go(call)
        mine = mine or (before is not None and script in _ASKING and self.may_be_gone(lock, before[0]))
        if world.options.crash_part:
            lock.ledger.look_at_trust()
        if (script in _ASKING or script == "multi_acquire") and int(call.args[3]) > 0:
            lock.arrivals.setdefault(asker, int(call.args[3]))
        elif script in _ASKING and int(call.args[3]) < 0:
            # It has waited in its process: for longer, perhaps, than an earlier request said that came late.
            came, known = server.time_us + int(call.args[3]), lock.arrivals.get(asker)
            if known is None or (came < known and (known, asker) not in lock.queue):
                lock.arrivals[asker] = came
        if token is None:
            if before is not None and not mine:
                world.fail("stolen", f"{script} of {asker.decode()} removed {before[0].decode()}")
            lock.holders.pop(node.number, None)
            if before is not None and mine:
                self.in_order(node, lock, None)
        else:
            until = server.expires.get(lock.key, 0)
            if before is not None and before[0] != token:
                world.counted["replaced"] += before[0] != asker and b"!" in before[0]
                if not mine:
                    world.fail("stolen", f"{script} of {asker.decode()} replaced {before[0].decode()}")
            if before is None or before[0] != token:
                if token != asker and not server.listens(lock.keys, token):
                    world.fail("handed to the dead", f"{token.decode()} got the lock, and its process is not there")
                self.new_holder(node, lock, token, self.is_fenced(call, asker, token))
                # (A former master does not know of what was released at the new one.)
                here = node is lock.node and token == asker and not request.twin
                if here and now_ms <= lock.released.get(token, -1):
                    world.fail("orphan", f"{token.decode()} was released, and got the lock again")
            elif until > before[1]:
                ended = lock.ledger.ended.get(token)
                # (A renewal whose connection broke is repeated once, perhaps when the release has begun.)
                repeated_s = request_timeout_for(int(call.args[1]), world.settings) if script in _RENEWING else 0.0
                kept = any(process.lease_cache.has_idle(token.decode()) for process in world.processes)
                if script in _RENEWING and ended is not None and request.sent_at > ended + repeated_s and not kept:
                    world.fail("orphan", f"{token.decode()} was renewed after its end")
            lock.holders[node.number] = token, until
        if error is None:
            self.answered(node, lock, call, asker, value)
            if node is lock.node:
                self.lasts(node, lock, call, value)
        if script in _GIVING_BACK and error is None and node is lock.node:
            if not server.out_of_memory:
                lock.released[asker] = now_ms + world.settings.tombstone_ms
            if call.args[4]:
                lock.leave_queue(asker)
                if not server.out_of_memory:
                    lock.tombstones[asker] = now_ms + int(call.args[4])

    def skipped(self, node: Node, lock: Lock) -> None:
        """Take waiters out of line whose process is not there: they lose their place and ask again."""
        queue = node.server.data.get(lock.queue_key)
        for _, token in list(lock.queue):
            if (queue is None or token not in queue.scores) and not node.server.listens(lock.keys, token):
                lock.leave_queue(token)

    def lets_go(self, call: Call) -> bytes | None:
        """Return the other lease, beside the asker's own, that this call may end."""
        return str(call.args[7]).encode() if call.script in _ASKING and len(call.args) > 7 else None

    def may_be_gone(self, lock: Lock, token: bytes) -> bool:
        """True if its holder, where it is alive, does not trust its lease, so that others may get in."""
        if b"!" not in token:
            return False
        belief = lock.ledger.beliefs.get(token)
        return belief is None or not belief.lives()

    def is_fenced(self, call: Call, asker: bytes, token: bytes) -> bool:
        """True if a change of hands by this call writes a fencing token."""
        return True

    def answered(self, node: Node, lock: Lock, call: Call, asker: bytes, value: Any) -> None:
        """Note the place that the asker is told; the lock has been looked at."""
        if call.script in _ASKING and type(value) is list and value[0] == 0 and value[3] >= 0:
            lock.ledger.placed(value[3])
            self.queued(node, lock, asker, int(call.args[3]), value[4])

    def queued(self, node: Node, lock: Lock, token: bytes, known: int, told: int) -> None:
        """Note the place of a waiter. `known`: the arrival that it was told before, or 0; it keeps that place."""
        if token not in lock.ledger.waiting or node is not lock.node:
            return  # no one waits for that any more
        if known > 0 and told != known:
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

    def fenced(self, node: Node, lock: Lock, token: bytes) -> None:
        """A fencing token was written for the holder: greater than all before it."""
        fence = int(node.server.data.get(lock.fence_key, b"0"))
        if token.endswith(MARK.encode()):
            fence -= BLOCK - 1
        last = lock.last_fence.get(node.number, 0)
        if fence <= last:
            self.world.fail("fence", f"{token.decode()} got fence {fence} after {last}")
        lock.last_fence[node.number] = max(last, fence)
        if node is lock.node:
            if self.one_fence:
                lock.fences[token] = {fence}
            else:
                lock.fences.setdefault(token, set()).add(fence)

    def new_holder(self, node: Node, lock: Lock, token: bytes, is_fenced: bool) -> None:
        """The lock has changed hands on a server."""
        world = self.world
        server = node.server
        if is_fenced:
            self.fenced(node, lock, token)
        if node is lock.node and token not in lock.ledger.waiting:
            lock.ledger.handed_to_nobody(token)
        if node is lock.node and server.now_ms <= lock.tombstones.get(token, -1):
            world.fail("orphan", f"{token.decode()} was given back, and got the lock again")
        self.in_order(node, lock, token)
        lock.leave_queue(token)

    def in_order(self, node: Node, lock: Lock, token: bytes | None) -> None:
        """First come, first served, among those who wait and whose process is there; None: it was left free."""
        world = self.world
        if node is not lock.node:
            return
        mine = lock.arrivals.get(token) if token is not None else None
        for arrival, other in list(lock.queue):
            if other == token or (mine is not None and arrival >= mine):
                break
            if not node.server.listens(lock.keys, other):
                lock.leave_queue(other)  # skipped; it asks again
            elif other in lock.ledger.waiting and (token is None or token in lock.ledger.waiting):
                first = f"{token.decode()} (arrived {mine})" if token is not None else "no one"
                since = lock.ledger.waiting[other][0]
                world.fail("order", f"{first} before {other.decode()} (arrived {arrival}, waiting since {since:.6f} s)")
                break

    def lost_data(self, node: Node) -> None:
        for lock in self.things:
            lock.holders.pop(node.number, None)
            token = node.server.data.get(lock.key)
            if token is not None:
                lock.holders[node.number] = token, node.server.expires.get(lock.key, 0)
            lock.queue.clear()
            lock.tombstones.clear()
            lock.released.clear()


class Mutex(Locks):
    """The lock alone."""

    name = "mutex"
    kind = "lock"
    in_lines = True
    public = "Lock"
    refusals = (RequestFailed, LeaseLost)

    def __init__(self, world: World) -> None:
        super().__init__(world, [Lock(world, f"m{number}") for number in range(world.options.locks)])

    def refused(self, token: str, error: Exception) -> None:
        broken = any(token.encode() in lock.shown for lock in self.things)
        if isinstance(error, LeaseLost) and not broken:
            self.world.fail("refused", f"{token}: {error!r}, and no one has broken it")
        elif broken and "given back" in str(error):
            self.world.fail("refused", f"{token}: {error!r}, and it was broken")


PRIMITIVE = Mutex

"""What a life under process faults does with the library: every primitive, written once for threads and asyncio.

`async` throughout, as in `rig.locks`: with threads nothing ever waits for an event loop, and the coroutines are driven
without one. What is held is noted in the history, so that the judge sees these stays beside those of the workers.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import itertools
import random
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from rig.history import now_ns
from rig.state import OWN_TTL_S, LifeState, Shared, driven

__all__ = ["PERMITS", "Actions"]

#: Waiting for a turn ends after this, s.
TIMEOUT_S = 1.0
PERMITS = 3


class Actions:
    """The actions of one thread or task."""

    def __init__(self, life: LifeState, number: int) -> None:
        self._life = life
        self._number = number
        self._random = random.Random(f"{life.seed}-{number}")
        self._log = life.log
        self._blocking = life.blocking
        self._action = ""
        self._counts = itertools.count(1)
        names = ["plain", "block", "extended", "reentrant", "passed_on", "looks", "election", "cycle", "cancelled"]
        if not life.over_quorum:
            names += ["reader", "writer", "permits", "several", "condition", "latch", "event", "barrier"]
            names += ["optimistic", "compare_and_set"]
        # More of what hurts: blocks that exceptions interrupt, waits that signals interrupt.
        names += ["block"] * 4 + ["in_vain"] * 2 + ["cancelled"] * 2
        for name in ("close_one", "outlived", "fork", "spare"):
            names += [name] * (2 if name in life.extra_actions else 0)
        self._names = names + ["spare"] * 3 * ("spare" in life.extra_actions)

    # ---- one action ----

    async def one(self) -> None:
        """Do one action at random. Errors of the library are part of the game, others are not."""
        life = self._life
        name = self._action = self._random.choice(self._names)
        action: Callable[[], Awaitable[None]] = getattr(self, name)
        life.watch.begin(self._number, name, life.bound_s)
        try:
            if self._number == 0:
                life.armed = True
            await action()
        except life.errors as error:
            life.armed = False
            self._log.note("error", "in a life", type(error).__name__)
            await self._pause(0.02)
        except (RuntimeError, OSError) as error:
            if not life.excused(error):
                raise
            await self._pause(0.02)
        finally:
            life.armed = False
            life.watch.end(self._number)
            life.did[name] += 1

    async def _pause(self, mean_s: float) -> None:
        seconds = min(0.3, self._random.expovariate(1 / mean_s))
        if self._blocking:
            time.sleep(seconds)  # noqa: ASYNC251 - there is no event loop
        else:
            await asyncio.sleep(seconds)

    async def _done(self, value: Any) -> Any:
        return await value if inspect.isawaitable(value) else value

    def _client(self) -> Any:
        return self._random.choice(self._life.clients).client

    def _lock_name(self) -> str:
        return self._random.choice(self._life.locks)

    async def _stay(self, lease: Any, lock: str, asked_ns: int, mode: Any = "exclusive", *, extra_s: float = 0) -> None:
        """Be inside: note it, look at the lease, write."""
        log = self._log
        start_ns = now_ns()
        fence = lease.fencing_token
        p, op = f"{self._life.name}.{self._number}", f"{next(self._counts)} {self._action}"
        remaining_s = lease.remaining()
        if remaining_s <= 0 and lease.lost.reason == "closed":
            return  # its client was closed before it was looked at: no one has ever trusted it
        until_ns = start_ns + int(remaining_s * 1e9)
        log.event("ask", p, asked_ns, op=op, lock=lock, do="acquire", mode=mode)
        log.event("got", p, start_ns, op=op, lock=lock, token=fence, until=until_ns)
        try:
            await self._look_and_write(lease, lock, p, op, extra_s, start_ns, write=mode == "exclusive")
        except BaseException:
            log.event("ask", p, op=op, lock=lock, do="release")  # the block ends here, whatever ends it
            raise

    async def _look_and_write(
        self, lease: Any, lock: str, p: str, op: str, extra_s: float, looked_ns: int, *, write: bool
    ) -> None:
        """Look, and write, until it has looked often enough, or is told of a loss. It was looked at at `looked_ns`."""
        life, log = self._life, self._log
        looks = self._random.randint(1, 3)
        for look in range(looks + 1):
            if look < looks:
                await self._pause(0.003)
                if extra_s:
                    await self._pause(extra_s)
            at_ns = now_ns()
            remaining_s = lease.remaining()
            if remaining_s <= 0:
                at_ns = now_ns()
                state = lease.state.name
                if state == "RELEASED":
                    log.note("broken", f"a lease of {lock} is RELEASED under its body, which no one has told")
                closed_ns = life.closed_ns.get(lease._session)
                if closed_ns is not None and closed_ns < at_ns and lease.lost.reason == "closed":
                    # A client that is closed under its users takes their leases away there and then: none of them
                    # trusts a lease for longer than until it was seen to be held last.
                    ended_ns = max(closed_ns, looked_ns)
                    log.event("trust", p, ended_ns, op=op, lock=lock, until=ended_ns, closed=closed_ns)
                log.event("lost", p, at_ns, op=op, lock=lock, why=state)
                return
            if look == looks:  # not later: its client may be closed at any moment
                log.event("ask", p, at_ns, op=op, lock=lock, do="release")
                return
            looked_ns = at_ns
            log.event("trust", p, at_ns, op=op, lock=lock, until=at_ns + int(remaining_s * 1e9))
            if write and life.resource:
                life.write(self._number, p, op, lock, lease.fencing_token)

    async def _inside(self, lease: Any, lock: str, asked_ns: int, mode: Any = "exclusive") -> None:
        """`_stay` and release."""
        try:
            await self._unarmed(self._stay(lease, lock, asked_ns, mode))
        finally:
            await self._done(lease.release())

    async def _unarmed(self, coroutine: Awaitable[None]) -> None:
        """The rig's own code is not what exceptions are for."""
        armed, self._life.armed = self._life.armed, False
        await coroutine
        if self._number == 0:
            self._life.armed = armed

    async def _within(self, block: Any, body: Callable[[Any], Awaitable[None]]) -> None:
        if self._blocking:
            with block as lease:
                await self._unarmed(body(lease))
        else:
            async with block as lease:
                await body(lease)

    # ---- locks ----

    async def plain(self) -> None:
        name, asked_ns = self._lock_name(), now_ns()
        lease = await self._done(self._client().lock(name).acquire(timeout=TIMEOUT_S))
        await self._inside(lease, name, asked_ns)

    async def block(self) -> None:
        """`with`, and no limit; a lock of this life's own, which nothing but a release makes free in time."""
        name = f"own-{self._life.name}-{self._random.randrange(3)}"
        lock = self._client().lock(name, ttl=OWN_TTL_S)
        asked_ns = now_ns()
        await self._within(lock, lambda lease: self._stay(lease, name, asked_ns))

    async def extended(self) -> None:
        """Again and again while it is renewed, then relied on for longer than the first ttl."""
        name, asked_ns = self._lock_name(), now_ns()
        client = self._client()
        lease = await self._done(client.lock(name, ttl=0.2).acquire(timeout=TIMEOUT_S))
        try:
            for _ in range(self._random.randint(1, 8)):
                await self._done(lease.extend(self._random.choice((0.15, 0.2, 0.3))))
                await self._pause(0.015)
            await self._done(lease.extend(self._random.choice((1, 5))))
            await self._unarmed(self._stay(lease, name, asked_ns, extra_s=0.1))
        finally:
            await self._done(lease.release())

    async def reentrant(self) -> None:
        name, asked_ns = self._lock_name(), now_ns()
        lock = self._client().lock(name, reentrant=True)
        outer = await self._done(lock.acquire(timeout=TIMEOUT_S))
        try:
            inner = await self._done(lock.acquire(timeout=TIMEOUT_S))
            await self._inside(inner, name, asked_ns)
        finally:
            await self._done(outer.release())

    async def passed_on(self) -> None:
        """Acquired here, released by another thread or task."""
        name, asked_ns = self._lock_name(), now_ns()
        lease = await self._done(self._client().lock(name).acquire(timeout=TIMEOUT_S))
        if self._blocking:
            await self._unarmed(self._elsewhere(lambda: driven(self._inside(lease, name, asked_ns))))
        else:
            await asyncio.create_task(self._inside(lease, name, asked_ns))

    async def _elsewhere(self, work: Callable[[], object]) -> None:
        """Work in a thread of its own, to its end."""
        life = self._life

        def run() -> None:
            try:
                work()
            except life.errors:
                pass
            except BaseException as error:
                if not life.excused(error):
                    life.crashed(error)

        thread = threading.Thread(target=run, name="rig-other", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            if not life.excused(error):
                raise
        else:
            thread.join()

    async def looks(self) -> None:
        client, name = self._client(), self._lock_name()
        lock = client.lock(name)
        await self._done(lock.locked())
        await self._done(lock.holder())
        await self._done(lock.waiters())
        await self._done(client.election("torture-election").leader())
        repr(lock)
        repr(client)

    async def cancelled(self) -> None:
        """Ended from outside at any moment, a short timeout being the least of it."""
        name, asked_ns = self._lock_name(), now_ns()
        lock = self._client().lock(name)
        after_s = self._random.random() * 0.05
        if not self._blocking:
            task = asyncio.create_task(self._acquired_and_left(lock, name, asked_ns))
            await asyncio.wait((task,), timeout=after_s)
            task.cancel()
            await asyncio.wait((task,))
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error
            return
        cancel = self._life.new_cancel()
        if self._random.random() < 0.5:
            cancel = None
        lease = await self._done(lock.acquire(timeout=after_s, cancel=cancel))
        await self._inside(lease, name, asked_ns)

    async def in_vain(self) -> None:
        """Waits that end by their timeouts, again and again, at a lock that someone has."""
        life = self._life
        name = f"own-{life.name}-taken-{self._number}"
        lease = await self._done(self._client().lock(name, ttl=OWN_TTL_S).acquire(timeout=TIMEOUT_S))
        try:
            for _ in range(self._random.randint(1, 6)):
                if self._blocking:
                    await self._elsewhere_or_here(name)
                else:
                    await asyncio.create_task(self._wait_in_vain(name))
        finally:
            await self._done(lease.release())

    async def _elsewhere_or_here(self, name: str) -> None:
        """Acquire another client's lock, so that this very thread may wait for it."""
        clients = [shared.client for shared in self._life.clients]
        for client in clients:
            try:
                lease = client.lock(name).acquire(timeout=self._random.choice((0.01, 0.02, 0.05)))
            except self._life.errors:
                continue
            lease.release()

    async def _wait_in_vain(self, name: str) -> None:
        try:
            lease = await self._client().lock(name).acquire(timeout=self._random.choice((0.01, 0.02, 0.05)))
        except self._life.errors:
            return
        await lease.release()

    async def _acquired_and_left(self, lock: Any, name: str, asked_ns: int) -> None:
        await self._inside(await lock.acquire(), name, asked_ns)

    async def cycle(self) -> None:
        """A client, or a lease, dropped in a cycle of references: only the collector finds it."""
        client = self._client()
        own = self._random.random() < 0.3 and "cycles" in self._life.faults
        if own:
            client = self._life.connect()
            self._life.played["a client dropped in a cycle"] += 1
        name = f"cycle-{self._life.name}-{self._random.randrange(1_000_000)}"
        lease = await self._done(client.lock(name, ttl=1).acquire(timeout=TIMEOUT_S))
        ring: list[Any] = [lease, client]
        ring.append(ring)
        self._life.played["a lease dropped in a cycle"] += 1
        del ring, lease, client
        if self._random.random() < 0.2:
            gc.collect()

    # ---- the family ----

    async def reader(self) -> None:
        asked_ns = now_ns()
        lease = await self._done(self._client().rwlock("torture-rw").read().acquire(timeout=TIMEOUT_S))
        try:
            await self._unarmed(self._stay(lease, "torture-rw", asked_ns, "shared"))
            if self._random.random() < 0.3:
                await self._inside(await self._done(lease.upgrade(timeout=0.1)), "torture-rw", asked_ns)
        finally:
            if lease.state.name in ("HELD", "SUSPECT"):
                await self._done(lease.release())

    async def writer(self) -> None:
        asked_ns = now_ns()
        lease = await self._done(self._client().rwlock("torture-rw").write().acquire(timeout=TIMEOUT_S))
        try:
            await self._unarmed(self._stay(lease, "torture-rw", asked_ns))
            if self._random.random() < 0.3:
                await self._inside(await self._done(lease.downgrade()), "torture-rw", asked_ns, "shared")
        finally:
            if lease.state.name in ("HELD", "SUSPECT"):
                await self._done(lease.release())

    async def permits(self) -> None:
        asked_ns, taken = now_ns(), self._random.randint(1, PERMITS)
        semaphore = self._client().semaphore("torture-sem", PERMITS)
        lease = await self._done(semaphore.acquire(timeout=TIMEOUT_S, permits=taken))
        await self._inside(lease, "torture-sem", asked_ns, {"permits": taken})

    async def several(self) -> None:
        """Hold several of the locks that the others contend for, so that this excludes them, too."""
        names = self._random.sample(self._life.locks, min(2, len(self._life.locks)))
        asked_ns = now_ns()
        lease = await self._done(self._client().multilock(*names).acquire(timeout=TIMEOUT_S))
        await self._inside(lease, names[0], asked_ns)

    async def condition(self) -> None:
        condition = self._random.choice(self._life.clients).condition
        asked_ns = now_ns()
        lease = await self._done(condition.lock.acquire(timeout=TIMEOUT_S))
        try:
            if self._random.random() < 0.5:
                await self._done(condition.wait(self._random.choice((0.01, 0.2))))
            else:
                await self._done(condition.notify(2))
                await self._unarmed(self._stay(lease, "torture-cond", asked_ns))
        finally:
            if lease.state.name in ("HELD", "SUSPECT"):
                await self._done(lease.release())

    async def latch(self) -> None:
        latch = self._client().latch(f"torture-latch-{self._random.randrange(3)}", 3, retain=2)
        await self._done(latch.wait(0.03) if self._random.random() < 0.5 else latch.count_down())

    async def event(self) -> None:
        event = self._client().event("torture-event", retain=2)
        await self._done(self._random.choice((event.set, event.clear, event.is_set, lambda: event.wait(0.03)))())

    async def barrier(self) -> None:
        barrier = self._client().barrier("torture-barrier", 2, retain=2)
        try:
            await self._done(barrier.wait(0.2))
        except self._life.errors:
            await self._done(barrier.reset())

    async def election(self) -> None:
        """One object for all loops of a client."""
        election = self._random.choice(self._life.clients).election
        asked_ns = now_ns()
        self._life.played["a shared Election"] += 1
        way = self._random.random()
        if way < 0.5:
            self._life.armed = False  # an exception between the two calls leaves a lead, which is for users to resign
            lease = await self._done(election.campaign(timeout=TIMEOUT_S))
            try:
                await self._stay(lease, "torture-election", asked_ns)
            finally:
                await self._done(election.resign())
        else:
            await self._within(election, lambda lease: self._stay(lease, "torture-election", asked_ns))

    async def optimistic(self) -> None:
        key = "holdfast:{torture-opt}:count"
        if self._blocking:

            def add(tx: Any) -> None:
                tx.set(key, int(tx.get(key) or 0) + 1, ttl=2)

            self._client().optimistic(key, attempts=20).run(add)
        else:

            async def aadd(tx: Any) -> None:
                tx.set(key, int(await tx.get(key) or 0) + 1, ttl=2)

            await self._client().optimistic(key, attempts=20).run(aadd)

    async def compare_and_set(self) -> None:
        key = "holdfast:{torture-cas}:value"
        await self._done(self._client().compare_and_set(key, None, "x", ttl=1))

    # ---- faults of the process ----

    async def close_one(self) -> None:
        """A client is closed under all its users, and another one takes its place."""
        life = self._life
        shared = self._random.choice(life.clients)
        if shared.closed or self._random.random() < 0.5:
            return
        shared.closed = True
        life.clients[life.clients.index(shared)] = Shared(life.connect(), life.over_quorum)
        life.played["close() at random"] += 1
        life.closed_ns[shared.client._session] = now_ns()
        await self._done(shared.client.close())
        try:
            lease = await self._done(shared.client.lock(f"own-{life.name}-closed").try_acquire())
        except life.errors:
            return
        self._log.note("broken", f"a closed client has granted {lease}")

    async def outlived(self) -> None:
        """A thread or task ends before its lease; the next one, perhaps with its ident, asks for the same lock."""
        life, name, asked_ns = self._life, self._lock_name(), now_ns()
        lock = self._client().lock(name, reentrant=self._random.random() < 0.7)
        kept: deque[Any] = deque()
        idents: list[int] = []

        async def hold() -> None:
            idents.append(threading.get_ident())
            kept.append(await self._done(lock.acquire(timeout=TIMEOUT_S)))

        async def second() -> None:
            idents.append(threading.get_ident())
            kept.append(await self._done(lock.acquire(timeout=0.05)))

        await self._apart(hold)
        if not kept:
            return
        first = kept[0]
        try:
            for _ in range(3):
                await self._apart(second)
            life.played["a thread that ends before its lease"] += 1
            if len(set(idents)) < len(idents):
                life.played["an ident that came again"] += 1
            if any(lease is first for lease in list(kept)[1:]):
                self._log.note("broken", f"another owner got the lease of {name} of one that has ended")
            await self._unarmed(self._stay(first, name, asked_ns))
        finally:
            for lease in list(kept):  # an exception may have come while another thread acquires
                await self._done(lease.release())

    async def _apart(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if self._blocking:
            await self._elsewhere(lambda: driven(work()))
        else:
            task = asyncio.create_task(work())
            await asyncio.wait((task,))
            error = task.exception() if not task.cancelled() else None
            if error is not None and not isinstance(error, self._life.errors):
                raise error

    async def fork(self) -> None:
        """A child amid all this, which uses what it has inherited, and what is its own."""
        from rig.forks import fork_amid

        life, name, asked_ns = self._life, self._lock_name(), now_ns()
        if self._random.random() < 0.5:
            return
        shared = self._random.choice(life.clients)
        lease = await self._done(shared.client.lock(name).acquire(timeout=TIMEOUT_S))
        try:
            await self._unarmed(fork_amid(life, shared.client, lease, self._random.random()))
            await self._unarmed(self._stay(lease, name, asked_ns))
        finally:
            await self._done(lease.release())

    async def spare(self) -> None:
        """Provide something for a signal's handler to release, to close, to cancel."""
        life = self._life
        if len(life.spare_leases) < 4 and (self._random.random() < 0.7 or len(life.spare_clients) > 1):
            name = f"own-{life.name}-spare-{self._random.randrange(1_000_000)}"
            lease = await self._done(self._client().lock(name, ttl=OWN_TTL_S).acquire(timeout=TIMEOUT_S))
            life.spare_leases.append(lease)
        elif len(life.spare_clients) < 2:
            client = life.connect()
            lease = await self._done(client.lock(f"own-{life.name}-of-spare", ttl=OWN_TTL_S).try_acquire())
            life.spare_clients.append((client, lease))

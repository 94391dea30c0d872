"""What is checked: the laws, as code that watches a run.

Laws: a check looks at facts of the world (what a server holds, what a client believes, which clock says what) and never
at what a protocol says of itself.

`Ledger` holds the checks that every primitive with leases needs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

from holdfast._core.record import LeaseRecord
from holdfast._core.validity import DRIFT
from sim.driver import Process
from sim.world import World

__all__ = ["Belief", "Ledger"]

#: A loss is told this long after the deadline at the latest, s of the process's clock, while it is not paused.
TELL_S = 0.001


class Belief:
    """A client's belief to hold something: from the grant to its deadline, its loss or its release."""

    __slots__ = ("record", "kind", "process", "token")

    def __init__(self, process: Process, record: LeaseRecord, kind: str) -> None:
        self.process = process
        self.record = record
        self.kind = kind
        self.token = record.token.encode()

    def lives(self) -> bool:
        """True if that client would act on it now."""
        record = self.record
        until = min(record.deadline, record.proved_until)
        return self.process.alive and record.alive and self.process.now() < until

    def is_relied_on(self) -> bool:
        """True if it is lost already, but its body may still work under it until it is told."""
        record = self.record
        until = min(record.deadline, record.proved_until)
        return self.process.alive and record.reason == "taken" and self.process.now() < until

    def __str__(self) -> str:
        return f"{self.record.token} ({self.process.name}, {self.kind}, fence {self.record.fence})"


class Ledger:
    """Who believes to hold one thing, who waits for it, and whether both go as promised.

    `conflict(a, b)`: whether two kinds may not be held together. `until(token, kind)`: the virtual time up to which
    the server would still keep it for that token, or None when it does not. `keeps_out`: a lease that turns out to be
    lost keeps others out for as long as its holder was told that it lasts.
    """

    def __init__(
        self,
        world: World,
        name: str,
        *,
        conflict: Callable[[str, str], bool] = lambda a, b: True,
        until: Callable[[bytes, str], float | None] | None = None,
        keeps_out: bool = False,
    ) -> None:
        self.world = world
        self.name = name
        self.keeps_out = keeps_out
        self.conflict = conflict
        self.until = until
        self.beliefs: dict[bytes, Belief] = {}
        #: Those that were lost, and may be relied on still.
        self.lost: list[Belief] = []
        #: Leases that were released on behalf of holders that did not answer, and may not know of it.
        self.forced: set[bytes] = set()
        #: Acquisitions under way: token → since when, and whose.
        self.waiting: dict[bytes, tuple[float, Process]] = {}
        #: Ended acquisitions of processes that live: token → when.
        self.ended: dict[bytes, float] = {}
        self.last_fence = 0
        #: Since when no one has believed to hold it.
        self.idle_since = 0.0
        #: After this long a waiter looks for itself that does not know that it waits for this.
        self.looks_after_s = 0.0
        #: Until when what was lost may still lie on the server, and waiters may not know better.
        self.lost_until = 0.0
        #: The last place in the queue that anyone was told; None where waiters look by the ttl alone.
        self.deepest: int | None = None

    # -- what workers tell ------------------------------------------------------------------------

    def begins(self, process: Process, token: str) -> None:
        """An acquisition begins."""
        self.waiting[token.encode()] = self.world.now, process

    def leaves(self, process: Process, token: str) -> None:
        """An acquisition ended without a grant, or what it got is given back."""
        key = token.encode()
        self.waiting.pop(key, None)
        if self.beliefs.pop(key, None) is not None and not self.beliefs:
            self.idle_since = self.world.now
        self.ended[key] = self.world.now

    def granted(
        self, process: Process, record: LeaseRecord, kind: str = "exclusive", *, ordered: bool = True
    ) -> Belief:
        """The caller has its lease. `ordered`: fencing tokens must rise from grant to grant."""
        world = self.world
        world.grants += 1
        new = Belief(process, record, kind)
        if new.token in self.forced:
            self.waiting.pop(new.token, None)
            return new  # it was broken before its holder heard of it
        if world.trace is not None:
            world.note(process.name, f"GRANTED {self.name} to {new}")
        others = [other for other in self.beliefs.values() if other.lives()]
        held_until = self.held_until()
        for other in others:
            if self.conflict(other.kind, kind):
                world.fail("overlap", f"{self.name} is held by {other} and {new}")
        if self.keeps_out:
            self.lost = [other for other in self.lost if other.is_relied_on()]
            for other in (*self.lost, *self.beliefs.values()):
                if other.is_relied_on():
                    left_s = other.record.deadline - other.process.now()
                    world.fail("overlap", f"{self.name}: {other} was told that it lasts for {left_s:.6f} s more: {new}")
        if ordered:
            if record.fence <= self.last_fence:
                world.fail("fence", f"{self.name}: {new} comes after fence {self.last_fence}")
            self.last_fence = max(self.last_fence, record.fence)
        key = new.token
        since = self.waiting.pop(key, (world.now, process))[0]
        self._look_at_idleness(since, held_until, others)
        if self.conflict(kind, kind):
            self.lost_until = 0.0  # it is alone: nothing of what was lost is left on the server
        self.beliefs[key] = new
        self._look_at_server(new)
        self._plan(new)
        return new

    def held_until(self) -> float:
        """Since when no one acts on a belief to hold it, as the waiters may see it. Forgets those of the dead."""
        last = 0.0
        for token, other in list(self.beliefs.items()):
            if not other.lives():
                # Also of one that knows of its loss, and has not got round to saying so.
                end = other.process.world_time(other.record.deadline)
                last = max(last, end if other.record.alive else end + self._after_a_loss_s())
                if not other.process.alive:
                    del self.beliefs[token]
        return max(self.idle_since, min(last, self.world.now))

    def released(self, belief: Belief) -> None:
        """Note that a release begins; of a lost lease, that the server's time for it must run out first."""
        self.beliefs.pop(belief.token, None)
        now = self.world.now
        if not belief.record.alive:
            if self.keeps_out:
                self.lost.append(belief)
            self.lost_until = now + self._after_a_loss_s()
        if not any(other.process.alive for other in self.beliefs.values()):
            # Who releases last may do so before the server's time for one that was lost is over.
            self.idle_since = max(now, self.lost_until)

    def _after_a_loss_s(self) -> float:
        """How long after a loss the others look: the server's time for it ends a little later than the client's, and
        they may know of an earlier holder only, whose ttl was longer."""
        low_s, high_s = self.world.options.ttl_s
        by_ttl_s = high_s * (1 + 2 * DRIFT) - low_s
        by_place_s = high_s * 2 * DRIFT + self._looks_s() + self.world.options.short_retry_s()
        longest_s = max(min(by_ttl_s, by_place_s), self.looks_after_s)
        return longest_s + self.world.settings.recheck_late_s * 1.5

    def _looks_s(self) -> float:
        """Return how long it takes at most until a waiter looks, whatever it was told of the holder's time."""
        if self.deepest is None:
            return float("inf")
        return self.world.settings.claim_ms / 1000 * (1 + 2 * DRIFT) * (self.deepest + 2)

    def handed_to_nobody(self, token: bytes) -> None:
        """Check a grant to a waiter that had left without being able to say so.

        The claim window ends that, and the others look when the time of the last holder that they know of is over, or
        after as many claim windows as there were before them in the queue.
        """
        world = self.world
        if world.now - self.ended.get(token, -1e9) < world.options.short_retry_s():
            return  # the word of it is under way
        if world.options.mode == "calm":
            world.fail("idle", f"{self.name} was handed to {token.decode()}, who does not wait, and nothing was wrong")
        world.counted["claim of no one"] += 1
        settings = world.settings
        wait_s = min(world.options.ttl_s[1] * (1 + 2 * DRIFT), self._looks_s())
        wait_s = max(settings.claim_ms / 1000, wait_s)
        until = world.now + wait_s + settings.recheck_late_s * 1.5
        self.idle_since = max(self.idle_since, until)

    def placed(self, place: int) -> None:
        """A waiter was told its place in the queue: that decides when it looks for itself."""
        self.deepest = max(self.deepest or 0, place)

    def crashed(self, process: Process) -> None:
        for token, (_, whose) in list(self.waiting.items()):
            if whose is process:
                del self.waiting[token]

    # -- checks -----------------------------------------------------------------------------------

    def _look_at_idleness(self, since: float, held_until: float, others: list[Belief]) -> None:
        """Check that in calm times no one waits for long at a lock that no one holds."""
        world = self.world
        if world.phase == "chaos" or others:
            return
        options = world.options
        begins = max(since, held_until, world.calm_since)
        gap = world.now - begins
        settled = world.calm_since + (
            0.0 if options.mode in ("calm", "calm-keeps", "calm-breaks") else options.waiting_s()
        )
        redirected = world.redirected_at >= begins
        allowed = options.short_retry_s(redirected=redirected) if begins > settled else options.waiting_s()
        if gap > allowed:
            world.fail("idle", f"{self.name} lay idle for {gap:.3f} s ({allowed:.3f} s allowed) with a waiter there")

    def force(self, token: bytes) -> None:
        """Note a release on behalf of the holder: exclusion is not promised against what that one believes."""
        self.forced.add(token)
        if self.beliefs.pop(token, None) is not None and not self.beliefs:
            self.idle_since = self.world.now + self._after_a_loss_s()

    def look_at(self, token: bytes) -> Belief | None:
        """Return the belief of the holder with this token; the server must keep the lease for as long."""
        belief = self.beliefs.get(token)
        if belief is None or not belief.lives():
            return None
        self._look_at_server(belief)
        return belief

    def look_at_trust(self) -> None:
        """Check that no two trust that they hold it: one may have been suspect, and be proved again."""
        living = [belief for belief in self.beliefs.values() if belief.lives()]
        for one, other in itertools.combinations(living, 2):
            if self.conflict(one.kind, other.kind):
                self.world.fail("overlap", f"{self.name} is trusted by {one} and {other}")

    def replan(self, token: bytes) -> None:
        """Plan the next look for a deadline that has changed."""
        belief = self.beliefs.get(token)
        if belief is not None and belief.record.alive:
            self._plan(belief)

    def _look_at_server(self, belief: Belief) -> None:
        if self.until is None:
            return
        until = self.until(belief.token, belief.kind)
        end = belief.process.world_time(belief.record.deadline)
        if until is None:
            self.world.fail("shorter on the server", f"{belief} is not what the server holds for {self.name}")
        elif until < end:
            self.world.fail(
                "shorter on the server", f"{belief} trusts {self.name} {end - until:.6f} s longer than the server"
            )

    def _plan(self, belief: Belief) -> None:
        process = belief.process
        at = process.world_time(belief.record.deadline) + TELL_S
        self.world.after(max(at - self.world.now, 0.0), self._due, belief)

    def _due(self, belief: Belief) -> None:
        """Look at a deadline that has come, or that was the deadline when this was planned."""
        process, record = belief.process, belief.record
        if not record.alive or not process.alive or self.beliefs.get(belief.token) is not belief:
            return
        if process.now() < record.deadline:
            self.look_at(belief.token)
            self._plan(belief)
        elif process.paused or self.world.now - process.resumed_at < TELL_S:
            self.world.after(0.05, self._due, belief)
        else:
            late = process.now() - record.deadline
            self.world.fail("late loss", f"{belief} was not told of its end, {late:.6f} s ago")

"""Waiters of one client wait there, and hand a lock on inside of the client for a short while.

Laws: one turn of a line at a time has its right, which is to ask the server, or to hold what the server has granted.
The right changes hands in one step, taken by the turn that has it, or on behalf of one that has left with it. What was
handed to a turn that leaves goes on to the next one, or back to the server. No turn waits here for longer than
`ALONE_MS`, or its ttl: after that it asks the server by itself, where others see it wait.

Theory: the local acquires of one lock form a *line*. Its owner alone talks to the server; the others wait. A grant
begins a *tenure*. While that lasts, a release makes the next turn the owner, which then holds by the same token on the
server, with the next fencing token of the block that came with the grant. When its time is over, the next turn becomes
the owner with the duty to pass: its request releases the old token and acquires with its own, in one call. So the lock
goes to the first in the server's queue, where we stand by the arrival of the turn that asks. A tenure serves its line
in order: when it hands on to a turn that came later than a waiter elsewhere, all that still wait here came later, too,
and so did the one that passes. Hence no waiter is overtaken by more than one tenure of each other client.

Where no one else waits at the server, nothing is owed to anyone: the tenure goes on for up to `undisturbed_ms`, and the
first that does come to wait there has the server tell the client, for which the tenure is then as short as any.

An acquire that is alone begins no line, but leaves a note. The one that finds another asking by the note, or holding,
begins the line; it asks the server itself, as the first is in no line.

A line ends when its owner finds no turn behind it, or has lost what it held. Turns that wait in it then begin a new
one. Two lines of one lock do no harm, any more than two clients do.

Threads: a turn becomes the owner by one store, and looks for that itself; waking it is only a hint. The turn that
hands on looks afterwards whether the successor has left, and the one that leaves looks afterwards whether it was made
the owner: at least one of them sees the other, and both may call `settle`. Where no turn is left, the first of them has
the right, and gives back what there is: the other one does nothing, as with all that came after it handed on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any, TypeAlias

from holdfast._core.effects import AwaitTurn, Protocol, Spawn, driver
from holdfast._core.failure import RequestFailed
from holdfast._core.record import LeaseRecord, LeaseState
from holdfast._core.schedule import Early
from holdfast._core.settings import Settings
from holdfast._core.snapshot import snapshot
from holdfast._core.tokens import BLOCK, MARK
from holdfast._core.waiting import Acquisition, Busy, Grant

#: Most turns come sooner than that. Callers wait this long, at the least cost, before they start a protocol, ms and s.
SOON_MS = 100
SOON_S = SOON_MS / 1000
#: One that has waited for that long waits for a holder that holds for long, where nothing is gained by handing on, ms.
ALONE_MS = 1_000

_HELD = LeaseState.HELD

#: Starts the protocol that asks the server, with the time left for it.
Ask: TypeAlias = "Callable[[float | None], Protocol[Grant | Busy]]"
#: Undoes whatever that token may hold at the server; behind it the tenure that it is of, if that is known.
GiveBack: TypeAlias = "Callable[..., Protocol[None]]"


class Tenure:
    """What the server has granted to a client, for one local holder after the other.

    `fence`: the last one used, of a block that ends with `last_fence` (0: there is no block). No handing on after
    `ends_at`, nor with less validity than `least_s`. Where others wait, it ends at `fair_until`.
    """

    __slots__ = ("__weakref__", "ends_at", "fair_until", "fence", "holder", "last_fence", "least_s", "over", "token")

    #: The last lease that stands on it; of what is kept see `lease_cache.py`.
    holder: Any

    def __init__(self, token: str, fence: int, ends_at: float, least_s: float = 0.0) -> None:
        self.token = token
        self.fence = fence
        self.last_fence = fence + BLOCK - 1 if token.endswith(MARK) else 0
        self.ends_at = self.fair_until = ends_at
        self.least_s = least_s
        #: It is to be passed on to the server's queue.
        self.over = False

    def told(self) -> None:
        """End the tenure as soon as is fair, since another client waits."""
        self.ends_at = self.fair_until

    @property
    def block(self) -> tuple[int, ...]:
        """The block of fencing tokens, for scripts that give back the rest of it."""
        return (self.last_fence, self.fence) if self.last_fence else ()


#: What stands in a note until a lease comes of the acquire that left it, and before any.
_ASKING, _NONE = SimpleNamespace(state=LeaseState.HELD), SimpleNamespace(state=LeaseState.RELEASED)


class Note:
    """What the last acquire of a lock, with these options, has left for the next one of its client. Lines go by it.

    A hint, never cleared but by the next lease: where it is wrong, a line is begun too early or too late.
    """

    #: The lease that came of it, or what stands for one until then.
    last: LeaseRecord | SimpleNamespace = _NONE


def is_alone(note: Note, lines: Lines) -> bool:
    """True if an acquire that leaves its note finds no other one, and so begins no line."""
    state = note.last.state
    note.last = _ASKING
    return state is not _HELD and note not in lines


class Lines(dict[Any, "Line"]):
    """The lines of a client, by lock and options. `guard` keeps other threads out; reentrant."""

    def __init__(self, settings: Settings, guard: AbstractContextManager[Any], early: Early) -> None:
        super().__init__()
        self.settings = settings
        self.guard = guard
        #: Whether the client would hear that another one waits for the lock of that key.
        self.hears: Callable[[str], bool] = lambda key: False
        self._early = early

    def extend(self, tenure: Tenure, key: str, now: float) -> None:
        """Extend a tenure that no one waited for at the server when it was granted: until another client does."""
        undisturbed_until = now + self.settings.undisturbed_ms / 1000
        if undisturbed_until <= tenure.ends_at or not self.hears(key):
            return
        tenure.ends_at = undisturbed_until
        self._early.begin(tenure.token, tenure)

    def wake_all(self) -> None:
        for line in snapshot(self.values()):
            line.wake_all()


class Line:
    """The acquires of one lock in one client."""

    #: The owner's lease, or the one before it; and what the owner may take, or has to pass on.
    record: LeaseRecord | None = None
    tenure: Tenure | None = None

    def __init__(self, lines: Lines, key: object, owner: LocalWaiter) -> None:
        #: It has ended; since the server is in trouble, which each turn has to see for itself.
        self.dead = self.failed = False
        self.lines = lines
        self.key = key
        #: The turn that has the right.
        self.owner = owner
        #: Those that wait for it, in order, and some that have left. Only the owner takes any out.
        self.waiters: deque[LocalWaiter] = deque()

    def successor(self) -> LocalWaiter | None:
        waiters = self.waiters
        while waiters:
            try:
                first = waiters[0]
                if first is not self.owner and not first.over:
                    return first
                waiters.remove(first)  # that one: another thread may have taken it out
            except (IndexError, ValueError):
                pass
        return None

    def behind(self) -> int:
        return sum(turn is not self.owner and not turn.over for turn in snapshot(self.waiters))

    def die(self) -> None:
        """End the line: no turn gets anything from it any more. Idempotent."""
        self.dead = True
        lines, key = self.lines, self.key
        if lines.get(key) is self:
            lines.pop(key, None)
        self.record = None  # which knows its turn, and that this line
        self.wake_all()

    def wake_all(self) -> None:
        for turn in snapshot(self.waiters):
            turn.ring()

    def settle(self, turn: LocalWaiter, tenure: Tenure | None) -> bool:
        """Make the next turn the owner after the owner has left. True: there is none, and `turn` has the right.

        `turn` is the one that leaves, or that has handed on: it acts for those only that have had no more than its
        `tenure`. Idempotent.
        """
        with self.lines.guard:
            while self.owner.over and not self.dead and (self.owner is turn or self.tenure is tenure):
                successor = self.successor()
                self.owner = successor or turn
                if successor is None:
                    self.die()
        self.owner.ring()
        return self.owner is turn

    def begin_to_pass(self, record: LeaseRecord) -> None:
        """Pass on a lease that has no block of fencing tokens to the next turn."""
        tenure = Tenure(record.token, record.fence, 0.0)
        tenure.over = True
        self.tenure = tenure


class LocalWaiter:
    """One local acquire. `token`: its own, for when it asks the server."""

    __slots__ = ("arrived_at", "bell", "first", "got_at", "handed", "line", "over", "token")

    def __init__(self, token: str, arrived_at: float) -> None:
        self.token = token
        self.arrived_at = arrived_at
        self.line: Line | None = None
        #: It began the line.
        self.first = False
        #: It has left, and takes nothing any more.
        self.over = False
        #: What it has handed on.
        self.handed: Tenure | None = None
        #: When it was granted by the server.
        self.got_at = 0.0
        #: Wakes it where it waits; set by the driver.
        self.bell: Callable[[], None] | None = None

    def join(self, lines: Lines, key: object) -> None:
        """Take a place in the line of that lock, or begin it."""
        while True:
            line = lines.get(key)
            if line is None:
                own = self.line = Line(lines, key, self)
                line = lines.setdefault(key, own)
                if line is own:
                    self.first = True
                    return
            self.line = line
            if self.token[-1] != MARK:
                self.token += MARK
            line.waiters.append(self)
            if not line.dead:
                return
            if lines.get(key) is line:
                lines.pop(key, None)

    def ring(self) -> None:
        bell = self.bell
        if bell is not None:
            bell()

    def has_the_right(self) -> bool:
        """True if this turn is the owner of a line that goes on."""
        line = self.line
        return line is not None and line.owner is self and not line.dead

    def take(self, now: float) -> LeaseRecord | None:
        """The lease, of what was handed on to this turn; None: it is not the owner, or has to ask the server."""
        line = self.line
        assert line is not None
        record, tenure = line.record, line.tenure
        if line.owner is not self or line.dead or record is None or tenure is None or tenure.over:
            return None
        # Not after a lease that was extended: a late extension that shortens may be under way, of which the next holder
        # would not know.
        in_time = now < tenure.ends_at and record.deadline - now >= tenure.least_s
        if not in_time or tenure.fence >= tenure.last_fence or record.extensions or record.overlong:
            tenure.over = True
            return None
        tenure.fence += 1
        line.record = record = record.followed_by(self, now)
        return record

    def is_called(self) -> bool:
        """True if there is something to wake up for."""
        line = self.line
        return line is None or line.owner is self or line.dead

    def waited_us(self, now: float) -> int:
        return max(0, int((now - self.arrived_at) * 1_000_000))

    def passes(self) -> tuple[str | int, ...]:
        """Return what the request has to release: the tenure's token, and its block of fencing tokens if known."""
        line = self.line
        # One that has left may be made the owner for a moment, by a release that has not noticed yet.
        if line is None or line.owner is not self or line.tenure is None or self.over:
            return ()
        return (line.tenure.token, *(line.tenure.block or ("", "")))

    def passed(self) -> None:
        """Note that such a request was answered."""
        line = self.line
        if line is not None and line.owner is self and not self.over:
            line.tenure = None

    def begin(self, token: str, fence: int, ttl_ms: int, undisturbed: str | None = None) -> Tenure | None:
        """Return the tenure, with its block of fencing tokens, that a granted lease stands on, or None.

        `undisturbed`: the lock's key, where no one waited for it at the server.
        """
        line = self.line
        assert line is not None
        if line.tenure is None and token.endswith(MARK):
            settings = line.lines.settings
            ends_at = self.got_at + settings.tenure_ms / 1000
            line.tenure = Tenure(token, fence, ends_at, min(settings.claim_ms, ttl_ms) / 2000)
            if undisturbed is not None:
                line.lines.extend(line.tenure, undisturbed, self.got_at)
        return line.tenure

    def disclaim(self) -> None:
        """Send what its own token was granted back to the server, and to no one in the line: no lease came of it."""
        line = self.line
        if line is None or line.owner is not self:
            return
        if line.record is not None and line.record.turn is self and line.record.token == self.token:
            line.record = None
        if line.tenure is not None and line.tenure.token == self.token:
            line.tenure = None

    def hand_on(self) -> bool:
        """Make the next turn the owner after a release. False: the lease has to be released at the server.

        Idempotent, since a release may be repeated.
        """
        line = self.line
        assert line is not None
        if line.owner is self:
            record = line.record
            if line.dead or record is None:
                return False
            successor = line.successor()
            if successor is None:
                line.die()
                return False
            if line.tenure is None:
                line.begin_to_pass(record)
            self.handed = line.tenure
            line.owner = successor
        owner, handed = line.owner, self.handed
        owner.ring()
        # One that has left before it was made the owner does not know that it had the right: this turn releases.
        return handed is None or not (owner.over and line.settle(self, handed))

    def leave(self) -> Tenure | None:
        """Leave the line and pass on what this turn has; returns what goes back to the server.

        Idempotent.
        """
        self.over = True
        line = self.line
        if line is None or line.owner is not self:
            return None
        record = line.record
        if line.tenure is None and record is not None and record.turn is self:
            # It leaves with a lease, which another thread ends: that finds it handed on.
            line.begin_to_pass(record)
        tenure = line.tenure
        return tenure if line.settle(self, tenure) else None

    def lost(self) -> None:
        """End the line after its lease was lost."""
        line = self.line
        if line is not None and line.owner is self:
            line.die()


async def wait_in_line(
    turn: LocalWaiter, ask: Ask, give_back: GiveBack, timeout_s: float | None, ttl_ms: int
) -> LeaseRecord | Grant | Busy:
    """Wait for the turn, `timeout_s` at most; then take what was handed on, or ask the server."""
    give_up_at = None if timeout_s is None else turn.arrived_at + timeout_s
    alone_at = turn.arrived_at + min(ttl_ms, ALONE_MS) / 1000
    try:
        now = driver.get().now()
        while True:
            line = turn.line
            assert line is not None
            if turn.has_the_right():
                break
            if line.dead and not line.failed:
                turn.join(line.lines, line.key)
                continue
            record, is_over = line.record, give_up_at is not None and now >= give_up_at
            held = record is not None and record.alive and not record.check_expired(now)
            if is_over and held:
                assert record is not None
                await left(turn, give_back)
                return Busy(record.token, now - turn.arrived_at)
            if is_over or line.dead or now >= alone_at:
                # The server knows better: who holds it, or what the trouble is.
                await left(turn, give_back)
                return await ask(None if give_up_at is None else max(0.0, give_up_at - now))
            until = alone_at if give_up_at is None else min(alone_at, give_up_at)
            if held:
                assert record is not None
                until = min(until, record.deadline)
            await AwaitTurn(turn, until - now)
            now = driver.get().now()
        taken = turn.take(now)
        if taken is not None:
            return taken
    except BaseException:
        await left(turn, give_back)
        raise
    # A moment at least: it may have become the owner in the last one.
    return await as_owner(turn, ask, give_back, None if give_up_at is None else max(0.001, give_up_at - now))


async def as_owner(turn: LocalWaiter, ask: Ask, give_back: GiveBack, left_s: float | None) -> Grant | Busy:
    got: Grant | Busy | None = None
    try:
        got = await ask(left_s)
    except RequestFailed:
        if turn.line is not None:
            turn.line.failed = True
            turn.line.die()
        raise
    finally:
        if type(got) is not Grant:
            await left(turn, give_back)
    return got


async def left(turn: LocalWaiter, give_back: GiveBack) -> None:
    """See to it that a turn leaves nothing behind."""
    tenure = turn.leave()
    if tenure is not None:
        await Spawn(give_back(tenure.token, tenure))


async def release_in_line(turn: LocalWaiter, holder: Acquisition) -> bool:
    """Release the lease of that turn: to the next one in its line, or at the server."""
    return turn.hand_on() or await holder.release()

"""What a client holds, from the grant to its end.

Laws: a lost lease never comes back; an answer counts from before its question was sent; a renewal that is answered
after the deadline is late and changes nothing.

Theory: HELD → SUSPECT (a renewal failed, validity lasts) → HELD or LOST; RELEASED from either. A record knows no clock:
its owner says what time it is. When something is due for it, the schedule knows (`schedule.py`).

Threads: `mark_released` and `lose` are made of atomic operations and may be called at any moment, also by a signal
handler in the middle of any other.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from holdfast._core.effects import Call, Command, Protocol, Spawn
from holdfast._core.failure import RequestFailed
from holdfast._core.keys import LockKeys
from holdfast._core.replicas import NotAcked
from holdfast._core.replies import NOTE
from holdfast._core.validity import deadline as deadline_of
from holdfast.errors import shown


class LeaseState(enum.Enum):
    """What is known of a lease."""

    #: Held, and the last renewal was answered.
    HELD = "held"
    #: Still valid, but the last renewal failed.
    SUSPECT = "suspect"
    #: Ended without a release: another client may hold the lock.
    LOST = "lost"
    #: Given back by its owner.
    RELEASED = "released"


class Order(NamedTuple):
    """Where a request that extends a lease stands among its extensions: see `_lua/order.lua`.

    `number`: of the last extension that was asked for before it, or with it. `sets`: it is that extension, and may
    shorten. `outdates`: what was sent before it changes nothing any more when it arrives later. `asks_ms`: what the
    server is asked for; less than the caller wants where `max_hold` leaves less.
    """

    number: int = 0
    sets: bool = False
    outdates: bool = False
    asks_ms: int = 0

    def mark_ms(self, ttl_ms: int, tombstone_ms: int) -> int:
        """Encode the order for scripts: -1 only lengthens, 0 sets, more outdates for that many ms."""
        if not self.sets:
            return -1
        return max(ttl_ms, tombstone_ms) if self.outdates else 0


_NO_TTL_MS = 1 << 62
#: A server's clock that was set back by less than this is not worth a request.
_CLOCK_SLACK_MS = 1_000

#: How long it may take to find out why a lease was lost, s.
_NOTE_PATIENCE_S = 1.0

#: A renewal of a lease that was never extended.
RENEWAL = Order()

_HELD = LeaseState.HELD
_SUSPECT = LeaseState.SUSPECT
_RELEASED = LeaseState.RELEASED


#: Make the protocols that extend a lease, and that release it.
Asks: TypeAlias = "tuple[Callable[..., Protocol[int]], Callable[[], Protocol[bool]]]"


class Report:
    """The one that is told what becomes of a lease, for log and metrics, never for decisions: here no one.

    Telling never waits, never raises, and takes no lock: it may happen in a signal handler, or while the finder of a
    loss holds locks. `detailed`: it also wants to know of what is no loss. `record`: a `LeaseRecord`.
    """

    __slots__ = ()

    detailed = False

    def queued(self) -> None:
        """Called when it joins the queue."""

    def acquired(self, record: Any) -> None:
        """Called when it is acquired, with the record of its lease."""

    def busy(self, waited_s: float, holder: Any, is_full: bool) -> None:
        """Called when the time is up, with the `Holder` at that moment (None where it is not known)."""

    def failed(self, error: BaseException) -> None:
        """Called when an error ends it before the caller has it."""

    def released(self) -> None:
        """Called when it is released, if it was acquired."""

    def lost(self, record: Any, reason: str) -> None:
        """Called when it ends without a release."""

    def renewed(self, record: Any, lag_s: float) -> None:
        """Called when it is renewed in the background, `lag_s` after that was due."""

    def suspect(self, record: Any) -> None:
        """Called when a renewal has failed, and validity lasts."""


SILENT = Report()


class LeaseRecord:
    """One held lease as the core sees it.

    `deadline`: until when it may be trusted; None: as its ttl says. `short_s`: of one that begins with less than that.
    `asks`: how it is extended and released; None: as the class says when that is wanted. `renews`: the background
    extends it. Each of `on_loss` is called with the reason by what finds the loss, and again if a handler raises there.
    """

    # No `__getattr__` here or in a subclass: with it, Python reads each of these fields three times slower.

    __slots__ = (
        "__dict__",
        "__weakref__",
        "_asks",
        "crash_ms",
        "deadline",
        "due_at",
        "fence",
        "held_since",
        "home",
        "kept_until",
        "lease",
        "most_ms",
        "name",
        "next_at",
        "renew_from",
        "report",
        "short_s",
        "state",
        "token",
        "ttl_ms",
        "turn",
        "unended",
    )

    # What most leases never change stands here, and is not written for each of them; but for what each acquire and each
    # release reads, which takes ten times as long to find here as in a slot.

    #: Of what, for messages; see `Leasable._label`.
    label = "lock"
    renews = True
    max_until: float | None = None
    granted_until = 0.0  # and what it could be trusted until without that
    reason: str | None = None
    limited = False  # an extension, answered or not, was cut to what max_hold left
    extensions = 0  # asked for so far
    overlong = False  # the server's clock was set back
    least_ms = _NO_TTL_MS  # the least ttl that one of them was for
    repeats = False  # its release was interrupted, and is asked for twice
    stray = False  # a request for it went unanswered, as in `Grant`
    proved_until = float("inf")
    on_loss: tuple[Callable[[str], None], ...] = ()
    #: As `Acquisition.places`; who asks for it, and why; and what is called when it is asked for first.
    places: tuple[LockKeys, ...] = ()
    wanted_by: str | None = None
    on_want: Callable[[str], None] | None = None
    says: str | None = None  # its note, for people
    sync: Any = None  # which replicas had to acknowledge it, for what goes on from it
    tenure: Any = None
    #: The blocks under it.
    blocks: tuple[Any, ...] = ()
    next_at: float  # when it needs attention next, once it is watched
    due_at: float  # when its last renewal was at first, once there was one

    def __init__(
        self,
        name: str,
        token: str,
        fence: int,
        ttl_ms: int,
        sent_at: float,
        deadline: float | None = None,
        short_s: float = 0.0,
        asks: Asks | None = None,
    ) -> None:
        self.name = name
        self.token = token
        self.fence = fence
        self.ttl_ms = ttl_ms
        self.deadline = deadline_of(sent_at, ttl_ms) if deadline is None else deadline
        #: What it begins with, until it is extended; 0: its ttl.
        self.short_s = short_s
        self._asks = asks
        self.held_since = sent_at
        self.state = _HELD
        self.unended = True  # deleted by the one that ends it
        self.renew_from = sent_at
        self.most_ms = ttl_ms  # the greatest ttl that anything was for
        self.report: Report = SILENT
        self.home: Any = None  # where its loss is told, once a user has it
        #: What the user has of it, if that is still there; where it is not, it is renewed no more.
        self.lease: Callable[[], Any] | None = None
        #: Of a lease that its client may hand on: see `tenure.py`.
        self.turn: Any = None
        self.crash_ms = 0  # for how long it may be trusted without a proof that its client is there; 0: for its ttl
        self.kept_until = 0.0  # a release before that leaves it to its time

    def extension(self, ttl_ms: int, *order: Order) -> Protocol[int]:
        """The protocol that renews it, or (with an order) extends it.

        It returns 0 where it is not held any more, 1 when that is done, more where the server keeps it for that many
        ms, longer than was asked for.
        """
        return (self._asks or self._ask_by())[0](ttl_ms, *order)

    def release(self) -> Protocol[bool]:
        """The protocol that releases it; False: it was not held any more."""
        return (self._asks or self._ask_by())[1]()

    def _ask_by(self) -> Asks:
        raise NotImplementedError

    def beside(self, keep: Callable[[int], Protocol[None]]) -> None:
        """Have `keep(ms)` run behind each extension, for how long that is at most, and for 0 before the release."""
        extension, release = self._asks or self._ask_by()

        async def extends(ttl_ms: int, *order: Order) -> int:
            held = await extension(ttl_ms, *order)
            if held:
                await Spawn(keep(self.most_ms))
            return held

        async def releases() -> bool:
            await Spawn(keep(0))
            return await release()

        self._asks = extends, releases

    def hand_on(self, now: float) -> bool:
        """Hand the lease on within its client, where `turn` allows that. False: it has to be released."""
        return False

    def end_here(self) -> None:
        """End what it stands on: nothing is handed on, or kept."""

    def followed_by(self, turn: Any, now: float) -> LeaseRecord:
        """The lease of the next turn, where it was handed on; it lasts as long as this one would have."""
        raise NotImplementedError

    def end_by(self, until: float) -> None:
        """Limit the lease to that moment, whatever is asked for later."""
        self.max_until = until
        self._bound()

    def _bound(self) -> None:
        if self.max_until is not None and self.deadline > self.max_until:
            self.granted_until, self.deadline = self.deadline, self.max_until

    @property
    def alive(self) -> bool:
        """Neither lost nor released, as far as is known."""
        return self.state is _HELD or self.state is _SUSPECT

    @property
    def is_left_over(self) -> bool:
        """Whether an extension that is answered now left the server something that is not relied on: to be given back.

        Not where it was lost before its time was over ("taken"): what is left of the votes of a quorum keeps others out
        for as long as the holder was told. Nor what a closing client gives back itself.
        """
        return self.state is LeaseState.LOST and self.reason in ("expired", "max_hold")

    def check_expired(self, now: float) -> bool:
        """Mark a lease lost whose time is over; True if it is."""
        alive = self.state is _HELD or self.state is _SUSPECT
        if alive and now < self.deadline:
            return False
        if alive:
            at_most = self.max_until is not None and (self.limited or now >= self.max_until)
            self.lose("max_hold" if at_most else "expired")
        return True

    def lose(self, reason: str) -> None:
        if self.alive and self._end():
            self.reason = reason
            self.state = LeaseState.LOST
            try:
                self._tell_loss(reason)
            except BaseException:
                self._tell_loss(reason)  # all of it: a signal handler has raised behind a part
                raise

    def _tell_loss(self, reason: str) -> None:
        self._report_loss(reason)
        for listener in self.on_loss:
            listener(reason)

    def _report_loss(self, reason: str) -> None:
        report, self.report = self.report, SILENT  # once
        report.lost(self, reason)

    def mark_released(self, now: float = 0.0) -> bool:
        """Mark the lease released; False when it had ended before, or its time is over `now`."""
        state = self.state
        if (state is not _HELD and state is not _SUSPECT) or (now >= self.deadline and self.check_expired(now)):
            return False
        try:
            del self.unended  # `_end`, without the call: each release comes this way
        except AttributeError:
            return False
        self.state = _RELEASED
        return True

    def half_released(self) -> bool:
        """Finish a release that an exception interrupted; True if the lease is released now, to be asked for again."""
        if self.alive and self.reason is None and not hasattr(self, "unended"):
            self.state = _RELEASED
        self.repeats = self.state is _RELEASED
        return self.repeats

    def mark_taken(self) -> None:
        """Mark a lease lost that its release did not find any more; `on_loss` is not called."""
        self.reason = "taken"
        self.state = LeaseState.LOST
        self._report_loss("taken")

    def lose_late(self) -> None:
        """Mark a lease lost after a release that was not waited for; not where another one may have been first."""
        if self.repeats:
            return
        self.mark_taken()
        for listener in self.on_loss:
            listener("taken")

    def stop_renewing(self) -> None:
        self.renews = False

    def _become(self, state: LeaseState) -> None:
        self.state = state
        if not hasattr(self, "unended"):  # ended by another thread meanwhile, which stays so
            self.state = _RELEASED if self.reason is None else LeaseState.LOST

    def _end(self) -> bool:
        """Claim the end of the lease; True for one caller only."""
        try:
            del self.unended
        except AttributeError:
            return False
        return True

    def renewal_ttl_ms(self, now: float) -> int | None:
        """The ttl to ask for now; None when `max_hold` leaves nothing to extend."""
        if self.max_until is None:
            return self.ttl_ms
        left_ms = int((self.max_until - now) * 1000)
        return min(self.ttl_ms, left_ms) if left_ms > 0 and self.deadline < self.max_until else None

    def renew(self, ttl_ms: int) -> Protocol[int]:
        if self.overlong:
            self.overlong = False
            return self.or_why(ttl_ms, self._order(ttl_ms, shortens=True))
        return self.or_why(ttl_ms, Order(self.extensions)) if self.extensions else self.or_why(ttl_ms)

    def usual_renewal(self, ttl_ms: int) -> Call | None:
        """The request that `renew` begins with, and ends with where it is held; None where `renew` has to say."""
        return None

    async def or_why(self, ttl_ms: int, *order: Order) -> int:
        """Return what `extension` says; a lease that was broken is lost for that reason."""
        try:
            held = await self.extension(ttl_ms, *order)
        except NotAcked as failure:
            failure.name, failure.label = self.name, self.label
            raise
        if not held and self.places:
            note = await note_for(self.places, self.token)
            if note is not None:
                self.lose(broken_by(note))
        return held

    def lasts(self, ms: int) -> None:
        """Note how long the server keeps it, where that is longer than it was asked for now.

        If nothing has ever asked for that much, its clock was set back: no other client would get in before it has
        caught up, should the holder die. The next renewal sets the time again.
        """
        self.overlong = ms > self.most_ms + _CLOCK_SLACK_MS

    def extending(self, ttl_ms: int, asked_at: float) -> Order:
        """Note a request for `ttl_ms` and return its order.

        It outdates what would shorten it, or last longer, if that were carried out after it.
        """
        if self.max_until is not None:
            ttl_ms = max(1, min(ttl_ms, int((self.max_until - asked_at) * 1000)))
        return self._order(ttl_ms, shortens=ttl_ms < self.most_ms)

    def _order(self, ttl_ms: int, shortens: bool) -> Order:
        self.extensions += 1
        outdates = shortens or ttl_ms > self.least_ms
        self.least_ms = min(self.least_ms, ttl_ms)
        self.most_ms = max(self.most_ms, ttl_ms)
        return Order(self.extensions, True, outdates, ttl_ms)

    def shorten(self, ttl_ms: int, asked_at: float, asks_ms: int | None = None) -> bool:
        """Note a request to end earlier, which counts at once, since the answer may get lost; False if it is none."""
        asks_ms = ttl_ms if asks_ms is None else asks_ms
        until = deadline_of(asked_at, asks_ms)
        if ttl_ms >= self.ttl_ms and until >= self.deadline:
            return False
        self.limited = self.limited or asks_ms < ttl_ms
        self.ttl_ms = min(self.ttl_ms, ttl_ms)
        self.deadline = min(self.deadline, until)
        return True

    def extended(self, ttl_ms: int, sent_at: float, now: float, order: Order = RENEWAL) -> bool:
        """Record an extension by the server; False when its answer came after the end (the caller gives back).

        `ttl_ms`: what a renewal asked for, or what the caller of an extension wants; its order says what it asked for.
        Answers come in any order. That of the last extension says what the ttl is from now on; any other one may be for
        more than what was asked for since. None takes back what another one has said: no request that can still be
        carried out leaves less on the server than what is trusted.
        """
        if self.check_expired(now):
            return False
        if order.sets and order.number == self.extensions:
            self.ttl_ms = ttl_ms
        if order.sets:
            ttl_ms = order.asks_ms
        self.short_s = 0.0
        until = deadline_of(sent_at, min(ttl_ms, self.ttl_ms))
        if until > self.deadline:
            self.deadline = until
            self._bound()
            self.limited = ttl_ms < self.ttl_ms and self.max_until is not None
        self.renew_from = max(self.renew_from, sent_at)
        self._become(_HELD)
        return self.state is _HELD  # else another thread has ended it

    def is_wanted(self, by: str) -> None:
        if self.wanted_by is None:
            self.wanted_by = by
        if self.on_want is not None:
            self.on_want(self.wanted_by)

    def suspect(self) -> None:
        if self.state is _HELD:
            self._become(_SUSPECT)
            self.report.suspect(self)


async def note_for(places: Sequence[LockKeys], token: str, *, or_raise: bool = False) -> str | None:
    """Return who has broken what that token held there, and why; None where that is not known.

    `or_raise`: where it cannot be asked, `RequestFailed` is raised.
    """
    for key in [keys.note_of(token) for keys in places]:
        try:
            found = await Command(("GET", key), _NOTE_PATIENCE_S, key=key, fits=NOTE)
        except RequestFailed:
            if or_raise:
                raise
            return None
        if found is not None:
            return str(found, "utf-8", "replace")
    return None


def broken_by(text: str) -> str:
    """The reason of a loss. `text` comes from another program."""
    return f"broken by {shown(text, 400)}"

"""When something is due for what a client holds: its renewal, or its end.

Law: a loss is known at the local deadline at the latest, also while a renewal hangs.

Theory: each hold knows when it needs attention next, and all are looked through for those whose time has come: no more
often than something is due, which for thousands that are renewed together is seldom. Most holds are released long
before, and cost no more than to be noted and forgotten. One whose renewal is under way needs attention at its deadline.

Threads: `add` and `remove` are made of atomic operations and may be called at any moment, by any thread and by a signal
handler in the middle of any other; all else is called by one thread at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from holdfast._core.early import Early
from holdfast._core.record import LeaseRecord, Order
from holdfast._core.settings import DEFAULT, Settings
from holdfast._core.snapshot import snapshot

#: A lease that has to be proved is renewed with others that many ms of it before each s: half of its time.
_CRASH_EARLY = 6_000
#: None is renewed with others sooner than that before its time, s.
_SOON_MAX_S = 1.0
#: Those that were held for `look_s` are looked at together, no more often than that, s.
_LOOK_EVERY_S = 0.025

_NEVER = float("inf")


def _pace_ms(record: LeaseRecord) -> int:
    """The time of which parts are waited between two renewals."""
    return record.crash_ms if 0 < record.crash_ms < record.ttl_ms else record.ttl_ms


class Schedule:
    """When which hold needs attention."""

    def __init__(self, settings: Settings = DEFAULT) -> None:
        #: Holds are noted in `outlived` when they were held for that long, or get attention before.
        self.look_s = _NEVER
        #: What was heard of tokens that are not here yet. A lease of such a token that is added, and one that was asked
        #: for before `hears_since`, is handed to `meets`.
        self.early = Early()
        self.hears_since = float("-inf")
        self.meets: Callable[[LeaseRecord], None] = lambda record: None
        self.outlived: list[LeaseRecord] = []
        #: Called with those that ended sooner than the server may think: by `max_hold`, or by an extension.
        self.outlasts: Callable[[LeaseRecord], None] = lambda record: None
        #: All that are held, in the order in which they were added.
        self._held: dict[LeaseRecord, None] = {}
        #: Their renewal is under way.
        self._asked: set[LeaseRecord] = set()
        #: None of them needs attention before that; those that were added since say so themselves.
        self._next_at = _NEVER
        self._settings = settings
        self._soon_s_per_ms = settings.renew_early_fraction / 1000
        self._renew_s_per_ms, self._jitter = settings.renew_fraction / 1000, settings.renew_jitter

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[LeaseRecord]:
        return iter(snapshot(self._held))

    def add(self, record: LeaseRecord, jitter: float) -> float:
        """Watch a record; returns when it needs attention first. `jitter` is a random number in [0, 1)."""
        at = self.replan(record, jitter)
        look_at = record.held_since + self.look_s + _LOOK_EVERY_S
        if look_at < at:
            record.next_at = at = look_at - look_at % _LOOK_EVERY_S
        record.is_young = True
        self._held[record] = None  # by now the engine may have seen it
        if record.token in self.early or record.held_since < self.hears_since:
            self.meets(record)
        return at

    def finish(self, record: LeaseRecord) -> bool:
        """End it for its owner, who then releases it; False when it had ended before, in whatever way."""
        if not record.mark_released():
            return False
        self._held.pop(record, None)
        return True

    def remove(self, record: LeaseRecord) -> None:
        """Watch it no more."""
        self._held.pop(record, None)

    def _over(self, record: LeaseRecord) -> None:
        self.remove(record)
        if record.reason == "max_hold" or (record.reason == "expired" and record.extensions):
            self.outlasts(record)

    def next_at(self) -> float | None:
        """The next moment at which `due` has something to look at, or None."""
        return self._next_at if self._next_at < _NEVER else None

    def due(self, now: float) -> list[LeaseRecord]:
        """Holds to renew now, and those that are soon to be renewed with them: one request is enough for many.

        Those whose time is over are lost on the way, and not watched any more.
        """
        horizon = now + _SOON_MAX_S
        near = [record for record in snapshot(self._held) if record.next_at <= horizon]
        to_renew: list[LeaseRecord] = []
        for record in near:
            if record.next_at <= now and self._attend(record, now, now):
                to_renew.append(record)
        for record in near if to_renew else ():
            # Half of their time for those that are due most often: many are soon asked for together.
            soon = min(now + (record.crash_ms / _CRASH_EARLY or record.ttl_ms * self._soon_s_per_ms), horizon)
            if now < record.next_at <= soon < record.deadline and self._attend(record, now, soon):
                to_renew.append(record)
        times = [record.next_at for record in near if now < record.next_at <= horizon]
        self._next_at = min(times or [record.next_at for record in snapshot(self._held)], default=_NEVER)
        return to_renew

    def _attend(self, record: LeaseRecord, now: float, soon: float) -> bool:
        """Do what is due for it; True if it is to be renewed, which counts as due where it is by `soon`."""
        if record.is_young:
            record.is_young = False
            self.outlived.append(record)
        if record.check_expired(now):  # also of one that another thread has just ended
            self._over(record)
            return False
        if soon < record.due_at:
            self._at(record, record.due_at)
            return False
        record.next_at = record.deadline
        # (Of one that is dropped and renews still, the finalizer met an exception, which Python ignores.)
        is_dropped = record.lease is not None and record.lease() is None
        if not record.renews or is_dropped or record in self._asked or record.renewal_ttl_ms(now) is None:
            return False
        self._asked.add(record)
        return True

    def answered(self, record: LeaseRecord, held: int, ttl_ms: int, sent_at: float, now: float, jitter: float) -> bool:
        """Record a renewal's reply; False if the lease has ended (late, or taken)."""
        self._asked.discard(record)
        if record not in self._held:
            return False
        if held > 1:
            record.lasts(held)
        if held and record.extended(ttl_ms, sent_at, now):
            lag_s = max(0.0, now - record.due_at)
            self.replan(record, jitter)
            if record.report.detailed:
                record.report.renewed(record, lag_s)
            return True
        if not held:
            record.lose("taken")
        self.remove(record)
        return False

    def failed(self, record: LeaseRecord, now: float, jitter: float, sent_at: float | None = None) -> None:
        """Record a failed renewal: suspect, and tried again while validity lasts.

        Unless what was sent after it (at `sent_at`) has been answered.
        """
        self._asked.discard(record)
        if record not in self._held:
            return
        if record.check_expired(now):
            self._over(record)
            return
        if sent_at is not None and record.renew_from > sent_at:
            self.replan(record, jitter)
            return
        record.suspect()
        wait_s = (record.short_s or _pace_ms(record) / 1000) * self._settings.renew_again_fraction
        self._at(record, now + wait_s * (0.5 + jitter))

    def shorten(self, record: LeaseRecord) -> float:
        """Plan for a deadline that has come nearer, without renewing sooner."""
        return self._at(record, record.next_at)

    def extending(self, record: LeaseRecord, ttl_ms: int, asked_at: float) -> tuple[Order, float | None]:
        """Note an extension; returns its order, and when the lease needs attention if that is earlier now."""
        order = record.extending(ttl_ms, asked_at)
        return order, self.shorten(record) if record.shorten(ttl_ms, asked_at, order.asks_ms) else None

    def extended(
        self, record: LeaseRecord, order: Order, held: int, ttl_ms: int, asked_at: float, now: float, jitter: float
    ) -> float | None:
        """Record an extension's reply; returns when it needs attention next, None if it has ended (late, or taken)."""
        if held and record.extended(ttl_ms, asked_at, now, order):
            return self.replan(record, jitter)
        if not held:
            record.lose("taken")
        self.remove(record)
        return None

    def replan(self, record: LeaseRecord, jitter: float) -> float:
        """Plan its renewal, or its end; returns when it needs attention next."""
        at = record.deadline
        if record.renews:
            wait_s = _pace_ms(record) * self._renew_s_per_ms
            if record.short_s:
                wait_s = min(record.short_s * self._settings.renew_again_fraction, self._settings.stretch_s)
            at = record.renew_from + wait_s * (1 - self._jitter * jitter)
        record.due_at = at
        return self._at(record, at)

    def _at(self, record: LeaseRecord, at: float) -> float:
        """Have it get attention then, or at its deadline."""
        record.next_at = at = min(at, record.deadline)
        if at < self._next_at:
            self._next_at = at
        return at

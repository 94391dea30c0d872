"""When something is due for what a client holds: its renewal, or its end.

Laws: a loss is known at the local deadline at the latest, also while a renewal hangs; a message and the lease that it
is about find each other, in whichever order they come.

Theory: most holds are released long before anything is due. A new one is only noted, and planned (which is a heap's
work) when it has outlived the first part of its ttl. One whose renewal is under way stands there by its deadline. The
heap is cleaned lazily.

A message can overtake the lease: the answer to an acquire is slow, the message stands right behind the grant that is
pushed, or the lease is between two local holders. So it is noted (`Early`) before its lease is looked for, and a lease
is made known before this is looked at. Of the two that may then see both, the one that takes the message acts.

Threads: `add` and `remove` are made of atomic operations and may be called at any moment, by any thread and by a signal
handler in the middle of any other; all else is called by one thread at a time.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakValueDictionary

from holdfast._core.effects import Wake
from holdfast._core.record import LeaseRecord, LeaseState, Order
from holdfast._core.settings import DEFAULT, Settings
from holdfast._core.snapshot import snapshot

#: A lease that has to be proved is renewed with others that many ms of it before each s: half of its time.
_CRASH_EARLY = 6_000
#: Messages that are remembered; beyond that the oldest go. Most are of leases that have ended.
EARLY_MAX = 1_000
#: Characters of a text that are kept: other programs write them.
_TEXT_MAX = 1_000

_HELD = LeaseState.HELD


class Early(dict[str, dict[str, str]]):
    """Messages about tokens of which no lease is known yet: texts by the kind of the message, by the token.

    One of each client; one thread at a time notes messages. A token goes by its age alone: who takes its last text
    could otherwise throw out the next one.
    """

    def __init__(self) -> None:
        super().__init__()
        #: What acts when another client waits for it: tenures, by their tokens.
        self.known: WeakValueDictionary[str, Any] = WeakValueDictionary()

    def note(self, token: str, kind: str, text: str = "") -> None:
        """Remember it."""
        self.setdefault(token, {})[kind] = text[:_TEXT_MAX]
        while len(self) > EARLY_MAX:
            try:
                self.pop(next(iter(self)), None)
            except (RuntimeError, StopIteration):
                pass  # another thread has taken one

    def take(self, token: str, kind: str) -> str | None:
        """The text, for one that acts on it; None where there is none any more."""
        return self.get(token, {}).pop(kind, None)

    def begin(self, token: str, one: Any) -> None:
        """Have what stands on that token be told when another client waits for it."""
        self.known[token] = one
        if self.take(token, Wake.YIELD) is not None:
            one.told()

    def told(self, token: str) -> None:
        """Act on a message of the inbox: another client waits for what that token holds."""
        if token not in self.known:
            self.note(token, Wake.YIELD)
        one = self.known.get(token)
        if one is not None:
            one.told()

    def inbox_lost(self) -> None:
        """Act as if others waited for everything, since messages may have been lost."""
        for one in snapshot(self.known.values()):
            one.told()


def _pace_ms(record: LeaseRecord) -> int:
    """The time of which parts are waited between two renewals."""
    return min(record.crash_ms or record.ttl_ms, record.ttl_ms)


class Schedule:
    """When which hold needs attention."""

    def __init__(self, settings: Settings = DEFAULT) -> None:
        #: Holds are noted in `outlived` that were held for that long when they are planned first.
        self.look_s = float("inf")
        #: What was heard of tokens that are not here yet. A lease of such a token that is added, and one that was asked
        #: for before `hears_since`, is handed to `meets`.
        self.early = Early()
        self.hears_since = float("-inf")
        self.meets: Callable[[LeaseRecord], None] = lambda record: None
        self.outlived: list[LeaseRecord] = []
        #: Called with those that ended sooner than the server may think: by `max_hold`, or by an extension.
        self.outlasts: Callable[[LeaseRecord], None] = lambda record: None
        # With the record's key, not the record: the garbage collector goes through tuples that refer to objects, again
        # and again where leases are many and renewed all the time.
        self._heap: list[tuple[float, int, int]] = []
        self._live: dict[int, LeaseRecord] = {}
        self._new: dict[int, LeaseRecord] = {}  # their `next_at` is a random number, for their first plan
        self._plan_at: list[float] = []  # when the new ones have to be planned: a heap of which the first counts
        # Well before any renewal can be due.
        self._plan_s_per_ms = settings.renew_fraction * (1 - settings.renew_jitter) / 2000
        self._asked: dict[int, LeaseRecord] = {}  # their renewal is under way
        self._sequence = itertools.count(1)
        self._settings = settings
        self._early_s_per_ms = settings.renew_early_fraction / 1000

    def __len__(self) -> int:
        return len(self._live) + len(self._new)

    def __iter__(self) -> Iterator[LeaseRecord]:
        return iter(snapshot(self._new.values()) + snapshot(self._live.values()))

    def add(self, record: LeaseRecord, jitter: float) -> float:
        """Watch a record; returns when it needs attention first. `jitter` is a random number in [0, 1)."""
        record.next_at = jitter
        self._new[id(record)] = record  # by now it may be planned, by the engine
        wait_s = record.ttl_ms * self._plan_s_per_ms
        if record.short_s or record.crash_ms:
            wait_s = self._renew_at(record, 1.0) - record.held_since
        at = record.held_since + (wait_s if wait_s < self.look_s else self.look_s)
        if record.deadline < at:
            at = record.deadline
        plan_at = self._plan_at
        try:
            if at < plan_at[0]:
                heapq.heappush(plan_at, at)
        except IndexError:
            heapq.heappush(plan_at, at)
        if record.token in self.early or record.held_since < self.hears_since:
            self.meets(record)
        return at

    def _plan_new(self, now: float) -> None:
        # A thread that adds one from now on sees no time that would be soon enough.
        self._plan_at.clear()
        new = self._new
        young: list[LeaseRecord] = []
        while new:
            try:
                key, record = new.popitem()
            except KeyError:
                break  # removed by another thread
            since, look_s = record.held_since, self.look_s
            if now < since + look_s and since + 2 * look_s <= min(self._renew_at(record, 1.0), record.deadline):
                young.append(record)
                continue
            self.outlived.append(record)
            jitter = record.next_at
            self._live[key] = record
            if record.alive:
                self._plan(record, self._renew_at(record, jitter))
            else:
                self._over(record)  # ended while it was in neither
        for record in young:
            new[id(record)] = record
            if not record.alive:
                new.pop(id(record), None)
        if young:
            heapq.heappush(self._plan_at, now + self.look_s / 4)  # not at each one's own time: there may be thousands

    def finish(self, record: LeaseRecord, now: float = 0.0) -> bool:
        """End it for its owner, who then releases it; False when it had ended in some way, or does `now`."""
        if not record.mark_released(now):
            return False
        if self._new.pop(id(record), None) is None:
            self._live.pop(id(record), None)
        return True

    def remove(self, record: LeaseRecord) -> None:
        """Watch it no more."""
        key = id(record)
        if self._new.pop(key, None) is None:
            self._live.pop(key, None)

    def _over(self, record: LeaseRecord) -> None:
        self.remove(record)
        if record.reason == "max_hold" or (record.reason == "expired" and record.extensions):
            self.outlasts(record)

    def next_at(self) -> float | None:
        """The next moment at which `due` has something to look at, or None."""
        heap, live = self._heap, self._live
        first_at = self._plan_at[0] if self._new and self._plan_at else float("inf")
        while heap:
            at, _, key = heap[0]
            record = live.get(key)
            if record is not None and at == record.next_at:
                return min(at, first_at)
            heapq.heappop(heap)
        return first_at if first_at < float("inf") else None

    def due(self, now: float) -> list[LeaseRecord]:
        """Holds to renew now, and those that are soon to be renewed with them: one request is enough for many.

        Those whose time is over are lost on the way, and not watched any more.
        """
        to_renew: list[LeaseRecord] = []
        if self._plan_at and self._plan_at[0] <= now:
            self._plan_new(now)
        heap, live, asked = self._heap, self._live, self._asked
        while heap:
            at, _, key = heap[0]
            record = live.get(key)
            if record is None or at != record.next_at:
                heapq.heappop(heap)
                continue
            # Half of their time for those that are due most often: many are soon asked for together.
            early_s = record.crash_ms / _CRASH_EARLY or record.ttl_ms * self._early_s_per_ms
            if at > now and not (to_renew and at <= now + early_s < record.deadline):
                break
            heapq.heappop(heap)
            if record.check_expired(now):
                self._over(record)
                continue
            self._plan(record, record.deadline)
            # (Of one that is dropped and renews still, the finalizer met an exception, which Python ignores.)
            is_dropped = record.lease is not None and record.lease() is None
            if record.renews and not is_dropped and key not in asked and record.renewal_ttl_ms(now) is not None:
                if record.state is _HELD:
                    record.due_at = at
                to_renew.append(record)
                asked[key] = record
        return to_renew

    def answered(self, record: LeaseRecord, held: int, ttl_ms: int, sent_at: float, now: float, jitter: float) -> bool:
        """Record a renewal's reply; False if the lease has ended (late, or taken)."""
        self._asked.pop(id(record), None)
        if id(record) not in self._live:
            return False
        if held > 1:
            record.lasts(held)
        if held and record.extended(ttl_ms, sent_at, now):
            self._plan(record, self._renew_at(record, jitter))
            if record.report.detailed:
                record.report.renewed(record, max(0.0, now - record.due_at))
            return True
        if not held:
            record.lose("taken")
        self.remove(record)
        return False

    def failed(self, record: LeaseRecord, now: float, jitter: float, sent_at: float | None = None) -> None:
        """Record a failed renewal: suspect, and tried again while validity lasts.

        Unless what was sent after it (at `sent_at`) has been answered.
        """
        self._asked.pop(id(record), None)
        if id(record) not in self._live:
            return
        if record.check_expired(now):
            self._over(record)
            return
        if sent_at is not None and record.renew_from > sent_at:
            self._plan(record, self._renew_at(record, jitter))
            return
        record.suspect()
        wait_s = (record.short_s or _pace_ms(record) / 1000) * self._settings.renew_again_fraction
        self._plan(record, now + wait_s * (0.5 + jitter))

    def shorten(self, record: LeaseRecord) -> float:
        """Plan for a deadline that has come nearer, without renewing sooner."""
        if self._new.pop(id(record), None) is not None:
            self._live[id(record)] = record
            record.next_at = record.deadline
        return self._plan(record, record.next_at)

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
        """Plan for a deadline that was changed from outside (an extension)."""
        if self._new.pop(id(record), None) is not None:
            self._live[id(record)] = record
        return self._plan(record, self._renew_at(record, jitter))

    def _renew_at(self, record: LeaseRecord, jitter: float) -> float:
        if not record.renews:
            return record.deadline
        wait_s = _pace_ms(record) / 1000 * self._settings.renew_fraction
        if record.short_s:
            wait_s = min(record.short_s * self._settings.renew_again_fraction, self._settings.stretch_s)
        return record.renew_from + wait_s * (1 - self._settings.renew_jitter * jitter)

    def _plan(self, record: LeaseRecord, at: float) -> float:
        record.next_at = min(at, record.deadline)
        at = record.next_at
        heap, live = self._heap, self._live
        heapq.heappush(heap, (at, next(self._sequence), id(record)))
        if len(heap) > 2 * len(live) + 1000:  # no more of those that were removed than of the others
            heap[:] = [each for each in heap if (its := live.get(each[2])) is not None and each[0] == its.next_at]
            heapq.heapify(heap)
        return at

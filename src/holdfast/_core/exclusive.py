"""The exclusive lock of one name, wherever it lives: what both APIs need of it.

One class for a server that decides alone (a single one, a Sentinel's master, the owner of a slot), one for a quorum.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Self, TypeAlias, cast

from holdfast._core import mutex, plain, redlock
from holdfast._core.by_turns import ByTurns
from holdfast._core.crash import CrashAcquisition
from holdfast._core.effects import Call, Protocol
from holdfast._core.failure import RequestFailed
from holdfast._core.keys import LockKeys
from holdfast._core.lease_cache import CachedLease
from holdfast._core.mutex import Each, LockAcquisition
from holdfast._core.plain import PlainAcquisition, Scripts
from holdfast._core.record import RENEWAL, Asks, LeaseRecord, Order
from holdfast._core.redlock import Quorum, QuorumAcquisition
from holdfast._core.replicas import Sync
from holdfast._core.replies import LockSeen
from holdfast._core.settings import Settings
from holdfast._core.tenure import LocalWaiter, Note, Tenure, release_in_line
from holdfast._core.tokens import MARK, crash_ms_of
from holdfast._core.validity import deadline
from holdfast._core.waiting import UNHEARD, Busy, Grant, request_timeout_for
from holdfast.errors import ConfigurationError


class _Exclusive(ByTurns):
    """`crash_ms`: as of a record. `in_line`: acquires wait for each other inside of the client: see `tenure.py`."""

    in_line = False
    crash_ms = 0

    def __init__(self, keys: LockKeys, settings: Settings, sync: Sync = None) -> None:
        super().__init__(keys.name, settings, sync)
        self.keys = keys


class OneServer(_Exclusive, Note):
    """One server decides; `sync`: with the replicas that have to acknowledge; `scripts`: whether it has any."""

    def __init__(self, keys: LockKeys, settings: Settings, sync: Sync = None, scripts: Scripts | None = None) -> None:
        super().__init__(keys, settings, sync)
        self.scripts = Scripts() if scripts is None else scripts
        #: As `Acquisition.places`.
        self.places: tuple[LockKeys, ...] = (keys,)

    def turn(self, token: str, ttl_ms: int, *local: Any) -> LockAcquisition:
        """Make the turn of that token. `local`: its turn inside of the client, and its tenure."""
        kind = CrashAcquisition if "!" in token and crash_ms_of(token) else LockAcquisition
        return kind(self.keys, token, ttl_ms, self.settings, self.sync, *local)

    def acquire(
        self, token: str, ttl_ms: int, timeout_s: float | None, listening: bool, turn: LocalWaiter | None = None
    ) -> Protocol[Grant | Busy]:
        if self.scripts.refused and self.sync is None:
            return self._plainly(token, ttl_ms, timeout_s)
        return self._acquire(token, ttl_ms, timeout_s, listening, turn)

    async def _acquire(
        self, token: str, ttl_ms: int, timeout_s: float | None, listening: bool, turn: LocalWaiter | None
    ) -> Grant | Busy:
        asks = self.turn(token, ttl_ms, turn)
        asks.unused = True
        try:
            return await self.acquired_by(asks, timeout_s, listening)
        except RequestFailed as failure:
            if self.sync is not None or not await plain.no_scripts(failure, self.keys, self.settings):
                raise
            self.scripts.refuse(failure)
        return await self._plainly(token, ttl_ms, timeout_s)

    def _plainly(self, token: str, ttl_ms: int, timeout_s: float | None) -> Protocol[Grant | Busy]:
        if self.most_waiting:
            allowed = "0, or None: this server refuses scripts, and without them there is no queue"
            raise ConfigurationError("queue_limit", self.most_waiting, allowed)
        if self.crash_ms:
            raise ConfigurationError("crash_release", self.crash_ms / 1000, "0, or None: this server refuses scripts")
        return self.acquired_by(self._plain(token, ttl_ms), timeout_s, False)

    def _plain(self, token: str, ttl_ms: int) -> PlainAcquisition:
        return PlainAcquisition(self.keys, token, ttl_ms, self.settings, self.scripts)

    def first_calls(self, ttl_ms: int) -> tuple[Call, ...] | None:
        calls = None if self.scripts.refused or self.crash_ms else super().first_calls(ttl_ms)
        if calls is None or not self.renews or self.checks is not None:
            return calls
        asks = self.turn("", ttl_ms)
        asks.most_waiting = self.most_waiting
        return *calls, asks.ask(True, 0, calls[0].request_timeout_s)

    def each(self, ttl_ms: int) -> tuple[Each, Each]:
        keys = self.keys
        acquires = Each("acquire_each", keys.all, (ttl_ms, self.settings.fence_ms))
        return acquires, Each("release_each", (keys.lock, keys.queue), ())

    def make_record(self, token: str, grant: Grant, ttl_ms: int) -> LeaseRecord:
        if "!" in token and crash_ms_of(token):
            return _CrashRecord(self, token, grant, ttl_ms)
        if grant.more == plain.PLAIN:
            return self._plain(token, ttl_ms).make_record(self.name, grant)
        since, until, short_s = grant.sent_at, grant.until, grant.short_s
        if not grant.stray and (grant.turn is not None or grant.kept is not None):
            turn, tenure = self._stands_on(token, grant, ttl_ms)
            kind = KeptLease if type(tenure) is CachedLease else LocalLease
            local = kind(self.name, token, grant.fence, ttl_ms, since, until, short_s).stand_on(self, turn, tenure)
            if turn is not tenure:
                turn.line.record = local
            return local
        made = LockRecord(self.name, token, grant.fence, ttl_ms, since, until, short_s)
        made._exclusive = self
        if grant.stray:
            made.stray = True
        return made

    def _begin_to_keep(self, token: str, grant: Grant, ttl_ms: int) -> CachedLease:
        """Start the cache entry of a lease that the client may keep."""
        lease_cache, cache_for_s = grant.kept
        kept = CachedLease(lease_cache, self.keys.lock, token, grant.fence, ttl_ms, grant.sent_at, cache_for_s)
        kept.wanted = grant.waited  # others may stand behind it
        lease_cache.begin(kept)
        return kept

    def _stands_on(self, token: str, grant: Grant, ttl_ms: int) -> tuple[Any, Tenure | None]:
        """Return the turn and the tenure of a lease that the client may hand on; where it may only keep it, twice what
        keeps it.
        """
        turn: LocalWaiter | None = grant.turn
        if turn is None:
            kept = self._begin_to_keep(token, grant, ttl_ms)
            return kept, kept
        turn.passed()
        line = turn.line
        assert line is not None
        if grant.kept is not None and line.tenure is None:
            line.tenure = self._begin_to_keep(token, grant, ttl_ms)
            line.tenure.ends_at = turn.got_at + self.settings.tenure_ms / 1000
        if token[-1] != MARK:
            return turn, None
        return turn, turn.begin(token, grant.fence, ttl_ms, self.keys.lock if grant.more else None)

    def give_back(self, token: str, ttl_ms: int, tenure: Tenure | None = None) -> Protocol[None]:
        turn = self._plain(token, ttl_ms) if self.scripts.refused else self.turn(token, ttl_ms, None, tenure)
        return turn.give_back()

    def inspect(self) -> Protocol[LockSeen]:
        if self.scripts.refused:
            return plain.inspect(self.keys, self.settings.request_timeout_s)
        return self._inspect()

    async def _inspect(self) -> LockSeen:
        try:
            return await mutex.inspect(self.keys, self.settings.request_timeout_s)
        except RequestFailed as failure:
            if not await plain.no_scripts(failure, self.keys, self.settings):
                raise
            self.scripts.refuse(failure)
        return await plain.inspect(self.keys, self.settings.request_timeout_s)


class LockRecord(LeaseRecord):
    """What makes its requests when the first of them is wanted: most leases are over before."""

    __slots__ = ("_exclusive",)

    _exclusive: OneServer

    @property
    def places(self) -> tuple[LockKeys, ...]:  # type: ignore[override]  # never set
        return self._exclusive.places

    def usual_renewal(self, ttl_ms: int) -> Call | None:
        exclusive = self._exclusive
        if self.overlong or self.extensions or self.short_s or self._asks or exclusive.sync:
            return None
        settings = exclusive.settings
        timeout_s = request_timeout_for(ttl_ms, settings)
        return mutex.renewal(exclusive.keys, self.token, ttl_ms, RENEWAL, settings, timeout_s)

    def asks(self) -> LockAcquisition:
        """Make what it is renewed and released as."""
        asks = self._exclusive.turn(self.token, self.ttl_ms, None, self.tenure)
        asks.stray = self.stray
        asks.ttl_ms = self.most_ms  # how long a give-back may have to be tried
        if self.short_s:
            asks.short_ms = int((self.deadline - self.held_since) * 1000)
        return asks

    def _ask_by(self) -> Asks:
        asks = self.asks()
        in_line = self.turn is not None and self.turn is not self.tenure
        self._asks = made = asks.renew, partial(release_in_line, self.turn, asks) if in_line else asks.release
        return made


class _CrashRecord(LockRecord):
    """The same of a lock whose lease ends soon after its client has gone."""

    __slots__ = ()

    _unheard = False  # by the last answer
    usual_renewal = LeaseRecord.usual_renewal

    def __init__(self, exclusive: OneServer, token: str, grant: Grant, ttl_ms: int) -> None:
        # (What was not pushed may be trusted for that long only, but lasts for its ttl.)
        until = grant.until if grant.short_s else None
        super().__init__(exclusive.name, token, grant.fence, ttl_ms, grant.sent_at, until, grant.short_s)
        self._exclusive = exclusive
        self.crash_ms, self.stray = crash_ms_of(token), grant.stray
        # One that was pushed is not noted as alive, so that others do not get in early.
        self.proved_until = deadline(grant.sent_at, self.crash_ms)

    async def or_why(self, ttl_ms: int, *order: Order) -> int:
        held = await super().or_why(ttl_ms, *order)
        self._unheard = held == UNHEARD
        return held

    def extended(self, ttl_ms: int, sent_at: float, now: float, order: Order = RENEWAL) -> bool:
        if not self._unheard:
            self.proved_until = max(self.proved_until, deadline(sent_at, self.crash_ms))
        return super().extended(ttl_ms, sent_at, now, order)

    def _ask_by(self) -> Asks:
        extends, releases = super()._ask_by()
        self._asks = made = extends, lambda: cast("Callable[..., Protocol[bool]]", releases)(self.proved_until)
        return made

    def renewal_ttl_ms(self, now: float) -> int | None:
        """As that of others; but asked for until the end of `max_hold`, since each is a proof."""
        return self.ttl_ms if self.max_until is None else max(1, min(self.ttl_ms, int((self.max_until - now) * 1000)))


class LocalLease(LockRecord):
    """The same, of what the client may hand on: it stands on a tenure, or may begin one."""

    __slots__ = ("tenure",)

    tenure: Any

    def stand_on(self, exclusive: OneServer, turn: Any, tenure: Tenure | None) -> Self:
        self._exclusive, self.turn, self.tenure = exclusive, turn, tenure
        if tenure is not None:
            tenure.holder = self
        return self

    def followed_by(self, turn: LocalWaiter, now: float) -> LocalLease:
        until = self.deadline
        if self.max_until is not None and self.granted_until > until:
            until = self.granted_until
        made = type(self)(self.name, self.token, self.tenure.fence, self.ttl_ms, now, until, self.short_s)
        if self.short_s or until - self.renew_from > self.ttl_ms / 2000:
            made.renew_from = self.renew_from
        else:  # renewed for no longer than its own `max_hold`: the next one begins with little, and is stretched
            made.short_s = until - now
        made._exclusive, made.turn = self._exclusive, turn  # as `stand_on`, without the call
        made.tenure = tenure = self.tenure
        tenure.holder = made
        return made

    def hand_on(self, now: float) -> bool:
        return self.turn.hand_on()  # type: ignore[no-any-return]

    def lose(self, reason: str) -> None:
        super().lose(reason)
        self.end_here()

    def end_here(self) -> None:
        self.turn.lost()


class KeptLease(LocalLease):
    """The same, of what the client may keep after its release; where no one has waited for it here, `turn` is what
    keeps it, too.
    """

    __slots__ = ()

    is_chosen = False  # its end was set by its holder
    is_cut = False  # and what has cut it before has not been outdated yet

    def again(self, ttl_ms: int, now: float) -> KeptLease:
        """Make the lease of the acquire that has taken what was kept."""
        kept = self.tenure
        kept.fence += 1
        # What its renewals set is no less than it trusts, though it was granted for a longer ttl.
        until = min(self.deadline, deadline(now, ttl_ms))
        made = KeptLease(self.name, self.token, kept.fence, ttl_ms, now, until, until - now)
        made.most_ms = max(ttl_ms, self.most_ms)
        if made.short_s > ttl_ms / 2000:
            made.renew_from, made.short_s = self.renew_from, 0.0  # what was stretched is not short
        if self.extensions:
            made.extensions, made.least_ms, made.is_cut = self.extensions, 0, self.is_cut
        return made.stand_on(self._exclusive, kept, kept)

    def cutting(self, ttl_ms: int, asked_at: float) -> Order:
        """Note a request to leave it that much while it is idle, of which a repeat may still come."""
        self.is_cut = True
        self.deadline = deadline(asked_at, ttl_ms)
        return self._order(ttl_ms, shortens=False)

    def renew(self, ttl_ms: int) -> Protocol[int]:
        return self.or_why(ttl_ms, self._order(ttl_ms, shortens=True)) if self.is_cut else super().renew(ttl_ms)

    def extending(self, ttl_ms: int, asked_at: float) -> Order:
        self.is_chosen = True
        return super().extending(ttl_ms, asked_at)

    def extended(self, ttl_ms: int, sent_at: float, now: float, order: Order = RENEWAL) -> bool:
        if self.is_cut:
            self.is_cut = False
        return super().extended(ttl_ms, sent_at, now, order)

    async def release(self) -> bool:
        if self.tenure.holder is not self:
            return True  # it was handed on
        self.tenure.end()
        return await super().release()

    def hand_on(self, now: float) -> bool:
        kept: CachedLease = self.tenure
        return (self.turn is not kept and super().hand_on(now)) or kept.keep(self, now)

    def end_here(self) -> None:
        self.tenure.end()
        super().end_here()


class OverQuorum(_Exclusive):
    """A majority of independent servers decides."""

    listens = False

    def __init__(self, keys: LockKeys, settings: Settings, quorum: Quorum) -> None:
        super().__init__(keys, settings)
        self.quorum = quorum

    def acquire(
        self, token: str, ttl_ms: int, timeout_s: float | None, listening: bool, turn: LocalWaiter | None = None
    ) -> Protocol[Grant | Busy]:
        waits = timeout_s is None or timeout_s > 0
        return self.acquired_by(QuorumAcquisition(self.quorum, self.keys, token, ttl_ms, waits), timeout_s, False)

    def first_calls(self, ttl_ms: int) -> None:
        """None: each round asks all members."""

    def make_record(self, token: str, grant: Grant, ttl_ms: int) -> LeaseRecord:
        assert grant.more is not None
        held, unsure = grant.more
        turn = QuorumAcquisition(self.quorum, self.keys, held, ttl_ms)
        turn.first, turn.unsure = token, unsure
        return turn.make_record(self.name, grant)

    def give_back(self, token: str, ttl_ms: int, tenure: Tenure | None = None) -> Protocol[None]:
        return redlock.give_back(self.quorum, self.keys, token, ttl_ms)

    def inspect(self) -> Protocol[LockSeen]:
        return redlock.inspect(self.quorum, self.keys)


Exclusive: TypeAlias = OneServer | OverQuorum

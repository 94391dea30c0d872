"""A lease that stays with its client for a while after its release, so that taking it again costs no request.

Laws: one of the local holder, the one that takes it next, and the client itself has the lease, and each hands it on by
one store. After a release was sent, nothing is handed on. What was told that others want it is not kept. It is kept
until half of its ttl after its grant at most, whatever else happens: with every message lost, others wait no longer.

Theory: a token that ends with `KEPT` says that its client keeps its lease, and listens; scripts tell it that another
one asks. Its grant begins a `CachedLease`, a tenure with a block of fencing tokens. Its `holder` is the record of a
lease, or, while it is idle, a list for those that want to have it: the first to append itself has it. When it was idle
for a part of its time, its ttl on the server is cut to the rest of that, so that others wait no longer than this should
the client die. A lease that begins with so little is stretched by its first renewal, like one that was pushed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from holdfast._core.effects import Listen, Protocol, driver
from holdfast._core.failure import RequestFailed
from holdfast._core.record import LeaseRecord
from holdfast._core.schedule import Early
from holdfast._core.settings import Settings
from holdfast._core.tenure import Tenure
from holdfast._core.waiting import request_timeout_for

#: A lease that is idle for this part of its time gets a shorter ttl,
_CUT_AT = 1 / 3
#: if that is less than this part of what it has.
_CUT_BELOW = 0.75
#: Of those that want an idle lease: the token of an acquire, or another object for the client itself.
Idle: TypeAlias = "list[object]"


def _is_first(idle: Idle) -> bool:
    """Take it for the client itself, if it is still to be had."""
    mine = object()
    idle.append(mine)
    return idle[0] is mine


class CachedLease(Tenure):
    """A lease that the server has granted to a client that keeps it.

    `record`: that of its last holder, once it was kept. `idle_until`: after that, it is not taken any more.
    """

    def __init__(
        self,
        lease_cache: LeaseCache,
        key: str,
        token: str,
        fence: int,
        ttl_ms: int,
        granted_at: float,
        cache_for_s: float,
    ) -> None:
        super().__init__(token, fence, granted_at, min(lease_cache.settings.claim_ms, ttl_ms) / 2000)
        self.lease_cache = lease_cache
        self.key = key
        self.cache_for_s = cache_for_s
        self.kept_at_most_until = granted_at + ttl_ms / 2000
        self.idle_since = self.idle_until = granted_at
        #: It is released, or lost: nothing is kept any more.
        self.ended = False
        #: Another client, or another part of this one, asks for it.
        self.wanted = False
        self.holder = None  # a `KeptLease`, or
        self.idle: Idle = []  # the last of these
        self.record: Any = None
        self.watch: _Watch | None = None

    # For the one that has it.

    def keep(self, record: Any, now: float) -> bool:
        """Keep the lease that its holder releases. False: it has to be released at the server. Idempotent."""
        if self.holder is not record:
            return True
        until = min(now + self.cache_for_s, self.kept_at_most_until, record.deadline - self.least_s)
        if (
            self.ended
            or self.wanted
            or self.over
            or until <= now
            or self.fence >= self.last_fence
            or record.is_chosen  # a late extension may shorten
            or record.overlong
            or not self.lease_cache.is_here()
        ):
            self.end()
            return False
        self.record = record
        self.idle_since, self.idle_until = now, until
        if self.watch is None:
            self.watch = _Watch(self, now)
            try:
                self.lease_cache.watch(self.watch)
            except Exception:  # nothing can look after it
                self.end()
                return False
        self._idle()
        return True

    def take(self, token: str, now: float) -> bool:
        """Claim the idle lease for the acquire with that token; False if it is in use, or another acquire was first."""
        idle = self.holder
        if type(idle) is not list or now >= self.idle_until or self.ended:
            return False
        idle.append(token)
        return idle[0] is token

    def was_taken(self, token: str) -> bool:
        """True if the acquire has taken it, its lease begun or not; for code that an exception has interrupted."""
        return self.idle[:1] == [token]

    # For the client itself.

    def let_go(self) -> None:
        idle = self.holder
        if type(idle) is list and _is_first(idle):
            self.lease_cache.spawn(self.give_up())  # if an exception comes before, `look` does so

    def told(self) -> None:
        self.wanted = True
        self.let_go()

    def end(self) -> None:
        """Keep the lease no longer. Idempotent."""
        self.ended = True
        if self.lease_cache.get(self.key) is self:
            self.lease_cache.pop(self.key, None)

    #: For its holder, as of a turn: its lease has ended without a release.
    lost = end

    async def give_up(self) -> None:
        """Release what was idle, or what was taken and did not begin."""
        self.end()
        try:
            await self.record.asks().release()
        except RequestFailed:
            pass  # it goes on in the background, until the ttl ends it

    def look(self, now: float) -> float | None:
        """Do what is due. Returns when to look again; None: not at all."""
        idle = self.holder
        if self.ended:
            self.let_go()
            return None
        cut_at = self.idle_since + self.cache_for_s * _CUT_AT
        if type(idle) is not list or idle:
            # In use, or about to be; or an exception came between taking it for the client and what follows.
            if type(idle) is list and type(idle[0]) is not str and now >= self.idle_until + self.least_s:
                self.lease_cache.spawn(self.give_up())
                return None
            if now < self.kept_at_most_until:
                return max(cut_at, now + self.cache_for_s * _CUT_AT)
            return None if type(idle) is not list else now + self.least_s
        if now >= self.idle_until:
            self.let_go()
            return now + self.least_s
        if now < cut_at:
            return min(cut_at, self.idle_until)
        if (self.idle_until - now + self.least_s) < _CUT_BELOW * (self.record.deadline - now) and _is_first(idle):
            self.lease_cache.spawn(self._cut())
        return self.idle_until

    async def _cut(self) -> None:
        """Leave it no more ttl than it needs while it is idle."""
        sent_at = driver.get().now()
        ttl_ms = int((self.idle_until - sent_at + self.least_s) * 1000)
        held = 0
        if ttl_ms > 0 and not (self.wanted or self.ended):
            asks, order = self.record.asks(), self.record.cutting(ttl_ms, sent_at)
            try:
                held = await asks.extend(ttl_ms, request_timeout_for(asks.ttl_ms, asks.settings), order)
            except RequestFailed:
                self.end()
                await asks.give_back()  # it may be carried out still
                return
            except BaseException:
                self.end()
                raise
            if not held:
                self.end()
                return
        if not held or self.ended or self.wanted:
            await self.give_up()
            return
        self._idle()

    def _idle(self) -> None:
        self.idle = []
        self.holder = self.idle
        if self.wanted or self.ended or (self.watch is not None and not self.watch.alive):
            self.let_go()  # told in between


class LeaseCache(dict[str, CachedLease]):
    """The leases that a client keeps, by the lock's key. `is_here`: whether this may be used where it is called."""

    def __init__(
        self,
        settings: Settings,
        watch: Callable[[LeaseRecord], None],
        spawn: Callable[[Protocol[None]], object],
        early: Early,
        is_here: Callable[[], bool] = lambda: True,
    ) -> None:
        super().__init__()
        self.settings = settings
        self.watch = watch
        self.spawn = spawn
        self.is_here = is_here
        self._early = early
        self._opening = False

    def begin(self, kept: CachedLease) -> None:
        self[kept.key] = kept
        self._early.begin(kept.token, kept)

    def has_idle(self, token: str) -> bool:
        """True if that token's lease is kept here, and not in use."""
        kept = self._early.known.get(token)
        return isinstance(kept, CachedLease) and type(kept.holder) is list

    def hears(self, key: str, listening: bool) -> bool:
        """True if what is granted now can be kept: the inbox is open there. Else it is opened for the next ones."""
        if not listening and not self._opening:
            self._opening = True
            self.spawn(self._listen(key))
        return listening

    async def _listen(self, key: str) -> None:
        token = "lease cache"
        try:
            await Listen(token, key, self.settings.request_timeout_s)
        except RequestFailed:
            pass  # the next acquire tries again
        finally:
            self._opening = False
            driver.get().unlisten(token)


class _Watch(LeaseRecord):
    """Stands in the schedule for what is kept, so that it is looked at in time, and released at the end."""

    __slots__ = ("_kept",)

    def __init__(self, kept: CachedLease, now: float) -> None:
        self._kept, record = kept, kept.record
        at = now + kept.cache_for_s * _CUT_AT
        super().__init__(record.name, f"{kept.token} kept", kept.fence, record.ttl_ms, now, at)
        self.renews = False

    def check_expired(self, now: float) -> bool:
        if not self.alive:
            return True
        at = self._kept.look(now)
        if at is None:
            self.mark_released()
            return True
        self.deadline = at
        return False

    def lose(self, reason: str) -> None:
        self._kept.end()
        super().lose(reason)

    async def release(self) -> bool:
        """Release what an ended client has kept, if it is idle."""
        idle: Any = self._kept.holder
        if type(idle) is list and _is_first(idle):
            await self._kept.give_up()
        return True

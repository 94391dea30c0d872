"""Waiting for one's turn: the one loop behind every primitive, whether it queues on the server or asks now and then.

Laws: every way out without a grant gives back what may be held; a pushed grant counts from before its token was first
queued, or after it was confirmed; with every message lost, waiting still ends; the place in the queue is kept across
everything but the caller's own leaving; a grant whose answer comes after its validity is not taken.

Theory: an `Acquisition` knows how to ask for the thing, how to extend it and how to undo both, by the scripts of its
kind (`kinds.py`); `wait_for` knows everything else. A message may have lain in a buffer, but no grant of a token is
older than the request that queued it: what was written for the claim window lasts until that request's time plus the
window. Where most of that is left, the lease begins with it, and its first renewal stretches it to the ttl. Otherwise,
or in doubt, the grant is confirmed by asking again, which stretches it as well. All asking scripts answer alike:

    {1, fencing token, …}                                  granted (also to a repeat)
    {0, ms until it is worth looking again (-1: unknown), a holder, place (-1: not queued), arrival_us}
    {0, 0, "", place, arrival_us}    there is more to clear away than one call does: ask again at once
    {-1}                                                   this token was given back before, or broken
    {less than that, …}                                    refused: `Acquisition.refused` makes the error of it

so that a request without an answer is repeated with the same token, which the script answers as if for the
first time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from holdfast._core.effects import (
    AwaitWake,
    Call,
    Effect,
    Listen,
    Protocol,
    Reply,
    Sleep,
    Spawn,
    Tell,
    Wake,
    driver,
)
from holdfast._core.failure import RequestFailed
from holdfast._core.keys import LockKeys
from holdfast._core.kinds import Kind
from holdfast._core.record import RENEWAL, LeaseRecord, Order, broken_by, note_for
from holdfast._core.replicas import NotAcked, Replicas, Sync, SyncTail, judge
from holdfast._core.replies import FULL, taken_of
from holdfast._core.retry import Backoff, Retry
from holdfast._core.settings import DEFAULT, Settings
from holdfast._core.tokens import crash_ms_of, is_kept, is_ours
from holdfast._core.validity import deadline
from holdfast.errors import LeaseLost

#: No request is given less time than this, however little the caller has left, s.
_LEAST_TIMEOUT_S = 0.25
#: A pushed grant is taken as it is while this part of its claim window is left,
_LEAST_LEFT = 0.5
#: and as many times as long as the last request took: its renewal has to be repeated in that, if need be.
_LEAST_TURNS = 12
#: A caller that wants to know what it waits for is told at most this often, s.
_TELL_EVERY_S = 1.0
#: What requests answer for which their client has to listen, where it does not, and where that cannot be known.
UNHEARD, UNKNOWN = -2, -3

_NEVER = float("inf")

#: Arguments of a script.
Args: TypeAlias = "tuple[str | int, ...]"


class Grant:
    """It is ours: the fencing token, when the granting request was sent, and what else the script said.

    `stray`: an earlier request for it went unanswered and may still be carried out, also after the release, which
    therefore has to leave a tombstone for the token. `until`: when it may be trusted no more; None: as its ttl says.
    `short_s`: for how long it lasts where it was pushed, and taken at `sent_at`; else 0.
    """

    __slots__ = ("fence", "kept", "more", "sent_at", "short_s", "stray", "turn", "until", "waited")

    def __init__(
        self,
        fence: int,
        sent_at: float,
        more: list[Any] | None = None,
        stray: bool = False,
        until: float | None = None,
        short_s: float = 0.0,
    ) -> None:
        self.fence = fence
        self.sent_at = sent_at
        self.more = more
        self.stray = stray
        self.until = until
        self.short_s = short_s
        #: By which it was waited for inside of the client: see `tenure.py`.
        self.turn: Any = None
        #: Where the client may keep it: see `lease_cache.py`.
        self.kept: Any = None
        #: Others may have come to wait behind it meanwhile.
        self.waited = short_s > 0


def granted(reply: Reply, asked_at: float, now: float, ttl_ms: int) -> Grant | None:
    """The grant behind an answer that came `now`; None where it grants nothing that may still be trusted."""
    if reply[0] != 1 or now >= (until := deadline(asked_at, ttl_ms)):
        return None
    return Grant(reply[1], asked_at, reply[2:] if len(reply) > 2 else None, False, until)


#: Whether a release found the lease, by its answer; None where it stopped early, or failed, and has to be sent again.
released: Callable[[Reply], bool | None] = {0: False, 1: True, 2: True}.get


def pushed(wake: Wake, queued_at: float, took_s: float, ttl_ms: int, now: float) -> Grant | None:
    """The grant that a message tells of, with what is certainly left of its claim; None: there is none, or it has to be
    confirmed. Its request was sent at `queued_at`, the last one took `took_s`.
    """
    if not (wake.claim_ms and wake.fence):
        return None
    claim_ms = min(wake.claim_ms, ttl_ms)
    until = deadline(queued_at, claim_ms)
    left_s = until - now
    if left_s < _LEAST_LEFT * claim_ms / 1000 or left_s < _LEAST_TURNS * took_s:
        return None
    return Grant(wake.fence, now, until=until, short_s=left_s)


class Busy(NamedTuple):
    """Time was up, or as many wait as may (`is_full`): who held it when last seen, and for how long we waited."""

    holder: str | None
    waited_s: float
    is_full: bool = False


class Seen(NamedTuple):
    """State of a wait: its token, who holds (or None), the place in the queue (0: the next; -1: unknown)."""

    token: str
    holder: str | None
    place: int


class Acquisition:
    """What is waited for. `all_keys`: what its scripts take; `key` says where the inbox has to listen; `sync` which
    replicas have to acknowledge.

    `stray` is as in `Grant`, for the turn's own `release`. `renews`: what is granted is renewed by itself, so that it
    may begin with less than its ttl. `short_ms`: what it has begun with, until it is renewed; else 0. `check`: what
    looks for deadlocks while it waits (`detecting.py`), or helps those that do (`describe.py`); None: nothing does.
    `tells`: a function of the caller's, called while it waits; what that raises ends the wait as a cancellation does.
    """

    __slots__ = (
        *("all_keys", "check", "claim_ms", "inboxes", "key", "keys", "most_waiting", "renews", "settings", "short_ms"),
        *("stray", "sync", "tells", "token", "ttl_ms"),
    )

    kind: Kind

    #: What it asks for, where that does not depend on whether it queues.
    asks_to = ""

    #: What stands behind the arguments of every kind: of `ask`, of `undo`, and between those of `extend`.
    ask_more: Args = ()
    undo_more: Args = ()
    extend_more: Args = ()

    #: `meanwhile` is awaited before every ask, and at least this often; None: never.
    look_every_s: float | None = None

    #: Whether its first request is to queue it, also where that takes a subscription first.
    queues = False

    #: Pauses between requests, where there is no queue: no message tells that it is free.
    polls: Backoff | None = None

    #: Whether a grant that is pushed for its token is all that it waits for.
    pushed_whole = True

    #: As of a record; else 0. Where it is more, its client has to listen where it asks: see `UNHEARD`.
    crash_ms = 0

    def __init__(
        self, keys: LockKeys, token: str, ttl_ms: int, settings: Settings = DEFAULT, sync: Sync = None
    ) -> None:
        beside = self.kind.beside
        self.keys = keys
        self.all_keys = keys.more(*beside) if beside else keys.all
        self.key = keys.lock
        self.inboxes = keys.inboxes
        self.token = token
        self.ttl_ms = ttl_ms
        self.settings = settings
        self.sync = sync
        self.stray = self.renews = False
        self.short_ms = 0
        self.check: Any = None
        self.tells: Callable[[Seen], Any] | None = None
        #: No more than that many may wait, with this one.
        self.most_waiting: int | None = None
        #: Others of this name are taken to have chosen a like ttl: a claim should not outlast the lease that it is for.
        self.claim_ms = settings.claim_ms if settings.claim_ms < ttl_ms else ttl_ms

    @property
    def name(self) -> str:
        """The name in errors."""
        return self.keys.name

    def places(self) -> tuple[LockKeys, ...]:
        """The keys by whose servers a holder hears what concerns its lease; none where nothing is held."""
        return (self.keys,) if self.kind.extend and self.polls is None else ()

    def tail(self) -> SyncTail | None:
        """Return what to send behind a request that grants or extends. May raise `RequestFailed`."""
        return self.sync.tail(self.ttl_ms) if isinstance(self.sync, Replicas) else self.sync

    def request_timeout_s(self, left_s: float | None) -> float:
        """Return how long to wait for an answer where the caller has that long; None: without a limit."""
        request_timeout_s = request_timeout_for(self.ttl_ms, self.settings)
        return request_timeout_s if left_s is None else within(request_timeout_s, left_s)

    def ask(self, queueing: bool, arrival: int, request_timeout_s: float) -> Call:
        """The request: be granted, or (when `queueing`) take the place of this arrival.

        `arrival`: as a reply gave it, or minus the µs waited so far.
        """
        settings = self.settings
        what: str | int = self.asks_to or ("wait" if queueing else "try")
        if queueing and self.most_waiting is not None:
            what = self.most_waiting
        args = (self.token, self.ttl_ms, what, arrival, settings.fence_ms, self.claim_ms, self.inboxes)
        return Call(self.kind.ask, self.all_keys, (*args, *self.ask_more), request_timeout_s, sync=self.tail())

    def waited_us(self, now: float) -> int:
        """Return how long it was waited for inside of the client, µs."""
        return 0

    def extend(self, ttl_ms: int, request_timeout_s: float, order: Order = RENEWAL) -> Call:
        """Extend what is held to `ttl_ms` from now: 1, or anything else when it is ours no more."""
        keys = self.keys
        held = (keys.lock,) if self.kind.alone else self.all_keys
        mark_ms = order.mark_ms(ttl_ms, self.settings.tombstone_ms)
        return Call(
            self.kind.extend,
            (*held, keys.order_of(self.token)),
            (self.token, ttl_ms, *self.extend_more, order.number, mark_ms),
            request_timeout_s,
            sync=self.tail(),
        )

    def lengthen(self, ttl_ms: int, request_timeout_s: float) -> Call | None:
        """The same with one key, for what need not shorten; None where it has more."""
        if not self.kind.alone:
            return None
        args = (self.token, ttl_ms, 0, RENEWAL.mark_ms(0, 0))
        return Call(self.kind.extend, (self.keys.lock,), args, request_timeout_s, sync=self.tail())

    def undo(self, tombstone_ms: int, request_timeout_s: float) -> Call:
        """Release: 0 when it was not held. `tombstone_ms` > 0 leaves the queue too and refuses the token that long."""
        args = (self.token, self.settings.fence_ms, self.claim_ms, self.keys.inboxes, tombstone_ms)
        return Call(self.kind.undo, self.all_keys, (*args, *self.undo_more), request_timeout_s)

    def acquire(self, timeout_s: float | None, listening: bool = False) -> Protocol[Grant | Busy]:
        """As `wait_for`."""
        return wait_for(self, timeout_s, listening=listening)

    def make_record(self, name: str, grant: Grant) -> LeaseRecord:
        """Make the record of a lease that was granted to this turn."""
        self.stray = grant.stray
        self.short_ms = int(grant.short_s * 1000)
        asks, until = (self.renew, self.release), grant.until
        record = LeaseRecord(name, self.token, grant.fence, self.ttl_ms, grant.sent_at, until, grant.short_s, asks)
        record.stray, record.sync = grant.stray, self.sync
        record.places = self.places()
        return record

    async def release(self, sure_until: float | None = None) -> bool:
        """Release; False when it was not held any more.

        Repeated for a short while when the server is in trouble; then left to the background, and `RequestFailed`
        raised. `sure_until`: later, others may have it before it is asked for, so that a try without an answer has not
        released it.
        """
        settings = self.settings
        tombstone_ms = settings.tombstone_ms if self.stray else 0
        found = False  # by an earlier try, perhaps
        retry: Retry | None = None  # made when it is needed: a client that closes releases thousands
        try:
            sure = sure_until is None or driver.get().now() < sure_until
            while True:
                try:
                    reply: Reply = await self.undo(tombstone_ms, request_timeout_for(self.ttl_ms, settings))
                except RequestFailed as failure:
                    found = found or (sure and failure.maybe_executed)
                    retry = retry or Retry(settings, settings.short_retry_s)
                    if not await retry.again(failure):
                        raise
                    continue
                found = found or reply > 0
                if released(reply) is not None:
                    return found
                # Done, but more dead waiters come before a living one than one call looks at: go on.
                retry = retry or Retry(settings, settings.short_retry_s)
                if not retry.in_time():
                    await Spawn(self.give_back())
                    return found
        except BaseException:
            await Spawn(self.give_back())
            raise

    async def give_back(self) -> None:
        """Undo whatever an acquire with this token has done or may do; tried until its ttl and its place are over."""
        settings = self.settings
        lasts_s = max(self.ttl_ms, settings.tombstone_ms) / 1000 + 1.0
        retry = Retry(settings, until=driver.get().now() + lasts_s)
        while True:
            try:
                reply: Reply = await self.undo(settings.tombstone_ms, request_timeout_for(self.ttl_ms, settings))
            except RequestFailed as failure:
                if not await retry.again(failure, unsettled=True):
                    return  # the ttl ends it
            else:
                if type(reply) is not int or released(reply) is not None or not retry.in_time():
                    return

    async def renew(self, ttl_ms: int, order: Order = RENEWAL) -> int:
        """Extend to `ttl_ms` from now: 0 when not held any more, 1 or for how many ms it is. Raises `RequestFailed`."""
        self.ttl_ms = max(self.ttl_ms, ttl_ms)  # how long a give-back may have to be tried
        sync = self.sync
        for last in (False, True):
            # Repeated a few times, if need be, also in the short time that one begins with that was pushed.
            request_timeout_s = request_timeout_for(self.short_ms // 2 or ttl_ms, self.settings)
            try:
                reply = await once_more(self.extend(ttl_ms, request_timeout_s, order))
            except RequestFailed as failure:
                # While the slot moves, only requests for one key are answered.
                alone = None if order.outdates else self.lengthen(ttl_ms, request_timeout_s)
                if failure.kind != "TRYAGAIN" or alone is None:
                    raise
                reply = await alone
            self.short_ms = 0
            if sync is None:
                return int(reply)
            try:
                return int(judge(sync, self.name, reply, driver.get().now()))
            except NotAcked:
                if last or not isinstance(sync, Replicas):
                    raise  # else: there are more replicas than we knew
        raise AssertionError

    def refused(self, code: int, stored: int = 0) -> Exception:
        """The error behind a reply that is neither granted nor busy: which `code` says what, the script's head tells.

        `stored`: what was declared by another client.
        """
        return RequestFailed("closed", "this acquisition was given back", "", maybe_executed=False, transient=False)

    async def meanwhile(self) -> None:
        """Do nothing, or in a subclass what has to go on during the wait."""

    def heard(self, reply: Reply) -> None:
        """Called with each reply to `ask`."""

    def time_is_up(self) -> bool:
        """Return True if the turn goes on, without a limit, though the caller's time is over."""
        return False


def request_timeout_for(ttl_ms: int, settings: Settings) -> float:
    """Return how long to wait for one answer, s: short enough for a lease to be renewed in between."""
    return max(0.05, min(settings.request_timeout_s, ttl_ms / 3000))


def within(request_timeout_s: float, left_s: float) -> float:
    """Return how long to wait for an answer where the caller has `left_s`: not far beyond that where a server hangs."""
    return max(_LEAST_TIMEOUT_S, min(request_timeout_s, left_s))


async def once_more(request: Effect[Reply]) -> Reply:
    """Repeat a repeatable request once when its connection broke: an idle one may have been closed meanwhile."""
    try:
        return await request
    except RequestFailed as failure:
        if failure.kind != "broken":
            raise
    return await request


async def wait_for(acquisition: Acquisition, timeout_s: float | None, *, listening: bool = False) -> Grant | Busy:
    """Acquire, waiting `timeout_s` at most (None: indefinitely, 0: not at all).

    `listening` says that the inbox is open already, so that the first request may queue us. Raises `RequestFailed`
    when the server refuses for good, or stays in trouble for `retry_limit_s` (`try_limit_s` without a wait).
    """
    if isinstance(acquisition.sync, Replicas) and acquisition.sync.refused is not None:
        raise acquisition.sync.refused
    waiting = _Waiting(acquisition, timeout_s, listening, driver.get().now())
    try:
        while True:
            try:
                reply = await waiting.ask()
            except RequestFailed as failure:
                if not await waiting.outlasts(failure):
                    raise
                continue
            got = await waiting.look_at(reply)
            if got is not None:
                return got
    finally:
        if waiting.leave():
            await Spawn(acquisition.give_back())


class _Waiting:
    """One acquisition under way: what may stand on the server for it, and until when it is waited for."""

    #: A request of ours may have changed something on the server.
    doubtful = False
    #: A request without an answer may still be carried out, after everything else.
    stray = False
    #: We have a place in the queue, by this arrival.
    queued = False
    arrival, place = 0, -1
    #: When the first request was sent that could take it: no grant of this token that is pushed can be older.
    queued_at: float | None = None
    #: When the last request was sent, if its answer was that the inbox is not open.
    deaf_at: float | None = None
    #: Who held it when last seen; since when answers come too late.
    holder: str | None = None
    late_at: float | None = None
    #: Made when they are needed: pauses where no message will come; tries since an answer.
    polls: Backoff | None = None
    retry: Retry | None = None

    def __init__(self, acquisition: Acquisition, timeout_s: float | None, listening: bool, now: float) -> None:
        self.acquisition = acquisition
        self.began_at = self.now = self.asked_at = now
        self.give_up_at = None if timeout_s is None else now + timeout_s
        self.waits = timeout_s is None or timeout_s > 0
        self.check_at = _NEVER if acquisition.check is None else now + acquisition.check.every_s
        self.tell_at = _NEVER if acquisition.tells is None else now
        #: Requests ask for a place in the queue.
        self.queueing = self.waits and acquisition.polls is None and (listening or acquisition.queues)
        #: The token is known to the inbox, and the inbox is believed to be open.
        self.registered = self.listening = self.queueing and driver.get().listens(acquisition.token, acquisition.key)

    async def ask(self) -> Reply:
        """Ask to be granted, listening first where that takes a place in the queue. Raises `RequestFailed`."""
        acquisition, sync = self.acquisition, self.acquisition.sync
        left_s = None
        if self.give_up_at is not None:
            left_s = self.give_up_at - self.now if self.waits else acquisition.settings.try_limit_s
        request_timeout_s = acquisition.request_timeout_s(left_s)
        if self.queueing and self.queued_at is None:
            self.queued_at = self.now
        if (self.queueing or acquisition.crash_ms) and not self.listening:
            self.registered = self.listening = True
            script = acquisition.kind.ask
            untold = await Listen(
                acquisition.token, acquisition.key, request_timeout_s, script=script, deaf_at=self.deaf_at
            )
            if untold and acquisition.crash_ms:
                raise acquisition.refused(UNKNOWN)
            acquisition.inboxes = f"?{acquisition.keys.inboxes}" if untold else acquisition.keys.inboxes
            self.now = driver.get().now()
        if acquisition.look_every_s is not None:
            await acquisition.meanwhile()
            self.now = driver.get().now()
        self.asked_at = self.now
        self.doubtful = True
        arrival = self.arrival or -acquisition.waited_us(self.asked_at)
        reply: Reply = await acquisition.ask(self.queueing, arrival, request_timeout_s)
        if sync is not None:
            reply = judge(sync, acquisition.name, reply, self.asked_at)
        self.deaf_at = None
        if acquisition.crash_ms and reply[0] == UNHEARD:
            self.deaf_at = self.asked_at
            said = "it does not see the client's inbox"
            raise RequestFailed("broken", said, "", maybe_executed=False, transient=True)
        acquisition.heard(reply)
        if reply[0] == -1 and acquisition.places():
            # An earlier request was granted, and its lease broken before the answer came.
            by = await note_for(acquisition.places(), acquisition.token, or_raise=True)
            raise LeaseLost(acquisition.name, "taken" if by is None else broken_by(by))
        return reply

    async def outlasts(self, failure: RequestFailed) -> bool:
        """Pause after trouble, and return whether to ask again."""
        self.stray = self.stray or failure.maybe_executed
        if (failure.kind.islower() or failure.kind == "READONLY") and self.acquisition.polls is None:
            # No server has said so, or one that writes nothing; it was the only request: if in doubt, it strays.
            self.doubtful = False
        sync = self.acquisition.sync
        if isinstance(sync, Replicas) and (lacking := sync.failed(failure)) is not None:
            raise lacking from None
        if not self.waits and failure.kind in ("refused", "QUORUM"):
            return False
        self.listening = False  # listen again: the inbox may have gone with the server
        if self.retry is None:
            settings = self.acquisition.settings
            if self.give_up_at is None:
                self.retry = Retry(settings, settings.retry_limit_s)
            else:
                until = self.give_up_at if self.waits else self.began_at + settings.try_limit_s
                self.retry = Retry(settings, until=until)
        else:
            await self._tell()  # that it goes on
        again = await self.retry.again(failure)
        self.now = driver.get().now()
        return again

    async def look_at(self, reply: Reply) -> Grant | Busy | None:
        """Interpret an answer: granted, or time is up; None: ask again. May raise what it refuses with."""
        self.now = driver.get().now()
        self.retry = None
        if reply[0] == 1:
            acquisition = self.acquisition
            grant = granted(reply, self.asked_at, self.now, acquisition.crash_ms or acquisition.ttl_ms)
            if grant is None:
                return self._late()
            grant.stray = self.stray
            grant.waited = self.holder is not None or acquisition.queues
            self.doubtful = self.queued = self.stray = False
            return grant
        if reply[0] < 0:
            if reply[0] < -1:
                self.doubtful = False  # refused before anything was written
            raise self.acquisition.refused(*reply)
        self.doubtful = False
        return await self._taken(*taken_of(reply))

    def _late(self) -> Busy | None:
        """Repeat after a grant that came too late to be worth anything, but not indefinitely."""
        settings = self.acquisition.settings
        self.stray = True
        if self.late_at is None:
            self.late_at = self.asked_at
        until = self.late_at + settings.retry_limit_s if self.waits else self.began_at + settings.try_limit_s
        if self.now >= until:
            said = f"answers take longer than the ttl of {self.acquisition.ttl_ms} ms"
            raise RequestFailed("silent", said, "", maybe_executed=True, transient=False)
        return self._over() if self.waits and self._is_over() else None

    async def _taken(self, remaining_ms: int, holder: str, place: int, arrival: int) -> Grant | Busy | None:
        """Take a place in the queue behind another client, and sleep there."""
        acquisition, settings = self.acquisition, self.acquisition.settings
        if remaining_ms == 0 and not holder:
            # More dead waiters come first than one call looks at; each call leaves fewer.
            if place >= 0:
                self.queued, self.arrival = True, arrival
            short = self.began_at + settings.try_limit_s
            if self.give_up_at is None or self.now < (self.give_up_at if self.waits else short):
                return None
        self.holder, self.arrival = holder or None, arrival
        self.place, self.queued = place, place >= 0
        if not self.waits and is_kept(holder):
            # It may be idle; its client was told, and lets go then.
            self.waits, self.give_up_at = True, self.now + settings.kept_try_s
        if place == FULL:
            return Busy(self.holder, self.now - self.began_at, is_full=True)
        if self._is_over():
            return self._over()
        if acquisition.polls is not None:
            await self._tell()
            await Sleep(max(0.0, self._until_next_look_s(remaining_ms, holder, place)))
            self.now = driver.get().now()
            return None
        if not self.queued:
            self.queueing = True
            self.arrival = 0
            return None
        took_s = self.now - self.asked_at
        wake = await self._wake_within(self._until_next_look_s(remaining_ms, holder, place))
        self.now = driver.get().now()
        if wake is None:
            return self._over() if self._is_over() else None
        if wake.kind == Wake.GRANT:
            grant = self._pushed(wake, took_s)
            if grant is not None:
                self.queued = False
                return grant
            # To confirm it is to ask: the answer has the fencing token of the grant that counts, which need not be the
            # one of this message, and when the claim window is over we are back in our old place.
            self.doubtful = True
        else:
            self.listening = False  # the inbox may be broken: look after it before asking
        return None

    async def _wake_within(self, wait_s: float) -> Wake | None:
        """Wait that long for a wake-up; tell the caller, and look for deadlocks, when it is time for that."""
        acquisition = self.acquisition
        until = self.now + wait_s
        while (at := min(self.check_at, self.tell_at)) <= until:
            wake = await AwaitWake(acquisition.token, max(0.0, at - self.now))
            self.now = driver.get().now()
            if wake is None and at == self.tell_at:
                await self._tell()
            elif wake is None:
                timeout_s = None if self.give_up_at is None else self.give_up_at - self.began_at
                wake, pause_s = await acquisition.check.look(acquisition, timeout_s, self.give_up_at)
                self.now = driver.get().now()
                self.check_at = self.now + pause_s
            if wake is not None:
                return wake
        return await AwaitWake(acquisition.token, max(0.0, until - self.now))

    async def _tell(self) -> None:
        """Tell the caller what it waits for, if it is time for that. A wake-up that comes meanwhile is kept."""
        tells = self.acquisition.tells
        if tells is not None and self.now >= self.tell_at:
            await Tell(tells, Seen(self.acquisition.token, self.holder, self.place))
            self.now = driver.get().now()
            self.tell_at = self.now + _TELL_EVERY_S

    def _pushed(self, wake: Wake, took_s: float) -> Grant | None:
        acquisition = self.acquisition
        if self.stray or self.queued_at is None or acquisition.sync is not None:
            return None
        if not (acquisition.renews and acquisition.pushed_whole):
            return None
        return pushed(wake, self.queued_at, took_s, acquisition.ttl_ms, self.now)

    def _until_next_look_s(self, remaining_ms: int, holder: str, place: int) -> float:
        """Return how long to sleep without a message: some get lost."""
        acquisition, settings, chance = self.acquisition, self.acquisition.settings, driver.get().random()
        wait_s = settings.recheck_max_s
        if remaining_ms >= 0:
            wait_s = min(wait_s, remaining_ms / 1000 + settings.recheck_late_s * (0.5 + chance))
        if "!" in holder and (crash_ms := crash_ms_of(holder)):
            wait_s = min(wait_s, crash_ms / 3000 * (place + 1))  # a waiter that looks sees whether its client has gone
        # The waiter that the lock is handed to may hang: those behind it find that out when they look. All together
        # look no more often than a few times in a claim window, however many there are.
        wait_s = min(wait_s, settings.claim_ms / 1000 * (max(place, 1) + chance / 2))
        polls = acquisition.polls  # which may be other ones after each ask
        if polls is None and holder and not is_ours(holder):
            polls = self.polls = self.polls or Backoff(settings.foreign_poll_s, settings.foreign_poll_max_s)
        if polls is not None:
            wait_s = min(wait_s, polls.next_s())
        if acquisition.look_every_s is not None:
            wait_s = min(wait_s, acquisition.look_every_s)
        return wait_s if self.give_up_at is None else min(wait_s, self.give_up_at - self.now)

    def _is_over(self) -> bool:
        return self.give_up_at is not None and self.now >= self.give_up_at

    def _over(self) -> Busy | None:
        """End the wait when the caller's time is over; None where it goes on all the same, without a limit."""
        if not self.acquisition.time_is_up():
            return Busy(self.holder, self.now - self.began_at)
        self.give_up_at = None
        self.waits = True
        return None

    def leave(self) -> bool:
        """Forget the inbox; True if something is to be given back that is not the caller's now."""
        if self.registered:
            driver.get().unlisten(self.acquisition.token)
        return self.doubtful or self.queued or self.stray

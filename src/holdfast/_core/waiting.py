"""Waiting for one's turn: the one loop behind every primitive that queues on the server.

Laws: every way out without a grant gives back what may be held; a pushed grant counts only after it was confirmed;
with every message lost, waiting still ends; the place in the queue is kept across everything but the caller's own
leaving; a grant whose answer comes after its validity is not taken.

Theory: an `Acquisition` knows how to ask for the thing, how to extend it and how to undo both; `wait_for` knows
everything else. A pushed grant is confirmed by asking again, which stretches it from its claim window to the ttl. All
asking scripts answer in the same form:

    {1, fencing token, …}                                  granted (also to a repeat)
    {0, ms until it is worth looking again (-1: nobody knows), a holder, place (-1: not queued), arrival_us}
    {0, 0, "", place, arrival_us}    there is more to clear away than one call does: ask again at once
    {-1}                                                   this token was given back before
    {less than that, …}                                    refused: `Acquisition.refused` makes the error of it

so that a request without an answer is repeated with the same token, which the script answers as if for the
first time.
"""

from __future__ import annotations

from typing import Any

from holdfast._core.effects import (
    AwaitWake,
    Call,
    Effect,
    Listen,
    Now,
    Protocol,
    Random,
    Reply,
    Sleep,
    Spawn,
    Unlisten,
    Wake,
)
from holdfast._core.failure import RequestFailed
from holdfast._core.record import RENEWAL, LeaseRecord, Order
from holdfast._core.replicas import NotAcked, Replicas, Sync, SyncTail, judge, tail_of
from holdfast._core.settings import Settings
from holdfast._core.tokens import is_ours
from holdfast._core.validity import deadline

__all__ = [
    "Acquisition",
    "Busy",
    "Grant",
    "give_back",
    "granted",
    "once_more",
    "release",
    "released",
    "request_timeout_for",
    "wait_for",
    "within",
]

#: No request is given less time than this, however little the caller has left, s.
_LEAST_TIMEOUT_S = 0.25


class Grant:
    """It is ours: the fencing token, when the granting request was sent, and what else the script said.

    `stray`: an earlier request for it went unanswered and may still be carried out, also after the release, which
    therefore has to bury the token.
    """

    __slots__ = ("fence", "more", "sent_at", "stray")

    def __init__(self, fence: int, sent_at: float, more: list[Any] | None = None, stray: bool = False) -> None:
        self.fence = fence
        self.sent_at = sent_at
        self.more = more
        self.stray = stray


def granted(reply: Reply, asked_at: float, now: float, ttl_ms: int) -> Grant | None:
    """The grant behind an answer that came `now`; None where it grants nothing that may still be trusted."""
    if reply[0] == 1 and now < deadline(asked_at, ttl_ms):
        return Grant(reply[1], asked_at, reply[2:] if len(reply) > 2 else None)
    return None


def released(reply: Reply) -> bool | None:
    """Whether a release found the lease; None where it stopped early, and has to be sent again."""
    return reply > 0 if -1 < reply < 3 else None


class Busy:
    """Time was up: who held it when last seen, and for how long we waited."""

    __slots__ = ("holder", "waited_s")

    def __init__(self, holder: str | None, waited_s: float) -> None:
        self.holder = holder
        self.waited_s = waited_s


class Acquisition:
    """What is waited for. `key` says where the inbox has to listen; `sync` which replicas have to acknowledge.

    `stray` is as in `Grant`, for the turn's own `release`.
    """

    __slots__ = ("claim_ms", "key", "settings", "stray", "sync", "token", "ttl_ms")

    #: What its leases stand on.
    holds: type[LeaseRecord] = LeaseRecord

    #: `meanwhile` is awaited before every ask, and at least this often; None: never.
    look_every_s: float | None = None

    def __init__(
        self,
        token: str,
        ttl_ms: int,
        key: str,
        settings: Settings,
        sync: Sync = None,
    ) -> None:
        self.token = token
        self.ttl_ms = ttl_ms
        self.key = key
        self.settings = settings
        self.sync = sync
        self.stray = False
        #: Others of this name are taken to have chosen a like ttl: a claim should not outlast the lease that it is for.
        self.claim_ms = settings.claim_ms if settings.claim_ms < ttl_ms else ttl_ms

    @property
    def name(self) -> str:
        """What it is called in errors."""
        return self.key

    def tail(self) -> SyncTail | None:
        """What to send behind a request that grants or extends. May raise `RequestFailed`."""
        return None if self.sync is None else tail_of(self.sync, self.ttl_ms)

    def ask(self, queueing: bool, arrival: int, request_timeout_s: float) -> Call:
        """The request: be granted, or (when `queueing`) take the place that `arrival` gives."""
        raise NotImplementedError

    def extend(self, ttl_ms: int, request_timeout_s: float, order: Order = RENEWAL) -> Call:
        """Extend what is held to `ttl_ms` from now: 1, or anything else when it is ours no more."""
        raise NotImplementedError

    def lengthen(self, ttl_ms: int, request_timeout_s: float) -> Call | None:
        """The same with one key, for what need not shorten; None where it has more."""
        return None

    def undo(self, tombstone_ms: int, request_timeout_s: float) -> Call:
        """Release: 0 when it was not held. `tombstone_ms` > 0 leaves the queue too and refuses the token that long."""
        raise NotImplementedError

    def give_back(self) -> Protocol[None]:
        """Undo whatever an ask with this token has done or may still do."""
        return give_back(self)

    def hold(self, name: str, grant: Grant, renew: bool, max_hold_ms: int | None) -> LeaseRecord:
        """What a lease that was granted to this turn stands on."""
        self.stray = grant.stray
        hold = self.holds(
            name,
            self.token,
            grant.fence,
            self.ttl_ms,
            grant.sent_at,
            self.renew,
            self.release,
            renew,
            max_hold_ms,
        )
        hold.stray = grant.stray
        return hold

    def release(self) -> Protocol[bool]:
        """Release what is held; False when it was not held any more."""
        return release(self)

    async def renew(self, ttl_ms: int, order: Order = RENEWAL) -> int:
        """Extend to `ttl_ms` from now: 0 when not held any more, 1 or for how many ms it is. Raises `RequestFailed`."""
        self.ttl_ms = max(self.ttl_ms, ttl_ms)  # how long a give-back may have to be tried
        sync = self.sync
        for last in (False, True):
            request_timeout_s = request_timeout_for(ttl_ms, self.settings)
            try:
                reply = await once_more(self.extend(ttl_ms, request_timeout_s, order))
            except RequestFailed as failure:
                # While the slot moves, only requests for one key are answered.
                alone = None if order.outdates else self.lengthen(ttl_ms, request_timeout_s)
                if failure.kind != "TRYAGAIN" or alone is None:
                    raise
                reply = await alone
            if sync is None:
                return int(reply)
            if reply[0] < 1:
                return 0
            try:
                judge(sync, self.name, reply, await Now())
                return int(reply[0])
            except NotAcked:
                if last or not isinstance(sync, Replicas):
                    raise  # else: there are more replicas than we knew
        raise AssertionError

    def refused(self, reply: Reply) -> Exception:
        """The error behind a reply that is neither granted nor busy."""
        return RequestFailed("closed", "this acquisition was given back", "", maybe_executed=False, transient=False)

    async def meanwhile(self) -> None:
        """What has to go on while this turn is waited for."""

    def heard(self, reply: Reply) -> None:
        """A reply to `ask` has come."""

    def time_is_up(self) -> bool:
        """The caller's time is over: True when the turn goes on all the same, without a limit."""
        return False


def request_timeout_for(ttl_ms: int, settings: Settings) -> float:
    """How long to wait for one answer, s: never so long that a lease could not be renewed in between."""
    return max(0.05, min(settings.request_timeout_s, ttl_ms / 3000))


def within(request_timeout_s: float, left_s: float) -> float:
    """How long to wait for an answer where the caller has `left_s`: not far beyond that where a server hangs."""
    return max(_LEAST_TIMEOUT_S, min(request_timeout_s, left_s))


async def once_more(request: Effect[Reply]) -> Reply:
    """What may be repeated, repeated once when its connection broke: an idle one may have been closed meanwhile."""
    try:
        return await request
    except RequestFailed as failure:
        if failure.kind != "broken":
            raise
    return await request


async def wait_for(acquisition: Acquisition, timeout_s: float | None, *, listening: bool = False) -> Grant | Busy:
    """Take the turn, waiting `timeout_s` at most (None: as long as it takes, 0: not at all).

    `listening` says that the inbox is open already, so that the first request may queue us. Raises `RequestFailed`
    when the server refuses for good, or stays in trouble for longer than is put up with.
    """
    token, ttl_ms, settings, sync = acquisition.token, acquisition.ttl_ms, acquisition.settings, acquisition.sync
    doubtful = False  # a request of ours may have changed something on the server
    queued = False
    registered = False  # the token is known to the inbox
    heard = False  # and the inbox is believed to be open
    stray = False  # a request without an answer may still be carried out, after everything else
    if isinstance(sync, Replicas) and sync.refused is not None:
        raise sync.refused
    try:
        began_at = now = await Now()
        give_up_at = None if timeout_s is None else began_at + timeout_s
        request_timeout_s = request_timeout_for(ttl_ms, settings)
        waits = timeout_s is None or timeout_s > 0
        queueing = waits and listening
        arrival = 0
        polls = 0
        troubled_at: float | None = None
        late_at: float | None = None
        tries = 0
        holder: str | None = None
        while True:
            try:
                if queueing and not heard:
                    registered = heard = True
                    await Listen(token, acquisition.key, request_timeout_s)
                    now = await Now()
                if acquisition.look_every_s is not None:
                    await acquisition.meanwhile()
                    now = await Now()
                asked_at = now
                if give_up_at is not None:
                    request_timeout_s = within(request_timeout_s, give_up_at - now if waits else settings.short_retry_s)
                doubtful = True
                reply: Reply = await acquisition.ask(queueing, arrival, request_timeout_s)
                if sync is not None:
                    answer, reply = reply, reply[0]
                    if reply[0] == 1:
                        judge(sync, acquisition.name, answer, asked_at)
                acquisition.heard(reply)
            except RequestFailed as failure:
                now = await Now()
                stray = stray or failure.maybe_executed
                if isinstance(sync, Replicas) and (lacking := sync.failed(failure)) is not None:
                    raise lacking from None
                if not failure.transient:
                    raise
                if troubled_at is None:
                    troubled_at = now
                    tries = 0
                tries += 1
                if give_up_at is None:
                    allowed_until = troubled_at + settings.retry_limit_s
                elif waits:
                    allowed_until = give_up_at
                elif failure.kind == "refused":
                    raise
                else:
                    allowed_until = began_at + settings.short_retry_s
                pause_s = min(settings.trouble_pause_max_s, settings.trouble_pause_s * 2 ** min(tries - 1, 10))
                pause_s *= 0.5 + await Random()
                if tries == 1 and failure.kind in ("broken", "NOACK"):
                    # An idle connection that was closed meanwhile: a fresh one may do. Or more replicas than we knew.
                    pause_s = 0.0
                if now + pause_s >= allowed_until:
                    raise
                heard = False  # listen anew: the inbox may have gone with the server
                if pause_s:
                    await Sleep(pause_s)
                    now = await Now()
                continue
            now = await Now()
            troubled_at = None
            if reply[0] == 1:
                grant = granted(reply, asked_at, now, ttl_ms)
                if grant is not None:
                    grant.stray = stray
                    doubtful = queued = stray = False
                    return grant
                # The answer came too late to be worth anything: repeat, but not forever.
                stray = True
                if late_at is None:
                    late_at = asked_at
                if now >= (late_at + settings.retry_limit_s if waits else began_at + settings.short_retry_s):
                    raise RequestFailed(
                        "silent",
                        f"answers take longer than the ttl of {ttl_ms} ms",
                        "",
                        maybe_executed=True,
                        transient=False,
                    )
                if waits and give_up_at is not None and now >= give_up_at and not acquisition.time_is_up():
                    return Busy(None, now - began_at)
                continue
            if reply[0] < 0:
                if reply[0] < -1:
                    doubtful = False  # refused before anything was written
                raise acquisition.refused(reply)
            # Somebody else holds it.
            doubtful = False
            if reply[1] == 0 and not reply[2]:
                # Dead waiters come first, more than one call looks at; each call leaves fewer.
                if reply[3] >= 0:
                    queued, arrival = True, reply[4]
                if give_up_at is None or now < (give_up_at if waits else began_at + settings.short_retry_s):
                    continue
            remaining_ms, holder_token, place, arrival = reply[1:5]
            holder = holder_token.decode("utf-8", "replace") if isinstance(holder_token, bytes) else holder_token
            queued = place >= 0
            if not waits or (give_up_at is not None and now >= give_up_at):
                if not acquisition.time_is_up():
                    return Busy(holder, now - began_at)
                give_up_at = None
                request_timeout_s = request_timeout_for(ttl_ms, settings)
                continue
            if not queued:
                queueing = True
                arrival = 0
                continue
            wait_s = settings.recheck_max_s
            if remaining_ms >= 0:
                wait_s = min(wait_s, remaining_ms / 1000 + settings.recheck_late_s * (0.5 + await Random()))
            if holder and not is_ours(holder):
                wait_s = min(wait_s, min(settings.foreign_poll_max_s, settings.foreign_poll_s * 2 ** min(polls, 10)))
                wait_s *= 0.5 + await Random()
                polls += 1
            if acquisition.look_every_s is not None:
                wait_s = min(wait_s, acquisition.look_every_s)
            if queued:
                # Whom the lock is handed to may hang: the waiter behind it finds that out, when it checks. All
                # together look no more often than a few times in a claim window, however many there are.
                wait_s = min(wait_s, settings.claim_ms / 1000 * (max(place, 1) + await Random() / 2))
            if give_up_at is not None:
                wait_s = min(wait_s, give_up_at - now)
            wake = await AwaitWake(token, wait_s)
            now = await Now()
            if wake is not None and wake.kind == Wake.GRANT:
                # To confirm it is to ask: the answer has the fencing token of the grant that counts, which need not
                # be the one of this message, and when the claim window is over we are back in our old place.
                doubtful = True
            elif wake is not None:
                heard = False  # the inbox may be broken: look after it before asking
            elif give_up_at is not None and now >= give_up_at:
                if not acquisition.time_is_up():
                    return Busy(holder, now - began_at)
                give_up_at = None
                request_timeout_s = request_timeout_for(ttl_ms, settings)
    finally:
        if registered:
            await Unlisten(token)
        if doubtful or queued or stray:
            await Spawn(acquisition.give_back())


async def release(acquisition: Acquisition) -> bool:
    """Release; False when it was not held any more.

    Repeated for a short while when the server is in trouble; then left to the background, and `RequestFailed` raised.
    """
    settings = acquisition.settings
    tombstone_ms = settings.tombstone_ms if acquisition.stray else 0
    doubtful = False  # an earlier try may have done it
    until: float | None = None
    pause_s = 0.0
    while True:
        try:
            reply: Reply = await acquisition.undo(tombstone_ms, request_timeout_for(acquisition.ttl_ms, settings))
            doubtful = doubtful or reply > 0
            if released(reply) is not None:
                return doubtful
            # Done, but before somebody who lives there wait more dead ones than one call looks at: go on.
            now = await Now()
            if until is None:
                until = now + settings.short_retry_s
            if now >= until:
                await Spawn(acquisition.give_back())
                return doubtful
            continue
        except RequestFailed as failure:
            doubtful = doubtful or failure.maybe_executed
            now = await Now()
            if until is None:
                until = now + settings.short_retry_s
            if not failure.transient or now + pause_s >= until:
                await Spawn(acquisition.give_back())
                raise
            first_break = not pause_s and failure.kind == "broken"
        except BaseException:
            await Spawn(acquisition.give_back())
            raise
        try:
            if not first_break:
                await Sleep(max(pause_s, settings.trouble_pause_s) * (0.5 + await Random()))
        except BaseException:
            await Spawn(acquisition.give_back())
            raise
        pause_s = min(max(pause_s * 2, settings.trouble_pause_s), settings.trouble_pause_max_s)


async def give_back(acquisition: Acquisition) -> None:
    """Undo whatever an acquire with this token has done or may still do; tried until its ttl and its place are over."""
    settings = acquisition.settings
    until = await Now() + max(acquisition.ttl_ms, settings.tombstone_ms) / 1000 + 1.0
    pause_s = settings.trouble_pause_s
    while True:
        try:
            reply: Reply = await acquisition.undo(
                settings.tombstone_ms, request_timeout_for(acquisition.ttl_ms, settings)
            )
        except RequestFailed as failure:
            if not failure.unsettled or await Now() + pause_s > until:
                return  # the ttl ends it
            await Sleep(pause_s * (0.5 + await Random()))
            pause_s = min(pause_s * 2, settings.trouble_pause_max_s)
        else:
            if type(reply) is not int or released(reply) is not None or await Now() > until:
                return

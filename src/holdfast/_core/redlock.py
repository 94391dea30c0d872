"""The lock over a quorum of independent servers (Redlock), with fencing tokens that only grow.

Laws: a lease needs the votes of a majority, within its validity, which counts from before the first request; what a
round that failed may have left on any member is given back, also where no answer came; a member that was restarted
so recently that it may have forgotten a lease does not vote; a fencing token is handed out only when a majority of
members, while we hold them, remember it.

Theory of the fencing tokens: a later lease needs a majority too, which shares a member with the majority that
remembers the earlier token, and that member gives its vote only after the earlier lease has ended there. It
answers with a greater token than it remembers, so the greatest of the votes exceeds every token handed out
before. The majority that remembers has to be one that *holds* us: remembered elsewhere, the token could arrive at a
member after that member's vote for the next lease. To save the second round trip, the client proposes a token
a little ahead of all the members' clocks; where a majority agrees on it, they all remember it already.

Theory of the tries: every round has a token of its own, so that what is left of an earlier round can be buried (see
release.lua) without refusing the next one. Contenders that split the vote give back at once and pause for random times
of growing length. There is no queue: no member alone knows who holds the lock, so waiters ask from time to time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from holdfast._core.effects import Answer, Call, CallMany, Protocol, Reply, Sleep, Spawn, driver
from holdfast._core.failure import RequestFailed, what_is_at
from holdfast._core.keys import LockKeys
from holdfast._core.kinds import LOCK
from holdfast._core.mutex import renewal
from holdfast._core.record import RENEWAL, Order
from holdfast._core.replies import LockSeen, seen_of, text_of
from holdfast._core.retry import Backoff
from holdfast._core.settings import DEFAULT, Settings
from holdfast._core.tokens import client_of
from holdfast._core.validity import deadline
from holdfast._core.waiting import Acquisition
from holdfast.errors import ConfigurationError, HoldfastError, QuorumUnreachable

#: A proposed fencing token is so far ahead of the fastest member's clock: more than a round trip varies.
_HINT_SLACK_US = 1_000
#: Members that were restarted vote again one after the other, within this, s.
_ONE_BY_ONE_S = 60.0
#: What the answers of members (`quorum_acquire`) begin with, beside that a token was given back before.
_GRANTED, _TAKEN, _RESTARTED, _NO_MASTER = 1, 0, -2, -3


def _kind(answer: Answer) -> int | None:
    """Return how the answer of a member begins; None for trouble, or nothing so far."""
    return answer[0] if isinstance(answer, list) else None


class QuorumFailed(RequestFailed):
    """Too few members answered."""

    def __init__(self, keys: LockKeys, needed: int, heard: int, problems: tuple[str, ...], *, transient: bool) -> None:
        super().__init__("QUORUM", "; ".join(problems), "quorum", maybe_executed=True, transient=transient)
        self.key = keys.lock
        self.needed = needed
        self.heard = heard
        self.problems = problems

    def public(self) -> HoldfastError:
        return QuorumUnreachable(self.needed, self.heard, self.problems, what_is_at(self.key))


class Quorum:
    """What a client knows of the members; all its locks share it.

    `names` for messages, in the order of the nodes. `restart_delay_ms`: a member votes when it has been up for longer
    than this, which has to be at least the longest ttl in use; None: as long as the ttl that is asked for; 0 where no
    restart loses data. `request_timeout_s`: how long a member is waited for; None: a small fraction of the ttl.
    """

    def __init__(
        self,
        names: Sequence[str],
        restart_delay_ms: int | None = None,
        request_timeout_s: float | None = None,
        settings: Settings = DEFAULT,
    ) -> None:
        self.names = tuple(names)
        self.settings = settings
        self._patience_s = request_timeout_s
        self.size = len(self.names)
        self.need = self.size // 2 + 1
        self.restart_delay_ms = restart_delay_ms
        self.run_ids: list[str | None] = [None] * self.size
        #: The first round waits for all, to see whether they are what they should be; what a late answer showed.
        self.unchecked = True
        self.wrong: ConfigurationError | None = None
        #: The token of the last round, for acquisitions whose first round failed; and until when it is needed.
        self._last_rounds: dict[str, tuple[str, float]] = {}
        self._ahead_s: list[float | None] = [None] * self.size
        #: What each member has to be given back, of each client that does so: a forked child does not go on with what
        #: its parent owes. The keys by their token, until when that matters, and since when.
        self._debts: dict[tuple[int, str], dict[str, tuple[LockKeys, float, float]]] = {}

    def request_timeout_s(self, ttl_ms: int) -> float:
        if self._patience_s is not None:
            return self._patience_s
        settings = self.settings
        return max(settings.member_patience_min_s, min(settings.member_patience_s, ttl_ms / 20_000))

    def hint_us(self, now: float) -> int:
        """The fencing token to propose: a little ahead of every member's clock; 0 when too little is known."""
        known = [ahead_s for ahead_s in self._ahead_s if ahead_s is not None]
        return int((now + max(known)) * 1_000_000) + _HINT_SLACK_US if len(known) >= self.need else 0

    def saw_clock(self, index: int, server_us: int, asked_at: float) -> None:
        self._ahead_s[index] = server_us / 1_000_000 - asked_at

    def look_at(self, index: int, vote: Reply) -> None:
        """Note a member's identity, and refuse one that is there twice, or is no master."""
        twice: list[str] = []
        if vote[0] == _NO_MASTER:
            self.wrong = ConfigurationError("servers", self.names[index], f"masters; this is a {text_of(vote[1])}")
        elif vote[0] == _GRANTED and self.run_ids[index] is None:
            run_id = self.run_ids[index] = text_of(vote[3])
            if run_id:
                twice = [name for name, other in zip(self.names, self.run_ids, strict=True) if other == run_id]
        if len(twice) > 1:
            allowed = "independent servers; these are one and the same (by their run_id)"
            self.wrong = ConfigurationError("servers", twice, allowed)

    def complain(self) -> None:
        """Raise what was noted, and look again the next time: it may have been put right."""
        wrong, self.wrong = self.wrong, None
        if wrong is not None:
            self.run_ids = [None] * self.size
            self.unchecked = True
            raise wrong

    # Which round an acquisition has come to.

    def begins_round(self, token: str, this_round: str, now: float, until: float) -> None:
        """Remember the round of the acquisition that began with `token`, in case it has to be given back.

        An interruption may come anywhere, also between the grant and the moment when the caller has its lease. What is
        not released is therefore forgotten by time: `until` is when the ttl has ended what there was to give back.
        """
        rounds = self._last_rounds
        rounds.pop(token, None)
        while rounds and rounds[oldest := next(iter(rounds))][1] < now:
            del rounds[oldest]
        rounds[token] = this_round, until

    def last_round(self, token: str) -> str:
        return self._last_rounds.get(token, (token,))[0]

    def forget_round(self, token: str) -> None:
        """Forget the last round of an acquisition that has nothing left to give back."""
        self._last_rounds.pop(token, None)

    # What could not be given back at once.

    async def owe(self, index: int, token: str, keys: LockKeys, until: float, now: float) -> None:
        """Remember to give back at a member."""
        account = index, client_of(token)
        is_first = account not in self._debts
        self._debts.setdefault(account, {})[token] = (keys, until, now)
        if is_first:
            await Spawn(self._pay(*account))

    def settled(self, index: int, token: str) -> None:
        """Settle a debt at a member that has answered after all."""
        self._debts.get((index, client_of(token)), {}).pop(token, None)

    async def _pay(self, index: int, client_id: str) -> None:
        """Give back what is owed at one member, one after the other, until nothing is or its ttl has ended it.

        After a pause: most of it is settled by an answer that comes a moment after the majority's.
        """
        debts, settings = self._debts[index, client_id], self.settings
        pauses = Backoff(settings.trouble_pause_s, settings.trouble_pause_max_s)
        request_timeout_s = self._patience_s or settings.member_patience_s / 4
        while debts:
            pause_s = pauses.next_s()
            await Sleep(pause_s)
            begun_at = driver.get().now()
            for token, debt in tuple(debts.items()):
                keys, until, since = debt
                if debts.get(token) is not debt or begun_at < since + pause_s / 2:
                    continue
                try:
                    if driver.get().now() < until:
                        await _release_at(index, self, keys, token, True, request_timeout_s)
                        pauses.reset()
                except RequestFailed as failure:
                    if failure.unsettled:
                        break
                if debts.get(token) is debt:
                    del debts[token]
        del self._debts[index, client_id]


def _release_at(index: int, quorum: Quorum, keys: LockKeys, token: str, buries: bool, request_timeout_s: float) -> Call:
    settings = quorum.settings
    args = (token, settings.fence_ms, settings.claim_ms, keys.inboxes, settings.tombstone_ms if buries else 0)
    return Call("release", keys.all, args, request_timeout_s, node=index)


def _problem(name: str, answer: Answer) -> str:
    if answer is None:
        return f"{name}: no answer in time"
    if isinstance(answer, RequestFailed):
        return f"{name}: {answer.denied() or answer.message}"
    if answer[0] == _RESTARTED:
        if answer[1] < 0:
            return f"{name}: does not vote, since INFO is forbidden and its uptime unknown"
        return f"{name}: was restarted recently and votes in {answer[1] / 1000:.1f} s"
    return f"{name}: this acquisition was given back there"


class _Round:
    """One try with one token. `owed` are the members that may hold it without having said so, or will."""

    __slots__ = ("answers", "asked_at", "keys", "latecomers", "owed", "over", "quorum", "repeated", "token", "ttl_ms")

    def __init__(self, quorum: Quorum, keys: LockKeys, token: str, ttl_ms: int) -> None:
        self.quorum = quorum
        self.keys = keys
        self.token = token
        self.ttl_ms = ttl_ms
        self.owed = set(range(quorum.size))
        self.answers: Sequence[Answer] = [None] * quorum.size
        self.asked_at = 0.0
        self.over = False
        self.repeated: dict[int, bool] = {}
        #: Whose votes came when enough others had answered, but before it was known what comes of the round.
        self.latecomers: set[int] = set()

    def granted(self) -> list[int]:
        granted = {at for at, answer in enumerate(self.answers) if _kind(answer) == _GRANTED}
        return sorted(granted | self.latecomers)

    def _enough(self, answers: Sequence[Answer]) -> bool:
        """True if a majority voted for us, or none will and it is known whether it is taken or too few are there."""
        votes = [_kind(answer) for answer in answers if answer is not None]
        granted, taken = votes.count(_GRANTED), votes.count(_TAKEN)
        troubled = len(votes) - granted - taken
        need, others = self.quorum.need, len(answers) - self.quorum.need
        if granted >= need or troubled > others:
            return True
        return taken + troubled > others and granted + taken >= need

    def _late(self, index: int, reply: Reply) -> Protocol[None] | None:
        self.quorum.look_at(index, reply)
        if reply[0] == _GRANTED:
            self.latecomers.add(index)
            if self.over:
                return self.back(index)
        self._heard(index)
        return None

    def _heard(self, index: int) -> None:
        """Owe that member nothing, unless it was asked twice: it may carry out the first request after all else."""
        if not self.repeated.get(index):
            self.owed.discard(index)

    async def ask(self, request_timeout_s: float) -> int | None:
        """Ask all members; the fencing token when a majority gave its votes and remembers it. Raises Configuration."""
        quorum, keys, settings = self.quorum, self.keys, self.quorum.settings
        asked_at = self.asked_at = driver.get().now()
        hint_us = quorum.hint_us(asked_at)
        delay_ms = self.ttl_ms if quorum.restart_delay_ms is None else quorum.restart_delay_ms
        vote_keys = (keys.lock, keys.fence, keys.gone)
        args = (self.token, hint_us, self.ttl_ms, settings.fence_ms, delay_ms)
        plain, checking = (*args, ""), (*args, "check")
        args_of = [checking if run_id is None else plain for run_id in quorum.run_ids]
        calls = [Call("quorum_acquire", vote_keys, args, request_timeout_s, at) for at, args in enumerate(args_of)]
        unchecked, quorum.unchecked = quorum.unchecked, False
        enough = (lambda answers: None not in answers) if unchecked else self._enough
        votes = CallMany(calls, request_timeout_s, enough, self._late)
        self.repeated = votes.repeated
        self.answers = answers = await votes
        fences: list[int] = []
        for index, answer in enumerate(answers):
            if isinstance(answer, list):
                self._heard(index)
                quorum.look_at(index, answer)
                if answer[0] == _GRANTED:
                    fences.append(answer[1])
                    quorum.saw_clock(index, answer[2], asked_at)
            elif answer is not None and not answer.maybe_executed:
                self.owed.discard(index)
        quorum.complain()
        if len(fences) < quorum.need:
            return None
        for fence in fences:
            if fences.count(fence) >= quorum.need:
                return fence
        return await self._agree(max(fences), request_timeout_s)

    async def _agree(self, fence: int, request_timeout_s: float) -> int | None:
        """Let a majority of those that hold us remember `fence`."""
        quorum, keys = self.quorum, self.keys
        args = (self.token, 1, fence, quorum.settings.fence_ms)  # for 1 ms from now at least: as long as before
        calls = [Call("multi_renew", keys.all, args, request_timeout_s, node=index) for index in self.granted()]

        def enough(answers: Sequence[Answer]) -> bool:
            return _counted(answers)[0] >= quorum.need

        return fence if enough(await CallMany(calls, request_timeout_s, enough)) else None

    async def back(self, late: int | None = None) -> None:
        """Give back where we may be held, or only at a member whose vote came `late`: what does not answer is owed."""
        granted, unsure = (self.granted(), self.owed) if late is None else ([late], {late})
        await _release_all(self.quorum, self.keys, self.token, self.ttl_ms, granted, unsure)


async def _release_all(
    quorum: Quorum, keys: LockKeys, token: str, ttl_ms: int, granted: Sequence[int], unsure: set[int]
) -> Sequence[Answer]:
    """Release at the members that granted, and leave a tombstone at those that may grant still. What these answer.

    Ends when a majority has released, or those that granted have answered; what has not answered by then is owed.
    """
    members = sorted({*granted, *unsure})
    if not members:
        return []
    request_timeout_s = quorum.request_timeout_s(ttl_ms)
    calls = [_release_at(index, quorum, keys, token, index in unsure, request_timeout_s) for index in members]
    waited_for = [at for at, index in enumerate(members) if index not in unsure] or list(range(len(members)))

    def enough(answers: Sequence[Answer]) -> bool:
        return _counted(answers)[0] >= quorum.need or None not in [answers[at] for at in waited_for]

    heard: set[int] = set()  # after the end

    def late(at: int, reply: Reply) -> None:
        heard.add(members[at])
        quorum.settled(members[at], token)

    answers: Sequence[Answer] = [None] * len(members)
    try:
        releases = CallMany(calls, request_timeout_s, enough, late)
        # One that finds nothing may have been carried out when it was sent first.
        answers = [1 if a == 0 and releases.repeated.get(at) else a for at, a in enumerate(await releases)]
    finally:
        now = driver.get().now()
        for index, answer in zip(members, answers, strict=True):
            unsettled = answer is None or (isinstance(answer, RequestFailed) and answer.unsettled)
            if unsettled and index not in heard:
                await quorum.owe(index, token, keys, now + ttl_ms / 1000 + 1.0, now)
    return answers


def _counted(answers: Sequence[Answer]) -> tuple[int, int]:
    """How many members have done it, and how many say that it is not held there."""
    numbers = [answer for answer in answers if type(answer) is int]
    return sum(number > 0 for number in numbers), numbers.count(0)


class QuorumAcquisition(Acquisition):
    """The turn to hold a majority: each ask is a round of its own. `waits`: it is asked for again.

    Grants as `[1, fencing token, the token that is held, the members that may hold it without having said so]`. To
    renew and release, a turn has that token, that it began with as its `first`, and those members as its `unsure`.
    """

    __slots__ = ("_number", "_polls", "_round", "_splits", "first", "polls", "quorum", "unsure", "waits")

    kind = LOCK

    def __init__(self, quorum: Quorum, keys: LockKeys, token: str, ttl_ms: int, waits: bool = False) -> None:
        settings = quorum.settings
        super().__init__(keys, token, ttl_ms, settings)
        self.quorum = quorum
        self.waits = waits
        self.first = token
        self.unsure: set[int] = set()
        self._number = 0
        #: What may be held of it has not been given back.
        self._round: _Round | None = None
        self._polls = Backoff(settings.foreign_poll_s, settings.foreign_poll_max_s)
        self._splits = Backoff(settings.split_pause_s, settings.split_pause_max_s, least=0.0)
        self.polls = self._polls

    def request_timeout_s(self, left_s: float | None) -> float:
        patience_s = self.quorum.request_timeout_s(self.ttl_ms)
        if left_s is None or not self.waits:
            return patience_s
        return max(self.settings.member_patience_min_s, min(patience_s, left_s))

    async def ask(self, queueing: bool, arrival: int, request_timeout_s: float) -> Reply:  # type: ignore[override]
        """Ask all members once. Raises `QuorumFailed` when too few of them answer, or what a majority says itself."""
        quorum = self.quorum
        await self.give_back()  # what was granted too late
        self._number += 1
        token = self.token
        if self._number > 1:
            client, owner, sequence = token.split(":")
            token = f"{client}:{owner}~{self._number}:{sequence}"
            now = driver.get().now()
            quorum.begins_round(self.token, token, now, now + self.ttl_ms / 1000 + self.settings.retry_limit_s)
        this = self._round = _Round(quorum, self.keys, token, self.ttl_ms)
        fence = await this.ask(request_timeout_s)
        if fence is not None and driver.get().now() < deadline(this.asked_at, self.ttl_ms):
            return [1, fence, this.token, this.owed]
        this.over = True
        # Those who contend with us see it free again before we pause, not some time later.
        back = self.give_back()
        await (back if self.waits and this.granted() else Spawn(back))
        quorum.forget_round(self.token)
        taken = [answer for answer in this.answers if isinstance(answer, list) and answer[0] == _TAKEN]
        votes = len(this.granted()) + len(taken)
        if votes < quorum.need:
            raise _trouble_of(quorum, self.keys, this.answers, votes)
        times = _times_by_holder((text_of(holder), ms) for _, ms, holder in taken)
        holder = max(times, key=lambda each: len(times[each]), default="")
        if len(times.get(holder, ())) < quorum.need:
            self.polls = self._splits
            return [0, -1, holder, -1, 0]
        self._splits.reset()
        self.polls = self._polls
        remaining_ms = min((ms for _, ms, _ in taken if ms >= 0), default=-1)
        return [0, remaining_ms, holder, -1, 0]

    async def give_back(self) -> None:
        """Give back what the last round may have left, wherever it was interrupted."""
        this, self._round = self._round, None
        if this is not None:
            this.over = True
            await this.back()

    async def renew(self, ttl_ms: int, order: Order = RENEWAL) -> int:
        """Extend to `ttl_ms` from now on a majority; returns what that of others does. Raises `QuorumFailed`.

        Where the majority is gone, nothing is given back: the holder may rely on what it was told of the remaining
        time, and what is left of its votes keeps others out until then.
        """
        self.ttl_ms = max(self.ttl_ms, ttl_ms)
        quorum, keys = self.quorum, self.keys
        need, size = quorum.need, quorum.size

        def enough(answers: Sequence[Answer]) -> bool:
            held, gone = _counted(answers)
            return held >= need or gone > size - need

        request_timeout_s = quorum.request_timeout_s(ttl_ms)
        args = (keys, self.token, ttl_ms, order, quorum.settings, request_timeout_s)
        answers = await CallMany([renewal(*args, node=index) for index in range(size)], request_timeout_s, enough)
        held, gone = _counted(answers)
        if held >= need:
            return max(answer for answer in answers if type(answer) is int)
        if gone > size - need:
            return 0
        raise _trouble_of(quorum, keys, answers, held + gone)

    async def release(self, sure_until: float | None = None) -> bool:
        """Release on every member; False when it was not ours any more. Raises `QuorumFailed`.

        What a member does not answer is owed to it all the same, for as long as it may keep the lease.
        """
        quorum = self.quorum
        quorum.forget_round(self.first)
        answers = await _release_all(quorum, self.keys, self.token, self.ttl_ms, range(quorum.size), self.unsure)
        released, not_ours = _counted(answers)
        if released >= quorum.need:
            return True
        if not_ours > quorum.size - quorum.need:
            return False
        raise _trouble_of(quorum, self.keys, answers, released + not_ours)


def _trouble_of(quorum: Quorum, keys: LockKeys, answers: Sequence[Answer], heard: int) -> RequestFailed:
    """Explain why too few were `heard`: what a majority says itself, or all that is wrong put together."""
    bad = [
        (name, answer)
        for name, answer in zip(quorum.names, answers, strict=True)
        if type(answer) is not int and _kind(answer) not in (_GRANTED, _TAKEN)
    ]
    refusals = [answer for _, answer in bad if isinstance(answer, RequestFailed) and not answer.transient]
    for refused in refusals:
        if sum(other.kind == refused.kind for other in refusals) >= quorum.need:
            return refused
    young = [answer[1] for answer in answers if isinstance(answer, list) and answer[0] == _RESTARTED]
    mute = young.count(-1)  # whose uptime is a secret
    problems = tuple(_problem(name, answer) for name, answer in bad)
    transient = len(refusals) + mute <= quorum.size - quorum.need
    failure = QuorumFailed(keys, quorum.need, heard, problems, transient=transient)
    if young and heard + len(young) - mute >= quorum.need:
        failure.passes_in_s = _ONE_BY_ONE_S + max(young) / 1000
    return failure


async def give_back(quorum: Quorum, keys: LockKeys, token: str, ttl_ms: int) -> None:
    """Undo whatever an acquisition that began with `token` may have left."""
    await _release_all(quorum, keys, quorum.last_round(token), ttl_ms, [], set(range(quorum.size)))


async def inspect(quorum: Quorum, keys: LockKeys) -> LockSeen:
    """Look at the lock: who holds a majority, for how long, the last fencing token; there is no queue."""
    request_timeout_s = quorum.settings.short_retry_s
    seen = (keys.lock, keys.fence, keys.queue)
    calls = [Call("inspect", seen, (), request_timeout_s, node=index) for index in range(quorum.size)]

    def heard_of(answers: Sequence[Answer]) -> list[LockSeen]:
        return [seen_of(answer) for answer in answers if isinstance(answer, list)]

    def enough(answers: Sequence[Answer]) -> bool:
        return any(len(times) >= quorum.need for times in _times_by_holder(heard_of(answers)).values())

    answers = await CallMany(calls, request_timeout_s, enough)
    heard = heard_of(answers)
    if len(heard) < quorum.need:
        raise _trouble_of(quorum, keys, [a if isinstance(a, RequestFailed) else None for a in answers], len(heard))
    # A token that was handed out is remembered by a majority, of which those that were not heard may be a part.
    unheard = quorum.size - len(heard)
    fence = sorted((seen.fence for seen in heard), reverse=True)[quorum.need - unheard - 1]
    for holder, remaining in _times_by_holder(heard).items():
        if holder and len(remaining) >= quorum.need:
            # The majority lasts as long as the need-th longest of its members.
            longest = sorted(remaining, key=lambda ms: ms if ms >= 0 else float("inf"), reverse=True)
            return LockSeen(holder, longest[quorum.need - 1], fence, 0)
    return LockSeen("", -2, fence, 0)


def _times_by_holder(seen: Iterable[tuple[str, int, *tuple[Any, ...]]]) -> dict[str, list[int]]:
    """Return for how long the members say that each holder has it, ms, of what begins with both."""
    times: dict[str, list[int]] = {}
    for holder, remaining_ms, *_ in seen:
        times.setdefault(holder, []).append(remaining_ms)
    return times

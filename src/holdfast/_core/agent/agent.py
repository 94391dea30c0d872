"""One client's agent: what it holds, what waits, and all that happens by itself.

Laws: a loss is known at its deadline at the latest, even while every server hangs; what a caller was not given, though
the server granted it, is given back; when a client is closed, waiters leave before anything is released, and holders
are told before their locks are.

Theory: everything is a protocol that `Runner` drives, a timer, or a message, one after the other in one thread. So
there are no locks here, and no state that another thread, a signal handler or the garbage collector could find half
changed. What runs an agent, the engine or the simulator, gives it a clock, timers, and a way to send requests.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from holdfast._core.agent.closing import HURRY_S, Closing
from holdfast._core.agent.inboxes import Inboxes, Listening
from holdfast._core.agent.renewals import Renewals, quietly
from holdfast._core.agent.runner import SUSPENDED, Task, closed
from holdfast._core.agent.unconfirmed import Unconfirmed
from holdfast._core.effects import (
    Answer,
    AwaitTurn,
    AwaitWake,
    Call,
    CallMany,
    Command,
    Listen,
    Protocol,
    Sleep,
    Tell,
    Wake,
)
from holdfast._core.failure import RequestFailed
from holdfast._core.fast_path import Contention, replay
from holdfast._core.holder_notices import HolderNotices
from holdfast._core.lease_cache import LeaseCache
from holdfast._core.record import LeaseRecord
from holdfast._core.replies import wake_of
from holdfast._core.schedule import Schedule
from holdfast._core.settings import Settings
from holdfast._core.snapshot import snapshot
from holdfast._core.tenure import Lines
from holdfast._core.waiting import Busy, Grant, granted, released, within

#: What came of a request that its caller has sent: its reply, or why there is none.
Outcome: TypeAlias = tuple[Any, RequestFailed | None]

#: How long a reply of a call that is not waited for any more is still looked at, s.
LATE_PATIENCE_S = 30.0


class Sent(NamedTuple):
    """The first request of an acquire: when it is sent, behind which release; and its outcome, if that is known."""

    asked_at: float
    behind: Any
    outcome: Outcome | None = None


class Agent(Closing, Listening):
    """Performs what protocols ask for, renews what is held, and hears what servers say.

    `inboxes`: what the names of channels begin with. `guard` keeps other threads out of lines; `one_place`: all keys
    are on one server, `moves`: they may go to another one.
    """

    def __init__(
        self,
        client_id: str,
        inboxes: str,
        settings: Settings,
        guard: AbstractContextManager[Any],
        *,
        one_place: bool,
        moves: bool,
    ) -> None:
        super().__init__()
        self.client_id = client_id
        self.channel = inboxes + client_id
        self.settings = settings
        self.schedule = Schedule(settings)
        self.contention = Contention(settings)
        #: Acquires that wait for each other here; leases that stay here after their release.
        self.lines = Lines(settings, guard, self.schedule.early)
        self.lease_cache = LeaseCache(settings, self.watch, self.spawn, self.schedule.early, lambda: not self.closing)
        self.releasing = Unconfirmed(self.spawn, self.call, settings.request_timeout_s)
        self.inboxes = Inboxes(self, settings)
        self.standing = self.inboxes.standing
        self.listening, self.missing_inbox = self.inboxes.listening, self.inboxes.missing
        self.listens, self.unlisten = self.inboxes.listens, self.inboxes.unlisten
        self.lines.hears = lambda key: self.lease_cache.hears(key, self.listening(key))
        self.notices = HolderNotices(self, one_place)
        self.renewals = Renewals(self, self.schedule, self.rearm, moves=moves)
        #: When `_attend` is called next, and by which timer.
        self.attends_at: float | None = None
        self._alarm: Any = None
        self._perform |= {
            Call: self._call,
            Command: self._command,
            CallMany: self._call_many,
            Listen: self.inboxes.listen,
            AwaitWake: self.inboxes.await_wake,
            AwaitTurn: self._await_turn,
            Sleep: self._sleep,
            Tell: lambda _task, tell: tell.function(tell.argument),
        }

    # -- what it is run by ------------------------------------------------------------------------

    @abstractmethod
    def request(
        self, effect: Call | Command, patience_s: float, answer: Callable[[Any, RequestFailed | None], None]
    ) -> None:
        """Send it to where its key is. `answer` is called once: no answer within `patience_s` is a `RequestFailed`."""

    # -- effects ----------------------------------------------------------------------------------

    def _call(self, task: Task, effect: Call) -> Any:
        sync = effect.sync
        patience_s = effect.request_timeout_s if sync is None else effect.request_timeout_s + sync[1] / 1000
        self.request(effect, patience_s, partial(self.resume, task, task.ticket))
        return SUSPENDED

    def _command(self, task: Task, effect: Command) -> Any:
        self.request(effect, effect.request_timeout_s, partial(self.resume, task, task.ticket))
        return SUSPENDED

    def _call_many(self, task: Task, effect: CallMany) -> Any:
        ticket = task.ticket
        answers: list[Answer] = [None] * len(effect.calls)
        if not answers:
            return answers
        enough, late = effect.enough, effect.late

        def answered(index: int, reply: Any, failure: RequestFailed | None) -> None:
            if task.ticket != ticket:
                protocol = late(index, reply) if late is not None and failure is None else None
                if protocol is not None:
                    self.spawn(protocol, f"{task.label}/late")
                return
            if failure is not None:
                if failure.kind == "broken" and index not in effect.repeated:
                    effect.repeated[index] = failure.maybe_executed
                    self.request(effect.calls[index], patience_s, partial(answered, index))
                    return
                failure.maybe_executed = failure.maybe_executed or effect.repeated.get(index, False)
                failure.about(effect.calls[index])
            answers[index] = reply if failure is None else failure
            if None not in answers or (enough is not None and enough(answers)):
                self.resume(task, ticket, answers)

        patience_s = max(LATE_PATIENCE_S, effect.request_timeout_s)
        for index, call in enumerate(effect.calls):
            self.request(call, patience_s, partial(answered, index))
        task.timer = self.later(effect.request_timeout_s, self.resume, task, ticket, answers)
        return SUSPENDED

    def _await_turn(self, task: Task, effect: AwaitTurn) -> Any:
        ticket = task.ticket
        effect.turn.bell = partial(self.call, self.resume, task, ticket, None)
        if effect.turn.is_called():
            return None
        task.timer = self.later(effect.timeout_s, self.resume, task, ticket, None)
        return SUSPENDED

    def call(self, act: Callable[..., object], *args: Any) -> None:
        """Do it soon. Engines let any thread call this."""
        self.soon(act, *args)

    def _sleep(self, task: Task, effect: Sleep) -> Any:
        seconds = min(effect.seconds, HURRY_S) if self.closing else effect.seconds
        task.timer = self.later(seconds, self.resume, task, task.ticket, None)
        return SUSPENDED

    # -- acquiring and releasing ------------------------------------------------------------------

    def known(self, first: Call, outcome: Outcome) -> Any:
        """Return the reply to a first request that its caller has sent; or raise why there is none."""
        reply, failure = outcome
        if failure is not None:
            raise closed(failure) if self.closing else failure
        return reply

    async def acquire(
        self,
        first: Call | None,
        start: Callable[[float | None, bool], Protocol[Grant | Busy]],
        timeout_s: float | None,
        ttl_ms: int,
        sent: Sent | None = None,
    ) -> Grant | Busy:
        """Acquire: by the `first` request alone where that is granted in time, else by the protocol.

        There is no `first` where replicas have to acknowledge it, or keys move, which a protocol has to follow.
        `start(timeout_s, sent)` makes that; `sent`: its first request, which does not queue, was sent already. By the
        caller, where this is given `sent`, too.
        """
        if sent is None:
            if self.closing:
                raise closed()  # its caller found the client open, and was not seen when that began to end
            behind = None if first is None else self.releasing.latest.get(first.keys[0])
            if first is None or self.contention.expects(first.keys[0]):
                if behind is not None:
                    await AwaitTurn(behind, self.settings.request_timeout_s)
                return await start(timeout_s, False)
            if timeout_s is not None:
                first.request_timeout_s = within(first.request_timeout_s, timeout_s or self.settings.try_limit_s)
            sent = Sent(self.now(), behind)
        assert first is not None
        asked_at, behind, outcome = sent
        try:
            reply = await first if outcome is None else self.known(first, outcome)
            if behind is not None and reply[0] != 1:
                await AwaitTurn(behind, first.request_timeout_s)
                asked_at = self.now()
                reply = await first
        except BaseException as error:
            return await replay(start(timeout_s, True), asked_at, None, error)
        grant = granted(reply, asked_at, self.now(), ttl_ms)
        if grant is not None:
            return grant
        self.contention.saw(first.keys[0])
        return await replay(start(timeout_s, True), asked_at, reply, None)

    async def release(self, record: LeaseRecord, first: Call | None, outcome: Outcome | None = None) -> bool:
        """Release it; False when it was not held any more. `first` as in `acquire`; `outcome`: its, if it was sent."""
        if outcome is None and record.turn is not None and record.hand_on(self.now()):
            return True
        if first is None:
            return await record.release()
        try:
            reply = await first if outcome is None else self.known(first, outcome)
        except BaseException as error:
            return await replay(record.release(), 0.0, None, error)
        held = released(reply)
        return await replay(record.release(), 0.0, reply, None) if held is None else held

    # -- what is held -----------------------------------------------------------------------------

    def watch(self, record: LeaseRecord) -> None:
        """Renew it and look after its deadline, until the schedule has it no more."""
        self.arm(self.schedule.add(record, self.random()))

    def spawn_release(self, record: LeaseRecord) -> None:
        """Release in the background what is not wanted any more."""
        self.spawn(quietly(record), f"release {record.name}")

    async def extend(self, record: LeaseRecord, ttl_ms: int) -> bool:
        """Have it last that long from now; False when it has ended. Raises `RequestFailed`."""
        asked_at = self.now()
        if record.check_expired(asked_at):
            return False
        order, at = self.schedule.extending(record, ttl_ms, asked_at)
        if not record.alive:
            return False  # released meanwhile, and perhaps handed on under its token
        self.arm(at)
        try:
            held = await record.or_why(order.asks_ms, order)
        except BaseException:
            self.arm(self.schedule.replan(record, self.random()))
            raise
        at = self.schedule.extended(record, order, held, ttl_ms, asked_at, self.now(), self.random())
        self.arm(at)
        if at is None and held and record.is_left_over:
            self.spawn_release(record)  # extended on the server, but too late to be trusted
        return at is not None

    async def check(self, record: LeaseRecord) -> bool:
        """Ask whether it still stands, which renews it, too; False when it has ended. Raises `RequestFailed`."""
        asked_at = self.now()
        if record.check_expired(asked_at):
            return False
        # One that is not renewed is asked for a part of what is left: no renewal shortens, and the answer has time.
        part_ms = int((record.deadline - asked_at) * 1000) // 3
        ttl_ms = (record.renewal_ttl_ms(asked_at) if record.renews else None) or part_ms or 1
        held = await record.renew(ttl_ms)
        if not held:
            record.lose("taken")
        elif not record.extended(ttl_ms, asked_at, self.now()) and record.is_left_over:
            self.spawn_release(record)  # extended on the server, but too late to be trusted
        return record.alive

    def rearm(self) -> None:
        """Set the alarm earlier if something is due before it."""
        self.arm(self.schedule.next_at())

    def arm(self, at: float | None) -> None:
        """Something is due then."""
        if at is not None and (self.attends_at is None or at < self.attends_at):
            if self._alarm is not None:
                self.forget(self._alarm)
            self.attends_at = at
            self._alarm = self.later(max(0.0, at - self.now()), self._attend, at)

    def _attend(self, at: float) -> None:
        """Renew what is due."""
        if self.attends_at != at:
            return
        self.attends_at = self._alarm = None
        now = self.now()
        if self.closing:  # nothing is renewed any more, but each end is told in time
            self.arm(min((record.deadline for record in self.schedule if not record.check_expired(now)), default=None))
            return
        try:
            self.renewals.start(self.schedule.due(now), now)
            self.notices.look(now)
        finally:
            self.rearm()

    # -- messages ---------------------------------------------------------------------------------

    def heard(self, message: Any) -> None:
        """Act on a message of an inbox, as the server has sent it."""
        found = wake_of(message, self.client_id)
        if found is None:
            return
        token, wake = found
        if wake.kind in Wake.FOR_HOLDERS:
            self.notices.told(token, wake)
        else:
            self.inboxes.wake(token, wake)

    def wakes(self, message: Any) -> bool:
        """In any thread: wake the caller whose grant it tells of. False: it is for `heard`."""
        found = wake_of(message, self.client_id)
        return found is not None and found[1].kind == Wake.GRANT and self.standing.wake(*found)

    def inbox_opened(self) -> None:
        self.notices.opened(self.now())

    def held_keys(self) -> Iterator[str]:
        """The keys of what is held, or kept."""
        for record in self.schedule:
            yield from (keys.lock for keys in record.places)
        yield from snapshot(self.lease_cache)

    def inbox_broke(self, *places: Hashable, by_us: bool = False) -> None:
        """Note inboxes that have ended by themselves, or `by_us`."""
        if self.inboxes.broke(places, by_us) and not self.closing:
            self.notices.inbox_lost(self.now())
            self.rearm()

"""A client process of the simulation: performs the effects of protocols, as threads and asyncio do for users.

Laws: nothing happens in a process that is paused or dead; a cancellation is thrown into the protocol at an effect,
and the protocol is driven to its end; a reply whose asker has gone on is dropped.

Theory: a task is suspended at one effect at a time. Each suspension has a number (`ticket`), and whatever would
end it carries that number, so that replies, timers and cancellations race without being cancelled.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Hashable
from contextlib import nullcontext
from typing import Any

from holdfast._core.batch import Batch, batches
from holdfast._core.effects import (
    Answer,
    AwaitTurn,
    AwaitWake,
    Call,
    CallMany,
    Command,
    Effect,
    Listen,
    Now,
    Protocol,
    Random,
    Sleep,
    Spawn,
    Unlisten,
    Wake,
)
from holdfast._core.failure import RequestFailed
from holdfast._core.fast_path import Contention, confirm, replay
from holdfast._core.hearing import Ears
from holdfast._core.keeping import Keeper
from holdfast._core.record import LeaseRecord, LeaseState
from holdfast._core.schedule import Schedule
from holdfast._core.settings import Settings
from holdfast._core.tenure import Lines, Note
from holdfast._core.tokens import KEPT, make_token
from holdfast._core.waiting import Busy, Grant, granted, released, within
from sim.clock import Clock

__all__ = ["AnswerTo", "Cancelled", "Inbox", "Process", "Surroundings", "Task", "abandon"]

AnswerTo = Callable[[Any, RequestFailed | None], None]

#: Timers fire a little late, never early: also against rounding between two clocks.
LATE_S = 1e-8
#: How long `close` waits for what is given back, s.
CLOSE_PATIENCE_S = 1.0


class Cancelled(BaseException):
    """Thrown into a task at an effect, as asyncio's CancelledError or a KeyboardInterrupt."""


class _Abandoned(BaseException):
    """Thrown into what no one will drive on, so that it ends without a word."""


def abandon(coroutine: Protocol[Any]) -> None:
    """End a coroutine of a process that is no more: whatever it still asks for does not happen."""
    if inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
        coroutine.close()
        return
    try:
        effect = coroutine.throw(_Abandoned())
        while True:
            if type(effect) is Spawn:
                effect.protocol.close()
            effect = coroutine.send(None)
    except (StopIteration, _Abandoned):
        pass


class Task:
    """A protocol under way in a process."""

    __slots__ = ("background", "coroutine", "doom", "done", "effect", "label", "process", "ticket", "waiting")

    def __init__(self, process: Process, coroutine: Protocol[Any], label: str, background: bool) -> None:
        self.process = process
        self.coroutine = coroutine
        self.label = label
        self.background = background
        self.ticket = 0
        self.waiting = False
        self.done = False
        #: Effects until a cancellation is thrown; 0: none is.
        self.doom = 0
        self.effect: Effect[Any] | None = None


class Inbox:
    """One subscription: a connection from a process to the server with this number."""

    __slots__ = ("deaf", "last_at", "process", "server", "up")

    def __init__(self, process: Process, server: int) -> None:
        self.process = process
        self.server = server
        #: The process believes in it.
        self.up = False
        #: Half-open: the server counts it, and nothing comes through.
        self.deaf = False
        self.last_at = 0.0


class Surroundings(Clock, ABC):
    """What a process asks of its world. It knows servers by their numbers only."""

    #: When a process last learned that it had asked a former master.
    redirected_at = -1.0

    @abstractmethod
    def master_number(self) -> int:
        """Who is master now."""

    @abstractmethod
    def home_number(self, key: str) -> int:
        """The server that a key lies on."""

    @abstractmethod
    def request(self, process: Process, server: int, call: Call | Command, answer: AnswerTo) -> None:
        """Send a request on its way."""

    @abstractmethod
    def subscribe(self, process: Process, server: int, answer: AnswerTo) -> None:
        """Open an inbox (in place of a broken one)."""

    @abstractmethod
    def closed(self, process: Process, *, settled: bool) -> None:
        """A client has been closed. `settled`: nothing that it had to give back is still under way."""


class _Renewal:
    """A lease's: for how many ms, asked for since when, by which protocol, which waits for that effect."""

    def __init__(
        self, hold: LeaseRecord, ttl_ms: int, sent_at: float, protocol: Protocol[int], effect: Effect[Any]
    ) -> None:
        self.hold = hold
        self.ttl_ms = ttl_ms
        self.sent_at = sent_at
        self.protocol = protocol
        self.effect = effect


class _Rest(Effect[int]):
    """The rest of a renewal's protocol, from its first answer on if there is one."""

    def __init__(self, renewal: _Renewal, answer: Answer) -> None:
        self._renewal = renewal
        self._answer = answer

    def __await__(self) -> Generator[Effect[Any], Any, int]:
        protocol, effect, value = self._renewal.protocol, self._renewal.effect, self._answer
        try:
            while True:
                error: BaseException | None = value if isinstance(value, RequestFailed) else None
                if value is None:
                    try:
                        value = yield effect
                    except BaseException as raised:
                        error = raised
                effect = protocol.send(value) if error is None else protocol.throw(error)
                value = None
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


class _Hearing:
    """What the ears of a process ask of it."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.schedule, self.settings = process.schedule, process.settings
        self.keeper, self.lines = process.keeper, process.lines

    @property
    def closed(self) -> bool:
        return self._process.closing

    def hears_at(self, key: str) -> Hashable | None:
        return None if self._process.listening(None, key) else ("at", self._process.master)

    def spawn(self, protocol: Protocol[None]) -> None:
        self._process.spawn(protocol, "ears", background=True)

    def has_told(self, hold: LeaseRecord) -> bool:
        return True  # a worker works on no lease that is lost


class Process:
    """One client process: its clock, its inboxes, its tasks, and the agent that renews what it holds."""

    def __init__(self, world: Surroundings, number: int, settings: Settings) -> None:
        self.world = world
        self._after = world.after
        self.number = number
        self.id = f"{number:08x}" + f"{world.rng.getrandbits(64):016x}"
        self.name = f"p{number}"
        self.settings = settings
        self.rate = world.options.client_rate(world.rng)
        self.offset = world.rng.uniform(0, 1e6)
        self.alive = True
        self.paused = False
        #: When the last pause ended, virtual s.
        self.resumed_at = -1.0
        #: Effects performed, for a cancellation at exactly the n-th.
        self.effects = 0
        self.tasks: dict[Task, None] = {}
        #: The one that runs now, or ran last.
        self.running: Task | None = None
        self.schedule = Schedule(settings)
        self.contention = Contention(settings)
        #: Workers that wait for each other here.
        self.lines = Lines(settings, nullcontext(), self.schedule.early)
        self.notes: dict[object, Note] = {}
        #: What stays here after its release.
        self.keeper = Keeper(settings, self.watch, self._spawn_for_keeper, self.schedule.early)
        self.lines.hears = lambda key: self.keeper.hears(key, self.listening(None, key))
        #: What holders hear by; only where someone breaks leases.
        self.ears = Ears(_Hearing(self), True) if world.options.break_s else None
        self.inboxes: dict[int, Inbox] = {}
        #: The master as this process knows it.
        self.master = world.master_number()
        self._many_masters = world.options.cluster
        #: Sessions of commands whose connection is given up.
        self.dropped: set[str | None] = set()
        self._sequence = 0
        self._listening: dict[str, deque[Wake]] = {}
        self._awaiting: dict[str, tuple[Task, int]] = {}
        self._backlog: list[Callable[[], None]] = []
        #: It is being closed: nothing begins any more.
        self.closing = False
        #: When the agent is to be woken, local s.
        self.agent_at: float | None = None

    # -- clock ------------------------------------------------------------------------------------

    def local(self) -> float:
        """Its clock, s."""
        return self.offset + self.world.now * self.rate

    def world_time(self, local: float) -> float:
        """The virtual time at which its clock shows `local`."""
        return (local - self.offset) / self.rate

    def later(self, seconds: float, act: Callable[..., None], *args: Any) -> None:
        """After this many seconds on its own clock."""
        self._after((seconds if seconds > 0 else 0.0) / self.rate + LATE_S, act, *args)

    # -- tasks ------------------------------------------------------------------------------------

    def token(self) -> str:
        self._sequence += 1
        return make_token(self.id, 1, self._sequence)

    def _spawn_for_keeper(self, coroutine: Protocol[None]) -> None:
        self.spawn(coroutine, "keeper", background=True)

    def spawn(self, coroutine: Protocol[Any], label: str, *, background: bool = False) -> Task:
        task = Task(self, coroutine, label, background)
        self.tasks[task] = None
        self.world.after(0.0, self._start, task)
        return task

    def _start(self, task: Task) -> None:
        if self.paused:
            self._backlog.append(lambda: self._start(task))
        elif self.alive:
            self._drive(task, None, None)

    def resume(self, task: Task, ticket: int, value: Any, error: BaseException | None = None) -> None:
        """End the suspension `ticket`, if it lasts."""
        if task.ticket != ticket or not task.waiting:
            return
        if self.paused:
            self._backlog.append(lambda: self.resume(task, ticket, value, error))
        elif self.alive:
            self.world.steps += 1
            self._drive(task, value, error)

    def cancel(self, task: Task) -> None:
        """Throw the cancellation into the task where it is."""
        if self.paused:
            self._backlog.append(lambda: self.cancel(task))
        elif self.alive and task.waiting and not task.done:
            self.world.cancelled += 1
            if self.world.trace is not None:
                self.world.note(self.name, f"{task.label}: cancelled at {type(task.effect).__name__}")
            self._drive(task, None, Cancelled())

    def _drive(self, task: Task, value: Any, error: BaseException | None) -> None:
        coroutine = task.coroutine
        self.running = task
        world = self.world
        task.waiting = False
        task.ticket += 1
        send = coroutine.send
        while True:
            try:
                if error is None:
                    effect = send(value)
                else:
                    effect = coroutine.throw(error)
                    error = None
            except StopIteration:
                self._ended(task)
                return
            except Cancelled:
                self._ended(task)
                return
            except RequestFailed as failure:
                self._ended(task)
                world.fail("unhandled", f"{task.label} of {self.name} let {failure!r} out")
                return
            world.effects += 1
            kind = type(effect)
            if task.doom and kind is not Spawn and kind is not Unlisten:
                task.doom -= 1
                if not task.doom:
                    if kind is Now or kind is Random or world.rng.random() < 0.5:
                        world.cancelled += 1
                        if world.trace is not None:
                            world.note(self.name, f"{task.label}: cancelled before {kind.__name__}")
                        value, error = None, Cancelled()
                        continue
                    self.later(world.rng.random() * 4 * world.options.latency_s, self._cancel_at, task, task.ticket)
            if kind is Now:
                value = self.offset + world.now * self.rate
            elif kind is Random:
                value = world.rng.random()
            elif kind is Call:
                task.effect = effect
                task.waiting = True
                self._call(task, effect)  # type: ignore[arg-type]
                return
            elif kind is Sleep:
                task.effect = effect
                task.waiting = True
                self.later(effect.seconds, self.resume, task, task.ticket, None)  # type: ignore[attr-defined]
                return
            elif kind is Unlisten:
                self._listening.pop(effect.token, None)  # type: ignore[attr-defined]
                value = None
            elif kind is Spawn:
                self.spawn(effect.protocol, f"{task.label}/bg", background=True)  # type: ignore[attr-defined]
                value = None
            else:
                task.effect = effect
                task.waiting = True
                if kind is AwaitTurn:
                    self._await_turn(task, effect)  # type: ignore[arg-type]
                elif kind is AwaitWake:
                    self._await_wake(task, effect)  # type: ignore[arg-type]
                elif kind is Listen:
                    self._listen(task, effect)  # type: ignore[arg-type]
                elif kind is CallMany:
                    self._call_many(task, effect)  # type: ignore[arg-type]
                elif kind is Command:
                    self._command(task, effect)  # type: ignore[arg-type]
                else:
                    raise TypeError(f"the simulation does not know {effect!r}")
                return

    def _cancel_at(self, task: Task, ticket: int) -> None:
        if task.ticket == ticket:
            self.cancel(task)

    def _ended(self, task: Task) -> None:
        task.done = True
        self.tasks.pop(task, None)

    # -- effects ----------------------------------------------------------------------------------

    def _server(self, number: int | None, key: str) -> int:
        if number is not None:
            return number
        return self.world.home_number(key) if self._many_masters else self.master

    def _call(self, task: Task, effect: Call) -> None:
        ticket = task.ticket
        server = self._server(effect.node, effect.keys[0])

        def answer(value: Any, error: RequestFailed | None) -> None:
            if error is not None:
                self._heard_trouble(server, error)
            self.resume(task, ticket, value, error)

        self.world.request(self, server, effect, answer)
        request_timeout_s = (
            effect.request_timeout_s if effect.sync is None else effect.request_timeout_s + effect.sync[1] / 1000
        )
        self.later(request_timeout_s, self._silent, task, ticket, server)

    def _command(self, task: Task, effect: Command) -> None:
        ticket = task.ticket
        server = self._server(effect.node, effect.key or "")

        def answer(value: Any, error: RequestFailed | None) -> None:
            if error is not None:
                self._heard_trouble(server, error)
                self.dropped.add(effect.session)
            self.resume(task, ticket, value, error)

        self.world.request(self, server, effect, answer)
        self.later(effect.request_timeout_s, self._session_silent, task, ticket, server, effect.session)

    def _session_silent(self, task: Task, ticket: int, server: int, session: str | None) -> None:
        if task.ticket == ticket:
            self.dropped.add(session)
        self._silent(task, ticket, server)

    def _silent(self, task: Task, ticket: int, server: int) -> None:
        if task.ticket == ticket and task.waiting:
            error = RequestFailed("silent", "no answer in time", f"s{server}", maybe_executed=True, transient=True)
            self._heard_trouble(server, error)
            self.resume(task, ticket, None, error)

    def _heard_trouble(self, server: int, failure: RequestFailed) -> None:
        """Ask who is master now, as a Sentinel client does when it connects again."""
        if server == self.master and failure.kind in ("refused", "broken", "silent", "READONLY"):
            if self.master != self.world.master_number():
                self.world.redirected_at = self.world.now
            self.master = self.world.master_number()

    def _call_many(self, task: Task, effect: CallMany) -> None:
        ticket = task.ticket
        answers: list[Answer] = [None] * len(effect.calls)

        def answered(index: int, value: Any, error: RequestFailed | None) -> None:
            if not self.alive:
                return
            if task.ticket != ticket or not task.waiting:
                if error is None and effect.late is not None:
                    protocol = effect.late(index, value)
                    if protocol is not None:
                        self.spawn(protocol, f"{task.label}/late", background=True)
                return
            answers[index] = error if error is not None else value
            if None not in answers or (effect.enough is not None and effect.enough(answers)):
                self.resume(task, ticket, list(answers))

        for index, call in enumerate(effect.calls):
            self.world.request(
                self,
                self._server(call.node, call.keys[0]),
                call,
                lambda value, error, index=index: answered(index, value, error),  # type: ignore[misc]
            )
        self.later(effect.request_timeout_s, self._many_over, task, ticket, answers)

    def _many_over(self, task: Task, ticket: int, answers: list[Answer]) -> None:
        self.resume(task, ticket, list(answers))

    def _listen(self, task: Task, effect: Listen) -> None:
        ticket = task.ticket
        server = self._server(effect.node, effect.key)
        self._listening.setdefault(effect.token, deque())
        inbox = self.inboxes.get(server)
        if inbox is not None and inbox.up:
            self.later(0.0, self.resume, task, ticket, None)
            return

        def answer(value: Any, error: RequestFailed | None) -> None:
            if error is not None:
                self._heard_trouble(server, error)
            self.resume(task, ticket, value, error)

        self.world.subscribe(self, server, answer)
        self.later(effect.request_timeout_s, self._silent, task, ticket, server)

    def listening(self, node: int | None, key: str) -> bool:
        """Whether the inbox there is open already."""
        inbox = self.inboxes.get(self._server(node, key))
        return inbox is not None and inbox.up

    def _await_wake(self, task: Task, effect: AwaitWake) -> None:
        ticket = task.ticket
        kept = self._listening.get(effect.token)
        if kept:
            wake = kept.popleft()
            self.later(0.0, self.resume, task, ticket, wake)
            return
        self._awaiting[effect.token] = task, ticket
        self.later(effect.timeout_s, self._wake_over, effect.token, task, ticket)

    def _await_turn(self, task: Task, effect: AwaitTurn) -> None:
        ticket = task.ticket
        effect.turn.bell = lambda: self.later(0.0, self.resume, task, ticket, None)
        self.later(0.0 if effect.turn.is_called() else effect.timeout_s, self.resume, task, ticket, None)

    def _wake_over(self, token: str, task: Task, ticket: int) -> None:
        if task.ticket == ticket:
            self.resume(task, ticket, None)

    def hear(self, inbox: Inbox, message: bytes) -> None:
        """A message came through an inbox: `KIND TOKEN …`."""
        if self.paused:
            self._backlog.append(lambda: self.hear(inbox, message))
            return
        if not self.alive:
            return
        words = message.decode().split(" ")
        if self.world.trace is not None:
            self.world.note(self.name, f"hears {message.decode()}")
        if words[0] == Wake.YIELD:
            self.world.counted["told to yield"] += 1
            (self.keeper if words[1].endswith(KEPT) else self.lines).told(words[1])
            return
        if words[0] in (Wake.BREAK, Wake.WANT) and self.ears is not None:
            self.ears.told(words[1], Wake(words[0], text=" ".join(words[2:])))
            return
        self._wake(words[1], Wake(words[0], *map(int, words[2:])))

    def inbox_opened(self) -> None:
        """The connection of an inbox is there."""
        if self.ears is not None:
            self.ears.opened(self.local())

    def inbox_broke(self, inbox: Inbox) -> None:
        """The connection of an inbox ended, and this process notices."""
        if self.paused:
            self._backlog.append(lambda: self.inbox_broke(inbox))
            return
        if not self.alive or not inbox.up:
            return
        inbox.up = False
        if self.inboxes.get(inbox.server) is inbox:
            for token in list(self._listening):
                self._wake(token, Wake(Wake.ASK))
            if self.ears is not None:
                self.ears.deaf(self.local())
                self._arm(self.schedule.next_at())
            else:
                self.keeper.deaf()
                self.lines.deaf()

    def _wake(self, token: str, wake: Wake) -> None:
        kept = self._listening.get(token)
        if kept is None:
            return
        found = self._awaiting.pop(token, None)
        if found is not None and found[0].ticket == found[1] and found[0].waiting:
            self.resume(found[0], found[1], wake)
        else:
            kept.append(wake)

    # -- the fast path ----------------------------------------------------------------------------

    async def acquire(
        self,
        first: Call | None,
        start: Callable[[float | None, bool], Protocol[Grant | Busy]],
        timeout_s: float | None,
        ttl_ms: int,
    ) -> Grant | Busy:
        """As the drivers for users: by the `first` request alone, or by the protocol of `start(timeout_s, sent)`.

        Not where slots may move, nor where replicas have to acknowledge.
        """
        if first is None or first.sync is not None or self._many_masters or self.contention.expects(first.keys[0]):
            return await start(timeout_s, False)
        self.world.counted["fast path"] += 1
        if timeout_s is not None:
            first.request_timeout_s = within(first.request_timeout_s, timeout_s or self.settings.short_retry_s)
        asked_at = self.local()
        try:
            reply = await first
        except BaseException as error:
            return await replay(start(timeout_s, True), asked_at, None, error)
        grant = granted(reply, asked_at, self.local(), ttl_ms)
        if grant is not None:
            return grant
        self.contention.saw(first.keys[0])
        return await replay(start(timeout_s, True), asked_at, reply, None)

    async def release_later(self, hold: LeaseRecord, first: Call) -> None:
        """As the drivers for users, where the caller does not wait: in the background."""
        reply: Any = None
        try:
            reply = await first
        except RequestFailed as failure:
            await confirm(hold, None, failure)
        else:
            if not released(reply):
                await confirm(hold, reply, None)
        if reply == 0 and hold.state is not LeaseState.LOST:
            self.world.fail("untold loss", f"{hold.token} was not held any more at its release, and nothing told of it")
        self.world.counted["released without waiting"] += 1

    async def release(self, hold: LeaseRecord, first: Call | None) -> bool:
        """As the drivers for users. `first` as in `acquire`."""
        if hold.turn is not None and hold.hand_on(self.local()):
            return True
        if first is None or first.sync is not None or self._many_masters:
            return await hold.release()
        try:
            reply = await first
        except BaseException as error:
            return await replay(hold.release(), 0.0, None, error)
        held = released(reply)
        return await replay(hold.release(), 0.0, reply, None) if held is None else held

    # -- the agent --------------------------------------------------------------------------------

    def watch(self, hold: LeaseRecord) -> None:
        """Renew it from now on, and report its loss."""
        self._arm(self.schedule.add(hold, self.world.rng.random()))

    def unwatch(self, hold: LeaseRecord) -> None:
        self.schedule.remove(hold)

    def _arm(self, at: float | None) -> None:
        if at is not None and (self.agent_at is None or at < self.agent_at):
            self.agent_at = at
            self.later(at - self.local(), self._attend, at)

    def _attend(self, at: float) -> None:
        if self.paused:
            self._backlog.append(lambda: self._attend(at))
            return
        if not self.alive or self.agent_at != at:
            return
        self.world.steps += 1
        self.agent_at = None
        self._begin_renewals(self.schedule.due(self.local()))
        if self.ears is not None:
            self.ears.look(self.local())
        self._arm(self.schedule.next_at())

    def _begin_renewals(self, holds: list[LeaseRecord]) -> None:
        """As the drivers for users: the first requests of those that are due together leave together."""
        sent_at = self.local()
        renewals: list[_Renewal] = []
        for hold in holds:
            ttl_ms = hold.renewal_ttl_ms(sent_at)
            if not hold.renews or ttl_ms is None or not hold.alive:
                continue
            protocol = hold.renew(ttl_ms)
            try:
                renewals.append(_Renewal(hold, ttl_ms, sent_at, protocol, protocol.send(None)))
            except RequestFailed:
                self.schedule.failed(hold, sent_at, self.world.rng.random(), sent_at)
        for batch in batches([renewal.effect for renewal in renewals], self._many_masters):
            members = [renewals[position] for position in batch.members]
            if len(members) > 1:
                self.world.counted["renewed together"] += len(members)
                self.spawn(self._renew_together(batch, members), "renew many", background=True)
            else:
                self._renew_alone(members[0])
        for renewal in renewals:
            if not isinstance(renewal.effect, Call):
                self._renew_alone(renewal)

    async def _renew_together(self, batch: Batch, members: list[_Renewal]) -> None:
        sent_at = await Now()
        for renewal in members:
            renewal.sent_at = sent_at
        try:
            reply = await batch.call
        except RequestFailed as failure:
            reply = failure
        for renewal, answer in zip(members, batch.answers(reply), strict=True):
            self._renew_alone(renewal, answer)

    def _renew_alone(self, renewal: _Renewal, answer: Answer = None) -> None:
        self.spawn(self._renew(renewal, answer), f"renew {renewal.hold.name}", background=True)

    async def _renew(self, renewal: _Renewal, answer: Answer) -> None:
        hold, sent_at = renewal.hold, renewal.sent_at
        try:
            held = await _Rest(renewal, answer)
        except RequestFailed:
            now = await Now()
            self.schedule.failed(hold, now, await Random(), sent_at)
        else:
            now = await Now()
            good = self.schedule.answered(hold, held, renewal.ttl_ms, sent_at, now, await Random())
            if held and not good and hold.is_left_over:
                # The answer came after the end: what it extended is ours on the server, but no lease here has it.
                try:
                    await hold.release()
                except RequestFailed:
                    pass  # its ttl ends it
        self._arm(self.schedule.next_at())

    async def extend(self, hold: LeaseRecord, ttl_ms: int) -> None:
        """As `Lease.extend`. Raises `RequestFailed`."""
        asked_at = await Now()
        if hold.check_expired(asked_at):
            return
        order, at = self.schedule.extending(hold, ttl_ms, asked_at)
        self._arm(at)
        try:
            held = await hold.extension(order.asks_ms, order)
        except BaseException:
            self._arm(self.schedule.replan(hold, self.world.rng.random()))
            raise
        now = await Now()
        at = self.schedule.extended(hold, order, held, ttl_ms, asked_at, now, await Random())
        self._arm(at)
        if at is None and held and hold.is_left_over:
            await hold.release()  # extended on the server, but too late to be trusted

    # -- what happens to it -----------------------------------------------------------------------

    def pause(self) -> None:
        self.paused = True

    def unpause(self) -> None:
        """Go on; what came meanwhile comes now, in some order."""
        if not self.paused:
            return
        self.paused = False
        self.resumed_at = self.world.now
        waiting, self._backlog = self._backlog, []
        if self.world.rng.random() < 0.5:
            self.world.rng.shuffle(waiting)
        for act in waiting:
            act()

    def close(self) -> None:
        """As `Client.close`: who waits is told first, then what is held is given back; a moment later it ends."""
        if self.closing or not self.alive:
            return
        self.closing = True
        for task in list(self.tasks):
            if not task.background:
                self.cancel(task)
        self.later(CLOSE_PATIENCE_S, self._closed)

    def _closed(self) -> None:
        if self.paused:
            self._backlog.append(self._closed)
        elif self.alive:
            self.world.closed(self, settled=not any(task.background for task in self.tasks))

    def crash(self) -> None:
        self.paused = False
        self.end()

    def end(self) -> None:
        """Nothing more happens here."""
        self.alive = False
        self._backlog.clear()
        tasks, self.tasks = self.tasks, {}
        for task in tasks:
            task.ticket += 1
            abandon(task.coroutine)

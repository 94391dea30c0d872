"""A client process of the simulation: the agent that users run, with a clock, a network and faults that a seed decides.

Laws: nothing happens in a process that is paused or dead; a cancellation is thrown into a protocol at an effect.

Theory: `Process` is what the engine is to the agent of a real client. Whatever comes to it from outside, an answer, a
message or the end of a time, comes by `_enter`, which keeps it back while the process is paused. Requests know their
servers by number.
"""

from __future__ import annotations

import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from holdfast._core.agent.agent import Agent
from holdfast._core.agent.runner import SUSPENDED, OnEnd, Task
from holdfast._core.effects import Call, Command, Listen, Protocol, Reply, Sleep, Spawn
from holdfast._core.failure import RequestFailed
from holdfast._core.keys import sharded_inbox
from holdfast._core.record import LeaseRecord, LeaseState
from holdfast._core.settings import Settings
from holdfast._core.tenure import Note
from holdfast._core.tokens import client_id_of, make_token
from sim.clock import Clock

__all__ = ["AnswerTo", "Cancelled", "Inbox", "Process", "Surroundings", "Task", "Work"]

AnswerTo = Callable[[Any, RequestFailed | None], None]

#: Timers fire a little late, never early: also against rounding between two clocks.
LATE_S = 1e-8


class Cancelled(BaseException):
    """Thrown into a task at an effect, as asyncio's CancelledError or a KeyboardInterrupt."""


class Work(Sleep):
    """A pause of the program, not of a protocol: it goes on when the client is closed."""

    __slots__ = ()


class Inbox:
    """One subscription: a connection from a process to the server with this number, or its sharded channel there."""

    __slots__ = ("channel", "deaf", "last_at", "place", "process", "server", "up")

    def __init__(self, process: Process, place: int | tuple[int, str]) -> None:
        self.process = process
        self.place = place
        self.server, channel = (place, process.channel) if isinstance(place, int) else place
        self.channel = channel.encode()
        #: The process believes in it.
        self.up = False
        #: Half-open: the server counts it, and nothing comes through.
        self.deaf = False
        self.last_at = 0.0


class Surroundings(Clock, ABC):
    """What a process asks of its world. It knows servers by their numbers only."""

    #: When a process last learned that it had asked a former master.
    redirected_at = -1.0

    #: What the names of inboxes begin with.
    inboxes: str

    @abstractmethod
    def master_number(self) -> int:
        """Return the number of the current master."""

    @abstractmethod
    def home_number(self, key: str) -> int:
        """The server that a key lies on."""

    @abstractmethod
    def request(self, process: Process, server: int, call: Call | Command, answer: AnswerTo) -> None:
        """Send a request on its way."""

    @abstractmethod
    def subscribe(self, process: Process, place: int | tuple[int, str], answer: AnswerTo) -> None:
        """Open an inbox (in place of a broken one)."""

    @abstractmethod
    def closed(self, process: Process, *, settled: bool) -> None:
        """A client has been closed. `settled`: nothing that it had to give back is still under way."""


class _Watched:
    """A protocol of a process. Forwards, counts effects, and throws the cancellation that `doom` has announced."""

    __slots__ = ("_inner", "_process", "doom", "task")

    def __init__(self, process: Process, inner: Protocol[Any]) -> None:
        self._process = process
        self._inner = inner
        self.task: Task | None = None
        #: Effects until a cancellation is thrown; 0: none is.
        self.doom = 0

    @property
    def inner(self) -> Protocol[Any]:
        return self._inner

    def send(self, value: Any) -> Any:
        return self._seen(self._inner.send(value))

    def throw(self, error: BaseException) -> Any:
        return self._seen(self._inner.throw(error))

    def close(self) -> None:
        self._inner.close()

    def _seen(self, effect: Any) -> Any:
        process = self._process
        world = process.world
        world.effects += 1
        kind = type(effect)
        if not self.doom or kind is Spawn:
            return effect
        self.doom -= 1
        if self.doom:
            return effect
        task = self.task
        assert task is not None
        if world.rng.random() < 0.5:
            world.cancelled += 1
            if world.trace is not None:
                world.note(process.name, f"{task.label}: cancelled before {kind.__name__}")
            return self.throw(Cancelled())
        process.later(world.rng.random() * 4 * world.options.latency_s, process.cancel_at, task, task.ticket)
        return effect


class _Asked:
    """A request under way: answered once, by a reply, an error, or the end of its time."""

    __slots__ = ("_answer", "_process", "_server", "done", "session")

    def __init__(self, process: Process, server: int, session: str | None, answer: AnswerTo) -> None:
        self._process = process
        self._server = server
        self._answer = answer
        self.session = session
        self.done = False

    def comes(self, value: Any, error: RequestFailed | None) -> None:
        """Take an answer from the network."""
        self._process.enter(self.end, value, error)

    def silent(self) -> None:
        """End the request without an answer in time."""
        self.end(None, self._process.silence(self._server))

    def end(self, value: Any, error: RequestFailed | None) -> None:
        if self.done:
            return
        self.done = True
        if error is not None:
            self._process.heard_trouble(self._server, error)
            if self.session is not None:
                self._process.dropped.add(self.session)
        self._answer(value, error)


class Process(Agent):
    """One client process: its clock, its subscriptions, and what happens to it."""

    def __init__(self, world: Surroundings, number: int, settings: Settings) -> None:
        self.world = world
        self._after = world.after
        self.number = number
        self.id = client_id_of(f"{number:08x}" + f"{world.rng.getrandbits(64):016x}", world.options.cluster)
        self.name = f"p{number}"
        self.rate = world.options.client_rate(world.rng)
        self.offset = world.rng.uniform(0, 1e6)
        self.alive = True
        self.paused = False
        #: When the last pause ended, virtual s.
        self.resumed_at = -1.0
        self.notes: dict[object, Note] = {}
        #: By place: what the network knows of an inbox.
        self.subscriptions: dict[object, Inbox] = {}
        #: The master as this process knows it.
        self.master = world.master_number()
        #: Sessions of commands whose connection is given up.
        self.dropped: set[str | None] = set()
        #: When these tokens were released without waiting for the answer, virtual s.
        self.released_later: dict[str, float] = {}
        #: The task that runs now, or ran last.
        self.running: Task | None = None
        self._sequence = 0
        self._backlog: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        cluster = world.options.cluster
        super().__init__(self.id, world.inboxes, settings, nullcontext(), one_place=not cluster, moves=cluster)
        self._perform[Work] = self._work

    # -- clock ------------------------------------------------------------------------------------

    def now(self) -> float:
        return self.offset + self.world.now * self.rate

    def random(self) -> float:
        return self.world.rng.random()

    def world_time(self, local: float) -> float:
        """The virtual time at which its clock shows `local`."""
        return (local - self.offset) / self.rate

    def soon(self, act: Callable[..., None], *args: Any) -> None:
        self._after(0.0, self.enter, act, *args)

    def later(self, seconds: float, act: Callable[..., None], *args: Any) -> None:
        self._after((seconds if seconds > 0 else 0.0) / self.rate + LATE_S, self.enter, act, *args)

    def forget(self, timer: Any) -> None:
        """Timers find that they are late by themselves."""

    def enter(self, act: Callable[..., None], *args: Any) -> None:
        """Act on what comes from outside: at once, after the pause, or not at all."""
        if self.paused:
            self._backlog.append((act, args))
        elif self.alive:
            act(*args)

    # -- tasks ------------------------------------------------------------------------------------

    def token(self) -> str:
        self._sequence += 1
        return make_token(self.id, 1, self._sequence)

    def begin(self, protocol: Protocol[Any], label: str, on_end: OnEnd | None = None) -> Task:
        """Run it for a caller, from the next moment on: many are begun before the world runs."""
        return self._add(Task(protocol, label, False, on_end))

    def _add(self, task: Task) -> Task:
        watched = _Watched(self, task.protocol)
        watched.task = task
        task.protocol = watched  # type: ignore[assignment]
        return super()._add(task)

    def drive(self, task: Task, value: Any, error: BaseException | None) -> None:
        self.world.steps += 1
        self.running = task
        super().drive(task, value, error)

    def is_for_caller(self, task: Task) -> bool:
        # A worker is a program: what it does between its operations is not the client's.
        return not task.background and type(task.effect) is not Work

    def unhandled(self, task: Task, error: BaseException) -> None:
        if isinstance(error, RequestFailed) and error.kind == "closed" and not task.background and self.closing:
            return  # the program of a client that was closed
        if not isinstance(error, Cancelled):
            where = traceback.extract_tb(error.__traceback__)[-1]
            self.world.fail("unhandled", f"{task.label} of {self.name} let {error!r} out, from {where.name}")

    def doom(self, task: Task, effects: int) -> None:
        """Have it cancelled at that effect from now on."""
        watched: Any = task.protocol
        watched.doom = effects

    def is_doomed(self, task: Task) -> bool:
        watched: Any = task.protocol
        return bool(watched.doom)

    def cancel_at(self, task: Task, ticket: int) -> None:
        """Cancel it, if it still waits for the same."""
        if task.ticket == ticket:
            self.cancel(task)

    def cancel(self, task: Task) -> None:
        """Throw the cancellation into the task where it is."""
        if self.paused:
            self._backlog.append((self.cancel, (task,)))
        elif self.alive and task.effect is not None:
            self.world.cancelled += 1
            if self.world.trace is not None:
                self.world.note(self.name, f"{task.label}: cancelled at {type(task.effect).__name__}")
            self.interrupt(task, Cancelled())

    def _work(self, task: Task, effect: Work) -> Any:
        self.later(effect.seconds, self.resume, task, task.ticket, None)
        return SUSPENDED

    # -- requests ---------------------------------------------------------------------------------

    def place_of(self, key: str) -> int | tuple[int, str]:
        server = self._server_of(key, None)
        return (server, sharded_inbox(self.world.inboxes, key, self.id)) if self.world.options.cluster else server

    def _server_of(self, key: str, node: int | None) -> int:
        if node is not None:
            return node
        return self.world.home_number(key) if self.world.options.cluster else self.master

    def request(
        self, effect: Call | Command, patience_s: float, answer: Callable[[Any, RequestFailed | None], None]
    ) -> None:
        if type(effect) is Call:
            server, session = self._server_of(effect.keys[0], effect.node), None
            if effect.script == "renew_many":
                self.world.counted["renewed together"] += 1
        else:
            assert isinstance(effect, Command)
            server, session = self._server_of(effect.key or "", effect.node), effect.session
        asked = _Asked(self, server, session, answer)
        self.world.request(self, server, effect, asked.comes)
        self.later(patience_s, asked.silent)

    def heard_trouble(self, server: int, failure: RequestFailed) -> None:
        """Ask who is master now, as a Sentinel client does when it connects again."""
        if server == self.master and failure.kind in ("refused", "broken", "silent", "READONLY"):
            if self.master != self.world.master_number():
                self.world.redirected_at = self.world.now
            self.master = self.world.master_number()

    def silence(self, place: Any) -> RequestFailed:
        server = place if isinstance(place, int) else place[0]
        return RequestFailed("silent", "no answer in time", f"s{server}", maybe_executed=True, transient=True)

    def subscribe(self, place: Any, effect: Listen, answer: Callable[[RequestFailed | None], None]) -> None:
        def opened(_: Any, error: RequestFailed | None) -> None:
            inbox = self.subscriptions.get(place)
            if error is None and (inbox is None or not inbox.up):
                error = RequestFailed("broken", "connection reset", f"s{place}", maybe_executed=False, transient=True)
            answer(error)

        asked = _Asked(self, place if isinstance(place, int) else place[0], None, opened)
        self.world.subscribe(self, place, asked.comes)
        self.later(effect.request_timeout_s, asked.silent)

    # -- messages ---------------------------------------------------------------------------------

    def hear(self, inbox: Inbox, message: bytes) -> None:
        """A message came through an inbox."""
        if self.world.trace is not None and self.alive and not self.paused:
            self.world.note(self.name, f"hears {message.decode()}")
        if message.startswith(b"yield"):
            self.world.counted["told to yield"] += 1
        self.enter(self.heard, [b"message", inbox.channel, message])

    def subscription_broke(self, inbox: Inbox) -> None:
        """The connection of an inbox ended, and this process notices."""
        self.enter(self._broke, inbox)

    def _broke(self, inbox: Inbox) -> None:
        if inbox.up:
            inbox.up = False
            if self.subscriptions.get(inbox.place) is inbox:
                self.inbox_broke(inbox.place)

    def has_told(self, record: LeaseRecord) -> bool:
        return True  # a worker works on no lease that is lost

    # -- acquiring and releasing ------------------------------------------------------------------

    def release_later(self, record: LeaseRecord, first: Call) -> None:
        """As the APIs do it."""
        self.world.counted["released without waiting"] += 1
        if record.turn is not None and record.hand_on(self.now()):
            return
        answered = self.releasing.sent(record, first.keys[0])
        under_way = self.releasing.latest[first.keys[0]]
        self.released_later[record.token] = self.world.now

        def told(reply: Reply, failure: RequestFailed | None) -> None:
            under_way.bells.append(lambda: self._look_at_release(record, reply))
            answered(reply, failure)

        self.request(first, first.request_timeout_s, told)

    def _look_at_release(self, record: LeaseRecord, reply: Reply) -> None:
        if reply == 0 and record.state is not LeaseState.LOST:
            self.world.fail(
                "untold loss", f"{record.token} was not held any more at its release, and nothing told of it"
            )

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
        for act, args in waiting:
            self.enter(act, *args)

    def shut(self) -> None:
        """Do what `Client.close` does."""
        if not self.closing and self.alive:
            self.close(lambda settled: self.soon(self._closed, settled))

    def _closed(self, settled: bool) -> None:
        self.world.closed(self, settled=settled)

    def crash(self) -> None:
        self.paused = False
        self.end()

    def end(self) -> None:
        """End the process: nothing more happens here."""
        self.alive = False
        self._backlog.clear()
        for task in self.tasks:
            watched: Any = task.protocol
            task.protocol = watched.inner
        self.abandon()

"""A small world in which whatever could happen next is a choice: `explore` makes all of them, in every order.

Laws: what a choice does depends on the choices before it and on nothing else; a message is under way until a choice
delivers it or the one fault takes it; no timer fires early.

Theory. A state is where each process stands, what the server holds, and which messages are under way. From it, these
choices lead on:

- a message arrives: any request at the server, any answer at its asker (each travels for itself, as over a pool of
  connections; one connection for all would allow fewer orders), the oldest push of any inbox at its process;
- time moves to the next timer of a process (its patience, its sleep, its renewal, its deadline), or to the end of a
  key on the server. Timers of different processes that are due together fire in any order. While a message is
  under way, this is a *hurry*: the message takes longer than that timer. Their number is limited;
- the fault, once: a message is lost; or takes longer than anything, and arrives whenever a later choice says so;
  or its connection is reset; a process crashes, its inbox being missed by the server whenever a later choice says
  so; the task is cancelled where it is; a process is paused, until a later choice; its inbox breaks; the server
  restarts with its data; a lease is broken, and released on behalf of its holder whenever a later choice says so; a
  holder is asked for it.

What a process does between two such events is one step: no one sees its inside.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from holdfast._core.breaking import Held
from holdfast._core.effects import Call, Command, Wake
from holdfast._core.failure import RequestFailed
from holdfast._core.tokens import client_of
from sim.check import Belief, Ledger
from sim.driver import AnswerTo, Cancelled, Inbox, Process, Task
from sim.network import Network, Node, Request, shown
from sim.options import Options
from sim.server import ZSet
from sim.sessions import Sessions, Thing
from sim.world import Primitive, World

__all__ = ["FAULTS", "Move", "SmallWorld"]

T = TypeVar("T")

#: What may go wrong, once in a world.
FAULTS = ("lost", "late", "reset", "crash", "cancel", "pause", "inbox", "restart", "break", "want")

#: Timers this close together are due at the same time, s. Less than what a loss may be told late by.
_TIE_S = 0.0005
#: What is done after no more than this happens at once, s.
_AT_ONCE_S = 1e-6
#: Longer than the allowance between a deadline and the end on the server, s.
_MOMENT_S = 0.1
#: Ends of keys that are further away than this make no difference here, s.
_SOON_S = 10.0
#: A process that has not ended by then never does, virtual s.
_HORIZON_S = 120.0


class _Middle(random.Random):
    """No randomness: the middle of everything, since jitter is not what is explored here."""

    def random(self) -> float:
        return 0.5

    def uniform(self, a: float, b: float) -> float:
        return (a + b) / 2

    def expovariate(self, lambd: float = 1.0) -> float:
        return 1 / lambd

    def choice(self, seq: Sequence[T]) -> T:  # type: ignore[override]
        return seq[len(seq) // 2]

    def shuffle(self, x: Any) -> None:
        pass


class Move:
    """One thing that could happen next. `who` is the process that it touches; None: none, or more than one."""

    __slots__ = ("act", "args", "what", "who")

    def __init__(self, what: str, who: Process | None, act: Callable[..., None], *args: Any) -> None:
        self.what = what
        self.who = who
        self.act = act
        self.args = args

    def __str__(self) -> str:
        about = next((arg for arg in self.args if isinstance(arg, (_Message, _Timer, Task))), None)
        label = f" {about.label}" if about is not None else ""
        return f"{self.what}{label}{f' ({self.who.name})' if self.who is not None else ''}"


class _Message:
    """Something under way. `asker` gets what is said of it when its connection is reset."""

    __slots__ = ("act", "args", "asker", "inbox", "kind", "label", "late", "to", "whose")

    def __init__(
        self,
        kind: str,
        label: str,
        whose: Process,
        to: Process | None,
        act: Callable[..., None],
        *args: Any,
        asker: AnswerTo | None = None,
        inbox: Inbox | None = None,
    ) -> None:
        self.kind = kind
        #: Says all that is in it.
        self.label = f"{kind} {label}"
        self.whose = whose
        #: None: the server.
        self.to = to
        self.act = act
        self.args = args
        self.asker = asker
        #: It comes after all that came through the same inbox.
        self.inbox = inbox
        self.late = False


class _Timer:
    """Something that a process does at a time."""

    __slots__ = ("act", "args", "at", "number")

    def __init__(self, at: float, number: int, act: Callable[..., None], args: tuple[Any, ...]) -> None:
        self.at = at
        self.number = number
        self.act = act
        self.args = args

    @property
    def label(self) -> str:
        act = self.args[0] if self.act.__name__ == "enter" else self.act
        return f"{act.__name__} {self.number} at {self.at:.6f}"

    def stale(self, process: Process) -> bool:
        """True if what the timer would end has ended. `args`: what the process is to do, and with what."""
        act, *args = self.args
        for at, arg in enumerate(args):
            if type(arg) is Task:
                return bool(arg.ticket != args[at + 1])
        if act.__name__ == "silent":
            return bool(act.__self__.done)
        return act.__name__ == "_attend" and bool(args[0] != process.attends_at)


class _Request(Request):
    """Knows which of its process's requests it is."""

    __slots__ = ("number",)

    def __init__(self, process: Process, call: Call | Command, answer: AnswerTo, sent_at: float, number: int) -> None:
        super().__init__(process, call, answer, sent_at)
        self.number = number


class _Network(Network):
    """Whatever is sent stays under way until a choice delivers it."""

    world: SmallWorld

    def request(self, process: Process, node: Node, call: Call | Command, answer: AnswerTo) -> None:
        world = self.world
        seat = world.seat(process)
        seat.requests += 1
        request = _Request(process, call, answer, world.now, seat.requests)
        label = f"{process.name}#{seat.requests} {shown(call)}"
        world.send(_Message("request", label, process, None, node.receive, request, asker=answer))

    def reply(self, node: Node, request: Request, value: Any, error: RequestFailed | None) -> None:
        assert isinstance(request, _Request)
        label = f"to {request.process.name}#{request.number}: {error or value!r}"
        process, answer = request.process, request.answer
        self.world.send(_Message("reply", label, process, process, answer, value, error, asker=answer))

    def subscribe(self, inbox: Inbox, answer: AnswerTo) -> None:
        world, process = self.world, inbox.process
        seat = world.seat(process)
        seat.requests += 1
        label = f"{process.name}#{seat.requests} subscribe"
        world.send(_Message("request", label, process, None, self._subscribed, inbox, answer, asker=answer))

    def _subscribed(self, inbox: Inbox, answer: AnswerTo) -> None:
        if inbox.process.alive:
            self.world.nodes[inbox.server].subscribers.setdefault(inbox.channel, {})[inbox] = None
            self._tell(inbox, "confirmed", self._confirmed, inbox, answer, asker=answer)

    def broke(self, inbox: Inbox) -> None:
        self.close(inbox)
        self.world.forget_pushes(inbox)
        self._tell(inbox, "broken", inbox.process.subscription_broke, inbox)

    def push(self, node: Node, inbox: Inbox, message: bytes) -> None:
        self._tell(inbox, message.decode(), inbox.process.hear, inbox, message)

    def _tell(
        self, inbox: Inbox, label: str, act: Callable[..., None], *args: Any, asker: AnswerTo | None = None
    ) -> None:
        process = inbox.process
        inbox.last_at += 1
        if process.alive:
            text = f"{inbox.last_at:.0f} to {process.name}: {label}"
            self.world.send(_Message("push", text, process, process, act, *args, asker=asker, inbox=inbox))


class _Seat:
    """What the world keeps of a process: its timers, and all that has ever reached it."""

    __slots__ = ("fresh", "history", "known", "next", "number", "requests", "timers")

    def __init__(self) -> None:
        self.number = 0
        self.requests = 0
        self.timers: list[_Timer] = []
        #: A process is what has reached it and when: its state needs no other description.
        self.history = hashlib.blake2b(digest_size=16)
        #: The timer that fires next; to be looked for again when something has reached the process.
        self.next: _Timer | None = None
        self.known = False
        #: The last choice touched it.
        self.fresh = True


class SmallWorld(World):
    """`clients` processes, each of which acquires that many times; `patient`: without a limit on their waiting."""

    def __init__(
        self,
        make: Callable[[World], Primitive],
        *,
        clients: int,
        acquisitions: int,
        hurries: int,
        faults: Iterable[str],
        patient: bool = True,
        trace: bool = False,
    ) -> None:
        self.hurries = hurries
        #: What may still go wrong.
        self.faults = frozenset(faults)
        self.messages: list[_Message] = []
        #: The messages that the last choice sent.
        self.sent: list[_Message] = []
        self.clock_moved = True
        #: What processes have heard that their leases are to know: the kind of message, and the token.
        self.heard: list[tuple[str, str]] = []
        #: Time has overtaken no message: a request that comes late may do what no one waits for any more.
        self.prompt = True
        self._acquisitions = acquisitions
        self._seats: dict[Process, _Seat] = {}
        self._at_once: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._checks: list[_Timer] = []
        options = Options(
            seed=clients,
            mode="calm",
            processes=clients,
            ttl_s=(2.0, 2.0),
            work_s=1.0,
            patient=0.9 if patient else 0.0,
            claim_ms=500,
            break_s=1.0 if "break" in self.faults else 0.0,
        )
        #: Processes that nothing has come of yet, and that are just like each other.
        self._alike: list[Process] = []
        super().__init__(options, [make], trace=trace)
        primitive = self.primitives[0]
        if not isinstance(primitive, Sessions):
            raise TypeError(f"{primitive.name} has no sessions, which small worlds are made of")
        self.use: Sessions[Any] = primitive
        if not self.use.differ:
            self._alike = list(self.processes)
        self.network = _Network(self)
        self.rng = _Middle()
        self.phase = "calm"
        self.calm_since = 0.0
        self.run_at_once()

    # -- what the world is made of ----------------------------------------------------------------

    def add_process(self) -> Process:
        process = Process(self, len(self.processes) + 1, self.settings)
        self._seats[process] = _Seat()
        self.processes.append(process)
        process.begin(self._life(process), "client")
        return process

    async def _life(self, process: Process) -> None:
        for _ in range(self._acquisitions):
            try:
                await self.use.once(process)
            except Cancelled:
                continue

    def seat(self, process: Process) -> _Seat:
        return self._seats[process]

    def after(self, seconds: float, act: Callable[..., None], *args: Any) -> None:
        process = getattr(act, "__self__", None)
        if not isinstance(process, Process):
            self._checks.append(_Timer(self.now + seconds, len(self._checks), act, args))
        elif seconds <= _AT_ONCE_S:
            self._at_once.append((act, args))
        else:
            seat = self._seats[process]
            seat.number += 1
            seat.known = False
            seat.timers.append(_Timer(self.now + seconds, seat.number, act, args))

    def send(self, message: _Message) -> None:
        self.messages.append(message)
        self.sent.append(message)

    def forget_pushes(self, inbox: Inbox) -> None:
        """Drop what was under way through an inbox that broke."""
        self.messages = [message for message in self.messages if message.inbox is not inbox]

    def run_at_once(self) -> None:
        """Run what follows from the last choice, without any other in between."""
        while self._at_once and self.violation is None:
            act, args = self._at_once.pop(0)
            act(*args)
        if not self.messages and self.prompt:
            self._look_for_orphans()

    def _look_for_orphans(self) -> None:
        """Check that processes which are done, and not busy giving back, have left nothing behind."""
        idle = {process.id for process in self.processes if process.alive and not process.tasks}
        if not idle:
            return
        for thing in self.use.things:
            for token in (*thing.held(), *thing.queued()):
                # Of a lease that was lost, the server's time is over a moment later.
                since = thing.ledger.ended.get(token, self.now)
                if self.now - since > _MOMENT_S and token.decode().partition(":")[0] in idle:
                    self.fail("orphan", f"{token.decode()} has ended, is on the server, and no one gives it back")

    # -- the choices ------------------------------------------------------------------------------

    def moves(self) -> Iterator[Move]:
        """Yield all that could happen next; nothing when all is over."""
        yield from self._arrivals()
        yield from self._times()
        if self.faults and (self.messages or any(process.tasks for process in self.processes)):
            yield from self._faults()

    def make(self, move: Move) -> None:
        """Make a choice happen."""
        self.steps += 1
        if self.trace is not None:
            self.note("choice", str(move))
        self.sent = []
        self.clock_moved = False
        for seat in self._seats.values():
            seat.fresh = False
        move.act(*move.args)
        self.run_at_once()
        self._look_for_deaf()

    def _reach(self, process: Process, what: str) -> None:
        """Something reaches a process (at the time that it is then)."""
        seat = self._seats[process]
        seat.history.update(f"{what}@{self.now:.7f};".encode())
        seat.fresh = True
        seat.known = False
        self._touch(process)

    def _arrivals(self) -> Iterator[Move]:
        """Messages that may arrive."""
        inboxes = set()
        for message in self.messages:
            if message.inbox is not None:
                if message.inbox in inboxes:
                    continue
                inboxes.add(message.inbox)
            if self._behind(message.whose) or (message.to is not None and message.to.paused):
                continue
            yield Move("late arrives:" if message.late else "arrives:", message.to, self._arrive, message)

    def _behind(self, process: Process) -> bool:
        """True if nothing has come of this process yet, nor of one before it, which is just like it."""
        return process in self._alike and process is not self._alike[0]

    def _touch(self, process: Process) -> None:
        if process in self._alike:
            self._alike.remove(process)

    def _arrive(self, message: _Message) -> None:
        self.messages.remove(message)
        if message.late:
            self._disturbed()
        if message.to is None:
            self._touch(message.whose)
        elif message.to.alive:
            self._reach(message.to, message.label)
        else:
            return
        if message.inbox is not None and type(message.args[-1]) is bytes:
            kind, token, *_ = message.args[-1].decode().split(" ")
            if kind in (Wake.BREAK, Wake.WANT):
                self.heard.append((kind, token))
        message.act(*message.args)

    def _look_for_deaf(self) -> None:
        """Check that each lease knows what was heard of it, before or after it was granted."""
        for kind, token in self.heard:
            for thing in self.use.things:
                belief = thing.ledger.beliefs.get(token.encode())
                if belief is None or belief.process.paused or not belief.lives():
                    continue
                if kind == Wake.BREAK or belief.record.wanted_by is None:
                    self.fail("deaf", f"{belief} was told of its {kind}, and goes on as before")

    def _times(self) -> Iterator[Move]:
        """Yield the moments to which time may move."""
        now = self.now
        due: list[tuple[Process | None, _Timer]] = []
        paused = False
        for process, seat in self._seats.items():
            if process.paused:
                paused = True
            elif process.alive:
                timer = seat.next if seat.known else self._next(process, seat)
                if timer is not None:
                    due.append((process, timer))
        if self.messages or paused:
            ends = self.master.server.expires.values()
            soon = [at for at in map(self.master.until, (end + 1 for end in ends)) if now < at < now + _SOON_S]
            if soon:
                due.append((None, _Timer(min(soon) + _AT_ONCE_S, 0, self._end_of_key, ())))
        if not due:
            return
        limit = max(now, min(timer.at for _, timer in due)) + _TIE_S
        under_way = any(not message.late and not (message.to and message.to.paused) for message in self.messages)
        for who, timer in due:
            if timer.at <= limit and not (who is not None and self._behind(who)):
                hurry = under_way and timer.at > now + _TIE_S
                if not hurry or self.hurries:
                    yield Move("hurry:" if hurry else "time:", who, self._pass, who, timer, hurry)

    def _next(self, process: Process, seat: _Seat) -> _Timer | None:
        if not process.schedule:
            process.attends_at = None  # it would find nothing to do
        seat.timers = [timer for timer in seat.timers if not timer.stale(process)]
        seat.next = min(seat.timers, key=lambda timer: (timer.at, timer.number), default=None)
        seat.known = True
        return seat.next

    def _end_of_key(self) -> None:
        """Do nothing: no one notices."""

    def _pass(self, who: Process | None, timer: _Timer, hurry: bool) -> None:
        if hurry:
            self.hurries -= 1
            self.prompt = False
            self._disturbed()
        if timer.at > self.now + _TIE_S:
            self.clock_moved = True
        self._move_to(max(self.now, timer.at))
        if who is not None:
            self._reach(who, timer.label)
            self._seats[who].timers.remove(timer)
        timer.act(*timer.args)

    def _move_to(self, at: float) -> None:
        """Time passes, and what was to be looked at meanwhile is."""
        while self._checks and self.violation is None:
            check = min(self._checks, key=lambda timer: timer.at)
            if check.at > at:
                break
            self._checks.remove(check)
            self.now = max(self.now, check.at)
            check.act(*check.args)
        self.now = at

    def _disturbed(self) -> None:
        """Demand nothing that is promised for calm times alone, until waiting must be over."""
        self.calm_since = self.now
        if self.options.mode == "calm":
            self.options = replace(self.options, mode="ordinary")

    # -- the fault --------------------------------------------------------------------------------

    def _faults(self) -> Iterator[Move]:
        """Yield the faults that may come here; see `explore` for why they need not come elsewhere."""
        kinds = self.faults
        for message in self.sent:
            if message not in self.messages or message.kind == "notice" or self._behind(message.whose):
                continue
            if "lost" in kinds:
                yield Move("LOST:", None, self._lose, message)
            if "late" in kinds and message.inbox is None:
                yield Move("LATE:", None, self._delay, message)
            if "reset" in kinds and message.inbox is None and message.asker is not None:
                yield Move("RESET:", None, self._reset, message)
        for process, seat in self._seats.items():
            if not process.alive or not process.tasks or self._behind(process):
                continue
            if seat.fresh:
                if "crash" in kinds:
                    yield Move("CRASH:", process, self._crash, process)
                if "pause" in kinds:
                    yield Move("PAUSE:", process, self._pause, process)
            if "cancel" in kinds and (seat.fresh or self.clock_moved):
                for task in process.tasks:
                    if not task.background and task.effect is not None:
                        yield Move("CANCEL:", process, self._cancel, process, task)
            if "inbox" in kinds:
                for inbox in process.subscriptions.values():
                    if inbox.up:
                        yield Move("INBOX BREAKS:", process, self._break, inbox)
        if "restart" in kinds:
            yield Move("RESTART:", None, self._restart)
        for kind in kinds & {Wake.BREAK, Wake.WANT} if self.use.kind else ():
            for thing in self.use.things:
                for token in thing.held():
                    yield Move(f"{kind.upper()}:", None, self._say, kind, thing, token.decode())

    def _spent(self, what: str) -> None:
        self.faults = frozenset()
        self.counted[what] += 1
        self._disturbed()

    def _lose(self, message: _Message) -> None:
        self._spent("lost")
        self._touch(message.whose)
        self.messages.remove(message)

    def _delay(self, message: _Message) -> None:
        self._spent("late")
        self.prompt = False
        self._touch(message.whose)
        message.late = True

    def _reset(self, message: _Message) -> None:
        self._spent("reset")
        self._touch(message.whose)
        self.messages.remove(message)
        self._notice(message)

    def _notice(self, message: _Message) -> None:
        """Tell the asker of a message that its connection is no more."""
        if message.asker is not None and message.whose.alive:
            error = RequestFailed("broken", "connection reset", "s0", maybe_executed=True, transient=True)
            self.send(
                _Message("notice", f"of {message.label}", message.whose, message.whose, message.asker, None, error)
            )

    def _crash(self, process: Process) -> None:
        self._spent("crash")
        self._reach(process, "crash")
        process.crash()
        for primitive in self.primitives:
            primitive.crashed(process)
        self.messages = [message for message in self.messages if message.to is not process]
        for inboxes in list(self.master.subscribers.values()):
            for inbox in inboxes:
                if inbox.process is process:
                    gone = _Message("end", f"of {process.name}", process, None, self.network.close, inbox)
                    gone.late = True
                    self.send(gone)

    def _cancel(self, process: Process, task: Task) -> None:
        self._spent("cancel")
        self._reach(process, f"cancel {task.label}")
        process.cancel(task)

    def _pause(self, process: Process) -> None:
        self._spent("pause")
        self._reach(process, "pause")
        process.pause()
        self.send(_Message("signal", f"to {process.name}", process, None, self._unpause, process))
        self.messages[-1].late = True

    def _unpause(self, process: Process) -> None:
        self._reach(process, "unpaused")
        process.unpause()

    def _break(self, inbox: Inbox) -> None:
        self._spent("inbox")
        self.network.broke(inbox)

    def _restart(self) -> None:
        self._spent("restart")
        node = self.master
        messages, self.messages = self.messages, []
        for message in messages:
            self._notice(message)
        node.stop()
        node.start(empty=False)

    def _say(self, kind: str, thing: Thing, token: str) -> None:
        """Someone breaks what that token holds, or asks for it."""
        self._spent(kind)
        holder = next(process for process in self.processes if process.id == client_of(token))
        self._touch(holder)
        held = Held(self.use.kind, thing.keys, token)
        self._run(holder, held.tell(kind, "p: because", self.settings))
        if kind == Wake.BREAK:
            thing.shown.add(token.encode())
            undo = held.turn(self.settings).undo(self.settings.tombstone_ms, self.settings.request_timeout_s)
            self.send(_Message("request", f"of the one that breaks {token}", holder, None, self._run, holder, undo))
            self.messages[-1].late = True

    def _run(self, holder: Process, call: Call) -> None:
        """A request of someone who is no process here."""
        node = self.master
        value = node.server.script(call.script, call.keys, call.args)
        if node.server.touched:
            node.changed()
        self.executed(node, Request(holder, call, lambda *_: None, self.now), value, None)

    # -- the end ----------------------------------------------------------------------------------

    def finish(self) -> None:
        """Check the end: all must have come to an end, and leave nothing behind."""
        if self.violation is None:
            self.stuck()
        if self.violation is None:
            self._move_to(self.now + self.options.settle_s())
        if self.violation is None:
            for primitive in self.primitives:
                primitive.settled()

    def late(self) -> bool:
        """True if everyone should have come to an end long ago."""
        if self.now > _HORIZON_S:
            self.stuck()
            return True
        return False

    def close(self) -> None:
        """End all processes: no one will go on with this world."""
        for process in self.processes:
            process.end()

    # -- its state --------------------------------------------------------------------------------

    def key(self) -> bytes:
        """The state: worlds with the same key have the same future."""
        node = self.master
        server = node.server
        now_ms = node.wall_ms()
        data = sorted(
            (key, sorted(value.scores.items()) if type(value) is ZSet else value, server.expires.get(key))
            for key, value in server.data.items()
            if server.expires.get(key, now_ms) >= now_ms
        )
        subscribed = sorted((inbox.process.number, inbox.up) for all_ in node.subscribers.values() for inbox in all_)
        faults = bool(self.faults)
        seats = [
            (seat.history.digest(), process.alive, process.paused, process in self._alike, seat.fresh and faults)
            for process, seat in self._seats.items()
        ]
        fresh = [message.label for message in self.sent if message in self.messages] if faults else []
        parts = (
            round(self.now, 7),
            node.last_us,
            data,
            subscribed,
            seats,
            [(message.label, message.late) for message in sorted(self.messages, key=lambda message: message.label)],
            self.hurries,
            self.prompt,
            faults,
            sorted(fresh),
            self.clock_moved and faults,
            self.heard,
            round(self.calm_since, 7),
            self.options.mode,
            _plain(self.use, set()),
        )
        return hashlib.blake2b(repr(parts).encode(), digest_size=16).digest()


def _plain(value: Any, met: set[int]) -> Any:
    """Return what the checks remember, as values that compare. `met`: what was told already."""
    kind = type(value)
    if value is None or kind in (int, float, str, bytes, bool):
        return value
    if kind is dict:
        return sorted([(_plain(key, met), _plain(each, met)) for key, each in value.items()], key=repr)
    if kind in (list, tuple):
        return [_plain(each, met) for each in value]
    if kind in (set, frozenset):
        return sorted(value)
    if kind is Belief:
        return value.token, value.kind
    if kind is Process:
        return value.number
    if isinstance(value, (Ledger, Primitive, Thing)):
        if id(value) in met:
            return None
        met.add(id(value))
        return [_plain(each, met) for each in vars(value).values()]
    return None

"""Protocols on the model of a server, where any one request may be carried out late: after any of those behind it.

    world = World()
    world.late(3, 5)        # the third request gets no answer, and is carried out after the fifth that follows it
    world.run(story(world))

`twice`: it is answered, and a copy of it, of which the client knows nothing, is carried out late.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast._core.effects import (
    Answer,
    AwaitWake,
    Call,
    CallMany,
    Command,
    Effect,
    Listen,
    Protocol,
    Sleep,
    Spawn,
    Wake,
)
from holdfast._core.failure import RequestFailed, refusal
from holdfast._core.record import LeaseRecord, LeaseState
from holdfast._core.schedule import Schedule
from holdfast._core.settings import DEFAULT
from sim.server import Refused, Server, copied
from tests.support.steps import driven

__all__ = ["MY_ID", "OTHER_ID", "Late", "Request", "World"]

MY_ID, OTHER_ID = "1" * 24, "2" * 24

#: How long a request takes, and what happens between two, s.
STEP_S = 0.1
#: The first requests are sent then, on the client's clock.
BEGIN_S = 1_000.0


@dataclass
class Request:
    """One that the client has sent: its number, which server it is for, and what it is."""

    number: int
    node: int
    call: Call | Command
    #: What to do with an answer that comes late, for quorums.
    late: Callable[[Any], None] | None = None

    def __str__(self) -> str:
        call = self.call
        what = (call.script, *call.args) if isinstance(call, Call) else call.args
        return f"{self.number} at {self.node}: {' '.join(map(str, what))}"


@dataclass
class Late:
    """The request that is late, behind how many others it is carried out, and whether it was answered before, too."""

    number: int
    behind: int
    twice: bool = False


@dataclass
class _Session:
    """A connection on which WATCH has been said."""

    watched: dict[bytes, int] = field(default_factory=dict)
    queued: list[Sequence[Any]] | None = None


class World:
    """One client, one server (or several members of a quorum), and what strikes it."""

    def __init__(self, late: Late | None = None, nodes: int = 1) -> None:
        self.late = late
        self.now = BEGIN_S
        self.schedule = Schedule()
        self.requests = 0
        #: What was carried out, in that order, for messages.
        self.trace: list[str] = []
        self.servers = [self._server(number) for number in range(nodes)]
        self.versions: dict[tuple[int, bytes], int] = {}
        self.sessions: dict[tuple[int, str], _Session] = {}
        self.wakes: dict[str, deque[Wake]] = {}
        self.background: deque[Protocol[Any]] = deque()
        #: What happens while the client waits to be woken: each once.
        self.meanwhile: deque[Callable[[], None]] = deque()
        #: Looks at the server after each request.
        self.check: Callable[[], None] = lambda: None
        self._withheld: Request | None = None
        #: Whether the late request has been carried out.
        self.done = False
        self._sequence = 0

    def _server(self, number: int) -> Server:
        server = Server(lambda: int(self.now * 1_000_000))
        server.run_id = b"%040d" % number
        server.numsub = lambda channel: 1
        server.publish = self._publish
        return server

    def token(self, mark: str = "", client: str = MY_ID) -> str:
        self._sequence += 1
        return f"{client}:{mark}1:{self._sequence}"

    def _publish(self, channel: bytes, message: bytes) -> int:
        kind, token, *more = message.decode().split()
        if token in self.wakes:
            self.wakes[token].append(Wake(kind, *map(int, more)))
        return 1

    # -- a copy, to try something on ----------------------------------------------------------------

    def copies(self) -> list[Server]:
        """The servers as they are: what is asked of these happens nowhere else."""
        twins = []
        for server in self.servers:
            twin = Server(lambda: int(self.now * 1_000_000))
            twin.numsub = lambda channel: 1
            twin.data = {key: copied(value) for key, value in server.data.items()}
            twin.expires = dict(server.expires)
            twins.append(twin)
        return twins

    # -- running ------------------------------------------------------------------------------------

    def run(self, protocol: Protocol[Any]) -> Any:
        """Run to the end, and whatever is left to the background."""
        with driven(lambda: self.now, self._random, lambda token: self.wakes.pop(token, None)):
            try:
                return self._drive(protocol)
            finally:
                while self.background:
                    try:
                        self._drive(self.background.popleft())
                    except RequestFailed:
                        pass

    def _random(self) -> float:
        self._sequence += 1
        return 0.5 + self._sequence / 1_000_000

    def _drive(self, protocol: Protocol[Any]) -> Any:
        result: Any = None
        error: BaseException | None = None
        for _ in range(10_000):
            try:
                effect = protocol.send(result) if error is None else protocol.throw(error)
            except StopIteration as end:
                return end.value
            result, error = None, None
            try:
                result = self._perform(effect)
            except (RequestFailed, KeyboardInterrupt) as raised:
                error = raised
        raise AssertionError("it does not end")

    def _perform(self, effect: Effect[Any]) -> Any:
        if isinstance(effect, Sleep):
            self.now += effect.seconds
        elif isinstance(effect, Spawn):
            self.background.append(effect.protocol)
        elif isinstance(effect, Listen):
            self.wakes.setdefault(effect.token, deque())
        elif isinstance(effect, AwaitWake):
            return self._await_wake(effect)
        elif isinstance(effect, CallMany):
            return self._call_many(effect)
        else:
            assert isinstance(effect, Call | Command)
            return self._ask(effect)
        return None

    def _await_wake(self, effect: AwaitWake) -> Wake | None:
        kept = self.wakes[effect.token]
        if not kept and self.meanwhile:
            self.meanwhile.popleft()()
        if kept:
            return kept.popleft()
        self.now += effect.timeout_s
        return None

    # -- requests -----------------------------------------------------------------------------------

    def _ask(self, call: Call | Command) -> Any:
        request = self._next(call)
        if self._is_late(request):
            self.now += call.request_timeout_s
            raise RequestFailed("silent", "no answer in time", "", maybe_executed=True, transient=True)
        try:
            reply = self.carry_out(request)
        finally:
            self._behind()
        return (reply, 9) if isinstance(call, Call) and call.sync is not None else reply

    def _call_many(self, many: CallMany) -> list[Answer]:
        answers: list[Answer] = [None] * len(many.calls)
        over = False

        def heard(index: int, reply: Any) -> None:
            if not over:
                answers[index] = reply
            elif many.late is not None and (protocol := many.late(index, reply)) is not None:
                self.background.append(protocol)

        waits = False
        for index, call in enumerate(many.calls):
            request = self._next(call)
            if self._is_late(request):
                request.late = lambda reply, index=index: heard(index, reply)
                waits = True
                continue
            try:
                reply: Any = self.carry_out(request)
                answers[index] = (reply, 9) if call.sync is not None else reply
            except RequestFailed as failure:
                answers[index] = failure
            self._behind()
        if waits and not (many.enough is not None and many.enough(answers)):
            self.now += many.request_timeout_s
        over = True
        return answers

    def _next(self, call: Call | Command) -> Request:
        self.now += STEP_S
        self.requests += 1
        return Request(self.requests, call.node or 0, call)

    def _is_late(self, request: Request) -> bool:
        late = self.late
        if late is None or late.number != request.number:
            return False
        self._withheld = request
        self._left = late.behind
        return not late.twice

    def _behind(self) -> None:
        """A request has been carried out: perhaps the late one is next."""
        withheld = self._withheld
        if withheld is None:
            return
        if self._left:
            self._left -= 1
            return
        self._withheld = None
        self.now += STEP_S
        self.done = True
        try:
            reply = self.carry_out(withheld, late=True)
        except RequestFailed:
            return
        if withheld.late is not None:
            withheld.late(reply)

    def finish(self) -> None:
        """Carry out what is still withheld, after all else."""
        self._left = 0
        self._behind()

    def carry_out(self, request: Request, late: bool = False) -> Any:
        """Carry out a request on its server. Raises `RequestFailed`."""
        self.trace.append(f"{self.now:.1f} {'LATE ' if late else ''}{request}")
        server = self.servers[request.node]
        call = request.call
        try:
            if isinstance(call, Call):
                reply = server.script(call.script, call.keys, call.args)
                self._touched(request.node)
            elif call.session is None:
                reply = server.command(*call.args)
                self._touched(request.node)
            else:
                reply = self._in_session(request.node, server, call)
        except Refused as refused:
            self.trace[-1] += f" -> {refused.message}"
            raise refusal(refused.message, "") from None
        self.trace[-1] += f" -> {reply!r}"
        self.check()
        return reply

    def _touched(self, node: int) -> None:
        for key in self.servers[node].touched:
            self.versions[node, key] = self.versions.get((node, key), 0) + 1

    def _in_session(self, node: int, server: Server, command: Command) -> Any:
        assert command.session is not None
        session = self.sessions.setdefault((node, command.session), _Session())
        word = str(command.args[0]).upper()
        if word == "WATCH":
            for key in command.args[1:]:
                data = str(key).encode()
                server.command("EXISTS", data)  # what is over is gone
                self._touched(node)
                session.watched[data] = self.versions.get((node, data), 0)
        elif word in ("UNWATCH", "DISCARD"):
            self.sessions.pop((node, command.session))
        elif word == "MULTI":
            session.queued = []
        elif word == "EXEC":
            self.sessions.pop((node, command.session))
            if any(self.versions.get((node, key), 0) != version for key, version in session.watched.items()):
                return None
            replies = []
            for args in session.queued or ():
                replies.append(server.command(*args))
                self._touched(node)
            return replies
        elif session.queued is not None:
            session.queued.append(command.args)
        else:
            reply = server.command(*command.args)
            self._touched(node)
            return reply
        return b"OK"

    # -- what drivers and APIs do -------------------------------------------------------------------

    def watch(self, hold: LeaseRecord) -> LeaseRecord:
        self.schedule.add(hold, 0.5)
        self.schedule.replan(hold, 0.5)
        return hold

    async def renew(self, hold: LeaseRecord) -> None:
        """Renew a lease as the background does."""
        sent_at = self.now
        ttl_ms = hold.renewal_ttl_ms(sent_at)
        assert ttl_ms is not None
        try:
            held = await hold.renew(ttl_ms)
        except RequestFailed:
            self.schedule.failed(hold, self.now, 0.5, sent_at)
        else:
            self.schedule.answered(hold, held, ttl_ms, sent_at, self.now, 0.5)
        self.check()

    async def extend(self, hold: LeaseRecord, ttl_ms: int) -> None:
        """Extend a lease as `Lease.extend` does; its trouble is the caller's, who goes on."""
        asked_at = self.now
        order, _ = self.schedule.extending(hold, ttl_ms, asked_at)
        try:
            held = await hold.extension(order.asks_ms, order)
        except RequestFailed:
            self.schedule.replan(hold, 0.5)
        else:
            self.schedule.extended(hold, order, held, ttl_ms, asked_at, self.now, 0.5)
        self.check()

    async def release(self, hold: LeaseRecord) -> None:
        """Release a lease as `Lease.release` does; trouble is left to the background."""
        assert hold.mark_released()
        self.schedule.remove(hold)
        try:
            assert await hold.release(), "it was held"
        except RequestFailed:
            pass

    def lives(self, hold: LeaseRecord) -> bool:
        """True if the client trusts it now."""
        return hold.state in (LeaseState.HELD, LeaseState.SUSPECT) and self.now < hold.deadline

    @property
    def settings(self) -> Any:
        return DEFAULT

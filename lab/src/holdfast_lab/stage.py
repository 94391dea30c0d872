"""One run: real clients, real servers, the wires between them, and everything that happens written down.

The stage does what a scenario says and waits for facts, never for time alone, save where the fact is "this did
not happen": then the waiting is long, and ends only after the client in question has tried again.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any

from holdfast_lab.bodies import Body, CannotRun, Forks, Host, LockFailed, ProcessBody
from holdfast_lab.handles import THREADS, Entry
from holdfast_lab.history import LAB, Event, History
from holdfast_lab.proxy import Fate, Link, Request
from holdfast_lab.resp import short, show
from holdfast_lab.servers import Clock, ClockShop, LabServer

__all__ = ["LOCK_NAME", "LONG_MS", "Actor", "Stage", "TooSlow"]

LOCK_NAME = "orders:42"
_WARM_NAME = "warm-up"
#: A machine that is very busy keeps a client waiting for longer than that has patience.
_WARM_AGAIN = 2
_WARM_TOO_SLOW = ("RequestFailed: no answer", "TimeoutError: could not be acquired")
#: For a lock that no slow client should let expire, ms.
LONG_MS = 30_000
#: For a lock that is meant to expire, ms.
SHORT_MS = 1_000
#: A condition that does not come true in this time never will, s; a user's lock that is acquired for the first time.
_CEILING_S, _OWN_CEILING_S = 60.0, 15.0
#: For how long one that only blocks may go on to wait before it is ended, s: it may look every few seconds.
_LAST_PATIENCE_S = 8.0
#: A lock that blocks without a word has been refused: after that silence, s, or after that many answers.
_SILENCE_S, _POLLS = 0.7, 20
#: What looks after all clients and servers looks that often; a stall of that length costs a renewal, s.
_BEAT_S, _STALL_S = 0.05, 0.4


class TooSlow(Exception):
    """The machine was too slow for the choreography: again, with more time."""


class Actor:
    """A client of the run, as the scenario moves it."""

    def __init__(self, stage: Stage, name: str, ttl_ms: int) -> None:
        self.stage = stage
        self.name = name
        self.ttl_ms = ttl_ms
        self.phase = "idle"
        self.links: list[Link] = []
        self._body: Body | None = None
        self.alive = True
        self.stopped = False
        self._ends = False
        #: When the last of its commands was answered, and that command; one that is held back.
        self.answered_at_s = 0.0
        self.last: Request | None = None
        self._held: tuple[Request, asyncio.Event] | None = None
        self.broken: str | None = None
        self._done: set[int] = set()
        self._channel: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._listening: asyncio.Task[None] | None = None

    async def open(self, clock_offset_s: float) -> None:
        for server in self.stage.servers:
            link = Link(self.name, server, self.stage.note)
            await link.open()
            self.links.append(link)
        self._body = self.stage.body(self.name)
        self._channel = await asyncio.open_connection(sock=self._body.channel)
        self._listening = asyncio.ensure_future(self._listen())
        self._order(
            "set up",
            scheme=self.stage.entry.name,
            name=LOCK_NAME,
            ttl_ms=self.ttl_ms,
            addresses=[["127.0.0.1", link.port] for link in self.links],
            password=self.stage.password,
            clock_offset_s=clock_offset_s,
            restart_delay_s=self.stage.restart_delay_s,
            path=self.stage.path,
        )
        self.phase = "warm-up"
        # Each time another lock: what a stalled machine has left behind of one is in the way of the next for its ttl.
        own = self.stage.entry.own
        for tries_left in reversed(range(1 + (0 if own else _WARM_AGAIN))):
            name = f"{_WARM_NAME} {next(self.stage.numbers)}"
            await self.do("warm up", timeout_s=_OWN_CEILING_S if own else _CEILING_S, name=name)
            said = self.broken or ""
            if not tries_left or not said.startswith(_WARM_TOO_SLOW):
                break
            self.broken = None
        self.phase = "idle"
        if self.broken:
            raise LockFailed(f"the lock does not work even without a fault: {self.broken}")
        if not self.alive:
            raise LockFailed("the client ended while its lock was made")

    async def close(self) -> None:
        self._ends = True
        if self._channel is not None:
            self._channel[1].close()
        if self._body is not None:
            self._body.close()
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)
        for link in self.links:
            await link.close()

    # ---- orders ----

    def _order(self, what: str, **more: Any) -> None:
        assert self._channel is not None
        if self.alive:
            self._channel[1].write(json.dumps({"do": what, **more}).encode() + b"\n")

    async def do(self, what: str, timeout_s: float = _CEILING_S, **more: Any) -> None:
        """Give an order and wait until it is carried out (or the client is dead)."""
        number = next(self.stage.numbers)
        self._order(what, reply=number, **more)
        try:
            await self.stage.until(lambda: number in self._done or not self.alive, what, timeout_s)
        except CannotRun:
            told = {
                "warm up": "acquire and release without a fault",
                "hold others": "hold locks of other names at once",
            }
            doing = told.get(what, what)
            raise LockFailed(
                f"{self.name} was told to {doing}, and did not come back within {timeout_s:.0f} s"
            ) from None

    def start_acquire(self, once: bool = False, waits: str = "") -> None:
        self.phase = "acquire"
        self.stage.playing = True
        self._order("acquire", ttl_ms=self.ttl_ms, once=once, waits=waits)

    def interrupt(self) -> None:
        self.stage.history.add(time.monotonic_ns(), self.name, "interrupted")
        self._order("interrupt")

    def start_release(self) -> None:
        if self.holds:
            self.phase = "release"
        self._order("release")

    async def release(self) -> None:
        if self.holds:
            self.phase = "release"
        await self.do("release")

    async def count(self) -> None:
        """Read the counter and write it back plus one."""
        await self.do("read")
        await self.do("write")

    async def finish(self) -> None:
        """Write what is due, leave, give back."""
        await self.do("write")
        await self.do("leave")
        await self.release()

    async def turn(self) -> None:
        await self.do("read")
        await self.finish()

    async def give_up(self, patient: bool = False) -> None:
        """Let it stop trying; one that cannot stop is ended, as its user would.

        ``patient``: one that blocks may get in all the same. It looks every few seconds, perhaps, and is only slow.
        """
        self._order("stop")
        if patient and not self.tries:
            with contextlib.suppress(TimeoutError):
                await self.stage.until(lambda: self.ended_asking, "", timeout_s=_LAST_PATIENCE_S, patient=False)
        try:
            await self.stage.until(lambda: self.ended_asking, "giving up", timeout_s=1.5, patient=False)
        except TimeoutError:
            self.stage.history.add(time.monotonic_ns(), self.name, "gave up", forced=True)
            await self.kill(quietly=True)

    async def kill(self, quietly: bool = False) -> None:
        """End it, and wait until it is gone; `quietly`: one that hangs in its call."""
        assert self._body is not None
        if not self.alive:
            return
        self._ends = True
        if not quietly:
            self._dies()
        self._body.end()
        if not self._body.ends_at_once and (quietly or self._held is not None):
            for link in self.links:  # it may wait there for good
                await link.end_connections()
        await self.stage.until(lambda: not self.alive, f"{self.name} to be gone")

    async def kill_at_answer(self) -> None:
        """In a hook: a process is killed before it can read this answer, a thread ends as it reads it."""
        assert self._body is not None
        if self._body.ends_at_once:
            await self.kill()
            raise Fate(f"{self.name} was killed")
        self._dies()
        self._body.end()

    def _dies(self) -> None:
        self._ends = True
        # Stamped before: until now it was certainly alive.
        self.stage.history.add(time.monotonic_ns(), self.name, "killed")

    async def stop(self) -> None:
        """Stop it, and wait until it stands still."""
        assert self._body is not None
        await self._body.stop()
        self.stopped = True
        self.stage.history.add(time.monotonic_ns(), self.name, "stopped")
        self.stage.changed()

    async def hold(self, request: Request) -> None:
        """In a hook: keep this request from the server until the client goes on."""
        self._held = request, asyncio.Event()
        await self._held[1].wait()

    async def go_on(self) -> None:
        """Let what was held back through, and then the client, so that the answer is there when it looks."""
        if self._held is not None:
            request, let_through = self._held
            self._held = None
            let_through.set()
            await self.stage.until(lambda: self.last is request, "an answer to what was held back")
        self.resume()

    def resume(self) -> None:
        assert self._body is not None
        self.stopped = False
        self.stage.history.add(time.monotonic_ns(), self.name, "continued")
        self._body.resume()

    # ---- what is known of it ----

    def is_unhindered(self, server: str) -> bool:
        """True if nothing that the play does keeps an answer of that server from it."""
        link = next((link for link in self.links if link.server.name == server), None)
        if link is None or self._ends or self.stopped:
            return False
        return not (link.refusing or link.delay_s or link.before or link.after or link.server.was_disturbed)

    def events(self, *kinds: str) -> list[Event]:
        return list(self.stage.history.of(*kinds, lane=self.name))

    @property
    def inside(self) -> bool:
        found = self.events("entered", "left", "lost", "killed")
        return bool(found) and max(found, key=lambda e: e.at_ns).kind == "entered"

    @property
    def entered(self) -> bool:
        return bool(self.events("entered"))

    @property
    def holds(self) -> bool:
        return self.entered and not self.events("releases")

    @property
    def ended_asking(self) -> bool:
        return self.entered or bool(self.events("gave up", "skipped")) or not self.alive

    @property
    def tries(self) -> int:
        """Attempts that came back without the lock."""
        failures = [event for event in self.events("failed") if event.get("doing") == "acquire"]
        return len(self.events("refused")) + len(failures)

    @property
    def answered(self) -> int:
        """Number of its commands that a server has answered while it asked."""
        commands = self.stage.history.of("command")
        return sum(1 for e in commands if e.get("client") == self.name and e.get("phase") == "acquire")

    def links_hook(
        self, *, before: Callable[[Request], Any] | None = None, after: Callable[[Request], Any] | None = None
    ) -> None:
        for link in self.links:
            link.before, link.after = before, after

    # ---- listening ----

    async def _listen(self) -> None:
        assert self._channel is not None
        reader, writer = self._channel
        with contextlib.suppress(OSError):
            while line := await reader.readline():
                message = json.loads(line)
                if "ask" in message:
                    answer = self.stage.resource(self.name, message)
                    writer.write(json.dumps({"answer": answer}).encode() + b"\n")
                elif "done" in message:
                    self._done.add(message["done"])
                elif "broken" in message:
                    self.broken = message["broken"]
                elif "stalled" in message:
                    since_ns, until_ns = message["stalled"]
                    stops = self.events("stopped", "continued")
                    self.stage.stalled |= not any(since_ns < event.at_ns < until_ns for event in stops)
                else:
                    kind, at_ns = message.pop("kind"), message.pop("at_ns")
                    if kind == "acquired":
                        self.phase = "holding"
                    self.stage.history.add(at_ns, self.name, kind, **message)
                self.stage.changed()
        self.alive = False
        self.stage.changed()


class Stage:
    """A run of one scheme under one fault.

    Args:
        entry: the lock.
        fault, variant: for the record.
        forks: where clients come from.
        stretch: multiplies the short ttl; grows when the machine was too slow.
        path: folders for the clients' `sys.path`.
        restart_delay_s: see there.
    """

    def __init__(
        self,
        entry: Entry,
        fault: str,
        variant: str,
        forks: Forks,
        stretch: float = 1.0,
        path: tuple[str, ...] = (),
        restart_delay_s: float = 0.0,
    ) -> None:
        self.entry = entry
        self._forks = forks
        self._host: Host | None = None
        self.path = list(path)
        self.stretch = stretch
        self.short_ms = int(SHORT_MS * stretch)
        #: For how long clients that know of such a thing leave a restarted server out.
        self.restart_delay_s = restart_delay_s
        #: Of all servers: the actors know it.
        self.password = secrets.token_urlsafe(24)
        self.servers: list[LabServer] = []
        self.actors: dict[str, Actor] = {}
        self.clocks: ClockShop | None = None
        self._durable = False
        #: Whether the resource refuses fencing tokens lower than it has seen.
        self.checks_fences = True
        self.numbers = itertools.count(1)
        self.counter = 0
        #: Whether any client has been told to acquire; what changes before that belongs to the warming up.
        self.playing = False
        self.highest_fence = 0
        keys, threads = entry.lock_keys(LOCK_NAME), entry.clients == THREADS
        self.history = History(entry.name, fault, variant, exclusive=entry.exclusive, lock_keys=keys, threads=threads)
        #: Set by a hook on a wire that found the play impossible.
        self.failure: Exception | None = None
        #: This machine stood still, or kept an answer from a client for longer than that waits.
        self.stalled = False
        self._heart: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._others: list[Any] = []

    # ---- up and down ----

    async def open(self, *, own_clock: bool = False, replica: bool = False, durable: bool = False) -> None:
        """Start the servers the scheme needs: one or five, or a master and a replica."""
        if own_clock:
            self.clocks = await asyncio.to_thread(ClockShop)  # a compiler's time is not the other plays'
        self._durable = durable
        self._heart = asyncio.ensure_future(self._beat())
        count = self.entry.servers
        names = ["master"] if replica else ["server"] if count == 1 else [f"server {n + 1}" for n in range(count)]
        for name in names:
            self.servers.append(await self._start(name))
        if self.clocks is not None:
            self.clocks.remove_files()
        self.history.servers = list(names)

    async def another_server(self, name: str) -> LabServer:
        """One that no client is sent to yet."""
        server = await self._start(name)
        self._others.append(server)
        self.history.servers.append(name)
        return server

    async def _start(self, name: str) -> LabServer:
        def report(kind: str, **data: Any) -> None:
            if kind not in ("key", "prolonged") or (self.playing and _WARM_NAME not in data["key"]):
                self.history.add(time.monotonic_ns(), name, kind, **data)
            self.changed()

        clock = Clock(self.clocks) if self.clocks is not None else None
        server = LabServer(name, report, self.password, clock, self._durable)
        try:
            await server.start()
        except BaseException:
            await server.close()
            raise
        return server

    async def client(self, name: str, ttl_ms: int | None = None, clock_offset_s: float = 0.0) -> Actor:
        """A new client, warmed up: its code works and its scripts are loaded."""
        actor = Actor(self, name, ttl_ms if ttl_ms is not None else LONG_MS)
        self.actors[name] = actor
        self.history.clients.append(name)
        await actor.open(clock_offset_s)
        for server in self.servers:
            await server.forget()
        if clock_offset_s:
            self.history.add(time.monotonic_ns(), name, "clock", offset_s=clock_offset_s)
        return actor

    def body(self, name: str) -> Body:
        """A body for the next client: a process, or a thread of the one process of this play."""
        if self.entry.clients != THREADS:
            return ProcessBody(self._forks)
        if self._host is None:
            self._host = Host(self._forks)
        return self._host.thread(name)

    def either(self, of_processes: str, of_threads: str) -> str:
        return of_threads if self.entry.clients == THREADS else of_processes

    def also_close(self, thing: Any) -> None:
        """Something with an async close()."""
        self._others.append(thing)

    async def _beat(self) -> None:
        """Notice when this process, through which everything passes, could not run."""
        while not self.stalled:
            began = time.monotonic()
            await asyncio.sleep(_BEAT_S)
            if time.monotonic() - began > _BEAT_S + _STALL_S:
                self.stalled = True

    async def close(self) -> None:
        if self._heart is not None:
            self._heart.cancel()
        for closing in [*self.actors.values(), *self._others, *self.servers]:
            with contextlib.suppress(OSError):
                await closing.close()
        if self._host is not None:
            self._host.close()
        if self.clocks is not None:
            self.clocks.remove_files()

    async def wind_up(self) -> History:
        """Note what is left on the servers; the finished history."""
        for server in [*self.servers, *(s for s in self._others if isinstance(s, LabServer))]:
            if server.paused:
                continue
            with contextlib.suppress(OSError):
                await server.look(by=None)
                for key, (kind, value, ttl_ms) in (await server.keys()).items():
                    if _WARM_NAME not in key:
                        self.history.add(
                            time.monotonic_ns(),
                            server.name,
                            "left over",
                            key=key,
                            type=kind,
                            value=value,
                            ttl_ms=ttl_ms,
                        )
        self.history.sort()
        return self.history

    # ---- what happens ----

    def changed(self) -> None:
        self._changed.set()

    def now_ns(self) -> int:
        return time.monotonic_ns()

    def note(self, request: Request) -> None:
        """A request has passed a wire."""
        actor = self.actors[request.client]
        if actor.phase == "warm-up":
            return
        actor.answered_at_s, actor.last = time.monotonic(), request
        self.stalled = self.stalled or (request.fate == "unanswered" and actor.is_unhindered(request.server))
        self.history.add(
            request.at_ns,
            request.server,
            "command",
            client=request.client,
            phase=actor.phase,
            text=short(request.words),
            reply=show(request.reply) if request.answered_ns is not None else None,
            answered_ns=request.answered_ns,
            **({"fate": request.fate} if request.fate else {}),
        )
        self.changed()

    def fault(self, text: str, lasting: bool = False) -> None:
        self.history.add(time.monotonic_ns(), LAB, "fault", text=text, lasting=lasting)

    def healed(self, text: str = "the fault is over") -> None:
        self.history.add(time.monotonic_ns(), LAB, "healed", text=text)

    def resource(self, client: str, question: dict[str, Any]) -> Any:
        """The thing the lock protects: a counter that refuses fencing tokens lower than it has seen."""
        now_ns = time.monotonic_ns()
        if question["ask"] == "read":
            self.history.add(now_ns, client, "read", value=self.counter)
            return self.counter
        fence = question.get("fence")
        accepted = fence is None or fence >= self.highest_fence or not self.checks_fences
        if accepted:
            self.counter = question["value"]
            self.highest_fence = fence or self.highest_fence
        more = {} if fence is None else {"fence": fence}
        self.history.add(
            now_ns, client, "wrote", base=question["base"], value=question["value"], accepted=accepted, **more
        )
        return accepted

    # ---- waiting ----

    async def until(
        self,
        condition: Callable[[], bool],
        what: str,
        timeout_s: float = _CEILING_S,
        poll_s: float = 0.05,
        patient: bool = True,
    ) -> None:
        """Wait for a fact. Raises CannotRun (or TimeoutError, if not `patient`) when it does not come true."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline:
                if not patient:
                    raise TimeoutError(what)
                raise CannotRun(f"waited {timeout_s:.0f} s for {what}, in vain")
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(poll_s):  # wait_for of 3.11 can swallow a cancellation
                    await self._changed.wait()

    async def settled(self, actor: Actor) -> bool:
        """True if the asking actor is inside, once that can be told: it entered, or two more attempts came to nothing.

        A lock that only blocks does not say "no": it is given 0.7 s after the last of its commands was answered, or,
        if it polls, after it has been answered many times.
        """
        tries, answered, since = actor.tries, actor.answered, time.monotonic()

        def told() -> bool:
            if actor.ended_asking or actor.tries >= tries + 2:
                return True
            now = time.monotonic()
            if actor.tries or now - since < _SILENCE_S:
                return False
            more = actor.answered - answered
            return more >= _POLLS or (more > 0 and now - actor.answered_at_s > _SILENCE_S) or now - since > 5

        await self.until(told, f"{actor.name} to get in, or to be refused")
        return actor.entered

    async def through_expiry(self, actor: Actor, ttl_ms: int) -> bool:
        """True if the asking actor gets in by itself, given twice the ttl of the holder before, and two tries more."""
        return await self.any_through_expiry([actor], ttl_ms)

    async def any_through_expiry(self, actors: Sequence[Actor], ttl_ms: int) -> bool:
        """The same for the first of several."""
        grace_s = 2 * ttl_ms / 1000 + 0.5
        began = time.monotonic()

        def ended() -> bool:
            return any(actor.ended_asking for actor in actors)

        while not ended() and time.monotonic() < began + grace_s:
            with contextlib.suppress(TimeoutError):
                left = max(0.01, began + grace_s - time.monotonic())
                await self.until(ended, "", timeout_s=min(left, 0.1), patient=False)
            await self.look()
        return any([actor.entered or await self.settled(actor) for actor in actors])

    async def look(self) -> list[int]:
        """Note what has expired; the ttls of the keys that are there now, ms, -1 for none."""
        left = []
        for server in self.servers:
            if not server.turn.locked():
                async with server.turn:
                    await server.look(by=None)
            left += [ttl_ms for key, ttl_ms in server.ttls.items() if self.history.is_lock_key(key)]
        return left

    async def enters(self, actor: Actor) -> bool:
        """True if the asking actor gets in within about 7 s, or half a dozen attempts."""
        began = time.monotonic()

        def decided() -> bool:
            waited = time.monotonic() - began
            return actor.ended_asking or (actor.tries >= 6 and waited > 4) or waited > 7

        await self.until(decided, f"{actor.name} to get in")
        return actor.entered

    def no_early_expiry(self) -> None:
        """Raises TooSlow if a lock ran out that was not meant to, yet."""
        for event in self.history.of("key"):
            if event.get("by") == "expiry" and event.get("key") in self.history.lock_keys:
                raise TooSlow

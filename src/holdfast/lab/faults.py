"""Every fault, injected for real, with the little play that lets it show.

Cast: A holds the lock when things go wrong, B wants it too, C comes late and sees what is left. Each waits for
facts about the others, so that the same thing happens on a slow machine, only later.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from holdfast.lab.handles import Entry
from holdfast.lab.proxy import Fate, Link, Request
from holdfast.lab.servers import LabServer, no_compiler
from holdfast.lab.stage import Actor, CannotRun, Stage, TooSlow

__all__ = ["FAULTS", "Fault"]

#: How far the clocks of two clients are apart, s; the lock must run longer than a few attempts, and shorter than this.
_SKEW_S = 5.0
_SKEWED_TTL_MS = 4_500
#: How far a server's clock jumps, s: more than the ttl of a lock that is held.
_JUMP_S = 60
#: How late the answers of a slow server are, s: far more than what Redlock waits for one.
_SLOW_S = 0.6
#: How long a client may hang on an answer that never comes before the play goes on without it, s.
_HANG_S = 5.0

Play = Callable[[Stage, str], Awaitable[bool]]


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong.

    ``plays``: the variants of the play; empty: 1, 2, 3 … until the play returns False, having found nothing
    more to do. ``on``: "any" scheme, those of a "single" server, or those of a "quorum".
    """

    name: str
    doc: str
    play: Play
    plays: Sequence[str] = ("",)
    on: str = "any"
    own_clock: bool = False
    replica: bool = False
    restart_delay_s: float = 0.0
    missing: Callable[[], str | None] = field(default=lambda: None)

    def applies_to(self, entry: Entry) -> bool:
        if entry.replicated and not self.replica:
            return False
        return self.on == "any" or (self.on == "quorum") == (entry.servers > 1)


# ---- parts of plays ----


async def _enter(actor: Actor) -> None:
    actor.start_acquire()
    if not await actor.stage.enters(actor):
        raise CannotRun(f"{actor.name} could not acquire the lock before any fault")


async def _epilogue(stage: Stage, b: Actor, c: Actor) -> None:
    """B is inside or wants to be. C tries beside it; then B ends, then C has its turn, or waits in vain."""
    if b.inside:
        c.start_acquire()
        if await stage.settled(c):
            await c.do("read")
        await b.finish()
    elif not b.entered:
        if not await stage.through_expiry(b, stage.short_ms):
            await b.give_up()
            return
        await b.turn()
        c.start_acquire()
    else:
        await b.finish()
        c.start_acquire()
    if not c.entered and not await stage.through_expiry(c, stage.short_ms):
        await c.give_up()
        return
    await c.turn()


async def _after(stage: Stage, a: Actor, b: Actor, c: Actor) -> None:
    """A is through, well or badly: does B get in, at the latest when A's ttl is over? Then C."""
    b.start_acquire()
    if await stage.through_expiry(b, a.ttl_ms):
        await b.count()
        await _epilogue(stage, b, c)
    else:
        await b.give_up()


async def _cast(stage: Stage, a_ttl_ms: int | None = None) -> tuple[Actor, Actor, Actor]:
    return await stage.client("A", a_ttl_ms), await stage.client("B"), await stage.client("C")


def _lock_changed(stage: Stage, request: Request) -> bool:
    keys = stage.history.lock_keys
    return any(not keys or key in keys for key in request.changed)


async def _outcome(stage: Stage, actor: Actor, kinds: Sequence[str], before: int) -> None:
    """Wait until one more of these events is there, or the actor seems to hang forever."""
    with contextlib.suppress(TimeoutError):
        await stage.until(
            lambda: len(actor.events(*kinds)) > before or not actor.alive,
            "an outcome",
            timeout_s=_HANG_S,
            patient=False,
        )


# ---- plays ----


async def _none(stage: Stage, variant: str) -> bool:
    a, b, c = await _cast(stage)
    await _enter(a)
    await a.do("read")
    b.start_acquire()
    if await stage.settled(b):
        await b.count()
    await a.finish()
    await _epilogue(stage, b, c)
    return True


async def _crash_in_acquire(stage: Stage, variant: str) -> bool:
    wanted, seen = int(variant), 0
    a, b, c = await _cast(stage, stage.short_ms)

    async def after(request: Request) -> None:
        nonlocal seen
        if a.phase == "acquire":
            seen += 1
            if seen == wanted:
                stage.fault(f"A is killed after its command {wanted} took effect")
                await a.kill()
                raise Fate("A was killed")

    a.links_hook(after=after)
    a.start_acquire()
    await stage.until(lambda: not a.alive or a.entered, "A to die or to enter")
    if a.entered:
        return False  # the acquire has fewer commands
    await _after(stage, a, b, c)
    return True


async def _crash_holding(stage: Stage, variant: str) -> bool:
    a, b, c = await _cast(stage, stage.short_ms)
    await _enter(a)
    await a.do("read")
    stage.fault("A is killed inside the section")
    await a.kill()
    await _after(stage, a, b, c)
    return True


async def _long_section(stage: Stage, variant: str) -> bool:
    a, b, c = await _cast(stage, stage.short_ms)
    await _enter(a)
    await a.do("read")
    stage.fault(f"A stays inside for longer than its ttl of {a.ttl_ms} ms")
    b.start_acquire()
    if await stage.through_expiry(b, a.ttl_ms):
        await b.count()
    await a.finish()
    await _epilogue(stage, b, c)
    return True


async def _late_release(stage: Stage, variant: str) -> bool:
    a, b, c = await _cast(stage, stage.short_ms)
    await _enter(a)
    await a.count()
    await a.do("leave")
    stage.fault("A has left in time, but gives back late")
    b.start_acquire()
    if await stage.through_expiry(b, a.ttl_ms):
        await b.do("read")
    await a.release()
    await _epilogue(stage, b, c)
    return True


async def _pause_in_release(stage: Stage, variant: str) -> bool:
    a, b, c = await _cast(stage, 2 * stage.short_ms)
    await _enter(a)
    await a.count()
    await a.do("leave")

    async def after(request: Request) -> None:
        if a.phase == "release" and not a.stopped and request.fate == "":
            a.links_hook()
            try:
                stage.no_early_expiry()
            except TooSlow as error:
                stage.failure = error
            stage.fault("A is stopped (SIGSTOP) before it reads the answer to the first command of its release")
            await a.stop()

    a.links_hook(after=after)
    a.start_release()
    await stage.until(
        lambda: a.stopped or bool(a.events("released", "failed")) or stage.failure is not None, "A to be stopped"
    )
    if stage.failure is not None:
        raise stage.failure
    b.start_acquire()
    if await stage.through_expiry(b, a.ttl_ms):
        await b.do("read")
    if a.stopped:
        a.resume()
        await _outcome(stage, a, ("released", "failed"), 0)
    await _epilogue(stage, b, c)
    return True


async def _pause_holding(stage: Stage, variant: str) -> bool:
    a, b, c = await _cast(stage, stage.short_ms)
    await _enter(a)
    await a.do("read")
    stage.fault("A is stopped (SIGSTOP) inside the section")
    await a.stop()
    b.start_acquire()
    if await stage.through_expiry(b, a.ttl_ms):
        await b.count()
    a.resume()
    await a.finish()
    await _epilogue(stage, b, c)
    return True


async def _client_clocks(stage: Stage, variant: str) -> bool:
    a = await stage.client("A", _SKEWED_TTL_MS)
    b = await stage.client("B", clock_offset_s=_SKEW_S)
    c = await stage.client("C")
    stage.fault(f"the clock of B is {_SKEW_S:g} s ahead")
    await _enter(a)
    await a.do("read")
    b.start_acquire()
    if await stage.settled(b):
        await b.count()
    stage.no_early_expiry()
    await a.finish()
    await _epilogue(stage, b, c)
    return True


async def _server_clock(stage: Stage, variant: str) -> bool:
    a, b, c = await _cast(stage)
    await _enter(a)
    await a.do("read")
    count = len(stage.servers) // 2 + 1
    which = "the server's clock jumps" if count == 1 else f"the clocks of {count} servers jump"
    stage.fault(f"{which} {_JUMP_S} s ahead")
    for server in stage.servers[:count]:
        server.jump(_JUMP_S)
    b.start_acquire()
    if await stage.settled(b):
        await b.count()
    await a.finish()
    await _epilogue(stage, b, c)
    return True


async def _reply_lost(stage: Stage, variant: str) -> bool:
    a, b, c = await _cast(stage, stage.short_ms)
    dropped = False

    async def after(request: Request) -> None:
        nonlocal dropped
        if not dropped and a.phase == variant and _lock_changed(stage, request):
            dropped = True
            stage.fault(f"the answer to A's {request.verb} is lost; it took effect")
            raise Link.swallow

    if variant == "acquire":
        a.links_hook(after=after)
        a.start_acquire(once=True)
        await _outcome(stage, a, ("entered", "refused", "failed"), 0)
        if a.entered:
            await a.count()
            await a.do("leave")
            await a.release()
        await _after(stage, a, b, c)
        return True
    else:
        await _enter(a)
        await a.count()
        await a.do("leave")
        a.links_hook(after=after)
        a.start_release()
        with contextlib.suppress(TimeoutError):
            await stage.until(
                lambda: dropped or bool(a.events("released", "failed")), "", timeout_s=_HANG_S, patient=False
            )
        b.start_acquire()
        if await stage.through_expiry(b, a.ttl_ms):
            await b.do("read")
        await _outcome(stage, a, ("released", "failed"), 0)
    await _epilogue(stage, b, c)
    return True


async def _reset(stage: Stage, variant: str) -> bool:
    a, b, c = await _cast(stage, stage.short_ms)
    done = False

    async def before(request: Request) -> None:
        nonlocal done
        if not done and a.phase == variant:
            done = True
            stage.fault(f"A's connection is reset when it sends {request.verb}; the server never sees that")
            raise Link.reset

    if variant == "acquire":
        a.links_hook(before=before)
        a.start_acquire(once=True)
        await _outcome(stage, a, ("entered", "refused", "failed"), 0)
        if a.entered:
            await a.count()
            await a.do("leave")
            await a.release()
    else:
        await _enter(a)
        await a.count()
        await a.do("leave")
        a.links_hook(before=before)
        a.start_release()
        await _outcome(stage, a, ("released", "failed"), 0)
    await _after(stage, a, b, c)
    return True


async def _scripts_flushed(stage: Stage, variant: str) -> bool:
    a, b, c = await _cast(stage, stage.short_ms)
    await _enter(a)
    stage.fault("SCRIPT FLUSH")
    for server in stage.servers:
        await server.ask("SCRIPT", "FLUSH")
    await a.count()
    await a.do("leave")
    await a.release()
    await _after(stage, a, b, c)
    return True


async def _beside(stage: Stage, a: Actor, b: Actor, c: Actor) -> None:
    """A is inside, and something has happened to its lock: B tries, then A goes on as if nothing had."""
    b.start_acquire()
    if await stage.settled(b):
        await b.count()
    await a.finish()
    await _epilogue(stage, b, c)


async def _restarted(stage: Stage, variant: str) -> bool:
    a, b, c = await _cast(stage)
    await _enter(a)
    await a.do("read")
    stage.fault("the server is killed and comes back empty")
    await stage.servers[0].kill()
    await stage.servers[0].start_again()
    await _beside(stage, a, b, c)
    return True


class _Relay:
    """The wire from a replica to its master; can be cut so that nothing passes any more."""

    def __init__(self, master: LabServer) -> None:
        self._master = master
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener: asyncio.Server | None = None
        self.port = 0

    async def open(self) -> None:
        self._listener = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._listener.sockets[0].getsockname()[1]

    def cut(self) -> None:
        self._flowing.clear()

    async def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._tasks.add(task)

        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            writer.close()

        task.add_done_callback(ended)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            up_reader, up_writer = await self._master.connect()
        except OSError:
            return  # the master is down
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump(reader, up_writer))
                group.create_task(self._pump(up_reader, writer))
        except ExceptionGroup:
            pass  # one end has gone
        finally:
            up_writer.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            await self._flowing.wait()
            writer.write(data)
        writer.close()


async def _replicate(stage: Stage, master: LabServer, replica: LabServer) -> _Relay:
    """Make one the replica of the other, over a wire that can be cut."""
    relay = _Relay(master)
    await relay.open()
    stage.also_close(relay)
    await replica.follow(relay.port)
    return relay


async def _failover(stage: Stage, variant: str) -> bool:
    master = stage.servers[0]
    replica = await stage.another_server("replica")
    relay = await _replicate(stage, master, replica)
    await _in_step(stage, master, replica)
    a, b, c = await _cast(stage)
    await _in_step(stage, master, replica)
    stage.fault("the replica stops hearing from its master", lasting=True)
    relay.cut()
    a.start_acquire()
    if await stage.enters(a):
        await a.do("read")
    else:
        await a.give_up()  # it wants the replica's word, too
    stage.fault("the master is killed before it could replicate; the replica is promoted")
    await master.kill()
    await replica.ask("REPLICAOF", "NO", "ONE")
    stage.history.add(stage.now_ns(), replica.name, "promoted")
    stage.healed("the promoted replica serves")
    await replica.forget()
    if stage.entry.replicated:
        second = await stage.another_server("replica 2")
        await _replicate(stage, replica, second)
        await _in_step(stage, replica, second)
    for actor in (a, b, c):
        for link in actor.links:
            link.server = replica
    await _beside(stage, a, b, c)
    return True


async def _in_step(stage: Stage, master: LabServer, replica: LabServer) -> None:
    """Wait until the replica has everything that its master has."""
    deadline = asyncio.get_running_loop().time() + 30
    while True:
        theirs, ours = _info(await master.ask("INFO", "replication")), _info(await replica.ask("INFO", "replication"))
        if ours.get("master_link_status") == "up" and ours.get("slave_repl_offset") == theirs["master_repl_offset"]:
            return
        if asyncio.get_running_loop().time() > deadline:
            raise CannotRun("the replica did not get in step with its master within 30 s")
        await asyncio.sleep(0.02)


def _info(reply: bytes) -> dict[str, str]:
    lines = (line.partition(":") for line in reply.decode().splitlines())
    return {name: value for name, _, value in lines}


async def _stopped(stage: Stage, variant: str) -> bool:
    count = int(variant)
    a, b, c = await _cast(stage)
    stage.fault(f"{count} of {len(stage.servers)} servers are stopped (SIGSTOP)", lasting=True)
    stopped = stage.servers[-count:]
    for server in stopped:
        server.pause()

    def heal() -> None:
        for server in stopped:
            server.resume()

    return await _while_it_lasts(stage, a, b, c, heal)


async def _slow(stage: Stage, variant: str) -> bool:
    a, b, c = await _cast(stage)
    stage.fault(f"the answers of {stage.servers[0].name} come {_SLOW_S * 1000:.0f} ms late", lasting=True)
    links = [actor.links[0] for actor in (a, b, c)]
    for link in links:
        link.delay_s = _SLOW_S

    def heal() -> None:
        for link in links:
            link.delay_s = 0.0

    return await _while_it_lasts(stage, a, b, c, heal)


async def _while_it_lasts(stage: Stage, a: Actor, b: Actor, c: Actor, heal: Callable[[], None]) -> bool:
    a.start_acquire()
    if await stage.enters(a):
        await a.do("read")
        b.start_acquire()
        if await stage.settled(b):
            await b.count()
        await a.finish()
        if not b.entered:
            await stage.enters(b)
        stage.healed()
        heal()
        await _epilogue(stage, b, c)
    else:
        await a.give_up()
        stage.healed()
        heal()
        c.start_acquire()
        if await stage.enters(c):
            await c.turn()
        else:
            await c.give_up()
    return True


async def _one_restarted(stage: Stage, variant: str) -> bool:
    a, b, c = await _cast(stage)
    stage.fault("A cannot reach servers 4 and 5, so that it has the lock on three")
    for link in a.links[3:]:
        link.refusing = True
        await link.cut()
    await _enter(a)
    await a.do("read")
    stage.fault("server 3 is killed and comes back empty, at once; A reaches all servers again")
    await stage.servers[2].kill()
    await stage.servers[2].start_again()
    for link in a.links:
        link.refusing = False
    await _beside(stage, a, b, c)
    return True


FAULTS: dict[str, Fault] = {
    fault.name: fault
    for fault in (
        Fault("none", "No fault: A is inside, B tries beside it, then each has a turn.", _none),
        Fault(
            "crash-in-acquire",
            "A is killed after each single command of its acquire in turn.",
            _crash_in_acquire,
            plays=(),
        ),
        Fault("crash-holding", "A is killed inside the critical section.", _crash_holding),
        Fault("long-section", "A stays inside for longer than its ttl, then gives back.", _long_section),
        Fault(
            "late-release",
            "A leaves in time but gives back only after its lock has expired and B has it.",
            _late_release,
        ),
        Fault(
            "pause-in-release",
            "A is stopped between the first command of its release (the compare) and the next (the delete).",
            _pause_in_release,
        ),
        Fault("pause-holding", "A is stopped (SIGSTOP) inside until its ttl is over, and goes on.", _pause_holding),
        Fault("client-clocks", "The clocks of two clients are 5 s apart.", _client_clocks),
        Fault(
            "server-clock",
            "The server's clock jumps 60 s ahead (a majority's, where there are five).",
            _server_clock,
            own_clock=True,
            missing=no_compiler,
        ),
        Fault(
            "reply-lost",
            "The answer to A's acquire, or to its release, is lost after the command took effect.",
            _reply_lost,
            plays=("acquire", "release"),
        ),
        Fault(
            "reset",
            "A's connection is reset as it sends its acquire, or its release.",
            _reset,
            plays=("acquire", "release"),
        ),
        Fault("scripts-flushed", "The server forgets its script cache while A is inside.", _scripts_flushed),
        Fault("server-restarted", "The server is killed and comes back empty.", _restarted, on="single"),
        Fault(
            "failover",
            "The master is killed before it has replicated; its replica is promoted.",
            _failover,
            on="single",
            replica=True,
        ),
        Fault("one-stopped", "One of five servers does not answer.", _stopped, plays=("1",), on="quorum"),
        Fault("two-stopped", "Two of five servers do not answer.", _stopped, plays=("2",), on="quorum"),
        Fault("three-stopped", "Three of five servers do not answer.", _stopped, plays=("3",), on="quorum"),
        Fault(
            "one-restarted",
            "One of the three servers that granted the lock comes back empty at once.",
            _one_restarted,
            on="quorum",
            restart_delay_s=8.0,
        ),
        Fault("one-slow", "One of five servers answers 0.6 s late.", _slow, on="quorum"),
    )
}

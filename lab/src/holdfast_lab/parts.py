"""What the plays of all faults are made of: who acts, how one gets in, and how a play ends."""

from __future__ import annotations

import asyncio
import contextlib

from holdfast_lab.bodies import CannotRun, LockFailed
from holdfast_lab.proxy import Listener, Request
from holdfast_lab.servers import LabServer
from holdfast_lab.stage import Actor, Stage

__all__ = [
    "HANG_S",
    "LATE",
    "Relay",
    "all_through",
    "beside",
    "cast",
    "comes",
    "enter",
    "epilogue",
    "goes_by_that",
    "in_step",
    "into_release",
    "left_by_the_dead",
    "lock_changed",
    "on_a_bare_majority",
    "outcome",
    "past_ttl",
    "replicate",
    "stop_at",
    "take_turns",
    "tried_once",
]

#: How long a client may hang on an answer that never comes before the play goes on without it, s.
HANG_S = 5.0
#: Variants in which B asks only when A's ttl is over. In the others it asks again and again before that, which may keep
#: a key alive.
LATE = "B after the ttl"
#: What a ttl in whole seconds may be longer, s.
_ROUNDED_S = 1.05


async def enter(actor: Actor) -> None:
    actor.start_acquire()
    if not await actor.stage.enters(actor):
        errors = [event.get("error") for event in actor.events("failed")]
        raise LockFailed(
            f"{actor.name} could not acquire the lock before any fault" + (f": {errors[-1]}" if errors else "")
        )


async def epilogue(stage: Stage, b: Actor, c: Actor) -> None:
    """B is inside, was inside, or still wants to be. C tries beside it; then B ends, and C has its turn."""
    if not b.entered and not await stage.through_expiry(b, stage.short_ms):
        await b.give_up(patient=True)
        return
    c.start_acquire()
    if b.inside and await stage.settled(c):
        await c.do("read")
    await b.turn()
    if not c.entered and not await stage.through_expiry(c, stage.short_ms):
        await c.give_up(patient=True)
        return
    await c.turn()


async def all_through(stage: Stage, *actors: Actor) -> None:
    """Each that gets in has its turn, until all have been in; one that does not get in gives up."""
    waiting = list(actors)
    while waiting:
        inside = next((actor for actor in waiting if actor.entered), None)
        if inside is not None:
            await inside.turn()
        elif not await stage.any_through_expiry(waiting, stage.short_ms):
            inside = waiting[0]
            await inside.give_up(patient=True)
        else:
            continue
        waiting.remove(inside)


async def take_turns(stage: Stage, a: Actor, b: Actor, c: Actor) -> None:
    """A is through, well or badly: does B get in, at the latest when A's ttl is over? Then C."""
    b.start_acquire()
    if await stage.through_expiry(b, a.ttl_ms):
        await b.count()
        await epilogue(stage, b, c)
    else:
        await b.give_up(patient=True)


async def cast(stage: Stage, a_ttl_ms: int | None = None) -> tuple[Actor, Actor, Actor]:
    return await stage.client("A", a_ttl_ms), await stage.client("B"), await stage.client("C")


def lock_changed(stage: Stage, request: Request) -> bool:
    keys = stage.history.lock_keys
    return any(not keys or key in keys for key in request.changed)


async def outcome(stage: Stage, actor: Actor, *kinds: str) -> None:
    """Wait until one of these events is there, or the actor seems to hang in its call forever."""
    with contextlib.suppress(TimeoutError):
        await stage.until(
            lambda: bool(actor.events(*kinds)) or not actor.alive, "an outcome", timeout_s=HANG_S, patient=False
        )


async def stop_at(stage: Stage, a: Actor, phase: str, step: str) -> bool:
    """Let A acquire or release, and stop it at a step: "before 2", "after 1". False: it has fewer commands.

    Before: what it has sent has not reached the server. After: it has not read the answer.
    """
    where, wanted = step.split()
    seen = 0

    async def at(request: Request) -> None:
        nonlocal seen
        if a.phase != phase or a.stopped or request.fate:
            return
        seen += 1
        if seen != int(wanted):
            return
        a.links_hook()
        if where == "before":
            of_acquire = f"A is stopped before command {wanted} of its acquire reaches the server"
            of_release = f"A is stopped before command {wanted} of its release reaches the server"
        else:
            of_acquire = f"A is stopped before it reads the answer to command {wanted} of its acquire"
            of_release = f"A is stopped before it reads the answer to command {wanted} of its release"
        stage.fault(of_acquire if phase == "acquire" else of_release)
        await a.stop()
        if where == "before":
            await a.hold(request)

    if where == "before":
        a.links_hook(before=at)
    else:
        a.links_hook(after=at)
    if phase == "acquire":
        a.start_acquire()
    else:
        a.start_release()
    ends = ("entered", "skipped") if phase == "acquire" else ("released", "failed")
    await stage.until(lambda: a.stopped or bool(a.events(*ends)), f"A to be stopped in its {phase}, or to be through")
    return a.stopped


async def past_ttl(stage: Stage, a: Actor) -> None:
    """Wait until what A was granted is over: its ttl, which may have been rounded up to seconds, and the keys' own."""
    asked_s = a.events("asks")[-1].at_ns / 1e9
    ends_s, latest_s = asked_s + a.ttl_ms / 1000 + _ROUNDED_S, asked_s + 2 * a.ttl_ms / 1000 + _ROUNDED_S
    while (now_s := stage.now_ns() / 1e9) < latest_s:
        left = await stage.look()
        if now_s > ends_s and not any(ttl_ms > 0 for ttl_ms in left):
            return
        await asyncio.sleep(0.1)


async def left_by_the_dead(stage: Stage) -> bool:
    """True if something is still there when the time of a client that was killed is over."""
    d = await stage.client("D", stage.short_ms)
    await enter(d)
    if -1 not in await stage.look():
        return False  # it will expire, and be as if it had never been
    stage.fault(stage.either("D is killed inside the section", "D ends in an exception inside the section"))
    await d.kill()
    await past_ttl(stage, d)
    return bool(await stage.look())


async def comes(stage: Stage, a: Actor, b: Actor, variant: str) -> bool:
    """B wants the lock while A stands still, or is late: from now on, or once A's ttl is over. Whether it got in."""
    if LATE in variant:
        await past_ttl(stage, a)
        b.start_acquire()
        return await stage.settled(b)
    b.start_acquire()
    return await stage.through_expiry(b, a.ttl_ms)


async def tried_once(stage: Stage, a: Actor) -> None:
    """A has been told to try once. One that hangs in its call is ended by its user."""
    await outcome(stage, a, "entered", "refused", "failed", "skipped")
    if not a.ended_asking and not a.tries:
        await a.give_up()


async def goes_by_that(stage: Stage, a: Actor, b: Actor, c: Actor) -> None:
    """A goes by the answer to its one attempt: inside, with B beside it, or away."""
    if a.entered:
        await a.do("read")
        await beside(stage, a, b, c)
    else:
        await take_turns(stage, a, b, c)


async def into_release(a: Actor) -> None:
    """A has been inside, and is about to give back."""
    await enter(a)
    await a.count()
    await a.do("leave")


async def on_a_bare_majority(stage: Stage, a: Actor) -> bool:
    """A gets the lock while it reaches a bare majority of the servers only; whether it did."""
    majority = len(stage.servers) // 2 + 1
    stage.fault(f"A reaches {majority} of {len(stage.servers)} servers only", lasting=True)
    for link in a.links[majority:]:
        link.refusing = True
        await link.end_connections()
    a.start_acquire()
    if await stage.enters(a):
        await a.do("read")
    else:
        await a.give_up()
    stage.healed("A reaches all servers again")
    for link in a.links:
        link.refusing = False
    return a.entered


async def beside(stage: Stage, a: Actor, b: Actor, c: Actor) -> None:
    """A is inside, and something has happened to its lock: B tries, then A goes on as if nothing had."""
    b.start_acquire()
    if await stage.settled(b):
        await b.count()
    await a.finish()
    await epilogue(stage, b, c)


class Relay(Listener):
    """The wire from a replica to its master; can be cut so that nothing passes any more."""

    def __init__(self, master: LabServer) -> None:
        super().__init__()
        self._master = master
        self._flowing = asyncio.Event()
        self._flowing.set()

    def cut(self) -> None:
        self._flowing.clear()

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


async def replicate(stage: Stage, master: LabServer, replica: LabServer) -> Relay:
    """Make one the replica of the other, over a wire that can be cut."""
    relay = Relay(master)
    await relay.open()
    stage.also_close(relay)
    await replica.follow(relay.port)
    return relay


async def in_step(stage: Stage, master: LabServer, replica: LabServer) -> None:
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

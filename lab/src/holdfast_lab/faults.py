"""Every fault, injected for real, with the little play that lets it show.

Cast: A holds the lock when things go wrong, B wants it too, C comes late and sees what is left. Each waits for
facts about the others, so that the same thing happens on a slow machine, only later.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from holdfast_lab.handles import THREADS, Entry
from holdfast_lab.history import LAB
from holdfast_lab.parts import (
    HANG_S,
    LATE,
    all_through,
    beside,
    cast,
    comes,
    enter,
    epilogue,
    goes_by_that,
    in_step,
    into_release,
    left_by_the_dead,
    lock_changed,
    on_a_bare_majority,
    outcome,
    past_ttl,
    replicate,
    stop_at,
    take_turns,
    tried_once,
)
from holdfast_lab.proxy import Link, Request
from holdfast_lab.servers import no_compiler
from holdfast_lab.stage import LONG_MS, Actor, Stage, TooSlow
from holdfast_lab.texts import Text, text_of
from holdfast_lab.waiting import BEFORE_IT_ASKS, IN_LOCK, WHILE_IT_WAITS, crowd, interrupted

__all__ = ["AFTER_EXEC", "FAULTS", "UNCHECKED", "Fault"]

#: How far the clocks of two clients are apart, s; the lock must run longer than a few attempts, and shorter than this.
_SKEW_S = 8.0
_SKEWED_TTL_MS = 4_500
#: How far a server's clock jumps, s: more than the ttl of a lock that is held.
_JUMP_S = 60
#: How late the answers of a slow server are, s: far more than what Redlock waits for one.
_SLOW_S = 0.6
#: For a lock whose ttl is to last longer than a client waits for an answer, in short ttls.
_PATIENT_TTLS = 3
#: A section that ends in time: the part of its ttl that it takes; and from where on it was the machine that was late.
_NEAR_TTL, _TOO_NEAR = 0.8, 0.95
#: When in a second of the wall clock such a section begins: most of the lock is in the next second.
_BEGINS_AT = 0.7
#: More commands than any sane acquire has.
_MOST_STEPS = 16
#: Of an acquire that is refused; one that blocks and polls sends commands without end.
_MOST_BESIDE = 3

Play = Callable[[Stage, str], Awaitable[bool]]


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that goes wrong.

    ``plays``: the variants of the play. ``steps``: more of them, each with a number in place of {}: 1, 2, 3 … until the
    play returns False, having found nothing more to do. ``on``: "any" scheme, those of a "single" server, or those of
    a "quorum".
    """

    name: str
    play: Play
    plays: Sequence[str] = ("",)
    steps: Sequence[str] = ()
    on: str = "any"
    own_clock: bool = False
    replica: bool = False
    #: The server keeps its data over a restart.
    durable: bool = False
    #: Whether it can happen to threads of one process (texts.toml: why, or why not).
    threads: bool = True
    #: Only for locks that exclude.
    exclusive: bool = False
    #: Only for locks whose clients share a pool of connections, while they are threads of one process.
    pooled: bool = False
    #: Only for locks whose listing says what an interrupt does.
    interrupts: bool = False
    #: It takes that many servers at least.
    servers: int = 1
    restart_delay_s: float = 0.0
    missing: Callable[[], str | None] = field(default=lambda: None)

    @property
    def text(self) -> Text:
        return text_of("fault", self.name)

    @property
    def doc(self) -> str:
        return self.text["doc"]

    def applies_to(self, entry: Entry) -> bool:
        if (entry.replicated and not self.replica) or (entry.clients == THREADS and not self.threads):
            return False
        if (self.exclusive and not entry.exclusive) or entry.servers < self.servers:
            return False
        if (self.pooled and not (entry.pool and entry.clients == THREADS)) or (self.interrupts > entry.interrupts):
            return False
        return self.on == "any" or (self.on == "quorum") == (entry.servers > 1)

    def counted(self, variant: str) -> str:
        """The thing that the numbers of a row count: rows that count the same have the same length."""
        return "" if variant.startswith(("after", "before")) else variant

    def variants(self, entry: Entry) -> list[list[str]]:
        """The variants to play, in rows; a row ends where its play finds nothing more to do."""
        skipped = []
        if entry.exclusive:
            skipped.append(AFTER_EXEC)
        if entry.fenced is False:
            skipped.append(UNCHECKED)
        if entry.servers > 1 or not entry.exclusive:
            skipped.append(STALE)
        if not entry.own:
            skipped.append(OTHERS)
        if not entry.skips:
            skipped.append(f"after 1, {ALONE}")
        played = [[play] for play in self.plays if not play.startswith(tuple(skipped))]
        first = next((row for row in self.steps if not row.startswith(BESIDE)), "")
        for row in self.steps:
            if not row.startswith(tuple(skipped)):
                most = _MOST_BESIDE if row.startswith(BESIDE) else _MOST_STEPS
                # The servers of a quorum are alike: of each row but one the first step will do.
                most = 1 if entry.servers > 1 and row != first else most
                played.append([row.format(number + 1) for number in range(most)])
        return played


#: Variants that make a difference for optimistic schemes, and for those with fencing tokens.
AFTER_EXEC = "after an acknowledged EXEC"
CHECKED, UNCHECKED = "the resource checks fencing tokens", "the resource checks no fencing tokens"
#: Another client holds locks of other names.
OTHERS = "D holds locks of other names"
#: How many; names that share a lock show.
_OTHERS = 16
#: B asks, again and again, from before A's ttl is over.
EARLY = "B before the ttl is over"
#: No one asks before A goes on.
ALONE = "no one else asks"
#: A's command fails while B is inside.
BESIDE = "B is inside, "
#: A dead client's lock lies there, and its time is over.
STALE = "what a dead client left, "


async def _none(stage: Stage, variant: str) -> bool:
    if variant == OTHERS:
        return await _other_names(stage)
    a, b, c = await cast(stage)
    await enter(a)
    await a.do("read")
    b.start_acquire()
    if await stage.settled(b):
        await b.count()
    await a.finish()
    await epilogue(stage, b, c)
    return True


async def _other_names(stage: Stage) -> bool:
    d = await stage.client("D")
    stage.playing = True
    await d.do("hold others", count=_OTHERS, ttl_ms=4 * LONG_MS)
    there = await stage.servers[0].keys()
    a, b, c = await cast(stage)
    await enter(a)
    await a.turn()
    gone = sorted(there.keys() - (await stage.servers[0].keys()).keys())
    if gone:
        stage.history.add(stage.now_ns(), LAB, "others gone", keys=gone)
    await take_turns(stage, a, b, c)
    return True


async def _crash_in_acquire(stage: Stage, variant: str) -> bool:
    wanted, seen = int(variant.split()[1]), 0
    a, b, c = await cast(stage, stage.short_ms)

    async def after(request: Request) -> None:
        nonlocal seen
        if a.phase == "acquire":
            seen += 1
            if seen == wanted:
                killed = f"A is killed after its command {wanted} took effect"
                stage.fault(stage.either(killed, f"A ends in an exception after its command {wanted} took effect"))
                await a.kill_at_answer()

    a.links_hook(after=after)
    a.start_acquire()
    await stage.until(lambda: a.ended_asking, "A to die or to be through")
    if a.alive:
        return False  # the acquire has fewer commands
    await take_turns(stage, a, b, c)
    return True


async def _held_in_acquire(stage: Stage, a: Actor, b: Actor, c: Actor) -> None:
    """A has been stopped in its acquire and B had its chance: A goes on."""
    await a.go_on()
    if await stage.settled(a):
        await a.do("read")
        if b.inside:
            await b.do("write")
        await a.finish()
        await epilogue(stage, b, c)
        return
    c.start_acquire()
    await all_through(stage, *([b, a, c] if b.entered else [a, b, c]))


async def _interleaved(stage: Stage, variant: str) -> bool:
    stale = variant.startswith(STALE)
    if stale and not await left_by_the_dead(stage):
        return False
    a, b, c = await cast(stage)
    if not await stop_at(stage, a, "acquire", variant.removeprefix(STALE)):
        return False
    b.start_acquire()
    if await stage.settled(b):
        await b.do("read")
    elif stale:
        await a.go_on()
        return await stage.settled(a)  # it lasts forever: that is crash-holding's to tell
    await _held_in_acquire(stage, a, b, c)
    return True


async def _pause_in_acquire(stage: Stage, variant: str) -> bool:
    a, b, c = await cast(stage, stage.short_ms)
    if not await stop_at(stage, a, "acquire", variant.partition(",")[0]):
        return False
    if ALONE in variant:
        await past_ttl(stage, a)
        await a.go_on()
        await stage.settled(a)
        await all_through(stage, *([a] if a.inside else []), b, c)
        return True
    if await comes(stage, a, b, variant):
        await b.do("read")
    await _held_in_acquire(stage, a, b, c)
    return True


async def _release_unheld(stage: Stage, variant: str) -> bool:
    a, b, c = await cast(stage)
    await enter(a)
    await a.do("read")
    stage.fault("B gives back what it does not have (a `finally` after an acquire that failed)")
    await b.do("release", unheld=True)
    await beside(stage, a, c, b)
    return True


async def _near_ttl(stage: Stage, variant: str) -> bool:
    a, b, c = await cast(stage, stage.short_ms)
    await asyncio.sleep((_BEGINS_AT - time.time()) % 1)
    await enter(a)
    if time.time() % 1 > _TOO_NEAR or time.time() % 1 < _BEGINS_AT:
        raise TooSlow
    await a.do("read")
    stage.fault(f"A stays inside for {_NEAR_TTL:.0%} of its ttl of {a.ttl_ms} ms, as it may")
    b.start_acquire()
    began_ns = a.events("asks")[0].at_ns
    ends_ns = began_ns + int(a.ttl_ms * _NEAR_TTL * 1e6)
    with contextlib.suppress(TimeoutError):
        left_s = max(0.01, (ends_ns - stage.now_ns()) / 1e9)
        await stage.until(lambda: b.ended_asking, "", timeout_s=left_s, patient=False)
    if b.inside:
        await b.count()
    await a.do("write")
    await a.do("leave")
    if (a.events("left", "lost")[0].at_ns - began_ns) / 1e6 > a.ttl_ms * _TOO_NEAR:
        raise TooSlow
    await a.release()
    await epilogue(stage, b, c)
    return True


async def _stopped_for_its_ttl(stage: Stage, a: Actor, b: Actor, c: Actor, variant: str) -> bool:
    """A sleeps inside until its time is over and B may have got in, and then goes on."""
    await a.stop()
    if await comes(stage, a, b, variant):
        await b.count()
    a.resume()
    await a.finish()
    await epilogue(stage, b, c)
    return True


async def _pause_before_write(stage: Stage, variant: str) -> bool:
    stage.checks_fences = not variant.startswith(UNCHECKED)
    a, b, c = await cast(stage, stage.short_ms)
    await enter(a)
    await a.do("read")
    await a.do("look")
    stage.fault("A has looked at its lease, and is stopped before it writes")
    return await _stopped_for_its_ttl(stage, a, b, c, variant)


async def _crash_holding(stage: Stage, variant: str) -> bool:
    a, b, c = await cast(stage, stage.short_ms)
    await enter(a)
    await a.do("read")
    if variant == "inside":
        stage.fault(stage.either("A is killed inside the section", "A ends in an exception inside the section"))
    else:
        await a.do("write")
        await a.do("leave")
        done = variant.split()[-1]
        if not await stop_at(stage, a, "release", f"before {int(done) + 1}"):
            return False
        killed = f"A is killed after command {done} of its release"
        stage.fault(stage.either(killed, f"A ends in an exception after command {done} of its release"))
    await a.kill()
    await take_turns(stage, a, b, c)
    return True


async def _long_section(stage: Stage, variant: str) -> bool:
    a, b, c = await cast(stage, stage.short_ms)
    await enter(a)
    await a.do("read")
    stage.fault(f"A stays inside for longer than its ttl of {a.ttl_ms} ms")
    if await comes(stage, a, b, variant):
        await b.count()
    await a.finish()
    if await stage.settled(b):
        await asyncio.sleep(a.ttl_ms / 2000)  # what renews has time to find out that it is over
    await epilogue(stage, b, c)
    return True


async def _late_release(stage: Stage, variant: str) -> bool:
    a, b, c = await cast(stage, stage.short_ms)
    await enter(a)
    await a.count()
    await a.do("leave")
    stage.fault("A has left in time, but gives back late")
    if not await comes(stage, a, b, variant):
        await a.release()
        await epilogue(stage, b, c)
        return True
    await b.do("read")
    c.start_acquire()
    await stage.settled(c)

    async def after(request: Request) -> None:
        if a.phase == "release":
            await stage.settled(c)  # C has its chance between any two commands

    a.links_hook(after=after)
    await a.release()
    await stage.settled(c)
    await all_through(stage, b, c)
    return True


async def _pause_in_release(stage: Stage, variant: str) -> bool:
    a, b, c = await cast(stage, 2 * stage.short_ms)
    await enter(a)
    await a.count()
    await a.do("leave")

    stopped = await stop_at(stage, a, "release", variant.partition(",")[0])
    stage.no_early_expiry()
    if not stopped:
        return False
    if await comes(stage, a, b, variant):
        await b.do("read")
    await a.go_on()
    await outcome(stage, a, "released", "failed")
    await epilogue(stage, b, c)
    return True


async def _pause_holding(stage: Stage, variant: str) -> bool:
    a, b, c = await cast(stage, stage.short_ms)
    await enter(a)
    await a.do("read")
    stage.fault("A is stopped inside the section")
    return await _stopped_for_its_ttl(stage, a, b, c, variant)


async def _client_clocks(stage: Stage, variant: str) -> bool:
    a = await stage.client("A", _SKEWED_TTL_MS)
    b = await stage.client("B", clock_offset_s=_SKEW_S)
    c = await stage.client("C")
    stage.fault(f"the clock of B is {_SKEW_S:g} s ahead")
    await enter(a)
    await a.do("read")
    b.start_acquire()
    if await stage.settled(b):
        await b.count()
    stage.no_early_expiry()
    await a.finish()
    await epilogue(stage, b, c)
    return True


async def _server_clock(stage: Stage, variant: str) -> bool:
    a, b, c = await cast(stage)
    await enter(a)
    await a.do("read")
    count = len(stage.servers) // 2 + 1
    one = f"the server's clock jumps {_JUMP_S} s ahead"
    stage.fault(one if count == 1 else f"the clocks of {count} servers jump {_JUMP_S} s ahead")
    for server in stage.servers[:count]:
        server.jump(_JUMP_S)
    b.start_acquire()
    if await stage.settled(b):
        await b.count()
    await a.finish()
    await epilogue(stage, b, c)
    return True


async def _reply_lost(stage: Stage, variant: str) -> bool:
    phase, wanted = variant.split()
    a, b, c = await cast(stage, _PATIENT_TTLS * stage.short_ms)
    seen = 0

    async def after(request: Request) -> None:
        nonlocal seen
        if a.phase == phase and lock_changed(stage, request):
            seen += 1
            if seen == int(wanted):
                a.links_hook()
                stage.fault(f"the answer to A's {request.verb} is lost; it took effect")
                raise Link.swallow

    if phase == "acquire":
        a.links_hook(after=after)
        a.start_acquire(once=True)
        await tried_once(stage, a)
        if seen < int(wanted) > 1:
            return False
        await goes_by_that(stage, a, b, c)
        return True
    await into_release(a)
    a.links_hook(after=after)
    a.start_release()
    with contextlib.suppress(TimeoutError):
        await stage.until(
            lambda: seen >= int(wanted) or bool(a.events("released", "failed")), "", timeout_s=HANG_S, patient=False
        )
    if seen < int(wanted) > 1:
        return False
    b.start_acquire()
    if await stage.through_expiry(b, a.ttl_ms):
        await b.do("read")
    await outcome(stage, a, "released", "failed")
    await epilogue(stage, b, c)
    return True


async def _reset(stage: Stage, variant: str) -> bool:
    phase, wanted = variant.removeprefix(BESIDE).split()
    a, b, c = await cast(stage, _PATIENT_TTLS * stage.short_ms)
    seen = 0
    if variant.startswith(BESIDE):
        await enter(b)
        await b.do("read")

    async def before(request: Request) -> None:
        nonlocal seen
        if a.phase == phase:
            seen += 1
            if seen == int(wanted):
                stage.fault(f"A's connection is reset when it sends {request.verb}; the server never sees that")
                raise Link.reset

    if phase == "acquire":
        a.links_hook(before=before)
        a.start_acquire(once=True)
        await tried_once(stage, a)
    else:
        await into_release(a)
        a.links_hook(before=before)
        a.start_release()
        await outcome(stage, a, "released", "failed")
    if seen < int(wanted) > 1:
        return False
    if variant.startswith(BESIDE):
        if a.entered:
            await a.do("read")
            await a.finish()
        await epilogue(stage, b, c)
    elif phase == "acquire":
        await goes_by_that(stage, a, b, c)
    else:
        await take_turns(stage, a, b, c)
    return True


async def _scripts_flushed(stage: Stage, variant: str) -> bool:
    a, b, c = await cast(stage, stage.short_ms)
    await enter(a)
    stage.fault("SCRIPT FLUSH")
    for server in stage.servers:
        await server.ask("SCRIPT", "FLUSH")
    await a.count()
    await a.do("leave")
    await a.release()
    await take_turns(stage, a, b, c)
    return True


async def _restarted(stage: Stage, variant: str) -> bool:
    a, b, c = await cast(stage)
    await enter(a)
    await (a.finish() if variant == AFTER_EXEC else a.do("read"))
    stage.fault("the server is killed and comes back empty")
    await stage.servers[0].kill()
    await stage.servers[0].start_again()
    await beside(stage, a, b, c)
    return True


async def _server_dies_in_acquire(stage: Stage, variant: str) -> bool:
    wanted, seen, dead = int(variant.split()[1]), 0, False
    a, b, c = await cast(stage, _PATIENT_TTLS * stage.short_ms)
    server = stage.servers[0]

    async def die(request: Request) -> None:
        nonlocal seen, dead
        if a.phase == "acquire" and not dead:
            seen += 1
            if seen == wanted:
                dead = True
                stage.fault(f"the server dies before it answers command {wanted} of A's acquire, which it has on disk")
                await asyncio.Event().wait()  # until the connection breaks

    a.links_hook(after=die)
    a.start_acquire(once=True)
    await stage.until(lambda: dead or a.ended_asking, "the server to die, or A to be through")
    if not dead:
        return False  # the acquire has fewer commands
    await server.kill()
    await server.start_again()
    await tried_once(stage, a)
    await goes_by_that(stage, a, b, c)
    return True


async def _failover(stage: Stage, variant: str) -> bool:
    master = stage.servers[0]
    replica = await stage.another_server("replica")
    relay = await replicate(stage, master, replica)
    await in_step(stage, master, replica)
    a, b, c = await cast(stage)
    await in_step(stage, master, replica)
    stage.fault("the replica stops hearing from its master", lasting=True)
    relay.cut()
    a.start_acquire()
    if await stage.enters(a):
        await (a.finish() if variant == AFTER_EXEC else a.do("read"))
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
        await replicate(stage, replica, second)
        await in_step(stage, replica, second)
    for actor in (a, b, c):
        for link in actor.links:
            link.server = replica
    await beside(stage, a, b, c)
    return True


async def _stopped(stage: Stage, variant: str) -> bool:
    count = len(stage.servers) // 2 + 1 if variant == "most" else int(variant)
    a, b, c = await cast(stage)
    stage.fault(f"{count} of {len(stage.servers)} servers are stopped (SIGSTOP)", lasting=True)
    stopped = stage.servers[-count:]
    for server in stopped:
        server.pause()

    def heal() -> None:
        for server in stopped:
            server.resume()

    return await _while_it_lasts(stage, a, b, c, heal)


async def _slow(stage: Stage, variant: str) -> bool:
    a, b, c = await cast(stage)
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
        await epilogue(stage, b, c)
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
    a, b, c = await cast(stage)
    if await on_a_bare_majority(stage, a):
        which = len(stage.servers) // 2
        stage.fault(f"server {which + 1} is killed and comes back empty, at once")
        await stage.servers[which].kill()
        await stage.servers[which].start_again()
    await beside(stage, a, b, c)
    return True


async def _one_clock(stage: Stage, variant: str) -> bool:
    a, b, c = await cast(stage)
    if variant == "all had granted":
        await enter(a)
        await a.do("read")
        held = True
    else:
        held = await on_a_bare_majority(stage, a)
    if held:
        which = len(stage.servers) // 2
        stage.fault(f"the clock of server {which + 1} jumps {_JUMP_S} s ahead")
        stage.servers[which].jump(_JUMP_S)
    await beside(stage, a, b, c)
    return True


async def _answers_lost(stage: Stage, variant: str) -> bool:
    a, b, c = await cast(stage, _PATIENT_TTLS * stage.short_ms)
    majority = len(stage.servers) // 2 + 1
    lost: set[str] = set()

    async def lose(request: Request) -> None:
        wanted = a.phase == "acquire" and request.server not in lost and len(lost) < majority
        if wanted and lock_changed(stage, request):
            lost.add(request.server)
            stage.fault(f"the answer of {request.server} to A is lost; it took effect")
            raise Link.swallow

    a.links_hook(after=lose)
    a.start_acquire(once=True)
    await tried_once(stage, a)
    await goes_by_that(stage, a, b, c)
    return True


FAULTS: dict[str, Fault] = {
    fault.name: fault
    for fault in (
        Fault("none", _none, plays=("", OTHERS)),
        Fault("near-ttl", _near_ttl),
        Fault("crowd", crowd, pooled=True),
        Fault("long-section", _long_section, plays=(EARLY, LATE)),
        Fault("release-unheld", _release_unheld, exclusive=True),
        Fault("late-release", _late_release, plays=(EARLY, LATE)),
        Fault("interleaved", _interleaved, plays=(), steps=("after {}", "before {}", STALE + "after {}")),
        Fault(
            "pause-in-acquire",
            _pause_in_acquire,
            plays=(f"after 1, {ALONE}",),
            steps=("after {}", f"after {{}}, {LATE}", f"before {{}}, {LATE}"),
        ),
        Fault(
            "pause-in-release",
            _pause_in_release,
            plays=(),
            steps=("before {}", f"before {{}}, {LATE}", "after {}"),
        ),
        Fault("pause-holding", _pause_holding, plays=(EARLY, LATE)),
        Fault(
            "pause-before-write",
            _pause_before_write,
            plays=(CHECKED, f"{CHECKED}, {LATE}", UNCHECKED, f"{UNCHECKED}, {LATE}"),
        ),
        Fault("crash-in-acquire", _crash_in_acquire, plays=(), steps=("after {}",)),
        Fault("crash-holding", _crash_holding, plays=("inside",), steps=("release {}",)),
        Fault("client-clocks", _client_clocks, threads=False),
        Fault("server-clock", _server_clock, own_clock=True, missing=no_compiler),
        Fault("reply-lost", _reply_lost, plays=(), steps=("acquire {}", "release {}")),
        Fault("reset", _reset, plays=(), steps=(BESIDE + "acquire {}", "acquire {}", "release {}")),
        Fault("interrupted", interrupted, plays=(WHILE_IT_WAITS, IN_LOCK, BEFORE_IT_ASKS), interrupts=True),
        Fault("scripts-flushed", _scripts_flushed),
        Fault(
            "server-dies-in-acquire", _server_dies_in_acquire, plays=(), steps=("after {}",), on="single", durable=True
        ),
        Fault("server-restarted", _restarted, plays=("inside", AFTER_EXEC), on="single"),
        Fault("failover", _failover, plays=("inside", AFTER_EXEC), on="single", replica=True),
        Fault("one-stopped", _stopped, plays=("1",), on="quorum"),
        Fault("two-stopped", _stopped, plays=("2",), on="quorum", servers=4),
        Fault("most-stopped", _stopped, plays=("most",), on="quorum"),
        Fault("one-restarted", _one_restarted, on="quorum", restart_delay_s=8.0),
        Fault(
            "one-clock",
            _one_clock,
            plays=("all had granted", "a bare majority had granted"),
            on="quorum",
            own_clock=True,
            missing=no_compiler,
        ),
        Fault("one-slow", _slow, on="quorum"),
        Fault("answers-lost", _answers_lost, on="quorum"),
    )
}

"""Delay is a fault for every request: each request of a lease, carried out after each of those behind it.

A story is what a lease lives through: acquired at once or after waiting, renewed, extended to more and to less,
upgraded, downgraded, waited with, released. It is run once for each pair of its requests, the first of them being
carried out after the second, with the real scripts on the model of a server. Whatever the pair:

- the server keeps it for as long as the client trusts it, and would let in no one else;
- the client does not lose it, since a single request without an answer is no reason;
- after its release, and what that leaves to the background, it holds nothing and waits for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from holdfast._core import multilock, rwlock
from holdfast._core.condition import ConditionAcquisition, condition_key
from holdfast._core.effects import Protocol
from holdfast._core.exclusive import OneServer, OverQuorum
from holdfast._core.failure import RequestFailed
from holdfast._core.keys import lock_keys
from holdfast._core.kinds import SEMAPHORE
from holdfast._core.plain import Scripts
from holdfast._core.record import LeaseRecord
from holdfast._core.redlock import Quorum
from holdfast._core.rwlock import READER, WRITER, RWAcquisition, upgrade_token
from holdfast._core.semaphore import SemaphoreAcquisition
from holdfast._core.waiting import Acquisition, Busy, Grant, wait_for
from sim.server import Server
from tests.support.late import OTHER_ID, Late, World

TTL_MS, LONGER_MS, SHORTER_MS, BETWEEN_MS = 30_000, 120_000, 20_000, 60_000

KEYS = lock_keys("holdfast", "a")
SEVERAL = [lock_keys("holdfast", name) for name in ("a", "b")]
PERMITS = KEYS.of(SEMAPHORE)


@dataclass
class Held:
    """A lease of the story, for the looks after each request: how long each server keeps it, and what a rival asks."""

    hold: LeaseRecord
    until_ms: Callable[[Server], list[int]]
    #: What someone else would ask for, on a copy: the scripts' replies must not be grants.
    rival: tuple[str, tuple[str, ...], tuple[Any, ...]]
    need: int = 1


@dataclass
class Story:
    """One life, on a world."""

    world: World
    held: list[Held] = field(default_factory=list)
    #: Tokens that were given back, and where they must not be.
    ended: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.world.check = self.look

    def hold(
        self, hold: LeaseRecord, until_ms: Callable[[Server], list[int]], rival: Any, need: int = 1
    ) -> LeaseRecord:
        """The caller has it."""
        self.held.append(Held(self.world.watch(hold), until_ms, rival, need))
        self.look()
        return hold

    async def let_go(self, hold: LeaseRecord) -> None:
        await self.world.release(hold)

    async def life(self, hold: LeaseRecord) -> None:
        """Renewed and extended in all the ways that there are."""
        world = self.world
        await world.renew(hold)
        for ttl_ms in (LONGER_MS, SHORTER_MS, BETWEEN_MS):
            await world.extend(hold, ttl_ms)
        await world.renew(hold)

    # -- looks --------------------------------------------------------------------------------------

    def told(self, what: str) -> str:
        return "\n".join([what, *self.world.trace])

    def look(self) -> None:
        world = self.world
        for held in self.held:
            if not world.lives(held.hold):
                continue
            ends: list[int] = []
            for server in world.servers:
                server.now_ms = int(world.now * 1000)
                until_ms = held.until_ms(server)
                if until_ms:
                    ends.append(min(until_ms))
            ends.sort(reverse=True)
            enough = len(ends) >= held.need and ends[held.need - 1] / 1000 >= held.hold.deadline
            assert enough, self.told(f"{held.hold.token} is trusted until {held.hold.deadline:.3f}, kept until {ends}")
            script, keys, args = held.rival
            votes = 0
            for twin in world.copies():
                votes += twin.script(script, keys, args)[0] == 1
            assert votes < held.need, self.told(f"someone else is let in beside {held.hold.token}")

    def over(self) -> None:
        """All has ended: nothing of it is left."""
        for server in self.world.servers:
            for key, value in server.snapshot(int(self.world.now * 1000)).items():
                if key.endswith((b":gone", b":fence")) or b":order:" in key:
                    continue
                shown = str(getattr(value[0], "scores", value[0]))
                for token in self.ended:
                    assert token not in shown, self.told(f"{token} is left in {key!r}")


def key_until(*keys: str) -> Callable[[Server], list[int]]:
    """When the time of those keys is over; [] when one is not its."""

    def until_ms(server: Server) -> list[int]:
        return [server.expires.get(key.encode(), 0) for key in keys if server.value(key.encode()) is not None]

    return until_ms


def score_until(key: str, token: str, *more: str) -> Callable[[Server], list[int]]:
    """When its own time among others is over, and that of these keys."""

    def until_ms(server: Server) -> list[int]:
        scores = getattr(server.value(key.encode()), "scores", {})
        score = scores.get(token.encode())
        return [] if score is None else [int(score), *key_until(*more)(server)]

    return until_ms


def rival(script: str, keys: tuple[str, ...], token: str, *more: Any) -> tuple[str, tuple[str, ...], tuple[Any, ...]]:
    return script, keys, (token, 1_000, "try", 0, 1_000_000, 1_000, KEYS.inboxes, *more)


LOCK_RIVAL = rival("acquire", KEYS.all, f"{OTHER_ID}:1:99")


def busy_then_free(story: Story, script: str, keys: tuple[str, ...], token: str, *more: Any) -> None:
    """Someone else holds it first, and releases it while we wait."""
    world = story.world
    release = {"acquire": "release", "rw_acquire": "rw_release", "sem_acquire": "sem_release"}.get(script)
    args = rival(script, keys, token, *more)[2]
    server = world.servers[0]
    assert server.script(script, keys, (token, 600_000, *args[2:]))[0] == 1

    def let_go() -> None:
        server.script(release or "multi_release", keys, (token, 1_000_000, 2_000, KEYS.inboxes, 0))

    world.meanwhile.append(let_go)


async def granted(asking: Protocol[Grant | Busy]) -> Grant:
    got = await asking
    assert isinstance(got, Grant)
    return got


# ---------------------------------------------------------------- the stories


async def lock(story: Story, waits: bool = False, keep: bool = True, ending: str = "") -> LeaseRecord:
    """The lock: acquired, at once or after waiting."""
    token = story.world.token() + ending
    if waits:
        busy_then_free(story, "acquire", KEYS.all, f"{OTHER_ID}:1:98")
    exclusive = OneServer(KEYS, story.world.settings)
    grant = await granted(exclusive.acquire(token, TTL_MS, None, waits))
    story.ended.append(token)
    hold = exclusive.make_record(token, grant, TTL_MS)
    if keep:
        story.hold(hold, _mine(KEYS.lock, token), LOCK_RIVAL)
    return hold


def _mine(key: str, token: str) -> Callable[[Server], list[int]]:
    def until_ms(server: Server) -> list[int]:
        return key_until(key)(server) if server.value(key.encode()) == token.encode() else []

    return until_ms


async def a_lock(story: Story) -> None:
    hold = await lock(story)
    await story.life(hold)
    await story.let_go(hold)


async def a_lock_that_was_waited_for(story: Story) -> None:
    hold = await lock(story, waits=True)
    await story.life(hold)
    await story.let_go(hold)


async def a_lock_with_crash_release(story: Story) -> None:
    hold = await lock(story, ending="!10000")
    await story.life(hold)
    await story.let_go(hold)


async def a_wait_that_was_broken_off(story: Story) -> None:
    world = story.world
    token = world.token()
    busy_then_free(story, "acquire", KEYS.all, f"{OTHER_ID}:1:98")
    world.meanwhile.clear()

    def interrupt() -> None:
        raise KeyboardInterrupt

    world.meanwhile.append(interrupt)
    story.ended.append(token)
    with pytest.raises(KeyboardInterrupt):
        await OneServer(KEYS, world.settings).acquire(token, TTL_MS, None, True)
    world.servers[0].script("release", KEYS.all, (f"{OTHER_ID}:1:98", 1_000_000, 2_000, KEYS.inboxes, 0))


async def a_lock_without_scripts(story: Story) -> None:
    world = story.world
    scripts, token = Scripts(), world.token()
    scripts.refused = True
    scripts.deletes = ["WATCH"]
    exclusive = OneServer(KEYS, world.settings, scripts=scripts)
    grant = await granted(exclusive.acquire(token, TTL_MS, None, True))
    hold = story.hold(exclusive.make_record(token, grant, TTL_MS), _mine(KEYS.lock, token), LOCK_RIVAL)
    await story.life(hold)
    await story.let_go(hold)


async def _acquisition(
    story: Story, acquisition: Acquisition, name: str, until_ms: Any, rival: Any, waits: bool = False
) -> LeaseRecord:
    grant = await granted(wait_for(acquisition, None, listening=waits))
    story.ended.append(acquisition.token)
    return story.hold(acquisition.make_record(name, grant), until_ms, rival)


def _rw(story: Story, token: str) -> RWAcquisition:
    return RWAcquisition(KEYS, token, TTL_MS, story.world.settings)


RW_KEYS = KEYS.more("readers", "upgraded")
WRITE_RIVAL = rival("rw_acquire", RW_KEYS, f"{OTHER_ID}:w.1:99")
READ_RIVAL = rival("rw_acquire", RW_KEYS, f"{OTHER_ID}:r.1:99")
READERS = f"{KEYS.base}:readers"
UPGRADED = f"{KEYS.base}:upgraded"


async def _reader(story: Story, waits: bool = False) -> LeaseRecord:
    token = story.world.token(READER)
    if waits:
        busy_then_free(story, "rw_acquire", RW_KEYS, f"{OTHER_ID}:w.1:98")
    until_ms = score_until(READERS, token, KEYS.lock)
    return await _acquisition(story, _rw(story, token), "a", until_ms, WRITE_RIVAL, waits)


async def _writer(story: Story, waits: bool = False) -> LeaseRecord:
    token = story.world.token(WRITER)
    if waits:
        busy_then_free(story, "rw_acquire", RW_KEYS, f"{OTHER_ID}:r.1:98")
    return await _acquisition(story, _rw(story, token), "a", _mine(KEYS.lock, token), READ_RIVAL, waits)


async def a_reader(story: Story) -> None:
    hold = await _reader(story)
    await story.life(hold)
    await story.let_go(hold)


async def a_reader_that_waited(story: Story) -> None:
    hold = await _reader(story, waits=True)
    await story.life(hold)
    await story.let_go(hold)


async def a_writer(story: Story) -> None:
    hold = await _writer(story)
    await story.life(hold)
    await story.let_go(hold)


async def a_writer_that_waited(story: Story) -> None:
    hold = await _writer(story, waits=True)
    await story.life(hold)
    await story.let_go(hold)


async def an_upgrade(story: Story) -> None:
    world = story.world
    reader = await _reader(story)
    await world.extend(reader, LONGER_MS)
    token = upgrade_token(reader.token, 7)
    writer = await _acquisition(story, _rw(story, token), "a", _mine(UPGRADED, token), READ_RIVAL)
    await story.life(writer)
    await world.renew(reader)
    await world.extend(reader, BETWEEN_MS)
    await story.let_go(writer)
    await world.renew(reader)
    await world.extend(reader, LONGER_MS)
    await story.let_go(reader)


async def a_downgrade(story: Story) -> None:
    world = story.world
    writer = await _writer(story)
    await world.renew(writer)
    await world.extend(writer, LONGER_MS)
    assert writer.mark_released()
    world.schedule.remove(writer)
    token = world.token(READER)
    acquisition = _rw(story, token)
    before = _rw(story, writer.token)
    before.stray = writer.stray
    story.ended.append(token)
    try:
        grant = await rwlock.downgrade(before, acquisition)
    except RequestFailed:
        return  # not known in time: both are given back
    assert grant is not None
    reader = story.hold(acquisition.make_record("a", grant), score_until(READERS, token, KEYS.lock), WRITE_RIVAL)
    await story.life(reader)
    await story.let_go(reader)


async def permits(story: Story, waits: bool = False) -> None:
    token = story.world.token("1.")
    keys = PERMITS.more("holders")
    if waits:
        busy_then_free(story, "sem_acquire", keys, f"{OTHER_ID}:1.1:98", 1)
    acquisition = SemaphoreAcquisition(PERMITS, token, TTL_MS, 1, story.world.settings)
    until_ms = score_until(f"{PERMITS.base}:holders", token)
    hold = await _acquisition(
        story, acquisition, "a", until_ms, rival("sem_acquire", keys, f"{OTHER_ID}:1.1:99", 1), waits
    )
    await story.life(hold)
    await story.let_go(hold)


async def permits_that_were_waited_for(story: Story) -> None:
    await permits(story, waits=True)


async def several(story: Story, together: bool = True, waits: bool = False) -> None:
    world = story.world
    token = world.token()
    if waits:
        busy_then_free(story, "acquire", SEVERAL[1].all, f"{OTHER_ID}:1:98")
    turn = multilock.turn_for(SEVERAL, together, token, TTL_MS, world.settings)
    story.ended.append(token)
    try:
        if isinstance(turn, multilock.SeveralTurns):
            grant = await granted(turn.acquire(None))
        else:
            grant = await granted(wait_for(turn, None, listening=waits))
    except RequestFailed:
        assert not together
        return  # what is held of some slots was not extended: all is given back

    def until_ms(server: Server) -> list[int]:
        ends = [_mine(keys.lock, token)(server) for keys in SEVERAL]
        return [end for each in ends for end in each] if all(ends) else []

    hold = turn.make_record("a + b", grant)
    story.hold(hold, until_ms, rival("acquire", SEVERAL[1].all, f"{OTHER_ID}:1:99"))
    await story.life(hold)
    await story.let_go(hold)


async def several_that_were_waited_for(story: Story) -> None:
    await several(story, waits=True)


async def several_slots(story: Story) -> None:
    await several(story, together=False)


async def several_slots_that_were_waited_for(story: Story) -> None:
    await several(story, together=False, waits=True)


async def a_condition(story: Story, notified: bool = False) -> None:
    world = story.world
    before = await lock(story)
    await world.extend(before, LONGER_MS)
    cond = condition_key(KEYS, "changed")
    token = world.token()
    acquisition = ConditionAcquisition(KEYS, cond, before.token, token, TTL_MS, world.settings)
    acquisition.stray_holder = before.stray
    assert before.mark_released()
    world.schedule.remove(before)
    if notified:
        server = world.servers[0]

        def notify() -> None:
            other = f"{OTHER_ID}:1:97"
            if server.script("acquire", KEYS.all, (other, *LOCK_RIVAL[2][1:]))[0] != 1:
                assert world.late is not None and world.late.twice, "a copy of what no one knows of was late"
                world.meanwhile.append(notify)
                return
            keys = (KEYS.lock, KEYS.queue, cond, KEYS.gone, f"{cond}:last")
            server.script("cond_notify", keys, (other, 1, KEYS.inboxes, 1))
            server.script("release", KEYS.all, (other, 1_000_000, 2_000, KEYS.inboxes, 0))

        world.meanwhile.append(notify)
    story.ended.append(token)
    try:
        grant = await granted(wait_for(acquisition, None if notified else 12.0, listening=True))
    except RequestFailed:
        world.background.append(before.release())
        return
    again = OneServer(KEYS, world.settings).make_record(token, grant, TTL_MS)
    hold = story.hold(again, _mine(KEYS.lock, token), LOCK_RIVAL)
    await story.life(hold)
    await story.let_go(hold)


async def a_condition_that_was_notified(story: Story) -> None:
    await a_condition(story, notified=True)


async def a_condition_that_was_left(story: Story) -> None:
    """A wait that is interrupted: the lock is not held any more, neither with the old token nor with the new one."""
    world = story.world
    before = await lock(story)
    token = world.token()
    cond = condition_key(KEYS, "changed")
    acquisition = ConditionAcquisition(KEYS, cond, before.token, token, TTL_MS, world.settings)
    acquisition.stray_holder = before.stray
    assert before.mark_released()
    world.schedule.remove(before)
    story.ended.append(token)

    def interrupt() -> None:
        raise KeyboardInterrupt

    world.meanwhile.append(interrupt)
    with pytest.raises(KeyboardInterrupt):
        await wait_for(acquisition, None, listening=True)
    world.background.append(before.release())
    world.background.append(acquisition.give_back())


async def a_quorum(story: Story) -> None:
    world = story.world
    token = world.token()
    quorum = Quorum(["m0", "m1", "m2"], 0, None, world.settings)
    exclusive = OverQuorum(KEYS, world.settings, quorum)
    grant = await granted(exclusive.acquire(token, TTL_MS, None, False))
    hold = exclusive.make_record(token, grant, TTL_MS)
    story.ended.append(hold.token)
    vote = ("quorum_acquire", (KEYS.lock, KEYS.fence, KEYS.gone), (f"{OTHER_ID}:1:99", 0, 1_000, 1_000_000, 0, ""))
    story.hold(hold, _mine(KEYS.lock, hold.token), vote, need=2)
    await story.life(hold)
    await story.let_go(hold)


STORIES: dict[str, tuple[Callable[[Story], Protocol[None]], int]] = {
    story.__name__: (story, 3 if story is a_quorum else 1)
    for story in (
        a_lock,
        a_lock_that_was_waited_for,
        a_lock_with_crash_release,
        a_wait_that_was_broken_off,
        a_lock_without_scripts,
        a_reader,
        a_reader_that_waited,
        a_writer,
        a_writer_that_waited,
        an_upgrade,
        a_downgrade,
        permits,
        permits_that_were_waited_for,
        several,
        several_that_were_waited_for,
        several_slots,
        several_slots_that_were_waited_for,
        a_condition,
        a_condition_that_was_notified,
        a_condition_that_was_left,
        a_quorum,
    )
}


def told(name: str, late: Late | None) -> World:
    """Tell the story; the late request is carried out by its end at the latest."""
    play, nodes = STORIES[name]
    world = World(late, nodes)
    story = Story(world)
    world.run(play(story))
    world.finish()
    while world.background:
        world.run(world.background.popleft())
    if late is None or not late.twice:
        story.over()
    for held in story.held:
        assert held.hold.reason is None, story.told(f"{held.hold.token} was lost: {held.hold.reason}")
    return world


def pairs(name: str, twice: bool) -> Iterator[Late]:
    requests = told(name, None).requests
    for number in range(1, requests + 1):
        for behind in range(requests + 3 - number):
            yield Late(number, behind, twice)


#: Told in the short run of the tests, too; the others take the same ways, or longer.
BRIEF = {
    *(a_lock, a_lock_that_was_waited_for, a_wait_that_was_broken_off, a_downgrade, an_upgrade, permits, several),
    *(a_condition, a_condition_that_was_left),
}


@pytest.mark.parametrize(
    "name",
    [
        name if play in BRIEF else pytest.param(name, marks=pytest.mark.thorough)
        for name, (play, _) in sorted(STORIES.items())
    ],
)
def test_any_request_may_be_carried_out_after_any_later_one(name: str) -> None:
    late = [told(name, late).done for late in pairs(name, twice=False)]
    assert len(late) > 5 and sum(late) > len(late) / 2


@pytest.mark.parametrize(
    "name",
    [
        name if play is a_downgrade else pytest.param(name, marks=pytest.mark.thorough)
        for name, (play, _) in sorted(STORIES.items())
        if play is not a_lock_without_scripts
    ],
)
def test_any_request_may_be_carried_out_once_more_after_any_later_one(name: str) -> None:
    """The client knows nothing of that: it may cost others time, but no trust.

    (Not the commands of a transaction: they are sent on one connection, which repeats none of them.)
    """
    late = [told(name, late).done for late in pairs(name, twice=True)]
    assert all(late)


def test_every_request_that_a_lease_can_make_is_in_a_story() -> None:
    """A script that takes, extends or gives back, and is in no story, is forgotten here."""
    from holdfast._lua import SCRIPTS

    seen: set[str] = set()
    for name in STORIES:
        for line in told(name, None).trace:
            seen.add(line.split()[4])
    others = {
        "acquire_each": "as `acquire` where no token was given back; tests/contract/test_together.py",
        "release_each": "as `release` where no one waits; tests/contract/test_together.py",
        "renew_many": "runs each lease's own script, which is in one",
        "barrier_move": "a barrier grants no lease",
        "barrier_wait": "a barrier grants no lease",
        "gate_move": "an event or latch grants no lease",
        "gate_wait": "an event or latch grants no lease",
        "cond_notify": "of the holder, once: it changes no lease",
        "fenced_set": "guards a value, holds nothing",
        "set_if": "changes a value, holds nothing",
        "hears": "tells its own client something, holds nothing",
        "there": "looks only",
        "inspect": "looks only",
        "overview": "looks only",
        "counts": "counts grants, changes no lease",
        "sem_resize": "changes a limit, no lease",
        "tell": "tells a holder, and writes a note that it finds; the lease stays as it is",
    }
    assert set(SCRIPTS) - seen == set(others)

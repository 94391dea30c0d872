"""Races inside the threads API: release, close, renewal, extension, loss and fork, in schedules that a seed decides.

A failure names its seed: `World(seed)` plays it again. What the scheduler can see is shown by changes of the engine
that it has to find, at the end.
"""

from __future__ import annotations

import gc
import inspect
import os
import textwrap
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

import holdfast
from holdfast._core.record import LeaseRecord, LeaseState
from holdfast._core.tenure import ALONE_MS, LocalWaiter
from holdfast._engine.link import Link
from holdfast._engine.loop import Engine
from holdfast._front.base import Front
from tests.support.scheduled import World

KEY = b"holdfast:{a}"
#: A thread that can go on does so without time passing: what takes longer than this was not woken, s.
PROMPT_S = 0.3

Scenario = Callable[[World], None]


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """Threads that are cut short leave leases in cycles. Their warnings must not come in the middle of another test."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def just_when(world: World, name: str) -> None:
    """Sleep up to about the moment at which a thread of the background goes on by itself."""
    lead_s = world.random.choice((0, 0, 0.0002, 0.001))
    world.sleep(max(0.0, world.wakes_at(name) - world.now_s - lead_s))


def client_of(world: World, ttl: float = 1.0) -> holdfast.Client:
    return holdfast.Client(redis.Redis(), ttl=ttl)


def play(scenario: Scenario, seeds: range) -> None:
    """All those seeds; fails with the first that goes wrong."""
    for seed in seeds:
        failure = fails(scenario, seed)
        assert failure is None, f"seed {seed}: {failure}"


def fails(scenario: Scenario, seed: int) -> str | None:
    world = World(seed)
    with world.installed():
        try:
            world.run(scenario)
        except AssertionError as error:
            return str(error)
    return None


def holder_of(world: World) -> str:
    value = world.server.peek(KEY, int(world.now_s * 1000) + 1_700_000_000_000)
    return "" if value is None else bytes(value).decode()


def nothing_is_left(world: World) -> None:
    """No lease and no waiter on the server."""
    at_ms = int(world.now_s * 1000) + 1_700_000_000_000
    who = (KEY, KEY + b":queue", KEY + b":cond:default")
    left = [key for key in world.server.snapshot(at_ms) if key in who]
    assert not left, f"left on the server: {left}"


def queued(world: World) -> bool:
    """True if someone waits on the server."""
    return KEY + b":queue" in world.server.snapshot(int(world.now_s * 1000) + 1_700_000_000_000)


class Watcher:
    """Notes leases, and checks them whenever it is asked."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.leases: list[Any] = []
        self.told: dict[int, int] = {}

    def add(self, lease: Any) -> None:
        self.leases.append(lease)
        self.told[id(lease)] = 0

        def lost(_error: holdfast.LeaseLost) -> None:
            self.told[id(lease)] += 1

        lease.on_lost(lost)

    def exclusive(self) -> None:
        """Of those who rely on a lease there is one, and the server knows that one for as long."""
        relied = [lease for lease in self.leases if lease._record.alive and lease._record.deadline > self.world.now_s]
        assert len(relied) <= 1, f"{len(relied)} leases are relied on at the same time"

    def final(self) -> None:
        """A lease is told of its loss once, and never after its release."""
        for lease in self.leases:
            state, told = lease.state, self.told[id(lease)]
            assert state in (LeaseState.LOST, LeaseState.RELEASED), f"{lease} at the end"
            assert told == (state is LeaseState.LOST), f"{lease} was told of a loss {told} times"
            assert lease.lost.is_set() == (state is LeaseState.LOST), f"{lease}: lost.is_set() is {lease.lost.is_set()}"


def turns(world: World) -> None:
    """Two clients with two threads each take turns; who is next is woken at once; replies are lost now and then."""
    world.lose = world.random.choice((0, 0, 0.05))
    clients = [client_of(world), client_of(world)]
    watcher = Watcher(world)
    freed_at = [world.now_s]

    def work(client: holdfast.Client) -> None:
        for _ in range(2):
            lease = client.lock("a").acquire(timeout=60)
            if not world.lose:
                waited_s = world.now_s - freed_at[0]
                assert waited_s < PROMPT_S, f"woken {waited_s:.3f} s after the lock was free"
            watcher.add(lease)
            watcher.exclusive()
            world.sleep(world.random.choice((0, 0.2)))
            freed_at[0] = world.now_s
            try:
                lease.release()
            except holdfast.HoldfastError:
                assert world.lose
            freed_at[0] = max(freed_at[0], world.now_s)

    tasks = [world.spawn(lambda client=client: work(client)) for client in clients for _ in range(2)]  # type: ignore[misc]
    for task in tasks:
        world.join(task)
    world.sleep(3 if world.lose else 0)
    for client in clients:
        client.close()
    if not world.lose:
        nothing_is_left(world)
    watcher.final()


def impatient(world: World) -> None:
    """A lease is handed on just when the next turn has waited for long enough, and asks the server by itself."""
    client = client_of(world, ttl=5.0)
    watcher = Watcher(world)
    began_at = world.now_s

    def work(at_s: float, until_s: float) -> None:
        world.sleep(at_s)
        lease = client.lock("a").acquire(timeout=60)
        watcher.add(lease)
        watcher.exclusive()
        world.sleep(max(0.01, began_at + until_s - world.now_s))
        watcher.exclusive()
        lease.release()

    alone_s = 0.02 + ALONE_MS / 1000
    comings = (0.0, 0.05), (0.01, alone_s), (0.02, 0.0), (0.03, 0.0)
    tasks = [world.spawn(lambda when=when: work(*when)) for when in comings]  # type: ignore[misc]
    for task in tasks:
        world.join(task)
    client.close()
    nothing_is_left(world)
    watcher.final()


def coinciding(world: World) -> None:
    """Turns of two clients come, are let in, give up and release at a few moments that are the same for all."""
    choice = world.random.choice
    clients = [client_of(world, ttl=choice((1.0, 5.0))), client_of(world, ttl=5.0)]
    options: dict[str, Any] = choice(({}, {"cache_for": 0.5}))
    watcher = Watcher(world)
    began_at = world.now_s

    def work(client: holdfast.Client, at_s: float, until_s: float, timeout_s: float) -> None:
        world.sleep(at_s)
        for _ in range(2):
            try:
                lease = client.lock("a", **options).acquire(timeout=timeout_s)
            except holdfast.AcquireTimeout:
                continue
            watcher.add(lease)
            watcher.exclusive()
            world.sleep(max(0.0, began_at + until_s - world.now_s))
            watcher.exclusive()
            lease.release()

    def one() -> Any:
        client, at_s = choice((clients[0], *clients)), choice((0.0, 0.01, 0.02, 0.03))
        until_s, timeout_s = choice((0.0, 0.0, 0.05, 0.52, 1.01, 1.02, 1.03)), choice((60, 60, 0.5, 0.99, 1.0))
        return world.spawn(lambda: work(client, at_s, until_s, timeout_s))

    for task in [one() for _ in range(choice((3, 4, 5)))]:
        world.join(task)
    world.sleep(1)
    for client in clients:
        client.close()
    nothing_is_left(world)
    watcher.final()


def losses(world: World) -> None:
    """Renewals, an extension, a thief and a release, all at once."""
    client = client_of(world, ttl=0.3)
    watcher = Watcher(world)
    lease = client.lock("a").acquire()
    watcher.add(lease)

    outcomes: list[str] = []

    def release() -> None:
        if world.random.random() < 0.5:
            world.sleep(world.random.choice((0, 0.1, 0.25)))
        else:
            just_when(world, "holdfast")
        try:
            lease.release()
        except (holdfast.LeaseLost, holdfast.LeaseReleased) as error:
            outcomes.append(type(error).__name__)
            return
        outcomes.append("done")
        assert lease.state is LeaseState.RELEASED, f"after a release that was confirmed: {lease}"

    def extend() -> None:
        world.sleep(world.random.choice((0, 0.1, 0.101, 0.2)))
        try:
            lease.extend(0.2)
        except (holdfast.LeaseLost, holdfast.LeaseReleased):
            pass

    def steal() -> None:
        world.sleep(world.random.choice((0, 0.1, 0.11, 0.3, 5)))
        world.server.command("DEL", KEY)

    tasks = [world.spawn(action) for action in (release, extend, steal, release)]
    for task in tasks:
        world.join(task)
    assert sorted(outcomes) in (["LeaseReleased", "done"], ["LeaseLost", "LeaseLost"], ["LeaseLost", "LeaseReleased"])
    world.sleep(2)
    client.close()
    nothing_is_left(world)
    watcher.final()


def idling(world: World) -> None:
    """Work comes just when the background has had enough of waiting for it."""
    client = client_of(world, ttl=0.5)

    def work(name: str) -> None:
        for _ in range(3):
            world.sleep(world.random.choice((0, 0.5, 1.0, 3.0)))
            for _ in range(2):
                just_when(world, "holdfast")
            for _ in range(world.random.randrange(40)):
                world.switch()
            lease = client.lock(name).acquire(timeout=5)
            held_s = world.random.choice((0, 0, 0.2, 1.3))
            world.sleep(held_s)
            assert lease.state is LeaseState.HELD, f"not renewed for {held_s} s: {lease}"
            lease.release()

    def chores() -> None:
        for _ in range(4):
            given[0] += 1
            client._session.driver.spawn(told())
            just_when(world, "holdfast")

    given, done = [0], [0]

    async def told() -> None:
        done[0] += 1

    tasks = [world.spawn(lambda: work("a")), world.spawn(chores)]
    for task in tasks:
        world.join(task)
    world.sleep(0.1)
    assert done == given, f"of {given} chores {done} were done"
    client.close()
    nothing_is_left(world)


def cancelling(world: World) -> None:
    """A wait is cancelled before, while and after it is granted: at once, and nothing stays behind."""
    at_once = world.random.random() < 0.5
    stopping = [False]
    client = client_of(world, ttl=20)
    holder = client_of(world, ttl=20)
    cancel = holdfast.Cancel()
    cancelled_at = [float("inf")]

    def wait() -> None:
        try:
            lease = client.lock("a").acquire(cancel=cancel, timeout=15)
        except holdfast.AcquireCancelled:
            late_s = world.now_s - cancelled_at[0]
            assert late_s < PROMPT_S, f"cancelled {late_s:.3f} s after set()"
        else:
            lease.release()

    def stop() -> None:
        if world.random.random() < 0.7:
            world.wait(lambda: bool(client._session.driver.client.tasks), None, "a waiter")
        stopping[0] = True
        for _ in range(world.random.randrange(60)):
            world.switch(always=True)
        cancelled_at[0] = world.now_s
        cancel.set()

    with holder.lock("a"):
        tasks = [world.spawn(action) for action in (wait, wait, stop)]
        if at_once:
            world.wait(lambda: stopping[0], None, "the one who cancels")
        else:
            world.join(tasks[2])
            world.sleep(3)
            assert not queued(world), "who has left waits on"
    for task in tasks:
        assert world.join(task, 10), "a wait that was cancelled goes on"
    world.sleep(0.1)
    nothing_is_left(world)
    client.close()
    holder.close()


def close_amid(world: World, client: holdfast.Client, tasks: list[Any], closed: list[bool]) -> None:
    """Close the client at some moment of theirs: they are told, and nothing is left."""
    world.sleep(world.random.choice((0, 0.001, 0.005, 0.02)))
    for _ in range(world.random.randrange(200)):
        world.switch()
    began_s = world.now_s
    client.close()
    assert world.now_s - began_s < 5, f"close() took {world.now_s - began_s:.1f} s"
    closed[0] = True
    for task in tasks:
        assert world.join(task, 5), "a waiter of a closed client is not told"
    world.sleep(1)
    nothing_is_left(world)


def closing(world: World) -> None:
    """A client is closed under who holds, who waits, and who comes."""
    client = client_of(world, ttl=30)
    watcher = Watcher(world)
    closed = [False]

    def work() -> None:
        for _ in range(3):
            try:
                lease = client.lock("a").acquire()
            except holdfast.ClientClosed:
                return
            assert not closed[0], "a closed client has granted a lease"
            watcher.add(lease)
            world.sleep(world.random.choice((0, 0.01)))
            try:
                lease.release()
            except (holdfast.LeaseLost, holdfast.LeaseReleased, holdfast.ClientClosed):
                pass

    close_amid(world, client, [world.spawn(work) for _ in range(3)], closed)
    for lease in watcher.leases:
        assert lease.state in (LeaseState.LOST, LeaseState.RELEASED)


def conditions(world: World) -> None:
    """A client is closed under those that wait on a condition, and under who notifies them."""
    client = client_of(world, ttl=30)
    lock = client.lock("a")
    changed = client.condition(lock)
    watcher = Watcher(world)

    def hold(times: int, act: Callable[[], Any]) -> None:
        for _ in range(times):
            try:
                with lock as lease:
                    watcher.add(lease)
                    act()
            except (holdfast.ClientClosed, holdfast.LeaseLost, holdfast.LeaseReleased, holdfast.NotHeld):
                return
            world.sleep(world.random.choice((0, 0.002)))

    def wait() -> None:
        changed.wait(world.random.choice((None, 0.005, 1)))
        world.sleep(world.random.choice((0, 4)))  # it is held when the client is closed

    actions = (lambda: hold(2, wait), lambda: hold(2, wait), lambda: hold(3, changed.notify))
    close_amid(world, client, [world.spawn(action) for action in actions], [False])
    for lease in watcher.leases:
        assert lease.state in (LeaseState.LOST, LeaseState.RELEASED), f"{lease} at the end"
        assert lease.lost.is_set() == (lease.state is LeaseState.LOST), f"{lease} is {lease.state}"


def forking(world: World) -> None:
    """A child at any moment of busy threads: it holds nothing, and can acquire."""
    client = client_of(world, ttl=0.5)
    leases: list[Any] = []

    def work() -> None:
        for _ in range(3):
            lease = client.lock("a").acquire(timeout=60)
            leases.append(lease)
            world.sleep(world.random.choice((0, 0.2)))
            lease.release()

    tasks = [world.spawn(work) for _ in range(2)]
    world.sleep(world.random.choice((0, 0.001, 0.1, 0.2, 0.3)))
    for _ in range(world.random.randrange(300)):
        world.switch()
    held = [lease for lease in leases if lease._record.alive]
    pid = world.fork()
    if pid == 0:
        status = 1
        try:
            assert all(lease.state is LeaseState.LOST and lease.lost.is_set() for lease in held)
            client.lock("b").acquire(timeout=1).release()
            client.close()
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(pid, 0)
    assert status == 0, f"the child ended with {status}"
    for task in tasks:
        world.join(task)
    client.close()
    nothing_is_left(world)


SCENARIOS: list[Scenario] = [turns, impatient, coinciding, losses, idling, cancelling, closing, conditions, forking]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_schedules(scenario: Scenario) -> None:
    play(scenario, range(12))


@pytest.mark.thorough
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_many_schedules(scenario: Scenario) -> None:
    play(scenario, range(100, 180))


@pytest.mark.thorough
def test_a_client_is_closed_at_many_moments() -> None:
    """One schedule in a thousand showed a lease that no one released: a line that moved on amid close(), and an acquire
    that had found the client open and was not yet seen.
    """
    play(closing, range(1_000, 2_000))


def test_a_schedule_comes_again() -> None:
    played = []
    for _ in range(2):
        world = World(7)
        with world.installed():
            world.run(losses)
        played.append((world.steps, world.switches, world.now_s))
    assert played[0] == played[1]


@pytest.mark.filterwarnings("ignore")  # what threads have to say that are cut short
def test_what_a_world_leaves_does_nothing_in_the_real_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that was not closed would connect later, at the latest when the process ends, to what is no socket."""
    reported: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", reported.append)
    clients: list[holdfast.Client] = []

    def leaving(world: World) -> None:
        clients.append(client_of(world))
        clients[0].lock("a").acquire()
        raise AssertionError("the end")

    assert "the end" in str(fails(leaving, 3))
    front: Any = clients[0]._session.driver
    assert front.ended  # so that the end of the process passes over it
    front.begin_close()
    front.engine.call(reported.append, "heard")
    clients.clear()
    gc.collect()
    until = time.monotonic() + 0.2
    while not reported and time.monotonic() < until:
        time.sleep(0.01)
    assert not reported


def mutate(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, old: str, new: str) -> None:
    """Change the text of a function."""
    function = getattr(owner, name)
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(old) == 1, f"{owner}.{name} has changed: {source}"
    names: dict[str, Any] = {}
    exec(compile(source.replace(old, new), inspect.getfile(function), "exec"), function.__globals__, names)
    monkeypatch.setattr(owner, name, names[name])


#: What is changed, and in which scenario that shows.
MUTANTS: dict[str, tuple[Any, str, str, str, Scenario]] = {
    "both a release and a loss may end a lease": (
        *(
            LeaseRecord,
            "mark_released",
            "    except AttributeError:\n        return False",
            "    except AttributeError:\n        pass",
        ),
        losses,
    ),
    "the loop falls asleep without a last look": (Engine, "_look", "if self._acts:", "if False:", turns),
    "a wake-up finds no one": (Engine, "call", "bell.ring()\n            except", "pass\n            except", turns),
    "a child of fork keeps its parent's leases": (Front, "after_fork", 'record.lose("forked")', "pass", forking),
    "a turn that has left passes on what it was made the owner of": (
        *(LocalWaiter, "passes", " or self.over:", ":"),
        impatient,
    ),
    "the rest of a piece is not sent": (Link, "_write_some", "self._out = data[sent:]", "self._out = b''", turns),
}


@pytest.mark.filterwarnings("ignore")  # what threads have to say that are cut short
@pytest.mark.parametrize("mutant", MUTANTS)
def test_changes_of_the_engine_are_found(monkeypatch: pytest.MonkeyPatch, mutant: str) -> None:
    owner, name, old, new, scenario = MUTANTS[mutant]
    mutate(monkeypatch, owner, name, old, new)
    for seed in range(400):
        failure = fails(scenario, seed)
        if failure is not None:
            print(f"seed {seed}: {failure}")
            return
    pytest.fail("not found in 400 schedules")

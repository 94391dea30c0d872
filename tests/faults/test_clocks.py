"""Time and the family: what ends when, and that no wall clock has a say in it."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import holdfast
from holdfast import embedded
from testbed.waiting import eventually
from tests.support.apis import Api
from tests.support.family_worker import FamilyWorker


def test_max_hold_goes_on_through_downgrade_and_upgrade(far: Any, unique_name: str) -> None:
    """Counted from the first lease on: otherwise changing sides would renew forever."""
    rw = far.rwlock(unique_name, ttl=30, max_hold=3)
    writer = rw.write().acquire()
    reader = writer.downgrade()
    upgraded = reader.upgrade()
    assert upgraded.remaining() <= 3
    for lease in (reader, upgraded):
        assert lease.lost.wait(60)
        assert lease.lost.reason == "max_hold"
        with pytest.raises(holdfast.LeaseLost):
            lease.ensure_held()


HOURS_S = 7_200.0


@pytest.fixture
def ahead(api: Api, valkey_server: embedded.Server) -> Iterator[Callable[..., FamilyWorker]]:
    """`ahead(name, ttl)`: a process that holds one of everything and whose wall clock is two hours ahead."""
    started: list[FamilyWorker] = []

    def start(name: str, ttl: float) -> FamilyWorker:
        started.append(FamilyWorker(api.name, valkey_server.url, "holders", name, ttl, shift_s=HOURS_S))
        return started[-1]

    yield start
    for each in started:
        each.close()


def test_hosts_that_disagree_about_the_time_exclude_each_other(
    api: Api, far: Any, ahead: Any, look: Any, unique_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One process is two hours ahead, this one two hours behind: leases are taken, renewed and freed all the same."""
    true_time = time.time
    monkeypatch.setattr(time, "time", lambda: true_time() - HOURS_S)
    other = ahead(unique_name, 4.0)
    tokens = other.said()
    made = {
        "reader": far.rwlock(f"{unique_name}-reader-0").write(),
        "writer": far.rwlock(f"{unique_name}-writer-0").read(),
        "upgraded": far.rwlock(f"{unique_name}-upgraded-0").read(),
        "several": far.multilock(f"{unique_name}-several-0-2", f"{unique_name}-several-0"),
        "reentrant": far.lock(f"{unique_name}-reentrant-0", reentrant=True),
        "condition": far.lock(f"{unique_name}-condition-0"),
        "permits": far.semaphore(f"{unique_name}-permits-0", 2 + 1),
    }
    assert len(tokens) == len(made) + 1
    election = far.election(f"{unique_name}-leader-0")
    began = look.time()[0]
    while True:  # longer than the ttl, by the server's clock: the other process renews
        for kind, thing in made.items():
            options = {"permits": 2} if kind == "permits" else {}
            assert thing.try_acquire(**options) is None, kind
        assert election.leader().token == tokens[f"{unique_name}-leader-0"]
        if look.time()[0] > began + 5:
            break
        time.sleep(0.1)
    other.kill()
    for kind, thing in made.items():
        options = {"permits": 2} if kind == "permits" else {}
        lease = thing.acquire(timeout=60, **options)
        assert 25 < lease.remaining() <= 30, f"{kind}: the time that is left is this process's own"
        lease.release()
    lease = election.campaign(timeout=60)
    seconds, micros = look.time()
    assert 0 <= seconds * 1_000_000 + micros - lease.fencing_token < 60_000_000, "a fencing token is server time"
    election.resign()


def test_who_waits_does_so_by_no_wall_clock(
    api: Api, far: Any, near: Any, look: Any, unique_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock of this host jumps by hours, both ways, while one client waits and the other opens."""
    true_time = time.time
    shifts = itertools.cycle((HOURS_S, -HOURS_S))

    def jump() -> None:
        shift_s = next(shifts)
        monkeypatch.setattr(time, "time", lambda: true_time() + shift_s)

    actions = {
        "latch": (far.latch(unique_name, 1).wait, near.latch(unique_name, 1).count_down),
        "event": (far.event(unique_name).wait, near.event(unique_name).set),
        "barrier": (far.barrier(unique_name, 2).wait, near.barrier(unique_name, 2).wait),
    }
    parts = {"latch": ":latch:queue", "event": ":event:queue", "barrier": ":barrier:arrived"}
    for kind, (wait, go) in actions.items():
        waiting = api.start(wait, timeout=600)
        eventually(lambda kind=kind: look.zcard(f"holdfast:{{{unique_name}}}{parts[kind]}") == 1)  # type: ignore[misc]
        jump()
        assert not waiting.done(), f"{kind}: ten minutes are not over"
        go()
        assert waiting.result(60) in (True, 0)
        jump()

    lock = far.lock(unique_name, ttl=60)
    condition = far.condition(getattr(lock, "_target", lock))
    actor = api.actor()
    lease = actor.enter(lock)
    waiting = actor.tell(condition, "wait", timeout=600)
    eventually(lambda: look.zcard(f"holdfast:{{{unique_name}}}:cond:default") == 1)
    jump()
    caller, other_lock = api.actor(), near.lock(unique_name)
    caller.enter(other_lock)
    other = near.condition(getattr(other_lock, "_target", other_lock))
    assert caller.ask(other, "notify") == 1
    jump()
    caller.leave(other_lock)
    assert waiting.result(60) is True
    lease.ensure_held()
    actor.leave(lock)

    assert near.compare_and_set(unique_name, None, "a", ttl=500)
    jump()
    assert far.compare_and_set(unique_name, "a", "b", keep_ttl=True)
    assert 400_000 < look.pttl(unique_name) <= 500_000
    jump()
    with far.lock(unique_name) as first, near.lock(f"{unique_name}-2") as second:
        assert first.fencing_token < second.fencing_token
    look.delete(unique_name)

"""`sync_replicas` for everything that is held under a lease, by the client's default and by its own option."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import holdfast
from holdfast._core.settings import Settings
from testbed.topologies import Replicated, plain
from testbed.waiting import eventually
from tests.support.apis import Api, close_brought


def key(name: str, part: str = "") -> str:
    return f"holdfast:{{{name}}}{part}"


#: How to make each, and where its holder's token stands (a string, or a member of a sorted set).
THINGS: dict[str, tuple[Callable[..., Any], str]] = {
    "reentrant": (lambda locks, name, **options: locks.lock(name, reentrant=True, **options), ""),
    "reader": (lambda locks, name, **options: locks.rwlock(name, **options).read(), ":readers"),
    "writer": (lambda locks, name, **options: locks.rwlock(name, **options).write(), ""),
    "semaphore": (lambda locks, name, **options: locks.semaphore(name, 2, **options), ":sem:holders"),
    "multilock": (lambda locks, name, **options: locks.multilock(name, f"{name}-b", **options), ""),
}


def stands_at(server: Any, name: str, part: str, token: str) -> bool:
    with plain(server) as client:
        if part:
            return client.zscore(key(name, part), token) is not None
        return bool(client.get(key(name)) == token)


@pytest.mark.parametrize("thing", THINGS)
@pytest.mark.parametrize("how", ["by default", "by option"])
def test_what_is_held_is_on_the_replicas(in_step: Replicated, api: Api, unique_name: str, thing: str, how: str) -> None:
    make, part = THINGS[thing]
    if how == "by default":
        asked = make(api.connect(in_step.url, sync_replicas="all"), unique_name, ttl=20)
    else:
        asked = make(api.connect(in_step.url), unique_name, ttl=20, sync_replicas="all")
    for _ in range(2):  # the second time everything is warm
        lease = asked.acquire()
        assert [stands_at(replica, unique_name, part, lease.token) for replica in in_step.replicas] == [True, True]
        lease.extend(25)
        lease.release()


@pytest.mark.parametrize("thing", THINGS)
def test_too_few_are_reported_and_nothing_is_left(in_step: Replicated, api: Api, unique_name: str, thing: str) -> None:
    make, part = THINGS[thing]
    asked = make(api.connect(in_step.url, sync_replicas=2), unique_name, ttl=1)  # WAIT takes a sixth of that
    in_step.replicas[1].pause()
    for attempt in (lambda: asked.acquire(timeout=0.5), asked.try_acquire):
        with pytest.raises(holdfast.InsufficientReplicas) as caught:
            attempt()
        assert (caught.value.needed, caught.value.acked) == (2, 1)
        eventually(lambda: not in_step.raw.exists(key(unique_name, part)), "it was given back")


@pytest.mark.parametrize("thing", THINGS)
def test_too_few_for_an_extension_are_reported_of_what_is_held(
    in_step: Replicated, api: Api, unique_name: str, thing: str
) -> None:
    make, _ = THINGS[thing]
    lease = make(api.connect(in_step.url, sync_replicas=2), unique_name, ttl=6).acquire()
    in_step.replicas[1].pause()
    with pytest.raises(holdfast.InsufficientReplicas) as caught:
        lease.extend(6)  # WAIT takes a sixth of that
    kind = {"reentrant": "lock", "reader": "read lock", "writer": "write lock"}.get(thing, thing)
    assert (caught.value.kind, caught.value.name) == (kind, lease.name)
    assert lease.held
    lease.release()


@pytest.mark.parametrize("thing", THINGS)
def test_a_lease_that_the_replicas_do_not_follow_is_lost(
    in_step: Replicated, api: Api, unique_name: str, thing: str
) -> None:
    make, _ = THINGS[thing]
    lease = make(api.connect(in_step.url), unique_name, ttl=2, sync_replicas=2).acquire()
    in_step.replicas[0].pause()
    eventually(lambda: lease.state.name != "HELD", "a renewal failed")
    assert lease.lost.wait(30)


def test_several_slots(in_step: Replicated, api: Api, unique_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast._engine.server.Topology.moves", True)
    names = [f"{unique_name}-{letter}" for letter in "abc"]
    locks = api.connect(in_step.url, sync_replicas=2)
    lease = locks.multilock(*names, ttl=30).acquire()
    for name in names:
        assert all(stands_at(replica, name, "", lease.token) for replica in in_step.replicas)
    lease.release()
    in_step.replicas[1].pause()
    with pytest.raises(holdfast.InsufficientReplicas):
        locks.multilock(*names, ttl=1).try_acquire()
    eventually(lambda: not in_step.raw.exists(*map(key, names)), "all were given back")


def test_upgrades_and_downgrades_keep_it(in_step: Replicated, api: Api, unique_name: str) -> None:
    rw = api.connect(in_step.url).rwlock(unique_name, ttl=6, renew=False, sync_replicas=2)
    reader = rw.write().acquire().downgrade()
    assert all(stands_at(replica, unique_name, ":readers", reader.token) for replica in in_step.replicas)
    writer = reader.upgrade()
    for replica in in_step.replicas:
        with plain(replica) as client:
            assert client.get(key(unique_name, ":upgraded")) == writer.token
    writer.release()
    in_step.replicas[1].pause()
    with pytest.raises((holdfast.InsufficientReplicas, holdfast.LeaseLost)):
        reader.upgrade(timeout=0.3)
    eventually(lambda: not in_step.raw.exists(key(unique_name, ":upgraded")), "it was given back")
    assert reader.lost.wait(30)


def test_a_condition_waits_as_its_lock_demands(in_step: Replicated, api: Api, unique_name: str) -> None:
    brought = api.redis().Redis.from_url(in_step.url)
    # Longer than a request without an answer is waited for: of the last one it is not known what came of it.
    locks = api.client(brought, _settings=Settings(retry_limit_s=8.0))
    lock = locks.lock(unique_name, ttl=20, renew=False, sync_replicas=2)
    condition = locks.condition(getattr(lock, "_target", lock))
    actor = api.actor()
    lease = actor.ask(lock, "acquire")
    assert actor.ask(condition, "wait", timeout=0.05) is False
    assert all(stands_at(replica, unique_name, "", lease.token) for replica in in_step.replicas)
    in_step.replicas[1].pause()
    waiting = actor.tell(condition, "wait", timeout=0.05)
    with pytest.raises(holdfast.InsufficientReplicas):
        waiting.result(90)
    eventually(lambda: not in_step.raw.exists(key(unique_name)), "and the lock is not held any more")
    locks.close()
    close_brought(api, brought)


def test_an_election_has_the_option(in_step: Replicated, api: Api, unique_name: str) -> None:
    election = api.connect(in_step.url).election(unique_name, ttl=1, sync_replicas=2)
    lease = election.campaign()
    for replica in in_step.replicas:
        with plain(replica) as client:
            assert client.get(key(unique_name, ":leader")) == lease.token
    election.resign()
    in_step.replicas[1].pause()
    with pytest.raises(holdfast.InsufficientReplicas):
        election.campaign(timeout=0.3)

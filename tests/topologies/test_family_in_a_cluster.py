"""What is more than a lock, where slots move."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import holdfast
from testbed.topologies import Cluster
from testbed.waiting import eventually
from tests.contract.test_deadlocks import LONG_S, ends
from tests.contract.test_list import all_of
from tests.support.apis import Api
from tests.topologies.test_failover import move_slot


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as cluster:
        yield cluster


def key(name: str) -> str:
    return f"holdfast:{{{name}}}"


def test_one_of_several_slots_moves_while_held(cluster: Cluster, api: Api, unique_name: str) -> None:
    names = [f"{unique_name}-{number}" for number in range(4)]
    assert len({cluster.owner_of(key(name)) for name in names}) > 1
    lease = api.connect(cluster.url).multilock(*names, ttl=30).acquire()
    source = cluster.owner_of(key(names[0]))
    target = (source + 1) % 3
    move_slot(cluster, key(names[0]), source, target, halfway=lambda: None)
    lease.extend(60)  # asks all of them at once, and is told of the move
    assert cluster.clients[target].pttl(key(names[0])) > 30_000
    lease.release()
    assert not cluster.clients[target].exists(key(names[0]))


def test_one_note_is_seen_at_each_of_several_slots(cluster: Cluster, api: Api, unique_name: str) -> None:
    names = [f"{unique_name}-{number}" for number in range(4)]
    assert len({cluster.owner_of(key(name)) for name in names}) > 1
    lease = api.connect(cluster.url).multilock(*names, ttl=1, note="by Ana").acquire()
    others = api.connect(cluster.url)
    for name in names:
        eventually(lambda name=name: others.lock(name).holder().note == "by Ana")  # type: ignore[misc]
    since = lease._record.renew_from
    eventually(lambda: lease._record.renew_from > since + 2)  # more than one ttl later
    assert {each.holder.note for each in all_of(api, others, f"{unique_name}-*")} == {"by Ana"}
    lease.release()


def test_errors_out_of_several_slots_name_what_was_asked_for(cluster: Cluster, api: Api, unique_name: str) -> None:
    names = [f"{unique_name}-{number}" for number in range(4)]
    locks = api.connect(cluster.url)
    lease = locks.multilock(*names, ttl=30).acquire()
    for name in names:
        cluster.raw.delete(key(name))
        cluster.raw.lpush(key(name), "not a lock")
    for act in (lambda: lease.extend(60), lease.release, locks.multilock(*names, ttl=30).try_acquire):
        with pytest.raises(holdfast.ServerError, match=f"^multilock '{unique_name}-.': .*delete it, or use another"):
            act()
    for name in names:
        cluster.raw.delete(key(name))


def test_a_list_has_what_is_on_every_node(cluster: Cluster, api: Api, unique_name: str) -> None:
    locks = api.connect(cluster.url)
    names = {f"{unique_name}-{number}" for number in range(12)}
    leases = [locks.lock(name, ttl=30).acquire() for name in names]
    assert len({cluster.owner_of(key(name)) for name in names}) == 3
    others = api.connect(cluster.url)  # which has not read the table of the slots yet
    found = [each.name for each in all_of(api, others, f"{unique_name}-*")]
    assert sorted(found) == sorted(names)
    for lease in leases:
        lease.release()


def test_a_deadlock_over_several_nodes(cluster: Cluster, api: Api, unique_name: str) -> None:
    names = [f"{unique_name}-{number}" for number in range(4)]
    assert len({cluster.owner_of(key(name)) for name in names}) > 1
    locks, others = api.connect(cluster.url), api.connect(cluster.url)
    actors = [api.actor() for _ in names]
    has = [[actor.ask(locks.lock(name), "acquire")] for actor, name in zip(actors, names, strict=True)]
    waits = [actor.tell(locks.lock(names[at - 1]), "acquire", timeout=LONG_S) for at, actor in enumerate(actors[:3])]
    last = actors[3].tell(locks.lock(names[2]), "acquire", timeout=LONG_S, deadlock_check=0.3)
    eventually(lambda: last.done() or len(others.deadlocks()) == 1)
    failed, leases = ends({wait: (actor, its) for wait, actor, its in zip([*waits, last], actors, has, strict=True)})
    assert [type(error) for error in failed] == [holdfast.DeadlockDetected] and len(leases) == 3
    assert others.deadlocks() == ()

"""One node of a Cluster hangs: that concerns what lies there, and nothing else."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

import holdfast
from testbed.servers import unique
from testbed.topologies import Cluster
from testbed.waiting import eventually
from tests.support.apis import Api
from tests.support.engines import settle

#: Far less than what a dozen requests to a server that hangs take one after the other, s.
SOON_S = 8.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(replicas=False, node_timeout_ms=120_000) as cluster:
        yield cluster


@pytest.fixture
def hang(cluster: Cluster) -> Iterator[Callable[[], None]]:
    """Let the first node hang; ended after the test."""
    yield cluster.servers[0].pause
    cluster.servers[0].resume()


def names_at(cluster: Cluster, node: int) -> Iterator[str]:
    """Names of locks there."""
    prefix = unique("h")
    names = (f"{prefix}-{number}" for number in itertools.count())
    return (name for name in names if cluster.owner_of(f"holdfast:{{{name}}}") == node)


def is_awaited(locks: Any, name: str) -> bool:
    return bool(locks.lock(name).waiters() == 1)


def test_who_gives_up_at_a_healthy_node_leaves_its_queue(api: Api, cluster: Cluster, hang: Callable[[], None]) -> None:
    """Many have given up at the one that hangs, and are taken out of queues in the background."""
    locks, others = api.connect(cluster.url), api.connect(cluster.url)
    bad = list(itertools.islice(names_at(cluster, 0), 10))
    good = next(names_at(cluster, 1))
    leases = others.kept = [others.lock(name, ttl=60).acquire() for name in (*bad, good)]
    waiting = [api.start(locks.lock(name, ttl=60).acquire, timeout=1.0) for name in bad]
    last = api.start(locks.lock(good, ttl=60).acquire, timeout=1.5)
    for name in (*bad, good):
        eventually(partial(is_awaited, others, name), "it waits")
    hang()
    for future in (*waiting, last):
        with pytest.raises(holdfast.HoldfastError):
            future.result(30)
    eventually(lambda: others.lock(good).waiters() == 0, "no one is queued", SOON_S)
    leases[-1].release()
    others.lock(good).acquire(timeout=SOON_S).release()


def test_what_is_dropped_at_a_healthy_node_is_released(api: Api, cluster: Cluster, hang: Callable[[], None]) -> None:
    """Also by many at once, and by `close`."""
    locks, others = api.connect(cluster.url), api.connect(cluster.url)
    bad = list(itertools.islice(names_at(cluster, 0), 10))
    good = list(itertools.islice(names_at(cluster, 1), 10))
    locks.kept = [locks.lock(name, ttl=60).acquire() for pair in zip(bad, good, strict=True) for name in pair]
    hang()
    began_at = time.monotonic()
    locks.close()
    assert time.monotonic() - began_at < SOON_S
    for name in good:
        others.lock(name, ttl=60).acquire(timeout=1.0).release()


@pytest.mark.thorough
def test_leases_at_healthy_nodes_are_renewed(api: Api, cluster: Cluster, hang: Callable[[], None]) -> None:
    """Also those over several nodes, beside ones of which a part hangs; and the loss of these is told in time."""
    locks = api.connect(cluster.url)
    bad, good, third = (list(itertools.islice(names_at(cluster, node), 6)) for node in range(3))
    kept = [locks.multilock(one, other, ttl=2).acquire() for one, other in zip(good[:3], third[:3], strict=True)]
    kept += [locks.lock(name, ttl=2).acquire() for name in good[3:]]
    lost = [locks.multilock(one, other, ttl=2).acquire() for one, other in zip(bad[:3], third[3:], strict=True)]
    locks.kept = [*kept, *lost]
    hang()
    began_at = time.monotonic()
    for lease in lost:
        eventually(lease.lost.is_set, "the loss is told", 5)
    assert time.monotonic() - began_at < 5
    time.sleep(2)
    assert [lease.state.name for lease in kept] == ["HELD"] * len(kept)
    for lease in kept:
        lease.release()


def test_the_number_of_threads_is_bounded(cluster: Cluster, hang: Callable[[], None]) -> None:
    """A thousand give-backs take no more threads than there are nodes, and a few."""
    before = threading.active_count()
    with holdfast.connect(cluster.url) as locks:
        names = list(itertools.islice(names_at(cluster, 1), 3))
        leases: list[Any] = [
            locks.lock(f"{name}-{{{name}}}-{number}", ttl=60).acquire() for name in names for number in range(100)
        ]
        hang()
        for lease in leases:
            locks._session.driver.spawn_release(lease._record)
        assert threading.active_count() - before < 16
        cluster.servers[0].resume()
        settle(locks)
        for lease in leases:
            assert lease._record.mark_released()

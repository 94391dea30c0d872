"""Another server takes over: through Sentinel, and in a Cluster."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

import holdfast
from testbed.topologies import Cluster, Replicated, WithSentinel, listening, plain
from testbed.waiting import eventually
from tests.support.apis import Api, function_for

#: Everything that a failover takes on a busy machine, s.
FAILOVER_S = 90


def key(name: str) -> str:
    return f"holdfast:{{{name}}}"


# ---------------------------------------------------------------- Sentinel


@pytest.mark.parametrize("api, how", [("threads", "kill"), ("asyncio", "pause")], indirect=["api"])
def test_sentinel_names_another_master(api: Api, unique_name: str, how: str) -> None:
    """One failover with everything in it: a holder, a waiter, and the old master that comes back."""
    with WithSentinel(2) as servers:
        servers.ready_for_failover()
        locks, others = api.connect(servers.url), api.connect(servers.url)
        lease = locks.lock(unique_name, ttl=60, sync_replicas=1).acquire()
        short = locks.lock(f"{unique_name}-short", ttl=3).acquire()
        waiting = api.start(others.lock(unique_name).acquire, timeout=FAILOVER_S * 2)
        with plain(servers.master) as client:
            eventually(lambda: client.zcard(f"{key(unique_name)}:queue") == 1, "it waits")
            (place,) = client.zrange(f"{key(unique_name)}:queue", 0, -1, withscores=True)
            client.pexpire(key(unique_name), 60_000)  # WAIT is about what its own connection wrote
            assert client.wait(2, 30_000) == 2
        getattr(servers.master, how)()
        new = servers.failed_over()
        with plain(new) as client:
            assert client.get(key(unique_name)) == lease.token, "all replicas had it"
            # The short lease was renewed at the new master, or its holder knows that it is over.
            eventually(lambda: short.state.name in ("HELD", "LOST"), "its holder knows", FAILOVER_S)
            eventually(lambda: new_inbox(client, place[0]), "the waiter listens at the new master", FAILOVER_S)
            eventually(
                lambda: client.zrange(f"{key(unique_name)}:queue", 0, -1, withscores=True) == [place],
                "and has its old place",
                FAILOVER_S,
            )
            eventually(lambda: extended(lease), "the holder found the new master", FAILOVER_S)
            lease.release()
            with contextlib.suppress(holdfast.LeaseLost):
                short.release()
            second = waiting.result(FAILOVER_S)
            assert second.fencing_token > lease.fencing_token
            if how == "pause":
                servers.master.resume()  # it still takes itself for the master
            second.extend(30)
            assert client.get(key(unique_name)) == second.token
            second.release()


def new_inbox(client: Any, token: str) -> bool:
    channel = f"holdfast:inbox:{token.partition(':')[0]}"
    return listening(client, channel) == 1


def test_one_of_two_replicas_is_not_enough(api: Api, unique_name: str) -> None:
    """The documented trap: one has acknowledged, the other is promoted. With "all" that lease is not given out."""
    with Replicated(2) as servers:
        lagging = servers.replicas[1]
        locks = api.connect(servers.url)
        locks.lock(f"{unique_name}-warm", sync_replicas="all").acquire().release()
        lagging.pause()
        servers.raw.client_kill_filter(_type="replica")  # so that nothing lies in its buffers
        eventually(lambda: servers.in_step() == 1, "the other one is back", 60)
        trap = locks.lock(unique_name, ttl=120, sync_replicas=1, renew=False).acquire()
        with pytest.raises(holdfast.InsufficientReplicas):
            locks.lock(f"{unique_name}-all", ttl=1, sync_replicas="all").try_acquire()
        servers.master.kill()
        lagging.resume()
        with plain(lagging) as client:
            client.replicaof("NO", "ONE")  # as Sentinel would, if it preferred this one
            assert client.get(key(unique_name)) is None
        second = api.connect(lagging.url).lock(unique_name).acquire(timeout=30)
        trap.ensure_held()  # and it does not know
        assert second.fencing_token > trap.fencing_token, "two holders; a resource that checks the token is safe"
        second.release()
        with pytest.raises(holdfast.HoldfastError):
            trap.release()


# ---------------------------------------------------------------- Cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as cluster:
        yield cluster


def test_a_slot_moves_while_held_and_waited_for(cluster: Cluster, api: Api, unique_name: str) -> None:
    locks, others = api.connect(cluster.url), api.connect(cluster.url)
    lease = locks.lock(unique_name, ttl=30).acquire()
    waiting = api.start(others.lock(unique_name).acquire, timeout=120)
    eventually(lambda: locks.lock(unique_name).waiters() == 1)
    source = cluster.owner_of(key(unique_name))
    target = (source + 1) % 3
    late: list[Any] = []

    def halfway() -> None:
        lease.extend(40)  # one key, which is there already: ASK leads to it
        told = said("TRYAGAIN", *cluster.clients[:3])
        # Several keys, of which some are here and some are there: waited out.
        late.append(api.start(api.connect(cluster.url).lock(unique_name).acquire, timeout=120))
        eventually(lambda: said("TRYAGAIN", *cluster.clients[:3]) > told, "TRYAGAIN was said")
        assert not late[0].done()

    move_slot(cluster, key(unique_name), source, target, halfway)
    assert cluster.clients[target].get(key(unique_name)) == lease.token
    lease.extend(50)
    eventually(lambda: locks.lock(unique_name).waiters() == 2)
    token = waiting_token(cluster.clients[target], unique_name)
    eventually(lambda: new_inbox(cluster.clients[target], token), "it listens where the slot is", 60)
    lease.release()
    second = waiting.result(60)
    assert second.fencing_token > lease.fencing_token
    second.release()
    third = late[0].result(60)
    assert third.fencing_token > second.fencing_token
    third.release()
    assert not cluster.clients[target].exists(key(unique_name))


def adding_one(api: Api, name: str) -> Any:
    def add_one(tx: Any) -> Any:
        number = int((yield tx.get(name)) or 0) + 1
        tx.set(name, number, ttl=60)
        return number

    return function_for(api, add_one)


def test_an_optimistic_write_follows_its_key(cluster: Cluster, api: Api, unique_name: str) -> None:
    optimistic, add_one = api.connect(cluster.url).optimistic(unique_name), adding_one(api, unique_name)
    assert optimistic.run(add_one) == 1
    source = cluster.owner_of(unique_name)
    move_slot(cluster, unique_name, source, (source + 1) % 3, lambda: None)
    assert optimistic.run(add_one) == 2


def test_an_optimistic_write_outlasts_a_short_move_of_its_slot(cluster: Cluster, api: Api, unique_name: str) -> None:
    """Until the slot has moved, one server says ASK."""
    optimistic, add_one = api.connect(cluster.url).optimistic(unique_name), adding_one(api, unique_name)
    assert optimistic.run(add_one) == 1
    source = cluster.owner_of(unique_name)
    late: list[Any] = []

    def halfway() -> None:
        told = said("ASK", cluster.clients[source])
        late.append(api.start(optimistic.run, add_one))
        eventually(lambda: said("ASK", cluster.clients[source]) > told, "ASK was said")

    move_slot(cluster, unique_name, source, (source + 1) % 3, halfway)
    assert late[0].result(60) == 2


def said(word: str, *clients: Any) -> int:
    """How often servers have said so."""
    return sum(int(client.info("errorstats").get(f"errorstat_{word}", {"count": 0})["count"]) for client in clients)


def waiting_token(client: Any, name: str) -> str:
    token: str = eventually(lambda: client.zrange(f"{key(name)}:queue", 0, -1))[0]
    return token


def move_slot(cluster: Cluster, of_key: str, source: int, target: int, halfway: Any) -> None:
    """Move a slot as a resharding tool does; `halfway` is called when some keys of the slot have moved."""
    old, new = cluster.clients[source], cluster.clients[target]
    slot = old.execute_command("CLUSTER KEYSLOT", of_key)
    new.execute_command("CLUSTER SETSLOT", slot, "IMPORTING", cluster.ids[source])
    old.execute_command("CLUSTER SETSLOT", slot, "MIGRATING", cluster.ids[target])
    server = cluster.servers[target]
    old.execute_command("MIGRATE", server.host, server.port, of_key, 0, 5000)
    halfway()
    while keys := old.execute_command("CLUSTER GETKEYSINSLOT", slot, 100):
        old.execute_command("MIGRATE", server.host, server.port, "", 0, 5000, "KEYS", *keys)
    for client in (new, old, cluster.clients[3 - source - target]):
        client.execute_command("CLUSTER SETSLOT", slot, "NODE", cluster.ids[target])


def test_a_cluster_client_that_was_brought(cluster: Cluster, api: Api, unique_name: str) -> None:
    first = cluster.servers[0]
    brought = api.redis().cluster.RedisCluster(host=first.host, port=first.port)
    try:
        locks = api.client(brought)
        names = [f"{unique_name}-{number}" for number in range(12)]
        leases = [locks.lock(name).acquire() for name in names]
        owners = {cluster.owner_of(key(name)) for name in names}
        assert len(owners) > 1
        for name, lease in zip(names, leases, strict=True):
            assert cluster.clients[cluster.owner_of(key(name))].get(key(name)) == lease.token
            lease.release()
    finally:
        if api.name == "threads":
            brought.close()


@pytest.mark.parametrize("api, how", [("asyncio", "kill"), ("threads", "pause")], indirect=["api"])
def test_a_replica_takes_over_the_slot(api: Api, unique_name: str, how: str) -> None:
    """The owner of the slot is killed, or hangs, while the lock is held and waited for; no one could serve it then."""
    with Cluster() as own:
        locks, others = api.connect(own.url), api.connect(own.url)
        lease = locks.lock(unique_name, ttl=60).acquire()
        waiting = api.start(others.lock(unique_name).acquire, timeout=FAILOVER_S * 2)
        owner = own.owner_of(key(unique_name))
        eventually(lambda: own.clients[owner].zcard(f"{key(unique_name)}:queue") == 1, "it waits")
        own.clients[owner].pexpire(key(unique_name), 60_000)  # WAIT is about what its own connection wrote
        assert own.clients[owner].wait(1, 30_000) == 1
        getattr(own.servers[owner], how)()
        successor = own.clients[owner + 3]
        eventually(lambda: successor.info("replication")["role"] == "master", "its replica took over", FAILOVER_S)
        assert successor.get(key(unique_name)) == lease.token
        eventually(lambda: extended(lease), "the holder found the new master", FAILOVER_S)
        token = waiting_token(successor, unique_name)
        eventually(lambda: new_inbox(successor, token), "and so did the waiter", FAILOVER_S)
        lease.release()
        second = waiting.result(FAILOVER_S)
        assert second.fencing_token > lease.fencing_token
        if how == "pause":
            own.servers[owner].resume()  # it learns that it owns nothing any more
            second.extend(30)
            assert successor.get(key(unique_name)) == second.token
            eventually(lambda: own.clients[owner].info("replication")["role"] == "slave", "it follows", FAILOVER_S)
        second.release()
        assert not successor.exists(key(unique_name))


def extended(lease: Any) -> bool:
    try:
        lease.extend(60)
    except (holdfast.ServerError, holdfast.ServerUnreachable, holdfast.OutcomeUnknown):
        return False
    return True


def test_a_cluster_that_is_down(api: Api, unique_name: str) -> None:
    """No replica for the slot: waited out, then said clearly."""
    with Cluster(replicas=False) as own:
        locks = api.connect(own.url)
        locks.lock(unique_name).acquire().release()
        own.servers[own.owner_of(key(unique_name))].kill()
        with pytest.raises((holdfast.ServerError, holdfast.ServerUnreachable, holdfast.OutcomeUnknown)):
            locks.lock(unique_name).acquire(timeout=5)

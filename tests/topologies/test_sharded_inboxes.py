"""In a Cluster, clients listen in the slots of what they wait for: what that saves, and that no message is lost."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast._core.agent import inboxes
from holdfast._core.settings import Settings
from testbed.topologies import Cluster
from testbed.waiting import eventually
from tests.support.apis import Api
from tests.topologies.test_failover import FAILOVER_S, key, move_slot

HANDOFFS = 100
#: A waiter that is not told looks after this, ms: later than any of these tests lasts.
NEVER_MS = 600_000
PATIENT = Settings(claim_ms=NEVER_MS, recheck_max_s=NEVER_MS / 1000, signal_recheck_ms=NEVER_MS)
TTL_S = NEVER_MS / 1000


@pytest.fixture
def kind() -> str:
    return "cluster"


@pytest.fixture
def cluster(topology: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("holdfast._api.endpoints._FAILOVER_RECHECK_S", NEVER_MS / 1000)
    return topology


@pytest.fixture(scope="module")
def movable() -> Iterator[Cluster]:
    """One whose slots move."""
    with Cluster(replicas=False) as movable:
        yield movable


@pytest.fixture
def locks(api: Api, cluster: Cluster) -> Any:
    return api.connect(cluster.url, ttl=TTL_S, _settings=PATIENT)


@pytest.fixture
def others(api: Api, cluster: Cluster) -> Any:
    return api.connect(cluster.url, ttl=TTL_S, _settings=PATIENT)


def channels(cluster: Cluster) -> list[str]:
    """The sharded channels that any client listens to, of all nodes."""
    return [each for client in cluster.clients for each in client.execute_command("PUBSUB", "SHARDCHANNELS")]


def hand_on(api: Api, one: Any, other: Any, name: str, times: int) -> None:
    """From one client to the other, again and again."""
    lease = one.lock(name).acquire()
    for number in range(times):
        waiting = api.start((one if number % 2 else other).lock(name).acquire)
        eventually(lambda: one.lock(name).waiters() == 1, "it waits")
        lease.release()
        lease = waiting.result()
    lease.release()


def test_a_handoff_sends_nothing_over_the_bus(
    cluster: Cluster, locks: Any, others: Any, api: Api, unique_name: str
) -> None:
    assert len(cluster.clients) == 6
    before, to_replicas = cluster.messages(), cluster.messages("publishshard")
    hand_on(api, locks, others, unique_name, HANDOFFS)
    assert cluster.messages() == before
    to_replicas = cluster.messages("publishshard") - to_replicas
    assert 0 < to_replicas <= 2 * HANDOFFS, "to the one replica of its master, which may have subscribers"


def _lock(one: Any, other: Any, api: Api, name: str) -> None:
    hand_on(api, one, other, name, 2)


def _semaphore(one: Any, other: Any, api: Api, name: str) -> None:
    permit = one.semaphore(name, 1).acquire()
    waiting = api.start(other.semaphore(name, 1).acquire)
    eventually(lambda: one.semaphore(name, 1).waiters() == 1)
    permit.release()
    waiting.result().release()


def _rwlock(one: Any, other: Any, api: Api, name: str) -> None:
    reading = one.rwlock(name).read().acquire()
    writing = api.start(other.rwlock(name).write().acquire)
    eventually(lambda: one.lock(name).waiters() == 1)
    reading.release()
    writing.result().release()


def _multilock(one: Any, other: Any, api: Api, name: str) -> None:
    lease = one.lock(f"{name}-b").acquire()
    waiting = api.start(other.multilock(f"{name}-a", f"{name}-b", f"{name}-c").acquire)
    eventually(lambda: one.lock(f"{name}-b").waiters() == 1)
    lease.release()
    waiting.result().release()


def _barrier(one: Any, other: Any, api: Api, name: str) -> None:
    waiting = api.start(other.barrier(name, 2).wait)
    eventually(lambda: one.barrier(name, 2).n_waiting() == 1)
    one.barrier(name, 2).wait()
    waiting.result()


WAITS = (_lock, _semaphore, _rwlock, _multilock, _barrier)


@pytest.mark.parametrize("wait", WAITS, ids=lambda wait: wait.__name__[1:])
def test_whatever_waits_is_told(
    cluster: Cluster, locks: Any, others: Any, api: Api, unique_name: str, wait: Callable[..., None]
) -> None:
    before = cluster.messages()
    wait(locks, others, api, unique_name)
    assert cluster.messages() == before


SHARDED = ("-ssubscribe", "-sunsubscribe", "-spublish", "-pubsub|shardnumsub")


@pytest.mark.parametrize(
    "denied, beside", [(SHARDED, "its like"), (SHARDED[:2], "one who may")], ids=["none", "not to hear"]
)
def test_who_has_not_the_rights_goes_without(
    cluster: Cluster, locks: Any, api: Api, unique_name: str, denied: tuple[str, ...], beside: str
) -> None:
    user = f"user{unique_name[-8:]}"
    for client in cluster.clients:
        client.execute_command("ACL", "SETUSER", user, "on", ">secret", "~*", "&*", "+@all", *denied)
    url = cluster.url.replace("://", f"://{user}:secret@")
    one, other = (api.connect(url, ttl=TTL_S, _settings=PATIENT) for _ in range(2))
    hand_on(api, other, locks if beside == "one who may" else one, unique_name, 4)


def test_clients_of_one_server_and_of_a_cluster_tell_each_other(
    api: Api, unique_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Cluster of one node, as services have it; then one that lets no one use the channels of before."""
    monkeypatch.setattr("holdfast._api.endpoints._FAILOVER_RECHECK_S", NEVER_MS / 1000)
    with Cluster(replicas=False, masters=1) as own:
        urls = own.url, own.servers[0].url
        sharded, plain = (api.connect(url, ttl=TTL_S, _settings=PATIENT) for url in urls)
        hand_on(api, sharded, plain, unique_name, 4)
        own.clients[0].execute_command("ACL", "SETUSER", "default", "-subscribe", "-publish")
        other = api.connect(own.url, ttl=TTL_S, _settings=PATIENT)
        hand_on(api, sharded, other, f"{unique_name}-2", 4)


def test_a_waiter_follows_its_slot_at_once(
    movable: Cluster, api: Api, unique_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server that it listened at says that this is over; no request of its own would tell it."""
    monkeypatch.setattr("holdfast._api.endpoints._FAILOVER_RECHECK_S", NEVER_MS / 1000)
    one, other = (api.connect(movable.url, ttl=TTL_S, _settings=PATIENT) for _ in range(2))
    lease = one.lock(unique_name).acquire()
    waiting = api.start(other.lock(unique_name).acquire)
    eventually(lambda: one.lock(unique_name).waiters() == 1)
    source = movable.owner_of(key(unique_name))
    target = (source + 1) % 3
    move_slot(movable, key(unique_name), source, target, lambda: None)
    new = movable.clients[target]
    eventually(lambda: waiter_listens(new, unique_name), "it listens where the slot is")
    lease.release()
    waiting.result().release()


@pytest.mark.parametrize(
    "kind_of_all, how", [("valkey", "handed over"), ("redis70", "handed over"), ("valkey", "killed")]
)
def test_a_waiter_follows_a_failover(
    kind_of_all: Any, how: str, api: Api, unique_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that becomes a replica ends subscriptions, or takes new ones, which count for nothing at its master."""
    monkeypatch.setattr("holdfast._api.endpoints._FAILOVER_RECHECK_S", NEVER_MS / 1000)
    with Cluster(kinds=[kind_of_all]) as own:
        one, other = (api.connect(own.url, ttl=TTL_S, _settings=PATIENT) for _ in range(2))
        lease = one.lock(unique_name).acquire()
        waiting = api.start(other.lock(unique_name).acquire)
        eventually(lambda: one.lock(unique_name).waiters() == 1)
        owner = own.owner_of(key(unique_name))
        successor = own.clients[owner + 3]
        if how == "killed":
            own.clients[owner].pexpire(key(unique_name), NEVER_MS)  # WAIT is about what its own connection wrote
            assert own.clients[owner].wait(1, 30_000) == 1
            own.servers[owner].kill()
            eventually(lambda: is_master(successor), "its replica took over", FAILOVER_S)
        else:
            take_over(successor)
        eventually(lambda: waiter_listens(successor, unique_name), "it listens at the new master", FAILOVER_S)
        lease.release()
        waiting.result().release()


@pytest.mark.parametrize("kind_of_all", ["redis62", "redis70"])
def test_older_servers_have_handoffs(
    kind_of_all: Any, api: Api, unique_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis 6.2 has no sharded channels: all nodes are told."""
    monkeypatch.setattr("holdfast._api.endpoints._FAILOVER_RECHECK_S", NEVER_MS / 1000)
    with Cluster(replicas=False, kinds=[kind_of_all]) as own:
        one, other = (api.connect(own.url, ttl=TTL_S, _settings=PATIENT) for _ in range(2))
        hand_on(api, one, other, unique_name, 10)
        if kind_of_all == "redis62":
            eventually(lambda: own.messages() >= 20, "2 other nodes, 10 times")
        else:
            assert own.messages() == 0


def test_a_cluster_that_is_upgraded(api: Api, unique_name: str) -> None:
    """One node is of Redis 6.2: waiters there listen in the old way, and in the new one when the slot has moved."""
    with Cluster(replicas=False, kinds=["redis62", "redis70", "redis70"]) as own:
        name = next(each for number in range(1000) if own.owner_of(key(each := f"{unique_name}-{number}")) == 0)
        one, other = api.connect(own.url, ttl=TTL_S), api.connect(own.url, ttl=TTL_S)
        hand_on(api, one, other, name, 2)
        lease = one.lock(name).acquire()
        waiting = api.start(other.lock(name).acquire)
        eventually(lambda: one.lock(name).waiters() == 1)
        move_slot(own, key(name), 0, 1, lambda: None)
        eventually(lambda: waiter_listens(own.clients[1], name), "it looks, and listens where the slot is")
        lease.release()
        waiting.result().release()
        before = own.messages()
        hand_on(api, one, other, name, 10)
        assert own.messages() == before


def is_master(client: Any) -> bool:
    return bool(client.info("replication")["role"] == "master")


def take_over(replica: Any) -> None:
    """Have it become the master. A server gives that up after 5 s, when it was held up, and has to be told again."""
    for _ in range(FAILOVER_S // 6):
        replica.execute_command("CLUSTER", "FAILOVER")
        with contextlib.suppress(AssertionError):
            eventually(lambda: is_master(replica), "it took over", 6)
            return
    raise AssertionError(f"it did not take over within {FAILOVER_S} s")


def waiter_listens(client: Any, name: str) -> bool:
    waiting = client.zrange(f"{key(name)}:queue", 0, -1)
    channels = [f"holdfast:inbox:{{{name}}}{token.partition(':')[0]}" for token in waiting]
    return bool(client.execute_command("PUBSUB", "SHARDNUMSUB", *channels)[1::2] == [1])


def test_few_subscriptions_are_kept(
    cluster: Cluster, locks: Any, others: Any, api: Api, unique_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inboxes, "OPEN_MAX", 20)
    most = 0
    for number in range(60):
        hand_on(api, locks, others, f"{unique_name}-{number}", 1)
        most = max(most, sum(unique_name in each for each in channels(cluster)))
    assert 20 <= most <= 2 * 21, "of two clients"
    hand_on(api, locks, others, f"{unique_name}-0", 2)  # whose channels were left

"""Leases that replicas have to acknowledge: `sync_replicas`."""

from __future__ import annotations

from typing import Any

import pytest

import holdfast
from testbed.topologies import Replicated, plain
from testbed.waiting import eventually
from tests.support.apis import Api


def key(name: str) -> str:
    return f"holdfast:{{{name}}}"


@pytest.mark.parametrize("wanted", [1, 2, "all"])
def test_what_is_held_is_on_the_replicas(in_step: Replicated, api: Api, unique_name: str, wanted: Any) -> None:
    locks = api.connect(in_step.url, sync_replicas=wanted)
    lease = locks.lock(unique_name, ttl=20).acquire()
    copies = []
    for replica in in_step.replicas:
        with plain(replica) as client:
            copies.append(client.get(key(unique_name)))
    assert copies.count(lease.token) >= (1 if wanted == 1 else 2)
    lease.extend(25)
    lease.release()


@pytest.mark.parametrize("wanted", [2, "all"])
def test_too_few_are_reported_and_nothing_is_left(in_step: Replicated, api: Api, unique_name: str, wanted: Any) -> None:
    locks = api.connect(in_step.url, sync_replicas=wanted)
    locks.lock(f"{unique_name}-warm").acquire().release()
    in_step.replicas[1].pause()
    lock = locks.lock(unique_name, ttl=1)  # so that WAIT waits for a sixth of a second
    with pytest.raises(holdfast.InsufficientReplicas) as caught:
        lock.acquire(timeout=0.5)
    assert (caught.value.name, caught.value.needed, caught.value.acked) == (unique_name, 2, 1)
    eventually(lambda: not in_step.raw.exists(key(unique_name)), "it was given back")
    with pytest.raises(holdfast.InsufficientReplicas):
        lock.try_acquire()
    eventually(lambda: not in_step.raw.exists(key(unique_name)), "it was given back")
    # One of two is what another lock asks for.
    with locks.lock(unique_name, sync_replicas=1):
        pass


def test_a_lease_that_the_replicas_do_not_follow_is_lost(in_step: Replicated, api: Api, unique_name: str) -> None:
    lease = api.connect(in_step.url).lock(unique_name, ttl=2, sync_replicas="all").acquire()
    in_step.replicas[0].pause()
    eventually(lambda: lease.state.name != "HELD", "a renewal failed")
    assert lease.lost.wait(30)


def test_a_replica_that_is_gone_is_still_counted(api: Api, unique_name: str) -> None:
    with Replicated(2) as own:
        locks = api.connect(own.url, sync_replicas="all")
        locks.lock(unique_name).acquire().release()
        own.replicas[0].kill()
        eventually(lambda: own.online() == 1, "the master knows that it is gone")
        with pytest.raises(holdfast.InsufficientReplicas) as caught:
            locks.lock(unique_name, ttl=1).try_acquire()
        assert (caught.value.needed, caught.value.acked) == (2, 1), "it may be promoted yet"


def test_all_of_none_is_none(api: Api, private_server: Any, unique_name: str) -> None:
    locks = api.connect(private_server().url, sync_replicas="all")  # a shared one ends a WAIT late
    with pytest.raises(holdfast.InsufficientReplicas) as caught:
        locks.lock(unique_name, ttl=1).try_acquire()
    assert (caught.value.needed, caught.value.acked) == (1, 0)


def test_a_server_without_wait_is_asked_once(api: Api, private_server: Any, unique_name: str) -> None:
    server = private_server()
    with plain(server) as client:
        client.execute_command("ACL SETUSER default -wait")
        locks = api.connect(server.url, sync_replicas=1)
        with pytest.raises(holdfast.ServerError, match="sync_replicas"):
            locks.lock(unique_name).acquire()
        eventually(lambda: not client.exists(key(unique_name)), "it was given back")
        before = client.info("commandstats")["cmdstat_evalsha"]["calls"]
        with pytest.raises(holdfast.ServerError, match="sync_replicas"):
            locks.lock(unique_name).acquire()
        assert client.info("commandstats")["cmdstat_evalsha"]["calls"] == before


@pytest.mark.parametrize("value", [0, -1, True, "some", 1.5, 101])
def test_bad_numbers(api: Api, value: Any) -> None:
    with pytest.raises(holdfast.ConfigurationError) as caught:
        api.connect("redis://127.0.0.1:1", sync_replicas=value)
    assert caught.value.argument == "sync_replicas"
    with pytest.raises(holdfast.ConfigurationError):
        api.connect("redis://127.0.0.1:1").lock("a", sync_replicas=value)


def test_not_over_a_quorum(api: Api) -> None:
    locks = api.connect("redlock://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3")
    with pytest.raises(holdfast.ConfigurationError):
        locks.lock("a", sync_replicas=1)

"""Holders with `crash_release` in a Cluster and behind Sentinels, and after a failover."""

from __future__ import annotations

import signal
import time
from typing import Any

import pytest

import holdfast
from testbed.topologies import Cluster, WithSentinel, plain
from testbed.waiting import eventually
from tests.support.apis import Api
from tests.support.worker import workers
from tests.topologies.test_failover import FAILOVER_S, key, move_slot

#: Long enough that no test sees its end.
TTL_S = 600


@pytest.fixture(params=["cluster", "sentinel"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("api", ["threads", "asyncio"], indirect=True)
def test_a_killed_holder_is_followed(api: Api, locks: Any, url: str, raw: Any, unique_name: str) -> None:
    with workers(api.name, url, 1) as (worker,):
        held = worker.ask(f"acquire {unique_name} {TTL_S} 1")
        waiting = api.start(locks.lock(unique_name, crash_release=1).acquire)
        eventually(lambda: raw.zcard(f"{key(unique_name)}:queue") == 1)
        with pytest.raises(holdfast.AcquireTimeout):
            locks.lock(unique_name).acquire(timeout=3)
        assert raw.get(key(unique_name)) == held["token"]
        worker.signal(signal.SIGKILL)
        lease = waiting.result(60)
        assert lease.fencing_token > held["fence"]
        lease.ensure_held()
        lease.release()


@pytest.mark.parametrize("api", ["threads"], indirect=True)
def test_after_a_failover_the_ttl_decides_until_it_is_renewed(api: Api, unique_name: str) -> None:
    """The new master has never seen the holder, which is stopped meanwhile: that is no reason to replace it."""
    with WithSentinel(2) as servers:
        servers.ready_for_failover()
        locks = api.connect(servers.url)
        with workers(api.name, servers.url, 1) as (worker,):
            held = worker.ask(f"acquire {unique_name} {TTL_S} 1")
            worker.signal(signal.SIGSTOP)
            with plain(servers.master) as client:
                client.pexpire(key(unique_name), TTL_S * 1000)  # WAIT is about what its own connection wrote
                assert client.wait(2, 30_000) == 2
            servers.master.kill()
            with plain(servers.failed_over()) as client:
                note = client.get(f"{key(unique_name)}:fence:crash")
                assert note.split(" ")[1] != client.info("replication")["master_replid"]
                eventually(lambda: locks.lock(unique_name).locked(), "the client has found it", FAILOVER_S)
                with pytest.raises(holdfast.AcquireTimeout):
                    locks.lock(unique_name).acquire(timeout=4)
                assert client.get(key(unique_name)) == held["token"]
                worker.signal(signal.SIGCONT)
                eventually(lambda: worker.ask("ensure").get("state") == "HELD", "it has it still", FAILOVER_S)
                eventually(lambda: client.get(f"{key(unique_name)}:fence:crash") != note, "it was seen", FAILOVER_S)
                worker.signal(signal.SIGKILL)
                lease = locks.lock(unique_name).acquire(timeout=60)
                assert lease.fencing_token > held["fence"]
                lease.release()


@pytest.mark.parametrize("api", ["threads", "asyncio"], indirect=True)
def test_a_slot_that_moves_costs_no_lease(api: Api, unique_name: str) -> None:
    """Also while some of its keys are at either node, and no request for several of them is answered."""
    with Cluster(replicas=False) as own:
        locks, others = api.connect(own.url), api.connect(own.url)
        lease = locks.lock(unique_name, ttl=TTL_S, crash_release=1).acquire()
        waiting = api.start(others.lock(unique_name).acquire)
        eventually(lambda: others.lock(unique_name).waiters() == 1)
        source = own.owner_of(key(unique_name))
        target = (source + 1) % 3
        move_slot(own, key(unique_name), source, target, lambda: time.sleep(2))
        run = own.clients[target].info("replication")["master_replid"]
        noted = f"alive {run} {lease.token}"
        eventually(lambda: own.clients[target].get(f"{key(unique_name)}:fence:crash") == noted, "it was renewed there")
        eventually(lambda: lease.held, "and is trusted again")
        assert own.clients[target].get(key(unique_name)) == lease.token and not waiting.done()
        lease.release()
        waiting.result(60).release()


@pytest.mark.parametrize("api", ["threads", "asyncio"], indirect=True)
def test_it_is_refused_over_a_quorum(api: Api, shared_topologies: Any, unique_name: str) -> None:
    locks = api.connect(shared_topologies("quorum").url)
    with pytest.raises(holdfast.ConfigurationError, match="crash_release"):
        locks.lock(unique_name, crash_release=1)

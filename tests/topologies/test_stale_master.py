"""Through Sentinel, with replicas that were cut off: who takes over has not heard of the latest leases."""

from __future__ import annotations

from typing import Any

import pytest

import holdfast
from holdfast import embedded
from testbed.topologies import WithSentinel, plain
from testbed.waiting import eventually
from tests.support.apis import Api

#: Everything that a failover takes on a busy machine, s.
FAILOVER_S = 90


def key(name: str) -> str:
    return f"holdfast:{{{name}}}"


def cut_off(servers: WithSentinel, *replicas: embedded.Server) -> None:
    """These get nothing from the master any more, neither what lies in its buffers."""
    for replica in replicas:
        replica.pause()
    with plain(servers.master) as client:
        client.client_kill_filter(_type="replica")
    left = len(servers.replicas) - len(replicas)
    eventually(lambda: servers.in_step() == left, "the others are back", 60)


@pytest.mark.parametrize("api", ["threads"], indirect=True)
def test_a_replica_that_was_cut_off_takes_over(api: Api, unique_name: str) -> None:
    """A lock that one of two replicas acknowledged is given out twice; one that all had to is not."""
    with WithSentinel(2, priorities=[0, 100]) as servers:  # the first is never promoted
        servers.ready_for_failover()
        locks, others = api.connect(servers.url), api.connect(servers.url)
        locks.lock(f"{unique_name}-warm", sync_replicas="all").acquire().release()
        lagging = servers.replicas[1]
        cut_off(servers, lagging)
        trap = locks.lock(f"{unique_name}-one", ttl=120, sync_replicas=1, renew=False).acquire()
        with pytest.raises(holdfast.InsufficientReplicas) as caught:
            locks.lock(f"{unique_name}-all", ttl=1, sync_replicas="all").try_acquire()
        assert (caught.value.needed, caught.value.acked) == (2, 1)
        servers.master.kill()
        lagging.resume()
        assert servers.failed_over() is lagging
        second = others.lock(f"{unique_name}-one", ttl=60).acquire(timeout=FAILOVER_S)
        trap.ensure_held()  # two holders, of which one does not know
        assert second.fencing_token > trap.fencing_token, "a resource that checks the token is safe"
        eventually(lambda: found_lost(trap), "it learns that from the new master", FAILOVER_S)
        assert trap.lost.is_set(), "and with its next renewal it does"
        # No one holds what too few had acknowledged: one holder, the first.
        only = others.lock(f"{unique_name}-all").acquire(timeout=FAILOVER_S)
        with plain(lagging) as client:
            assert client.get(key(f"{unique_name}-one")) == second.token
            assert client.get(key(f"{unique_name}-all")) == only.token
        only.release()
        second.release()


@pytest.mark.parametrize("api", ["asyncio"], indirect=True)
def test_the_old_master_comes_back(api: Api, unique_name: str) -> None:
    """The old master hangs, one that has heard of nothing takes over, and the old one goes on as a master."""
    with WithSentinel(2) as servers:
        servers.ready_for_failover()
        locks, others = api.connect(servers.url), api.connect(servers.url)
        straight = api.connect(servers.master.url)  # who does not ask the Sentinels
        straight.lock(f"{unique_name}-warm", sync_replicas="all").acquire().release()
        cut_off(servers, *servers.replicas)
        unaware = locks.lock(unique_name, ttl=240, renew=False).acquire()
        renewed = locks.lock(f"{unique_name}-renewed", ttl=8).acquire()
        waiting = api.start(others.lock(unique_name, ttl=60).acquire, timeout=FAILOVER_S * 2)
        with plain(servers.master) as client:
            eventually(lambda: client.zcard(f"{key(unique_name)}:queue") == 1, "it waits")
        servers.master.pause()
        for replica in servers.replicas:
            replica.resume()
        new = servers.failed_over()
        second = waiting.result(FAILOVER_S)
        unaware.ensure_held()
        assert second.fencing_token > unaware.fencing_token
        servers.master.resume()
        # The stale master grants no lease that replicas have to acknowledge, before and after it has learnt.
        for number in range(3):
            with pytest.raises(
                (
                    holdfast.InsufficientReplicas,
                    holdfast.ServerError,
                    holdfast.OutcomeUnknown,
                    holdfast.ServerUnreachable,
                )
            ):
                straight.lock(f"{unique_name}-free-{number}", ttl=1, sync_replicas="all").try_acquire()
        second.extend(60)
        assert renewed.lost.wait(30), "whose lease did not survive learns it with a renewal, or at the deadline"
        with pytest.raises(holdfast.LeaseLost):
            renewed.ensure_held()
        eventually(lambda: found_lost(unaware), "and so does who renews by hand", FAILOVER_S)
        with plain(new) as client:
            assert client.get(key(unique_name)) == second.token
        second.release()


def found_lost(lease: Any) -> bool:
    """True if a renewal says that it is lost; it may meet connections to the old master at first."""
    try:
        lease.extend(60)
    except holdfast.LeaseLost:
        return True
    except (holdfast.ServerError, holdfast.ServerUnreachable, holdfast.OutcomeUnknown):
        return False
    raise AssertionError("it was extended")

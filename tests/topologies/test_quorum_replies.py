"""One member of a quorum carries out what it is asked, and its reply is lost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import holdfast
from holdfast._lua import SCRIPTS
from testbed.proxy import Proxy
from testbed.topologies import Quorum, address
from testbed.waiting import eventually
from tests.support.apis import Api


@pytest.fixture(scope="module")
def five() -> Iterator[Quorum]:
    with Quorum(5) as five:
        yield five


@pytest.fixture(params=[0, 2], ids=["four answer", "two answer, so that it decides"])
def gone(request: pytest.FixtureRequest, five: Quorum) -> Iterator[int]:
    """How many of the others are stopped."""
    yield request.param
    for server in five.servers:
        server.start()
        server.resume()


@pytest.fixture
def wire(five: Quorum) -> Iterator[Proxy]:
    """Return a proxy before the last member."""
    with Proxy(five.servers[4].host, five.servers[4].port) as wire:
        yield wire


@pytest.fixture
def locks(five: Quorum, wire: Proxy, api: Api, unique_name: str) -> Any:
    """A client that has spoken to all of them before."""
    members = [*map(address, five.servers[:4]), f"127.0.0.1:{wire.port}"]
    # 2 s: long for a busy machine, short enough to be waited for.
    locks = api.connect(f"redlock://{','.join(members)}/0?restart_delay=0&member_timeout=2", ttl=60)
    lease = locks.lock(f"{unique_name}-warm").acquire(timeout=30)
    lease.extend(60)
    lease.release()
    # A member that answers late is not relied on for a while: all must be equal when it begins.
    locks.lock(f"{unique_name}-warm").acquire(timeout=30).release()
    return locks


def stop(five: Quorum, gone: int) -> None:
    for server in five.servers[:gone]:
        server.kill()


def held_at(five: Quorum, name: str, gone: int) -> list[str]:
    held = [client.get(f"holdfast:{{{name}}}") for client in five.clients[gone:]]
    return [token for token in held if token is not None]


def test_a_quorums_acquire_without_a_reply(five: Quorum, wire: Proxy, locks: Any, unique_name: str, gone: int) -> None:
    stop(five, gone)
    lost = wire.on("quorum_acquire", "lose the reply")
    lock = locks.lock(unique_name)
    if gone:
        with pytest.raises(holdfast.QuorumUnreachable) as caught:
            lock.try_acquire()
        assert caught.value.needed == 3 and caught.value.heard <= 2
        lost.wait()
        eventually(lambda: not held_at(five, unique_name, gone), "what it had granted was given back, too")

    def taken() -> Any:
        """A member that owes an answer still is connected to again, and the others' votes may be enough by then."""
        lease = lock.acquire(timeout=60)
        if lost.has_acted(1.0):
            return lease
        lease.release()
        return None

    lease = eventually(taken, "its vote was lost")
    eventually(lambda: set(held_at(five, unique_name, gone)) == {lease.token}, "nothing is there of earlier rounds")
    lease.release()
    eventually(lambda: not held_at(five, unique_name, gone), "nothing is left anywhere")
    again = lock.acquire(timeout=60)
    assert again.fencing_token > lease.fencing_token
    again.release()
    eventually(lambda: not held_at(five, unique_name, gone))


def test_a_quorums_renewal_without_a_reply(five: Quorum, wire: Proxy, locks: Any, unique_name: str, gone: int) -> None:
    lease = locks.lock(unique_name, ttl=30, renew=False).acquire(timeout=30)
    five.clients[4].script_load(SCRIPTS["renew"].text)  # else the reply may be that it is not known there
    stop(five, gone)
    lost = wire.on("renew", "lose the reply")
    if gone:
        with pytest.raises(holdfast.QuorumUnreachable):
            lease.extend(600)
        assert lease.remaining() <= 30, "what no majority has said does not count"
    # It is asked on another connection: the old one owes the answer for as long as late answers are looked at, 30 s.
    eventually(lambda: extended(lease), "the next one goes through", 15)
    # A member that still owes an answer is connected to again, and may have been left out this time: then once more.
    eventually(lambda: lost.has_acted(1.0) or (extended(lease) and lost.has_acted()), "its reply was lost")
    assert 30 < lease.remaining() <= 60
    eventually(lambda: 30_000 < five.clients[4].pttl(f"holdfast:{{{unique_name}}}") <= 60_000, "absolute: not added up")
    lease.release()
    eventually(lambda: not held_at(five, unique_name, gone))


def extended(lease: Any) -> bool:
    try:
        lease.extend(60)
    except holdfast.QuorumUnreachable:
        return False
    return True


def test_a_quorums_release_without_a_reply(five: Quorum, wire: Proxy, locks: Any, unique_name: str, gone: int) -> None:
    lease = locks.lock(unique_name, ttl=60).acquire(timeout=30)
    stop(five, gone)
    lost = wire.on("release", "lose the reply")
    if gone:
        with pytest.raises(holdfast.QuorumUnreachable):
            lease.release()
    else:
        lease.release()
    lost.wait()
    eventually(lambda: not held_at(five, unique_name, gone), "released everywhere")
    again = locks.lock(unique_name).acquire(timeout=60)
    assert again.fencing_token > lease.fencing_token
    again.release()
    for server in five.servers[:gone]:
        server.start()
    eventually(lambda: not held_at(five, unique_name, 0))

"""Over a quorum of real servers: members that are gone, hang, forget, or are not what they should be."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

import holdfast
import holdfast.asyncio
from testbed.topologies import Quorum, address, plain
from testbed.waiting import eventually
from tests.support.apis import Api, close_brought


@pytest.fixture(scope="module")
def five() -> Iterator[Quorum]:
    with Quorum(5) as five:
        yield five


@pytest.fixture
def quorum(five: Quorum) -> Iterator[Quorum]:
    """Five members that all go on, before and after."""
    yield five
    for server in five.servers:
        server.start()
        server.resume()


def key(name: str) -> str:
    return f"holdfast:{{{name}}}"


def held_at(quorum: Quorum, name: str, members: range = range(5)) -> list[Any]:
    return [quorum.clients[member].get(key(name)) for member in members]


# ---------------------------------------------------------------- members that fail


@pytest.mark.parametrize("how, count", [("kill", 1), ("pause", 1), ("kill", 2), ("pause", 2)])
def test_a_minority_may_fail(quorum: Quorum, api: Api, unique_name: str, how: str, count: int) -> None:
    locks, others = api.connect(quorum.url), api.connect(quorum.url)
    before = locks.lock(unique_name).acquire()
    for server in quorum.servers[:count]:
        getattr(server, how)()
    assert others.lock(unique_name).try_acquire() is None
    before.extend(20)
    before.release()
    lease = others.lock(unique_name).acquire(timeout=30)
    assert lease.fencing_token > before.fencing_token
    assert held_at(quorum, unique_name, range(count, 5)).count(lease.token) >= 3
    lease.release()  # by a majority; the others may answer later
    eventually(lambda: not any(held_at(quorum, unique_name, range(count, 5))))


@pytest.mark.parametrize("paused", [0, 2])
def test_closing_tells_and_releases_everywhere(quorum: Quorum, api: Api, unique_name: str, paused: int) -> None:
    """And who waits gets nothing of it; members that hang hold it up for a moment."""
    locks, others = api.connect(quorum.url), api.connect(quorum.url)
    leases = [locks.lock(f"{unique_name}-{index}", ttl=600).acquire() for index in range(5)]
    waiting = api.actor().tell(locks.lock(leases[0].name, ttl=600), "acquire")
    time.sleep(0.3)
    assert not waiting.done()
    for server in quorum.servers[:paused]:
        server.pause()
    locks.close()
    assert {(lease.state.name, lease.lost.reason) for lease in leases} == {("LOST", "closed")}
    with pytest.raises(holdfast.ClientClosed):
        waiting.result(30)
    for lease in leases:
        assert not any(held_at(quorum, lease.name, range(paused, 5)))
    for server in quorum.servers[:paused]:
        server.resume()
    others.lock(leases[0].name).acquire(timeout=30).release()


@pytest.mark.parametrize("how", ["kill", "pause"])
def test_a_majority_may_not(quorum: Quorum, api: Api, unique_name: str, how: str) -> None:
    locks = api.connect(quorum.url)
    locks.lock(f"{unique_name}-warm").acquire().release()
    for server in quorum.servers[:3]:
        getattr(server, how)()
    began = time.monotonic()
    with pytest.raises(holdfast.QuorumUnreachable) as caught:
        locks.lock(unique_name).try_acquire()
    with pytest.raises(holdfast.QuorumUnreachable):
        locks.lock(unique_name).acquire(timeout=1)
    assert time.monotonic() - began < 20, "long before any ttl"
    assert caught.value.needed == 3
    assert caught.value.heard <= 2, "those that are there, as far as they had answered when it was hopeless"
    assert len(caught.value.problems) >= 3
    assert address(quorum.servers[0]) in str(caught.value)
    eventually(lambda: not any(held_at(quorum, unique_name, range(3, 5))), "the votes were given back")
    for server in quorum.servers[:3]:
        server.start()
        server.resume()
    # The requests that lay in the buffers of those that hung are carried out now, and undone.
    eventually(lambda: not any(held_at(quorum, unique_name)), "nothing is left anywhere", 60)
    locks.lock(unique_name).acquire(timeout=30).release()


def test_a_holder_learns_that_the_majority_is_gone(quorum: Quorum, api: Api, unique_name: str) -> None:
    lease = api.connect(quorum.url).lock(unique_name, ttl=3).acquire()
    for server in quorum.servers[:3]:
        server.pause()
    eventually(lambda: lease.state.name == "SUSPECT", "a renewal failed")
    assert lease.lost.wait(30)
    with pytest.raises(holdfast.LeaseLost):
        lease.ensure_held()


@pytest.mark.parametrize("api", ["threads"], indirect=True)
def test_renewals_go_on_without_a_minority(quorum: Quorum, api: Api, unique_name: str) -> None:
    lease = api.connect(quorum.url).lock(unique_name, ttl=1.5).acquire()
    quorum.servers[0].pause()
    quorum.servers[1].kill()
    time.sleep(2.5)  # longer than the ttl: it is the absence of a loss that counts
    lease.ensure_held()
    lease.release()


def test_a_note_is_seen(quorum: Quorum, api: Api, unique_name: str) -> None:
    lease = api.connect(quorum.url).lock(unique_name, ttl=2, note="by Ana").acquire()
    lock = api.connect(quorum.url).lock(unique_name)
    eventually(lambda: lock.holder().note == "by Ana")
    start = lease._record.renew_from
    eventually(lambda: lease._record.renew_from > start + 2.5)
    assert lock.holder().note == "by Ana"
    lease.release()


def test_a_member_that_hangs_keeps_no_client_that_was_dropped(quorum: Quorum, unique_name: str) -> None:
    """A late answer is still wanted, for what it may have granted; the task that asked for it has gone on."""
    owed: list[bool] = []

    async def use() -> weakref.ref[Any]:
        locks = holdfast.asyncio.connect(quorum.url)
        async with locks.lock(unique_name):
            quorum.servers[4].pause()
        async with locks.lock(unique_name):
            link: Any = locks._session.driver.topology.nodes()[4].link
        return weakref.ref(locks._session, lambda _: owed.append(any(each.outcome is None for each in link._pending)))

    session = asyncio.run(use())
    eventually(lambda: gc.collect() >= 0 and session() is None, "it is collected")
    assert owed == [True]


def test_a_member_that_hangs_is_not_waited_for(quorum: Quorum, api: Api, unique_name: str) -> None:
    lock = api.connect(quorum.url, ttl=60).lock(unique_name, renew=False)
    for _ in range(5):
        lock.acquire().release()
    quorum.servers[2].pause()
    lock.acquire().release()  # found out
    began = time.monotonic()
    for _ in range(20):
        lock.acquire().release()
    took = time.monotonic() - began
    assert took < 20 * 0.5, f"{took:.3f} s for 20 turns: a member is waited for 1 s with such a ttl"


# ---------------------------------------------------------------- members that forget


def refused_by_the_young(locks: Any, name: str) -> None:
    """Check that members refuse once they are heard: the first try connects, and may need longer than it has."""
    said = ""
    for _ in range(5):
        with pytest.raises(holdfast.QuorumUnreachable) as refused:
            locks.lock(name).try_acquire()
        said = str(refused.value)
        if "no answer in time" not in said:
            break
    assert "restarted recently" in said


def test_a_member_that_was_restarted_does_not_vote(api: Api, unique_name: str) -> None:
    with Quorum(3) as own:
        locks = api.module().Client.quorum(own.urls, ttl=3, restart_delay=3)
        locks = api.wrap(locks)
        try:
            # All three are too young at first, and grow up.
            refused_by_the_young(locks, unique_name)
            locks.lock(unique_name).acquire(timeout=30).release()
            own.servers[0].kill()
            own.servers[0].start()
            own.servers[1].kill()
            own.servers[1].start()  # both empty: with their votes, two holders were possible
            refused_by_the_young(locks, unique_name)
            eventually(lambda: not any(held_at(own, unique_name, range(3))), "the one vote was given back")
            locks.lock(unique_name).acquire(timeout=30).release()
        finally:
            locks.close()


def test_what_is_left_of_a_lost_majority_keeps_others_out(quorum: Quorum, api: Api, unique_name: str) -> None:
    """A member forgets, and only as many as needed had voted: the holder is told; others wait until it gives up."""
    locks, others = api.connect(quorum.url), api.connect(quorum.url)
    locks.lock(unique_name).acquire().release()
    for client in quorum.clients[3:]:
        client.set(key(unique_name), "someone:else:1", px=60_000)  # they vote for another one in vain
    lease = locks.lock(unique_name, ttl=3).acquire(timeout=30)
    lease.extend(6)
    # As after a restart without data: it has forgotten the lease, and does not vote.
    quorum.clients[0].set(key(unique_name), "unknown:at:all", px=60_000)
    trusted_until = time.monotonic() + lease.remaining()
    waiting = api.actor().tell(others.lock(unique_name), "acquire", 60)
    assert lease.lost.wait(30)
    told = time.monotonic()
    assert lease.lost.reason == "taken"
    for client in quorum.clients[3:]:  # not before: an ask that is still on its way would be a vote
        client.delete(key(unique_name))
    second = waiting.result(60)
    assert time.monotonic() >= trusted_until, "let in while the first could be trusted, as it had been told"
    assert told < trusted_until, "the renewal told, not the deadline"
    assert second.fencing_token > lease.fencing_token
    second.release()


@pytest.mark.parametrize("api", ["asyncio"], indirect=True)
def test_fencing_tokens_grow_whichever_majority_it_is(quorum: Quorum, api: Api, unique_name: str) -> None:
    """Every turn sees another minority gone, and clients that know nothing of each other."""
    tokens = []
    clients = [api.connect(quorum.url) for _ in range(2)]
    # A token far ahead, which just a majority remembers: those that follow must not forget it.
    for member in range(3):
        quorum.clients[member].set(f"{key(unique_name)}:fence", 2_500_000_000_000_000, px=600_000)
    for turn in range(6):
        gone = [(turn * 2 + 1) % 5, (turn * 2 + 2) % 5] if turn else []
        for member in gone:
            quorum.servers[member].pause()
        try:
            lease = clients[turn % 2].lock(unique_name, ttl=20).acquire(timeout=30)
            tokens.append(lease.fencing_token)
            lease.release()
        finally:
            for member in gone:
                quorum.servers[member].resume()
    assert tokens[0] > 2_500_000_000_000_000
    assert tokens == sorted(set(tokens))


def test_every_key_has_a_ttl_on_every_member(quorum: Quorum, api: Api, unique_name: str) -> None:
    locks, others = api.connect(quorum.url), api.connect(quorum.url)
    lease = locks.lock(unique_name).acquire()
    with pytest.raises(holdfast.AcquireTimeout):
        others.lock(unique_name).acquire(timeout=0.2)
    for client in quorum.clients:
        keys = list(client.scan_iter(f"{key(unique_name)}*"))
        assert key(unique_name) in keys
        assert all(client.pttl(each) > 0 for each in keys), keys
    lease.release()


def test_clients_that_were_brought(quorum: Quorum, api: Api, unique_name: str) -> None:
    """Each member by a client of its own, with whatever settings."""
    settings: list[dict[str, Any]] = [{}, {"decode_responses": True}, {"protocol": 2}, {"protocol": 3}, {}]
    brought = [api.redis().Redis.from_url(url, **options) for url, options in zip(quorum.urls, settings, strict=True)]
    locks = api.wrap(api.module().Client.quorum(brought, restart_delay=0))
    try:
        lease = locks.lock(unique_name).acquire(timeout=30)
        assert held_at(quorum, unique_name).count(lease.token) >= 3
        lease.extend(30)
        lease.release()
        eventually(lambda: not any(held_at(quorum, unique_name)))
    finally:
        locks.close()
        for client in brought:
            close_brought(api, client)


# ---------------------------------------------------------------- contention


def test_contenders_take_turns(quorum: Quorum, api: Api, unique_name: str) -> None:
    inside: list[int] = []
    tokens: list[int] = []

    def take(number: int) -> None:
        locks = clients[number]
        for _ in range(3):
            lease = locks.lock(unique_name, ttl=20).acquire(timeout=60)
            inside.append(number)
            assert inside == [number]
            tokens.append(lease.fencing_token)
            inside.remove(number)
            lease.release()

    clients = [api.connect(quorum.url) for _ in range(4)]
    for taker in [api.start(take, number) for number in range(4)]:
        taker.result(120)
    assert len(tokens) == 12
    assert tokens == sorted(set(tokens))


def test_waiting_ends_with_the_release(quorum: Quorum, api: Api, unique_name: str) -> None:
    locks, others = api.connect(quorum.url), api.connect(quorum.url)
    lease = locks.lock(unique_name).acquire()
    with pytest.raises(holdfast.AcquireTimeout) as caught:
        others.lock(unique_name).acquire(timeout=0.3)
    assert caught.value.holder is not None and caught.value.holder.token == lease.token
    waiting = api.start(others.lock(unique_name).acquire, timeout=60)
    lease.release()
    waiting.result().release()


# ---------------------------------------------------------------- wrong set-ups


def test_wrong_set_ups_are_refused(api: Api) -> None:
    make: Any = api.module().Client.quorum
    urls = [f"redis://127.0.0.1:{port}" for port in range(1, 6)]
    for servers in (urls[:1], urls[:2], urls[:4], [], "redis://127.0.0.1", None, [*urls[:2], 5]):
        with pytest.raises(holdfast.ConfigurationError) as caught:
            make(servers)
        assert caught.value.argument == "servers"
    with pytest.raises(holdfast.ConfigurationError, match="same"):
        make([*urls[:2], urls[0]])
    for url in ("redlock://a,b", "redlock://a:1,b:2,c:x", "redlock://a,a,b", "redlock://a,b,c/x/y"):
        with pytest.raises(holdfast.ConfigurationError):
            api.connect(url)
    for options in ({"restart_delay": -1}, {"member_timeout": 0}, {"ttl": 0}):
        with pytest.raises(holdfast.ConfigurationError):
            make(urls, **options)


def refused(locks: Any, name: str) -> holdfast.ConfigurationError | None:
    """Return what is wrong with the set-up; None while too few members have answered to see it."""
    try:
        locks.lock(name).acquire(timeout=5).release()
    except holdfast.ConfigurationError as error:
        return error
    return None


def test_the_same_server_twice_is_found_out(quorum: Quorum, api: Api, unique_name: str) -> None:
    one = quorum.servers[0]
    url = f"redlock://{address(one)},localhost:{one.port},{address(quorum.servers[1])}?restart_delay=0"
    locks = api.connect(url)
    for _ in range(2):
        error = eventually(lambda: refused(locks, unique_name), "it is found out, also the second time")
        assert "one and the same" in str(error)
    eventually(lambda: not any(held_at(quorum, unique_name)), "nothing is left")


@pytest.mark.parametrize("api", ["asyncio"], indirect=True)
def test_a_replica_is_no_member(quorum: Quorum, api: Api, private_server: Any, unique_name: str) -> None:
    master = quorum.servers[0]
    quorum.clients[0].config_set("repl-diskless-sync-delay", 0)
    replica = private_server(config={"replicaof": f"{master.host} {master.port}", "replica-read-only": "no"})
    with plain(replica) as client:
        eventually(lambda: client.info("replication")["master_link_status"] == "up", "it follows", 60)
        locks = api.connect(
            f"redlock://{address(master)},{address(quorum.servers[1])},{address(replica)}?restart_delay=0"
        )
        error = eventually(lambda: refused(locks, unique_name), "it is found out")
        assert "slave" in str(error)


def test_what_a_quorum_does_not_offer(api: Api) -> None:
    locks = api.connect("redlock://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3")
    asked: list[tuple[str, tuple[Any, ...]]] = [
        ("rwlock", ("a",)),
        ("semaphore", ("a", 3)),
        ("multilock", ("a", "b")),
        ("condition", (locks.lock("a"),)),
        ("latch", ("a", 3)),
        ("event", ("a",)),
        ("barrier", ("a", 3)),
        ("optimistic", ("a",)),
        ("compare_and_set", ("a", "b", "c")),
    ]
    for maker, arguments in asked:
        with pytest.raises(holdfast.ConfigurationError, match="one server that decides"):
            getattr(locks, maker)(*arguments)


def test_an_election_over_a_quorum(quorum: Quorum, api: Api, unique_name: str) -> None:
    election = api.connect(quorum.url).election(unique_name)
    with election as leadership:
        assert leadership.fencing_token

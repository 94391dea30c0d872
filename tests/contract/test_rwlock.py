"""What the shared lock promises, whichever API and server."""

from __future__ import annotations

from typing import Any

import pytest

import holdfast
from testbed.waiting import eventually
from tests.support.apis import Api
from tests.support.spinning import overtakers


def key(name: str, part: str = "") -> str:
    return f"holdfast:{{{name}}}{part}"


def leftovers(raw: Any, name: str) -> set[str]:
    """Return what is left on the server, but for what is meant to stay for a while."""
    return {each.removeprefix(key(name)) for each in raw.scan_iter(f"{key(name)}*")} - {":fence", ":gone"}


def test_readers_together_and_writers_alone(locks: Any, others: Any, raw: Any, unique_name: str) -> None:
    mine, theirs = locks.rwlock(unique_name), others.rwlock(unique_name)
    first, second = mine.read().acquire(), theirs.read().acquire()
    assert mine.readers() == 2 and not mine.writing()
    assert theirs.write().try_acquire() is None
    first.release()
    assert theirs.write().try_acquire() is None, "the other one still reads"
    second.release()
    writer = mine.write().acquire()
    assert mine.writing() and mine.readers() == 0
    assert theirs.read().try_acquire() is None
    assert theirs.write().try_acquire() is None
    assert first.fencing_token < second.fencing_token < writer.fencing_token
    writer.release()
    assert leftovers(raw, unique_name) == set()


def test_the_lock_of_that_name_is_kept_out_and_keeps_out(locks: Any, others: Any, raw: Any, unique_name: str) -> None:
    with locks.rwlock(unique_name).read():
        assert others.lock(unique_name).try_acquire() is None
        assert raw.set(key(unique_name), "an outsider's", nx=True) is None
    with locks.rwlock(unique_name).write() as lease:
        assert others.lock(unique_name).try_acquire() is None
        assert raw.get(key(unique_name)) == lease.token
    with locks.lock(unique_name):
        assert others.rwlock(unique_name).read().try_acquire() is None
        assert others.rwlock(unique_name).write().try_acquire() is None


def test_a_lock_and_readers_wait_for_each_other(locks: Any, others: Any, api: Api, unique_name: str) -> None:
    rw = others.rwlock(unique_name)
    lease = locks.lock(unique_name).acquire()
    reading = [api.start(rw.read().acquire) for _ in range(2)]
    eventually(lambda: rw.waiters() == 2)
    lease.release()
    readers = [reader.result() for reader in reading]
    plain = api.start(locks.lock(unique_name).acquire)
    eventually(lambda: rw.waiters() == 1)
    for reader in readers:
        reader.release()
    plain.result().release()


def test_arrival_order_with_neighbouring_readers_together(
    locks: Any, api: Api, url: str, raw: Any, unique_name: str
) -> None:
    rw = locks.rwlock(unique_name)
    clients = [api.connect(url).rwlock(unique_name) for _ in range(3)]
    leases: dict[str, Any] = {}
    waiting = []

    def take(who: str, number: int) -> None:
        side = clients[number % 3].read() if who[0] == "r" else clients[number % 3].write()
        leases[who] = side.acquire()

    first = rw.read().acquire()
    for number, who in enumerate(("w1", "r2", "r3", "w4", "r5", "r6")):
        waiting.append(api.start(take, who, number))
        eventually(lambda: rw.waiters() == len(waiting))
    assert rw.read().try_acquire() is None, "no one overtakes"
    generations = [["w1"], ["r2", "r3"], ["w4"], ["r5", "r6"]]
    first.release()
    for index, generation in enumerate(generations):
        eventually(lambda generation=generation: set(generation) <= set(leases))  # type: ignore[misc]
        assert sorted(leases) == sorted(generation), "and no one else"
        assert rw.waiters() == sum(len(later) for later in generations[index + 1 :])
        for who in generation:
            leases.pop(who).release()
    for each in waiting:
        each.result()
    assert leftovers(raw, unique_name) == set()


def test_a_dead_reader_ends_at_its_own_time(locks: Any, others: Any, raw: Any, unique_name: str) -> None:
    living = others.rwlock(unique_name, ttl=30).read().acquire()
    dead = locks.rwlock(unique_name, ttl=1, renew=False).read().acquire()
    expiry = dict(raw.zrange(key(unique_name, ":readers"), 0, -1, withscores=True))
    seconds, micros = raw.time()
    now_ms = seconds * 1000 + micros / 1000
    assert expiry[dead.token] <= now_ms + 1000
    assert expiry[living.token] > now_ms + 20_000
    assert dead.lost.wait(30)
    eventually(lambda: others.rwlock(unique_name).readers() == 1)  # the server ends it a little later
    living.ensure_held()
    living.release()
    writer = locks.rwlock(unique_name).write().try_acquire()
    assert writer is not None
    writer.release()


def test_a_crashed_reader_lets_the_writer_in(locks: Any, others: Any, raw: Any, unique_name: str) -> None:
    crashed = locks.rwlock(unique_name, ttl=1, renew=False).read().acquire()
    until_ms = raw.zscore(key(unique_name, ":readers"), crashed.token)
    writer = others.rwlock(unique_name).write().acquire(timeout=60)
    assert writer.fencing_token / 1000 >= until_ms, "not before its time was over"
    writer.release()
    with pytest.raises(holdfast.LeaseLost):
        crashed.release()


def test_a_writer_that_leaves_the_queue_lets_the_readers_in(
    locks: Any, others: Any, api: Api, raw: Any, unique_name: str
) -> None:
    reader = locks.rwlock(unique_name).read().acquire()
    writing = api.start(others.rwlock(unique_name).write().acquire, timeout=2.5)
    eventually(lambda: raw.zcard(key(unique_name, ":queue")) == 1)
    behind = api.start(others.rwlock(unique_name).read().acquire)
    with pytest.raises(holdfast.AcquireTimeout):
        writing.result()
    behind.result().release()
    reader.release()
    eventually(lambda: leftovers(raw, unique_name) == set())


def test_downgrade_lets_readers_in_and_writers_not(
    locks: Any, others: Any, api: Api, raw: Any, unique_name: str
) -> None:
    rw = others.rwlock(unique_name)
    writer = locks.rwlock(unique_name).write().acquire()
    behind = api.start(rw.read().acquire)
    eventually(lambda: rw.waiters() == 1)
    next_writer = api.start(rw.write().acquire)
    eventually(lambda: rw.waiters() == 2)
    reader = writer.downgrade()
    assert writer.state.name == "RELEASED"
    assert reader.fencing_token > writer.fencing_token
    second = behind.result()
    assert rw.readers() == 2 and rw.waiters() == 1
    with pytest.raises(holdfast.LeaseReleased):
        writer.release()
    reader.release()
    second.release()
    next_writer.result().release()
    assert leftovers(raw, unique_name) == set()


def test_downgrade_of_what_was_lost(locks: Any, raw: Any, unique_name: str) -> None:
    writer = locks.rwlock(unique_name).write().acquire()
    raw.delete(key(unique_name))
    with pytest.raises(holdfast.LeaseLost):
        writer.downgrade()
    assert raw.zcard(key(unique_name, ":readers")) == 0, "a lost lease is never made again"


def test_upgrade_goes_before_the_queue(locks: Any, others: Any, api: Api, raw: Any, unique_name: str) -> None:
    rw = others.rwlock(unique_name)
    reader = locks.rwlock(unique_name).read().acquire()
    other = rw.read().acquire()
    queued = api.start(rw.write().acquire)
    eventually(lambda: rw.waiters() == 1)
    upgrading = api.start(reader.upgrade)
    eventually(lambda: rw.waiters() == 2)
    with pytest.raises(holdfast.UpgradeRefused):
        other.upgrade()
    other.ensure_held()
    other.release()
    writer = upgrading.result()
    assert rw.writing()
    assert writer.fencing_token > other.fencing_token
    writer.release()
    reader.ensure_held()
    assert rw.readers() == 1 and not rw.writing(), "a reader again"
    reader.release()
    queued.result().release()
    assert leftovers(raw, unique_name) == set()


def test_an_upgrade_that_gives_up_leaves_a_reader(locks: Any, others: Any, raw: Any, unique_name: str) -> None:
    reader = locks.rwlock(unique_name).read().acquire()
    other = others.rwlock(unique_name).read().acquire()
    with pytest.raises(holdfast.AcquireTimeout):
        reader.upgrade(timeout=0.1)
    eventually(lambda: raw.zcard(key(unique_name, ":queue")) == 0)
    reader.ensure_held()
    other.release()
    writer = reader.upgrade(timeout=30)  # and it may try again
    assert writer.downgrade().token == reader.token
    reader.release()
    with pytest.raises(holdfast.LeaseReleased):
        reader.upgrade()


def test_a_reader_that_was_taken_cannot_upgrade(locks: Any, raw: Any, unique_name: str) -> None:
    reader = locks.rwlock(unique_name).read().acquire()
    raw.delete(key(unique_name, ":readers"), key(unique_name))
    with pytest.raises(holdfast.LeaseLost):
        reader.upgrade(timeout=30)
    assert not raw.exists(key(unique_name))
    with pytest.raises(holdfast.LeaseLost):
        reader.release()


def test_renewal_of_a_reader_finds_out_that_it_was_taken(locks: Any, raw: Any, unique_name: str) -> None:
    reader = locks.rwlock(unique_name, ttl=2).read().acquire()
    raw.set(key(unique_name), "a thief's", px=60_000)
    assert reader.lost.wait(30)
    assert raw.get(key(unique_name)) == "a thief's"


def test_extending_a_reader_is_its_own_affair(locks: Any, others: Any, raw: Any, unique_name: str) -> None:
    one = locks.rwlock(unique_name, ttl=20).read().acquire()
    two = others.rwlock(unique_name, ttl=20).read().acquire()
    before = raw.zscore(key(unique_name, ":readers"), two.token)
    one.extend(100)
    assert 20_000 < raw.pttl(key(unique_name)) <= 100_001
    assert raw.zscore(key(unique_name, ":readers"), two.token) == before
    one.release()
    assert raw.pttl(key(unique_name)) <= 20_001
    two.release()


def test_every_key_has_a_ttl(locks: Any, others: Any, raw: Any, api: Api, unique_name: str) -> None:
    reader = locks.rwlock(unique_name).read().acquire()
    waiting = api.start(others.rwlock(unique_name).write().acquire)
    eventually(lambda: locks.rwlock(unique_name).waiters() == 1)
    keys = sorted(raw.scan_iter(f"{key(unique_name)}*"))
    assert keys == [key(unique_name, part) for part in ("", ":fence", ":queue", ":readers")]
    assert all(raw.pttl(each) > 0 for each in keys)
    reader.release()
    waiting.result().release()


def test_a_dead_waiter_costs_nothing(locks: Any, others: Any, raw: Any, api: Api, unique_name: str) -> None:
    reader = locks.rwlock(unique_name).read().acquire()
    waiting = api.start(others.rwlock(unique_name).write().acquire)
    eventually(lambda: raw.zcard(key(unique_name, ":queue")) == 1)
    raw.zadd(key(unique_name, ":queue"), {"0" * 24 + ":w.1:1": 1, "0" * 24 + ":r.1:2": 2})
    reader.release()
    waiting.result().release()


def test_waiting_survives_the_loss_of_its_inbox(locks: Any, others: Any, raw: Any, api: Api, unique_name: str) -> None:
    reader = locks.rwlock(unique_name).read().acquire()
    waiting = api.start(others.rwlock(unique_name).write().acquire)
    eventually(lambda: raw.zcard(key(unique_name, ":queue")) == 1)
    place = raw.zrange(key(unique_name, ":queue"), 0, -1, withscores=True)
    raw.client_kill_filter(_type="pubsub")
    channel = f"holdfast:inbox:{place[0][0].partition(':')[0]}"
    eventually(lambda: raw.pubsub_numsub(channel)[0][1] == 1, "it has subscribed again")
    assert raw.zrange(key(unique_name, ":queue"), 0, -1, withscores=True) == place, "and kept its place"
    reader.release()
    waiting.result().release()


def test_the_same_owner_waits_not_for_itself(locks: Any, api: Api, unique_name: str) -> None:
    actor, rw = api.actor(), locks.rwlock(unique_name)
    lease = actor.ask(rw.read(), "acquire")
    for side in (rw.read(), rw.write(), locks.lock(unique_name)):
        with pytest.raises(holdfast.AlreadyHeld):
            actor.ask(side, "acquire")
    lease.release()
    actor.ask(rw.write(), "acquire").release()


def test_one_writer_among_spinning_readers(locks: Any, others: Any, api: Api, raw: Any, unique_name: str) -> None:
    """Twenty that get in between would be a generation of readers."""
    mine, theirs = locks.rwlock(unique_name).read(), others.rwlock(unique_name)
    spin, pin, wanted = mine.acquire, theirs.read().acquire, theirs.write().acquire
    queue = key(unique_name, ":queue")
    assert overtakers(api, raw, spin, pin, wanted, queue=queue, mark=":w.", threads=20, turns=100) <= 2 * 20


def test_one_reader_among_spinning_writers(locks: Any, others: Any, api: Api, raw: Any, unique_name: str) -> None:
    """And the other way round: each writer that came before it has one turn."""
    mine, theirs = locks.rwlock(unique_name).write(), others.rwlock(unique_name)
    spin, pin, wanted = mine.acquire, theirs.write().acquire, theirs.read().acquire
    queue = key(unique_name, ":queue")
    assert overtakers(api, raw, spin, pin, wanted, queue=queue, mark=":r.", threads=10, turns=30) <= 2 * 10

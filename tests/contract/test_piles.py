"""What piles up on a server: dead waiters, buried tokens, holders, and values that no one of ours has written.

Whatever lies there, someone who waits is served, and no script works for long: the rest is left to the next call.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import pytest
import redis

import holdfast
from holdfast._core.keys import lock_keys
from holdfast._lua import SCRIPTS
from testbed.waiting import eventually
from tests.support.apis import Api
from tests.support.keys import fence_of, key_of, queue_of

#: More than any single call looks at.
PILE = 3_000
#: No one waits for a ttl: that is what the lock would lie idle for.
TTL_S = 60.0
SOON_S = 20.0


def dead(number: int, middle: str = "1") -> str:
    """The token of a client that listens nowhere."""
    return f"{number:024x}:{middle}:1"


def pile_up(raw: Any, queue: str, middle: str = "1", count: int = PILE) -> None:
    raw.zadd(queue, {dead(number, middle): number + 1 for number in range(count)})
    raw.pexpire(queue, 600_000)


def kinds(locks: Any, name: str) -> dict[str, Any]:
    return {
        "lock": locks.lock(name, ttl=TTL_S),
        "writer": locks.rwlock(name, ttl=TTL_S).write(),
        "reader": locks.rwlock(name, ttl=TTL_S).read(),
        "semaphore": locks.semaphore(name, permits=1, ttl=TTL_S),
        "multilock": locks.multilock(name, f"{name}~other", ttl=TTL_S),
    }


def queue_for(kind: str, name: str) -> tuple[str, str]:
    """Return the key of its queue, and the middle of its waiters' tokens."""
    if kind == "semaphore":
        return f"{key_of(name)}:sem:queue", "1.1"
    return queue_of(name), {"writer": "w.1", "reader": "w.1"}.get(kind, "1")


@pytest.mark.parametrize("api", ["threads"], indirect=True)
def test_a_waiter_that_holds_the_first_of_several_locks_is_told_of_its_place(
    api: Api, raw: Any, unique_name: str
) -> None:
    """One that was told of none gave nothing back when its time was over just then, and held it for its ttl."""
    first, second = (lock_keys("holdfast", f"{unique_name}-{part}") for part in "ab")
    token, keys = f"{1:024x}:m.1:1", (*first.all, *second.all)

    def ask(arrival: int) -> Any:
        asked = (token, 20_000, "wait", arrival, 86_400_000, 2_000, "holdfast:inbox:")
        return raw.eval(SCRIPTS["multi_acquire"].text, len(keys), *keys, *asked)

    raw.set(second.lock, "another", px=20_000)
    *_, holder, place, arrival = ask(0)
    assert (holder, place, raw.get(first.lock)) == ("another", 0, token)
    pile_up(raw, second.queue)
    raw.delete(second.lock)
    code, remaining_ms, holder, place, again = ask(arrival)
    assert (code, remaining_ms, holder, again) == (0, 0, "", arrival) and place >= 0


KINDS = ("lock", "writer", "reader", "semaphore", "multilock")


@pytest.mark.parametrize("kind", KINDS)
def test_a_waiter_behind_many_dead_ones_is_served(
    api: Api, locks: Any, others: Any, raw: Any, unique_name: str, kind: str
) -> None:
    holder = kinds(locks, unique_name)["writer" if kind == "reader" else kind].acquire()
    queue, middle = queue_for(kind, unique_name)
    pile_up(raw, queue, middle)
    waiting = api.start(kinds(others, unique_name)[kind].acquire)
    eventually(
        lambda: int((raw.zrange(queue, -1, -1) or ["0:"])[0].partition(":")[0], 16) >= PILE, "queued behind them"
    )
    began = time.monotonic()
    holder.release()
    lease = waiting.result(60)
    assert time.monotonic() - began < SOON_S, "the lock lay idle"
    lease.release()
    eventually(lambda: not raw.exists(queue))


@pytest.mark.parametrize("kind", KINDS)
def test_who_does_not_wait_gets_what_only_the_dead_wait_for(locks: Any, raw: Any, unique_name: str, kind: str) -> None:
    queue, middle = queue_for(kind, unique_name)
    pile_up(raw, queue, middle)
    lease = kinds(locks, unique_name)[kind].try_acquire()
    assert lease is not None, "it is free"
    lease.release()


def test_a_release_that_nobody_repeats_wakes_somebody(
    api: Api, others: Any, raw: Any, server: Any, unique_name: str
) -> None:
    """The process that released died right after it: one that waits is asked to look for itself, and goes on."""
    outsider = f"{'e' * 24}:1:1"
    lease = others.lock(unique_name, ttl=TTL_S).acquire()
    raw.set(key_of(unique_name), outsider, px=600_000)  # the lease of someone else's process
    waiting = api.start(others.lock(unique_name, ttl=TTL_S).acquire)
    eventually(lambda: raw.zcard(queue_of(unique_name)) == 1)
    pile_up(raw, queue_of(unique_name), count=2_000)
    from holdfast._lua import SCRIPTS

    keys = [key_of(unique_name), fence_of(unique_name), queue_of(unique_name), f"{key_of(unique_name)}:gone"]
    began = time.monotonic()
    assert raw.eval(SCRIPTS["release"].text, 4, *keys, outsider, 86_400_000, 2_000, "holdfast:inbox:", 0) == 3
    waiting.result(60).release()
    assert time.monotonic() - began < SOON_S
    with pytest.raises(holdfast.LeaseLost):
        lease.release()


def test_the_dead_do_not_pile_up_while_nobody_is_called(
    api: Api, locks: Any, others: Any, raw: Any, unique_name: str
) -> None:
    held = locks.lock(unique_name, ttl=TTL_S).acquire()
    pile_up(raw, queue_of(unique_name), count=40)
    for _ in range(30):  # each looks at a few
        with pytest.raises(holdfast.AcquireTimeout):
            others.lock(unique_name).acquire(timeout=0.05)
        if raw.zcard(queue_of(unique_name)) == 0:
            break
    eventually(lambda: raw.zcard(queue_of(unique_name)) == 0)
    held.release()


def test_a_notification_finds_who_waits_behind_many_dead_ones(api: Api, locks: Any, raw: Any, unique_name: str) -> None:
    waiter, notifier = api.actor(), api.actor()
    lock = locks.lock(unique_name, ttl=TTL_S)
    condition = locks.condition(lock._target if api.name == "asyncio" else lock)
    waiter.enter(lock)
    told = waiter.tell(condition, "wait", 60)
    eventually(lambda: any(raw.zcard(each) for each in raw.scan_iter(f"{key_of(unique_name)}:cond:*")))
    waiters = next(each for each in raw.scan_iter(f"{key_of(unique_name)}:cond:*") if raw.type(each) == "zset")
    pile_up(raw, waiters)
    notifier.enter(lock)
    assert notifier.ask(condition, "notify") == 1
    notifier.leave(lock)
    assert told.result(60) is True
    waiter.leave(lock)


def test_all_who_wait_for_an_event_are_told_however_many(
    api: Api, locks: Any, others: Any, raw: Any, unique_name: str
) -> None:
    event = others.event(unique_name)
    waiting = api.start(event.wait, 60)
    eventually(lambda: list(raw.scan_iter(f"{key_of(unique_name)}:event:*")))
    queue = next(each for each in raw.scan_iter(f"{key_of(unique_name)}:event:*") if raw.type(each) == "zset")
    pile_up(raw, queue)
    began = time.monotonic()
    locks.event(unique_name).set()
    assert waiting.result(60) is True
    assert time.monotonic() - began < SOON_S
    assert not raw.exists(queue)


def test_permits_of_any_size_are_counted(locks: Any, raw: Any, unique_name: str) -> None:
    semaphore = locks.semaphore(unique_name, permits=10, ttl=TTL_S)
    holders = f"{key_of(unique_name)}:sem:holders"
    leases = [semaphore.acquire(permits=number) for number in (4, 1, 3)]
    assert semaphore.available() == 2
    assert semaphore.try_acquire(permits=3) is None
    raw.zadd(holders, {leases[0].token: 1})  # its time is over, and no one has noticed
    assert semaphore.available() == 6
    more = semaphore.acquire(permits=6)
    assert semaphore.try_acquire() is None
    leases[2].release()
    assert semaphore.available() == 3
    raw.delete(f"{key_of(unique_name)}:sem")  # what is known of the limit is lost, the holders are not
    assert semaphore.try_acquire(permits=4) is None
    last = semaphore.acquire(permits=3)
    for lease in (leases[1], more, last):
        lease.release()
    with pytest.raises(holdfast.LeaseLost):
        leases[0].release()
    assert semaphore.available() == 10


def test_a_limit_that_is_lost_is_found_again_by_a_change_of_it(locks: Any, raw: Any, unique_name: str) -> None:
    """Also by one that comes first: what the holders have beyond one permit each counts."""
    semaphore = locks.semaphore(unique_name, permits=10, ttl=TTL_S)
    leases = [semaphore.acquire(permits=number) for number in (4, 3)]
    raw.delete(f"{key_of(unique_name)}:sem")
    for lease in leases:
        lease.extend(TTL_S)
    semaphore.resize(10)
    assert semaphore.available() == 3
    assert semaphore.try_acquire(permits=4) is None
    for lease in leases:
        lease.release()
    assert semaphore.available() == 10


def test_many_readers_that_are_over_keep_no_one_out(locks: Any, raw: Any, unique_name: str) -> None:
    """More than one call takes out: the last reader leaves, and the next ones come."""
    rw = locks.rwlock(unique_name, ttl=TTL_S)
    reader, readers = rw.read().acquire(), f"{key_of(unique_name)}:readers"
    raw.zadd(readers, {dead(number, "r.1"): number + 1 for number in range(PILE)})
    reader.release()
    assert not raw.exists(key_of(unique_name))
    assert raw.zcard(readers) > 0, "they are not freed at once"
    assert 0 < raw.pttl(readers) < 600_000
    with rw.write().acquire(timeout=10):
        assert rw.read().try_acquire() is None
    rw.read().acquire(timeout=10).release()


def test_what_was_given_back_is_forgotten_in_time(locks: Any, others: Any, raw: Any, unique_name: str) -> None:
    """Also while someone gives up again and again; and only what is old enough."""
    gone = f"{key_of(unique_name)}:gone"
    held = locks.lock(unique_name, ttl=TTL_S).acquire()
    now_ms = raw.time()[0] * 1000
    raw.zadd(gone, {dead(number): now_ms - 1 for number in range(60)})
    raw.zadd(gone, {dead(1_000): now_ms + 50_000})
    tries = 0
    while raw.zcount(gone, "-inf", now_ms):
        tries += 1
        assert tries < 200, "a few are forgotten each time"
        with pytest.raises(holdfast.AcquireTimeout):
            others.lock(unique_name).acquire(timeout=0.02)
    assert raw.zscore(gone, dead(1_000)), "its minute is not over"
    assert raw.zcard(gone) <= tries + 1
    held.release()


#: What a key of fencing tokens may hold, and whether tokens can grow from it.
FENCES = {
    "9007199254740992": False,
    "9007199254740991": False,
    "9223372036854775807": False,
    "1e30": False,
    "inf": False,
    "nan": False,
    "what\x1b[31m is this\r\n": False,
    "": False,
    "9007199254740989": True,
    "5000000000000000": True,
    "17": True,
    "-5": True,
}


@pytest.mark.parametrize("value", FENCES, ids=repr)
def test_a_fencing_token_that_cannot_grow_is_an_error(locks: Any, raw: Any, unique_name: str, value: str) -> None:
    """For every kind: as it is, or what is free stays free."""
    name, sem = unique_name, f"{key_of(unique_name)}:sem"
    for kind, made in kinds(locks, name).items():
        for fence in (fence_of(name), f"{sem}:fence"):
            raw.set(fence, value, px=600_000)
        if FENCES[value]:
            with made.acquire(timeout=10) as lease:
                assert int(value) < lease.fencing_token < 2**53
            continue
        for _ in range(2):
            with pytest.raises(holdfast.ServerError) as caught:
                made.acquire(timeout=10)
            said = str(caught.value)
            fence = f"{sem}:fence" if kind == "semaphore" else fence_of(name)
            assert caught.value.kind == "BADFENCE"
            assert fence in said, "it names the key"
            assert "delete it" in said, "and the way out"
            assert "2^53" in said
            assert said.isprintable()
            if value.isprintable():
                assert f'"{value}"' in said, "and the value"
            assert raw.get(fence) == value, "nothing has changed"
        eventually(lambda: not raw.exists(key_of(name)) and not raw.zcard(f"{sem}:holders"), "it is free")
    if not FENCES[value]:
        with pytest.raises(holdfast.ServerError, match="BADFENCE"):
            locks.lock(name).last_fencing_token()


def test_a_handoff_with_a_fencing_token_that_cannot_grow(
    api: Api, locks: Any, others: Any, raw: Any, unique_name: str
) -> None:
    """The release is one; the waiter is told."""
    held = locks.lock(unique_name, ttl=TTL_S).acquire()
    waiting = api.start(others.lock(unique_name, ttl=TTL_S).acquire, 30)
    eventually(lambda: raw.zcard(queue_of(unique_name)) == 1)
    raw.set(fence_of(unique_name), "1e30", px=600_000)
    held.release()
    with pytest.raises(holdfast.ServerError, match="BADFENCE"):
        waiting.result(60)
    raw.delete(fence_of(unique_name))
    locks.lock(unique_name).acquire(timeout=10).release()


def test_a_guarded_key_whose_token_is_nonsense(api: Api, locks: Any, raw: Any, unique_name: str) -> None:
    from holdfast import fencing

    def write(token: int) -> Any:
        if api.name == "asyncio":
            return locks._fenced_set(unique_name, "x", token, None, 60_000)
        return fencing.guarded_set(locks, unique_name, "x", token)

    write(5)
    seen = next(iter(raw.scan_iter(f"*{unique_name}*:fenced")))
    for value in ("1e30", "nonsense", "9007199254740993"):
        raw.set(seen, value, px=60_000)
        with pytest.raises(holdfast.ServerError, match="BADFENCE"):
            write(2**53 - 2)
    with pytest.raises(holdfast.ConfigurationError):
        fencing.guarded_set(locks, unique_name, "x", 2**53)


@pytest.mark.parametrize("kind", ["lock", "writer", "reader", "multilock"])
def test_a_holder_of_many_bytes(locks: Any, raw: Any, unique_name: str, kind: str) -> None:
    """Someone else's value may be of any size and hold anything."""
    size = 4_000_000
    value = b"\x1b[2J\x00\r\n\xff" + b"x" * size
    raw.set(key_of(unique_name), value, px=600_000)
    before = raw.info("stats")["total_net_output_bytes"]
    with pytest.raises(holdfast.AcquireTimeout) as caught:
        kinds(locks, unique_name)[kind].acquire(timeout=0.5)
    assert len(str(caught.value)) < 1_000
    assert str(caught.value).isprintable()
    assert caught.value.holder is None or len(caught.value.holder.token) <= 200
    if kind == "lock":
        holder = locks.lock(unique_name).holder()
        assert holder is not None
        assert len(holder.token) <= 200
        assert len(str(holder)) < 1_000
        assert str(holder).isprintable()
    assert raw.info("stats")["total_net_output_bytes"] - before < size / 2
    assert raw.strlen(key_of(unique_name)) == len(value), "and no client may take it"


def test_an_empty_value_is_a_holder(locks: Any, raw: Any, unique_name: str) -> None:
    raw.set(key_of(unique_name), "", px=600_000)
    for kind, made in kinds(locks, unique_name).items():
        if kind != "semaphore":
            assert made.try_acquire() is None, kind
    assert raw.get(key_of(unique_name)) == ""


def usual_us(raw: Any) -> float:
    """Return the median of the script calls' times. The longest says more about the machine than about the scripts."""
    log = raw.slowlog_get(1_000)
    found = [int(entry["duration"]) for entry in log if str(entry["command"]).startswith(("EVAL", "b'EVAL"))]
    return statistics.median(found)


@pytest.mark.parametrize("case", [pytest.param("many names", marks=pytest.mark.thorough), "permits", "one queue"])
def test_no_script_works_for_long(api: Api, private_server: Any, server_kind: Any, case: str) -> None:
    """Five times what is aimed at, since the machine may be busy; without bounds it was ten times that, and more."""
    server = private_server(server_kind)
    locks = api.connect(server.url)
    raw = redis.Redis.from_url(server.url, decode_responses=True)
    names = [f"n{number}" for number in range(100 if case == "many names" else 1)]
    made: Any
    if case == "permits":
        made = locks.semaphore("n0", permits=10_000, ttl=TTL_S)
        now_ms = raw.time()[0] * 1000
        raw.set(f"{key_of('n0')}:sem", "10000 10000", px=600_000)
        raw.zadd(f"{key_of('n0')}:sem:holders", {dead(each, "1.1"): now_ms + 600_000 + each for each in range(9_999)})
        raw.pexpire(f"{key_of('n0')}:sem:holders", 900_000)
    else:
        made = locks.multilock(*names, ttl=TTL_S) if len(names) > 1 else locks.lock("n0", ttl=TTL_S)
        for name in names:
            pile_up(raw, queue_of(name), count=1_000)
    made.acquire(timeout=60).release()  # the scripts are known now
    if case != "permits":
        for name in names:
            pile_up(raw, queue_of(name), count=1_000)
    raw.config_set("slowlog-log-slower-than", 0)
    raw.config_set("slowlog-max-len", 2_000)
    raw.slowlog_reset()
    for _ in range(5 if case == "permits" else 1):
        lease = made.acquire(timeout=60)
        if case != "permits":
            for name in names:
                pile_up(raw, queue_of(name), count=1_000)
        lease.release()
    # What it guards against took 970,000 µs. How fast the machine is does not matter at this distance.
    assert usual_us(raw) < 20_000
    raw.close()

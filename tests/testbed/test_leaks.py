"""The look for leaks can find some."""

from __future__ import annotations

import socket
import threading
import time
from types import SimpleNamespace

import pytest
import redis

import holdfast
from holdfast import embedded
from testbed import leaks
from testbed.waiting import eventually


def test_a_thread_a_descriptor_and_an_object_are_found() -> None:
    holdfast.connect("redis://localhost:1").close()  # which imports what is made once in a process
    before = leaks.take()
    while (now := leaks.take()) != before:  # what other tests have left is still on its way out
        before = now
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, name="holdfast-left")
    thread.start()
    with socket.socket():
        client = holdfast.connect("redis://localhost:1")
        found = leaks.left_over(before, settle_s=0)
        assert "threads: holdfast-left" in found
        assert any(each.startswith("descriptors: socket") for each in found)
        assert any("ThreadsFront" in each for each in found)
        with pytest.raises(AssertionError, match="holdfast-left"):
            leaks.check(before, settle_s=0)
        client.close()
    del client
    stop.set()
    thread.join()
    leaks.check(before)


def test_what_ends_while_collections_take_long_is_not_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a collection takes seconds, in which no other thread gets anywhere."""
    before = leaks.take(objects=False)
    collections = threading.Semaphore(0)

    def collect() -> None:
        time.sleep(0.2)
        collections.release()

    def end() -> None:
        for _ in range(3):
            collections.acquire(timeout=60)

    monkeypatch.setattr(leaks, "gc", SimpleNamespace(collect=collect))
    thread = threading.Thread(target=end, name="holdfast-left")
    thread.start()
    assert leaks.left_over(before, 0.3, objects=False) == []
    thread.join()


@pytest.mark.parametrize("kind", ["sem:holders", "readers"])
def test_a_member_whose_time_is_over_is_no_lease_that_was_left(
    valkey_server: embedded.Server, unique_name: str, kind: str
) -> None:
    """A failover that has not heard of the release leaves the key for a minute, and not the permit."""
    with redis.Redis.from_url(valkey_server.url, decode_responses=True) as look:
        with holdfast.connect(valkey_server.url) as locks:
            lock = locks.rwlock(unique_name, ttl=0.5, renew=False).read()
            semaphore = locks.semaphore(unique_name, 2, ttl=0.5, renew=False)
            lease = (lock if kind == "readers" else semaphore).acquire()
            key = f"holdfast:{{{unique_name}}}:{kind}"
            ((member, until_ms),) = look.zrange(key, 0, -1, withscores=True)
            assert not leaks.outlived(look, key)
            lease.release()
        look.zadd(key, {member: until_ms})
        look.expire(key, 60)
        eventually(lambda: leaks.outlived(look, key), "its time is over")
        assert leaks.wrong_keys(look, f"*{unique_name}*") == []
        look.zadd(key, {member: until_ms + 3_600_000})
        assert [each.partition(" (")[0] for each in leaks.wrong_keys(look, f"*{unique_name}*")] == [f"left: {key}"]
        look.delete(key)


def test_what_keeps_growing_is_told_from_noise() -> None:
    assert leaks.steady_growth([20, 25, 26, 26, 25, 26, 26, 25, 26]) == 0
    assert leaks.steady_growth([20, 21, 22, 23, 24, 25, 26, 27, 28]) == 3
    assert leaks.steady_growth([1, 2]) == 0
    samples = iter(range(9))
    growth = leaks.Growth(lambda: next(samples))
    for _ in range(9):
        growth.sample()
    assert growth.steady() == 3


def test_memory_is_read() -> None:
    assert leaks.rss_mb() > 1

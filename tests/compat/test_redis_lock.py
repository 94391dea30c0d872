"""The drop-in for python-redis-lock: what its own suite does not ask, and a fleet in which some have moved over."""

from __future__ import annotations

import gc
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis
import redis_lock as old_library

import holdfast
from holdfast import embedded
from holdfast._lua import SCRIPTS
from holdfast.compat import redis_lock
from holdfast.compat.redis import locks_of
from holdfast.compat.redis_lock import Lock
from testbed.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def client(server: embedded.Server) -> Iterator[Any]:
    with redis.Redis.from_url(server.url, decode_responses=True) as client:
        yield client
        locks_of(client).close()


@pytest.fixture
def run() -> Iterator[Callable[..., Any]]:
    """``run(function, …)``: in another thread; the future has the result."""
    with ThreadPoolExecutor() as pool:
        yield pool.submit


KINDS = [pytest.param(Lock, old_library.Lock, id="ours-theirs"), pytest.param(old_library.Lock, Lock, id="theirs-ours")]


def old_waiters(client: Any, name: str) -> int:
    """How many wait as python-redis-lock does."""
    return sum("cmd=blpop" in str(line) or line.get("cmd") == "blpop" for line in client.client_list(_type="normal"))


# ---- both in one fleet ----


@pytest.mark.parametrize("first, second", KINDS)
def test_they_exclude_each_other(client: Any, unique_name: str, first: Any, second: Any) -> None:
    held, other = first(client, unique_name, expire=30), second(client, unique_name, expire=30)
    assert held.acquire() and not other.acquire(blocking=False)
    assert other.locked() and other.get_owner_id() == held.id
    for refused in (other.release, other.extend):
        with pytest.raises(RuntimeError):
            refused()
    held.release()
    assert other.acquire(blocking=False)
    other.release()
    assert not held.locked()


@pytest.mark.parametrize("first, second", KINDS)
def test_a_waiter_of_the_other_kind_is_woken(
    client: Any, run: Callable[..., Any], unique_name: str, first: Any, second: Any
) -> None:
    """Without a limit of its own, python-redis-lock's would wait forever for a signal that does not come."""
    held = first(client, unique_name)
    held.acquire()
    waiter = second(client, unique_name)
    waiting = run(waiter.acquire)
    if second is old_library.Lock:
        eventually(lambda: old_waiters(client, unique_name) == 1)
    else:
        eventually(lambda: client.zcard(f"{{lock:{unique_name}}}:queue") == 1)
    held.release()
    assert waiting.result(60) is True
    waiter.release()


@pytest.mark.parametrize("first, second", KINDS)
def test_an_id_is_handed_over(client: Any, unique_name: str, first: Any, second: Any) -> None:
    held = first(client, unique_name, expire=30, id="job-42")
    assert held.acquire()
    taken = second(client, unique_name, expire=30, id=held.id)
    taken.extend(60)
    assert client.ttl(f"lock:{unique_name}") > 30
    with pytest.raises(RuntimeError):
        taken.acquire()
    taken.release()
    with pytest.raises(RuntimeError):
        held.release()


@pytest.mark.parametrize("first, second", KINDS)
def test_reset_wakes_both_kinds(
    client: Any, run: Callable[..., Any], unique_name: str, first: Any, second: Any
) -> None:
    held = first(client, unique_name)
    held.acquire()
    waiting = run(second(client, unique_name, expire=60).acquire)
    if second is old_library.Lock:
        eventually(lambda: old_waiters(client, unique_name) == 1)
    else:
        eventually(lambda: client.zcard(f"{{lock:{unique_name}}}:queue") == 1)
    Lock(client, unique_name).reset()
    assert waiting.result(60) is True
    with pytest.raises(RuntimeError):
        held.release()


def test_a_signal_does_not_stay(client: Any, unique_name: str) -> None:
    def end_all(lock: Lock) -> None:
        redis_lock.reset_all(client)

    for end, most in ((Lock.release, 5_000), (Lock.reset, 5_000), (end_all, 1_000)):
        lock = Lock(client, unique_name, expire=60, signal_expire=5_000)
        assert lock.acquire()
        end(lock)
        assert client.llen(f"lock-signal:{unique_name}") == 1
        assert 0 < client.pttl(f"lock-signal:{unique_name}") <= most


# ---- what is its own ----


def test_a_holder_that_is_reset_hears_of_it(client: Any, unique_name: str) -> None:
    lock = Lock(client, unique_name, expire=1, auto_renewal=True)
    lock.acquire()
    assert lock._held is not None and lock._held.lease is not None
    lease = lock._held.lease
    Lock(client, unique_name).reset()
    assert lease.lost.wait(60)
    with pytest.raises(redis_lock.NotAcquired):
        lock.release()


def test_reset_all_leaves_the_fencing_tokens(client: Any, unique_name: str) -> None:
    """A name with a hash tag has its other keys beside it, which match the pattern, too."""
    name = f"{{{unique_name}}}"
    first = Lock(client, name, expire=30)
    first.acquire()
    fences = {key: client.get(key) for key in client.scan_iter(f"lock:{name}%*", _type="string")}
    assert len(fences) == 1
    redis_lock.reset_all(client)
    assert not first.locked()
    assert {key: client.get(key) for key in fences} == fences


def test_it_is_held_for_its_time_whatever_happens_to_the_object(client: Any, unique_name: str) -> None:
    """A common use: at most once an hour, and never released."""
    lock = Lock(client, unique_name, expire=3600)
    assert lock.acquire(blocking=False) and lock.fencing_token
    del lock
    gc.collect()
    assert not Lock(client, unique_name).acquire(blocking=False)
    assert client.ttl(f"lock:{unique_name}") > 3000
    Lock(client, unique_name).reset()


@pytest.mark.parametrize("options, left", [("expire=30", True), ("", False), ("expire=30, auto_renewal=True", False)])
def test_the_end_of_the_process(
    server: embedded.Server, client: Any, unique_name: str, options: str, left: bool
) -> None:
    child = (
        "import sys, redis\n"
        "from holdfast.compat.redis_lock import Lock\n"
        f"lock = Lock(redis.Redis.from_url(sys.argv[1]), sys.argv[2], {options})\n"
        "assert lock.acquire(blocking=False)\n"
    )
    command = [sys.executable, "-W", "ignore::ResourceWarning", "-c", child, server.url, unique_name]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert client.exists(f"lock:{unique_name}") == left


def test_renewal_goes_on_until_the_release(client: Any, unique_name: str) -> None:
    lock = Lock(client, unique_name, expire=1, auto_renewal=True, id="mine")
    with lock:
        assert lock._held is not None
        record = lock._held._record
        start = record.renew_from
        eventually(lambda: record.renew_from > start + 1.5)
        assert client.get(f"lock:{unique_name}") == "mine"
    assert not lock.locked()


def test_an_id_that_comes_again_can_be_extended(client: Any, unique_name: str) -> None:
    lock = Lock(client, unique_name, expire=10, id="same")
    for _ in range(2):
        with lock:
            for seconds in (30, 5, 40):
                lock.extend(seconds)
                assert seconds - 2 < client.ttl(f"lock:{unique_name}") <= seconds


def test_threads_take_turns(client: Any, unique_name: str) -> None:
    inside: list[int] = []
    most: list[int] = []

    def work(kind: Any) -> None:
        for _ in range(8):
            with kind(client, unique_name, expire=60):
                inside.append(1)
                most.append(len(inside))
                inside.pop()

    threads = [threading.Thread(target=work, args=(kind,)) for kind in (Lock, Lock, old_library.Lock, old_library.Lock)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(most) == 32 and max(most) == 1


def test_errors(client: Any, unique_name: str) -> None:
    lock = Lock(client, unique_name, expire=30)
    with pytest.raises(redis_lock.NotAcquired, match="not held under this id") as free:
        lock.release()
    assert issubclass(redis_lock.NotAcquired, holdfast.NotHeld) and issubclass(redis_lock.NotAcquired, RuntimeError)
    with lock, pytest.raises(redis_lock.AlreadyAcquired, match="already held under this id") as held:
        lock.acquire()
    for error in (free.value, held.value):
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again), again.name) == (type(error), str(error), f"lock:{unique_name}")
    with Lock(client, unique_name) as unlimited, pytest.raises(redis_lock.NotExpirable, match="renewed"):
        unlimited.extend(5)
    for wrong in ({"expire": -1}, {"auto_renewal": True}):
        with pytest.raises(holdfast.ConfigurationError):
            Lock(client, unique_name, **wrong)


def test_a_look_at_a_held_lock_is_one_request(unique_name: str) -> None:
    """The answer says who holds it."""
    with embedded.server() as alone, redis.Redis.from_url(alone.url) as client:
        with Lock(client, unique_name) as lock:

            def looks() -> None:
                assert not Lock(client, unique_name).acquire(blocking=False)
                with pytest.raises(redis_lock.AlreadyAcquired):
                    Lock(client, unique_name, id=lock.id).acquire(blocking=False)

            looks()  # the scripts are loaded
            # A client asks once whether it is heard, a moment after its first grant.
            eventually(lambda: client.script_exists(SCRIPTS["hears"].sha)[0])
            client.config_resetstat()
            looks()
            sent: Any = client.info("commandstats")
            assert sum(sent.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("evalsha", "eval")) == 2
        locks_of(client).close()


def test_what_the_block_raises_is_not_replaced(client: Any, unique_name: str) -> None:
    with pytest.raises(KeyError):
        with Lock(client, unique_name):
            client.delete(f"lock:{unique_name}")
            raise KeyError

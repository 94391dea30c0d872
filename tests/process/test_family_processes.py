"""Single cases of killed holders and waiters of the family, on a real server. All of them: test_killed.py."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis

import holdfast
from holdfast import embedded
from testbed.waiting import eventually

pytestmark = pytest.mark.usefixtures("nothing_left")

WORKER = """
import sys, holdfast
url, what = sys.argv[1:]
locks = holdfast.connect(url)
lease = eval(what, {"locks": locks})
print(lease.token, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def start(valkey_server: embedded.Server) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """`start(expression)`: a process that evaluates it with `locks`, says the lease's token, and holds on."""
    started: list[subprocess.Popen[str]] = []

    def begin(what: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", WORKER, valkey_server.url, what],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


@pytest.fixture
def raw(valkey_server: embedded.Server) -> Iterator[Any]:
    connect: Any = redis.Redis.from_url
    client = connect(valkey_server.url, decode_responses=True)
    yield client
    client.close()


@pytest.fixture
def locks(valkey_server: embedded.Server) -> Iterator[holdfast.Client]:
    with holdfast.connect(valkey_server.url) as client:
        yield client


def token_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()


def test_a_killed_reader_ends_at_its_own_time(start: Any, locks: holdfast.Client, raw: Any, unique_name: str) -> None:
    living = locks.rwlock(unique_name).read().acquire()
    killed = start(f"locks.rwlock({unique_name!r}, ttl=3).read().acquire()")
    token = token_of(killed)
    readers = f"holdfast:{{{unique_name}}}:readers"
    kill(killed)
    until_ms = raw.zscore(readers, token)
    living.release()
    writer = locks.rwlock(unique_name).write().acquire(timeout=60)
    assert writer.fencing_token / 1000 >= until_ms, "not before its time was over"
    writer.release()


def test_a_killed_holders_permits_come_back(start: Any, locks: holdfast.Client, raw: Any, unique_name: str) -> None:
    living = locks.semaphore(unique_name, 3).acquire()
    killed = start(f"locks.semaphore({unique_name!r}, 3, ttl=3).acquire(permits=2)")
    token = token_of(killed)
    kill(killed)
    until_ms = raw.zscore(f"holdfast:{{{unique_name}}}:sem:holders", token)
    two = locks.semaphore(unique_name, 3).acquire(permits=2, timeout=60)
    assert two.fencing_token / 1000 >= until_ms
    living.ensure_held()
    two.release()
    living.release()


def test_a_killed_writer_in_the_queue_holds_up_nobody(
    start: Any, locks: holdfast.Client, raw: Any, unique_name: str
) -> None:
    reader = locks.rwlock(unique_name).read().acquire()
    waiting = start(f"locks.rwlock({unique_name!r}).write().acquire()")
    queue = f"holdfast:{{{unique_name}}}:queue"
    (token,) = eventually(lambda: raw.zrange(queue, 0, -1))
    kill(waiting)
    inbox = f"holdfast:inbox:{token.partition(':')[0]}"
    eventually(lambda: raw.pubsub_numsub(inbox)[0][1] == 0, "the server has seen it go")
    with holdfast.connect(raw_url(raw)) as others:
        second = others.rwlock(unique_name).read().try_acquire()
        assert second is not None, "readers pass the dead"
        second.release()
    reader.release()
    eventually(lambda: not raw.exists(queue))


def raw_url(raw: Any) -> str:
    options = raw.connection_pool.connection_kwargs
    return f"redis://{options['host']}:{options['port']}"


def test_a_notification_passes_a_killed_waiter(start: Any, locks: holdfast.Client, raw: Any, unique_name: str) -> None:
    waiters = f"holdfast:{{{unique_name}}}:cond:default"
    what = f"[(lock := locks.lock({unique_name!r})), lock.acquire(), locks.condition(lock).wait()][1]"
    first = start(what)
    (token,) = eventually(lambda: raw.zrange(waiters, 0, -1))
    second = start(what)
    eventually(lambda: raw.zcard(waiters) == 2)
    kill(first)
    inbox = f"holdfast:inbox:{token.partition(':')[0]}"
    eventually(lambda: raw.pubsub_numsub(inbox)[0][1] == 0)
    lock = locks.lock(unique_name)
    with lock:
        assert locks.condition(lock).notify() == 1
    assert token_of(second) == raw.get(f"holdfast:{{{unique_name}}}"), "the living one has the lock"


@pytest.mark.parametrize("way", ["one script", "slot by slot"])
def test_what_is_held_of_several_is_kept_while_waiting_for_the_rest(
    valkey_server: embedded.Server, raw: Any, unique_name: str, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    if way == "slot by slot":
        monkeypatch.setattr("holdfast._engine.server.Topology.moves", True)
    names = [f"{unique_name}-{letter}" for letter in "ab"]
    keys = {name: f"holdfast:{{{name}}}" for name in names}
    with holdfast.connect(valkey_server.url) as one, holdfast.connect(valkey_server.url) as two:
        pool = ThreadPoolExecutor(1)
        # Whichever comes last in the order of taking: that one is held by someone else.
        both = two.multilock(*names).acquire()
        waiting = pool.submit(one.multilock(*names, ttl=3).acquire)
        (first,) = eventually(lambda: [name for name in names if raw.zcard(keys[name] + ":queue")])
        (last,) = set(names) - {first}
        raw.set(keys[last], "an outsider's", px=60_000)
        with pytest.raises(holdfast.LeaseLost):
            both.release()
        token = eventually(lambda: raw.get(keys[first]))
        started = raw.time()[0]
        while raw.time()[0] < started + 5:  # the server's seconds: more than the ttl
            assert raw.get(keys[first]) == token
            time.sleep(0.05)
        raw.delete(keys[last])
        waiting.result(60).release()
        pool.shutdown()

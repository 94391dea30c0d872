"""Holders and waiters of the family that are killed, and storms of cancellations, on a real server."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis

import holdfast
import holdfast.asyncio
from holdfast import embedded
from tests.support.faces import eventually

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
        monkeypatch.setattr("holdfast._transport.threads.SingleTopology.moves", True)
    names = [f"{unique_name}-{letter}" for letter in "ab"]
    keys = {name: f"holdfast:{{{name}}}" for name in names}
    with holdfast.connect(valkey_server.url) as one, holdfast.connect(valkey_server.url) as two:
        pool = ThreadPoolExecutor(1)
        # Whichever comes last in the order of taking: that one is held by somebody else.
        both = two.multilock(*names).acquire()
        waiting = pool.submit(one.multilock(*names, ttl=3).acquire)
        (first,) = eventually(lambda: [name for name in names if raw.zcard(keys[name] + ":queue")])
        (last,) = set(names) - {first}
        raw.set(keys[last], "a stranger's", px=60_000)
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


async def _storm(url: str, name: str, seed: int) -> int:
    """Acquire everything there is, many times, and be cancelled at any moment."""
    rng = random.Random(seed)
    done = 0
    async with holdfast.asyncio.connect(url) as one, holdfast.asyncio.connect(url) as two:

        async def session(client: holdfast.asyncio.Client, number: int) -> None:
            nonlocal done
            kind = number % 5
            if kind == 0:
                lease: Any = await client.rwlock(name).read().acquire()
            elif kind == 1:
                lease = await client.rwlock(name).write().acquire()
            elif kind == 2:
                lease = await client.semaphore(name, 3).acquire(permits=rng.randint(1, 3))
            elif kind == 3:
                lease = await client.multilock(name, name + "-b", name + "-c").acquire()
            else:
                lock = client.lock(name + "-cond")
                async with lock:
                    await client.condition(lock).wait(timeout=0.01)
                done += 1
                return
            async with lease:
                await asyncio.sleep(rng.random() * 0.003)
                if kind == 0 and rng.random() < 0.3:
                    try:
                        async with await lease.upgrade(timeout=0.01):
                            await asyncio.sleep(0)
                    except (holdfast.UpgradeRefused, holdfast.AcquireTimeout):
                        pass
            done += 1

        async def cancelled(client: holdfast.asyncio.Client, number: int) -> None:
            task = asyncio.create_task(session(client, number))
            await asyncio.wait((task,), timeout=rng.random() * 0.2)
            task.cancel()
            await asyncio.wait((task,))
            if not task.cancelled() and task.exception() is not None:
                raise task.exception()  # type: ignore[misc]

        for _ in range(4):
            await asyncio.gather(*(cancelled(rng.choice((one, two)), number) for number in range(50)))
        last = await two.lock(name).acquire(timeout=60)
        await last.release()
    return done


@pytest.mark.parametrize("seed", [1, 2])
def test_storms_of_cancellations_leave_nothing(
    valkey_server: embedded.Server, raw: Any, unique_name: str, seed: int
) -> None:
    done = asyncio.run(_storm(valkey_server.url, unique_name, seed))
    assert done > 0, "some came through"
    kept = (":fence", ":gone", ":sem", ":last")
    eventually(
        lambda: not [key for key in raw.scan_iter(f"holdfast:{{{unique_name}*") if not key.endswith(kept)],
        "nothing is left",
    )


def test_a_shifted_wall_clock_changes_nothing(
    valkey_server: embedded.Server, monkeypatch: pytest.MonkeyPatch, unique_name: str
) -> None:
    """Two clients whose hosts disagree by hours about what time it is."""
    true_time = time.time
    with holdfast.connect(valkey_server.url) as here, holdfast.connect(valkey_server.url) as there:
        reader = here.rwlock(unique_name, ttl=5).read().acquire()
        monkeypatch.setattr(time, "time", lambda: true_time() + 7_200)
        assert there.rwlock(unique_name).write().try_acquire() is None
        second = there.rwlock(unique_name, ttl=5).read().acquire()
        monkeypatch.setattr(time, "time", lambda: true_time() - 7_200)
        reader.ensure_held()
        second.ensure_held()
        with here.semaphore(unique_name, 1):
            assert there.semaphore(unique_name, 1).try_acquire() is None
        reader.release()
        second.release()
        there.rwlock(unique_name).write().acquire(timeout=30).release()

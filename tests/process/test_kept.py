"""Kept leases and what happens to their process: exits, forks, threads that end, stops, event loops."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis

import holdfast
import holdfast.asyncio
from holdfast import embedded
from testbed.servers import unique
from testbed.waiting import eventually

#: Prints the name once it is kept, and goes on as the test says.
_KEEPS = """
import os, sys, time
import holdfast
url, name, then = sys.argv[1:]
locks = holdfast.connect(url)
lock = locks.lock(name, cache_for=10.0)
while not any(type(kept.holder) is list for kept in locks._session.driver.lease_cache.values()):
    with lock:
        pass
print("kept", flush=True)
if then == "fork":
    if not os.fork():
        assert not locks._session.driver.lease_cache
        with lock as lease:
            print("child", lease.fencing_token, flush=True)
        locks.close()
        os._exit(0)
    os.wait()
    with lock as lease:
        print("parent", lease.fencing_token, flush=True)
elif then == "work":
    while True:
        if lock._session.driver.lease_cache.has_idle(next(iter(lock._session.driver.lease_cache.values())).token):
            print("idle", flush=True)
        time.sleep(60)
"""


@pytest.fixture
def raw(valkey_server: embedded.Server) -> Iterator[Any]:
    client = redis.Redis.from_url(valkey_server.url)
    yield client
    client.close()


def start(server: embedded.Server, name: str, then: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", _KEEPS, server.url, name, then], stdout=subprocess.PIPE, text=True)


def test_a_process_that_ends_keeps_nothing(valkey_server: embedded.Server, raw: Any) -> None:
    name = unique("kept")
    process = start(valkey_server, name, "end")
    out, _ = process.communicate(timeout=30)
    assert out == "kept\n" and process.returncode == 0
    assert not raw.exists(f"holdfast:{{{name}}}")


def test_a_child_does_not_have_what_its_parent_keeps(valkey_server: embedded.Server) -> None:
    process = start(valkey_server, unique("kept"), "fork")
    out, _ = process.communicate(timeout=30)
    words = out.split()
    assert process.returncode == 0 and words[:2] == ["kept", "child"] and words[3] == "parent", out
    assert int(words[4]) > int(words[2])


def test_who_is_killed_keeps_others_out_for_its_cut_ttl(valkey_server: embedded.Server, raw: Any) -> None:
    name = unique("kept")
    process = start(valkey_server, name, "work")
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "kept\n"
        eventually(lambda: 0 < raw.pttl(f"holdfast:{{{name}}}") < 9_000)
    finally:
        process.kill()
        process.communicate()
    assert raw.pttl(f"holdfast:{{{name}}}") < 9_000, "a third of 10 s, and a second, and no 30"


def test_who_was_stopped_does_not_take_what_is_another_ones(valkey_server: embedded.Server, raw: Any) -> None:
    locks = holdfast.connect(valkey_server.url, ttl=1.0)
    name = unique("kept")
    lock = locks.lock(name, cache_for=0.5)
    driver = locks._session.driver

    def is_kept() -> bool:
        with lock:
            pass
        return any(type(kept.holder) is list for kept in driver.lease_cache.values())

    eventually(is_kept)
    child = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import os, signal, sys, time; pid = int(sys.argv[1])\n"
            "os.kill(pid, signal.SIGSTOP); time.sleep(2.5); os.kill(pid, signal.SIGCONT)",
            str(os.getpid()),
        ]
    )
    try:
        began = time.monotonic()
        while time.monotonic() - began < 2:  # until it was stopped
            time.sleep(0.001)
        with lock as lease:
            lease.ensure_held()
            assert raw.get(f"holdfast:{{{name}}}") == lease.token.encode()
    finally:
        child.wait(30)
        locks.close()


def test_it_outlives_the_thread_that_has_released_it(valkey_server: embedded.Server) -> None:
    with holdfast.connect(valkey_server.url) as locks:
        lock = locks.lock(unique("kept"), cache_for=5.0)
        tokens: list[str] = []

        def use() -> None:
            with lock as lease:
                tokens.append(lease.token)

        def is_kept() -> bool:
            thread = threading.Thread(target=use)
            thread.start()
            thread.join()
            return len(tokens) > 1 and tokens[-1] == tokens[-2]

        eventually(is_kept)


def test_threads_have_it_one_at_a_time(valkey_server: embedded.Server) -> None:
    with holdfast.connect(valkey_server.url) as locks, holdfast.connect(valkey_server.url) as others:
        name = unique("kept")
        inside: list[int] = []
        fences: list[int] = []

        def work(number: int) -> None:
            client = others if number == 3 else locks
            for turn in range(60):
                with client.lock(name, cache_for=2.0) as lease:
                    inside.append(number)
                    assert inside == [number]
                    fences.append(lease.fencing_token)
                    inside.remove(number)
                time.sleep(0.0005 * (turn % 3))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(fences) == 240 and fences == sorted(set(fences))


def test_an_event_loop_that_ends_keeps_nothing(valkey_server: embedded.Server, raw: Any) -> None:
    name = unique("kept")
    locks = holdfast.asyncio.connect(valkey_server.url)

    async def use() -> None:
        lock = locks.lock(name, cache_for=5.0)
        tokens: list[str] = []
        while len(tokens) < 2 or tokens[-1] != tokens[-2]:
            async with lock as lease:
                tokens.append(lease.token)
            await asyncio.sleep(0.01)
        assert raw.exists(f"holdfast:{{{name}}}")

    for _ in range(2):
        asyncio.run(use())
        eventually(lambda: not raw.exists(f"holdfast:{{{name}}}"))

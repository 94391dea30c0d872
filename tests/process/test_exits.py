"""Ways to leave a process that holds, and waits for what it holds itself: nothing of it stays, and nothing is said.

Where Python gets to run its last words (a clean exit), nothing is left on the server; where it does not (a signal's
default, `os._exit`), the ttl ends it. Each takes a bounded time, and prints no traceback but the program's own.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from holdfast import embedded
from testbed.waiting import eventually

#: An exit takes far less on an idle machine, and the patience of `close()` at most where a server hangs.
EXIT_S = 20.0
TTL_S = 2.0

_HOLDING = {
    "threads": """
import atexit, os, signal, sys, threading, time, multiprocessing
import holdfast

url, name, ttl = sys.argv[1], sys.argv[2], float(sys.argv[3])

def hold_and_wait():
    locks = holdfast.connect(url, ttl=ttl)
    things = [
        locks.lock(name), locks.rwlock(name + "-rw").write(), locks.semaphore(name + "-s", 1),
        locks.multilock(name + "-m1", name + "-m2"), locks.election(name + "-e")._lock,
    ]
    kept = [thing.acquire() for thing in things]
    def wait(thing):
        thing.acquire()
        print("a waiter was let in", flush=True)
    def worker():
        while True:
            with locks.lock(name + "-worker"):
                time.sleep(0.01)
    waiting = [locks.lock(name), locks.rwlock(name + "-rw").read(), locks.semaphore(name + "-s", 1),
               locks.multilock(name + "-m2", name + "-m1")]
    for thing in waiting:
        threading.Thread(target=wait, args=(thing,), daemon=True).start()
    threading.Thread(target=worker, daemon=True).start()
    while locks.lock(name).waiters() < 1 or locks.rwlock(name + "-rw").waiters() < 1 or waiting[2].waiters() < 1:
        time.sleep(0.005)
    return locks, kept

""",
    "asyncio": """
import asyncio, atexit, os, signal, sys, threading, time, multiprocessing
import holdfast.asyncio as holdfast

url, name, ttl = sys.argv[1], sys.argv[2], float(sys.argv[3])
loop = asyncio.new_event_loop()

async def start():
    locks = holdfast.connect(url, ttl=ttl)
    things = [
        locks.lock(name), locks.rwlock(name + "-rw").write(), locks.semaphore(name + "-s", 1),
        locks.multilock(name + "-m1", name + "-m2"), locks.election(name + "-e")._lock,
    ]
    kept = [await thing.acquire() for thing in things]
    async def wait(thing):
        try:
            await thing.acquire()
            print("a waiter was let in", flush=True)
        except holdfast.ClientClosed:
            pass
    async def body():
        async with locks.lock(name + "-body"):
            await asyncio.sleep(3600)
    waiting = [locks.lock(name), locks.rwlock(name + "-rw").read(), locks.semaphore(name + "-s", 1),
               locks.multilock(name + "-m2", name + "-m1")]
    tasks = [asyncio.create_task(wait(thing)) for thing in waiting] + [asyncio.create_task(body())]
    while (await locks.lock(name).waiters() < 1 or await locks.rwlock(name + "-rw").waiters() < 1
           or await waiting[2].waiters() < 1):
        await asyncio.sleep(0.005)
    return locks, kept, tasks

def hold_and_wait():
    return loop.run_until_complete(start())

""",
}

# name: (code, is Python allowed to clean up, exit status, what stderr may end with)
_CLEAN: dict[str, tuple[str, int, str]] = {
    "return from main": ("kept = hold_and_wait()", 0, ""),
    "sys.exit": ("kept = hold_and_wait()\nsys.exit(3)", 3, ""),
    "exception": ("kept = hold_and_wait()\n1 / 0", 1, "ZeroDivisionError: division by zero"),
    "SIGINT": ("kept = hold_and_wait()\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)", -2, "KeyboardInterrupt"),
    "SIGTERM handler": (
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(4))\nkept = hold_and_wait()\n"
        "os.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(60)",
        4,
        "",
    ),
    "a thread of the program ends last": (
        "kept = hold_and_wait()\nthreading.Thread(target=time.sleep, args=(0.2,)).start()",
        0,
        "",
    ),
    "atexit, before and after": (
        "atexit.register(lambda: print('late', flush=True))\nkept = hold_and_wait()\n"
        "atexit.register(lambda: print('early', flush=True))",
        0,
        "",
    ),
    "multiprocessing, fork": (
        "def child():\n    global kept\n    kept = hold_and_wait()\n"
        "process = multiprocessing.get_context('fork').Process(target=child)\n"
        "process.start()\nprocess.join()\nsys.exit(process.exitcode)",
        0,
        "",
    ),
}

_CLEAN_ASYNCIO: dict[str, tuple[str, int, str]] = {
    "end of asyncio.run": ("async def main():\n    await start()\nasyncio.run(main())", 0, ""),
    "end of asyncio.run, exception": (
        "async def main():\n    await start()\n    1 / 0\nasyncio.run(main())",
        1,
        "ZeroDivisionError: division by zero",
    ),
    "end of asyncio.run, SIGINT": (
        "async def main():\n    await start()\n    os.kill(os.getpid(), signal.SIGINT)\n    await asyncio.sleep(60)\n"
        "asyncio.run(main())",
        -2,
        "KeyboardInterrupt",
    ),
    "a loop that was closed": ("kept = hold_and_wait()\nloop.close()", 0, ""),
    "a loop in a daemon thread": (
        "future = asyncio.run_coroutine_threadsafe(start(), loop)\n"
        "threading.Thread(target=loop.run_forever, daemon=True).start()\nkept = future.result(60)",
        0,
        "",
    ),
    "asyncio.run in a daemon thread": (
        "inside = threading.Event()\nasync def main():\n    kept = await start()\n"
        "    async with kept[0].lock(name + '-main'):\n        inside.set()\n        await asyncio.sleep(3600)\n"
        "threading.Thread(target=lambda: asyncio.run(main()), daemon=True).start()\nassert inside.wait(60)",
        0,
        "",
    ),
}

_KILLED: dict[str, tuple[str, int]] = {
    "SIGTERM": ("kept = hold_and_wait()\nos.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(60)", -15),
    "os._exit": ("kept = hold_and_wait()\nos._exit(5)", 5),
}


@pytest.fixture
def raw(valkey_server: embedded.Server) -> Iterator[Any]:
    with redis.Redis.from_url(valkey_server.url, decode_responses=True) as client:
        yield client


def _leave(api: str, end: str, url: str, name: str, ttl_s: float) -> tuple[int, str, float]:
    begun_at = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", _HOLDING[api] + end, url, name, str(ttl_s)],
        capture_output=True,
        text=True,
        timeout=EXIT_S * 3,
        check=False,
    )
    assert "a waiter was let in" not in done.stdout
    return done.returncode, done.stderr, time.monotonic() - begun_at


def _left(raw: Any, name: str) -> list[str]:
    """Keys that keep someone out, or in a queue."""
    return [key for key in raw.scan_iter(f"*{{{name}*", count=1000) if not key.endswith((":fence", ":gone", ":sem"))]


@pytest.mark.parametrize(
    ("api", "end"),
    [
        *[pytest.param(api, end, id=f"{api}, {end}") for api in _HOLDING for end in _CLEAN],
        *[pytest.param("asyncio", end, id=f"asyncio, {end}") for end in _CLEAN_ASYNCIO],
    ],
)
def test_a_clean_exit_leaves_nothing(
    api: str, end: str, valkey_server: embedded.Server, raw: Any, unique_name: str
) -> None:
    code, status, said = {**_CLEAN, **_CLEAN_ASYNCIO}[end]
    returned, errors, _ = _leave(api, code, valkey_server.url, unique_name, 600)
    if said:
        assert errors.strip().splitlines()[-1] == said
        assert errors.count("Traceback") <= 2 and "holdfast" not in errors
    else:
        # What asyncio says by itself of the program's tasks in a loop that is closed under them.
        pending = ("Task was destroyed but it is pending!", "task: <Task pending")
        of_asyncio = pending if end == "a loop that was closed" else ()
        assert [line for line in errors.splitlines() if not line.startswith(of_asyncio)] == []
    assert returned == status
    assert _left(raw, unique_name) == []


@pytest.mark.parametrize("api", _HOLDING)
@pytest.mark.parametrize("end", _KILLED)
def test_what_a_kill_leaves_ends_with_its_ttl(
    api: str, end: str, valkey_server: embedded.Server, raw: Any, unique_name: str
) -> None:
    code, status = _KILLED[end]
    returned, errors, _ = _leave(api, code, valkey_server.url, unique_name, TTL_S)
    assert (returned, errors) == (status, "")
    ended_at = time.monotonic()
    locks = [f"holdfast:{{{unique_name}{kind}}}" for kind in ("", "-m1", "-m2", "-worker", "-body")]
    eventually(lambda: not raw.exists(*locks, f"holdfast:{{{unique_name}-e}}:leader"))
    assert time.monotonic() - ended_at < TTL_S + 3.0

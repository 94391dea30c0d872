"""KeyboardInterrupt out of an event loop, raised in the middle of the library: it ends in time, and in silence.

`asyncio.run` turns Ctrl-C into a cancellation; a handler of the program's own, or another way to run the loop, raises
at any bytecode of whatever runs.
"""

from __future__ import annotations

import subprocess
import sys

import pytest
import redis

from holdfast import embedded
from testbed.waiting import eventually

_BEGIN = """
import asyncio, sys, threading
import holdfast, holdfast.asyncio
from holdfast._core.replies import FITS
from holdfast._engine.server import Server

url, name = sys.argv[1:]
raised = []

def once(error=KeyboardInterrupt):
    if not raised:
        raised.append(error)
        raise error
"""
_END = """
for _ in range(2):
    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        continue
    break
else:
    sys.exit("it came twice")
assert raised, "nothing was interrupted"
assert holdfast.connect(url).lock(name).holder() is None
"""
#: The program goes on with its loop.
_GOING_ON = """
def run(work):
    loop = asyncio.new_event_loop()
    task = loop.create_task(work)
    while True:
        try:
            return loop.run_until_complete(task)
        except KeyboardInterrupt:
            pass

asyncio.run = run

async def main():
    async with asyncio.timeout(30), holdfast.asyncio.connect(url) as locks:
        for _ in range(1000):
            async with locks.lock(name, ttl=60):
                pass
            if raised:
                break
"""
#: The reply is taken from the connection, by the loop, and never reaches who waits for it.
A_REPLY_IS_READ = (
    _GOING_ON
    + """
fits = FITS["release"]

def interrupted(reply):
    if threading.current_thread() is threading.main_thread():
        once()
    return fits(reply)

FITS["release"] = interrupted
"""
)
#: What the tasks of one turn of the loop ask for is about to be sent, or was sent just now.
A_TURN_IS_WRITTEN = (
    _GOING_ON
    + """
put_all = Server.put_all

def interrupted(server, asks):
    once()
    put_all(server, asks)

Server.put_all = interrupted
"""
)
A_TURN_WAS_WRITTEN = (
    _GOING_ON
    + """
put_all = Server.put_all

def interrupted(server, asks):
    put_all(server, asks)
    once()

Server.put_all = interrupted
"""
)
#: A task hands what it leaves to the background.
IT_IS_GIVEN_BACK = """
async def main():
    async with holdfast.asyncio.connect(url) as locks:
        lock = locks.lock(name, ttl=60)
        granted = lock._granted

        def interrupted(*args):
            granted(*args)
            once()
            return granted(*args)

        lock._granted = interrupted
        async with lock:
            pass
"""


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(A_REPLY_IS_READ, id="a reply is read"),
        pytest.param(A_TURN_IS_WRITTEN, id="a turn is written"),
        pytest.param(A_TURN_WAS_WRITTEN, id="a turn was written"),
        pytest.param(IT_IS_GIVEN_BACK, id="it is given back"),
    ],
)
def test_an_interruption_ends_in_time_and_in_silence(
    program: str, valkey_server: embedded.Server, unique_name: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _BEGIN + program + _END, valkey_server.url, unique_name],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr


#: asyncio.run cancels the tasks and runs the loop once more. `gather` then hands KeyboardInterrupt to its task as well,
#: which leaves the loop a second time: it is closed with all other tasks as they are.
AMONG_OTHERS = """
import asyncio, sys
import holdfast.asyncio

url, name = sys.argv[1:]
held = set()

async def main():
    locks = holdfast.asyncio.connect(url)

    async def hold(number):
        async with locks.lock(f"{name}-{number}", ttl=600):
            held.add(number)
            await asyncio.sleep(60)

    async def permit():
        async with locks.semaphore(f"{name}-s", 2, ttl=600):
            held.add("a permit")
            await asyncio.sleep(60)

    async def interrupted():
        while len(held) < 3 or await locks.lock(f"{name}-0").waiters() < 1:
            await asyncio.sleep(0.01)
        raise KeyboardInterrupt

    await asyncio.gather(hold(0), hold(1), hold(0), permit(), interrupted())

try:
    asyncio.run(main())
except KeyboardInterrupt:
    pass
print("interrupted", flush=True)
"""
#: It says nothing, and leaves to the parent what is the parent's.
_A_CHILD = """
import gc, os
gc.collect()
child = os.fork()
if not child:
    sys.exit()
assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.parametrize("fork", [False, True], ids=["", "with a child that ends first"])
def test_what_a_loop_has_left_twice_is_released_at_the_end_of_the_process(
    valkey_server: embedded.Server, unique_name: str, fork: bool
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", AMONG_OTHERS + (_A_CHILD if fork else ""), valkey_server.url, unique_name],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (0, "interrupted\n"), done.stderr
    with redis.Redis.from_url(valkey_server.url, decode_responses=True) as look:

        def held() -> list[str]:
            found = look.scan_iter(f"*{unique_name}*", count=1000)
            return [
                key for key in found if key.endswith(("}", "queue")) or (key.endswith("holders") and look.zcard(key))
            ]

        # Not after ten minutes: one that waited may have been handed the lock, and has a moment to confirm that.
        eventually(lambda: not held(), "all is released")


#: trio raises Ctrl-C in the task that runs, and else in the main task, wherever that waits.
_TRIO = """
import os, random, signal, sys, threading, time
import trio
import holdfast, holdfast.trio

url, name = sys.argv[1:]
others = holdfast.connect(url)
lock = others.lock(name)

def ctrl_c():
    os.kill(os.getpid(), signal.SIGINT)

def ctrl_c_when(condition):
    def wait():
        while not condition():
            time.sleep(0.001)
        ctrl_c()
    threading.Thread(target=wait, daemon=True).start()

def interrupted(main):
    try:
        trio.run(main)
    except KeyboardInterrupt:
        return
    sys.exit("it was not interrupted")

def free(left=lambda: lock.locked() or lock.waiters()):
    until = time.monotonic() + 30  # not after the ttl
    while left():
        assert time.monotonic() < until, (lock.holder(), lock.waiters())
        time.sleep(0.01)

async def inside(block, left=lambda: lock.locked() or lock.waiters()):
    async with holdfast.trio.connect(url) as locks:
        try:
            await block(locks.lock(name, ttl=600))
        except KeyboardInterrupt:
            free(left)  # by the block, and not by the end of the client or of the run
            raise
"""
WHILE_IT_WAITS = """
async def wait(mine):
    ctrl_c_when(lock.waiters)
    await mine.acquire()

with lock:
    interrupted(lambda: inside(wait, lock.waiters))
"""
WHILE_IT_HOLDS = """
async def hold(mine):
    async with mine:
        ctrl_c_when(lock.locked)
        await trio.sleep_forever()

interrupted(lambda: inside(hold))
"""
WHILE_IT_COMPUTES = """
async def compute(mine):
    async with mine:
        ctrl_c_when(lock.locked)
        while True:
            time.sleep(0.01)

interrupted(lambda: inside(compute))
"""
BEHIND_A_GRANT = """
async def enter(mine):
    granted = mine._granted

    def then(*args):
        lease = granted(*args)
        ctrl_c()
        return lease

    mine._granted = then
    async with mine:
        await trio.sleep_forever()

interrupted(lambda: inside(enter))
"""
AT_ANY_MOMENT = """
import warnings

# Interrupted behind the call that makes it, a coroutine is left to its own finalizer, which complains.
warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
armed = threading.Event()

def storm():
    rng = random.Random(1)
    while armed.wait():
        armed.clear()
        time.sleep(rng.uniform(0, 0.006))
        ctrl_c()

async def main():
    armed.set()
    async with holdfast.trio.connect(url) as locks:
        while True:
            async with locks.lock(name, ttl=600):
                await trio.sleep(0.0005)

def unraisable(told):
    if told.exc_type is KeyboardInterrupt:  # in a finalizer: Python shows it, and goes on
        armed.set()
    else:
        sys.__unraisablehook__(told)

sys.unraisablehook = unraisable
threading.Thread(target=storm, daemon=True).start()
for _ in range(100):
    interrupted(main)
"""


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(WHILE_IT_WAITS, id="while it waits"),
        pytest.param(WHILE_IT_HOLDS, id="while it holds"),
        pytest.param(WHILE_IT_COMPUTES, id="while it computes"),
        pytest.param(BEHIND_A_GRANT, id="behind a grant"),
        pytest.param(AT_ANY_MOMENT, id="at any moment"),
    ],
)
def test_ctrl_c_under_trio_leaves_nothing(program: str, valkey_server: embedded.Server, unique_name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"{_TRIO}{program}\nfree()", valkey_server.url, unique_name],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr

"""A process that has no descriptor left goes on with the connections that it has."""

from __future__ import annotations

import subprocess
import sys

import pytest

from holdfast import embedded

THREADS = """
import resource, sys, time
import holdfast

locks = holdfast.connect(sys.argv[1], ttl=0.6)
name = sys.argv[2]
semaphore, rwlock = locks.semaphore(name + "-s", 2), locks.rwlock(name + "-rw")
both, latch = locks.multilock(name, name + "-b"), locks.latch(name + "-l", 1)
assert locks.lock(name).holder() is None
lease = locks.lock(name).acquire()
resource.setrlimit(resource.RLIMIT_NOFILE, (3, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
time.sleep(1.5)
lease.ensure_held()
lease.extend(0.5)
lease.release()
semaphore.acquire(timeout=5).release()
rwlock.write().acquire(timeout=5).downgrade().release()
both.acquire(timeout=5).release()
latch.count_down()
assert locks.lock(name).holder() is None
resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
locks.close()
"""
ASYNCIO = """
import asyncio, resource, sys
import holdfast.asyncio

async def main():
    locks = holdfast.asyncio.connect(sys.argv[1], ttl=0.6)
    name = sys.argv[2]
    semaphore, rwlock = locks.semaphore(name + "-s", 2), locks.rwlock(name + "-rw")
    both, latch = locks.multilock(name, name + "-b"), locks.latch(name + "-l", 1)
    assert await locks.lock(name).holder() is None
    lease = await locks.lock(name).acquire()
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    await asyncio.sleep(1.5)
    lease.ensure_held()
    await lease.extend(0.5)
    await lease.release()
    await (await semaphore.acquire(timeout=5)).release()
    await (await (await rwlock.write().acquire(timeout=5)).downgrade()).release()
    await (await both.acquire(timeout=5)).release()
    await latch.count_down()
    assert await locks.lock(name).holder() is None
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    await locks.close()

asyncio.run(main())
"""


@pytest.mark.parametrize("program", [THREADS, ASYNCIO], ids=["threads", "asyncio"])
def test_what_is_connected_goes_on_without_descriptors(
    program: str, valkey_server: embedded.Server, unique_name: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", program, valkey_server.url, unique_name], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr


NEW_THREADS = """
import os, resource, sys
import holdfast

locks = holdfast.connect(sys.argv[1])
lock = locks.lock(sys.argv[2])
resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
used = []
try:
    while True:
        used.append(os.dup(2))
except OSError:
    pass
try:
    lock.acquire(timeout=0.5)
except holdfast.ServerUnreachable as error:
    said = str(error)
for each in used:
    os.close(each)
assert "open files" in said, said
lock.acquire(timeout=5).release()
locks.close()
"""
NEW_ASYNCIO = """
import asyncio, os, resource, sys
import holdfast.asyncio

async def main():
    locks = holdfast.asyncio.connect(sys.argv[1])
    lock = locks.lock(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    used = []
    try:
        while True:
            used.append(os.dup(2))
    except OSError:
        pass
    try:
        await lock.acquire(timeout=0.5)
    except holdfast.ServerUnreachable as error:
        said = str(error)
    for each in used:
        os.close(each)
    assert "open files" in said, said
    await (await lock.acquire(timeout=5)).release()
    await locks.close()

asyncio.run(main())
"""


@pytest.mark.parametrize("program", [NEW_THREADS, NEW_ASYNCIO], ids=["threads", "asyncio"])
def test_a_connection_that_cannot_be_made_says_so(
    program: str, valkey_server: embedded.Server, unique_name: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", program, valkey_server.url, unique_name], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr


AGENT = """
import resource, sys, time
import holdfast
from holdfast._transport import refusals

locks = holdfast.connect(sys.argv[1], ttl=0.6)
name = sys.argv[2]
lock, other = locks.lock(name), locks.lock(name + "-o", ttl=0.5, renew=False)
assert lock.holder() is None
told = []
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
lease = lock.acquire()
short = other.acquire()
short.on_lost(told.append)
time.sleep(2)
assert told, "nobody was told"
lease.ensure_held()
resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
time.sleep(1)
lease.ensure_held()
lease.release()
with holdfast.connect(sys.argv[1]) as others:
    held = others.lock(name).acquire()
    try:
        lock.acquire(timeout=0.2)
    except holdfast.AcquireTimeout:
        pass
    held.release()
lock.acquire(timeout=5).release()
locks.close()
"""


def test_the_times_are_kept_when_there_is_no_descriptor_to_wait_with(
    valkey_server: embedded.Server, unique_name: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", AGENT, valkey_server.url, unique_name], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr

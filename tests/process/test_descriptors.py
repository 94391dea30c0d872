"""A process that has no descriptor left goes on with the connections that it has."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from holdfast import embedded
from testbed.topologies import Quorum

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


def ends_well(program: str, *arguments: str) -> None:
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr


@pytest.mark.parametrize("program", [THREADS, ASYNCIO], ids=["threads", "asyncio"])
def test_what_is_connected_goes_on_without_descriptors(
    program: str, valkey_server: embedded.Server, unique_name: str
) -> None:
    ends_well(program, valkey_server.url, unique_name)


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
    ends_well(program, valkey_server.url, unique_name)


AGENT = """
import inspect, resource, sys, time  # inspect: which on_lost asks, and could not import later
import holdfast

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
assert told, "no one was told"
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
    ends_well(AGENT, valkey_server.url, unique_name)


_FULL = """
import asyncio, os, resource, sys
import holdfast

class Full:
    # No descriptor is left in this block.
    def __enter__(self):
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        self.used = []
        try:
            while True:
                self.used.append(os.dup(2))
        except OSError:
            pass

    def __exit__(self, *_):
        for each in self.used:
            os.close(each)

def drop_connections():
    import redis

    for url in sys.argv[3:]:
        with redis.Redis.from_url(url) as member:
            member.client_kill_filter(_type="normal", skipme=True)

"""
QUORUM_THREADS = (
    _FULL
    + """
locks = holdfast.connect(sys.argv[1], ttl=60)
lock = locks.lock(sys.argv[2])
with Full():
    try:
        lock.acquire(timeout=0.5)
    except holdfast.QuorumUnreachable as error:
        said = str(error)
assert "open files" in said, said
lease = lock.acquire(timeout=5)
drop_connections()
with Full():
    try:
        lease.release()
    except holdfast.QuorumUnreachable:
        pass
with holdfast.connect(sys.argv[1], ttl=60) as others:
    others.lock(sys.argv[2]).acquire(timeout=20).release()
locks.close()
"""
)
QUORUM_ASYNCIO = (
    _FULL
    + """
import holdfast.asyncio

async def main():
    locks = holdfast.asyncio.connect(sys.argv[1], ttl=60)
    lock = locks.lock(sys.argv[2])
    with Full():
        try:
            await lock.acquire(timeout=0.5)
        except holdfast.QuorumUnreachable as error:
            said = str(error)
    assert "open files" in said, said
    lease = await lock.acquire(timeout=5)
    drop_connections()
    with Full():
        try:
            await lease.release()
        except holdfast.QuorumUnreachable:
            pass
    async with holdfast.asyncio.connect(sys.argv[1], ttl=60) as others:
        await (await others.lock(sys.argv[2]).acquire(timeout=20)).release()
    await locks.close()

asyncio.run(main())
"""
)
CANCEL = (
    _FULL
    + """
import threading

locks = holdfast.connect(sys.argv[1], ttl=60)
lock = locks.lock(sys.argv[2])
lock.acquire(timeout=5).release()
cancel, told = holdfast.Cancel(), []

def wait():
    try:
        lock.acquire(cancel=cancel)
    except holdfast.AcquireCancelled:
        told.append("cancelled")

with Full():
    lease = lock.acquire(timeout=5, cancel=cancel)
    waits = threading.Thread(target=wait)
    waits.start()
    waits.join(0.3)
    cancel.set()
    waits.join()
    lease.release()
assert told == ["cancelled"], told
locks.close()
"""
)


@pytest.fixture(scope="module")
def three() -> Iterator[Quorum]:
    with Quorum(3) as three:
        yield three


@pytest.mark.parametrize("program", [QUORUM_THREADS, QUORUM_ASYNCIO], ids=["threads", "asyncio"])
def test_a_quorum_that_cannot_be_asked_without_descriptors_says_so(
    program: str, three: Quorum, unique_name: str
) -> None:
    ends_well(program, three.url, unique_name, *three.urls)


def test_a_quorum_is_asked_with_a_cancel_that_nothing_can_wake_for(three: Quorum, unique_name: str) -> None:
    ends_well(CANCEL, three.url, unique_name)

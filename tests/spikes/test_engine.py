"""The spike of the engine, on a real server: what works so far. See docs/design/0047."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from holdfast import embedded
from tests.support.imports import ROOT

PROGRAMS = {
    "acquires, releases, refuses": """
        with locks.lock(name, ttl=5) as lease:
            assert lease.fencing_token > 0
            assert others.lock(name).try_acquire() is None
        others.lock(name).acquire(timeout=1).release()
    """,
    "is handed the lock": """
        lease = others.lock(name, ttl=30).acquire()
        waiting = pool.submit(lambda: locks.lock(name, ttl=30).acquire(timeout=20).fencing_token)
        eventually(lambda: others.lock(name).status().waiters, "it is queued")
        lease.release()
        assert waiting.result(10) > lease.fencing_token
    """,
    "renews what is held, and extends it": """
        with locks.lock(name, ttl=0.6) as lease:
            time.sleep(2)
            lease.ensure_held()
            lease.extend(30)
            assert lease.remaining() > 20
    """,
    "tells of a loss": """
        lease = locks.lock(name, ttl=1).acquire()
        others.break_(name, reason="a test")
        assert lease.lost.wait(5)
        lease_of_others = others.lock(name).acquire(timeout=5)
        lease_of_others.release()
    """,
    "lets threads take turns": """
        counts = []
        def work(_):
            for _ in range(20):
                with locks.lock(name, ttl=10):
                    counts.append(len(counts))
        list(pool.map(work, range(6)))
        assert counts == list(range(120))
    """,
    "gives back what an interrupted thread was waiting for": """
        lease = others.lock(name, ttl=30).acquire()
        signal.signal(signal.SIGALRM, lambda *_: 1 / 0)
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        try:
            locks.lock(name, ttl=30).acquire()
        except ZeroDivisionError:
            pass
        eventually(lambda: not others.lock(name).status().waiters, "it has left the queue")
        lease.release()
        assert others.lock(name).try_acquire() is not None
    """,
    "hears messages while a signal handler holds up the thread that reads": """
        lease = others.lock(name, ttl=30).acquire()
        waiting = pool.submit(lambda: (locks.lock(name, ttl=30).acquire(timeout=20), time.monotonic())[1])
        eventually(lambda: others.lock(name).status().waiters, "it is queued")
        ended = []
        def handler(*_):
            lease.release()
            time.sleep(3)
            ended.append(time.monotonic())
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        while not ended:
            locks.lock(f"{name} 2", ttl=30).acquire().release()
        assert waiting.result(10) < ended[0]
    """,
    "releases what it holds when it is closed": """
        locks.lock(name, ttl=60).acquire()
        locks.close()
        assert others.lock(name).acquire(timeout=2)
    """,
    "has one thread and one connection for all": """
        for number in range(200):
            locks.lock(f"{name} {number}", ttl=60).acquire()
        mine = [thread.name for thread in threading.enumerate() if thread.name.startswith("holdfast")]
        assert mine == ["holdfast"], mine
    """,
}
LOOPS = {
    "acquires, hands on, refuses": """
        async with locks.lock(name, ttl=5) as lease:
            assert lease.fencing_token > 0
            assert others.lock(name).try_acquire() is None
        others.lock(name).acquire(timeout=1).release()
    """,
    "keeps its leases while the loop is blocked": """
        lease = await locks.lock(name, ttl=0.6).acquire()
        time.sleep(3)
        assert lease.held and others.lock(name).try_acquire() is None
        await lease.release()
    """,
    "tells of a loss after the loop was blocked": """
        async def body():
            async with locks.lock(name, ttl=1):
                others.break_(name, reason="a test")
                time.sleep(2)
                await asyncio.sleep(20)
        try:
            await asyncio.create_task(body())
        except holdfast.LeaseLost as lost:
            assert "a test" in str(lost)
        else:
            raise AssertionError("it was not told")
    """,
    "lets tasks take turns": """
        counts = []
        async def work():
            for _ in range(10):
                async with locks.lock(name, ttl=10):
                    counts.append(len(counts))
        await asyncio.gather(*[work() for _ in range(20)])
        assert counts == list(range(200))
    """,
    "serves many tasks at once": """
        async def work(number):
            for _ in range(5):
                async with locks.lock(f"{name} {number}", ttl=10) as lease:
                    lease.ensure_held()
        await asyncio.gather(*[work(number) for number in range(100)])
    """,
    "gives back what a task was waiting for": """
        lease = others.lock(name, ttl=30).acquire()
        waiting = asyncio.create_task(locks.lock(name, ttl=30).acquire())
        while not others.lock(name).status().waiters:
            await asyncio.sleep(0.01)
        waiting.cancel()
        while others.lock(name).status().waiters:
            await asyncio.sleep(0.01)
        lease.release()
        assert others.lock(name).try_acquire() is not None
    """,
    "gives back what a cancelled task was granted": """
        for number in range(50):
            waiting = asyncio.create_task(locks.lock(name, ttl=60).acquire())
            for _ in range(number % 5):
                await asyncio.sleep(0)
            waiting.cancel()
            try:
                await (await waiting).release()
            except asyncio.CancelledError:
                pass
            others.lock(name, ttl=30).acquire(timeout=5).release()
    """,
}
LOOP_HEAD = """
import asyncio, sys, time
from spikes.engine.api import install
import holdfast, holdfast.asyncio
install()
url, name = sys.argv[1:]
others = holdfast.connect(url)
async def main():
    locks = holdfast.asyncio.connect(url)
"""
HEAD = """
import signal, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
from spikes.engine.api import install
from testbed.waiting import eventually
import holdfast
install()
url, name = sys.argv[1:]
locks, others, pool = holdfast.connect(url), holdfast.connect(url), ThreadPoolExecutor(6)
"""


@pytest.mark.parametrize("what", PROGRAMS)
def test_a_client_on_the_engine(what: str, valkey_server: embedded.Server, unique_name: str) -> None:
    run(HEAD + textwrap.dedent(PROGRAMS[what]), valkey_server, unique_name)


@pytest.mark.parametrize("what", LOOPS)
def test_an_event_loop_on_the_engine(what: str, valkey_server: embedded.Server, unique_name: str) -> None:
    body = textwrap.indent(textwrap.dedent(LOOPS[what]), "    ")
    run(f"{LOOP_HEAD}{body}\n    await locks.close()\nasyncio.run(main())", valkey_server, unique_name)


def run(program: str, valkey_server: embedded.Server, unique_name: str) -> None:
    command = [sys.executable, "-W", "error", "-c", program, valkey_server.url, unique_name]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr[-3000:]

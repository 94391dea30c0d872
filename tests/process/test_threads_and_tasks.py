"""One client for threads and for tasks, when loops, the process and the client itself end; and a storm of both."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any

import pytest
import redis
import trio

import holdfast
from holdfast import embedded
from holdfast._engine.client import Client
from testbed.servers import unique
from testbed.waiting import PATIENCE_S, eventually
from tests.process.interruptions import Interrupted
from tests.support.forked import in_child

#: Long beside everything here, so that no ttl does the work.
TTL_S = 60


def is_free(look: redis.Redis, name: str) -> bool:
    return look.exists(f"holdfast:{{{name}}}", f"holdfast:{{{name}}}:queue") == 0


def test_a_loop_ends_and_threads_go_on(valkey_server: embedded.Server, look: redis.Redis, unique_name: str) -> None:
    """Release what its tasks hold; another loop goes on with the same client."""
    of_thread, of_task = f"{unique_name}-thread", f"{unique_name}-task"
    locks = holdfast.connect(valkey_server.url, ttl=TTL_S)

    async def main() -> Any:
        waiting = asyncio.create_task(locks.tasks.lock(of_thread).acquire())
        lease = await locks.tasks.lock(of_task).acquire()
        while await locks.tasks.lock(of_thread).waiters() == 0:
            await asyncio.sleep(0.001)
        assert not waiting.done()
        return lease

    with locks.lock(of_thread) as lease:
        for _ in range(2):
            left = asyncio.run(main())
            assert left.lost.reason == "closed"
            assert is_free(look, of_task)
            lease.ensure_held()
            assert locks.lock(of_thread).waiters() == 0
            with locks.lock(of_task).acquire(timeout=PATIENCE_S):
                pass
    assert is_free(look, of_thread)
    locks.close()


def test_a_thread_that_waits_is_left_alone_when_loops_end(valkey_server: embedded.Server, unique_name: str) -> None:
    """Give back what their tasks were asking for, and nothing else."""
    with (
        holdfast.connect(valkey_server.url, ttl=TTL_S) as locks,
        holdfast.connect(valkey_server.url, ttl=TTL_S) as others,
        ThreadPoolExecutor(1) as pool,
    ):

        async def main() -> None:
            async with locks.tasks.lock(f"{unique_name}-task"):
                pass

        held = others.lock(unique_name).acquire()
        waiting = pool.submit(lambda: locks.lock(unique_name).acquire(timeout=2 * PATIENCE_S).release())
        eventually(lambda: others.lock(unique_name).waiters() == 1)
        for _ in range(2):
            asyncio.run(main())
            with locks.lock(f"{unique_name}-task"):  # behind what was given back
                assert others.lock(unique_name).waiters() == 1
        held.release()
        waiting.result(PATIENCE_S)


@pytest.mark.parametrize("kept", ["tasks", "lock of tasks", "lock of threads"])
def test_it_is_closed_once_when_neither_side_is_used(
    valkey_server: embedded.Server,
    look: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
    unique_name: str,
    kept: str,
) -> None:
    closed: list[Client] = []
    close = Client.close

    def note(self: Client, on_end: Any) -> None:
        closed.append(self)
        close(self, on_end)

    monkeypatch.setattr(Client, "close", note)
    called = unique("client").replace("-", "")
    locks = holdfast.connect(f"{valkey_server.url}?client_name={called}", ttl=TTL_S)
    client = locks._session.driver.client
    parts: list[Any] = [locks.tasks]
    if kept != "tasks":
        parts = [(locks if kept == "lock of threads" else locks.tasks).lock(unique_name)]
    del locks
    gc.collect()

    def connected() -> bool:
        found: Any = look.client_list()
        return any(each["name"] == called for each in found)

    async def use() -> None:
        async with parts[0].lock(unique_name) if kept == "tasks" else parts[0]:
            assert connected()

    if kept == "lock of threads":
        with parts[0]:
            assert connected()
    else:
        asyncio.run(use())
    gc.collect()
    assert closed == [], "it is used"
    parts.clear()
    gc.collect()
    eventually(lambda: not connected(), "its connection is closed")
    assert closed == [client]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_has_one_client_for_both_again(valkey_server: embedded.Server, unique_name: str) -> None:
    called = unique("client").replace("-", "")
    locks = holdfast.connect(f"{valkey_server.url}?client_name={called}", ttl=TTL_S)
    loop = asyncio.new_event_loop()
    leases: list[Any] = [
        locks.lock(f"{unique_name}-thread").acquire(),
        loop.run_until_complete(locks.tasks.lock(f"{unique_name}-task").acquire()),
    ]

    async def main(mine: Any) -> list[Any]:
        async with locks.tasks.lock(f"{unique_name}-b").acquire(timeout=PATIENCE_S) as other:
            with redis.Redis.from_url(valkey_server.url, decode_responses=True) as look:
                found: Any = look.client_list()
                connections = sum(each["name"] == called for each in found)
            return [mine.token.partition(":")[0] == other.token.partition(":")[0], connections]

    def child() -> list[Any]:
        states = [(lease.state.name, lease.lost.reason) for lease in leases]
        with locks.lock(f"{unique_name}-a").acquire(timeout=PATIENCE_S) as mine:
            return [*states, locks.tasks is tasks, *asyncio.run(main(mine))]

    tasks = locks.tasks
    lost = ["LOST", "forked"]
    assert in_child(child) == [lost, lost, True, True, 2], "one connection of the parent, one of the child"
    for lease in leases:
        lease.ensure_held()
    leases[0].release()
    loop.run_until_complete(leases[1].release())
    loop.run_until_complete(tasks.close())
    loop.close()


def test_the_end_of_the_process_releases_what_both_hold(
    valkey_server: embedded.Server, look: redis.Redis, unique_name: str
) -> None:
    program = f"""
import asyncio, sys, threading
import holdfast
locks = holdfast.connect(sys.argv[1], ttl={TTL_S})
held = threading.Event()
owners = []
async def hold():
    async with locks.tasks.lock("{unique_name}-task") as lease:
        owners.append(lease.token.split(":")[1])
        held.set()
        await asyncio.sleep({TTL_S})
threading.Thread(target=lambda: asyncio.run(hold()), daemon=True).start()
assert held.wait({PATIENCE_S})
lease = locks.lock("{unique_name}-thread").acquire()
owners.append(lease.token.split(":")[1])
print(locks.lock("{unique_name}-task").locked(), lease.state.name, "owners", *owners)
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, valkey_server.url],
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_S,
        check=False,
    )
    assert (done.stderr, done.returncode) == ("", 0)
    state, _, owners = done.stdout.partition(" owners ")
    assert state == "True HELD" and len({*owners.split()}) == 2, "the first task is not taken for the first thread"
    assert is_free(look, f"{unique_name}-thread") and is_free(look, f"{unique_name}-task")


# ---- a storm ----


class Storm:
    """Threads and tasks want a few locks, and give up at any moment."""

    def __init__(self, locks: holdfast.Client, name: str) -> None:
        self.locks = locks
        self.names = [f"{name}-{number}" for number in range(3)]
        self.rng = random.Random(1)
        self.inside: dict[str, str] = {}
        self.fences: dict[str, int] = {}
        #: How often each kind of caller was inside, and gave up.
        self.entered: dict[str, int] = {}
        self.gave_up: dict[str, int] = {}
        self.over = threading.Event()

    def pick(self) -> str:
        return self.rng.choice(self.names)

    def pause_s(self) -> float:
        """For longer where hardly anyone comes in: on a busy machine, nearly all would give up."""
        entered, gave_up = sum(self.entered.copy().values()), sum(self.gave_up.copy().values())
        return self.rng.random() * (0.004 if 8 * entered > gave_up else 0.1)

    @contextlib.contextmanager
    def room(self, who: str, lease: Any) -> Iterator[None]:
        assert self.inside.setdefault(lease.name, who) is who, "two holders"
        assert lease.fencing_token > self.fences.get(lease.name, 0)
        self.fences[lease.name] = lease.fencing_token
        self.entered[who] = self.entered.get(who, 0) + 1
        try:
            yield
        finally:
            del self.inside[lease.name]

    def count(self, who: str) -> None:
        self.gave_up[who] = self.gave_up.get(who, 0) + 1

    def thread(self, number: int) -> None:
        """Gives up by a `Cancel` or a timeout."""
        who = f"thread {number}"
        while not self.over.is_set():
            cancel = holdfast.Cancel()
            timer = threading.Timer(self.pause_s(), cancel.set)
            timer.start()
            try:
                with self.locks.lock(self.pick()).acquire(self.rng.choice((None, 0.002)), cancel) as lease:
                    with self.room(who, lease):
                        time.sleep(0)
            except (holdfast.AcquireTimeout, holdfast.AcquireCancelled):
                self.count(who)
            timer.join()

    def main_thread(self) -> None:
        """Given up by a signal handler that raises."""
        who = "main thread"
        armed = False

        def handler(_: int, frame: FrameType | None) -> None:
            nonlocal armed
            while frame is not None:
                code = frame.f_code
                if code.co_name == "__del__" or code.co_filename.endswith("_weakrefset.py"):
                    # Python would pass over it, with a warning.
                    signal.setitimer(signal.ITIMER_REAL, 0.001)
                    return
                frame = frame.f_back
            if armed:
                armed = False  # once: what comes behind it is not to be struck
                raise Interrupted

        before = signal.signal(signal.SIGALRM, handler)
        try:
            while not self.over.is_set():
                try:
                    try:
                        armed = True
                        signal.setitimer(signal.ITIMER_REAL, 0.0001 + self.pause_s())
                        with self.locks.lock(self.pick()) as lease:
                            armed = False  # what the test notes is not interrupted
                            with self.room(who, lease):
                                time.sleep(0)
                            armed = True
                    finally:
                        armed = False
                except Interrupted:
                    self.count(who)
        finally:
            armed = False
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    async def enter(self, who: str, sleep: Callable[[float], Any]) -> None:
        async with self.locks.tasks.lock(self.pick()) as lease:
            with self.room(who, lease):
                await sleep(0)

    async def on_asyncio(self, who: str) -> None:
        async def task(number: int) -> None:
            while not self.over.is_set():
                try:
                    async with asyncio.timeout(self.pause_s()):
                        await self.enter(f"{who} {number}", asyncio.sleep)
                except TimeoutError:
                    self.count(f"{who} {number}")

        await asyncio.gather(*map(task, range(3)))

    async def on_trio(self, who: str) -> None:
        async def task(number: int) -> None:
            while not self.over.is_set():
                with trio.move_on_after(self.pause_s()) as scope:
                    await self.enter(f"{who} {number}", trio.sleep)
                if scope.cancelled_caught:
                    self.count(f"{who} {number}")
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            for number in range(3):
                nursery.start_soon(task, number)

    def kinds(self, found: dict[str, int]) -> set[str]:
        return {who.partition(" ")[0] for who in found}

    def run(self) -> None:
        everyone = {"thread", "main", "loop", "second", "trio"}
        until = time.monotonic() + PATIENCE_S

        def watch() -> None:
            began_at = time.monotonic()
            while time.monotonic() < until:
                time.sleep(0.05)
                enough = all(self.kinds(found) == everyone for found in (self.entered, self.gave_up))
                if enough and time.monotonic() > began_at + 2 and sum(self.entered.values()) > 300:
                    break
            self.over.set()

        with ThreadPoolExecutor(8) as pool:
            running = [
                *(pool.submit(self.thread, number) for number in range(2)),
                *(pool.submit(asyncio.run, self.on_asyncio(who)) for who in ("loop", "second")),
                pool.submit(trio.run, self.on_trio, "trio"),
                pool.submit(watch),
            ]
            try:
                self.main_thread()
            finally:
                self.over.set()
            for each in running:
                each.result(2 * PATIENCE_S)
        assert self.kinds(self.entered) == self.kinds(self.gave_up) == everyone


@pytest.mark.filterwarnings(  # a handler raises in another finalizer, or between a grant and its variable
    "ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"
)
def test_a_storm_of_threads_and_tasks_leaves_nothing(
    valkey_server: embedded.Server, look: redis.Redis, unique_name: str
) -> None:
    with holdfast.connect(valkey_server.url, ttl=TTL_S) as locks:
        storm = Storm(locks, unique_name)
        storm.run()
        assert storm.inside == {}
        eventually(lambda: all(is_free(look, name) for name in storm.names), "nothing is left")
        for name in storm.names:
            locks.lock(name).acquire(timeout=PATIENCE_S).release()
    assert all(is_free(look, name) for name in storm.names)

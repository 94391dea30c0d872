"""Forks at random moments amid busy threads and tasks: the child holds nothing, neither leases nor descriptors."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

import pytest
import redis

import holdfast
import holdfast.asyncio
from holdfast import embedded
from holdfast._core.settings import DEFAULT
from holdfast._core.tenure import LocalWaiter
from holdfast._core.tokens import client_of
from holdfast._engine.dial import Connection
from holdfast._engine.link import Link
from holdfast._engine.server import Server
from testbed.servers import unique
from testbed.waiting import PATIENCE_S, eventually
from tests.contract.test_kept import keep
from tests.support.bytecodes import at_place, bytecodes_of
from tests.support.forked import in_child
from tests.support.keys import key_of

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")


def _descriptors() -> dict[int, str]:
    found = {}
    for each in os.listdir("/proc/self/fd"):
        try:
            found[int(each)] = os.readlink(f"/proc/self/fd/{each}")
        except OSError:
            pass
    return found


def _inherited(before: dict[int, str]) -> list[str]:
    """Descriptors that came after `before`, but for pipes of the tests and of nothing."""
    ours = ("socket:", "anon_inode:[eventpoll]")
    return [what for number, what in _descriptors().items() if what.startswith(ours) and before.get(number) != what]


def test_a_child_forked_in_the_middle_of_a_protocol_holds_nothing(valkey_server: embedded.Server) -> None:
    """The engine's thread is not in the child, where that protocol never ends."""
    name, inside, goes_on = unique("fork"), threading.Event(), threading.Event()
    with holdfast.connect(valkey_server.url) as locks, holdfast.connect(valkey_server.url) as others:
        leases = [locks.lock(name).acquire(), others.lock(f"{name}-other").acquire()]

        async def protocol() -> None:
            inside.set()
            goes_on.wait(20)

        def look() -> list[str]:
            states = [lease.state.name for lease in leases]
            for number, client in enumerate((locks, others)):
                states.append(client.lock(f"{name}-{number}").acquire(timeout=5).state.name)
            return states

        locks._session.driver.spawn(protocol)
        try:
            assert inside.wait(20)
            assert in_child(look) == ["LOST", "LOST", "HELD", "HELD"]
        finally:
            goes_on.set()


def test_a_forked_child_has_nothing_of_busy_threads(
    valkey_server: embedded.Server, private_server: Callable[..., embedded.Server]
) -> None:
    members = [private_server() for _ in range(3)]
    before = _descriptors()
    locks = holdfast.connect(valkey_server.url, ttl=30)
    other = holdfast.connect(valkey_server.url, ttl=30)
    quorum = holdfast.Client.quorum([member.url for member in members], restart_delay=0)
    name = unique("fork")
    stop = threading.Event()
    called: list[Any] = []

    def busy() -> None:
        while not stop.is_set():
            with locks.semaphore(f"{name}-s", permits=100):
                pass

    def voting() -> None:
        while not stop.is_set():
            with quorum.lock(f"{name}-q-{threading.get_ident()}"):
                pass

    def waiting() -> None:
        while not stop.is_set():
            try:
                locks.lock(f"{name}-taken").acquire(timeout=0.2).release()
            except holdfast.AcquireTimeout:
                pass

    threads = [threading.Thread(target=each) for each in (busy, busy, busy, voting, waiting)]
    taken = other.lock(f"{name}-taken").acquire()
    lease = locks.lock(name).acquire()
    lease.on_lost(called.append)
    later = locks.lock(f"{name}-later").acquire()
    inside = locks.lock(f"{name}-inside")

    def look() -> Any:
        found: dict[str, Any] = {"inherited": _inherited(before), "called": len(called)}
        found["lost"] = [lease.lost.is_set(), lease.lost.wait(5), later.lost.is_set(), lease.state.name]
        found["reason"] = lease.lost.reason
        try:
            lease.release()
        except holdfast.LeaseLost as error:
            found["release"] = error.reason
        with locks.lock(f"{name}-child") as own:
            found["own"] = own.state.name
        time.sleep(0.05)
        found["called"] = len(called)
        return found

    try:
        for thread in threads:
            thread.start()
        time.sleep(0.2)
        with inside:
            for _ in range(8):
                found = in_child(look)
                assert found == {
                    "inherited": [],
                    "called": 0,
                    "lost": [True, True, True, "LOST"],
                    "reason": "forked",
                    "release": "forked",
                    "own": "HELD",
                }
                time.sleep(0.013)
        # The parent has not noticed.
        assert lease.state is holdfast.LeaseState.HELD
        assert not lease.lost.is_set()
        lease.extend(30)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        later.release()
        lease.release()
        taken.release()
        for client in (locks, other, quorum):
            client.close()
    assert called == []


def test_a_fork_waits_for_a_socket_that_nobody_knows_yet(
    valkey_server: embedded.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = _descriptors()
    made = threading.Event()
    make = socket.socket

    def late(*args: Any) -> socket.socket:
        sock = make(*args)
        made.set()
        time.sleep(0.05)
        return sock

    monkeypatch.setattr(socket, "socket", late)
    with holdfast.connect(valkey_server.url) as locks:
        thread = threading.Thread(target=locks.lock(unique("fork")).holder)
        thread.start()
        assert made.wait(30)
        assert in_child(lambda: _inherited(before)) == []
        thread.join()


@pytest.mark.parametrize(
    ("where", "step"),
    [
        pytest.param(Connection, "_introduce", id="a connection"),
        pytest.param(Link, "_connected", id="the connection of all"),
        pytest.param(Server, "subscribe", id="an inbox"),
    ],
)
def test_a_forked_child_has_nothing_of_what_the_engine_is_making(
    where: Any, step: str, valkey_server: embedded.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    before: dict[int, str] = {}
    found: list[Any] = []
    original = getattr(where, step)

    def forks(*args: Any, **options: Any) -> Any:
        found.append(in_child(lambda: _inherited(before)))
        return original(*args, **options)

    async def main() -> None:
        before.update(_descriptors())
        async with holdfast.asyncio.connect(valkey_server.url, tenure=0) as locks:  # its own waiters take the inbox
            lock = locks.lock(unique("fork"))
            async with lock:
                with pytest.raises(holdfast.AcquireTimeout):
                    await asyncio.create_task(lock.acquire(timeout=0.2))

    monkeypatch.setattr(where, step, forks)
    asyncio.run(main())
    assert found
    assert not any(found)


def test_a_block_that_is_left_in_the_child_raises_there_only(valkey_server: embedded.Server) -> None:
    locks = holdfast.connect(valkey_server.url, ttl=30)
    name = unique("fork")
    reader, writer = os.pipe()
    child = -1
    try:
        with locks.lock(name):
            child = os.fork()
        said = b"left without an error"
    except holdfast.LeaseLost as error:
        said = error.reason.encode()
    if not child:
        os.write(writer, said)
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    with open(reader, "rb") as pipe:
        assert pipe.read() == b"forked"
    assert said == b"left without an error"
    locks.close()


def test_a_forked_child_has_nothing_of_an_event_loop(valkey_server: embedded.Server) -> None:
    async def main() -> Any:
        before = _descriptors()
        locks = holdfast.asyncio.connect(valkey_server.url, ttl=30)
        other = holdfast.asyncio.connect(valkey_server.url, ttl=30)
        name = unique("fork")
        called: list[Any] = []
        taken = await other.lock(f"{name}-taken").acquire()
        lease = await locks.lock(name).acquire()
        lease.on_lost(called.append)

        async def busy() -> None:
            while True:
                async with locks.semaphore(f"{name}-s", permits=100):
                    pass

        async def waiting() -> None:
            await locks.lock(f"{name}-taken").acquire()

        tasks = [asyncio.create_task(each()) for each in (busy, busy, waiting)]
        while not await other.lock(f"{name}-taken").waiters():
            await asyncio.sleep(0.01)  # asyncio itself has a socket for a moment before we know of it

        def look() -> Any:
            return {
                "inherited": _inherited(before),
                "lost": [lease.lost.is_set(), lease.state.name, lease.lost.reason],
                "called": len(called),
            }

        for _ in range(5):
            found = in_child(look)
            assert found == {"inherited": [], "lost": [True, "LOST", "forked"], "called": 0}
            await asyncio.sleep(0.007)
        assert not lease.lost.is_set()
        await lease.extend(30)
        await lease.release()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await taken.release()
        await locks.close()
        await other.close()
        assert called == []

    asyncio.run(main())


def test_a_forked_child_gives_back_nothing_of_a_loop_that_pauses(valkey_server: embedded.Server) -> None:
    """The acquire that waits there is the parent's, which runs the loop again."""
    name = unique("fork")
    with asyncio.Runner() as runner, holdfast.connect(valkey_server.url) as others:
        held = others.lock(name).acquire()
        locks = holdfast.asyncio.connect(valkey_server.url)

        async def begin() -> asyncio.Task[Any]:
            task = asyncio.create_task(locks.lock(name).acquire(timeout=20))
            while not await locks.lock(name).waiters():
                await asyncio.sleep(0.01)
            return task

        task = runner.run(begin())
        assert in_child(lambda: asyncio.run(locks.close())) is None
        held.release()

        async def end() -> str:
            async with await task as lease:
                state = lease.state.name
            await locks.close()
            return str(state)

        assert runner.run(end()) == "HELD"


def test_a_forked_child_releases_nothing_that_the_parent_was_about_to_release(
    valkey_server: embedded.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a lease that the parent keeps then, the next holder there has the same token."""
    name = unique("fork")
    with holdfast.connect(valkey_server.url) as locks, redis.Redis.from_url(valkey_server.url) as raw:
        lock = keep(locks, name)
        lease = lock.acquire()
        finish, ended = locks._session.driver.schedule.finish, []

        def forks(record: Any, *now: float) -> bool:
            ended.append(in_child(locks.close))
            return finish(record, *now)

        monkeypatch.setattr(locks._session.driver.schedule, "finish", forks)
        lease.release()
        monkeypatch.undo()
        assert ended == [None]
        with lock as again:
            assert again.token == lease.token == raw.get(f"holdfast:{{{name}}}").decode()


def test_a_child_that_is_forked_amid_a_release_leaves_it_to_its_parent(
    valkey_server: embedded.Server, look: Any, unique_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a signal handler, where no other thread waits yet: the parent then hands on what the child would release."""
    children, holders = list[int](), list[Any]()
    with holdfast.connect(valkey_server.url, ttl=60) as locks:
        lock, lines = locks.lock(unique_name), locks._session.driver.lines

        def start() -> threading.Thread:
            thread = threading.Thread(target=lambda: holders.append(locks.lock(unique_name).acquire()))
            thread.start()
            return thread

        first = lock.acquire()
        second = start()
        eventually(lambda: lines)
        first.release()
        second.join()
        lease = holders.pop()
        hand_on, third = LocalWaiter.hand_on, list[threading.Thread]()

        def forks(turn: LocalWaiter) -> bool:
            if children:
                return hand_on(turn)
            children.append(os.fork())
            if children[0]:
                third.append(start())
                eventually(lambda: turn.line and turn.line.successor())
                assert os.waitpid(children[0], 0)[1] == 0
            return hand_on(turn)

        monkeypatch.setattr(LocalWaiter, "hand_on", forks)
        told = ""
        try:
            lease.release()
        except holdfast.LeaseLost as error:
            told = error.reason
        finally:
            if children == [0]:
                os._exit(told != "forked")
        monkeypatch.undo()
        third[0].join()
        assert look.get(key_of(unique_name)) == holders[0].token
        holders[0].release()


def _works(url: str, name: str) -> None:
    with holdfast.connect(url) as locks, locks.lock(name) as lease:
        lease.ensure_held()


def test_multiprocessing_and_preexec_amid_busy_threads(valkey_server: embedded.Server) -> None:
    name = unique("fork")
    stop = threading.Event()
    with holdfast.connect(valkey_server.url, ttl=30) as locks:

        def busy() -> None:
            while not stop.is_set():
                with locks.semaphore(f"{name}-s", permits=100):
                    pass

        threads = [threading.Thread(target=busy) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            with locks.lock(name) as lease:
                context = multiprocessing.get_context("fork")
                for n in range(3):
                    process = context.Process(target=_works, args=(valkey_server.url, f"{name}-{n}"))
                    process.start()
                    process.join(30)
                    assert process.exitcode == 0
                    done = subprocess.run([sys.executable, "-c", ""], preexec_fn=os.getpid, timeout=30)
                    assert done.returncode == 0
                lease.ensure_held()
                eventually(lambda: lease.remaining() > 0)
        finally:
            stop.set()
            for thread in threads:
                thread.join()


_FORKS_IN_AN_IMPORT = """
import os, signal, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
import holdfast

began = threading.Event()

class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "holdfast._sync.overview":
            began.set()
            time.sleep(0.5)

holder, waiter = holdfast.connect(sys.argv[1]), holdfast.connect(sys.argv[1])
lease = holder.lock(sys.argv[2]).acquire()
sys.meta_path.insert(0, Slow())

def wait():
    try:
        waiter.lock(sys.argv[2]).acquire(timeout=0.01)
    except holdfast.AcquireTimeout:
        pass

thread = threading.Thread(target=wait)
thread.start()
began.wait()
child = os.fork()
if child == 0:
    signal.alarm(30)
    import holdfast._sync.overview
    os._exit(7)
_, status = os.waitpid(child, 0)
thread.join()
lease.release()
print(os.waitstatus_to_exitcode(status))
"""


def test_a_fork_waits_for_what_a_timeout_imports(valkey_server: embedded.Server, unique_name: str) -> None:
    """Else the child would wait for a thread that it does not have."""
    said = subprocess.run(
        [sys.executable, "-c", _FORKS_IN_AN_IMPORT, valkey_server.url, unique_name],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert said.stdout == "7\n"


#: Forks in a signal handler amid an acquire, and returns from it in both processes.
_AMID = """
import os, signal, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
import holdfast

url, name, way, after_s, parent = *sys.argv[1:4], float(sys.argv[4]), os.getpid()
locks = holdfast.connect(url, ttl=2.0, **({} if way.startswith("in line") else {"tenure": 0}))
others = holdfast.connect(url, ttl=2.0)

def say(what):
    os.write(1, f"{'parent' if os.getpid() == parent else 'child'} {what}\\n".encode())

def fork(*_):
    if not os.fork():
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(20)  # what hangs is killed

if way == "in the queue":
    with others.lock(name):
        try:
            locks.lock(name).acquire(timeout=0.01)
        except holdfast.AcquireTimeout:
            pass
ahead = locks if way == "in line, handed on" else others
held = ThreadPoolExecutor(1).submit(ahead.lock(name).acquire).result()
if way == "in line":
    threading.Thread(target=lambda: locks.lock(name).acquire(timeout=10).release()).start()
    while not locks._session.driver.asking:
        time.sleep(0.001)
threading.Timer(after_s + 0.3, held.release).start()
signal.signal(signal.SIGALRM, fork)
signal.setitimer(signal.ITIMER_REAL, after_s)
try:
    lease = locks.lock(name).acquire(timeout=5)
    say("holds it")
    time.sleep(0.5)
    lease.release()
except holdfast.LeaseLost as error:
    say(error.reason)
except BaseException as error:
    say(repr(error))
if os.getpid() == parent:
    os.wait()
os._exit(0)
"""


@pytest.mark.parametrize("after_s", ["0.05", "0.2"])
@pytest.mark.parametrize("way", ["by the engine", "in the queue", "in line", "in line, handed on"])
def test_a_child_that_is_forked_amid_an_acquire_leaves_it_to_its_parent(
    valkey_server: embedded.Server, unique_name: str, way: str, after_s: str
) -> None:
    """By a signal handler: the child would hang, or hold what its parent does."""
    command = [sys.executable, "-W", "ignore", "-c", _AMID, valkey_server.url, unique_name, way, after_s]
    done = subprocess.run(command, capture_output=True, text=True, timeout=40, check=False)
    assert sorted(done.stdout.splitlines()) == ["child forked", "parent holds it"], done.stderr


def test_a_fork_at_any_bytecode_of_an_acquire_leaves_the_lease_to_one_of_both(
    valkey_server: embedded.Server, look: Any, unique_name: str
) -> None:
    """By a signal handler: the child has its parent's lease neither as it is asked for, nor as it is made."""
    forks: list[tuple[int, int]] = []

    def fork(_frame: Any) -> None:
        reader, writer = os.pipe()
        child = os.fork()
        forks.append((child, reader if child else writer))
        os.close(writer if child else reader)

    def wrong(got: Any) -> str:
        """In a child: what it has of what its parent has asked for, or has raised of its own."""
        if isinstance(got, holdfast.LeaseLost) and got.reason == "forked":
            return ""
        if isinstance(got, BaseException):
            return "".join(traceback.format_exception(got))
        if got is None or client_of(got.token) == locks._session.driver.client_id:
            return ""
        return "" if got.lost.reason == "forked" else f"it has {got}"

    # A child that has to wait for its connection on a busy machine fails after a second, else.
    settings = DEFAULT._replace(try_limit_s=PATIENCE_S)
    with holdfast.Client(redis.Redis.from_url(valkey_server.url), ttl=60, _settings=settings) as locks:
        locks.lock(f"{unique_name}-first").acquire().release()
        places = dict.fromkeys(bytecodes_of(locks.lock(f"{unique_name}-places").try_acquire))
        steps = ("Acquirable._acquire", "AcquirableBase._granted")
        chosen = [place for place in places if place.code.co_qualname in steps][::3]
        for number, place in enumerate(chosen):
            count = len(forks)
            try:
                got: Any = at_place(place, fork, locks.lock(f"{unique_name}-{number}").try_acquire)
            except BaseException as error:
                got = error
            for child, end in forks[count:]:  # none, where a held up machine led to another way
                if not child:
                    try:
                        os.write(end, wrong(got).encode())
                        os._exit(0)
                    finally:
                        os._exit(1)
                with open(end) as said:
                    assert said.read() == "", f"in the child that was forked at {place}"
                assert os.waitpid(child, 0)[1] == 0
            if isinstance(got, BaseException):
                raise got
            if got is not None:  # else the child was first, by a token of its own
                assert look.get(key_of(got.name)) == got.token
                got.release()
    assert len(forks) > len(chosen) / 2

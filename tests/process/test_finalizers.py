"""What the collector runs, in any thread and at any bytecode: it takes no lock, sends nothing and waits for nothing."""

from __future__ import annotations

import _thread
import asyncio
import contextlib
import gc
import os
import subprocess
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Iterator
from functools import partial
from types import FrameType
from typing import Any

import pytest
import redis

import holdfast
import holdfast.asyncio
from holdfast import embedded
from testbed import servers
from testbed.waiting import eventually
from tests.support.apis import Api
from tests.support.bytecodes import at_bytecode, bytecodes_of, places_once

#: Leases that are dropped at once; each cost the square of them.
MANY = 20_000


@pytest.fixture(scope="module")
def server() -> Iterator[embedded.Server]:
    with servers.start() as one:
        yield one


def is_lost(lease: Any) -> bool:
    return bool(lease.state is holdfast.LeaseState.LOST)


def ours() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("holdfast")}


@pytest.fixture
def little_to_collect() -> None:
    """A collection looks at what the test makes alone: all that was there before takes a busy machine a second.

    What was frozen stays so: with `unfreeze`, each later collection would go through all tests that were collected.
    """
    gc.collect()
    gc.freeze()


@pytest.mark.usefixtures("little_to_collect")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_clients_at_a_server_that_hangs_are_collected_at_once(server: embedded.Server) -> None:
    before = ours()
    clients: list[Any] = [holdfast.connect(server.url) for _ in range(3)]
    leases = [client.lock(servers.unique()).acquire() for client in clients]
    cycle = [clients, leases]
    cycle.append(cycle)
    server.pause()
    try:
        del clients, leases, cycle
        began_at = time.monotonic()
        gc.collect()
        assert time.monotonic() - began_at < 1.0
    finally:
        server.resume()
    eventually(lambda: not ours() - before, "their threads end")


@pytest.mark.usefixtures("little_to_collect")
def test_a_client_is_collected_while_its_own_lock_is_held(server: embedded.Server) -> None:
    """By a thread that was interrupted in the middle of something: its finalizer must not wait for that."""
    client = holdfast.connect(server.url)
    client.lock(servers.unique()).acquire().release()
    driver = client._session.driver
    released = threading.Event()

    def hold() -> None:
        with driver.lines.guard:
            released.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    try:
        began_at = time.monotonic()
        del client
        gc.collect()
        assert time.monotonic() - began_at < 1.0
    finally:
        released.set()
        holder.join()
    eventually(lambda: driver.closed, "it is closed in the background")


class Interruption(BaseException):
    """Raised by a signal's handler: where the signal came while the collector ran, that is in the first finalizer."""


def interrupt(_frame: FrameType) -> None:
    raise Interruption


@pytest.mark.usefixtures("little_to_collect")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_dropped_client_is_closed_though_an_exception_comes_up_in_its_finalizer(
    server: embedded.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "unraisablehook", bool)  # Python shows it, and goes on

    def used() -> list[Any]:
        client = holdfast.connect(server.url)
        client.lock(servers.unique()).acquire().release()
        return [client]

    places = bytecodes_of(used().clear)
    assert {"_close_later", "begin_close", "call"} <= {place.code.co_name for place in places}
    fronts = []
    for number in places_once(places):
        clients = used()
        fronts.append(weakref.ref(clients[0]._session.driver))
        at_bytecode(number, interrupt, clients.clear)
    clients = used()
    fronts.append(weakref.ref(clients[0]._session.driver))
    with monkeypatch.context() as patched:  # before the first of our own
        patched.setattr(weakref.finalize, "__call__", interrupt)
        clients.clear()

    def gone() -> bool:
        gc.collect()
        return not any(front() for front in fronts)

    eventually(gone, "they are closed, and nothing is left of them")


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_dropped_lease_is_not_renewed_though_an_exception_comes_up_in_its_finalizer(
    server: embedded.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "unraisablehook", bool)
    with holdfast.connect(server.url, ttl=0.5) as locks, holdfast.connect(server.url) as others:

        def held() -> list[Any]:
            names.append(servers.unique())
            return [locks.lock(names[-1]).acquire()]

        names: list[str] = []
        places = bytecodes_of(held().clear)
        assert {"__del__", "stop_renewing"} <= {place.code.co_name for place in places}
        for number in places_once(places):
            at_bytecode(number, interrupt, held().clear)
        eventually(lambda: not any(others.lock(name).locked() for name in names), "they end with their ttl")


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("refused", ["the thread that starts it", "its thread"])
def test_a_dropped_client_is_closed_though_no_thread_can_be_started(
    server: embedded.Server, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    """A container has a limit of processes, which others use up for a moment."""
    before = ours()
    client = holdfast.connect(server.url)
    lease = client.lock(servers.unique()).acquire()
    driver = client._session.driver

    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("can't start new thread")

    cycle: list[Any] = [client, lease]
    cycle.append(cycle)
    with monkeypatch.context() as patched:
        if refused == "the thread that starts it":
            patched.setattr(_thread, "start_new_thread", refuse)
        else:
            starts = "_start_joinable_thread" if hasattr(threading, "_start_joinable_thread") else "_start_new_thread"
            patched.setattr(threading, starts, refuse)
        del client, lease, cycle
        gc.collect()
        eventually(lambda: driver.ended, "it is closed")
    eventually(lambda: not ours() - before, "its threads end")


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # fork with threads, which is what this is about
def test_clients_dropped_in_a_child_are_closed_though_the_parent_was_closing_its_own(server: embedded.Server) -> None:
    """The child does not have what closes them in the parent."""
    parents = holdfast.connect(server.url)
    parents.lock(servers.unique()).acquire()
    del parents
    gc.collect()
    child = os.fork()
    if not child:
        status = 1
        try:
            client = holdfast.connect(server.url)
            client.lock(servers.unique()).acquire().release()
            driver = client._session.driver
            del client
            gc.collect()
            eventually(lambda: driver.ended)
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_dropping_many_leases_is_linear_and_delays_no_renewal(server: embedded.Server) -> None:
    from holdfast._core.record import LeaseRecord

    with holdfast.connect(server.url) as locks, warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        kept = locks.lock(servers.unique(), ttl=2).acquire()
        driver = locks._session.driver
        now = time.clock_gettime(time.CLOCK_BOOTTIME)

        def nothing(*_: object) -> Any:
            raise AssertionError("it is neither renewed nor released")

        holds = [
            LeaseRecord(f"n{number}", f"t{number}", 1, 3_600_000, now, asks=(nothing, nothing))
            for number in range(MANY)
        ]
        for hold in holds:
            driver.watch(hold)
        began_at = time.monotonic()
        for hold in holds:
            hold.stop_renewing()
        assert time.monotonic() - began_at < 2.0
        time.sleep(2.5)  # the ttl of the one that is held
        assert kept.state is holdfast.LeaseState.HELD
        for hold in holds:
            hold.mark_released()
        kept.release()


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_nothing_is_kept_of_leases_that_were_lost_and_dropped(server: embedded.Server, api: Api) -> None:
    locks = api.connect(server.url)
    for number in range(20):
        lease = locks.lock(servers.unique(f"n{number}"), ttl=0.05, renew=False).acquire()
        eventually(partial(is_lost, lease))
        del lease
    gc.collect()
    client = getattr(locks, "_target", locks)
    eventually(lambda: not client._session.owners, "its owners are forgotten")


def test_the_collector_at_every_allocation(server: embedded.Server) -> None:
    """Clients and leases in cycles, dropped by several threads, with a collection as often as can be."""
    errors: list[BaseException] = []
    leases: list[weakref.ref[Any]] = []

    def work() -> None:
        try:
            for _ in range(5):
                client = holdfast.connect(server.url)
                lease: Any = client.lock(servers.unique()).acquire()
                leases.append(weakref.ref(lease))
                lease.on_lost(lambda error: None)
                cycle: list[Any] = [client, lease]
                cycle.append(cycle)
                del client, lease, cycle
        except BaseException as error:
            errors.append(error)

    threshold = gc.get_threshold()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.set_threshold(1)
        try:
            threads = [threading.Thread(target=work, daemon=True) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
            assert not any(thread.is_alive() for thread in threads), "a finalizer hangs"
        finally:
            gc.set_threshold(*threshold)

        def gone() -> bool:
            gc.collect()
            return not any(lease() for lease in leases)

        eventually(gone, "what tells that a lease was lost lets go of it")
    assert not errors and len(leases) == 20


@pytest.mark.usefixtures("little_to_collect")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_an_event_loop_is_not_held_up_by_a_client_of_another_one(server: embedded.Server) -> None:
    async def use() -> holdfast.asyncio.Client:
        client = holdfast.asyncio.connect(server.url)
        async with client.lock(servers.unique()):
            pass
        return client

    client: Any = asyncio.run(use())
    server.pause()
    try:

        async def collect() -> float:
            nonlocal client
            began_at = time.monotonic()
            gc.collect()  # which takes its time on a busy machine, whatever there is to collect
            between_at = time.monotonic()
            client = None
            gc.collect()
            return time.monotonic() - between_at - (between_at - began_at)

        assert asyncio.run(collect()) < 1.0
    finally:
        server.resume()


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("tasks", [False, True], ids=["threads", "asyncio"])
def test_a_failed_acquire_keeps_no_lease_of_its_callers(
    valkey_server: embedded.Server, unique_name: str, tasks: bool
) -> None:
    """The function that has caught it gets a lease and drops it: that goes at once, without the collector."""
    odd, seen, failed = f"{unique_name}-odd", list[weakref.ref[Any]](), [True]
    with redis.Redis.from_url(valkey_server.url) as look:
        look.hset(f"holdfast:{{{odd}}}", "a", "b")

    def threads() -> None:
        def act() -> None:
            with contextlib.suppress(holdfast.HoldfastError):
                locks.lock(odd).acquire(timeout=1)
                failed.clear()
            lease = locks.lock(unique_name).acquire(timeout=5)
            seen.append(weakref.ref(lease))

        with holdfast.connect(valkey_server.url) as locks:
            act()
            assert failed and seen[0]() is None

    async def main() -> None:
        async def act() -> None:
            with contextlib.suppress(holdfast.HoldfastError):
                await locks.lock(odd).acquire(timeout=1)
                failed.clear()
            lease = await locks.lock(unique_name).acquire(timeout=5)
            seen.append(weakref.ref(lease))

        async with holdfast.asyncio.connect(valkey_server.url) as locks:
            await act()
            assert failed and seen[0]() is None

    gc.collect()
    gc.disable()
    try:
        asyncio.run(main()) if tasks else threads()
    finally:
        gc.enable()
        with redis.Redis.from_url(valkey_server.url) as look:
            look.delete(f"holdfast:{{{odd}}}")


_STRUCK = """
import sys, threading
from holdfast._runtime.exit_hooks import main_thread_has_ended

class Struck(Exception):
    pass

def strike(frame, event, arg):
    if event == "line":
        left[0] -= 1
        if left[0] < 0:
            raise Struck  # as a signal handler does
    return strike

for left in [[number] for number in range(12)]:
    sys.settrace(strike)
    try:
        main_thread_has_ended()
    except Struck:
        pass
    finally:
        sys.settrace(None)
assert not main_thread_has_ended() and threading.main_thread().is_alive()
"""


def test_an_exception_in_a_look_at_the_main_thread_does_not_end_it() -> None:
    """Where a client is collected, its end would be waited for from then on."""
    done = subprocess.run([sys.executable, "-c", _STRUCK], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr

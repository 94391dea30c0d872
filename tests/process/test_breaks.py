"""Leases that are broken while their process does something else: renews, stops, releases, handles a signal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import holdfast
from holdfast import embedded
from holdfast.errors import LeaseLost, LeaseReleased
from testbed.waiting import PATIENCE_S, eventually, stop

TTL_S = 600.0


@pytest.fixture
def locks(valkey_server: embedded.Server) -> Iterator[holdfast.Client]:
    with holdfast.connect(valkey_server.url, ttl=TTL_S) as client:
        yield client


@pytest.fixture
def others(valkey_server: embedded.Server) -> Iterator[holdfast.Client]:
    with holdfast.connect(valkey_server.url, ttl=TTL_S) as client:
        yield client


_HOLDS = """
import sys
import holdfast
with holdfast.connect(sys.argv[1], ttl=60.0 if sys.argv[3] == "long" else 1.0) as locks:
    lease = locks.lock(sys.argv[2]).acquire()
    print("held", flush=True)
    lease.lost.wait()
    print(lease.lost.reason, flush=True)
"""


def holding(server: embedded.Server, name: str, ttl: str) -> subprocess.Popen[str]:
    """A process that holds it and says why it was lost."""
    process = subprocess.Popen([sys.executable, "-c", _HOLDS, server.url, name, ttl], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    return process


def test_one_that_is_stopped_is_released_on_its_behalf_and_learns_of_it(
    valkey_server: embedded.Server, others: holdfast.Client, unique_name: str
) -> None:
    process = holding(valkey_server, unique_name, "long")
    try:
        eventually(lambda: bool(others.ask(unique_name)))  # it listens
        before = others.lock(unique_name).holder()
        assert before is not None and before.fencing_token is not None
        stop(process.pid)
        broken = others.break_(unique_name, reason="stopped")
        assert [each.pid for each in broken.forced] == [process.pid]
        with others.lock(unique_name).acquire(PATIENCE_S) as following:
            assert following.fencing_token > before.fencing_token
            os.kill(process.pid, signal.SIGCONT)
            said, _ = process.communicate(timeout=PATIENCE_S)
            assert said.startswith("broken by ") and said.endswith(": stopped\n")
            following.ensure_held()
    finally:
        process.kill()
        process.communicate()


def test_one_that_is_killed(valkey_server: embedded.Server, others: holdfast.Client, unique_name: str) -> None:
    process = holding(valkey_server, unique_name, "long")
    process.kill()
    process.communicate()
    assert others.break_(unique_name).forced
    others.lock(unique_name).acquire(PATIENCE_S).release()


def test_one_that_renews_all_the_time(
    valkey_server: embedded.Server, others: holdfast.Client, unique_name: str
) -> None:
    with holdfast.connect(valkey_server.url, ttl=0.5) as renewing:
        last = 0
        for _ in range(10):
            lease = renewing.lock(unique_name).acquire(PATIENCE_S)
            assert lease.fencing_token > last
            last = lease.fencing_token
            if lease.held:  # on a machine that stands still, its time may be over
                others.break_(unique_name, holder=lease.token, reason="again")
            assert lease.lost.wait(PATIENCE_S)
            assert not lease.held
            assert others.lock(unique_name).status().holder is None or lease.lost.reason == "expired"


def test_one_that_has_just_released_is_not_broken_and_nor_is_the_next_one(
    locks: holdfast.Client, others: holdfast.Client, unique_name: str
) -> None:
    """The holder that was seen is named; all others lose nothing."""
    named: set[str] = set()
    lost: list[tuple[str, str | None]] = []
    ends = threading.Event()

    def work() -> None:
        while not ends.is_set():
            lease = locks.lock(unique_name).acquire()
            try:
                ends.wait(0.002)
                lease.release()
            except (LeaseLost, LeaseReleased):
                lost.append((lease.token, lease.lost.reason))

    workers = [threading.Thread(target=work) for _ in range(3)]
    for worker in workers:
        worker.start()
    try:
        came: list[bool] = []

        def broke() -> bool:
            holder = others.lock(unique_name).holder()
            if holder is not None:
                named.add(holder.token)
                came.append(bool(others.break_(unique_name, holder=holder)))
            return len(came) > 200 or (True in came and False in came and len(came) > 50)

        eventually(broke)
    finally:
        ends.set()
        for worker in workers:
            worker.join()
    assert {token for token, _ in lost} <= named
    assert all(str(reason).startswith("broken by ") for _, reason in lost)


def test_from_a_signal_handler_of_the_thread_that_holds(
    locks: holdfast.Client, others: holdfast.Client, unique_name: str
) -> None:
    broken: list[Any] = []
    before = signal.signal(signal.SIGUSR1, lambda *_: broken.append(others.break_(unique_name, reason="a signal")))
    try:
        lease = locks.lock(unique_name).acquire()
        os.kill(os.getpid(), signal.SIGUSR1)
        assert lease.lost.wait(PATIENCE_S)
        assert [len(each.holders) for each in broken] == [1]
        assert str(lease.lost.reason).endswith(": a signal")
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_what_its_client_keeps(locks: holdfast.Client, others: holdfast.Client, unique_name: str) -> None:
    lock = locks.lock(unique_name, cache_for=60.0)
    lease = lock.acquire()
    assert others.break_(unique_name)
    assert lease.lost.wait(PATIENCE_S)
    others.lock(unique_name).acquire(PATIENCE_S).release()
    with lock.acquire(PATIENCE_S) as following:
        assert following.fencing_token > lease.fencing_token


def test_what_threads_of_one_client_hand_on(
    valkey_server: embedded.Server, others: holdfast.Client, unique_name: str
) -> None:
    """Threads of one client are one holder: the lease that is held then is lost."""
    with holdfast.connect(valkey_server.url, ttl=TTL_S, tenure=0.1) as locks:
        leases: list[holdfast.Lease] = []
        first = locks.lock(unique_name).acquire()
        second = threading.Thread(target=lambda: leases.append(locks.lock(unique_name).acquire()))
        second.start()
        eventually(lambda: others.lock(unique_name).waiters() + len(locks._session.driver.lines) > 0)
        first.release()
        second.join()
        assert others.break_(unique_name)
        assert leases[0].lost.wait(PATIENCE_S)
        assert not first.lost.is_set()
        with others.lock(unique_name).acquire(PATIENCE_S) as following:
            assert following.fencing_token > leases[0].fencing_token


def test_a_child_of_fork_breaks_what_its_parent_holds(
    locks: holdfast.Client, others: holdfast.Client, unique_name: str
) -> None:
    lease = locks.lock(unique_name).acquire()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = 0 if others.break_(unique_name, reason="a child") else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert lease.lost.wait(PATIENCE_S)
    assert str(lease.lost.reason).endswith(f", pid {child}: a child")

"""The engine's thread where it cannot run, ends with the process, or was left behind by a fork."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis

import holdfast
from holdfast import embedded
from testbed.servers import unique
from testbed.waiting import eventually


@pytest.fixture
def raw(valkey_server: embedded.Server) -> Iterator[Any]:
    with redis.Redis.from_url(valkey_server.url) as client:
        yield client


def ends(program: str, *arguments: str) -> str:
    """Run it; return what it has printed. It complains of nothing, but Python 3.12 does of a fork beside any thread."""
    words = [sys.executable, "-W", "ignore:This process:DeprecationWarning", "-c", program, *arguments]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


# ---------------------------------------------------------------------- it does not run


def test_an_engine_that_does_not_run_is_noticed(valkey_server: embedded.Server) -> None:
    """As under uWSGI without threads."""
    goes_on = threading.Event()
    with holdfast.connect(valkey_server.url) as locks:
        lock = locks.lock(unique("stuck"))
        lock.acquire().release()
        locks._session.driver.engine.call(goes_on.wait, 60)
        try:
            began_at = time.monotonic()
            with pytest.raises(holdfast.CannotStartThread, match="enable-threads"):
                lock.holder()
            assert time.monotonic() - began_at < 20
        finally:
            goes_on.set()
        eventually(lambda: lock.holder() is None)


FORKED_UNSEEN = """
import os, sys
import holdfast
from holdfast._front import base

locks = holdfast.connect(sys.argv[1])
lease = locks.lock(sys.argv[2], ttl=30).acquire()
hidden = base._fronts, base.forget_engines, base.let_go
base._fronts, base.forget_engines, base.let_go = (), lambda: None, lambda: None
child = os.fork()
base._fronts, base.forget_engines, base.let_go = hidden
if not child:
    status = 1
    try:
        own = locks.lock(sys.argv[2] + "-child", ttl=30).acquire(timeout=10)
        own.extend(20)
        own.release(wait=True)
        assert lease.lost.reason == "forked", lease.lost.reason
        locks.close()
        status = 0
    finally:
        os._exit(status)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
lease.extend(20)
lease.release(wait=True)
locks.close()
print("well")
"""


def test_a_fork_that_no_hook_has_seen_is_noticed(valkey_server: embedded.Server) -> None:
    assert ends(FORKED_UNSEEN, valkey_server.url, unique("unseen")) == "well\n"


FORKED_FROM_C = """
import ctypes, os, sys
import holdfast

locks = holdfast.connect(sys.argv[1])
locks.lock(sys.argv[2]).acquire().release(wait=True)
child = ctypes.PyDLL(None).fork()
if not child:
    status = 1
    try:
        ctypes.pythonapi.PyOS_AfterFork_Child()
        locks.lock(sys.argv[2]).acquire(timeout=10).release(wait=True)
        locks.close()
        status = 0
    finally:
        os._exit(status)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
locks.close()
"""


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="from Python 3.13 on, that alone is a fatal error")
def test_a_fork_of_which_python_is_told_afterwards_is_no_trouble(valkey_server: embedded.Server) -> None:
    """As by uWSGI, with py-call-osafterfork."""
    assert ends(FORKED_FROM_C, valkey_server.url, unique("late")) == ""


# ---------------------------------------------------------------------- the end of the process

AT_EXIT = """
import atexit, sys

kept = []
if sys.argv[4] == "imported":
    import holdfast

def late():
    import holdfast
    locks = holdfast.connect(sys.argv[1])
    lease = locks.lock(sys.argv[2], ttl=60).acquire(timeout=10)
    if sys.argv[3] == "kept":
        kept.extend([locks, lease])
    print(lease.state.name)

atexit.register(late)
"""


@pytest.mark.parametrize("how", ["kept", "dropped"])
@pytest.mark.parametrize("before", ["imported", "nothing"])
def test_a_client_that_was_first_made_at_exit_leaves_nothing(
    valkey_server: embedded.Server, raw: Any, how: str, before: str
) -> None:
    name = unique("late")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", AT_EXIT, valkey_server.url, name, how, before],
        capture_output=True,
        text=True,
        timeout=60,
    )
    if before == "nothing" and sys.version_info[:2] == (3, 12):  # it starts no threads any more
        assert (done.stdout, done.returncode, "CannotStartThread" in done.stderr) == ("", 0, True), done.stderr
    else:
        assert (done.stdout, done.returncode, "Traceback" in done.stderr) == ("HELD\n", 0, False), done.stderr
    assert not raw.exists(f"holdfast:{{{name}}}")


NOISY = """
import os, signal, sys, threading, time
import holdfast

class Limit(Exception):
    pass

def limit(*_):
    raise Limit

signal.signal(signal.SIGALRM, limit)
locks = holdfast.connect(sys.argv[1], ttl=5)
taken = holdfast.connect(sys.argv[1], ttl=5).lock(sys.argv[2]).acquire()

def work():
    try:
        locks.lock(sys.argv[2]).acquire()
    except holdfast.ClientClosed:
        pass

for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
until = time.monotonic() + 1.0
number = 0
while time.monotonic() < until:
    number += 1
    signal.setitimer(signal.ITIMER_REAL, 0.0003 * (number % 20 + 1))
    try:
        with locks.lock(f"{sys.argv[2]}-{number % 3}"):
            time.sleep(0.001)
        locks.lock(sys.argv[2]).acquire(timeout=0.01)
    except (Limit, holdfast.AcquireTimeout, holdfast.LeaseLost, holdfast.ServerUnreachable, holdfast.OutcomeUnknown):
        pass
    finally:
        try:
            signal.setitimer(signal.ITIMER_REAL, 0)
        except Limit:
            pass
    if number % 20 == 0 and not os.fork():
        break
"""


def test_an_end_amid_everything_is_silent(valkey_server: embedded.Server) -> None:
    """Protocols that are under way, or were not begun, are closed without a warning."""
    done = subprocess.run(
        [sys.executable, "-c", NOISY, valkey_server.url, unique("noisy")], capture_output=True, text=True, timeout=60
    )
    assert "never awaited" not in done.stderr, done.stderr


# ---------------------------------------------------------------------- what is not waited for


def test_releases_that_are_not_waited_for_are_not_overtaken(valkey_server: embedded.Server) -> None:
    name = unique("order")
    with holdfast.connect(valkey_server.url) as locks:
        several, one = locks.multilock(name, f"{name}-2"), locks.lock(f"{name}-2")
        for _ in range(100):
            several.acquire().release()
            lease = one.try_acquire()
            assert lease is not None, "a member, behind all"
            lease.release()
            assert not one.locked()
            assert one.holder() is None
            all_of_them = several.try_acquire()
            assert all_of_them is not None, "all, behind a member"
            all_of_them.release()
            assert not one.locked()


@pytest.mark.parametrize("names", [1_000, pytest.param(20_000, marks=pytest.mark.thorough)])
def test_many_leases_that_are_cached_end_in_their_time(private_server: Any, names: int) -> None:
    server: embedded.Server = private_server()
    with holdfast.connect(server.url, ttl=60) as locks, redis.Redis.from_url(server.url) as look:

        def use(part: int) -> None:
            for number in range(part, names, 4):
                for _ in range(3):
                    with locks.lock(f"kept-{number}", cache_for=0.5):
                        pass

        threads = [threading.Thread(target=use, args=(part,)) for part in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        def held() -> int:
            return sum(not key.endswith(b":fence") for key in look.scan_iter("holdfast:{kept-*", count=10_000))

        eventually(lambda: held() == 0, "none outlives its time")

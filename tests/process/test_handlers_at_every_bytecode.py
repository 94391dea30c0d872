"""Signal handlers that use the library: at every bytecode of what the main thread does with it.

A handler runs between two bytecodes of the main thread. Whatever it calls must come back, and leave what was
interrupted as it should be: no lock may be taken that the interrupted frame holds.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import signal
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest
import redis

import holdfast
from holdfast import embedded
from testbed import servers
from testbed.waiting import eventually
from tests.support.bytecodes import Place, at_bytecode, bytecodes_of, places_once

#: A handler that closes the client in the middle of a connect leaves that socket to the collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

#: A call that is not back after this has deadlocked, s.
WATCHDOG_S = 20.0


class Deadlock(BaseException):
    """The watchdog has run out."""


@contextlib.contextmanager
def watchdog(what: object) -> Iterator[None]:
    """Interrupts what hangs: a lock that a thread waits for in vain is left when a signal handler raises."""

    def bark(number: int, frame: FrameType | None) -> None:
        raise Deadlock(f"hangs after an interruption at {what}")

    before = signal.signal(signal.SIGALRM, bark)
    signal.setitimer(signal.ITIMER_REAL, WATCHDOG_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


@functools.cache
def looking_at(url: str) -> Any:
    """A client of redis-py: to make one for each play would take as much time as all else in it."""
    return redis.Redis.from_url(url)


#: A lock that another client holds all the time.
HELD = servers.unique("held")


@pytest.fixture(scope="module")
def server() -> Iterator[embedded.Server]:
    with servers.start() as one, holdfast.connect(one.url, ttl=600) as other, other.lock(HELD):
        looking_at(one.url).ping()
        yield one
        looking_at(one.url).close()


class Stage:
    """One client, and what an interruption does with it."""

    def __init__(self, url: str, connected: bool = True) -> None:
        self.url = url
        self.client = holdfast.connect(url, ttl=60)
        if connected:
            self.client.lock(servers.unique("first")).acquire().release()
            assert self.client.lock(HELD).try_acquire() is None
        self.name = servers.unique("handler")
        self.told: list[holdfast.LeaseLost] = []
        self.leases: list[holdfast.Lease] = []

    def lock(self, name: str = "") -> Any:
        return self.client.lock(self.name + name)

    def end(self) -> None:
        self.client.close()

    def left(self) -> list[str]:
        """Leases and places in queues that are still on the server."""
        found = looking_at(self.url).scan_iter(match=f"holdfast:*{self.name}*", count=10_000)
        keys = [key.decode() for key in found]
        return [key for key in keys if not key.endswith((":fence", ":gone")) and ":order:" not in key]


# ---------------------------------------------------------------------- what is interrupted


def acquire_and_release(stage: Stage) -> None:
    lease = stage.lock().acquire(timeout=10)
    lease.release()


def first_use(stage: Stage) -> None:
    acquire_and_release(stage)


def enter_and_leave(stage: Stage) -> None:
    with stage.lock():
        pass


def reentrant(stage: Stage) -> None:
    lock = stage.client.lock(stage.name, reentrant=True)
    with lock, lock:
        pass


def extend(stage: Stage) -> None:
    with stage.lock() as lease:
        lease.extend(50)


def ask_for_the_loss(stage: Stage) -> None:
    with stage.lock() as lease:
        lease.on_lost(stage.told.append)
        assert not lease.lost.is_set()
        assert not lease.lost.wait(0)


def time_out(stage: Stage) -> None:
    # Traced, on a busy machine, a request with so little time may be too late; and the handler may release the other.
    in_vain = contextlib.suppress(holdfast.AcquireTimeout, holdfast.ServerUnreachable, holdfast.OutcomeUnknown)
    with holdfast.connect(stage.url) as other, other.lock(stage.name), in_vain:
        stage.lock().acquire(timeout=0.01).release()


def set_a_cancel(stage: Stage) -> None:
    cancel = holdfast.Cancel()
    cancel.wait(0.001)
    cancel.set()
    assert cancel.wait(1)


def close(stage: Stage) -> None:
    lease = stage.lock().acquire()
    stage.client.close()
    assert not lease.remaining()


ACTIONS: dict[str, Callable[[Stage], None]] = {
    each.__name__: each
    for each in (
        acquire_and_release,
        first_use,
        enter_and_leave,
        reentrant,
        extend,
        ask_for_the_loss,
        time_out,
        set_a_cancel,
        close,
    )
}

# ---------------------------------------------------------------------- what handlers do


def uses_other_locks(stage: Stage) -> None:
    """The whole life of a lease, and a cancelled acquire."""
    try:
        lease = stage.lock("-other").try_acquire()
    except holdfast.ClientClosed:
        return
    if lease is not None:
        lease.on_lost(stage.told.append)
        assert not lease.lost.is_set()
        # By close() that was interrupted.
        with contextlib.suppress(holdfast.LeaseLost, holdfast.LeaseReleased, holdfast.ClientClosed):
            lease.extend(40)
            lease.release()
    cancel = holdfast.Cancel()
    cancel.set()
    with contextlib.suppress(holdfast.AcquireCancelled, holdfast.ClientClosed):
        stage.lock("-cancelled").acquire(timeout=5, cancel=cancel)
        raise AssertionError("it was cancelled before")


def asks_for_what_others_hold(stage: Stage) -> None:
    """Through the engine, which knows by now that the lock is contended."""
    with contextlib.suppress(holdfast.ClientClosed):
        assert stage.client.lock(HELD).try_acquire() is None


def releases_what_is_held(stage: Stage) -> None:
    """Release all leases, as services do on SIGTERM."""
    for lease in tuple(stage.leases):
        with contextlib.suppress(holdfast.LeaseLost, holdfast.LeaseReleased):
            lease.release()


def closes_the_client(stage: Stage) -> None:
    """Release all leases and close the client, as other services do."""
    releases_what_is_held(stage)
    stage.client.close()


HANDLERS: dict[str, Callable[[Stage], None]] = {
    each.__name__: each
    for each in (uses_other_locks, asks_for_what_others_hold, releases_what_is_held, closes_the_client)
}
#: What an interrupted action may raise: a handler that closes or releases is not undone.
EXPECTED = (holdfast.ClientClosed, holdfast.LeaseReleased, holdfast.LeaseLost, AssertionError)


def is_made(lease: holdfast.Lease) -> bool:
    return hasattr(lease, "_release_ask")  # set last


def play(server: embedded.Server, action: str, handler: str, number: int) -> Place | None:
    """One run of the action, interrupted at that bytecode."""
    stage = Stage(server.url, action != "first_use")
    calls: list[str] = []

    def interrupt(frame: FrameType) -> None:
        below: FrameType | None = frame
        while below is not None:  # the leases that the main thread has in its hands at this moment
            stage.leases += [each for each in below.f_locals.values() if type(each) is holdfast.Lease and is_made(each)]
            below = below.f_back
        calls.append("begun")
        HANDLERS[handler](stage)
        calls.append("back")

    place: Place | None = None
    interruptible = handler in ("closes_the_client", "releases_what_is_held")
    try:
        with watchdog((action, handler, number)):
            try:
                _, place = at_bytecode(number, interrupt, lambda: ACTIONS[action](stage))
            except EXPECTED:
                if not interruptible:
                    raise
            assert calls in ([], ["begun", "back"])
            stage.end()
        assert not [error for error in stage.told if error.reason != "closed"], "no lease was lost"
        eventually(lambda: not stage.left(), f"something is left after {handler} at bytecode {number} of {action}")
    finally:
        stage.end()
        stage.leases.clear()
    return place


def places_of(server: embedded.Server, action: str) -> list[Place]:
    stage = Stage(server.url, action != "first_use")
    try:
        ACTIONS[action](stage)
    finally:
        stage.end()
    stage = Stage(server.url, action != "first_use")
    try:
        return bytecodes_of(lambda: ACTIONS[action](stage))
    finally:
        stage.end()


def interrupt_at(server: embedded.Server, action: str, handler: str, step: int, first: int) -> None:
    for number in places_once(places_of(server, action), step, first):
        play(server, action, handler, number)


PAIRS = list(itertools.product(ACTIONS, HANDLERS))


@pytest.mark.parametrize(("action", "handler"), PAIRS)
def test_a_handler_may_use_the_library_at_a_sample_of_bytecodes(
    server: embedded.Server, action: str, handler: str
) -> None:
    # Another part of them with every pair.
    interrupt_at(server, action, handler, step=211, first=13 * PAIRS.index((action, handler)) % 211)


@pytest.mark.thorough
@pytest.mark.parametrize(("action", "handler"), PAIRS)
def test_a_handler_may_use_the_library_at_more_bytecodes(server: embedded.Server, action: str, handler: str) -> None:
    """HOLDFAST_EVERY=1 tries all of them, which takes minutes."""
    step = int(os.environ.get("HOLDFAST_EVERY", "17"))
    interrupt_at(server, action, handler, step=step, first=step // 2)

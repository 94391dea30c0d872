"""Signals at random moments, whose handlers use the library, in processes of their own."""

from __future__ import annotations

import functools
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator

import pytest

import holdfast
from holdfast import embedded
from holdfast._runtime.waits import ring
from testbed import servers

PROGRAM = textwrap.dedent(
    """
    import contextlib, faulthandler, random, signal, sys, time
    import holdfast

    faulthandler.dump_traceback_later(50, exit=True)
    url, name, seed = sys.argv[1:]
    rng = random.Random(seed)
    locks = holdfast.connect(url, ttl=30)
    stop = holdfast.Cancel()
    held = []
    ours = holdfast.HoldfastError
    count = 0
    going_on = True

    def handler(number, frame):
        global count
        count += 1
        with contextlib.suppress(ours):
            lease = locks.lock(f"{name}-{rng.randrange(3)}").try_acquire()
            if lease is not None:
                lease.on_lost(print)
                lease.extend(20)
                lease.release()
        for lease in list(held):
            lease.lost.is_set()
            with contextlib.suppress(ours):
                lease.release()
        stop.set()
        stop.clear()
        if going_on:
            signal.setitimer(signal.ITIMER_REAL, rng.uniform(0.0001, 0.01))

    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.005)
    begin = time.monotonic()
    while time.monotonic() < begin + 1.5 or (count <= 20 and time.monotonic() < begin + 40):
        with contextlib.suppress(ours):
            lease = locks.lock(f"{name}-{rng.randrange(3)}").acquire(timeout=0.2, cancel=stop)
            held.append(lease)
            lease.lost.wait(0.001)
            stop.wait(0.001)
            held.remove(lease)
            lease.release()
    going_on = False
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGTERM, lambda number, frame: locks.close())
    with contextlib.suppress(ours):
        with locks.lock(name):
            signal.raise_signal(signal.SIGTERM)
    locks.close()
    print("ended", count > 20)
    """
)


@pytest.fixture(scope="module")
def server() -> Iterator[embedded.Server]:
    with servers.start() as one:
        yield one


def play(server: embedded.Server, seeds: range) -> None:
    running = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore::ResourceWarning", "-c", PROGRAM, server.url, servers.unique(), str(seed)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for seed in seeds
    ]
    try:
        for process in running:
            said, complaint = process.communicate(timeout=60)
            assert (said, process.returncode) == ("ended True\n", 0), complaint
    finally:
        for process in running:
            process.kill()
            process.communicate()


def test_handlers_at_random_moments(server: embedded.Server) -> None:
    play(server, range(3))


@pytest.mark.thorough
def test_handlers_at_more_random_moments(server: embedded.Server) -> None:
    for first in range(0, 16, 4):
        play(server, range(first, first + 4))


class _TimeLimit(Exception):
    """As those that task queues raise in their workers."""


class _Handler:
    def __init__(self, error: Exception) -> None:
        self.error = error

    def __call__(self, *_: object) -> None:
        raise self.error

    def method(self, *_: object) -> None:
        raise self.error


@pytest.mark.parametrize("kind", [_TimeLimit, TimeoutError])
@pytest.mark.parametrize("form", ["a method", "an object", "a partial"])
def test_what_a_handler_raises_comes_out_as_it_is(
    server: embedded.Server, unique_name: str, kind: type[Exception], form: str
) -> None:
    """The server hangs, so that the handler runs in the system call that waits for it, or connects to it."""
    handler = _Handler(kind("the limit of the program"))
    forms: dict[str, Callable[..., object]] = {
        "a method": handler.method,
        "an object": handler,
        "a partial": functools.partial(_Handler.method, handler),
    }
    locks = holdfast.connect(server.url)
    lock = locks.lock(unique_name)
    lock.acquire().release()
    before = signal.signal(signal.SIGALRM, forms[form])
    server.pause()
    try:
        for call in (lock.try_acquire, lock.holder, lock.acquire, lock.locked):
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            with pytest.raises(kind) as raised:
                call()
            assert raised.value is handler.error
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        server.resume()
        locks.close()


class _Bell:
    """A handler runs as it is rung; or it has been rung before."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error

    def release(self) -> None:
        if self.error is None:
            raise RuntimeError("release unlocked lock")
        signal.raise_signal(signal.SIGALRM)


def test_what_a_handler_raises_as_a_bell_rings_comes_out() -> None:
    ring(_Bell(None))
    error = RuntimeError("of the program")
    before = signal.signal(signal.SIGALRM, _Handler(error))
    try:
        with pytest.raises(RuntimeError) as raised:
            ring(_Bell(error))
        assert raised.value is error
    finally:
        signal.signal(signal.SIGALRM, before)

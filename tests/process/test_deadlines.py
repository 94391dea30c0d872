"""Deadlines hold: whatever signals come, however slowly a server answers, in whatever step of an exchange."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import holdfast
from holdfast import embedded
from testbed import servers
from tests.support.apis import Api

#: What a timeout of 1 s may take on a busy machine, s; the defects took 8 s and more, or did not end.
ENOUGH_S = 5.0


@contextlib.contextmanager
def ticking(every_s: float = 0.01) -> Iterator[list[int]]:
    """A signal with a handler again and again, in the main thread."""
    ticks: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, frame: ticks.append(number))
    signal.setitimer(signal.ITIMER_REAL, every_s, every_s)
    try:
        yield ticks
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


class Dripping:
    """Stands between: from the moment that `slow` is set, replies come byte by byte."""

    def __init__(self, port: int, every_s: float = 0.1) -> None:
        self.slow = threading.Event()
        self._port = port
        self._every_s = every_s
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._listener.getsockname()[1]}"
        self._sockets: list[socket.socket] = [self._listener]
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                inner, _ = self._listener.accept()
                outer = socket.create_connection(("127.0.0.1", self._port))
                self._sockets += [inner, outer]
                threading.Thread(target=self._pass, args=(inner, outer, False), daemon=True).start()
                threading.Thread(target=self._pass, args=(outer, inner, True), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, drips: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if drips and self.slow.is_set():
                    for byte in data:
                        time.sleep(self._every_s)
                        target.sendall(bytes([byte]))
                else:
                    target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


@pytest.fixture(scope="module")
def server() -> Iterator[embedded.Server]:
    with servers.start() as one:
        yield one


def took(call: Callable[[], Any]) -> float:
    """How long it took to end in trouble."""
    began_at = time.monotonic()
    with pytest.raises((holdfast.ServerUnreachable, holdfast.OutcomeUnknown, holdfast.AcquireTimeout)):
        call()
    return time.monotonic() - began_at


def test_a_periodic_signal_does_not_prolong_a_wait_for_a_server_that_hangs(server: embedded.Server) -> None:
    with holdfast.connect(server.url) as locks:
        lock = locks.lock(servers.unique())
        lock.acquire().release()
        server.pause()
        try:
            with ticking() as ticks:
                assert took(lambda: lock.acquire(timeout=1)) < ENOUGH_S
            assert len(ticks) > 10
        finally:
            server.resume()


def test_replies_byte_by_byte_do_not_prolong_a_timeout(server: embedded.Server, api: Api) -> None:
    between = Dripping(server.port)
    try:
        locks = api.connect(between.url)
        lock = locks.lock(servers.unique())
        lock.acquire().release()
        between.slow.set()
        assert took(lambda: lock.acquire(timeout=1)) < ENOUGH_S
        between.slow.clear()
    finally:
        between.close()


@pytest.mark.parametrize("way", ["url", "client"])
def test_a_handshake_byte_by_byte_does_not_prolong_a_timeout(server: embedded.Server, api: Api, way: str) -> None:
    between = Dripping(server.port)
    between.slow.set()
    brought = api.redis().Redis.from_url(between.url)
    try:
        locks = api.connect(between.url) if way == "url" else api.client(brought)
        assert took(lambda: locks.lock(servers.unique()).acquire(timeout=1)) < ENOUGH_S
        between.slow.clear()
    finally:
        between.close()


def test_a_server_that_reads_nothing_does_not_hold_up_a_large_request() -> None:
    from holdfast._engine.dial import Address
    from holdfast._engine.loop import Engine
    from holdfast._engine.pack import pack_command
    from holdfast._engine.requests import Request
    from holdfast._engine.server import Server
    from holdfast._runtime.clock import clock
    from holdfast._runtime.waits import ring, silent_bell

    with socket.create_server(("127.0.0.1", 0)) as listener:
        accepted: list[socket.socket] = []

        def greet() -> None:
            one, _ = listener.accept()
            accepted.append(one)
            while b"HELLO" not in (said := one.recv(100)):
                one.sendall(b"+PONG\r\n" * said.count(b"PING"))
            one.sendall(b"+OK\r\n")  # and reads no more

        threading.Thread(target=greet, daemon=True).start()
        address = Address("127.0.0.1", listener.getsockname()[1], None, None, None, 0)
        engine, bell, failures = Engine(), silent_bell(), list[Any]()
        engine.enter(address)
        server = Server(engine, "server", address.connection)

        def answered(_reply: Any, failure: Any) -> None:
            failures.append(failure)
            ring(bell)

        began_at = time.monotonic()
        with ticking():
            packed = pack_command(("SET", "k", b"x" * 50_000_000))
            engine.call(server.send, Request(packed, clock() + 0.5, None, None, answered))
            assert engine.wait(bell, 60)
        assert [failure.kind for failure in failures] == ["silent"]
        assert time.monotonic() - began_at < ENOUGH_S
        engine.call(server.close)
        engine.call(engine.leave, address)
        for one in accepted:
            one.close()


# ---------------------------------------------------------------------- between threads


def test_short_waits_end_under_a_periodic_signal() -> None:
    """`SimpleQueue.get` of Python 3.11 and 3.12 never came back from one of these."""
    from holdfast._runtime.waits import Flag, ring, silent_bell, wait

    bell = silent_bell()
    flag = Flag()
    cancel = holdfast.Cancel()
    with ticking(0.001):
        for number in range(300):
            assert not wait(bell, lambda: False, 0.0005 * (number % 5))
            assert not flag.wait_s(0.0005 * (number % 5))
            assert not cancel.wait(0.0005 * (number % 5))
    ring(bell)
    flag.set()
    assert wait(bell, flag.is_set, 1e300)
    assert flag.wait_s(1e300)
    assert not wait(bell, lambda: False, -1e300)


def test_waiting_for_a_lock_ends_under_a_periodic_signal(server: embedded.Server) -> None:
    with holdfast.connect(server.url) as holder, holdfast.connect(server.url) as locks:
        name = servers.unique()
        with holder.lock(name), ticking(0.001):
            for _ in range(60):
                assert took(lambda: locks.lock(name).acquire(timeout=0.05)) < ENOUGH_S


def test_a_wait_goes_on_after_a_stop(server: embedded.Server) -> None:
    """SIGSTOP and SIGCONT interrupt system calls, too."""
    with holdfast.connect(server.url) as holder:
        name = servers.unique()
        with holder.lock(name):
            waiting = subprocess.Popen(
                [sys.executable, "-c", WAITS, server.url, name], stdout=subprocess.PIPE, text=True
            )
            try:
                assert waiting.stdout is not None
                assert waiting.stdout.readline() == "begins\n"
                for _ in range(50):
                    waiting.send_signal(signal.SIGSTOP)
                    time.sleep(0.01)
                    waiting.send_signal(signal.SIGCONT)
                    time.sleep(0.01)
                assert waiting.stdout.readline() == "timed out\n"
                assert waiting.wait(30) == 0
            finally:
                waiting.kill()
                waiting.communicate()


WAITS = textwrap.dedent(
    """
    import sys
    import holdfast
    locks = holdfast.connect(sys.argv[1])
    print("begins", flush=True)
    for _ in range(20):
        try:
            locks.lock(sys.argv[2]).acquire(timeout=0.05)
        except holdfast.AcquireTimeout:
            pass
    print("timed out", flush=True)
    """
)


def test_a_wake_up_that_gets_lost_costs_a_second() -> None:
    from holdfast._runtime.waits import silent_bell, wait

    came: list[int] = []
    threading.Timer(0.05, came.append, (1,)).start()  # without ringing
    began_at = time.monotonic()
    assert wait(silent_bell(), lambda: bool(came), 60.0)
    assert time.monotonic() - began_at < 20.0

"""`close()` that an exception interrupts, at a sample of its bytecodes: calling it again finishes it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from types import FrameType

import pytest
import redis

import holdfast
from holdfast import embedded
from testbed import servers
from testbed.waiting import eventually
from tests.support.bytecodes import at_bytecode, bytecodes_of, places_once

#: A coroutine, or a connection, that was made just one bytecode earlier has no owner, and goes by itself.
pytestmark = [
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
]


class Interruption(BaseException):
    """What a signal handler raises."""


@pytest.fixture(scope="module")
def server() -> Iterator[embedded.Server]:
    with servers.start() as one:
        yield one


class Busy:
    """A client that holds and waits, and what is told of its end."""

    def __init__(self, url: str) -> None:
        self.name = servers.unique("interrupted")
        self.other = holdfast.connect(url)
        self.blocker = self.other.lock(self.name + "-blocked").acquire()
        self.client = holdfast.connect(url, ttl=60)
        self.leases: list[holdfast.Lease] = [
            self.client.lock(self.name).acquire(),
            self.client.semaphore(self.name + "-s", 2).acquire(),
            self.client.rwlock(self.name + "-rw").write().acquire(),
        ]
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._wait)
        self.thread.start()
        eventually(lambda: self.other.lock(self.name + "-blocked").waiters() == 1, "no one waits")

    def _wait(self) -> None:
        with contextlib.suppress(holdfast.ClientClosed):
            self.client.lock(self.name + "-blocked").acquire()
        self.ended.set()

    def end(self) -> None:
        self.client.close()
        self.thread.join(20)
        self.other.close()


def play(server: embedded.Server, number: int) -> None:
    busy = Busy(server.url)

    def interrupt(frame: FrameType) -> None:
        below: FrameType | None = frame
        while below is not None:
            if below.f_code.co_name == "__del__" or below.f_code.co_filename.endswith("_weakrefset.py"):
                return  # Python shows what a finalizer raises, and goes on: nothing would be interrupted
            below = below.f_back
        raise Interruption

    try:
        with contextlib.suppress(Interruption):
            at_bytecode(number, interrupt, busy.client.close)
        busy.client.close()
        assert busy.ended.wait(10), f"who waits was not told, after an interruption at bytecode {number}"
        assert {lease.state for lease in busy.leases} == {holdfast.LeaseState.LOST}
        with contextlib.closing(redis.Redis.from_url(server.url)) as plain:
            left = [key.decode() for key in plain.scan_iter(match=f"holdfast:*{busy.name}*", count=10_000)]
            name = busy.name
            held = {f"holdfast:{{{name}}}", f"holdfast:{{{name}-rw}}", f"holdfast:{{{name}-s}}:sem:holders"}
            assert not held.intersection(left), f"left after an interruption at bytecode {number}"
    finally:
        busy.end()


def interrupt_at(server: embedded.Server, step: int, first: int) -> None:
    busy = Busy(server.url)
    try:
        places = bytecodes_of(busy.client.close)
    finally:
        busy.end()
    for number in places_once(places, step, first):
        # What an exception does to the locks of the standard library's own threads is not ours to mend.
        if "/holdfast/" in places[number].code.co_filename:
            play(server, number)


def test_calling_it_again_finishes_it(server: embedded.Server) -> None:
    interrupt_at(server, 97, 5)


@pytest.mark.thorough
def test_calling_it_again_finishes_it_at_more_bytecodes(server: embedded.Server) -> None:
    interrupt_at(server, 29, 11)

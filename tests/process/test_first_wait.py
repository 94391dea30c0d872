"""A contended lock is waited for without a protocol where all is as usual; what interrupts that leaves nothing."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest
import redis

import holdfast
from holdfast import embedded
from testbed.servers import unique
from testbed.waiting import eventually
from tests.process.interruptions import Interrupted
from tests.support.apis import ThreadsApi
from tests.support.bytecodes import at_bytecode, bytecodes_of

_API = ThreadsApi()


class Pair:
    """A client whose inbox is open and that has found the lock taken; and another one that holds it."""

    def __init__(self, url: str) -> None:
        self.redis: Any = redis.Redis.from_url(url)
        self.client = holdfast.connect(url, tenure=0)
        self.other = holdfast.connect(url, tenure=0)
        self.name = unique("first-wait")
        self.lock = self.client.lock(self.name)
        with self.handed_over():
            self.lock.acquire().release()

    def queued(self) -> int:
        return int(self.redis.zcard(f"holdfast:{{{self.name}}}:queue"))

    @contextlib.contextmanager
    def handed_over(self) -> Iterator[None]:
        """Held elsewhere, and released as soon as someone waits; or when the block has ended."""
        lease = self.other.lock(self.name).acquire(timeout=20)
        over = threading.Event()

        def release() -> None:
            while not self.queued() and not over.wait(0.001):
                pass
            lease.release()

        released = _API.start(release)
        try:
            yield
        finally:
            over.set()
            released.result(20)

    def close(self) -> None:
        for each in (self.client, self.other, self.redis):
            each.close()


@pytest.fixture
def pair(valkey_server: embedded.Server) -> Iterator[Pair]:
    pair = Pair(valkey_server.url)
    yield pair
    pair.close()


def test_the_usual_wait_runs_no_protocol(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise AssertionError("a protocol was run")

    with pair.handed_over():
        with monkeypatch.context() as patched:
            patched.setattr(pair.client._session.driver, "run", refuse)
            lease = pair.lock.acquire()
    assert lease.held
    assert lease.fencing_token == pair.lock.last_fencing_token()
    lease.extend(20)
    lease.release()
    assert not pair.client._session.driver.inboxes._waiters


def test_a_timeout_ends_it(pair: Pair) -> None:
    with pair.other.lock(pair.name).acquire(timeout=20):
        with pytest.raises(holdfast.AcquireTimeout) as caught:
            pair.lock.acquire(timeout=0.2)
        assert caught.value.waited_s >= 0.2
        eventually(lambda: pair.queued() == 0)


# Runs are not quite alike: now and then it comes where a connection was just taken, which goes by itself.
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_exception_at_any_of_its_bytecodes_leaves_nothing_behind(pair: Pair) -> None:
    def once() -> None:
        pair.lock.acquire(timeout=20).release()

    with pair.handed_over():
        places = bytecodes_of(once)
    own = [number for number, place in enumerate(places) if place.code.co_filename.endswith("/first_wait.py")]
    assert len(own) > 50

    def interrupt(_frame: FrameType) -> None:
        raise Interrupted

    hits = 0
    for number in own:
        with pair.handed_over():
            try:
                at_bytecode(number, interrupt, once)
            except Interrupted:
                hits += 1
        with pair.other.lock(pair.name).acquire(timeout=20):
            pass
        eventually(lambda: pair.queued() == 0)
    assert hits >= len(own) - 2
    assert not pair.client._session.driver.inboxes._waiters

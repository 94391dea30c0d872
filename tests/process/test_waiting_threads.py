"""Of the threads that wait, none depends on another: what ends, holds up or interrupts one costs the others nothing.

No thread looks for itself here within the time of a test: what reaches it was heard by the engine.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest
import redis

import holdfast
from holdfast import embedded
from holdfast._core.settings import DEFAULT
from holdfast._front import threads
from holdfast._runtime import waits
from testbed.servers import unique
from testbed.waiting import eventually
from tests.process.interruptions import Interrupted
from tests.support.apis import ThreadsApi

#: A waiter looks for itself after as long as this, s; nothing here takes so long.
_LONG_S = 120.0
#: What waits has to be woken within this, s, however busy the machine is.
_SOON_S = 40.0
_API = ThreadsApi()


class Crowd:
    """One client whose threads wait, and another that holds what they wait for."""

    def __init__(self, url: str, stretch_s: float = DEFAULT.stretch_s) -> None:
        self.url = url
        self.redis: Any = redis.Redis.from_url(url)
        settings = DEFAULT._replace(claim_ms=int(_LONG_S * 1000), recheck_max_s=_LONG_S, stretch_s=stretch_s)
        self.locks = holdfast.Client(redis.Redis.from_url(url), ttl=_LONG_S, _settings=settings)
        self.other = holdfast.Client(redis.Redis.from_url(url), ttl=_LONG_S, _settings=settings)
        self.held: dict[str, Any] = {}

    def close(self) -> None:
        for client in (self.locks, self.other, self.redis):
            client.close()

    def taken(self) -> str:
        """The name of a lock that the other client holds."""
        name = unique("reader")
        self.held[name] = self.other.lock(name).acquire()
        return name

    def wait(self, name: str, **options: Any) -> Any:
        """Start an acquire in a thread; returns its future once it waits."""
        waiting = _API.start(self.locks.lock(name).acquire, **options)
        self.waits(name)
        return waiting

    def waits(self, name: str) -> None:
        """Wait until a thread does, for this lock."""
        inboxes = self.locks._session.driver.client.inboxes

        def is_waiting() -> bool:
            queued = self.redis.zrange(f"holdfast:{{{name}}}:queue", 0, 0)
            listener = inboxes._listeners.get(queued[0].decode()) if queued else None
            return listener is not None and listener.task is not None

        eventually(is_waiting)

    def gets(self, waiting: Any, name: str) -> None:
        """Release the lock of that name, and wait for its waiter's turn to end."""
        self.held.pop(name).release()
        waiting.result(_SOON_S).release()


@pytest.fixture
def crowd(valkey_server: embedded.Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Crowd]:
    for module in (threads, waits):
        monkeypatch.setattr(module, "SLICE_S", _LONG_S)
    crowd = Crowd(valkey_server.url)
    yield crowd
    crowd.close()


@contextlib.contextmanager
def handled(handler: Callable[[int, FrameType | None], Any]) -> Iterator[None]:
    """SIGUSR1 does that."""
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


def raising(_number: int, _frame: FrameType | None) -> None:
    raise Interrupted


def strikes(crowd: Crowd, first: str, name: str) -> Any:
    """Start an acquire in another thread while the main thread waits for the first lock, and interrupt that."""
    crowd.waits(first)
    waiting = crowd.wait(name)
    os.kill(os.getpid(), signal.SIGUSR1)
    return waiting


@pytest.mark.parametrize("how", ["granted", "timeout", "cancelled"])
def test_one_that_leaves_costs_the_others_nothing(crowd: Crowd, how: str) -> None:
    first, name = crowd.taken(), crowd.taken()
    cancel = holdfast.Cancel()
    options: dict[str, dict[str, Any]] = {"granted": {}, "timeout": {"timeout": 2.0}, "cancelled": {"cancel": cancel}}
    leaving = crowd.wait(first, **options[how])
    waiting = crowd.wait(name)
    if how == "granted":
        crowd.gets(leaving, first)
    else:
        cancel.set()
        with pytest.raises((holdfast.AcquireTimeout, holdfast.AcquireCancelled)):
            leaving.result(_SOON_S)
    crowd.gets(waiting, name)


def test_an_exception_that_ends_one_costs_the_others_nothing(crowd: Crowd) -> None:
    first, name = crowd.taken(), crowd.taken()
    box: list[Any] = []

    def strike() -> None:
        box.append(strikes(crowd, first, name))

    with handled(raising):
        striking = _API.start(strike)
        with pytest.raises(Interrupted):
            crowd.locks.lock(first).acquire()
    striking.result(_SOON_S)
    crowd.gets(box[0], name)


def test_a_handler_above_one_that_waits_may_wait(crowd: Crowd) -> None:
    first, second, name = crowd.taken(), crowd.taken(), crowd.taken()
    got: list[Any] = []

    def handler(_number: int, _frame: FrameType | None) -> None:
        got.append(crowd.locks.lock(second).acquire())

    def strike() -> None:
        waiting = strikes(crowd, first, name)
        crowd.waits(second)
        crowd.gets(waiting, name)
        crowd.held.pop(second).release()
        eventually(lambda: bool(got))
        crowd.held.pop(first).release()

    with handled(handler):
        striking = _API.start(strike)
        crowd.locks.lock(first).acquire(timeout=_SOON_S).release()
    striking.result(_SOON_S)
    got[0].release()


def test_one_that_is_held_up_costs_the_others_nothing(crowd: Crowd) -> None:
    first, name = crowd.taken(), crowd.taken()
    over = waits.Flag()

    def strike() -> None:
        try:
            crowd.gets(strikes(crowd, first, name), name)
        finally:
            over.set()
        crowd.held.pop(first).release()

    with handled(lambda *_: over.wait_s(_SOON_S)):
        striking = _API.start(strike)
        crowd.locks.lock(first).acquire(timeout=_SOON_S).release()
    striking.result(_SOON_S)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_storm_of_signals_at_one_costs_the_others_nothing(crowd: Crowd) -> None:
    """The main thread waits and is interrupted all the time, while others are granted what they wait for."""
    first = crowd.taken()
    choice = random.Random(13)
    over = threading.Event()
    hits = 0

    def work() -> int:
        turns = 0
        while not over.is_set() or turns < 5:
            name = crowd.taken()
            crowd.gets(crowd.wait(name), name)
            turns += 1
        return turns

    with handled(raising):
        working = _API.start(work)
        before = signal.signal(signal.SIGALRM, raising)
        try:
            until = time.monotonic() + 2.0
            while time.monotonic() < until:
                try:
                    signal.setitimer(signal.ITIMER_REAL, choice.uniform(0.001, 0.02))
                    crowd.locks.lock(first).acquire(timeout=1)
                except Interrupted:
                    hits += 1
                except holdfast.AcquireTimeout:
                    pass  # the handler ran in a finalizer, and what is raised there ends nothing
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
            over.set()
    assert working.result(_SOON_S) >= 5
    assert hits > 10
    crowd.held.pop(first).release()
    with crowd.locks.lock(first).acquire(timeout=_SOON_S):
        pass


def test_a_closed_client_leaves_no_one_waiting(crowd: Crowd) -> None:
    waiting = [crowd.wait(crowd.taken()) for _ in range(3)]
    crowd.locks.close()
    for each in waiting:
        with pytest.raises(holdfast.ClientClosed):
            each.result(_SOON_S)


def test_a_child_of_fork_waits_by_itself(crowd: Crowd) -> None:
    """While threads of its parent wait, too, whose engine does not come along."""
    first, name = crowd.taken(), crowd.taken()
    waiting = crowd.wait(first)
    child = os.fork()
    if not child:
        status = 1
        try:
            crowd.locks.lock(name).acquire(timeout=_SOON_S).release()
            status = 0
        finally:
            os._exit(status)
    eventually(lambda: crowd.redis.zcard(f"holdfast:{{{name}}}:queue") == 1)
    crowd.held.pop(name).release()
    assert os.waitpid(child, 0)[1] == 0
    crowd.gets(waiting, first)


def test_an_inbox_that_has_ended_is_opened_again(crowd: Crowd) -> None:
    first, name = crowd.taken(), crowd.taken()
    first_one, waiting = crowd.wait(first), crowd.wait(name)
    client = crowd.redis.zrange(f"holdfast:{{{name}}}:queue", 0, 0)[0].decode().partition(":")[0]
    link: Any = crowd.locks._session.driver.topology.nodes()[0].link
    ours = crowd.locks._session.driver.engine
    ours.call(link._lost, None)
    eventually(lambda: crowd.redis.pubsub_numsub(f"holdfast:inbox:{client}")[0][1] == 1)
    crowd.gets(waiting, name)
    crowd.gets(first_one, first)


def test_an_inbox_that_ends_while_it_is_tried_is_opened_again(crowd: Crowd, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal handler has its connection retired; the message that tries it has come by then."""
    name, client = crowd.taken(), crowd.locks._session.driver.client
    check = client._check

    def tried(server: Any, *how: Any) -> None:
        monkeypatch.undo()
        check(server, *how)
        server.reconnect()

    monkeypatch.setattr(client, "_check", tried)
    waiting = crowd.wait(name)
    eventually(lambda: crowd.redis.pubsub_numsub(client.channel)[0][1] == 1)
    crowd.gets(waiting, name)


@pytest.mark.parametrize("waited_s", [0.0, 0.3])
def test_a_holder_hears_when_no_thread_waits_any_more(crowd: Crowd, waited_s: float) -> None:
    name = crowd.taken()
    waiting = crowd.wait(name)
    time.sleep(waited_s)
    crowd.held.pop(name).release()
    lease = waiting.result(_SOON_S)
    crowd.other.break_(name, reason="to be heard")
    assert lease.lost.wait(_SOON_S)
    assert "to be heard" in str(lease.lost.reason)


def test_what_is_pushed_to_one_is_looked_after_without_its_call(
    valkey_server: embedded.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which would wake the engine once more in each turn; and it does not wake for what was held before."""
    crowd = Crowd(valkey_server.url, stretch_s=2.0)
    with contextlib.closing(crowd):
        client, name = crowd.locks._session.driver.client, crowd.taken()
        acts: list[Any] = []
        client.schedule.look_s = float("inf")
        crowd.locks.lock(unique("reader"), ttl=6).acquire().release()
        eventually(lambda: client.attends_at is not None, "it is to be looked after")
        waiting = crowd.wait(name)
        eventually(lambda: client.attends_at is None, "nothing is held")
        call = client.engine.call

        def noted(act: Any, *args: Any) -> None:
            acts.append(act)
            call(act, *args)

        monkeypatch.setattr(client.engine, "call", noted)
        crowd.held.pop(name).release()
        lease = waiting.result(_SOON_S)
        assert client.arm not in acts
        eventually(lambda: lease._record.short_s == 0.0, "it was stretched")
        lease.release()

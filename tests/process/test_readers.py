"""Of the threads that wait, one reads for all: what ends, holds up or interrupts it costs the others nothing.

No thread looks for itself here within the time of a test: what reaches it was read.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest
import redis

import holdfast
from holdfast import embedded
from holdfast._core.failure import RequestFailed
from holdfast._core.settings import DEFAULT
from holdfast._drivers import inboxes
from holdfast._drivers.watchdog import Watchdog
from holdfast._runtime import waits
from holdfast._transport.threads import Wire
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

    def __init__(self, url: str) -> None:
        self.url = url
        self.redis: Any = redis.Redis.from_url(url)
        settings = DEFAULT._replace(claim_ms=int(_LONG_S * 1000), recheck_max_s=_LONG_S)
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
        found = self.locks._session.driver.inboxes

        def is_waiting() -> bool:
            queued = self.redis.zrange(f"holdfast:{{{name}}}:queue", 0, 0)
            return bool(queued) and found._waiters.get(queued[0].decode()) in found._waiting

        eventually(is_waiting)

    @property
    def reader(self) -> int:
        """The thread that reads."""
        found = self.locks._session.driver.inboxes._reader.get("reader")
        return 0 if found is None else found.thread

    def gets(self, waiting: Any, name: str) -> None:
        """Release the lock of that name, and wait for its waiter's turn to end."""
        self.held.pop(name).release()
        waiting.result(_SOON_S).release()


@pytest.fixture
def crowd(valkey_server: embedded.Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Crowd]:
    for module in (inboxes, waits):
        monkeypatch.setattr(module, "SLICE_S", _LONG_S)
    monkeypatch.setattr(inboxes, "STUCK_S", _LONG_S)
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


def once_read(crowd: Crowd, name: str) -> Any:
    """Start an acquire in another thread while the main thread reads, and interrupt that by a signal."""
    eventually(lambda: crowd.reader == threading.main_thread().ident)
    waiting = crowd.wait(name)
    os.kill(os.getpid(), signal.SIGUSR1)
    return waiting


@pytest.mark.parametrize("how", ["granted", "timeout", "cancelled"])
def test_another_thread_reads_when_the_reader_leaves(crowd: Crowd, how: str) -> None:
    first, name = crowd.taken(), crowd.taken()
    cancel = holdfast.Cancel()
    options: dict[str, dict[str, Any]] = {"granted": {}, "timeout": {"timeout": 2.0}, "cancelled": {"cancel": cancel}}
    reading = crowd.wait(first, **options[how])
    waiting = crowd.wait(name)
    if how == "granted":
        crowd.gets(reading, first)
    else:
        cancel.set()
        with pytest.raises((holdfast.AcquireTimeout, holdfast.AcquireCancelled)):
            reading.result(_SOON_S)
    crowd.gets(waiting, name)


def test_another_thread_reads_when_an_exception_ends_the_reader(crowd: Crowd) -> None:
    first, name = crowd.taken(), crowd.taken()
    box: list[Any] = []

    def strike() -> None:
        box.append(once_read(crowd, name))

    with handled(raising):
        striking = _API.start(strike)
        with pytest.raises(Interrupted):
            crowd.locks.lock(first).acquire()
    striking.result(_SOON_S)
    crowd.gets(box[0], name)


def test_a_handler_above_the_reader_may_wait(crowd: Crowd) -> None:
    """A handler reads itself, and so hears for others, too."""
    first, second, name = crowd.taken(), crowd.taken(), crowd.taken()
    got: list[Any] = []

    def handler(_number: int, _frame: FrameType | None) -> None:
        got.append(crowd.locks.lock(second).acquire())

    def strike() -> None:
        waiting = once_read(crowd, name)
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


def test_others_take_over_from_a_reader_that_is_held_up(crowd: Crowd, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (inboxes, waits):
        monkeypatch.setattr(module, "SLICE_S", 0.1)
    monkeypatch.setattr(inboxes, "STUCK_S", 0.3)
    first, name = crowd.taken(), crowd.taken()
    over = waits.Flag()

    def strike() -> None:
        try:
            crowd.gets(once_read(crowd, name), name)
        finally:
            over.set()
        crowd.held.pop(first).release()

    with handled(lambda *_: over.wait_s(_SOON_S)):
        striking = _API.start(strike)
        crowd.locks.lock(first).acquire(timeout=_SOON_S).release()
    striking.result(_SOON_S)


@pytest.mark.parametrize("does", ["raises", "waits"])
def test_an_inbox_is_given_up_in_the_middle_of_reading(
    crowd: Crowd, monkeypatch: pytest.MonkeyPatch, does: str
) -> None:
    """A message was received and not passed on: who waits for it looks for itself."""
    first, second, name = crowd.taken(), crowd.taken(), crowd.taken()
    real = Wire.read_ready
    lost: list[Any] = []

    def read_ready(wire: Wire) -> list[Any]:
        replies = real(wire)
        if replies and threading.current_thread() is threading.main_thread() and not lost:
            lost.extend(replies)
            signal.raise_signal(signal.SIGUSR1)
        return replies

    def release() -> None:
        crowd.waits(second)
        crowd.held.pop(second).release()

    def handler(number: int, frame: FrameType | None) -> None:
        if does == "raises":
            raising(number, frame)
        releasing = _API.start(release)
        crowd.locks.lock(second).acquire(timeout=_SOON_S).release()
        releasing.result(_SOON_S)

    def strike() -> None:
        eventually(lambda: crowd.reader == threading.main_thread().ident)
        waiting = crowd.wait(name)
        monkeypatch.setattr(Wire, "read_ready", read_ready)
        crowd.gets(waiting, name)
        crowd.held.pop(first).release()

    with handled(handler):
        striking = _API.start(strike)
        if does == "raises":
            with pytest.raises(Interrupted):
                crowd.locks.lock(first).acquire()
        else:
            crowd.locks.lock(first).acquire(timeout=_SOON_S).release()
        striking.result(_SOON_S)
    assert lost


# An exception between the making of a socket and its first name leaves it to the collector.
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_a_long_wait_does_not_keep_the_watchdog_awake(
    valkey_server: embedded.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is due, and the thread that waits reads: a slow machine has fewer rounds, never more."""
    rounds = 0
    usual = Watchdog._round
    name = unique("reader")

    def turns(client: holdfast.Client, count: int) -> None:
        for _ in range(count):
            with client.lock(name):
                time.sleep(0.002)

    with holdfast.connect(valkey_server.url, tenure=0) as mine, holdfast.connect(valkey_server.url, tenure=0) as other:

        def counted(self: Watchdog, *eyes: Any) -> None:
            nonlocal rounds
            rounds += self.driver is mine._session.driver
            usual(self, *eyes)

        for each in [_API.start(turns, client, 60) for client in (mine, other)]:
            each.result(_SOON_S)
        with other.lock(name):
            monkeypatch.setattr(Watchdog, "_round", counted)
            waiting = _API.start(turns, mine, 1)
            time.sleep(0.5)
            before = rounds
            time.sleep(0.5)
            assert rounds - before <= 2
        waiting.result(_SOON_S)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_storm_of_signals_at_the_reader_costs_the_others_nothing(crowd: Crowd) -> None:
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


def test_a_closed_client_leaves_neither_reader_nor_those_it_reads_for(crowd: Crowd) -> None:
    waiting = [crowd.wait(crowd.taken()) for _ in range(3)]
    crowd.locks.close()
    for each in waiting:
        with pytest.raises(holdfast.ClientClosed):
            each.result(_SOON_S)


def test_without_a_descriptor_to_wake_the_reader_by(crowd: Crowd, monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted() -> Any:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(socket, "socketpair", exhausted)
    first, name = crowd.taken(), crowd.taken()
    cancel = holdfast.Cancel()
    reading = crowd.wait(first, cancel=cancel)
    waiting = crowd.wait(name)
    cancel.set()
    with pytest.raises(holdfast.AcquireCancelled):
        reading.result(_SOON_S)
    crowd.gets(waiting, name)


def test_a_child_of_fork_reads_by_itself(crowd: Crowd) -> None:
    """While a thread of its parent reads, which does not come along."""
    first, name = crowd.taken(), crowd.taken()
    reading = crowd.wait(first)
    eventually(lambda: crowd.reader != 0)
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
    crowd.gets(reading, first)


def test_an_inbox_that_has_ended_is_opened_again_by_those_who_wait(crowd: Crowd) -> None:
    first, name = crowd.taken(), crowd.taken()
    reading, waiting = crowd.wait(first), crowd.wait(name)
    assert crowd.redis.client_kill_filter(_type="pubsub")
    client = crowd.redis.zrange(f"holdfast:{{{name}}}:queue", 0, 0)[0].decode().partition(":")[0]
    eventually(lambda: crowd.redis.pubsub_numsub(f"holdfast:inbox:{client}")[0][1] == 1)
    crowd.gets(waiting, name)
    crowd.gets(reading, first)


@pytest.mark.parametrize("waited_s", [0.0, 0.3])
def test_a_holder_hears_when_no_thread_waits_any_more(crowd: Crowd, waited_s: float) -> None:
    """The thread that has read is granted the lock, and holds it: what concerns that is read by another one."""
    name = crowd.taken()
    waiting = crowd.wait(name)
    time.sleep(waited_s)
    crowd.held.pop(name).release()
    lease = waiting.result(_SOON_S)
    crowd.other.break_(name, reason="to be heard")
    assert lease.lost.wait(_SOON_S)
    assert "to be heard" in str(lease.lost.reason)


def test_a_thread_that_waits_for_long_lets_the_watchdog_sleep(crowd: Crowd, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds: list[None] = []
    real = Watchdog._round

    def counted(watchdog: Watchdog, *args: Any) -> None:
        rounds.append(None)
        real(watchdog, *args)

    monkeypatch.setattr(Watchdog, "_round", counted)
    name = crowd.taken()
    with crowd.locks.lock(unique("held")) as held:  # so that there is one
        waiting = crowd.wait(name)
        driver = crowd.locks._session.driver
        found = driver.inboxes
        eventually(lambda: id(held._record) in driver.schedule._live, "it was seen that the holder has to listen")
        eventually(lambda: found.pokes, "the watchdog leaves it to that thread")
        rounds.clear()
        time.sleep(1.0)
        assert len(rounds) <= 3
        crowd.gets(waiting, name)
        eventually(lambda: bool(found.all()[0].is_watched), "no thread waits")
        rounds.clear()
        time.sleep(1.0)
        assert len(rounds) <= 3


def test_a_tenure_goes_on_only_where_messages_come_at_once(crowd: Crowd) -> None:
    """A thread that waits reads them, and may have left when one comes."""
    name = crowd.taken()
    hears = crowd.locks._session.driver.lines.hears
    waiting = crowd.wait(name)
    for _ in range(20):
        assert not hears(f"holdfast:{{{name}}}")
        time.sleep(0.01)
    crowd.gets(waiting, name)
    eventually(lambda: hears(f"holdfast:{{{name}}}"), "no thread waits")


def test_a_subscription_that_is_interrupted_anywhere_holds_up_no_other(crowd: Crowd) -> None:
    """An exception at each bytecode of it in turn, where one of a signal handler may come up."""
    found = crowd.locks._session.driver.inboxes
    (node,) = crowd.locks._session.driver.topology.nodes()
    code = type(found)._subscribe.__code__
    number = late = 0
    while True:
        left = number

        def trace(frame: FrameType, event: str, _arg: Any) -> Any:
            nonlocal left
            if frame.f_code is not code:
                return None
            frame.f_trace_opcodes = True
            if event == "opcode":
                left -= 1
                if left < 0:
                    raise Interrupted
            return trace

        sys.settrace(trace)
        try:
            found.listen(f"interrupted {number}", node, 0.1)  # for as long as that it may hold up the other
            break  # it has fewer
        except Interrupted:
            number += 1
        except RequestFailed:
            late += 1  # no connection in that time: once more
            assert late < 100
        finally:
            sys.settrace(None)
            found.unlisten(f"interrupted {number}")
        found.drop(node)
        found._reopening.clear()  # no pauses
        _API.start(found.listen, f"other {number}", node, 5.0).result(_SOON_S)  # raises what it is held up by
        found.unlisten(f"other {number}")
        assert found.is_open(node)
        found.drop(node)
        found._reopening.clear()  # no pauses
    assert 50 < number < 1_000

"""The engine's loop by itself: acts, timers, its beginning and its end."""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast._engine import loop
from holdfast._engine.loop import READ, Engine
from holdfast._runtime.waits import ring, silent_bell
from testbed.waiting import eventually
from tests.support.peer import running_engine


@pytest.fixture
def engine() -> Iterator[Engine]:
    with running_engine() as running:
        yield running


def done(engine: Engine, *acts: Any) -> None:
    """Have them done, and wait for that."""
    ended = threading.Event()
    for act in (*acts, ended.set):
        engine.call(act)
    assert ended.wait(20)


def test_acts_are_done_in_order_and_once(engine: Engine) -> None:
    found: list[tuple[int, int]] = []

    def submit(by: int) -> None:
        for number in range(500):
            engine.call(found.append, (by, number))

    threads = [threading.Thread(target=submit, args=(by,)) for by in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    done(engine)
    for by in range(4):
        assert [number for each, number in found if each == by] == list(range(500))


def test_what_an_act_adds_comes_in_the_same_turn_behind_what_was_there(engine: Engine) -> None:
    found: list[str] = []

    def first() -> None:
        engine.soon(found.append, "soon")
        engine.soon(lambda: engine.soon(found.append, "later"))
        found.append("first")

    done(engine, first)
    eventually(lambda: len(found) == 3)
    assert found == ["first", "soon", "later"]


def test_an_act_that_raises_is_shown_and_ends_no_other(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: shown.append(args.exc_type))
    found: list[int] = []

    def wrong() -> None:
        raise ValueError

    engine.call(lambda: engine.later(0.0, wrong))
    done(engine, wrong, lambda: found.append(1))
    eventually(lambda: len(shown) == 2, "the timer's, too")
    assert found == [1] and shown == [ValueError, ValueError]


def test_a_sleeping_loop_is_woken(engine: Engine) -> None:
    done(engine)
    for _ in range(20):
        eventually(lambda: engine.asleep, "it sleeps")
        began = time.monotonic()
        done(engine)
        assert time.monotonic() - began < loop._SLEEP_MAX_S - 1, "it slept on, to the end of its longest sleep"


def test_timers_come_in_order_and_not_when_they_are_forgotten(engine: Engine) -> None:
    found: list[str] = []

    def begin() -> None:
        engine.later(0.03, found.append, "third")
        engine.later(0.01, found.append, "first")
        engine.forget(engine.later(0.01, found.append, "forgotten"))
        timer = engine.later(0.02, found.append, "second")
        engine.later(0.04, engine.forget, timer)
        engine.later(0.05, found.append, "last")

    done(engine, begin)
    eventually(lambda: "last" in found)
    assert found == ["first", "second", "third", "last"]


def test_the_loop_wakes_for_a_timer_that_is_set_by_what_a_timer_has_said(engine: Engine) -> None:
    found: list[str] = []
    done(engine, lambda: engine.later(0.01, engine.soon, engine.later, 0.01, found.append, "on time"))
    eventually(lambda: bool(found), "it was not slept over", patience_s=loop._SLEEP_MAX_S / 2)


def test_forgotten_timers_do_not_pile_up(engine: Engine) -> None:
    def begin() -> None:
        for _ in range(10_000):
            engine.forget(engine.later(3_600, done))

    done(engine, begin)
    assert len(engine._timers) < 3_000


def test_the_loop_does_not_wake_for_forgotten_timers(engine: Engine) -> None:
    def begin() -> None:
        for number in range(20):
            engine.forget(engine.later(0.01 * (number + 1), number.bit_length))

    done(engine, begin)
    before = engine.turns
    time.sleep(0.3)
    assert engine.turns - before < 10


def test_acts_of_a_flood_let_timers_and_sockets_have_their_turn(engine: Engine) -> None:
    found: list[str] = []
    held = threading.Event()
    engine.call(held.wait, 20)
    engine.call(lambda: engine.later(0.0, found.append, "timer"))
    for _ in range(2 * loop._ACTS_MAX):
        engine.call(found.append, "act")
    held.set()
    done(engine)
    assert "timer" in found and "act" in found[found.index("timer") :], "a timer that was due waited for all acts"


def test_a_link_writes_once_at_the_end_of_a_turn(engine: Engine) -> None:
    found: list[str] = []

    class Link:
        def ready(self, mask: int) -> None:
            raise AssertionError

        def write(self) -> None:
            found.append("flush")

    def send() -> None:
        engine.flushes[Link()] = None
        engine.soon(found.append, "act")

    done(engine, send)
    eventually(lambda: len(found) == 2)
    assert found == ["act", "flush"]


def test_a_socket_that_has_ended_tells_nothing(engine: Engine) -> None:
    found: list[int] = []
    one, other = socket.socketpair()

    class Link:
        def ready(self, mask: int) -> None:
            found.append(mask)
            one.recv(10)

        def write(self) -> None:
            pass

    with one, other:
        done(engine, lambda: engine.register(one.fileno(), Link()), lambda: engine.watch(one.fileno(), READ))
        other.send(b"x")
        eventually(lambda: len(found) == 1)
        done(engine, lambda: engine.unregister(one.fileno()), lambda: engine.unregister(one.fileno()))
        other.send(b"x")
        done(engine)
        assert len(found) == 1
        engine.watch(one.fileno(), READ)  # too late, and of no consequence


def test_a_signal_handler_may_submit_amid_a_submission(engine: Engine) -> None:
    found: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda *_: engine.call(found.append, -1))
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    try:
        for number in range(20_000):
            engine.call(found.append, number)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    done(engine)
    assert [number for number in found if number >= 0] == list(range(20_000))
    assert -1 in found


def test_its_thread_ends_with_the_last_client_and_begins_with_the_next() -> None:
    engine = Engine()
    for _ in range(3):
        one, other = object(), object()
        engine.enter(one)
        engine.enter(other)
        done(engine)
        thread = engine.thread
        assert thread is not None and thread.name == "holdfast" and thread.daemon
        engine.call(engine.leave, one)
        done(engine)
        assert engine.thread is thread, "it goes on while there is a client"
        began = time.monotonic()
        engine.call(engine.leave, other)
        thread.join(20)
        assert time.monotonic() - began < loop._SLEEP_MAX_S - 1, "it slept first, to the end of its longest sleep"
        assert not thread.is_alive()
        assert not engine._running and engine._bell is None


def test_what_was_asked_for_in_its_last_turn_is_written_and_not_kept() -> None:
    engine = Engine()
    ours, peer = socket.socketpair()
    written = threading.Event()

    class Link:
        def ready(self, mask: int) -> None:
            engine.flushes[self] = None

        def write(self) -> None:
            written.set()

    def begin() -> None:
        engine.register(ours.fileno(), Link())
        engine.watch(ours.fileno(), READ)
        peer.send(b"x")

    engine.call(begin)
    assert written.wait(20)
    ours.close()
    peer.close()
    eventually(lambda: engine.thread is None)
    assert not engine.flushes


def test_what_is_submitted_while_it_ends_is_done() -> None:
    found: list[int] = []
    engine = Engine()
    for number in range(300):
        client = object()
        engine.enter(client)
        engine.call(engine.leave, client)
        engine.call(found.append, number)
    eventually(lambda: len(found) == 300)
    assert found == list(range(300))
    eventually(lambda: engine.thread is None)


def test_what_is_submitted_while_it_ends_for_good_is_done() -> None:
    found: list[int] = []

    class Ending(Engine):
        def _tear_down(self) -> None:
            super()._tear_down()
            if not found:
                self.call(found.append, 1)

    engine = Ending()
    client = object()
    engine.enter(client)
    engine.call(engine.leave, client)
    eventually(lambda: found == [1])
    eventually(lambda: engine.thread is None)


def test_a_handler_that_raises_amid_a_start_keeps_no_other_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[int] = []
    engine = Engine()

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(loop, "start_thread", interrupted)
        engine.call(found.append, 1)
    engine.call(found.append, 2)
    eventually(lambda: found == [1, 2])
    eventually(lambda: engine.thread is None)


def test_where_no_thread_can_be_started_those_who_wait_do_its_work(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine()
    client = object()
    engine.enter(client)
    with monkeypatch.context() as patch:

        def refuse(_thread: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        patch.setattr(threading.Thread, "start", refuse)
        bell, who = silent_bell(), list[int]()
        engine.call(lambda: who.append(threading.get_ident()))
        engine.call(engine.later, 0.01, ring, bell)
        assert not engine.runs() and "can't start" in str(engine.trouble)
        assert engine.wait(bell, 20) and who == [threading.get_ident()]
        assert not engine.wait(bell, 0.05)
    assert engine.runs() and engine.trouble is None
    engine.call(engine.leave, client)
    eventually(lambda: engine.thread is None and not engine._acts)


def test_where_no_thread_can_be_started_what_the_last_client_leaves_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a socket's reply ends it, at the end of a turn: who waited for that turns no more."""
    engine, client, found = Engine(), object(), list[str]()
    near, far = socket.socketpair()

    class Link:
        def ready(self, _mask: int) -> None:
            engine.unregister(near.fileno())
            engine.leave(client)
            engine.soon(found.append, "left")
            ring(bell)

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    bell = silent_bell()
    with near, far, monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        engine.enter(client)
        engine.call(engine.register, near.fileno(), Link())
        engine.call(engine.watch, near.fileno(), READ)
        far.send(b"reply")
        assert engine.wait(bell, 20)
    assert found == ["left"]
    assert engine._poller is None, "it keeps no descriptor"


@pytest.mark.parametrize("taker", ["the thread itself", "another thread"])
def test_a_handler_that_raises_leaves_no_act_half_done_where_callers_do_its_work(
    taker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever thread the system gives the signal to, the main thread runs the handler."""

    class Interruption(BaseException):
        pass

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    def interrupt(*_: object) -> None:
        raise Interruption

    def act(number: int) -> None:
        begun.append(number)
        inside.set()
        time.sleep(0.001)
        sum(range(10_000))
        ended.append(number)

    def send() -> None:
        while inside.wait() and not over:
            inside.clear()
            signal.pthread_kill(main if taker == "the thread itself" else threading.get_ident(), signal.SIGUSR1)

    begun, ended, interrupted, over, inside = list[int](), list[int](), 0, list[int](), threading.Event()
    main = threading.get_ident()
    sender = threading.Thread(target=send)
    sender.start()
    engine = Engine()
    client = object()
    engine.enter(client)
    before = signal.signal(signal.SIGUSR1, interrupt)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        for number in range(50):
            engine.call(act, number)
            try:
                engine.wait(silent_bell(), 20)
            except Interruption:
                interrupted += 1
    over.append(1)
    inside.set()
    sender.join()
    signal.signal(signal.SIGUSR1, before)
    assert begun == ended == list(range(50)) and interrupted == 50
    assert engine.runs()
    engine.call(engine.leave, client)
    eventually(lambda: engine.thread is None and not engine._acts)


def test_without_epoll_it_runs_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("select.epoll", raising=False)
    found: list[int] = []
    with running_engine() as engine:
        for number in range(50):
            done(engine, lambda number=number: found.append(number))
    assert found == list(range(50))

"""An exception at any bytecode: a signal handler raises, and nothing of ours stays on the server."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType
from typing import Any

import pytest

import holdfast
from holdfast import embedded
from holdfast._core import holder_notices
from holdfast._engine.link import Link
from holdfast._engine.loop import Engine
from testbed.waiting import PATIENCE_S, eventually
from tests.process.interruptions import OPERATIONS, Bench, Interrupted, Place, excused, name_for
from tests.support.bytecodes import at_bytecode, bytecodes_of, places_once, signals_come

#: Interrupted between two steps, a connection or a protocol is left to its own finalizer, which complains.
pytestmark = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning", "ignore::RuntimeWarning"
)

#: What is short enough for every run of the tests: that many bytecodes of each operation.
_SAMPLE = 14


def _interrupt(frame: FrameType, places: list[Place] | None = None) -> None:
    """Raise there, and tell where that is: the n-th bytecode of one run need not be that of another.

    (Connections that have lain idle for a moment are looked at, and the machine says for how long that is.)
    """
    place = Place(frame.f_code, frame.f_lasti, frame.f_lineno or 0)
    if excused(place):
        return
    if places is not None:
        places.append(place)
    raise Interrupted


@pytest.fixture
def bench(valkey_server: embedded.Server) -> Iterator[Bench]:
    bench = Bench(valkey_server.url)
    yield bench
    bench.tidy_up()
    bench.close()
    gc.collect()


def _carry_out(bench: Bench, operation: str, name: str, n: int | None) -> list[Place]:
    """Interrupted at the n-th bytecode; None: not at all. Returns the bytecodes that were gone through, or that one."""
    act, beside = OPERATIONS[operation]
    places: list[Place] = []
    with beside(bench, name) if beside is not None else contextlib.nullcontext():
        try:
            if n is None:
                places = bytecodes_of(lambda: act(bench, name))
            else:
                at_bytecode(n, partial(_interrupt, places=places), lambda: act(bench, name))
        except Interrupted:
            pass
        bench.tidy_up()
    return places


def _usable(bench: Bench, name: str) -> None:
    """In another thread, which does not own what this one has left locked."""
    done = threading.Event()

    def use() -> None:
        with bench.locks.lock(name):
            pass
        done.set()

    threading.Thread(target=use, daemon=True).start()
    assert done.wait(20), "the client cannot be used any more"


def _interrupt_everywhere(bench: Bench, operation: str, sample: int | None) -> None:
    _carry_out(bench, operation, name_for(operation), None)  # connections are made, modules imported
    places = _carry_out(bench, operation, name_for(operation), None)
    numbers = [n for n in places_once(places) if not excused(places[n])]
    if sample is not None:
        numbers = sorted(random.Random(operation).sample(numbers, sample))
    interrupted: dict[str, list[Place]] = {}
    for n in numbers:
        name = name_for(operation)
        places = _carry_out(bench, operation, name, n)
        if not any(map(excused, places)):  # two runs need not take the same steps: the engine's thread has its own pace
            interrupted[name] = places
    # All at once: a give-back takes its time.
    assert {str(*interrupted[name]): left for name, left in bench.gone_of(interrupted).items()} == {}
    _usable(bench, name_for(operation))


@pytest.mark.parametrize("operation", sorted(OPERATIONS))
def test_an_exception_at_some_bytecodes_leaves_nothing(operation: str, bench: Bench) -> None:
    _interrupt_everywhere(bench, operation, _SAMPLE)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "operation",
    [
        *("lock, with", "lock, releases not waited for", "lock that stays with its client", "lock handed over"),
        *("upgrade and downgrade", "condition, wait", "election, run"),
    ],
)
def test_an_exception_at_every_bytecode_leaves_nothing(operation: str, bench: Bench) -> None:
    _interrupt_everywhere(bench, operation, None)


#: Around the ends of a block, where neither `with` nor `__exit__` catch anything.
@pytest.mark.parametrize("operation", ["lock that is kept, with", "lock, with lease", "reentrant lock, with", "locked"])
def test_an_exception_at_the_ends_of_a_block_leaves_nothing(operation: str, bench: Bench) -> None:
    _carry_out(bench, operation, name_for(operation), None)
    places = _carry_out(bench, operation, name_for(operation), None)
    ends = (
        "__enter__",
        "__exit__",
        "__get__",
        "__del__",
        "_leave",
        "_exit",
        "_begin",
        "_forget",
        "push",
        "pop",
        "forget",
    )
    numbers = [n for n in places_once(places) if not excused(places[n]) and places[n].code.co_name in ends]
    interrupted = {}
    for n in numbers:
        name = name_for(operation)
        places = _carry_out(bench, operation, name, n)
        if not any(map(excused, places)):  # two runs need not take the same steps: the engine's thread has its own pace
            interrupted[name] = places
    assert {str(*interrupted[name]): left for name, left in bench.gone_of(interrupted).items()} == {}
    _usable(bench, name_for(operation))


@pytest.mark.parametrize("operation", ["lock, with", "lock that is kept, with"])
def test_a_kept_traceback_keeps_no_lock(operation: str, bench: Bench) -> None:
    act, _ = OPERATIONS[operation]
    places = _carry_out(bench, operation, name_for(operation), None)
    firsts = [
        n
        for n in places_once(places)
        if not excused(places[n])
        and places[n].code.co_name in ("_leave", "__enter__", "_granted", "_acquire", "release")
    ]
    for n in firsts[::5]:
        name = name_for(operation)
        try:
            at_bytecode(n, _interrupt, lambda name=name: act(bench, name))  # type: ignore[misc]
        except Interrupted:
            # Its traceback is alive in here, with the variables of all frames.
            assert bench.gone(name) == {}, str(places[n])


def test_a_lease_that_was_received_and_dropped_is_still_held(bench: Bench) -> None:
    """A dropped lease might be relied on: that no one keeps it does not mean that no one works under it."""
    name = name_for("drop")
    with pytest.warns(ResourceWarning, match="was dropped without release"):
        bench.locks.lock(name).acquire()
    time.sleep(0.2)
    assert bench.left(name)
    kept = bench.locks.semaphore(name, permits=2)
    lease = kept.acquire(timeout=5)
    with pytest.warns(ResourceWarning, match="was dropped without release"):
        lease = kept.acquire(timeout=5)
    time.sleep(0.2)
    assert kept.available() == 0
    lease.release()


class _Interrupting(dict[str, Any]):
    """A signal handler raises as soon as something was removed, once."""

    done = False

    def pop(self, *what: Any) -> Any:
        found = super().pop(*what)
        if not self.done:
            self.done = True
            raise Interrupted
        return found


def test_an_exception_as_an_acquire_ends_leaves_no_note_of_it(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a thread that was left among those that have a turn, no acquire would stand in line any more."""
    name, session = name_for(""), bench.locks._session
    driver, lock = session.driver, bench.locks.lock(name)
    with bench.other.lock(name):
        for _ in range(2):  # which makes it known that the lock is contended
            with contextlib.suppress(holdfast.AcquireTimeout):
                lock.acquire(timeout=0.2)
        asking = _Interrupting()
        monkeypatch.setattr(session, "asking", asking)
        with pytest.raises(Interrupted):
            lock.acquire(timeout=0.2)
        assert asking.done and not (asking or driver.standing or driver.turning)


def test_a_release_that_is_interrupted_is_told_as_no_loss(bench: Bench) -> None:
    """A release that is not waited for may have been sent: it is sent once more, and one of both finds nothing."""
    lost: dict[str, list[holdfast.LeaseLost]] = {}

    def held() -> Any:
        name = name_for("late")
        lease = bench.locks.lock(name, confirm_release=False).acquire()
        lost[name] = []
        lease.on_lost(lost[name].append)
        return lease

    held().release()
    places = bytecodes_of(held().release)
    for number in places_once(places):
        if not excused(places[number]) and places[number].code.co_filename.endswith(("/link.py", "/base.py")):
            lease = held()
            with contextlib.suppress(Interrupted):
                at_bytecode(number, _interrupt, lease.release)
            if lease.state is holdfast.LeaseState.HELD:
                lease.release()  # it went another way than before, and was interrupted earlier
    assert bench.gone_of(lost) == {}
    eventually(lambda: not bench.locks._session.driver.releasing.latest, "what comes behind them waits for none")
    with bench.locks.lock(name_for("late"), confirm_release=False):
        pass
    bench.close()  # waits for their answers
    assert {name: errors for name, errors in lost.items() if errors} == {}


def test_a_loss_is_told_though_a_handler_raises_in_who_has_found_it(bench: Bench) -> None:
    def find(lease: Any, told: list[Any], number: int) -> list[Place]:
        """Find that its time is over; interrupted at that bytecode, if there is one."""
        record = lease._record

        def strike(_frame: FrameType) -> None:
            if hasattr(record, "unended") or not record.alive:  # else a function of Python is just returning
                raise Interrupted

        lease.on_lost(told.append)
        record.deadline = 0.0
        if number < 0:
            return bytecodes_of(lambda: lease.held)
        with contextlib.suppress(Interrupted):
            at_bytecode(number, strike, lambda: lease.held)
        return []

    def acquired() -> Any:
        return bench.locks.lock(name_for("loss")).acquire()

    for number, place in enumerate(find(acquired(), [], -1)):
        if place.offset in signals_come(place.code):
            lease, told = acquired(), list[Any]()
            find(lease, told, number)
            assert not lease.held, place
            assert lease.lost.wait(PATIENCE_S), place
            eventually(partial(len, told), f"it was told: {place}")
            assert len(told) == 1, place


def test_looking_at_exit_ends_no_block(bench: Bench) -> None:
    lock = bench.locks.lock(name_for("look"))
    with lock as lease:
        assert hasattr(lock, "__exit__") and hasattr(lease, "__exit__")
        assert callable(lock.__exit__)
        lease.ensure_held()
        with bench.locks.semaphore(lock.name + "s", permits=2) as other:
            other.ensure_held()
        lease.ensure_held()
    lease = lock.__enter__()
    assert hasattr(lock, "__exit__")
    lease.ensure_held()
    lock.__exit__(None, None, None)
    with contextlib.ExitStack() as stack:
        lease = stack.enter_context(lock)
        lease.ensure_held()
    assert lease.state is holdfast.LeaseState.RELEASED


def test_signals_at_random_moments_leave_nothing(bench: Bench) -> None:
    """Real signals, as many as fit into a second or two, in the main thread."""
    assert threading.current_thread() is threading.main_thread()
    kept = bench.locks.lock(name_for("signals"))

    def leased(name: str) -> None:
        with bench.locks.lock(name).acquire(timeout=10):
            pass

    def entered(make: Callable[[str], Any]) -> Callable[[str], None]:
        def enter(name: str) -> None:
            with make(name):
                pass

        return enter

    on_kept = entered(lambda name: kept)
    actions: list[Callable[[str], None]] = [
        on_kept,
        leased,
        entered(lambda name: bench.locks.lock(name)),
        entered(lambda name: bench.locks.semaphore(name, permits=2)),
        entered(lambda name: bench.locks.rwlock(name).read()),
    ]
    for action in actions:
        action(name_for("signals"))  # imports what it needs: a signal while that is compiled is a SystemError
    choice = random.Random(11)
    armed = False

    def handler(number: int, frame: FrameType | None) -> None:
        nonlocal armed
        if armed:
            armed = False
            raise Interrupted

    before = signal.signal(signal.SIGALRM, handler)
    names: dict[str, None] = {}
    hits = 0
    try:
        until = time.monotonic() + 2.0
        while time.monotonic() < until:
            action = choice.choice(actions)
            name = kept.name if action is on_kept else name_for("signals")
            names[name] = None
            armed = True
            try:
                signal.setitimer(signal.ITIMER_REAL, choice.uniform(0.00001, 0.0008))
                action(name)
                armed = False
            except Interrupted:
                hits += 1
                # The lock that is kept is waited for by the next round if it was left behind.
            finally:
                armed = False
                signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert hits > 50
    assert bench.gone_of(names) == {}
    _usable(bench, kept.name)


def test_ctrl_c_leaves_nothing(valkey_server: embedded.Server) -> None:
    """SIGINT at random moments to processes that do nothing but enter and leave blocks."""
    program = (
        "import sys, holdfast\n"
        "locks = holdfast.connect(sys.argv[1], ttl=60)\n"
        "lock = locks.lock(sys.argv[2])\n"
        "print('on', flush=True)\n"
        "while True:\n"
        "    with lock:\n"
        "        pass\n"
    )
    bench = Bench(valkey_server.url)
    choice = random.Random(12)
    try:
        running: list[tuple[str, Any]] = []
        for _ in range(6):
            name = name_for("sigint")
            process = subprocess.Popen(
                [sys.executable, "-c", program, valkey_server.url, name],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            running.append((name, process))
        for _, process in running:
            assert process.stdout.readline() == b"on\n"
            time.sleep(choice.uniform(0.0, 0.05))
            os.kill(process.pid, signal.SIGINT)
        for name, process in running:
            try:
                _, said = process.communicate(timeout=5)
            except subprocess.TimeoutExpired:
                # Python prints and drops what a handler raises within a finalizer, and every block ends with one.
                os.kill(process.pid, signal.SIGINT)
                _, said = process.communicate(timeout=30)
                assert b"Exception ignored in" in said
            assert b"KeyboardInterrupt" in said
            assert bench.gone(name) == {}
    finally:
        bench.close()
        for _, process in running:
            if process.poll() is None:
                process.kill()
                process.communicate()


class _Deadline(TimeoutError):
    """A time limit of the program's, raised by its handler; an OSError, as those of a broken connection."""


def _limit(_number: int, _frame: object) -> None:
    raise _Deadline


@pytest.fixture
def limited(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[type, str], None]]:
    """Let the handler run in that method of the next one that comes to it."""
    before = signal.signal(signal.SIGUSR1, _limit)

    def limit(kind: type, method: str) -> None:
        real = getattr(kind, method)

        def interrupted(self: Any, *args: Any) -> Any:
            if threading.current_thread() is threading.main_thread():
                monkeypatch.setattr(kind, method, real)
                signal.raise_signal(signal.SIGUSR1)
            return real(self, *args)

        monkeypatch.setattr(kind, method, interrupted)

    yield limit
    monkeypatch.undo()
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("method", ["_write_some", "_receive"])
def test_what_a_handler_raises_is_no_answer_of_a_server(
    limited: Callable[[type, str], None],
    valkey_server: embedded.Server,
    unique_name: str,
    method: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A lease that is held for this long has its client listen, and then the main thread does not read.
    monkeypatch.setattr(holder_notices, "LOOK_S", 3_600.0)
    with holdfast.connect(valkey_server.url) as locks:
        lock = locks.lock(unique_name)
        lock.acquire().release()
        limited(Link, method)
        until = time.monotonic() + 60
        with pytest.raises(_Deadline):
            # While a release is not answered, it is the engine that reads, and perhaps also for the next acquire.
            while time.monotonic() < until:
                lock.acquire().release()
        lock.acquire(timeout=10).release()


def test_what_a_handler_raises_in_close_comes_out_and_the_next_close_goes_on(
    limited: Callable[[type, str], None], valkey_server: embedded.Server, unique_name: str
) -> None:
    locks = holdfast.connect(valkey_server.url, ttl=600)
    lease = locks.lock(unique_name).acquire()
    limited(Engine, "wait")
    with pytest.raises(_Deadline):
        locks.close()
    locks.close()
    assert lease.state.name == "LOST"
    with holdfast.connect(valkey_server.url) as others:
        others.lock(unique_name).acquire(timeout=10).release()

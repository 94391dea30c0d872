"""Faults of the process while acquires of one client wait in a line, and hand the lock on among themselves.

Four acquires of one lock in one client make the shortest line in which everything happens: the first holds, in no line;
the second finds it, begins the line, and asks the server; the third passes; the fourth is handed what the third had.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from functools import partial
from types import FrameType
from typing import Any, TypeAlias

import pytest
import redis

import holdfast.asyncio
from holdfast import embedded
from holdfast._core import tenure
from holdfast._core.record import LeaseRecord
from testbed.waiting import eventually
from tests.process.interruptions import Bench, Interrupted, excused, name_for
from tests.support.bytecodes import Place, at_bytecode, bytecodes_of, places_once
from tests.support.forked import in_child

pytestmark = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning", "ignore::RuntimeWarning"
)

#: As long as may be: on a busy machine, too, a tenure is not over before the next one has it.
TENURE_S = 0.1
#: Long beside what any of them waits for.
TTL_S = 60.0
#: A lease that begins with a claim is renewed within that, which a busy machine may not manage in the usual 2 s.
CLAIM_MS = int(TTL_S * 1000)
#: How many bytecodes of each place in the line every run of the tests takes.
SAMPLE = 12
#: And the thorough ones; HOLDFAST_EVERY=1 tries all of them, which takes minutes for each.
MANY = None if os.environ.get("HOLDFAST_EVERY") == "1" else 100
#: Places in the line, and who stands there.
PLACES = {1: "asks the server", 2: "passes, and hands on", 3: "is handed it on"}


def standing(client: Any) -> int:
    """How many turns wait in the lines of that client."""
    return sum(line.behind() for line in list(client._session.driver.lines.values()))


# ---------------------------------------------------------------------- threads


class Crowd:
    """The other three threads. `place`: where in the line the thread stands that `beside` is used in."""

    def __init__(self, bench: Bench, place: int, options: dict[str, Any]) -> None:
        self.locks = bench.locks
        self.place = place
        self.options = options

    @contextlib.contextmanager
    def beside(self, name: str) -> Iterator[None]:
        """While the block runs the others come, and the first lets go when all of them are there."""
        came = threading.Semaphore(0)
        entered = [threading.Event() for _ in range(4)]
        done: list[int] = []

        inside: list[int] = []
        wrong: list[str] = []

        def take(place: int) -> None:
            try:
                with self.locks.lock(name, **self.options) as lease:
                    inside.append(place)
                    entered[place].set()
                    if place == 0:
                        came.acquire(timeout=60)
                    time.sleep(0.001)
                    lease.ensure_held()
                    inside.remove(place)
                    assert not inside
                done.append(place)
            except BaseException as error:
                wrong.append(f"{place}: {error!r}")

        threads = [threading.Thread(target=take, args=(place,), daemon=True) for place in range(4)]
        threads[0].start()
        assert entered[0].wait(20)
        queued = self.locks.lock(name).waiters
        for place in range(1, self.place):
            threads[place].start()
            eventually(lambda place=place: queued() >= place)  # type: ignore[misc]

        def others() -> None:
            # Who is interrupted may never come, and what is interrupted in its place may stand there already.
            self._until(lambda: queued() >= self.place, 0.5)
            for place in range(self.place + 1, 4):
                threads[place].start()
                self._until(lambda place=place: queued() >= place - 1, 20)  # type: ignore[misc]
            came.release()

        conductor = threading.Thread(target=others, daemon=True)
        conductor.start()
        try:
            yield
        finally:
            conductor.join(30)
            for place, thread in enumerate(threads):
                if place != self.place:
                    thread.join(30)
            assert not wrong
            assert sorted(done) == [place for place in range(4) if place != self.place], "each got its turn"

    @staticmethod
    def _until(condition: Callable[[], bool], seconds: float) -> None:
        until = time.monotonic() + seconds
        while not condition() and time.monotonic() < until:
            time.sleep(0.001)


@pytest.fixture
def bench(valkey_server: embedded.Server) -> Iterator[Bench]:
    bench = Bench(valkey_server.url, tenure=TENURE_S)
    for client in (bench.locks, bench.other):
        client._session.settings = client._session.settings._replace(claim_ms=CLAIM_MS)
    yield bench
    bench.tidy_up()
    bench.close()
    gc.collect()


def _act(bench: Bench, name: str, options: dict[str, Any]) -> None:
    lease = bench.locks.lock(name, **options).acquire(timeout=30)
    bench.reached.append(lease)
    lease.release()


def _in_lines(places: list[Place]) -> list[int]:
    """The numbers of the bytecodes in which the line and its leases are changed, and of those that call them."""
    names = ("tenure.py", "exclusive.py", "record.py", "acquirable.py", "lease.py", "kernel.py")
    return [n for n in places_once(places) if places[n].code.co_filename.endswith(names) and not excused(places[n])]


def _interrupt(frame: FrameType, bench: Bench, at: list[Place]) -> None:
    place = Place(frame.f_code, frame.f_lasti, frame.f_lineno or 0)
    if not excused(place):
        at.append(place)
        raise Interrupted


def _use_locks(frame: FrameType, bench: Bench, at: list[Place]) -> None:
    """Use the same client, and another one, as a signal handler may."""
    at.append(Place(frame.f_code, frame.f_lasti, frame.f_lineno or 0))
    with bench.locks.lock(name_for("line")):
        pass
    bench.other.lock(name_for("line")).acquire().release()


def _interrupt_everywhere(
    bench: Bench, place: int, sample: int | None, options: dict[str, Any], hook: Callable[..., None] = _interrupt
) -> None:
    crowd = Crowd(bench, place, options)
    places: list[Place] = []
    for _ in range(2):  # connections are made, modules imported
        name = name_for("line")
        with crowd.beside(name):
            places = bytecodes_of(partial(_act, bench, name, options))
        bench.tidy_up()
    assert any(each.code.co_filename == tenure.__file__ and each.code.co_name == "hand_on" for each in places)
    numbers = _in_lines(places)
    if sample is not None:
        numbers = sorted(random.Random(f"{place} {options}").sample(numbers, min(sample, len(numbers))))
    names: dict[str, str] = {}
    for number in numbers:
        name = name_for("line")
        at: list[Place] = []
        with crowd.beside(name):
            with contextlib.suppress(Interrupted):
                at_bytecode(number, partial(hook, bench=bench, at=at), partial(_act, bench, name, options))
            names[name] = str(*at)
            bench.tidy_up()
    assert {names[name]: left for name, left in bench.gone_of(names).items()} == {}
    assert not standing(bench.locks)


#: What changes how a lease begins or ends.
_OPTIONS: list[dict[str, Any]] = [{"cache_for": 0.5}, {"confirm_release": False}, {"renew": False}]


@pytest.mark.parametrize("place", PLACES, ids=PLACES.get)
def test_an_exception_at_some_bytecodes_costs_no_one_its_turn(bench: Bench, place: int) -> None:
    _interrupt_everywhere(bench, place, SAMPLE, {})


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("place", "options"),
    [*((place, {}) for place in PLACES), *((2, options) for options in _OPTIONS)],
    ids=lambda each: PLACES.get(each, "") if isinstance(each, int) else str(each),
)
def test_an_exception_at_many_bytecodes_costs_no_one_its_turn(
    bench: Bench, place: int, options: dict[str, Any]
) -> None:
    _interrupt_everywhere(bench, place, MANY, options)


@pytest.mark.parametrize("sample", [SAMPLE // 2, pytest.param(MANY, marks=pytest.mark.thorough)], ids=["some", "many"])
@pytest.mark.parametrize("place", PLACES, ids=PLACES.get)
def test_a_handler_that_uses_locks_costs_no_one_its_turn(bench: Bench, place: int, sample: int | None) -> None:
    _interrupt_everywhere(bench, place, sample, {}, _use_locks)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns wait in their line: after a second, which a busy machine may take, they would ask the server themselves."""
    monkeypatch.setattr(tenure, "ALONE_MS", int(TTL_S * 1000))


def _four(locks: Any, name: str) -> tuple[Any, Callable[[], None]]:
    """A lease of the third in a line, with a fourth behind it; and what lets that one go on, and waits for all."""
    first = locks.lock(name).acquire()
    queued = locks.lock(name).waiters
    got: list[Any] = []
    leases = ThreadPoolExecutor(4)
    second = leases.submit(locks.lock(name).acquire, 30)
    eventually(lambda: queued() == 1)
    third = leases.submit(locks.lock(name).acquire, 30)
    eventually(lambda: queued() == 2)
    fourth = leases.submit(locks.lock(name).acquire, 30)
    eventually(lambda: queued() == 3)
    first.release()
    second.result(30).release()
    lease = third.result(30)

    def rest() -> None:
        got.append(fourth.result(30))
        got[0].release()
        leases.shutdown()

    return lease, rest


@pytest.mark.usefixtures("patient")
def test_a_lease_outlives_the_thread_at_the_head_of_its_line(bench: Bench) -> None:
    """The thread at the head ends; another thread releases the lease, and the next in the line has it."""
    name = name_for("line")
    holders: list[Any] = []

    def hold() -> None:
        holders.extend(_four(bench.locks, name))

    thread = threading.Thread(target=hold)
    thread.start()
    thread.join(60)
    lease, rest = holders
    assert standing(bench.locks) == 1
    lease.ensure_held()
    lease.release()
    rest()
    assert bench.gone(name) == {} and not standing(bench.locks)


class _Leaving(dict[Any, LeaseRecord]):
    """The entry of the second that comes is there before that of the first one goes."""

    def __init__(self) -> None:
        self.came, self.went = threading.Event(), threading.Event()

    def __setitem__(self, key: Any, record: LeaseRecord) -> None:
        is_second = bool(self)
        super().__setitem__(key, record)
        if is_second:
            self.came.set()
            assert self.went.wait(30)

    def pop(self, key: Any, *default: Any) -> Any:
        assert self.came.wait(30)
        found = super().pop(key, *default)
        self.went.set()
        return found


@pytest.mark.usefixtures("patient")
def test_a_lease_is_released_before_the_release_that_handed_it_on_has_returned(bench: Bench) -> None:
    """Both have one token: what is noted of the first release is not taken for what is noted of the second one."""
    name = name_for("line")
    lease, rest = _four(bench.locks, name)
    bench.locks._session.driver.leaving = _Leaving()
    thread = threading.Thread(target=lease.release)
    thread.start()
    rest()
    thread.join(30)
    assert bench.gone(name) == {} and not standing(bench.locks)


@pytest.mark.usefixtures("patient")
def test_a_child_has_no_line_and_its_parent_goes_on_with_it(bench: Bench) -> None:
    name = name_for("line")
    lease, rest = _four(bench.locks, name)

    def look() -> Any:
        found = [standing(bench.locks), lease.state.name, bench.locks.lock(name).try_acquire()]
        with bench.locks.lock(name + "-child") as own:
            return [*found, own.state.name, bench.locks.lock(name).waiters()]

    for _ in range(3):
        assert in_child(look) == [0, "LOST", None, "HELD", 0]
    lease.ensure_held()
    assert standing(bench.locks) == 1
    lease.release()
    rest()
    assert bench.gone(name) == {} and not standing(bench.locks)


def test_the_collector_releases_in_any_thread(bench: Bench) -> None:
    """Blocks of dropped generators end where the collector runs: in threads that wait in the line, or hand on."""
    name = name_for("line")
    errors: list[BaseException] = []
    inside: list[int] = []
    ended: list[int] = []

    def block(number: int) -> Generator[None]:
        try:
            with bench.locks.lock(name) as lease:
                inside.append(number)
                assert inside == [number]
                try:
                    yield
                finally:
                    lease.ensure_held()
                    inside.remove(number)
        finally:
            ended.append(number)

    def work(number: int) -> None:
        try:
            for count in range(1, 11):
                generator = block(number)
                next(generator)
                cycle: list[Any] = [generator]
                cycle.append(cycle)
                del generator, cycle
                gc.collect()  # or another thread is collecting
                eventually(lambda count=count: ended.count(number) == count)  # type: ignore[misc]
        except BaseException as error:
            errors.append(error)

    threshold = gc.get_threshold()
    gc.set_threshold(1)
    try:
        threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads), "a finalizer hangs"
    finally:
        gc.set_threshold(*threshold)
    assert not errors and len(ended) == 60
    assert bench.gone(name) == {} and not standing(bench.locks)


# ---------------------------------------------------------------------- tasks


_Coroutine: TypeAlias = "Coroutine[Any, Any, None]"


class _Steps:
    """A coroutine that is cancelled at its n-th await: while it waits, or together with the answer."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], n: int, with_answer: bool) -> None:
        self._coroutine = coroutine
        self.left = n
        self._with_answer = with_answer

    def __await__(self) -> Generator[Any, Any, Any]:
        inner = self._coroutine.__await__()
        task = asyncio.current_task()
        assert task is not None
        step: Callable[[], Any] = partial(next, inner)
        while True:
            try:
                future = step()
            except StopIteration as end:
                return end.value
            if not self.left:
                if self._with_answer and future is not None:
                    future.add_done_callback(lambda _: task.cancel())  # before the task itself hears of it
                else:
                    asyncio.get_running_loop().call_soon(task.cancel)
            self.left -= 1
            try:
                answer = yield future
            except BaseException as error:
                step = partial(inner.throw, error)
            else:
                step = partial(inner.send, answer)


async def _until(condition: Callable[[], Coroutine[Any, Any, bool]], seconds: float) -> None:
    until = time.monotonic() + seconds
    while not await condition() and time.monotonic() < until:
        await asyncio.sleep(0.001)


async def _tasks_in_line(
    make: Callable[[], Any],
    place: int,
    play: Callable[[Coroutine[Any, Any, None]], Coroutine[Any, Any, None]],
    lock: Any,
) -> BaseException | None:
    """Return what the one in that place, of four, ends with: it acquires by `lock`, in `play`."""
    came, entered, done = asyncio.Event(), asyncio.Event(), list[int]()
    inside: list[int] = []

    async def take(number: int, lock: Any) -> None:
        async with lock as lease:
            inside.append(number)
            try:
                if number == 0:
                    entered.set()
                    await came.wait()
                await asyncio.sleep(0.001)
                lease.ensure_held()
            finally:
                inside.remove(number)
            assert not inside
        done.append(number)

    tasks = [asyncio.create_task(take(0, make()))]
    await asyncio.wait_for(entered.wait(), 20)

    async def there() -> bool:
        waiting = sum(not task.done() for task in tasks) - 1
        return bool(await lock.waiters() >= waiting)

    for number in range(1, 4):
        coroutine = play(take(number, lock)) if number == place else take(number, make())
        tasks.append(asyncio.create_task(coroutine))
        await _until(there, 20)
    came.set()
    ended = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 40)
    assert not any(ended[:place] + ended[place + 1 :]), "each got its turn, and was alone"
    assert {*range(4)} - {place} <= {*done}
    return ended[place]


async def _cancelled_at(locks: Any, name: str, place: int, n: int, with_answer: bool) -> bool:
    """False: that many awaits there are not."""
    left: list[int] = []

    async def play(coroutine: _Coroutine) -> None:
        steps = _Steps(coroutine, n, with_answer)
        try:
            await steps
        finally:
            left.append(steps.left)

    end = await _tasks_in_line(partial(locks.lock, name), place, play, locks.lock(name))
    assert end is None or isinstance(end, asyncio.CancelledError)
    return left[0] < 0


@pytest.mark.parametrize("with_answer", [False, True], ids=["waiting", "with the answer"])
@pytest.mark.parametrize("place", PLACES, ids=PLACES.get)
def test_a_cancellation_at_any_await_costs_no_one_its_turn(
    valkey_server: embedded.Server, bench: Bench, place: int, with_answer: bool
) -> None:
    names: list[str] = []

    async def main() -> int:
        async with holdfast.asyncio.connect(valkey_server.url, ttl=TTL_S, tenure=TENURE_S) as locks:
            for n in range(60):
                names.append(name_for("line"))
                if not await _cancelled_at(locks, names[-1], place, n, with_answer):
                    break
            assert not standing(locks)
            assert bench.gone_of(names) == {}
            return n

    assert 2 <= asyncio.run(main()) < 59


@pytest.mark.parametrize("options", [{}, {"cache_for": 0.5}], ids=str)
@pytest.mark.parametrize("place", PLACES, ids=PLACES.get)
def test_a_grant_that_comes_to_no_lease_is_no_one_elses(
    valkey_server: embedded.Server, bench: Bench, place: int, options: dict[str, float]
) -> None:
    """A signal handler of the event loop's thread raises when the lease has just been made."""
    name = name_for("line")

    async def main() -> None:
        async with holdfast.asyncio.connect(valkey_server.url, ttl=TTL_S, tenure=TENURE_S) as locks:
            make: Callable[[], Any] = partial(locks.lock, name, **options)  # type: ignore[arg-type]
            lock = make()
            lock._how = copy(lock._how)
            make_record, granted = lock._how.make_record, lock._granted

            def interrupted(*how: Any) -> Any:
                make_record(*how)
                raise Interrupted

            def interrupted_where_it_was_handed_on(asked: Any, got: Any) -> Any:
                if isinstance(got, LeaseRecord):
                    raise Interrupted
                return granted(asked, got)

            async def play(coroutine: _Coroutine) -> None:
                await coroutine

            lock._how.make_record, lock._granted = interrupted, interrupted_where_it_was_handed_on
            assert isinstance(await _tasks_in_line(make, place, play, lock), Interrupted)
            assert not standing(locks)
            assert bench.gone(name) == {}

    asyncio.run(main())


@contextlib.contextmanager
def _loop() -> Iterator[asyncio.AbstractEventLoop]:
    """An event loop in a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(20)
        loop.close()


def test_two_event_loops_and_threads_are_inside_one_at_a_time(valkey_server: embedded.Server, bench: Bench) -> None:
    """One asyncio client in two event loops, a line in each; and a client of threads."""
    name = name_for("line")
    inside: list[str] = []
    fences: list[int] = []

    def stay(who: str, lease: Any) -> None:
        inside.append(who)
        assert inside == [who]
        lease.ensure_held()
        fences.append(lease.fencing_token)
        inside.remove(who)

    locks = holdfast.asyncio.connect(valkey_server.url, ttl=TTL_S, tenure=TENURE_S)

    async def tasks(loop: int) -> None:
        async def work(number: int) -> None:
            for _ in range(10):
                async with locks.lock(name) as lease:
                    stay(f"task {loop}.{number}", lease)

        await asyncio.gather(*(work(number) for number in range(4)))

    def threads(number: int) -> None:
        for _ in range(10):
            with bench.locks.lock(name) as lease:
                stay(f"thread {number}", lease)

    with _loop() as one, _loop() as two, ThreadPoolExecutor(4) as pool:
        running: list[Any] = [asyncio.run_coroutine_threadsafe(tasks(n), loop) for n, loop in enumerate((one, two))]
        running += [pool.submit(threads, number) for number in range(4)]
        for each in running:
            each.result(60)
        assert not standing(bench.locks) and not standing(locks)
        for loop in (one, two):
            asyncio.run_coroutine_threadsafe(locks.close(), loop).result(20)
    assert len(fences) == 120 and fences == sorted(set(fences))
    assert bench.gone(name) == {}


# ---------------------------------------------------------------------- ends

_LINE = {
    "threads": """
import sys, threading, time
import holdfast

url, name = sys.argv[1:3]
locks = holdfast.connect(url, ttl=600, tenure=0.1)
lock = locks.lock(name)
leases = []

def take():
    try:
        leases.append(locks.lock(name).acquire())
    except holdfast.ClientClosed:
        pass

first = lock.acquire()
for count in range(1, 5):
    threading.Thread(target=take, daemon=True).start()
    while lock.waiters() < count:
        time.sleep(0.002)
first.release()
while not leases:
    time.sleep(0.002)
leases[0].release()
while len(leases) < 2:
    time.sleep(0.002)
print(lock.waiters(), len(leases), flush=True)
""",
    "asyncio": """
import asyncio, sys
import holdfast.asyncio

url, name = sys.argv[1:3]
locks = holdfast.asyncio.connect(url, ttl=600, tenure=0.1)
lock = locks.lock(name)
leases, tasks = [], []

async def take():
    leases.append(await locks.lock(name).acquire())

async def main():
    first = await lock.acquire()
    for count in range(1, 5):
        tasks.append(asyncio.create_task(take()))
        while await lock.waiters() < count:
            await asyncio.sleep(0.002)
    await first.release()
    while not leases:
        await asyncio.sleep(0.002)
    await leases[0].release()
    while len(leases) < 2:
        await asyncio.sleep(0.002)
    print(await lock.waiters(), len(leases), flush=True)

""",
}
#: What comes behind it, and what is said on stderr: nothing of ours.
_ENDS = {
    "threads": {"return": "", "sys.exit": "sys.exit(0)", "close": "locks.close()"},
    "asyncio": {
        "asyncio.run": "asyncio.run(main())",
        "loop.close": "loop = asyncio.new_event_loop(); loop.run_until_complete(main()); loop.close()",
        "another loop": """
async def again():
    async with locks.lock(name):
        leases[1].state is holdfast.asyncio.LeaseState.LOST or sys.exit("it is held twice")
    await locks.close()

loop = asyncio.new_event_loop(); loop.run_until_complete(main()); loop.close()
asyncio.run(again())
""",
        "no close": "loop = asyncio.new_event_loop(); loop.run_until_complete(main())",
    },
}


@pytest.mark.parametrize(("api", "end"), [(api, end) for api, ends in _ENDS.items() for end in ends])
def test_a_process_that_ends_leaves_no_line(
    valkey_server: embedded.Server, unique_name: str, api: str, end: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _LINE[api] + _ENDS[api][end], valkey_server.url, unique_name],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "2 2\n")
    assert "holdfast" not in done.stderr.replace("unclosed lease", "")
    with redis.Redis.from_url(valkey_server.url, decode_responses=True) as raw:
        eventually(lambda: not _holding(raw, unique_name))


def _holding(raw: Any, name: str) -> list[str]:
    return [key for key in raw.scan_iter(f"*{{{name}*", count=1000) if not key.endswith((":fence", ":gone"))]

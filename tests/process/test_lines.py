"""Faults of the process while acquires of one client wait in a line, and hand the lock on among themselves.

Four acquires of one lock in one client make the shortest line in which everything happens: the first holds, in no line;
the second finds it, begins the line, and asks the server; the third passes; the fourth is handed what the third had.
"""

from __future__ import annotations

import contextlib
import gc
import random
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType
from typing import Any

import pytest

from holdfast import embedded
from holdfast._core import tenure
from testbed.waiting import eventually
from tests.process.interruptions import Bench, Interrupted, excused, name_for
from tests.support.bytecodes import Place, at_bytecode, bytecodes_of, places_once

pytestmark = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning", "ignore::RuntimeWarning"
)

#: As long as may be: on a busy machine, too, a tenure is not over before the next one has it.
TENURE_S = 0.1
#: Long beside what any of them waits for.
TTL_S = 60.0
#: How many bytecodes of each place in the line every run of the tests takes.
SAMPLE = 16
#: Places in the line, and who stands there.
PLACES = {1: "asks the server", 2: "passes, and hands on", 3: "is handed it on"}


def standing(client: Any) -> int:
    """How many turns wait in the lines of that client."""
    session = client._session
    drivers = session.drivers if hasattr(session, "drivers") else [session.driver]
    return sum(line.behind() for driver in drivers for line in list(driver.lines.values()))


# ---------------------------------------------------------------------- threads


class Crowd:
    """The other three threads. `place`: where in the line the thread stands that `others` is used in."""

    def __init__(self, bench: Bench, place: int) -> None:
        self.locks = bench.locks
        self.place = place

    @contextlib.contextmanager
    def beside(self, name: str) -> Iterator[None]:
        """While the block runs the others come, and the first lets go when all of them are there."""
        came = threading.Semaphore(0)
        entered = [threading.Event() for _ in range(4)]
        done: list[int] = []

        wrong: list[str] = []

        def take(place: int) -> None:
            try:
                with self.locks.lock(name):
                    entered[place].set()
                    if place == 0:
                        came.acquire(timeout=60)
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
    yield bench
    bench.tidy_up()
    bench.close()
    gc.collect()


def _act(bench: Bench, name: str) -> None:
    lease = bench.locks.lock(name).acquire(timeout=30)
    bench.reached.append(lease)
    lease.release()


def _in_lines(places: list[Place]) -> list[int]:
    """The numbers of the bytecodes in which the line and its leases are changed, and of those that call them."""
    names = ("tenure.py", "exclusive.py", "turns.py", "record.py", "acquirable.py", "lease.py")
    return [n for n in places_once(places) if places[n].code.co_filename.endswith(names) and not excused(places[n])]


def _interrupt(frame: FrameType, at: list[Place]) -> None:
    place = Place(frame.f_code, frame.f_lasti, frame.f_lineno or 0)
    if not excused(place):
        at.append(place)
        raise Interrupted


def _interrupt_everywhere(bench: Bench, place: int, sample: int | None) -> None:
    crowd = Crowd(bench, place)
    places: list[Place] = []
    for _ in range(2):  # connections are made, modules imported
        name = name_for("line")
        with crowd.beside(name):
            places = bytecodes_of(partial(_act, bench, name))
        bench.tidy_up()
    assert any(each.code.co_filename == tenure.__file__ and each.code.co_name == "hand_on" for each in places)
    numbers = _in_lines(places)
    if sample is not None:
        numbers = sorted(random.Random(place).sample(numbers, sample))
    names: dict[str, str] = {}
    for number in numbers:
        name = name_for("line")
        with crowd.beside(name):
            at: list[Place] = []
            with contextlib.suppress(Interrupted):
                at_bytecode(number, partial(_interrupt, at=at), partial(_act, bench, name))
            names[name] = str(*at)
            bench.tidy_up()
    assert {names[name]: left for name, left in bench.gone_of(names).items()} == {}
    assert not standing(bench.locks)


@pytest.mark.parametrize("place", PLACES, ids=PLACES.get)
def test_an_exception_at_some_bytecodes_costs_no_one_its_turn(bench: Bench, place: int) -> None:
    _interrupt_everywhere(bench, place, SAMPLE)


@pytest.mark.thorough
@pytest.mark.parametrize("place", PLACES, ids=PLACES.get)
def test_an_exception_at_every_bytecode_costs_no_one_its_turn(bench: Bench, place: int) -> None:
    _interrupt_everywhere(bench, place, None)

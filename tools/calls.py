"""Count the functions of holdfast that an acquire, a release, a wait call: `python -m tools.calls [--json]`.

Each course is played several times against a private server, with everything warm. Shown is the round with the fewest
calls: in others, what a client does from time to time is counted, too.

    called     functions called, by the thread whose course it is and by threads of holdfast's own
    elsewhere  how many of these by threads of holdfast's own
    resumed    how often coroutines and generators went on where they had stopped
    functions  different functions
    files      files that these are in

A comprehension counts as a part of its function on every version of Python. The other clients run in a process of
their own, which is not counted; neither are threads of the program whose course it is not.
"""

from __future__ import annotations

import argparse
import dis
import functools
import inspect
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any, NamedTuple

import redis

import holdfast
from holdfast import embedded

__all__ = ["COURSES", "Counted", "Counter", "count", "main", "profiled"]

_PACKAGE = os.path.dirname(holdfast.__file__) + os.sep
_ROUNDS, _WARM = 9, 5
_PATIENCE_S = 30.0
#: A thread that is to stand in line behind another one has this time to get there, s.
_IN_LINE_S = 0.05
#: A lease that has lasted for this long, s, has been stretched to its ttl, and has nothing else due for a while.
_SETTLED_S = 0.2
_LOCK = "counted"
#: The other client: each line that it reads is done, and answered by a line.
_BESIDE = """
import sys, holdfast
with holdfast.connect(sys.argv[1], tenure=0) as locks:
    for line in sys.stdin:
        if line == "acquire\\n":
            lease = locks.lock(sys.argv[2]).acquire(timeout=30)
        else:
            lease.release()
        print(flush=True)
"""


class Counted(NamedTuple):
    """What a course has called."""

    called: int
    elsewhere: int
    resumed: int
    functions: int
    files: int


@functools.cache
def _start_of(code: CodeType) -> int | None:
    """The offset at which a coroutine or generator begins; None of a function, which always begins."""
    if not code.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
        return None
    return next(each.offset for each in dis.get_instructions(code) if each.opname == "RESUME")


class Counter:
    """The profile function of all threads: counts calls of what is in `folder` while `noting` runs."""

    def __init__(self, folder: str = _PACKAGE) -> None:
        self._folder = folder
        self._noted: list[tuple[int, CodeType, bool]] | None = None
        #: The threads of the program itself.
        self.program: set[int] = set()

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        noted, code = self._noted, frame.f_code
        if noted is None or event != "call" or not code.co_filename.startswith(self._folder):
            return
        if code.co_name not in ("<listcomp>", "<setcomp>", "<dictcomp>"):
            start = _start_of(code)
            noted.append((threading.get_ident(), code, start is None or frame.f_lasti == start))

    def noting(self, course: Callable[[], Future[int]]) -> Counted:
        """Count until the thread that `course` sets to work is done: its calls, and those of threads of holdfast."""
        noted: list[tuple[int, CodeType, bool]] = []
        self._noted = noted
        try:
            thread = course().result(_PATIENCE_S)
        finally:
            self._noted = None
        ours = [(by, code, begins) for by, code, begins in noted if by == thread or by not in self.program]
        codes = {code for _, code, _ in ours}
        return Counted(
            called=sum(begins for _, _, begins in ours),
            elsewhere=sum(begins for by, _, begins in ours if by != thread),
            resumed=sum(not begins for _, _, begins in ours),
            functions=len(codes),
            files=len({code.co_filename for code in codes}),
        )


def _until(waiters: Callable[[], int], count: int) -> None:
    until = time.monotonic() + _PATIENCE_S
    while (waiting := waiters()) != count:
        if time.monotonic() > until:
            raise TimeoutError(f"{waiting} wait, not {count}")
        time.sleep(0.005)


class _Stage:
    """A client, two threads of the program, and another client in a process of its own."""

    def __init__(self, url: str, other: subprocess.Popen[str], counter: Counter, **options: Any) -> None:
        self.locks = holdfast.connect(url, **options)
        self.lock = self.locks.lock(_LOCK)
        self._server: Any = redis.Redis.from_url(url)
        self.mine, self.others = ThreadPoolExecutor(1), ThreadPoolExecutor(2)
        self._other = other
        self._counter = counter
        started = threading.Barrier(3)

        def number() -> int:
            started.wait(_PATIENCE_S)
            return threading.get_ident()

        threads = [each.submit(number) for each in (self.mine, self.others, self.others)]
        # Not those of an earlier stage: threads have the numbers of such as have ended.
        counter.program = {threading.get_ident(), *(each.result() for each in threads)}

    def close(self) -> None:
        self.mine.shutdown()
        self.others.shutdown()
        self.locks.close()
        self._server.close()

    def count(self, act: Callable[[], object]) -> Counted:
        """Count what `act` calls in a thread."""
        return self._counter.noting(lambda: self.run(act))

    def count_while(self, act: Callable[[], object], beside: Callable[[], None]) -> Counted:
        """Count what `act` calls in a thread while the main thread does something else."""

        def course() -> Future[int]:
            thread = self.run(act)
            beside()
            return thread

        return self._counter.noting(course)

    def run(self, act: Callable[[], object]) -> Future[int]:
        """Begin it; returns the number of its thread."""

        def body() -> int:
            act()
            return threading.get_ident()

        return self.mine.submit(body)

    def tell(self, word: str) -> None:
        """Have the other client acquire or release."""
        assert self._other.stdin is not None
        self._other.stdin.write(f"{word}\n")
        self._other.stdin.flush()

    def heard(self) -> None:
        """Wait until the other client has done it."""
        assert self._other.stdout is not None and self._other.stdout.readline() == "\n"

    def until_waiting(self, count: int) -> None:
        """Wait until that many stand in the queue, or in the client's own line behind it."""
        _until(self.lock.waiters, count)

    def until_queued(self, count: int) -> None:
        """Wait until that many stand in the queue on the server; what is called for this look is not counted."""
        _until(lambda: self._server.zcard(f"holdfast:{{{_LOCK}}}:queue"), count)


def _acquire(stage: _Stage) -> Counted:
    leases: list[holdfast.Lease] = []
    counted = stage.count(lambda: leases.append(stage.lock.acquire()))
    stage.run(leases[0].release).result(_PATIENCE_S)
    return counted


def _release(stage: _Stage) -> Counted:
    leases: list[holdfast.Lease] = []
    stage.run(lambda: leases.append(stage.lock.acquire())).result(_PATIENCE_S)
    return stage.count(leases[0].release)


def _idiom(locks: holdfast.Client) -> None:
    with locks.lock(_LOCK):
        pass


def _with(stage: _Stage) -> Counted:
    return stage.count(lambda: _idiom(stage.locks))


def _wait(stage: _Stage) -> Counted:
    """Wait while the other client holds it, until it releases."""
    leases: list[holdfast.Lease] = []
    stage.tell("acquire")
    stage.heard()

    def beside() -> None:
        stage.until_queued(1)
        stage.tell("release")

    counted = stage.count_while(lambda: leases.append(stage.lock.acquire()), beside)
    stage.heard()
    stage.run(leases[0].release).result(_PATIENCE_S)
    return counted


def _line(stage: _Stage) -> Counted:
    """Wait in a line of the same client, whose lease then goes to the other client and comes back.

    What the holder before costs meanwhile (a lease that was pushed is soon renewed) is no part of the course, and over
    when that begins.
    """
    leases: list[holdfast.Lease] = []
    entered, leave = threading.Event(), threading.Event()

    def ahead() -> None:
        with stage.locks.lock(_LOCK):
            entered.set()
            leave.wait(_PATIENCE_S)

    stage.tell("acquire")
    stage.heard()
    # A waiter that is alone begins no line; the second one does, and the one that is counted stands in it.
    program = [stage.others.submit(_idiom, stage.locks)]
    stage.until_waiting(1)
    program.append(stage.others.submit(ahead))
    stage.until_waiting(2)

    stage.tell("release")
    stage.heard()
    entered.wait(_PATIENCE_S)
    stage.tell("acquire")
    stage.until_waiting(1)
    time.sleep(_SETTLED_S)

    def beside() -> None:
        time.sleep(_IN_LINE_S)  # longer than a line of one client keeps others out
        leave.set()
        stage.heard()
        stage.until_queued(1)
        stage.tell("release")

    counted = stage.count_while(lambda: leases.append(stage.lock.acquire()), beside)
    stage.heard()
    stage.run(leases[0].release).result(_PATIENCE_S)
    for each in program:
        each.result(_PATIENCE_S)
    return counted


#: What is counted, and the options of its client.
COURSES: dict[str, tuple[Callable[[_Stage], Counted], dict[str, Any]]] = {
    "acquire a free lock": (_acquire, {}),
    "release it": (_release, {}),
    "with locks.lock(name)": (_with, {}),
    "wait behind another process": (_wait, {"tenure": 0}),
    "a line that passes through the server": (_line, {}),
}


@contextmanager
def _beside(url: str) -> Iterator[subprocess.Popen[str]]:
    """The other client; it ends with the block."""
    command = [sys.executable, "-c", _BESIDE, url, _LOCK]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def profiled(counter: Counter) -> Iterator[None]:
    """Have this thread, and those that start in the block, call `counter`."""
    before = sys.getprofile(), threading.getprofile()
    threading.setprofile(counter)
    sys.setprofile(counter)
    try:
        yield
    finally:
        sys.setprofile(before[0])
        threading.setprofile(before[1])


def count() -> dict[str, Counted]:
    """Play all courses; returns the round of each that called least."""
    counter = Counter()
    found: dict[str, Counted] = {}
    with profiled(counter), embedded.server(port=0) as server, _beside(server.url) as other:
        for name, (course, options) in COURSES.items():
            stage = _Stage(server.url, other, counter, **options)
            try:
                rounds = [course(stage) for _ in range(_WARM + _ROUNDS)][_WARM:]
            finally:
                stage.close()
            found[name] = min(rounds)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Print what was counted."""
    parser = argparse.ArgumentParser(prog="python -m tools.calls", description=(__doc__ or "").partition(":")[0])
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    found = count()
    if options.json:
        print(json.dumps({name: each._asdict() for name, each in found.items()}, indent=2))
        return
    print(f"| course | {' | '.join(Counted._fields)} |\n|-|{'-:|' * len(Counted._fields)}")
    for name, each in found.items():
        print(f"| {name} | {' | '.join(map(str, each))} |")


if __name__ == "__main__":
    main()

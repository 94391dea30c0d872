"""Starts lives under process faults, one after the other, strikes them from outside, judges their ends.

Each gets an API, a few faults, and a way to end. They are dealt like cards: all come before one comes again.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import json
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import redis

from rig.exits import EXITED_BY_HANDLER, EXITS, GRACEFUL, MARK, STATUS
from rig.hazards import FAULTS
from rig.history import now_ns
from rig.run import Run
from rig.state import OWN_TTL_S
from rig.watch import HUNG

__all__ = ["ALWAYS", "Crew", "judge_end", "that_count"]

T = TypeVar("T")

#: How long a life acts, s; then it looks for leaks, and ends.
_LIFE_S = (2.0, 4.0)
#: How long closing, settling and ending may take in addition, s: what hangs is found in the life itself, by its own
#: time, which is slower on a busy machine.
_END_S = 300.0
#: Beyond its own timeout an operation may take a few requests, and turns of others, s.
_BOUND_S = 12.0
#: The locks of a life that ended gracefully are free after this, s.
_FREE_S = 5.0
#: A look at those is not judged when a server or a connection had a fault within this many seconds of it.
_TROUBLE_S = 6.0
#: What Python says when a program or a library has left something undone.
_COMPLAINTS = re.compile(
    r"Traceback|Exception ignored|Task was destroyed|never awaited|coroutine ignored|^rig: |Fatal Python|Error:", re.M
)
#: What a run of some length plays. What it has not played, it says.
ALWAYS = (
    "an exception at a random bytecode",
    "release() in a handler",
    "close() in a handler",
    "Cancel.set() in a handler",
    "try_acquire() in a handler",
    "lost.is_set() in a handler",
    "a timer's signal every 10 ms",
    "SIGSTOP and SIGCONT",
    "a stop for longer than the ttl",
    "a fork amid busy threads",
    "gc.set_threshold(1)",
    "a client dropped in a cycle",
    "a lease dropped in a cycle",
    "a thread that cannot be started",
    "no descriptor left",
    "a thread that ends before its lease",
    "an ident that came again",
    "a shared Election",
    "close() at random",
    "patched by gevent",
    *(f"exit: {way}" for way in dict.fromkeys((*EXITS["threads"], *EXITS["asyncio"]))),
)


def _cards(rng: random.Random, all_of_them: Sequence[T]) -> Iterator[T]:
    while True:
        yield from rng.sample(all_of_them, len(all_of_them))


_SWALLOWED = re.compile(
    r"Exception ignored in: <function .*__del__ at .*>\nTraceback \(most recent call last\):\n"
    r"(?: .*\n)*SystemExit: \d+\n?"
)
_TRACEBACK = r"Traceback \(most recent call last\):\n(?:[ +|].*\n)+"
_THEN = (
    r"(?:During handling of the above exception, another exception occurred"
    r"|The above exception was the direct cause of the following exception):"
)


class Crew:
    """The lives of one run. `places`: how many at once; servers and wires are left in peace for `calm_s`.

    `lives`: their API, or "all"; the one that is looked at for growing memory has threads or tasks.
    """

    def __init__(
        self,
        run: Run,
        seed: int,
        places: int,
        seconds: float,
        calm_s: float,
        troubled: Callable[[int, int], bool],
        lives: str = "all",
    ) -> None:
        self._run = run
        self._random = random.Random(f"crew-{seed}")
        self._until = time.monotonic() + seconds
        self._calm_until = time.monotonic() + calm_s
        self._seconds = seconds
        self._troubled = troubled
        self._count = itertools.count(1)
        self._guard = threading.Lock()
        self._living: set[subprocess.Popen[bytes]] = set()
        self.lives = 0
        self.played: Counter[str] = Counter()
        self.wrong: list[str] = []
        apis = [("threads", way) for way in EXITS["threads"]] + [("asyncio", way) for way in EXITS["asyncio"]]
        if importlib.util.find_spec("gevent") is not None:
            apis.append(("gevent", "return"))
        apis = [each for each in apis if lives in (each[0], "all")]
        if not apis:
            raise ValueError(f"no lives of {lives}: install it, or leave --lives away")
        self._ends = _cards(self._random, apis)
        self._faults = {api: _cards(self._random, faults) for api, faults in FAULTS.items()}
        self._urls = [run.stage.url_for(100 + number) for number in range(places + 1)]
        self._threads = [threading.Thread(target=self._place, args=(number,), name="crew") for number in range(places)]
        if seconds >= 30:
            self._threads.append(threading.Thread(target=self._long, args=(places,), name="crew"))

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        """Wait for all that were started: the run may be interrupted at any point."""
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def kill(self) -> None:
        """The run is interrupted."""
        with self._guard:
            self._until = 0
            for process in self._living:
                process.kill()

    # ---- one life ----

    def _place(self, place: int) -> None:
        while not self._run.stopping.is_set() and time.monotonic() + _LIFE_S[1] < self._until:
            with self._guard:
                api, way = next(self._ends)
                known = FAULTS[api]
                faults = sorted({next(self._faults[api]) for _ in range(min(3, len(known)))})
                seconds = self._random.uniform(*_LIFE_S)
            self._guarded(place, api, faults, way, seconds)

    def _long(self, place: int) -> None:
        """Follow a life that is looked at for growing memory."""
        with self._guard:
            api = self._random.choice(["threads", "asyncio"])
        self._guarded(place, api, ["close", "cycles", "outlived"], "return", self._seconds - 12, long=True)

    def _guarded(self, *args: Any, **options: Any) -> None:
        try:
            self._live(*args, **options)
        except Exception as error:
            self._run.failures.append(f"the rig failed at a life: {type(error).__name__}: {error}")

    def _live(self, place: int, api: str, faults: list[str], way: str, seconds: float, *, long: bool = False) -> None:
        run = self._run
        number = next(self._count)
        rng = random.Random(f"{self._random.random()}")
        name = f"L{number}{api[0]}"
        config = run.life_config() | {
            "name": name,
            "log": run.log_of(name),
            "api": api,
            "faults": faults,
            "exit": way,
            "seconds": seconds,
            "bound_s": self._bound_s(seconds),
            "long": long,
            "loops": 3,
            "url": self._urls[place],
            "seed": f"{run.seed}-{name}",
        }
        described = f"{api} under {', '.join(faults)}, exit: {way}"
        run.say(f"life {name}: {described}, {seconds:.1f} s")
        with tempfile.TemporaryFile() as said:
            begin_ns = now_ns()
            with self._guard:
                if self._until == 0:
                    return  # interrupted: `kill` has been, and would not see this one
                process = subprocess.Popen(
                    [sys.executable, "-m", "rig.life", json.dumps(config)],
                    stdin=subprocess.DEVNULL,
                    stdout=said,
                    stderr=said,
                    env=run.environment,
                    cwd=Path(__file__).parent.parent,
                )
                self._living.add(process)
            try:
                status = self._follow(process, "stops" in faults, rng, seconds)
            finally:
                with self._guard:
                    self._living.discard(process)
            if run.stopping.is_set() and self._until == 0:
                return  # interrupted
            said.seek(0)
            text = said.read().decode("utf-8", "replace")
        self.lives += 1
        if api == "gevent":
            self.played["patched by gevent"] += 1
        found = list(judge_end(status, way, text, unstarted="exception" in faults))
        as_told = not found and status != HUNG
        found += self._judge_locks(name, way if as_told else "SIGKILL", begin_ns)
        self.wrong += [f"life {name} ({described}): {each}" for each in found]

    def _bound_s(self, seconds: float) -> float:
        """Return how long an operation may last beyond its timeout: `rig.watch` says whose seconds these are."""
        if time.monotonic() + seconds + _BOUND_S < self._calm_until:
            return _BOUND_S
        # A release that a server, or a new master, has not heard of leaves a lock for its ttl; and a failover takes
        # its time.
        return OWN_TTL_S + 2 * _BOUND_S

    def _follow(self, process: subprocess.Popen[bytes], stops: bool, rng: random.Random, seconds: float) -> int | None:
        """Follow a life to its end and return its exit status; None when it had to be killed."""
        begin = time.monotonic()
        while stops and time.monotonic() < begin + seconds + 1:
            if process.poll() is not None:
                break
            time.sleep(rng.uniform(0.05, 0.6))
            self._storm(process, rng)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(max(1.0, begin + seconds + _END_S - time.monotonic()))
        process.send_signal(signal.SIGABRT)  # faulthandler tells where its threads are
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5)
            return None
        process.kill()
        process.wait()
        return None

    def _storm(self, process: subprocess.Popen[bytes], rng: random.Random) -> None:
        for _ in range(rng.randint(1, 20)):
            if process.poll() is not None:
                return
            process.send_signal(signal.SIGSTOP)
            time.sleep(rng.uniform(0.001, 0.03))
            process.send_signal(signal.SIGCONT)
            time.sleep(rng.uniform(0.001, 0.02))
            self.played["SIGSTOP and SIGCONT"] += 1
        if rng.random() < 0.15:
            process.send_signal(signal.SIGSTOP)
            time.sleep(self._run.ttl_s * 1.3)
            process.send_signal(signal.SIGCONT)
            self.played["a stop for longer than the ttl"] += 1

    def _judge_locks(self, name: str, way: str, begin_ns: int) -> list[str]:
        """Find locks of the life's own that do not become free in time."""
        pattern = f"*own-{name}-*"
        until = time.monotonic() + (_FREE_S if way in GRACEFUL else 2 * self._run.ttl_s + _FREE_S)
        while found := that_count(self._run.stage.left_over(pattern), way):
            if time.monotonic() > until or (self._run.stopping.is_set() and self._until == 0):
                break
            time.sleep(0.1)
        if not found:
            return []
        with contextlib.suppress(redis.RedisError):
            self._run.stage.remove(found)
        if self._troubled(begin_ns, now_ns()):
            return []  # what could not be given back may have lasted for its ttl
        return [f"left its locks behind: {', '.join(sorted(found)[:8])}"]


def that_count(keys: list[str], way: str) -> list[str]:
    """Return the keys that count after such an end: only leases if Python ran nothing. Dead waiters are skipped."""
    return keys if way in GRACEFUL else [key for key in keys if key.endswith("}")]


def judge_end(status: int | None, way: str, text: str, *, unstarted: bool = False) -> Iterator[str]:
    """Find what is wrong with a life's end. `unstarted`: random exceptions may have left coroutines unstarted."""
    tail = text[-3500:]
    swallowed = 0
    if way in EXITED_BY_HANDLER:
        # Python ignores what a handler raises in the middle of a finalizer: then the process goes on, however it ends.
        text, swallowed = _SWALLOWED.subn("", text)
    if status is None and not swallowed:
        yield f"did not end in time:\n{tail}"
        return
    if status == HUNG:
        return  # it has told so itself
    expected = STATUS.get(way, 0)
    if status != expected and not swallowed:
        yield f"ended with {status} instead of {expected}:\n{tail}"
        return
    if unstarted:
        # An exception between the making of a coroutine and its first step leaves it unstarted; Python says so.
        text = re.sub(
            r"(?:Exception ignored in: <coroutine.*\nTraceback \(most recent call last\):\n(?: .*\n)*)?"
            r"(?:.*: )?RuntimeWarning: coroutine '.*' was never awaited\n(?:  .*\n)*"
            r"(?:RuntimeWarning: Enable tracemalloc.*\n)?",
            "",
            text,
        )
    if way == "an exception":
        text = re.sub(rf"Traceback \(most recent call last\):\n(?:[ +|].*\n)+.*{MARK}\n?", "", text)
    if way == "SIGINT":
        # With what was being handled when it came.
        text = re.sub(rf"(?:{_TRACEBACK}(?:.+\n)+\n{_THEN}\n\n)*{_TRACEBACK}KeyboardInterrupt\n?", "", text)
    if complaint := _COMPLAINTS.search(text):
        begin = text.rfind("\n", 0, complaint.start()) + 1
        last = [line for line in text.splitlines() if re.match(r"\w[\w.]*(Error|Warning|Exception)\b", line)]
        yield f"was noisy at its end ({last[-1][:90] if last else 'no error'}):\n{text[begin : begin + 2500]}"

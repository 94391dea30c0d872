"""Runs the two sales, does the harm, and checks what must hold afterwards."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import holdfast
from examples.flash_sale.screen import Screen, open_screen
from examples.flash_sale.shop import LOCK_NAME, Shop
from holdfast import embedded
from holdfast.errors import HoldfastError

__all__ = ["Report", "main", "run"]

#: The checkout.
_ROOT = Path(__file__).resolve().parents[2]

_SILENCE_S = 60.0
"""If no worker reports anything for this long, the demo has failed and says so, rather than hang."""

_UNGUARDED_S = 10.0
"""The sale without a lock can bring stock back; it is closed after this time."""

_KILL_BELOW, _STOP_BELOW = 0.8, 0.5
"""The harm is done when the stock has fallen to these parts of it."""


@dataclass(frozen=True, slots=True)
class Visit:
    """One time inside, on the clock that all processes share, ns; ``fence`` is 0 without a lock."""

    worker: int
    fence: int
    entered: int
    left: int


@dataclass
class Report:
    """What happened in one sale, and what must hold."""

    units: int
    sales: list[tuple[int, int]] = field(default_factory=list)
    units_left: int = 0
    visits: list[Visit] = field(default_factory=list)
    killed: int | None = None
    stopped: int | None = None
    refused: list[tuple[int, int, int]] = field(default_factory=list)
    """(worker, its token, the greater token that the database had seen)"""

    @property
    def oversold(self) -> int:
        """Units sold that were not there."""
        return len(self.sales) - self.units

    @property
    def overlaps(self) -> int:
        """How often a worker went inside while another one was there, its lease being valid."""
        count, inside_until = 0, 0
        for visit in sorted(self.visits, key=lambda visit: visit.entered):
            count += visit.entered < inside_until
            inside_until = max(inside_until, visit.left)
        return count

    def invariants(self) -> list[tuple[str, bool, str]]:
        """(what must hold, whether it does, figures) of the sale under the lock."""
        copies = Counter(unit for unit, _ in self.sales)
        tokens = [visit.fence for visit in sorted(self.visits, key=lambda visit: visit.entered)]
        rising = all(before < after for before, after in itertools.pairwise(tokens))
        exact = self.units_left == 0 and copies == Counter(range(1, self.units + 1))
        late = [entry for entry in self.refused if entry[0] == self.stopped]
        return [
            ("stock exact", exact, f"{len(self.sales)} sold, {self.units_left} left, each unit once"),
            ("overlaps 0", self.overlaps == 0, f"{len(self.visits)} times inside, {self.overlaps} overlaps"),
            ("tokens strictly increasing", rising, f"{len(tokens)} fencing tokens in order of entry"),
            ("killed worker did no harm", self.killed is not None, f"worker {self.killed}, the sale went on"),
            ("late write refused", len(late) >= 1, f"worker {self.stopped}, by its fencing token"),
        ]


class _Crew:
    """The worker processes, and what they say."""

    def __init__(self, orders: Sequence[dict[str, Any]]) -> None:
        self._heard: queue.SimpleQueue[tuple[int, dict[str, Any] | None]] = queue.SimpleQueue()
        self._listeners: list[threading.Thread] = []
        self.processes: list[subprocess.Popen[str]] = []
        self._orders = orders

    def __enter__(self) -> Self:
        try:
            for number, order in enumerate(self._orders):
                process = subprocess.Popen(
                    [sys.executable, "-m", "examples.flash_sale.worker", json.dumps({**order, "worker": number})],
                    cwd=_ROOT,  # where `examples` is found
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    start_new_session=True,  # Ctrl-C is for us, who end them
                )
                self.processes.append(process)
                listener = threading.Thread(target=self._listen, args=(number, process), daemon=True)
                listener.start()
                self._listeners.append(listener)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        for process in self.processes:
            process.kill()  # those that are done do not mind; a stopped one dies as well
        for process in self.processes:
            process.wait()
        for listener in self._listeners:
            listener.join()
        for process in self.processes:
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()

    def _listen(self, number: int, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            with contextlib.suppress(ValueError):  # a worker killed in mid-line
                self._heard.put((number, json.loads(line)))
        self._heard.put((number, None))

    def tell(self, number: int) -> None:
        """Let that worker go on from where it waits."""
        stdin = self.processes[number].stdin
        assert stdin is not None
        stdin.write("\n")
        stdin.flush()

    def heard(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """(worker, what it said), until all have ended. All begin when all are ready."""
        ready, ended = 0, 0
        while ended < len(self.processes):
            try:
                number, said = self._heard.get(timeout=_SILENCE_S)
            except queue.Empty:
                raise RuntimeError(f"no worker said anything for {_SILENCE_S:g} s") from None
            if said is None:
                ended += 1
                said = {"event": "ended", "status": self.processes[number].wait()}
            elif said["event"] == "ready":
                ready += 1
                if ready == len(self.processes):
                    for worker in range(len(self.processes)):
                        self.tell(worker)
            yield number, said


def sell_unguarded(screen: Screen, path: Path, units: int, workers: int) -> Report:
    """The sale without a lock."""
    report = Report(units)
    shop = Shop.create(path, units)
    screen.begin("Without a lock", units)
    with _Crew([{"path": str(path)}] * workers) as crew:
        sold, closing_at = 0, time.monotonic() + _SILENCE_S
        for number, said in crew.heard():
            if said["event"] == "sold":
                if sold == 0:
                    closing_at = time.monotonic() + _UNGUARDED_S
                sold += 1
                report.visits.append(Visit(number, 0, said["entered"], said["left"]))
                screen.progress(sold)
            elif said["event"] == "ended" and said["status"] != 0:
                raise RuntimeError(f"worker {number} failed with status {said['status']}")
            if time.monotonic() > closing_at:
                break
    screen.end()
    report.sales, report.units_left = shop.sales(), shop.units()
    shop.close()
    return report


def sell_guarded(screen: Screen, path: Path, units: int, workers: int, url: str, ttl: float) -> Report:
    """The sale under a lock, with one worker killed and another stopped while they hold it."""
    report = Report(units)
    shop = Shop.create(path, units)
    orders: list[dict[str, Any]] = [{"path": str(path), "url": url, "ttl": ttl} for _ in range(workers)]
    to_kill, to_stop = 1, 2
    orders[to_kill]["wait_at"] = int(units * _KILL_BELOW)
    orders[to_stop]["wait_at"] = int(units * _STOP_BELOW)
    screen.begin(f"With holdfast: one lock, ttl {ttl:g} s", units)
    harmed: Visit | None = None  # the last one harmed, until the lock has moved on
    with _Crew(orders) as crew:
        sold = 0
        for number, said in crew.heard():
            event = said["event"]
            if event == "sold":
                sold += 1
                screen.progress(sold)
                if said["valid"]:
                    report.visits.append(Visit(number, said["fence"], said["entered"], said["left"]))
                if harmed is not None and said["fence"] > harmed.fence:
                    after_s = (said["entered"] - harmed.left) / 1e9
                    screen.say(f"  the lock was given to worker {number} {after_s:.2f} s later")
                    if harmed.worker == to_stop:
                        crew.tell(to_stop)
                        crew.processes[to_stop].send_signal(signal.SIGCONT)
                        screen.say(f"  worker {to_stop} continues (SIGCONT) where it stopped, and writes")
                    harmed = None
            elif event == "inside":
                process = crew.processes[number]
                now = time.monotonic_ns()
                if number == to_kill:
                    process.kill()
                    report.killed = number
                    screen.say(f"  worker {number} killed (kill -9) inside, token {said['fence']}")
                else:
                    process.send_signal(signal.SIGSTOP)
                    report.stopped = number
                    screen.say(f"  worker {number} stopped (SIGSTOP) inside, token {said['fence']}")
                left = min(now, said["entered"] + said["valid_ns"])
                harmed = Visit(number, said["fence"], said["entered"], left)
                report.visits.append(harmed)
            elif event == "refused":
                report.refused.append((number, said["fence"], said["seen"]))
                screen.say(f"  late write of worker {number} refused: token {said['fence']} < {said['seen']}")
            elif event == "lost":
                screen.say(f"  worker {number} was told that its lease is lost ({said['reason']})")
            elif event == "ended":
                wanted = -signal.SIGKILL if number == to_kill and report.killed is not None else 0
                if said["status"] != wanted:
                    raise RuntimeError(f"worker {number} failed with status {said['status']}")
    screen.end()
    report.sales, report.units_left = shop.sales(), shop.units()
    shop.close()
    return report


def run(
    screen: Screen, *, units: int = 500, workers: int = 8, ttl: float = 2.0, url: str | None = None
) -> tuple[Report, Report]:
    """Both sales: (without a lock, under one). Without a ``url`` on a private server."""
    with contextlib.ExitStack() as cleanup:
        directory = Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-demo-")))
        if url is None:
            server = cleanup.enter_context(embedded.server())
            url, where = server.unix_url, f"a private {server.executable.name}, pid {server.pid}"
        else:
            where = url.rpartition("@")[2]
        with holdfast.connect(url) as locks:
            if locks.lock(LOCK_NAME).locked():  # also: is the server there?
                raise RuntimeError(f"the lock {LOCK_NAME!r} is held: does another demo run on that server?")
        screen.say(f"A flash sale: {units} units in a SQLite file, {workers} worker processes, {where}.")
        screen.say("Each worker reads the stock, thinks for 2 ms, writes it back.")
        screen.say()
        before = sell_unguarded(screen, directory / "without.sqlite", units, workers)
        screen.say(
            f"  sold {len(before.sales)} units of {units}: oversold by {before.oversold} "
            f"({before.overlaps} times inside together with another one)"
        )
        screen.say()
        after = sell_guarded(screen, directory / "with.sqlite", units, workers, url, ttl)
        shares = Counter(worker for _, worker in after.sales)
        screen.say(
            f"  sold {len(after.sales)} units of {units}; by worker: "
            + " ".join(str(shares[worker]) for worker in range(workers))
        )
        screen.say()
    return before, after


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 0 if all invariants held, 1 if not, 69 if there is no server."""
    parser = argparse.ArgumentParser(prog="python -m examples.flash_sale", description="The flash sale.")
    parser.add_argument("--units", type=int, default=500, help="units in stock, 40 or more (default %(default)s)")
    parser.add_argument("--workers", type=int, default=8, help="worker processes, 4 … 64 (default %(default)s)")
    parser.add_argument("--ttl", type=float, default=2.0, help="seconds a lease lasts (default %(default)s)")
    parser.add_argument("--url", help="a server to use (default: a private one, started for the demo)")
    parser.add_argument("--plain", action="store_true", help="no live drawing")
    options = parser.parse_args(arguments)
    if options.units < 40 or not 4 <= options.workers <= 64 or not 0.1 <= options.ttl <= 10:
        parser.error("needs units >= 40, 4 <= workers <= 64, 0.1 <= ttl <= 10")
    began_at = time.monotonic()
    with open_screen(plain=options.plain) as screen:
        try:
            before, after = run(screen, units=options.units, workers=options.workers, ttl=options.ttl, url=options.url)
        except HoldfastError as error:
            print(f"holdfast demo: {error}", file=sys.stderr)
            return os.EX_UNAVAILABLE
        except RuntimeError as error:
            print(f"holdfast demo: {error}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            return 128 + signal.SIGINT
        held = after.invariants()
        screen.say("Checked:")
        for title, ok, figures in held:
            screen.say(f"  {'ok  ' if ok else 'FAIL'}  {title}: {figures}")
        good = all(ok for _, ok, _ in held)
        screen.say(
            f"{'All invariants held' if good else 'NOT all invariants held'}, "
            f"in {time.monotonic() - began_at:.1f} s. Without the lock: oversold by {before.oversold}."
        )
    return 0 if good else 1

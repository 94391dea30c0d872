"""Cells of the matrix: one scheme under one fault, played in all its variants, and judged."""

from __future__ import annotations

import asyncio
import difflib
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from holdfast_lab.bodies import CannotRun, Forks, LockFailed
from holdfast_lab.faults import FAULTS, Fault
from holdfast_lab.handles import ENTRIES, PROCESSES, THREADS, Entry
from holdfast_lab.history import LAB, History
from holdfast_lab.parts import LATE
from holdfast_lab.stage import Stage, TooSlow
from holdfast_lab.texts import expected
from holdfast_lab.verdicts import KINDS, SAFE, Verdict, judge, worst

__all__ = [
    "DEPENDS",
    "NOT_RUN",
    "Cell",
    "Lab",
    "Run",
    "UnknownName",
    "cell_name",
    "find_entry",
    "find_fault",
    "pairs",
    "play",
    "play_many",
]

NOT_RUN = "not run"
NO_STEP = "it sends no command there that a fault could follow"
DEPENDS = "depends on timing"
#: A play that the machine was too slow for is repeated with twice the time, so often.
_TRIES = 4
#: Cells mostly wait: for a ttl, for a server that is gone.
_JOBS_PER_CPU = 4


class UnknownName(LookupError):
    """There is no scheme or fault of that name; the message has the nearest one and all of them."""

    def __init__(self, what: str, name: str, known: Iterable[str]) -> None:
        known = list(known)
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        super().__init__(f"there is no {what} {name!r}.{hint} Known: {', '.join(known)}")


def find_entry(name: str) -> Entry:
    """The scheme of that name. Raises UnknownName."""
    if name not in ENTRIES:
        raise UnknownName("scheme", name, ENTRIES)
    return ENTRIES[name]


def find_fault(name: str) -> Fault:
    """The fault of that name. Raises UnknownName."""
    if name not in FAULTS:
        raise UnknownName("fault", name, FAULTS)
    return FAULTS[name]


def pairs(
    entries: Iterable[Entry] | None = None, clients: Iterable[str] = (PROCESSES, THREADS)
) -> list[tuple[Entry, Fault]]:
    """All cells that make sense, scheme by scheme, with clients of each kind."""
    clients = list(clients)
    chosen = [entry.of(kind) for entry in (ENTRIES.values() if entries is None else entries) for kind in clients]
    return [(entry, fault) for entry in chosen for fault in FAULTS.values() if fault.applies_to(entry)]


@dataclass(slots=True)
class Run:
    """One play, its history, and what follows from it; `take` counts how often the cell was played."""

    variant: str
    history: History
    verdicts: list[Verdict]
    take: int = 1

    @property
    def verdict(self) -> str:
        return worst(self.verdicts)

    def as_json(self, events: bool = True) -> dict[str, Any]:
        start_ns = self.history.start_ns
        made: dict[str, Any] = {
            "variant": self.variant,
            "take": self.take,
            "verdict": self.verdict,
            "findings": [verdict.as_json(start_ns) for verdict in self.verdicts],
        }
        if events:
            made["history"] = self.history.as_json()
        return made


def cell_name(scheme: str, fault: str, clients: str = PROCESSES) -> str:
    """The name of a cell; clients are processes unless something is said."""
    return f"{scheme} {fault}" + (f" {clients}" if clients != PROCESSES else "")


@dataclass(slots=True)
class Cell:
    """One scheme under one fault: the worst of its runs decides."""

    scheme: str
    fault: str
    runs: list[Run] = field(default_factory=list)
    not_run: str = ""
    clients: str = PROCESSES
    seconds: float = 0.0

    @property
    def name(self) -> str:
        return cell_name(self.scheme, self.fault, self.clients)

    @property
    def title(self) -> str:
        """As in "setnx under reset (threads)"."""
        return f"{self.scheme} under {self.fault}" + ("" if self.clients == PROCESSES else f" ({self.clients})")

    @property
    def agrees(self) -> bool | None:
        """Whether it is what theory says; None: theory says nothing, or it was not played."""
        theory = expected(self.scheme, self.fault, self.clients)
        if theory is None or self.verdict == NOT_RUN:
            return None
        return self.shares.keys() <= {theory.verdict, *theory.others}

    @property
    def worst_run(self) -> Run | None:
        return min(self.runs, key=lambda run: KINDS.index(run.verdict), default=None)

    @property
    def shares(self) -> dict[str, int]:
        """How many takes came to which verdict, the worst first."""
        takes: dict[int, list[str]] = {}
        for run in self.runs:
            takes.setdefault(run.take, []).append(run.verdict)
        found = Counter(min(kinds, key=KINDS.index) for kinds in takes.values())
        return dict(sorted(found.items(), key=lambda item: KINDS.index(item[0])))

    @property
    def verdict(self) -> str:
        shares = self.shares
        return DEPENDS if len(shares) > 1 else next(iter(shares), NOT_RUN)

    @property
    def by_timing(self) -> bool:
        """Whether exclusion held while the other client asked before the ttl was over, and not when it came after."""
        early, late = ([r.verdict for r in self.runs if (LATE in r.variant) == after] for after in (False, True))
        return KINDS[0] in late and KINDS[0] not in early

    @property
    def kinds(self) -> list[str]:
        """Every kind of finding in any of its runs, the worst first."""
        found = {verdict.kind for run in self.runs for verdict in run.verdicts}
        if len(found) > 1:
            found.discard(SAFE)
        return sorted(found, key=KINDS.index)

    @property
    def is_safe(self) -> bool:
        return self.verdict == SAFE

    @property
    def share_text(self) -> str:
        """As "2 of 3: safe, 1 of 3: slow", where the verdict depends on timing."""
        takes = sum(self.shares.values())
        return ", ".join(f"{count} of {takes}: {kind}" for kind, count in self.shares.items())

    def as_json(self, events: bool = True) -> dict[str, Any]:
        theory = expected(self.scheme, self.fault, self.clients)
        return {
            "scheme": self.scheme,
            "fault": self.fault,
            "clients": self.clients,
            "verdict": self.verdict,
            "safe": self.is_safe,
            "shares": self.shares,
            "findings": self.kinds,
            "theory": theory and theory.verdict,
            "why": theory and theory.why,
            "agrees": self.agrees,
            "by_timing": self.by_timing,
            "not_run": self.not_run,
            "runs": [run.as_json(events) for run in self.runs],
        }


class Lab:
    """Plays cells. Close it: it owns a process. An async context manager."""

    def __init__(self, path: Iterable[str] = ()) -> None:
        self._path = tuple(path)
        self._forks: Forks | None = None

    async def __aenter__(self) -> Lab:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._forks is not None:
            self._forks.close()

    async def cell(self, entry: Entry, fault: Fault, times: int = 1) -> Cell:
        """One scheme under one fault, in all variants, as often as told."""
        cell = Cell(entry.name, fault.name, clients=entry.clients)
        began = time.monotonic()
        cell.not_run = entry.missing or fault.missing() or ""
        if not cell.not_run and not fault.applies_to(entry):
            needs = {"quorum": "several servers", "single": "one server"}.get(fault.on, "locks that exclude")
            if entry.clients == THREADS and not fault.threads:
                needs = "processes"
            elif entry.replicated:
                needs = "servers without replicas"
            cell.not_run = f"{fault.name} is a fault of {needs}; {entry.name} runs on {entry.servers}"
        if not cell.not_run:
            try:
                for take in range(1, times + 1):
                    await self._play_all(entry, fault, cell, take)
            except CannotRun as error:
                cell.not_run = str(error)
        cell.seconds = time.monotonic() - began
        return cell

    async def _play_all(self, entry: Entry, fault: Fault, cell: Cell, take: int) -> None:
        commands: dict[str, int] = {}
        for row in fault.variants(entry):
            kind = fault.counted(row[0])
            for number, variant in enumerate(row):
                if number == commands.get(kind):
                    break  # as in a row before, there are no more commands
                history = await self._play(entry, fault, variant)
                if history is None:
                    commands.setdefault(kind, number)
                    break
                cell.runs.append(Run(variant, history, judge(history), take))
                if any(history.of("broken")):
                    return
            if any(run.take == take and run.verdict == KINDS[0] for run in cell.runs):
                return  # it cannot get worse
        cell.not_run = "" if cell.runs else NO_STEP

    async def _play(self, entry: Entry, fault: Fault, variant: str) -> History | None:
        if self._forks is None:
            self._forks = Forks()
        stretch, verdict = 1.0, ""
        for tries_left in reversed(range(_TRIES)):
            stage = Stage(entry, fault.name, variant, self._forks, stretch, self._path, fault.restart_delay_s)
            try:
                await stage.open(own_clock=fault.own_clock, replica=fault.replica, durable=fault.durable)
                if not await fault.play(stage, variant):
                    return None
                history = await stage.wind_up()
                if stage.stalled:
                    # A slow machine harms a scheme in another way each time: the last two have to say the same.
                    before, verdict = verdict, worst(judge(history))
                    if tries_left or verdict != before:
                        raise TooSlow
                return history
            except TooSlow:
                stretch *= 2
            except LockFailed as error:
                if not entry.own and not tries_left:
                    raise
                # The lab's own locks are known to work: it is the machine that was too slow for their timeouts.
                if entry.own and not (stage.stalled and tries_left):
                    stage.history.add(time.monotonic_ns(), LAB, "broken", text=str(error))
                    return await stage.wind_up()
                stretch *= 2
            finally:
                await stage.close()
        raise CannotRun("this machine is too slow for the choreography")

    async def cells(
        self, chosen: Iterable[tuple[Entry, Fault]], jobs: int | None = None, times: int = 1
    ) -> AsyncIterator[Cell]:
        """Many cells, a few at a time (they mostly wait), in the order in which they end."""
        limit = asyncio.Semaphore(jobs or _JOBS_PER_CPU * (os.cpu_count() or 2))

        async def one(entry: Entry, fault: Fault) -> Cell:
            async with limit:
                return await self.cell(entry, fault, times)

        tasks = [asyncio.ensure_future(one(entry, fault)) for entry, fault in chosen]
        try:
            for ended in asyncio.as_completed(tasks):
                yield await ended
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


Progress: TypeAlias = Callable[[int, int, Cell], None]


def play(entry: Entry, fault: Fault, path: Iterable[str] = (), times: int = 1) -> Cell:
    """Play one cell from ordinary code."""
    return play_many([(entry, fault)], path=path, times=times)[0]


def play_many(
    chosen: Sequence[tuple[Entry, Fault]],
    progress: Progress | None = None,
    jobs: int | None = None,
    path: Iterable[str] = (),
    times: int = 1,
) -> list[Cell]:
    """Play many cells from ordinary code; `progress(done, all, cell)` after each."""

    async def all_of_them() -> list[Cell]:
        done: list[Cell] = []
        async with Lab(path) as lab:
            async for cell in lab.cells(chosen, jobs, times):
                done.append(cell)
                if progress is not None:
                    progress(len(done), len(chosen), cell)
        return done

    return _to_the_end(all_of_them())


def _to_the_end(work: Coroutine[Any, Any, list[Cell]]) -> list[Cell]:
    """Run it; Ctrl-C, SIGTERM and SIGHUP end it in an orderly way, so that no server is left behind."""
    told: list[signal.Signals] = []

    async def watched() -> list[Cell]:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def end(number: signal.Signals) -> None:
            told.append(number)
            task.cancel()

        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGHUP):
                loop.add_signal_handler(number, end, number)
        return await work

    try:
        return asyncio.run(watched())
    except asyncio.CancelledError:
        if told:
            raise SystemExit(128 + told[0]) from None
        raise

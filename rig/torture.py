"""One run from beginning to end."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rig.checker import Verdict, judge
from rig.crew import ALWAYS, Crew
from rig.history import History
from rig.nemesis import Nemesis
from rig.resource import Resource
from rig.run import Run
from rig.stages import STAGES, Stage

__all__ = ["Report", "torture"]

#: After a healing someone must get in at every lock within the ttl and this, s: a failover, and a slow machine.
_GRACE_S = 20.0
#: With both kinds of faults, servers and wires are left in peace for this part of the run.
_CALM_PART = 0.4
#: A sign of life this often, s.
_PROGRESS_S = 10.0


@dataclass(slots=True)
class Report:
    """What a run has shown. `wrong` is empty when all is well."""

    library: str
    topology: str
    seconds: float
    seed: int
    workers: int = 0
    lives: int = 0
    grants: int = 0
    #: Of them, those that a client has handed on by itself.
    handed_on: int = 0
    writes: int = 0
    faults: dict[str, int] = field(default_factory=dict)
    process_faults: dict[str, int] = field(default_factory=dict)
    never_played: list[str] = field(default_factory=list)
    operations: dict[str, int] = field(default_factory=dict)
    memory_mb: tuple[float, float] | None = None
    overlaps: int = 0
    documented: dict[str, int] = field(default_factory=dict)
    bodies: int = 0
    stale_refused: int = 0
    stale_accepted: int = 0
    longest_wait_s: float = 0.0
    longest_wait_at_a_lock_s: float = 0.0
    longest_after: str = ""
    #: Waiters that two tenures of one other client overtook, and the longest wait of one that got in, s.
    overtaken: int = 0
    longest_turn_s: float = 0.0
    errors: dict[str, int] = field(default_factory=dict)
    left_over: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def as_text(self) -> str:
        faults = ", ".join(f"{kind} {count}" for kind, count in sorted(self.faults.items()))
        documented = ", ".join(f"{kind} {count}" for kind, count in sorted(self.documented.items())) or "0"
        errors = ", ".join(f"{kind} {count}" for kind, count in sorted(self.errors.items())) or "none"
        lines = [
            f"{self.library} on {self.topology}, {self.seconds:.0f} s, seed {self.seed}, {self.workers} processes",
            f"  grants                                    {self.grants:,} (with {self.writes:,} writes), "
            f"{self.handed_on:,} of them handed on inside of a client",
            f"  faults                                    {sum(self.faults.values())}: {faults}",
            f"  overlaps inside validity                  {self.overlaps}",
            f"  the same, in documented rows              {documented}",
            f"  overlaps of bodies beyond their validity  {self.bodies}",
            f"  stale writes refused                      {self.stale_refused}",
            f"  stale writes accepted                     {self.stale_accepted}",
            f"  longest wait for a free lock after healing  {self.longest_wait_s:.2f} s anywhere, "
            f"{self.longest_wait_at_a_lock_s:.2f} s at one lock (after: {self.longest_after or 'nothing'})",
            f"  waiters overtaken by two tenures          {self.overtaken} (longest wait {self.longest_turn_s:.2f} s)",
            f"  what clients were told                    {errors}",
            f"  left behind                               {', '.join(self.left_over) or 'nothing'}",
        ]
        if self.lives:
            lines[3:3] = self._of_lives()
        return "\n".join(lines + [f"  WRONG: {each}" for each in self.wrong])

    def _of_lives(self) -> list[str]:
        """What was played inside processes."""
        played = self.process_faults
        exits = sum(count for fault, count in played.items() if fault.startswith("exit: "))
        rest = {fault: count for fault, count in played.items() if not fault.startswith("exit: ")}
        lines = [f"  lives under process faults                {self.lives}, which ended in {exits} ways of exit"]
        lines += [f"    {fault:<39} {count:,}" for fault, count in sorted(rest.items())]
        ways = ", ".join(
            f"{fault.removeprefix('exit: ')} {count}" for fault, count in sorted(played.items()) if "exit: " in fault
        )
        done = ", ".join(f"{what} {count:,}" for what, count in sorted(self.operations.items()))
        lines += [
            f"  ways to exit                              {ways}",
            f"  operations                                {sum(self.operations.values()):,}: {done}",
            f"  never played                              {', '.join(self.never_played) or 'nothing'}",
        ]
        if self.memory_mb is not None:
            first, last = self.memory_mb
            lines.append(f"  memory of the longest life                {first:.0f} MB at first, {last:.0f} MB at last")
        return lines

    def as_json(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False)


@contextlib.contextmanager
def _scratch() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="holdfast-rig-", dir="/tmp"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def torture(
    *,
    library: str = "holdfast",
    topology: str = "single",
    seconds: float = 120,
    seed: int = 1,
    faults: str = "all",
    processes: int | None = None,
    loops: int = 3,
    locks: int = 3,
    ttl_s: float = 2.0,
    verbose: bool = False,
    keep: Path | None = None,
    src: Path | None = None,
) -> Report:
    """Run and judge.

    `faults`: "network" (and servers), "process", "all" or "none"; `src`: have workers import from there.
    """
    if library != "holdfast" and faults != "none":
        faults = "network"
    if processes is None:
        processes = 2 if faults == "process" else 6
    report = Report(library, topology, seconds, seed, workers=processes)
    with contextlib.ExitStack() as opened:
        folder = opened.enter_context(_scratch())
        stage = opened.enter_context(STAGES[topology]())
        resource = opened.enter_context(Resource(folder / "resource"))
        run = Run(
            library,
            stage,
            folder,
            resource,
            seed=seed,
            processes=processes,
            loops=loops,
            locks=locks,
            ttl_s=ttl_s,
            verbose=verbose,
            src=src,
        )
        opened.callback(run.close)
        run.start()
        nemesis = Nemesis(run, seed, workers_only=faults == "process")
        # With both kinds, servers and wires are left in peace at first: a lock that is left then is a process's fault.
        calm_s = _CALM_PART * seconds if faults == "all" else 0.0
        crew = None
        if faults in ("process", "all"):
            places, peace_s = (4, float("inf")) if faults == "process" else (2, calm_s)
            crew = Crew(run, seed, places, seconds, peace_s, nemesis.troubled)
            opened.callback(crew.join)
            opened.callback(crew.kill)
            crew.start()
        striking = threading.Thread(target=_strike, args=(nemesis, run, calm_s), name="nemesis")
        opened.callback(run.stopping.set)
        if faults != "none":
            striking.start()
            opened.callback(striking.join)
        opened.callback(run.stopping.set)
        until = time.monotonic() + seconds
        said_at = time.monotonic()
        while (left_s := until - time.monotonic()) > 0:
            time.sleep(min(0.2, left_s))
            if time.monotonic() - said_at > _PROGRESS_S:
                said_at = time.monotonic()
                _progress(seconds - left_s, seconds, len(nemesis.faults), crew)
            for number, worker in enumerate(run.workers):
                if not worker.running and not run.stopping.is_set() and worker.wait(0) not in (-signal.SIGKILL, None):
                    run.failures.append(f"worker {number} ended by itself: {worker.said()}")
                    until = 0
        run.stopping.set()
        if faults != "none":
            striking.join()
        run.stopping = threading.Event()
        if crew is not None:
            crew.join()
        time.sleep(1.0)  # the last healing must have its grant too
        run.end()
        report.left_over = _left_over(stage, ttl_s)
        history = run.history(nemesis.faults)
        if crew is not None:
            _fill_lives(report, history, crew)
        if keep is not None:
            shutil.copytree(folder, keep, dirs_exist_ok=True, ignore=shutil.ignore_patterns("resource"))
    verdict = judge(history)
    _fill(report, history, verdict, resource, run, ttl_s)
    if faults == "none" and library == "holdfast" and topology != "quorum":  # which has no queue
        report.wrong += verdict.overtaken[:20]
    return report


def _strike(nemesis: Nemesis, run: Run, calm_s: float) -> None:
    if run.stopping.wait(calm_s):
        return
    try:
        nemesis.run(run.stopping)
    except Exception as error:
        run.failures.append(f"the nemesis failed: {type(error).__name__}: {error}")


def _left_over(stage: Stage, ttl_s: float) -> list[str]:
    """Keys and connections that are still there when those of killed workers have expired."""
    until = time.monotonic() + ttl_s + 10
    while (found := [*stage.left_over(), *stage.connections()]) and time.monotonic() < until:
        time.sleep(0.1)
    told = stage.keys(found)
    return [
        *(told.get(each, each) for each in found),
        *(each for each in stage.unended() if not each.startswith("left: ")),
    ]


def _progress(at_s: float, of_s: float, faults: int, crew: Crew | None) -> None:
    """A line now and then."""
    lives = "" if crew is None else f", {crew.lives} lives, {len(crew.wrong)} of them wrong"
    print(f"  {at_s:.0f} of {of_s:.0f} s: {faults} faults{lives}", file=sys.stderr, flush=True)


def _fill_lives(report: Report, history: History, crew: Crew) -> None:
    played = history.played + crew.played
    report.lives = crew.lives
    report.process_faults = dict(played)
    report.operations = dict(history.did)
    report.never_played = [fault for fault in ALWAYS if not played[fault]]
    report.memory_mb = history.memory_mb
    report.wrong += _grouped([*crew.wrong, *history.broken])


def _grouped(findings: Sequence[str]) -> list[str]:
    """One of each kind, with the number of its like."""
    kinds: dict[str, list[str]] = {}
    for each in findings:
        said = re.sub(r"^.*?\)[:)]? ", "", each.partition("\n")[0])
        kinds.setdefault(re.sub(r"\d+[a-z]?", "#", said)[:90], []).append(each)
    return [
        first + (f"\n  … and {len(others)} more of this kind" if others else "") for first, *others in kinds.values()
    ]


def _fill(report: Report, history: History, verdict: Verdict, resource: Resource, run: Run, ttl_s: float) -> None:
    report.grants = len(history.grants)
    report.handed_on = 0 if run.stage.name == "quorum" else verdict.handed_on  # there tokens are agreed on, not times
    report.writes = history.writes
    report.faults = dict(Counter(fault.kind for fault in history.faults))
    report.overlaps = len(verdict.violations)
    report.documented = dict(
        Counter(
            f"row {overlap.because.row} ({overlap.because.kind})" for overlap in verdict.documented if overlap.because
        )
    )
    report.bodies = verdict.bodies
    report.stale_refused = resource.refused
    report.stale_accepted = resource.stale_accepted
    report.longest_wait_s = verdict.longest_wait_s
    report.longest_wait_at_a_lock_s = verdict.longest_wait_at_a_lock_s
    report.longest_after = verdict.longest_after
    report.overtaken = len(verdict.overtaken)
    report.longest_turn_s = verdict.longest_turn_s
    report.errors = dict(history.errors)
    wrong = report.wrong
    # Three are told in full: many are often beside one and the same lease.
    told = [*(each.told() for each in verdict.violations[:3]), *map(str, verdict.violations[3:20])]
    wrong += [f"overlap inside validity: {each}" for each in told]
    wrong += verdict.disorder[:20]
    wrong += [f"a bug: {crash}" for crash in history.crashes[:5]]
    wrong += run.failures
    if report.stale_accepted:
        wrong.append(f"{report.stale_accepted} stale writes were accepted")
    if not report.grants:
        wrong.append("no one got in at all")
    if report.longest_wait_at_a_lock_s > ttl_s + _GRACE_S:
        wrong.append(
            f"no one got in at a lock for {report.longest_wait_at_a_lock_s:.1f} s after {report.longest_after}"
        )
    if report.left_over:
        wrong.append(f"left behind: {', '.join(report.left_over)}")

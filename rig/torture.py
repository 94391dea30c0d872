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
from typing import Any

from rig.actions import PERMITS
from rig.crew import ALWAYS, Crew
from rig.history import History
from rig.locks import PROMISES
from rig.nemesis import Nemesis
from rig.resource import Resource
from rig.run import Run
from rig.stages import STAGES, Stage
from rig.state import OWN_TTL_S
from verify.check import check

__all__ = ["Report", "torture"]

#: After a healing someone must get in at every lock within the ttl and this, s: a failover, and a slow machine.
_GRACE_S = 20.0
#: With both kinds of faults, servers and wires are left in peace for this part of the run.
_CALM_PART = 0.4
#: A sign of life this often, s.
_PROGRESS_S = 10.0
#: Where a history goes that breaks a rule, or has a life that went wrong.
_KEPT = Path("build")


@dataclass(slots=True)
class Report:
    """What a run has shown. `wrong` is empty when all is well."""

    library: str
    topology: str
    seconds: float
    seed: int
    workers: int = 0
    lives: int = 0
    #: Acquires, extensions, releases, writes and reads.
    operations: int = 0
    grants: int = 0
    #: Of them, those that a client has handed on by itself.
    handed_on: int = 0
    writes: int = 0
    refused: int = 0
    faults: dict[str, int] = field(default_factory=dict)
    process_faults: dict[str, int] = field(default_factory=dict)
    never_played: list[str] = field(default_factory=list)
    actions: dict[str, int] = field(default_factory=dict)
    memory_mb: tuple[float, float] | None = None
    #: What the checker found, by rule, and what a fault accounts for.
    violations: dict[str, int] = field(default_factory=dict)
    documented: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    left_over: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def as_text(self) -> str:
        faults = ", ".join(f"{kind} {count}" for kind, count in sorted(self.faults.items()))
        violations = ", ".join(f"{rule} {count}" for rule, count in sorted(self.violations.items())) or "none"
        errors = ", ".join(f"{kind} {count}" for kind, count in sorted(self.errors.items())) or "none"
        lines = [
            f"{self.library} on {self.topology}, {self.seconds:.0f} s, seed {self.seed}, {self.workers} processes",
            f"  operations                                {self.operations:,}; {self.grants:,} grants, "
            f"{self.handed_on:,} of them handed on inside of a client",
            f"  faults                                    {sum(self.faults.values())}: {faults}",
            f"  violations                                {violations}",
            f"  overlaps in documented rows               {self.documented}",
            f"  writes; refused as stale                  {self.writes:,}; {self.refused}",
            f"  what clients were told                    {errors}",
            f"  left behind                               {', '.join(self.left_over) or 'nothing'}",
        ]
        if self.lives:
            lines[3:3] = self._of_lives()
        return "\n".join(lines + [f"  WRONG: {each}" for each in self.wrong])

    def _of_lives(self) -> list[str]:
        """Report what was played inside processes."""
        played = self.process_faults
        exits = sum(count for fault, count in played.items() if fault.startswith("exit: "))
        rest = {fault: count for fault, count in played.items() if not fault.startswith("exit: ")}
        lines = [f"  lives under process faults                {self.lives}, which ended in {exits} ways of exit"]
        lines += [f"    {fault:<39} {count:,}" for fault, count in sorted(rest.items())]
        ways = ", ".join(
            f"{fault.removeprefix('exit: ')} {count}" for fault, count in sorted(played.items()) if "exit: " in fault
        )
        done = ", ".join(f"{what} {count:,}" for what, count in sorted(self.actions.items()))
        lines += [
            f"  ways to exit                              {ways}",
            f"  actions of lives                          {sum(self.actions.values()):,}: {done}",
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
    lives: str = "all",
    processes: int | None = None,
    commands: int = 0,
    loops: int = 3,
    locks: int = 3,
    kinds: str = "mixed",
    settings: list[dict[str, Any]] | None = None,
    fast: bool = False,
    long_share: float = 0.01,
    pause_s: float | None = None,
    ttl_s: float = 2.0,
    timeout_s: float = 5.0,
    progress_s: float | None = None,
    verbose: bool = False,
    save: Path | None = None,
    src: Path | None = None,
    beside: Path | None = None,
) -> Report:
    """Run, write the history, have it judged.

    `faults`: "network" (and servers), "process", "all", "none", or names of faults, separated by commas; `lives`: those
    under process faults are of this API, or "all"; `settings`: one of these options is drawn for each acquire;
    `fast`: no pauses; `long_share`: of stays longer than the ttl; `pause_s`: between two faults, at most; `save`: keep
    the history there; `src`: have workers import from there; `beside`: every second one.
    """
    only = [] if faults in ("all", "network", "process", "none") else faults.split(",")
    if library != "holdfast" and faults in ("all", "process"):
        faults = "network"
    progress_s = ttl_s + _GRACE_S if progress_s is None else progress_s
    if processes is None:
        processes = 2 if faults == "process" else 6
    report = Report(library, topology, seconds, seed, workers=processes + commands)
    with contextlib.ExitStack() as opened:
        folder = opened.enter_context(_scratch())
        stage = opened.enter_context(STAGES[topology]())
        resource = opened.enter_context(Resource(folder / "resource", folder / "resource.log"))
        ordered = faults == "none" and library == "holdfast" and topology != "quorum"  # which has no queue
        run = Run(
            library,
            stage,
            folder,
            resource,
            seed=seed,
            processes=processes,
            commands=commands,
            loops=loops,
            locks=locks,
            kinds=kinds,
            settings=settings,
            fast=fast,
            long_share=long_share,
            queued=ordered and not fast,
            ttl_s=ttl_s,
            timeout_s=timeout_s,
            verbose=verbose,
            src=src,
            beside=beside,
        )
        opened.callback(run.close)
        pauses_s = (0.8, 2.0) if pause_s is None else (pause_s / 3, pause_s)
        nemesis = Nemesis(run, seed, pauses_s, workers_only=faults == "process", only=only)
        run.start()
        # With both kinds, servers and wires are left in peace at first: a lock that is left then is a process's fault.
        calm_s = _CALM_PART * seconds if faults == "all" else 0.0
        crew = None
        if faults in ("process", "all"):
            places, peace_s = (4, float("inf")) if faults == "process" else (2, calm_s)
            crew = Crew(run, seed, places, seconds, peace_s, nemesis.troubled, lives)
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
        keys, connections = _left_over(stage, library, ttl_s)
        run.log.event("left", "rig", keys=keys)
        report.left_over = [*keys, *connections]
        history = run.history()
        if crew is not None:
            _fill_lives(report, history, crew)
        header = {
            "format": "lock-history",
            "version": 1,
            "library": library,
            "topology": topology,
            "clock": "CLOCK_MONOTONIC ns",
            "made_by": "python -m rig torture",
            "overtake": 1,
            "progress_s": progress_s,
            "rows": nemesis.rows,
            "locks": _locks_of(history, progress_s, timeout_s),
            "promises": [rule for rule in PROMISES[library] if rule != "order" or ordered],
        }
        file = folder / "history.jsonl" if save is None else save
        history.save(file, header)
        _judge(report, file)
        _fill(report, history, run)
        if (report.violations or report.wrong) and save is None:
            kept = _KEPT / f"torture-{topology}-{seed}.jsonl"
            kept.parent.mkdir(exist_ok=True)
            shutil.copy(file, kept)
            report.wrong.append(f"its history, for `python verify/check.py`, is in {kept}")
    return report


def _locks_of(history: History, progress_s: float, timeout_s: float) -> dict[str, Any]:
    """Return the kind of each lock, with those that lives have of their own."""
    locks: dict[str, Any] = {}
    for lock in sorted({event["lock"] for event in history.events if "lock" in event}):
        if lock == "torture-sem":
            locks[lock] = {"kind": "semaphore", "permits": PERMITS}
        else:
            locks[lock] = {"kind": "rwlock" if lock == "torture-rw" else "lock"}
        if lock.startswith("torture-several"):
            # A waiter for one lock of several may have another one, unseen, until its timeout.
            locks[lock]["progress_s"] = progress_s + timeout_s
        elif lock.startswith("own-"):
            locks[lock]["progress_s"] = 2 * OWN_TTL_S  # a client that is closed while its server hangs leaves it
    return locks


def _strike(nemesis: Nemesis, run: Run, calm_s: float) -> None:
    if run.stopping.wait(calm_s):
        return
    try:
        nemesis.run(run.stopping)
    except Exception as error:
        run.failures.append(f"the nemesis failed: {type(error).__name__}: {error}")


def _left_over(stage: Stage, library: str, ttl_s: float) -> tuple[list[str], list[str]]:
    """Keys and connections that are still there when those of killed workers have expired."""
    until = time.monotonic() + ttl_s + 10
    while True:
        keys, connections = stage.left_over(), stage.connections()
        if not (keys or connections) or time.monotonic() > until:
            break
        time.sleep(0.1)
    told = stage.keys(keys)
    keys = [told.get(each, each) for each in keys]
    if library == "holdfast":  # others may keep what they like
        keys += [each for each in stage.unended() if not each.startswith("left: ")]
    return keys, connections


def _progress(at_s: float, of_s: float, faults: int, crew: Crew | None) -> None:
    """A line now and then."""
    lives = "" if crew is None else f", {crew.lives} lives, {len(crew.wrong)} of them wrong"
    print(f"  {at_s:.0f} of {of_s:.0f} s: {faults} faults{lives}", file=sys.stderr, flush=True)


def _fill_lives(report: Report, history: History, crew: Crew) -> None:
    played = history.played + crew.played
    report.lives = crew.lives
    report.process_faults = dict(played)
    report.actions = dict(history.did)
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


def _judge(report: Report, file: Path) -> None:
    verdict = check(str(file))
    report.violations = dict(Counter(rule for rule, _ in verdict.violations))
    report.documented = verdict.documented
    report.wrong += [f"{rule}: {said}" for rule, said in verdict.violations[:20]]


def _fill(report: Report, history: History, run: Run) -> None:
    report.operations = history.operations
    report.grants = history.number("got")
    report.handed_on = 0 if run.stage.name == "quorum" else history.handed_on  # there tokens are agreed on, not times
    report.writes = history.number("write", ok=True)
    report.refused = history.number("write", ok=False)
    report.faults = dict(Counter(event["kind"] for event in history.events if event["e"] == "fault"))
    report.errors = dict(history.errors)
    report.wrong += [f"a bug: {crash}" for crash in history.crashes[:5]]
    report.wrong += run.failures
    if not report.grants:
        report.wrong.append("no one got in at all")
    if report.left_over:
        report.wrong.append(f"left behind: {', '.join(report.left_over)}")

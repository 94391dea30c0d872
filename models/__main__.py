"""`python -m models`: check every row, print the table, exit 1 if one is not as demanded, 2 without spin or gcc."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ROWS", "Outcome", "Row", "check", "main"]

HERE = Path(__file__).resolve().parent
#: A row that takes longer than this is an error, s. All together take far less than a minute on an idle machine.
PATIENCE_S = 300


@dataclass(frozen=True)
class Row:
    """One question to a model: `holds` says which answer is demanded."""

    model: str
    what: str
    defines: str
    holds: bool
    liveness: bool = False
    #: A run that gets stuck before its processes have ended violates it, too.
    ends: bool = False


@dataclass(frozen=True)
class Outcome:
    """What Spin answered."""

    row: Row
    held: bool
    states: int
    seconds: float

    @property
    def good(self) -> bool:
        return self.held == self.row.holds


def _handoff() -> list[Row]:
    sure = "CLIENTS=2 ROUNDS=2 ENDS=2 FENCES"
    rows = [
        Row("handoff", "exclusion and fences, leases run out", sure, True),
        Row("handoff", "the same, a client crashes", "CLIENTS=2 ROUNDS=2 CRASHES=1 FENCES", True),
        Row("handoff", "crash, loss, giving up", "CLIENTS=2 ROUNDS=1 CRASHES=1 LOSSES=1 LEAVES FENCES", True),
        Row("handoff", "three clients", "CLIENTS=3 ROUNDS=1 FENCES", True),
        Row("handoff", "three clients, a crash", "CLIENTS=3 ROUNDS=1 CRASHES=1 ENDS=0 FENCES", True),
        Row("handoff", "waiting ends, a lease runs out", "CLIENTS=2 ENDS=1", True, True),
        Row("handoff", "waiting ends: crash, loss, giving up", "CLIENTS=2 CRASHES=1 LOSSES=1 LEAVES", True, True),
        Row("handoff", "waiting ends among three", "CLIENTS=3 ENDS=0", True, True),
    ]
    for name, what in (
        ("NO_CONFIRM", "a pushed grant is taken for the lease"),
        ("FROM_REPLY", "validity counts from the reply"),
        ("LATE_ACCEPTED", "a late answer is accepted"),
        ("CARELESS", "the holder does not look at its deadline"),
        ("NO_COMPARE", "a release does not compare the token"),
        ("RECREATE", "a renewal writes a lost lease again"),
        ("SHORTER", "an extension asks for less than is believed"),
        ("STALE_FENCE", "the fencing token is taken from the message"),
    ):
        rows.append(Row("handoff", what, f"{sure} {name}", False))
    for name, what, world in (
        ("NO_RECHECK", "waiters trust in being woken", "CLIENTS=2 ENDS=0 LOSSES=1"),
        ("CLAIM_FOR_EVER", "claims do not end", "CLIENTS=2 ENDS=0 CRASHES=1"),
        ("KEEP_THE_DEAD", "the dead are not skipped", "CLIENTS=2 ENDS=0 CRASHES=1"),
        ("LEAVE_SILENTLY", "who gives up does not give back", "CLIENTS=3 ROUNDS=1 ENDS=0 LEAVES"),
        ("BARGE", "a free lock goes to any client that asks", "CLIENTS=2 ENDS=0"),
    ):
        rows.append(Row("handoff", what, f"{world} {name}", False, True))
    return rows


def _shared() -> list[Row]:
    return [
        Row("shared", "a reader and a writer, crashes", "CRASHES", True),
        Row("shared", "a waiter gets its turn, crashes", "CRASHES", True, True),
        Row("shared", "readers come in while others read", "BARGE", False, True),
        Row("shared", "looking and taking are two scripts", "TWOSTEP", False),
        Row("shared", "a dead waiter at the head is not passed", "BLIND CRASHES", False, True),
    ]


def _redlock() -> list[Row]:
    return [
        Row("redlock", "three members, two clients", "", True),
        Row("redlock", "fencing tokens are not written back", "NO_WRITE_BACK", False),
        Row("redlock", "a member votes at once after a restart", "VOTE_AT_ONCE RESTARTS=1", False),
        Row("redlock", "the deadline is not looked at", "NO_DEADLINE", False),
    ]


def _tenure() -> list[Row]:
    rows = [
        ("losses", "W=3 TICKS=2 LOSSES=1"),
        ("late requests, giving up", "W=3 TICKS=1 LATES=1 LEAVES=1"),
        ("a crash", "W=3 TICKS=2 CRASHES=1"),
        ("leases that are stretched", "W=3 TICKS=2 LOOKS=1 RENEWS=1"),
        ("one connection", "W=3 TICKS=2 LOOKS=1 ONE_WIRE"),
        ("giving up, interrupted", "W=3 LEAVES=2 CUTS=1"),
        ("kept leases", "W=3 TICKS=1 LOSSES=1 KEEPS=1"),
        ("kept leases, again and again", "W=3 ROUNDS=2 KEEPS=1"),
        ("no one is overtaken by two tenures, two and two", "ORDER"),
        ("no one is overtaken by two tenures, again and again", "W=3 ROUNDS=2 HANDS=2 ITS_BLOCK=3 ORDER"),
        ("no one is overtaken by two tenures, strict", "FIRST=3 HANDS=0 ROUNDS=2 FIRST_ROUNDS=1 ORDER"),
    ]
    broken = [
        ("a pushed grant may be older than the answer", "W=3 TICKS=3 LOOKS=1 OLD_GRANT"),
        ("a pushed grant counts from when it is read", "W=3 TICKS=2 FROM_PUSH"),
        ("it counts from a request without an answer", "W=3 TICKS=3 LOSSES=1 LOOKS=1 FROM_SENT"),
        ("a lease that was handed on counts from then", "W=3 TICKS=3 FRESH_DEADLINE"),
        ("it is taken although its time is over", "W=3 TICKS=3 TAKE_LATE"),
        ("it has its predecessor's fencing token", "W=3 SAME_FENCE"),
        ("hand-ons beyond the block", "W=3 ROUNDS=2 HANDS=2 BEYOND_BLOCK"),
        ("a grant reserves one fencing token", "W=3 NO_BLOCK"),
        ("the unused is written back without comparing", "W=3 TICKS=3 BLIND_WRITE_BACK"),
        ("it is written back into another block", "W=3 TICKS=3 LATES=1 OTHER_BLOCK"),
        ("handed on after a release without an answer", "W=3 LOSSES=1 HAND_AFTER_SEND"),
        ("that a request may still come is forgotten", "W=3 LATES=1 FORGET_STRAY"),
        ("a pass does not bury", "W=3 TICKS=3 LATES=1 PASS_UNBURIED"),
        ("a tenure has no end", "W=3 ROUNDS=2 ITS_BLOCK=4 ORDER NO_TENURE_END"),
        ("a pass queues by the server's time", "FIRST=3 HANDS=0 ROUNDS=2 FIRST_ROUNDS=1 ORDER LATE_STAMP"),
        ("given up without handing on", "W=3 LEAVES=1 LEAVE_HANDED"),
        ("given up without passing", "W=3 HANDS=0 LEAVES=1 LEAVE_DUTY"),
        ("local waiters trust in being told", "W=3 LEAVES=1 CUTS=1 LOCAL_TRUST"),
        ("a keeper trusts in being told", "W=3 KEEPS=1 LOSSES=1 KEEP_TRUST"),
        ("a kept lease is taken again too late", "W=3 KEEPS=1 TICKS=3 KEEP_LATE"),
    ]
    return [
        Row("tenure", what, world, holds, ends=True)
        for holds in (True, False)
        for what, world in (rows if holds else broken)
    ]


def _crash() -> list[Row]:
    rows = [
        ("two tokens", "LINKS=1 TOKS=2"),
        ("two links", "TTL=2"),
        ("a restart", "LINKS=1 RESTARTS=1"),
        ("a failover", "LINKS=1 FAILOVERS=1"),
        ("two failovers that lose writes", "LINKS=1 TTL=2 FAILOVERS=2 LOSSY"),
        ("a slot moves and comes back", "LINKS=1 MOVES=2"),
    ]
    broken = [
        ("a renewal is a proof from its answer on", "LINKS=1 FROM_ANSWER"),
        ("a renewal does not clear the mark", "LINKS=1 MARK_STAYS"),
        ("passed on at the first look", "LINKS=1 NO_MARK"),
        ("the server's clock may be faster", "LINKS=1 NO_DRIFT"),
        ("trusted until the deadline", "LINKS=1 NO_PROOF"),
        ("marks and notes of another run count", "LINKS=1 FAILOVERS=1 OTHER_RUN"),
        ("a run is told by the server's process", "LINKS=1 TTL=2 FAILOVERS=2 LOSSY RUN_ID"),
        ("a proof that did not see the inbox", "LINKS=1 BLIND_PROOF"),
        ("a note that did not see the inbox", "LINKS=1 BLIND_ALIVE"),
        ("a pushed grant is trusted for its claim", "LINKS=1 TRUST_PUSH"),
        ("it is, though an ask may have been granted", "LINKS=1 STRAY_PUSH"),
    ]
    return [Row("crash", what, world, holds) for holds in (True, False) for what, world in (rows if holds else broken)]


ROWS: list[Row] = [*_handoff(), *_shared(), *_redlock(), *_tenure(), *_crash()]


def check(row: Row) -> Outcome:
    """Let Spin answer one row. Raises `RuntimeError` when it cannot."""
    began = time.monotonic()
    defines = [f"-D{define}" for define in row.defines.split()]
    with tempfile.TemporaryDirectory(prefix="model-") as folder:
        model = Path(folder) / f"{row.model}.pml"
        model.write_text((HERE / model.name).read_text(encoding="utf-8"), encoding="utf-8")
        spin = ["spin", "-a", *defines, *(["-DLIVENESS"] if row.liveness else []), model.name]
        _run(spin, folder)
        # Weak fairness: a process that can always go on eventually does.
        kind = ["-DNFAIR=4"] if row.liveness else ["-DSAFETY"]
        # Most violations are found at once: to optimize takes longer than it saves.
        optimized = "-O1" if row.holds else "-O0"
        _run(["gcc", optimized, "-w", "-DMEMLIM=3000", *kind, "-o", "pan", "pan.c"], folder)
        how = [*([] if row.ends else ["-E"]), *(["-a", "-f"] if row.liveness else [])]
        said = _run(["./pan", "-m4000000", *how], folder)
    errors = re.search(r"errors: (\d+)", said)
    states = re.search(r"(\d+) states, stored", said)
    if errors is None or states is None or "max search depth too small" in said or "out of memory" in said:
        raise RuntimeError(f"{row.what}: spin did not finish:\n{said}")
    return Outcome(row, errors[1] == "0", int(states[1]), time.monotonic() - began)


def _run(command: list[str], folder: str) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    if done.returncode != 0 and command[0] != "./pan":
        raise RuntimeError(f"{' '.join(command)}: {done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def main() -> int:
    """Check all rows, two at a time."""
    missing = [program for program in ("spin", "gcc") if shutil.which(program) is None]
    if missing:
        print(f"needed and not there: {', '.join(missing)} (Debian: apt-get install {' '.join(missing)})")
        return 2
    began = time.monotonic()
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        outcomes = list(pool.map(check, ROWS))
    print("| model | what | demanded | answer | states | s |")
    print("|-|-|-|-|-:|-:|")
    for outcome in outcomes:
        row = outcome.row
        demanded, answer = ("holds" if held else "is violated" for held in (row.holds, outcome.held))
        mark = "" if outcome.good else " **not as demanded**"
        kind = "liveness" if row.liveness else "safety"
        print(
            f"| {row.model} ({kind}) | {row.what}: `{row.defines}` | {demanded} | {answer}{mark} "
            f"| {outcome.states:,} | {outcome.seconds:.1f} |"
        )
    bad = sum(not outcome.good for outcome in outcomes)
    print(f"\n{len(outcomes)} rows, {bad} not as demanded, {time.monotonic() - began:.1f} s")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

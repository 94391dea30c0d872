"""`python -m tests.mutants.real`: mutants on real servers, each judged by verify/check.py from what users saw of it.

A copy of the package with the mutant in it is put in front of the workers of a short run of the rig; the history that
they write is all that the checker gets. Nothing else counts here: not a crash, not a worker that hangs. Each scenario
is run without a mutant, too, and has to hold.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.mutants.table import ACQUIRE, MUTANTS, ORDER, PACKAGE, QUEUE, RELEASE, RENEW, VALIDITY, Mutant

__all__ = ["CHOSEN", "SCENARIOS", "UNSEEN", "Convicted", "convict"]

ROOT = PACKAGE.parents[1]
#: Others may have the processors for a while, s.
PATIENCE_S = 240.0
#: Faults come by chance: a mutant that holds is run again, so often in all.
TRIES = 3
_CALM = "--faults none --processes 3 --loops 3 --seconds 5 --timeout 6"
_LOCK = f"{_CALM} --kinds lock --locks 1"
_ENDING = """--settings|[{"renew": false}]|"""
#: Many locks, so that many leases are tried in the time of a run; no mix of settings.
_MANY = "--faults none --kinds lock --locks 5 --loops 5 --processes 3 --timeout 6 --settings|[{}]|"
_KEPT = "--faults none --kinds lock --processes 2 --loops 3 --locks 40 --timeout 6"
_KEPT_HALF = """--settings|[{"cache_for": 0.5, "renew": false}]|--ttl 1"""
_KEPT_BRIEF = """--settings|[{"cache_for": 1, "renew": false}]|--ttl 6"""
_KEPT_LONG = """--long 0 --processes 3 --loops 1 --locks 2 --settings|[{"cache_for": 10}]|--ttl 20"""
_CRASH = """--settings|[{"crash_release": 0.4}]|--ttl 3 --timeout 8 --long 0.5 --progress 20"""
#: What `python -m rig torture` is told; options of several words stand between bars. With long ttls, what is not freed
#: shows; with short ones and long stays, what is renewed, or counted wrong.
SCENARIOS: dict[str, str] = {
    "calm": f"{_LOCK} --ttl 4 --progress 2",
    "sparse": f"{_CALM} --kinds lock --locks 2 --loops 1 --processes 2 --ttl 5 --progress 2.5",
    "crowded": f"{_LOCK} --loops 8 --fast --ttl 4 --progress 2",
    "renewing": f"{_LOCK} --ttl 0.4 --long 0.7 --progress 4",
    "ending": f"{_LOCK} --ttl 0.4 --long 0.7 {_ENDING} --progress 4",
    "rwlock": f"{_CALM} --kinds rwlock --ttl 4 --progress 2",
    "rwlock, renewing": f"{_CALM} --kinds rwlock --ttl 0.4 --long 0.7 --progress 4",
    "semaphore": f"{_CALM} --kinds semaphore --ttl 4 --long 0.01",
    "semaphore, renewing": f"{_CALM} --kinds semaphore --ttl 0.4 --long 0.7",
    "multilock": f"{_CALM} --kinds multilock --ttl 8 --timeout 1.5 --seconds 12 --progress 3",
    "multilock, renewing": f"{_CALM} --kinds multilock --ttl 0.4 --long 0.7",
    "election": f"{_CALM} --kinds election --ttl 4 --progress 2",
    "killed": f"{_LOCK} --faults|kill a worker|--seconds 8 --pause 0.4 --ttl 1 --progress 5",
    "stopped": f"{_LOCK} --faults|stop a worker|--seconds 8 --pause 0.4 --ttl 0.4 --long 0.3 --progress 5",
    "wires": f"{_LOCK} --faults|late requests,late replies,lost reply,reset after,delay|--seconds 12 --pause 0.3 "
    "--ttl 0.6 --long 0.2 --progress 8",
    "emptied": f"{_LOCK} --faults|flush all|--seconds 6 --pause 0.3 --ttl 2",
    "pushed": f"{_MANY} --ttl 8 --long 0.08 --timeout 30 --seconds 40 --progress 6",
    "slow": f"{_MANY} {_ENDING} --faults delay --pause 0.2 --ttl 1.5 --long 0.7 --seconds 22 --progress 8",
    "fading": f"{_MANY} --faults|fading connections|--pause 0.2 --ttl 2 --long 0.7 --seconds 32 --progress 8",
    "faster": f"{_MANY} {_ENDING} --faults|server clock faster|--pause 0.1 --ttl 6 --timeout 0.3 --long 0.9 "
    "--seconds 30 --progress 8",
    "parted": f"{_MANY} --faults partition --pause 0.2 --ttl 1.5 --long 0.4 --seconds 40 --progress 8",
    "late requests": f"{_MANY} --faults|late requests|--pause 0.2 --processes 2 --ttl 3 --timeout 0.4 --seconds 40 "
    "--progress 2.5",
    "kept": f"{_KEPT} {_KEPT_LONG} --seconds 18 --progress 3",
    "kept, ending": f"{_KEPT} {_KEPT_HALF} --long 0.1 --seconds 18 --progress 4",
    "kept, cut": f"{_KEPT} {_KEPT_BRIEF} --long 0.05 --seconds 22 --progress 8",
    "cut off": f"{_LOCK} {_CRASH} --faults|cut off a stopped worker|--pause 0.1 --seconds 16",
    "quorum": f"{_LOCK} --topology quorum --ttl 4 --progress 6",
    "quorum, emptied": f"{_LOCK} --topology quorum --faults|restart a member empty|--seconds 15 --pause 0.2 --ttl 4 "
    "--long 0.5",
}

QUORUM_ACQUIRE, REDLOCK = "_lua/quorum_acquire.lua", "_core/redlock.py"
#: Bugs that show in a few seconds; those of the table that do, by what they do wrong, and some that are made for this.
CHOSEN: dict[str, tuple[str | Mutant, ...]] = {
    "calm": (
        "a release does not compare the token",
        "the queue is last in, first out",
        "a handoff wakes no waiter",
        "a handoff leaves the old fencing token",
        Mutant(
            "a lock that is held is free",
            ACQUIRE,
            "if redis.call('EXISTS', lock, queue, gone) == 0 then",
            "if true then",
        ),
        Mutant("who asks again gets what another one holds", ACQUIRE, "if holder == token then", "if holder then"),
        Mutant(
            "a release hands over and frees as well",
            QUEUE,
            "fence_ms) then\n    return 1",
            "fence_ms, inboxes) then\n    redis.call('DEL', lock)\n    return 1",
        ),
        Mutant("a handoff takes no one from the queue", QUEUE, "'ZPOPMIN', queue)[1]", "'ZRANGE', queue, 0, 0)[1]"),
        Mutant("a claim ends at once", QUEUE, "'SET', lock, token, 'PX', claim_ms", "'SET', lock, token, 'PX', 5"),
    ),
    "sparse": (
        "a release frees nothing",
        Mutant(
            "a release is forgotten where no client waits",
            RELEASE,
            "redis.call('EXISTS', queue) == 0 then",
            "redis.call('EXISTS', queue) == 0 then\n  do return 1 end",
        ),
    ),
    "crowded": (
        "a handed-on lease has its predecessor's token",
        "the last of a line does not release",
        "a pass does not release",
    ),
    "renewing": (
        Mutant("a renewal sets a tenth of the ttl", ORDER, "return math.max(left_ms, ttl_ms)", "return ttl_ms / 10"),
        Mutant(
            "a renewal is answered and not done", RENEW, "redis.call('PEXPIRE', KEYS[1], lasting_ms)", "local _ = 0"
        ),
    ),
    "ending": (Mutant("a lease is trusted for twice its ttl", VALIDITY, "* (1 - DRIFT) - MARGIN_S", "* 2"),),
    "rwlock": (
        "a writer is granted while there are readers",
        "a reader that leaves stays",
        Mutant(
            "readers get in beside a writer",
            "_lua/rw_acquire.lua",
            "if held == SHARED and reads and not",
            "if held ~= '' and reads and not",
        ),
        Mutant(
            "a reader that leaves takes the others along",
            "_lua/rw_release.lua",
            " and redis.call('ZCARD', KEYS[5]) == 1 then",
            " then",
        ),
        Mutant(
            "readers that wait see no reader inside",
            "_lua/let_readers_in.lua",
            "living_readers() <= (beneath and 1 or 0)",
            "true",
        ),
    ),
    "rwlock, renewing": (
        Mutant(
            "a writer's renewal is answered and not done",
            "_lua/rw_renew.lua",
            "redis.call('PEXPIRE', alone, lasting_ms)",
            "local _ = 0",
        ),
    ),
    "semaphore": (
        "one permit too many for the queue",
        "one permit too many for a newcomer",
        Mutant(
            "permits count as one, however many",
            "_lua/permits.lua",
            "    extra = extra + weight - 1",
            "    extra = extra + 0",
        ),
        Mutant(
            "the permits in use are not counted",
            "_lua/held_permits.lua",
            "return redis.call('ZCOUNT', holders, '(' .. plain(now_ms), '+inf') + extra",
            "return 0",
        ),
        Mutant(
            "a waiter for permits is let in whatever is free",
            "_lua/let_in.lua",
            "return taken + weight <= most",
            "return true",
        ),
    ),
    "semaphore, renewing": (
        Mutant(
            "a permit's renewal is answered and not done",
            "_lua/sem_renew.lua",
            "redis.call('ZADD', holders, 'XX', plain(now_ms + lasting_ms), ARGV[1])",
            "local _ = 0",
        ),
    ),
    "multilock": (
        "one lock of several is taken from its holder",
        "only the first lock of several is released",
        "a release of several does not compare the token",
    ),
    "multilock, renewing": (
        Mutant(
            "a renewal of several is answered and not done",
            "_lua/multi_renew.lua",
            "redis.call('PEXPIRE', KEYS[at], lasting_ms)",
            "local _ = 0",
        ),
    ),
    "election": ("a second candidate leads as well",),
    "killed": (
        "a granted lock has no ttl",
        "a claim has no end",
    ),
    "wires": (),
    "pushed": ("a pushed grant counts for the ttl",),
    "slow": ("validity counts from the reply",),
    "fading": ("a renewal counts from its reply",),
    "faster": ("no allowance for drift",),
    "parted": ("a pushed grant counts from the last request",),
    "late requests": ("giving back leaves no tombstone",),
    "kept": (
        "a kept lease has the fencing token of before",
        "an idle lease is not let go",
        "keepers are not told",
    ),
    "kept, ending": ("a kept lease has a deadline of its own",),
    "kept, cut": ("a lease that was cut is trusted as before",),
    "emptied": ("fencing tokens count from one",),
    "cut off": ("no proof is needed",),
    "quorum": (
        Mutant(
            "a quorum is less than a majority", REDLOCK, "self.need = self.size // 2 + 1", "self.need = self.size // 2"
        ),
        Mutant("one member is a quorum", REDLOCK, "self.need = self.size // 2 + 1", "self.need = 1"),
        "a vote is given twice",
    ),
    "quorum, emptied": ("a member that was restarted votes at once",),
}


_RENEWED = "only while the renewal 20 ms after the grant is under way does the lease last for less than it says"
_HONEST = "what its holder is told is true: "
#: Bugs of the same kinds that histories of real servers do not show, or hardly, and why; each was tried. The simulator
#: or a unit test finds them.
UNSEEN: dict[str, str] = {
    "a reply that comes after its validity is accepted": f"{_HONEST}the lease says at once that it is over",
    "a lease that was pushed counts for the ttl": _RENEWED,
    "a pushed grant counts from when it was heard": f"{_RENEWED}, if its message was late",
    "a pushed grant counts for a window of our own": f"{_RENEWED}, if the holder before it had another ttl",
    "a pushed grant is taken while a request is unanswered": "a late request has to arrive within the same lease: "
    "in one run of six",
    "a pushed grant lasts longer than was wanted": f"{_HONEST}the server holds it for as long",
    "a pushed grant is taken where replicas have to acknowledge": "a failover has to fall into the moment between the "
    "message and its replication, below 1 ms here",
    "a pushed grant is taken where nothing renews it": f"{_HONEST}the lease is shorter than was asked for, and says so",
    "a pushed grant is taken with little left of its window": f"{_HONEST}what is not renewed in time is lost",
    "a pushed grant is taken where answers take long": f"{_HONEST}what is not renewed in time is lost",
    "a lease that was taken stays held": "what overlaps after FLUSHALL is documented, and ends with the deadline",
    "a late renewal revives a lease": f"{_HONEST}the server has held it all the time",
    "the end of a lease is not reported": f"{_HONEST}remaining() is 0 then, and a history has no more to rely on",
    "a lease that others wait behind is kept": "who waits looks for itself within its claim window, 2 s",
    "a kept lease is taken by two": "two threads have to switch within a few bytecodes: not once in 199,642 operations",
    "a kept lease is taken after its time": f"{_HONEST}its deadline goes with it",
    "a kept lease trusts more than its ttl": f"{_HONEST}the server holds it for as long",
    "an extended lease is kept": "a late extension has to arrive while the lease is held again",
    "a repeat of what cut a lease cuts the next one": "a late repeat has to arrive while the lease is held again",
    "an early word is forgotten": "it has to come before the answer that grants, and is said again at the next look",
    "others get in at the first look": "who was cut off has to have looked at its lease less than crash_release before",
    "a renewal leaves the mark": "the connection has to end twice within one lease, and others to look each time",
    "a handed-on lease has a deadline of its own": "a lease is handed on for 2 ms, or for 100 ms where no one waits, "
    "and then renewed",
    "a tenure does not end": "the rule of order counts the turns of others, not how long they take",
}


class Convicted(NamedTuple):
    """What the checker said. `rules`: how often each was broken; none: it holds."""

    rules: dict[str, int]
    operations: int
    seconds: float
    said: str


@contextmanager
def _changed(mutant: Mutant | None) -> Iterator[Path]:
    """A folder with the package, and the mutant in it."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        shutil.copytree(PACKAGE, Path(folder) / "holdfast")  # with its bytecode: each worker would compile it again
        if mutant is not None:
            file = Path(folder) / "holdfast" / mutant.file
            file.write_text(file.read_text(encoding="utf-8").replace(mutant.old, mutant.new), encoding="utf-8")
        yield Path(folder)


def convict(mutant: Mutant | None, scenario: str, save: Path | None = None) -> Convicted:
    """Run it, and have its history judged. None: nothing is changed."""
    began = time.monotonic()
    plain = SCENARIOS[scenario].split("|")
    arguments = [word for at, part in enumerate(plain) for word in ([part] if at % 2 else part.split())]
    with _changed(mutant) as folder:
        command = [sys.executable, "-m", "rig", "torture", *arguments, "--json", "--src", str(folder)]
        command += ["--save", str(save or folder / "history.jsonl")]
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, env=dict(os.environ), check=False
        )
    try:
        report = json.loads(done.stdout)
    except ValueError:  # what the checker has not seen does not count
        return Convicted({}, 0, time.monotonic() - began, f"the rig failed: {done.stderr[-1500:]}")
    said = next((each for each in report["wrong"] if each.startswith(tuple(report["violations"] or ["-"]))), "")
    return Convicted(report["violations"], report["operations"], time.monotonic() - began, said)


def _cases(only: str) -> list[tuple[Mutant | None, str]]:
    known = {mutant.what: mutant for mutant in MUTANTS}
    cases: list[tuple[Mutant | None, str]] = [(None, scenario) for scenario in SCENARIOS]
    for scenario, chosen in CHOSEN.items():
        cases += [(known[each] if isinstance(each, str) else each, scenario) for each in chosen]
    return [(mutant, scenario) for mutant, scenario in cases if mutant is None or only in mutant.what]


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; 1 if the checker let one through, or convicted what is right."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants.real", description=__doc__)
    parser.add_argument("--jobs", type=int, default=3)
    parser.add_argument("--only", default="", help="those whose description holds this")
    parser.add_argument("--save", type=Path, help="keep the histories in this folder")
    options = parser.parse_args(argv)
    cases = _cases(options.only)

    def tried(case: tuple[Mutant | None, str]) -> Convicted:
        mutant, scenario = case
        what = mutant.what if mutant is not None else f"nothing is wrong ({scenario})"
        name = what.replace(" ", "-").replace(",", "").replace("'", "") + ".jsonl.xz"
        save = None if options.save is None else options.save / name
        found, tries = convict(mutant, scenario, save), 1
        while mutant is not None and not found.rules and tries < TRIES:
            found, tries = convict(mutant, scenario, save), tries + 1
        rules = ", ".join(f"{rule} {count}" for rule, count in sorted(found.rules.items()))
        print(f"{found.seconds:6.1f} s  {what}: {rules or 'HOLDS'} {found.said[:160]}", file=sys.stderr, flush=True)
        return found

    compileall.compile_dir(PACKAGE, quiet=1)
    with ThreadPoolExecutor(options.jobs) as pool:
        results = list(pool.map(tried, cases))
    print("| mutant | scenario | operations | convicted of | s |\n|-|-|-:|-|-:|")
    wrong = 0
    for (mutant, scenario), found in zip(cases, results, strict=True):
        rules = ", ".join(f"{rule} {count}" for rule, count in sorted(found.rules.items()))
        wrong += (mutant is None) == bool(found.rules) or not found.operations
        what = mutant.what if mutant is not None else "(none)"
        print(f"| {what} | {scenario} | {found.operations:,} | {rules or 'nothing'} | {found.seconds:.0f} |")
    convicted = sum(mutant is not None and bool(found.rules) for (mutant, _), found in zip(cases, results, strict=True))
    print(f"\n{convicted} mutants convicted; {wrong} cases are not as they should be.")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

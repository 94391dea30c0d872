"""`python -m rig`: torture a lock, compare several, write the table of faults."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from rig.compare import compare
from rig.locks import KINDS
from rig.rows import PAGE, page
from rig.stages import STAGES
from rig.torture import torture


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m rig", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    run = verbs.add_parser("torture", help="run, judge, exit with 1 if anything was wrong")
    run.add_argument("--seconds", type=float, default=120, help="of faults, for each topology (default: 120)")
    run.add_argument("--seed", type=int, default=1, help="decides what the nemesis does (default: 1)")
    run.add_argument("--topology", choices=[*STAGES, "all"], default="single")
    run.add_argument("--library", choices=list(KINDS), default="holdfast")
    run.add_argument(
        "--faults",
        choices=["all", "network", "process", "none"],
        default="all",
        help="of servers and wires, of processes, both, or none, where the order is judged, too (default: all; other "
        "libraries: network)",
    )
    run.add_argument("--processes", type=int, help="workers that servers and wires are hurt under (default: 6)")
    run.add_argument("--loops", type=int, default=3, help="threads or tasks in each process (default: 3)")
    run.add_argument("--locks", type=int, default=3, help="how many locks they contend for (default: 3)")
    run.add_argument("--ttl", type=float, default=2.0, help="of the leases, s (default: 2)")
    run.add_argument("--verbose", action="store_true", help="say every fault as it comes")
    run.add_argument("--json", action="store_true", help="the report as JSON")
    run.add_argument("--keep", type=Path, help="copy the histories to this folder")
    run.add_argument("--src", type=Path, help="have the workers import holdfast from this folder")
    verbs.add_parser("rows", help="write docs/evidence/faults.md from the tests' names")
    compare = verbs.add_parser("compare", help="torture every library and write docs/evidence/torture.md")
    compare.add_argument("--seconds", type=float, default=120)
    compare.add_argument("--seeds", type=int, nargs="+", default=[1])
    compare.add_argument(
        "--topologies", nargs="*", default=["quorum", "sentinel", "cluster"], help="for holdfast alone"
    )
    return parser.parse_args()


def _torture(options: argparse.Namespace) -> int:
    wrong = 0
    for topology in STAGES if options.topology == "all" else [options.topology]:
        report = torture(
            library=options.library,
            topology=topology,
            seconds=options.seconds,
            seed=options.seed,
            faults=options.faults,
            processes=options.processes,
            loops=options.loops,
            locks=options.locks,
            ttl_s=options.ttl,
            verbose=options.verbose,
            keep=options.keep,
            src=options.src,
        )
        print(report.as_json() if options.json else report.as_text(), flush=True)
        wrong += len(report.wrong)
    return 1 if wrong else 0


def _stop(*_: object) -> None:
    raise KeyboardInterrupt


def main() -> int:
    """Parse and do."""
    signal.signal(signal.SIGTERM, _stop)  # ends as Ctrl-C does: everything that was started is ended
    try:
        options = _arguments()
        if options.verb == "rows":
            PAGE.write_text(page(), encoding="utf-8")
            return 0
        if options.verb == "compare":
            return compare(options.seconds, options.seeds, options.topologies)
        return _torture(options)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())

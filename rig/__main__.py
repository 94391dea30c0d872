"""`python -m rig`: torture a lock, make the histories of verify/ again, write the table of faults."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from pathlib import Path

from rig.hazards import FAULTS
from rig.locks import KINDS
from rig.recordings import FOLDER, RECORDINGS, record
from rig.rows import PAGE, page
from rig.stages import STAGES
from rig.torture import torture

_KINDS = ("lock", "rwlock", "semaphore", "multilock", "election", "mixed")


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
        default="all",
        help="all; network: of servers and wires; process; none, where the order is judged, too; or names of faults, "
        "separated by commas (default: all; other libraries: network)",
    )
    run.add_argument("--lives", choices=["all", *FAULTS], default="all", help="the API of those under process faults")
    run.add_argument("--processes", type=int, help="workers that servers and wires are hurt under (default: 6)")
    run.add_argument("--commands", type=int, default=0, help="of these, workers that use `holdfast run` (default: 0)")
    run.add_argument("--loops", type=int, default=3, help="threads or tasks in each process (default: 3)")
    run.add_argument("--locks", type=int, default=3, help="how many locks they contend for (default: 3)")
    run.add_argument("--kinds", choices=_KINDS, default="mixed", help="of locks (default: mixed, all of them)")
    run.add_argument("--settings", type=json.loads, help="options of leases as JSON, a list: one is drawn for each")
    run.add_argument("--fast", action="store_true", help="no pauses: as many operations as the machine can do")
    run.add_argument("--long", type=float, default=0.01, help="share of stays longer than the ttl (default: 0.01)")
    run.add_argument("--pause", type=float, help="between two faults, s (default: 0.8 to 2)")
    run.add_argument("--ttl", type=float, default=2.0, help="of the leases, s (default: 2)")
    run.add_argument("--timeout", type=float, default=5.0, help="of an acquire, s (default: 5)")
    run.add_argument("--progress", type=float, help="a free lock is taken within this, s (default: the ttl and 20)")
    run.add_argument("--verbose", action="store_true", help="say every fault as it comes")
    run.add_argument("--json", action="store_true", help="the report as JSON")
    run.add_argument("--save", type=Path, help="write the history there; compressed if the name ends in .xz")
    run.add_argument("--src", type=Path, help="have the workers import holdfast from this folder")
    run.add_argument("--beside", type=Path, help="have every second worker import holdfast from this folder")
    verbs.add_parser("rows", help="write docs/evidence/faults.md from the tests' names")
    recorded = verbs.add_parser("record", help="make the histories of verify/ again, and their manifest")
    recorded.add_argument("--only", choices=[each.name for each in RECORDINGS], default="", help="this one")
    recorded.add_argument("--all", action="store_true", help="those that are too large to be shipped, too")
    recorded.add_argument("--into", type=Path, default=FOLDER, help="the folder (default: verify/histories)")
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
            lives=options.lives,
            processes=options.processes,
            commands=options.commands,
            loops=options.loops,
            locks=options.locks,
            kinds=options.kinds,
            settings=options.settings,
            fast=options.fast,
            long_share=options.long,
            pause_s=options.pause,
            ttl_s=options.ttl,
            timeout_s=options.timeout,
            progress_s=options.progress,
            verbose=options.verbose,
            save=options.save,
            src=options.src,
            beside=options.beside,
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
        if options.verb == "record":
            return record(options.only, options.into, everything=options.all)
        return _torture(options)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())

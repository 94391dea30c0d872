"""`python -m holdfast._sim`: run seeds, replay one, see every mode break as demanded, explore small worlds."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from holdfast._sim import run
from holdfast._sim.explore import explore
from holdfast._sim.options import MODES
from holdfast._sim.primitives import found

__all__ = ["main"]


def _names(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in found():
            raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(found())}")
    return names


def _seeds(text: str) -> tuple[int, int | None]:
    """`N`: from 0 to before N; `A:B`: from A to before B; `A:`: from A on."""
    first, colon, last = text.partition(":")
    try:
        if not colon:
            return 0, int(first)
        return int(first or 0), int(last) if last else None
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: N, A:B or A:") from None


def main(argv: list[str] | None = None) -> int:
    """The command line; returns the exit status: 1 when something did not hold."""
    parser = argparse.ArgumentParser(prog="python -m holdfast._sim", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)

    many = commands.add_parser("run", help="many seeds")
    many.add_argument("--seeds", type=_seeds, default=(0, None), help="N, A:B or A: (default: from 0 on)")
    many.add_argument("--minutes", type=float, default=None, help="stop after so long (default: 1, or never)")
    many.add_argument("--mode", choices=[*MODES], default="ordinary")
    many.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one a core)")
    many.add_argument("--primitives", type=_names, default=None, help="only these, comma-separated")
    many.add_argument("--keep-going", action="store_true", help="do not stop at the first violation")
    many.add_argument("--markdown", type=Path, default=None, help="write the summary there")

    again = commands.add_parser("replay", help="one seed with its trace")
    again.add_argument("seed", type=int)
    again.add_argument("--mode", choices=[*MODES], default="ordinary")
    again.add_argument("--without", default="", help="kinds of faults to leave out, comma-separated")
    again.add_argument("--primitives", type=_names, default=None)
    again.add_argument("--whole", action="store_true", help="the whole trace, not its end")
    again.add_argument("--shrink", action="store_true", help="leave out what is not needed for the violation")

    commands.add_parser("modes", help="what is not promised breaks, and nothing else does")

    small = commands.add_parser("explore", help="small worlds, every order of the first messages, one fault anywhere")
    small.add_argument("--clients", type=int, default=2)
    small.add_argument("--depth", type=int, default=7, help="how many messages")
    small.add_argument("--primitive", choices=[*found()], default="mutex")

    options = parser.parse_args(argv)
    if options.command == "run":
        minutes = options.minutes
        if minutes is None and options.seeds[1] is None:
            minutes = 1.0
        tally = run.run_seeds(
            options.seeds,
            options.mode,
            seconds=None if minutes is None else minutes * 60,
            jobs=options.jobs,
            names=options.primitives,
            keep_going=options.keep_going,
            tell=lambda line: print(line, flush=True),
        )
        print(tally.text())
        if options.markdown is not None:
            options.markdown.write_text(tally.markdown(), encoding="utf-8")
        for seed, _ in tally.violations[:3]:
            print()
            print(run.report(seed, options.mode, names=options.primitives))
        return 1 if tally.violations else 0
    if options.command == "replay":
        without = frozenset(kind.replace("-", " ") for kind in options.without.split(",") if kind)
        print(
            run.report(
                options.seed,
                options.mode,
                without=without,
                names=options.primitives,
                shrink=options.shrink,
                whole=options.whole,
            )
        )
        return 0
    if options.command == "explore":
        explored = explore(options.primitive, clients=options.clients, depth=options.depth)
        print(f"{explored.worlds:,} worlds, {explored.steps:,} steps, all of them: {'yes' if explored.whole else 'no'}")
        if explored.broken is not None:
            print(f"choices {explored.broken[0]}: {explored.broken[1]}")
        return 0 if explored.whole else 1
    table, good = run.run_modes()
    print(table)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

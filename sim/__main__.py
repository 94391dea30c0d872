"""`python -m sim`: run seeds, replay one, see every mode break as demanded, explore small worlds."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from sim import run
from sim.explore import FAULTS, Bound, choosable, explore, read, replay
from sim.options import MODES
from sim.primitives import found

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


def _faults(text: str) -> tuple[str, ...]:
    kinds = tuple(kind for kind in text.split(",") if kind and kind != "none")
    for kind in kinds:
        if kind not in FAULTS:
            raise argparse.ArgumentTypeError(f"{kind!r} is none of {', '.join(FAULTS)}")
    return kinds


def _choices(text: str) -> list[int]:
    try:
        return read(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: as 12:3,0:1") from None


def main(argv: list[str] | None = None) -> int:
    """The command line; returns the exit status: 1 when something did not hold."""
    parser = argparse.ArgumentParser(prog="python -m sim", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)

    many = commands.add_parser("run", help="many seeds")
    many.add_argument("--seeds", type=_seeds, default=(0, None), help="N, A:B or A: (default: from 0 on)")
    many.add_argument("--minutes", type=float, default=None, help="stop after this many minutes (default: 1, or never)")
    many.add_argument("--mode", choices=[*MODES], default="ordinary")
    many.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one a core)")
    many.add_argument("--primitives", type=_names, default=None, help="only these, comma-separated")
    many.add_argument("--keep-going", action="store_true", help="do not stop at the first violation")
    many.add_argument("--markdown", type=Path, default=None, help="write the summary there")

    again = commands.add_parser("replay", help="one seed with its trace")
    again.add_argument("seed", type=int)
    again.add_argument("--mode", choices=[*MODES], default="ordinary")
    again.add_argument("--protected", action="store_true", help="with the protection that the mode takes away")
    again.add_argument("--without", default="", help="kinds of faults to leave out, comma-separated")
    again.add_argument("--primitives", type=_names, default=None)
    again.add_argument("--whole", action="store_true", help="the whole trace, not its end")
    again.add_argument("--shrink", action="store_true", help="leave out what is not needed for the violation")

    commands.add_parser("modes", help="what is not promised breaks, nothing else does, nor that when protected")

    small = commands.add_parser("explore", help="small worlds: every order of everything, one fault anywhere")
    small.add_argument("--primitive", choices=choosable(), default="mutex")
    small.add_argument("--clients", type=int, default=2)
    small.add_argument("--acquisitions", type=int, default=1, help="of each client")
    small.add_argument("--hurries", type=int, default=0, help="how often time may overtake a message that is under way")
    small.add_argument("--faults", type=_faults, default=FAULTS, help=f"one of these (default: {','.join(FAULTS)})")
    small.add_argument("--impatient", action="store_true", help="waiting has a limit")
    small.add_argument("--minutes", type=float, default=None, help="stop after this many minutes (default: never)")
    small.add_argument("--choices", type=_choices, default=None, help="replay the world of these choices")

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
                protected=options.protected,
            )
        )
        return 0
    if options.command == "explore":
        bound = Bound(
            options.primitive,
            options.clients,
            options.acquisitions,
            options.hurries,
            options.faults,
            not options.impatient,
        )
        if options.choices is not None:
            trace, violation = replay(bound, options.choices)
            print("\n".join([*trace, f"violation: {violation or 'none'}"]))
            return 0
        explored = explore(bound, seconds=None if options.minutes is None else options.minutes * 60)
        print(explored.text())
        return 1 if explored.broken is not None else 0
    table, good = run.run_modes()
    print(table)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

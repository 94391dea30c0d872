"""`python -m holdfast.lab`: the lab without the command line's libraries."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from holdfast.lab import commands
from holdfast.lab.runs import UnknownName

__all__ = ["main"]


def main(words: Sequence[str] | None = None) -> int:
    """Read the arguments and do what they say."""
    parser = argparse.ArgumentParser("python -m holdfast.lab", description="How lock schemes fail, shown for real.")
    doing = parser.add_subparsers(dest="what", required=True)
    listing = doing.add_parser("list", help="every scheme and fault")
    running = doing.add_parser("run", help="one scheme under one fault, as a timeline")
    running.add_argument("scheme")
    running.add_argument("fault")
    running.add_argument("--all", action="store_true", help="every variant, not only the worst")
    reporting = doing.add_parser("report", help="the whole matrix, as a page")
    reporting.add_argument("-o", "--output", default="report.html")
    reporting.add_argument("--scheme", action="append", default=[])
    reporting.add_argument("--fault", action="append", default=[])
    reporting.add_argument("--jobs", type=int)
    torturing = doing.add_parser("torture", help="your own lock, under all faults that apply")
    torturing.add_argument("factory", metavar="MODULE:FACTORY")
    torturing.add_argument("--show", action="store_true", help="with the timelines of what is not safe")
    torturing.add_argument("-o", "--output")
    torturing.add_argument("--jobs", type=int)
    for part in (listing, running, torturing):
        part.add_argument("--json", action="store_true")
    for part in (running, torturing):
        part.add_argument("--width", type=int)
    given = parser.parse_args(words)
    try:
        match given.what:
            case "list":
                return commands.list_all(given.json)
            case "run":
                return commands.run(
                    given.scheme, given.fault, as_json=given.json, all_runs=given.all, width=given.width
                )
            case "report":
                return commands.report(given.output, schemes=given.scheme, faults=given.fault, jobs=given.jobs)
            case _:
                return commands.torture(
                    given.factory,
                    as_json=given.json,
                    output=given.output,
                    show=given.show,
                    width=given.width,
                    jobs=given.jobs,
                )
    except (UnknownName, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return commands.USAGE
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())

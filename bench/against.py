"""`python -m bench.against CHECKOUT [ROW …]`: rows of the benchmark here and in another checkout, in turn.

Each round measures a row in both, so that other load on the machine falls on both. Printed are the medians of the
rounds, and here / there for each figure. The figures of other libraries are the same code in both: how far their ratios
are from 1 says how much noise there is.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from bench.rows import ROWS
from bench.tables import number

__all__ = ["compared", "main"]

HERE = Path(__file__).resolve().parent.parent
#: (row, who, what)
Figures: TypeAlias = dict[tuple[str, str, str], float]


def measure(checkout: Path, row: str, *more: str) -> Figures:
    """Return the figures of a row that is measured there."""
    python = checkout / ".venv" / "bin" / "python"
    done = subprocess.run(
        [str(python) if python.exists() else sys.executable, "-m", "bench", "--json", *more, "--only", row],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(checkout / "src"), str(checkout)])},
        stdout=subprocess.PIPE,
        check=True,
    )
    return {
        (row, who, what): value
        for table in json.loads(done.stdout)["rows"]
        for who, figures in table["figures"].items()
        for what, value in figures.items()
        if value is not None
    }


def compared(here: Sequence[Figures], there: Sequence[Figures]) -> list[str]:
    """Lines of a table: what both have measured, by its medians, and their ratio."""
    lines = ["| row | who | what | here | there | here / there |", "|-|-|-|-:|-:|-:|"]
    for key in here[0]:
        both = [[figures[key] for figures in rounds if key in figures] for rounds in (here, there)]
        if all(both):
            one, other = map(statistics.median, both)
            ratio = f"{one / other:.2f}" if other else "–"
            lines.append(f"| {' | '.join(key)} | {number(one)} | {number(other)} | {ratio} |")
    return lines


def main(words: Sequence[str] | None = None) -> int:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.against", description="Compare with another checkout.")
    parser.add_argument("checkout", type=Path)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"of: {', '.join(ROWS)}; all, if none is named")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="a little of everything, to check that it runs")
    options = parser.parse_args(words)
    if unknown := [row for row in options.rows if row not in ROWS]:
        parser.error(f"no row of the benchmark: {', '.join(unknown)}")
    if not (options.checkout / "bench" / "__main__.py").exists():
        parser.error(f"no checkout with a benchmark: {options.checkout}")
    more = ("--quick",) if options.quick else ()
    for row in options.rows or ROWS:
        here: list[Figures] = []
        there: list[Figures] = []
        for turn in range(options.rounds):
            # They begin in turn, so that what one leaves behind falls on both.
            sides = [(HERE, here), (options.checkout.resolve(), there)]
            for checkout, found in sides if turn % 2 == 0 else sides[::-1]:
                found.append(measure(checkout, row, *more))
        lines = compared(here, there)
        print("\n".join(lines if row == (options.rows or list(ROWS))[0] else lines[2:]), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

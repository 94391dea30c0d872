"""Runs the rows, shows them as they come, writes the page."""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from bench import page
from bench.rows import ROWS
from bench.run import Missing, Run
from bench.tables import Table
from holdfast import embedded

__all__ = ["main"]

_PAGES = Path(__file__).parent.parent / "docs"


def main(words: Sequence[str] | None = None) -> int:
    """Exit status 1 when a row failed, not when a target was missed: one run on a shared machine proves nothing."""
    options = _parse(words)
    wanted = list(dict.fromkeys(options.only)) if options.only else list(ROWS)
    pages = options.pages or (_PAGES if wanted == list(ROWS) and not options.quick else None)
    tables: list[Table] = []
    written: list[Path] = []
    failed = False
    begin = time.monotonic()
    load = os.getloadavg()[1]  # the 10,000 threads of a peer raise it to hundreds later
    # Sessions of hundreds of processes and tasks: the server's file limit is the one thing to raise.
    with embedded.server(port=0, password="", config={"maxclients": "20000", "save": ""}) as server:
        run = Run(server, options.quick, options.json)
        for name in wanted:
            try:
                table = ROWS[name](run)
            except Missing as missing:
                table = Table(name, name, "", ("",), missing=str(missing))
            except Exception as error:  # the other rows are still worth having
                traceback.print_exc()
                failed = True
                table = Table(name, name, "", ("",), missing=f"it failed with {error!r}")
            tables.append(table)
            if pages is not None:  # after every row, so that nothing is lost with a run that is interrupted
                facts = _facts(server, time.monotonic() - begin, options.quick, load)
                written = page.write(pages, tables, facts)
            if not options.json:
                run.say("")
                print(("\r" if sys.stderr.isatty() else "") + table.plain() + "\n", flush=True)
    facts = _facts(server, time.monotonic() - begin, options.quick, load)
    if options.json:
        print(json.dumps({"facts": facts, "rows": [table.as_dict() for table in tables]}, indent=2))
    if written:
        print(f"written: {', '.join(map(str, written))}", file=sys.stderr)
    return 1 if failed else 0


def _parse(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="Measure holdfast, compared with other locks and with what the wire allows."
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=list(ROWS), help=f"of: {', '.join(ROWS)}")
    parser.add_argument("--quick", action="store_true", help="a little of everything, to check that it runs")
    parser.add_argument("--json", action="store_true", help="figures as JSON on stdout, no progress")
    parser.add_argument(
        "--pages",
        type=Path,
        metavar="FOLDER",
        help="write the pages there (default: docs, when everything is measured)",
    )
    return parser.parse_args(words)


def _facts(server: embedded.Server, lasted_s: float, quick: bool, load: float) -> dict[str, str]:
    said = subprocess.run([server.executable, "--version"], capture_output=True, text=True, check=False).stdout
    versions = ", ".join(
        f"{name} {_version(name)}" for name in ("holdfast-locks", "redis", "hiredis", "python-redis-lock")
    )
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()} {platform.release()}",
        "load": f"{load:.1f} (of the last five minutes, at the beginning)",
        "server": said.strip(),
        "versions": f"Python {platform.python_version()}, {versions}",
        "lasted": f"{lasted_s:.0f} s{', with --quick' if quick else ''}",
    }


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "(absent)"


if __name__ == "__main__":
    sys.exit(main())

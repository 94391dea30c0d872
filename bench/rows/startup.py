"""What `holdfast run` puts before a command."""

from __future__ import annotations

import importlib.util
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from bench.peers import unique
from bench.run import Run, ratio, rounds
from bench.tables import Table, number

__all__ = ["startup"]


def startup(run: Run) -> Table:
    """`holdfast run -- true` beside a Python that does nothing, and one that only imports a client library."""
    table = Table(
        "startup",
        "Start-up time",
        "From the start of the program to its end, ms: `holdfast run NAME -- true` connects, acquires, runs `true`, "
        "releases.",
        ("", "ms", "× python -c pass"),
    )
    program = Path(sys.executable).parent / "holdfast"
    environment = os.environ | {"HOLDFAST_URL": run.server.url}
    # An installed package is compiled once: a run that compiles all of it each time measures the compiler.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    nothing = "python -c pass"
    parties: dict[str, list[str]] = {
        "true": ["true"],
        nothing: [sys.executable, "-c", "pass"],
        "python -c 'import redis'": [sys.executable, "-c", "import redis"],
        "holdfast run NAME -- true": [str(program), "run", unique("startup"), "--", "true"],
    }
    if importlib.util.find_spec("holdfast.cli") is None or not program.exists():
        table.missing = "`holdfast run` (it is not installed here)."
        del parties["holdfast run NAME -- true"]

    def measure(words: list[str]) -> Callable[[], float]:
        def once() -> float:
            begin = time.perf_counter()
            subprocess.run(words, env=environment, check=True, stdout=subprocess.DEVNULL)
            return (time.perf_counter() - begin) * 1000

        return once

    for words in parties.values():
        measure(words)()
    found = rounds(run, "startup", run.some(15, 2), {who: measure(words) for who, words in parties.items()})
    for who in parties:
        median, times = statistics.median(found[who]), ratio(found[who], found[nothing])
        table.lines.append((f"`{who}`", number(median), number(times)))
        table.figures[who] = {"ms": median, "ratio": times}
    return table

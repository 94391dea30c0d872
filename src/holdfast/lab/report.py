"""The matrix as one page that needs no network: every verdict, and behind it the timeline.

The page carries its data as JSON and draws with a script of its own; `page.html` beside this file is its frame.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import holdfast
from holdfast.lab.faults import FAULTS
from holdfast.lab.handles import ENTRIES
from holdfast.lab.runs import NOT_RUN, Cell, Run
from holdfast.lab.story import tell
from holdfast.lab.verdicts import MARKS

__all__ = ["page"]

_FRAME = Path(__file__).with_name("page.html")
_PLACE = "/*DATA*/"

_MEANINGS = {
    "exclusion violated": "two were inside the critical section at once",
    "lost update": "a write was wiped out by another that started from the same value",
    "foreign release": "a lock was removed by one who did not hold it",
    "stuck": "it can never be acquired again",
    "unavailable": "no client acquired while the fault lasted",
    "safe": "nothing of the kind happened in this play",
    NOT_RUN: "could not be played on this machine",
}
#: One letter for each state of a client, to keep the page small.
_LETTERS = {"out": "o", "waiting": "w", "inside": "i", "stopped": "s", "dead": "d"}


def page(cells: Sequence[Cell], schemes: Sequence[str], faults: Sequence[str], seconds: float) -> str:
    """The whole page.

    Args:
        cells: what was played.
        schemes, faults: rows and columns, in this order; what no cell was played for stays empty.
        seconds: how long it took.
    """
    when = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    played = [cell for cell in cells if cell.verdict != NOT_RUN]
    data = {
        "made": f"{len(played)} cells played in {seconds:.0f} s on {when}, "
        f"holdfast {holdfast.__version__}, Python {platform.python_version()}, {platform.system()}.",
        "marks": MARKS,
        "meanings": {kind: text for kind, text in _MEANINGS.items() if kind != NOT_RUN or len(played) < len(cells)},
        "schemes": [{"name": name, "doc": _doc(name)} for name in schemes],
        "faults": [{"name": name, "doc": FAULTS[name].doc} for name in faults],
        "cells": {f"{cell.scheme} {cell.fault}": _cell(cell) for cell in cells},
    }
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), default=str)
    # Nothing in the data may end the script element it stands in.
    text = text.replace("<", "\\u003c")
    return _FRAME.read_text(encoding="utf-8").replace(_PLACE, text)


def _doc(scheme: str) -> str:
    return ENTRIES[scheme].doc.strip() if scheme in ENTRIES else f"A lock made by {scheme}."


def _cell(cell: Cell) -> dict[str, Any]:
    worst_run = cell.worst_run
    return {
        "verdict": cell.verdict,
        "kinds": cell.kinds,
        "notRun": cell.not_run,
        "worst": cell.runs.index(worst_run) if worst_run is not None else 0,
        "runs": [_run(run) for run in cell.runs],
    }


def _run(run: Run) -> dict[str, Any]:
    story = tell(run.history, run.verdicts)
    lanes = story.lanes
    rows = []
    for row in story.rows:
        states = "".join(_LETTERS[row.states.get(client, "out")] for client in story.clients)
        cells = [[lanes.index(lane), text] for lane, text in row.cells.items() if lane in lanes]
        rows.append([round(row.at_ms, 1), states, cells, *([list(row.note)] if row.note else [])])
    return {
        "variant": run.variant,
        "verdict": run.verdict,
        "findings": [[verdict.kind, verdict.sentence] for verdict in run.verdicts],
        "clients": story.clients,
        "servers": story.servers,
        "key": run.history.lock_keys[0] if run.history.lock_keys else "",
        "rows": rows,
    }

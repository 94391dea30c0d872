"""The matrix as one page that needs no network: every verdict, its reason, and behind it the timeline.

The page carries its data as JSON and draws with a script of its own; `page.html` beside this file is its frame. What it
carries is also what the next report reads, so that only those cells are played again that have changed.
"""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import holdfast
from holdfast_lab.faults import FAULTS
from holdfast_lab.handles import Entry
from holdfast_lab.runs import Cell, Run
from holdfast_lab.story import tell
from holdfast_lab.texts import expected, phrases, sources, text_of
from holdfast_lab.verdicts import MARKS

__all__ = ["cell_data", "page", "read_cells", "without_page"]

_FRAME = Path(__file__).with_name("page.html")
_PLACE = "/*DATA*/"
_DATA = re.compile(r'<script id="data" type="application/json">(.*?)</script>', re.DOTALL)
#: One letter for each state of a client, to keep the page small.
_LETTERS = {"out": "o", "waiting": "w", "inside": "i", "stopped": "s", "dead": "d"}

#: What draws a run.
_DRAWN = ("clients", "servers", "key", "rows")


def page(cells: Mapping[str, Any], schemes: Sequence[Entry], faults: Sequence[str], played: int, seconds: float) -> str:
    """The whole page.

    Args:
        cells: `cell_data` by the name of the cell.
        schemes, faults: rows and columns, in this order; what there is no cell for stays empty.
        played: how many of them were played now; the others were taken over.
    """
    when = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    versions = f"holdfast {holdfast.__version__}, Python {platform.python_version()}, {platform.system()}"
    kept = len(cells) - played
    data = {
        "made": {
            "en": f"{played} cells played in {seconds:.0f} s on {when}, {kept} unchanged since before; {versions}.",
            "zh": f"{when}：运行了 {played} 格，用时 {seconds:.0f} s；{kept} 格自上次以来没有变化；{versions}。",
        },
        "marks": MARKS,
        "meanings": {kind: text_of("kind", kind) for kind in MARKS},
        "schemes": [{"name": entry.name, **entry.text, "sources": sources(entry.name)} for entry in schemes],
        "faults": [{"name": name, **FAULTS[name].text} for name in faults],
        "phrases": phrases(),
        "cells": cells,
    }
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), default=str)
    # Nothing in the data may end the script element it stands in.
    text = text.replace("<", "\\u003c")
    return _FRAME.read_text(encoding="utf-8").replace(_PLACE, text)


def read_cells(target: Path) -> dict[str, Any] | None:
    """The cells of a page that was written before; None if it is not there or is something else."""
    try:
        found = _DATA.search(target.read_text(encoding="utf-8"))
        cells = json.loads(found[1])["cells"] if found is not None else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return cells if isinstance(cells, dict) else None


def cell_data(cell: Cell, fingerprint: str = "") -> dict[str, Any]:
    """Return what programs are told of a cell, and what the page needs besides."""
    worst_run, said = cell.worst_run, expected(cell.scheme, cell.fault, cell.clients)
    return {
        **cell.as_json(events=False),
        "of": fingerprint,
        "zh": said and said.zh,
        "others": said and said.others,
        "worst": cell.runs.index(worst_run) if worst_run is not None else 0,
        "runs": [_run(run) for run in cell.runs],
    }


def without_page(cell: Mapping[str, Any]) -> dict[str, Any]:
    """Return what programs are told, of that."""
    told = {key: value for key, value in cell.items() if key not in ("of", "zh", "others", "worst")}
    return {**told, "runs": [{key: run[key] for key in run if key not in _DRAWN} for run in cell["runs"]]}


def _run(run: Run) -> dict[str, Any]:
    story = tell(run.history, run.verdicts)
    lanes = story.lanes
    rows = []
    for row in story.rows:
        states = "".join(_LETTERS[row.states.get(client, "out")] for client in story.clients)
        cells = [[lanes.index(lane), text] for lane, text in row.cells.items() if lane in lanes]
        rows.append([round(row.at_ms, 1), states, cells, *([list(row.note)] if row.note else [])])
    return {
        **run.as_json(events=False),
        "variant": run.variant if run.take == 1 else f"{run.variant} (take {run.take})".strip(),
        "clients": story.clients,
        "servers": story.servers,
        "key": run.history.lock_keys[0] if run.history.lock_keys else "",
        "rows": rows,
    }

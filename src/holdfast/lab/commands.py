"""What `holdfast lab …` does, apart from reading its arguments. Each returns an exit status.

Statuses: 0 safe (or done); 1 not safe; 64 wrong usage; 69 could not be played here.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from holdfast.lab import runs
from holdfast.lab.faults import FAULTS
from holdfast.lab.handles import ENTRIES, Entry, entry_for_factory, first_line, load_factory
from holdfast.lab.report import page
from holdfast.lab.runs import NOT_RUN, Cell
from holdfast.lab.timeline import cell_text
from holdfast.lab.verdicts import MARKS

__all__ = ["NOT_PLAYED", "NOT_SAFE", "SAFE", "USAGE", "list_all", "report", "run", "torture"]

SAFE, NOT_SAFE, USAGE, NOT_PLAYED = 0, 1, 64, 69


def _is_colorful(out: TextIO) -> bool:
    return out.isatty() and "NO_COLOR" not in os.environ


def list_all(as_json: bool = False, out: TextIO | None = None) -> int:
    """Every scheme and every fault."""
    out = out or sys.stdout
    if as_json:
        schemes = [
            {
                "name": entry.name,
                "servers": entry.servers,
                "exclusive": entry.exclusive,
                "missing": entry.missing,
                "doc": entry.doc.strip(),
            }
            for entry in ENTRIES.values()
        ]
        faults = [{"name": fault.name, "on": fault.on, "doc": fault.doc} for fault in FAULTS.values()]
        out.write(json.dumps({"schemes": schemes, "faults": faults}, ensure_ascii=False, indent=2) + "\n")
        return SAFE
    out.write("schemes\n")
    for entry in ENTRIES.values():
        extra = " [five servers, started for it]" if entry.servers > 1 else ""
        extra += f" [{entry.missing}]" if entry.missing else ""
        out.write(f"  {entry.name:<24} {first_line(entry.doc)}{extra}\n")
    out.write("\nfaults\n")
    for fault in FAULTS.values():
        extra = {"any": "", "single": " [one server]", "quorum": " [five servers]"}[fault.on]
        missing = fault.missing()
        extra += f" [{missing}]" if missing else ""
        out.write(f"  {fault.name:<24} {fault.doc}{extra}\n")
    out.write("\nholdfast lab run SCHEME FAULT shows what happens.\n")
    return SAFE


def _status(cell: Cell) -> int:
    if cell.verdict == NOT_RUN:
        return NOT_PLAYED
    return SAFE if cell.is_safe else NOT_SAFE


def run(
    scheme: str,
    fault: str,
    *,
    as_json: bool = False,
    all_runs: bool = False,
    width: int | None = None,
    out: TextIO | None = None,
    err: TextIO | None = None,
) -> int:
    """One scheme under one fault, with its timeline. Raises UnknownName."""
    out, err = out or sys.stdout, err or sys.stderr
    entry, what = runs.find_entry(scheme), runs.find_fault(fault)
    if entry.servers > 1 and what.applies_to(entry) and not as_json:
        err.write(f"{entry.name} needs {entry.servers} servers: starting them\n")
    cell = runs.play(entry, what)
    if as_json:
        out.write(json.dumps(cell.as_json(), ensure_ascii=False, default=str) + "\n")
    else:
        out.write(cell_text(cell, width, _is_colorful(out), all_runs) + "\n")
    return _status(cell)


class _Progress:
    """A line on a terminal, a line for each cell elsewhere."""

    def __init__(self, err: TextIO) -> None:
        self._err = err
        self._began = time.monotonic()

    def __call__(self, done: int, count: int, cell: Cell) -> None:
        passed = time.monotonic() - self._began
        left = passed / done * (count - done)
        mark = MARKS[cell.verdict]
        text = f"{done:>3}/{count}  {passed:4.0f} s, {left:4.0f} s left  {mark:<2} {cell.scheme} under {cell.fault}"
        if self._err.isatty():
            self._err.write(f"\r\x1b[K{text[:100]}" + ("\n" if done == count else ""))
        else:
            self._err.write(text + "\n")
        self._err.flush()


def report(
    output: str,
    *,
    schemes: Sequence[str] = (),
    faults: Sequence[str] = (),
    jobs: int | None = None,
    err: TextIO | None = None,
) -> int:
    """Play all cells (or those of the named schemes and faults) and write the page. Raises UnknownName."""
    err = err or sys.stderr
    entries = [runs.find_entry(name) for name in schemes] or list(ENTRIES.values())
    wanted = [runs.find_fault(name) for name in faults] or list(FAULTS.values())
    target = Path(output)
    if not target.parent.is_dir():
        err.write(f"cannot write {output}: there is no directory {target.parent}\n")
        return USAGE
    chosen = [(entry, fault) for entry, fault in runs.pairs(entries) if fault in wanted]
    began = time.monotonic()
    cells = runs.play_many(chosen, _Progress(err), jobs)
    _write(target, page(cells, [e.name for e in entries], [f.name for f in wanted], time.monotonic() - began))
    unsafe = sum(not cell.is_safe and cell.verdict != NOT_RUN for cell in cells)
    err.write(f"{len(cells)} cells in {time.monotonic() - began:.0f} s, {unsafe} of them not safe: {output}\n")
    return SAFE


def _write(target: Path, text: str) -> None:
    """Whole or not at all."""
    beside = target.with_name(target.name + ".part")
    beside.write_text(text, encoding="utf-8")
    beside.replace(target)


def torture(
    spec: str,
    *,
    as_json: bool = False,
    output: str | None = None,
    show: bool = False,
    width: int | None = None,
    jobs: int | None = None,
    out: TextIO | None = None,
    err: TextIO | None = None,
) -> int:
    """A user's own lock under every fault that applies. Raises ValueError for a factory that is none."""
    out, err = out or sys.stdout, err or sys.stderr
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    load_factory(spec)
    entry = entry_for_factory(spec)
    cells = runs.play_many(runs.pairs([entry]), _Progress(err), jobs, path=[p for p in sys.path if p])
    order = list(FAULTS)
    cells.sort(key=lambda cell: order.index(cell.fault))
    if output is not None:
        _write(Path(output), page(cells, [entry.name], [c.fault for c in cells], sum(c.seconds for c in cells)))
    if as_json:
        found = [cell.as_json(events=show) for cell in cells]
        out.write(json.dumps({"lock": spec, "cells": found}, ensure_ascii=False, default=str) + "\n")
    else:
        out.write(row_text(entry, cells))
        for cell in cells if show else ():
            if not cell.is_safe:
                out.write("\n" + cell_text(cell, width, _is_colorful(out)) + "\n")
    if all(cell.verdict == NOT_RUN for cell in cells):
        return NOT_PLAYED
    return SAFE if all(cell.is_safe or cell.verdict == NOT_RUN for cell in cells) else NOT_SAFE


def row_text(entry: Entry, cells: Sequence[Cell]) -> str:
    """The row of the matrix, a line for each fault."""
    lines = [entry.name]
    for cell in cells:
        also = [kind for kind in cell.kinds if kind != cell.verdict]
        verdict = f"{MARKS[cell.verdict]:<2} {cell.verdict}" + (f" (also {', '.join(also)})" if also else "")
        run = cell.worst_run
        why = cell.not_run if run is None else run.verdicts[0].sentence
        lines.append(f"  {cell.fault:<18} {verdict}")
        if not cell.is_safe:
            lines.append(f"  {'':<18}    {why}")
    return "\n".join(lines) + "\n"

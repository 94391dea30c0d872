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
from holdfast.lab.fingerprints import fingerprint
from holdfast.lab.handles import ENTRIES, Entry, entry_for_factory, load_factory
from holdfast.lab.report import cell_data, page, read_cells
from holdfast.lab.runs import NOT_RUN, Cell
from holdfast.lab.timeline import cell_text
from holdfast.lab.verdicts import MARKS
from holdfast.lab.verdicts import SAFE as SAFE_KIND

__all__ = ["NOT_PLAYED", "NOT_SAFE", "SAFE", "USAGE", "list_all", "report", "run", "torture"]

SAFE, NOT_SAFE, USAGE, NOT_PLAYED = 0, 1, 64, 69


def _is_colorful(out: TextIO) -> bool:
    return out.isatty() and "NO_COLOR" not in os.environ


def list_all(as_json: bool = False, out: TextIO | None = None) -> int:
    """Every scheme, with its idea, its flaw and its sentence of the ladder, and every fault."""
    out = out or sys.stdout
    if as_json:
        schemes = [
            {"name": e.name, "servers": e.servers, "exclusive": e.exclusive, "missing": e.missing, **e.text}
            for e in ENTRIES.values()
        ]
        faults = [{"name": fault.name, "on": fault.on, **fault.text} for fault in FAULTS.values()]
        out.write(json.dumps({"schemes": schemes, "faults": faults}, ensure_ascii=False, indent=2) + "\n")
        return SAFE
    out.write("schemes\n")
    for entry in ENTRIES.values():
        extra = f" [{entry.servers} servers, started for it]" if entry.servers > 1 else ""
        extra += f" [{entry.missing}]" if entry.missing else ""
        out.write(f"  {entry.name}{extra}\n")
        for field in ("idea", "flaw", "rung"):
            out.write(f"    {field + ':':<6}{entry.text[field]}\n")
    out.write("\nfaults\n")
    for fault in FAULTS.values():
        extra = {"any": "", "single": " [one server]", "quorum": " [several servers]"}[fault.on]
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
    times: int = 1,
    width: int | None = None,
    out: TextIO | None = None,
    err: TextIO | None = None,
) -> int:
    """One scheme under one fault, with its timeline. Raises UnknownName."""
    out, err = out or sys.stdout, err or sys.stderr
    entry, what = runs.find_entry(scheme), runs.find_fault(fault)
    if entry.servers > 1 and what.applies_to(entry) and not as_json:
        err.write(f"{entry.name} needs {entry.servers} servers: starting them\n")
    cell = runs.play(entry, what, times=times)
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
    times: int = 1,
    force: bool = False,
    err: TextIO | None = None,
) -> int:
    """Play all cells (or those of the named schemes and faults) and write the page. Raises UnknownName.

    Cells that the page already has are played again only if what they depend on has changed, or `force`.
    """
    err = err or sys.stderr
    entries = [runs.find_entry(name) for name in schemes] or list(ENTRIES.values())
    wanted = [runs.find_fault(name) for name in faults] or list(FAULTS.values())
    target = Path(output)
    if not target.parent.is_dir():
        err.write(f"cannot write {output}: there is no directory {target.parent}\n")
        return USAGE
    chosen = [(entry, fault) for entry, fault in runs.pairs(entries) if fault in wanted]
    marks = {f"{e.name} {f.name}": f"{fingerprint(e, f)} {times}" for e, f in chosen}
    before = {} if force else read_cells(target)
    cells = {name: before[name] for name, mark in marks.items() if name in before and before[name].get("of") == mark}
    due = [(e, f) for e, f in chosen if f"{e.name} {f.name}" not in cells]
    if cells:
        err.write(f"{len(cells)} of {len(chosen)} cells have not changed since {output} was written\n")
    began = time.monotonic()
    for cell in runs.play_many(due, _Progress(err), jobs, times=times):
        name = f"{cell.scheme} {cell.fault}"
        cells[name] = cell_data(cell, marks[name] if cell.verdict != NOT_RUN else "")
    took_s = time.monotonic() - began
    _write(target, page(cells, [e.name for e in entries], [f.name for f in wanted], len(due), took_s))
    unsafe = sum(cell["verdict"] not in (SAFE_KIND, NOT_RUN) for cell in cells.values())
    unlike = [name for name, cell in cells.items() if cell["theory"] and cell["theory"][0] != cell["verdict"]]
    err.write(f"{len(due)} cells in {took_s:.0f} s; {unsafe} of {len(cells)} not safe: {output}\n")
    for name in unlike:
        err.write(f"not what theory says ({cells[name]['theory'][0]}): {name}: {cells[name]['verdict']}\n")
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
    times: int = 1,
    servers: int = 1,
    out: TextIO | None = None,
    err: TextIO | None = None,
) -> int:
    """A user's own lock under every fault that applies. Raises ValueError for a factory that is none."""
    out, err = out or sys.stdout, err or sys.stderr
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    load_factory(spec)
    entry = entry_for_factory(spec, servers)
    cells = runs.play_many(runs.pairs([entry]), _Progress(err), jobs, path=[p for p in sys.path if p], times=times)
    order = list(FAULTS)
    cells.sort(key=lambda cell: order.index(cell.fault))
    if output is not None:
        data = {f"{cell.scheme} {cell.fault}": cell_data(cell) for cell in cells}
        took_s = sum(cell.seconds for cell in cells)
        _write(Path(output), page(data, [entry.name], [cell.fault for cell in cells], len(cells), took_s))
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
        lines.append(f"  {cell.fault:<22} {verdict}")
        if len(cell.shares) > 1:
            lines.append(f"  {'':<22}    {cell.share_text}")
        if not cell.is_safe:
            lines.append(f"  {'':<22}    {why}")
    return "\n".join(lines) + "\n"

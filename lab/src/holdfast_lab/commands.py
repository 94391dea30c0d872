"""What `holdfast lab …` does, apart from reading its arguments. Each returns an exit status.

Statuses: 0 safe (or done); 1 not safe; 64 wrong usage; 69 could not be played here.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from holdfast_lab import runs
from holdfast_lab.adapter import load_factory
from holdfast_lab.faults import FAULTS
from holdfast_lab.fingerprints import fingerprint
from holdfast_lab.handles import ENTRIES, PROCESSES, THREADS, entry_for_factory
from holdfast_lab.report import cell_data, page, read_cells, without_page
from holdfast_lab.runs import DEPENDS, NOT_RUN, Cell, cell_name
from holdfast_lab.texts import sources
from holdfast_lab.timeline import BY_TIMING, cell_text
from holdfast_lab.verdicts import KINDS, MARKS
from holdfast_lab.verdicts import SAFE as SAFE_KIND

__all__ = ["NOT_PLAYED", "NOT_SAFE", "SAFE", "USAGE", "list_all", "report", "run", "run_fault", "torture"]

SAFE, NOT_SAFE, USAGE, NOT_PLAYED = 0, 1, 64, 69
#: Of what `--json` prints; it grows when a field changes its meaning or goes.
_JSON_VERSION = 1
#: Without any fault. A lock that has another verdict then is none: further faults would all show the same.
_WORKS = (SAFE_KIND, "slow", "blocked for its ttl", "foreign release", DEPENDS)


def _is_colorful(out: TextIO) -> bool:
    return out.isatty() and "NO_COLOR" not in os.environ


def list_all(as_json: bool = False, out: TextIO | None = None) -> int:
    """Every scheme, with its idea, its flaw, its sentence of the ladder and its sources, and every fault."""
    out = out or sys.stdout
    if as_json:
        schemes = [
            {
                "name": e.name,
                "servers": e.servers,
                "exclusive": e.exclusive,
                "missing": e.missing,
                **e.text,
                "sources": sources(e.name),
            }
            for e in ENTRIES.values()
        ]
        faults = [{"name": fault.name, "on": fault.on, **fault.text} for fault in FAULTS.values()]
        out.write(json.dumps({"schemes": schemes, "faults": faults}, ensure_ascii=False, indent=2) + "\n")
        return SAFE
    out.write(
        'schemes ("from": of each listing names, values and the ttl are the play\'s, and a refused client asks again)\n'
    )
    for entry in ENTRIES.values():
        extra = f" [{entry.servers} servers, started for it]" if entry.servers > 1 else ""
        extra += f" [{entry.missing}]" if entry.missing else ""
        out.write(f"  {entry.name}{extra}\n")
        for field in ("idea", "flaw", "rung"):
            out.write(f"    {field + ':':<6}{entry.text[field]}\n")
        for source in sources(entry.name):
            out.write(f"    from: {source['en']}\n")
    out.write("\nfaults\n")
    for fault in FAULTS.values():
        extra = {"any": "", "single": " [one server]", "quorum": " [several servers]"}[fault.on]
        missing = fault.missing()
        extra += f" [{missing}]" if missing else ""
        out.write(f"  {fault.name:<24} {fault.doc}{extra}\n")
    out.write("\nholdfast lab run SCHEME FAULT shows what happens.\n")
    return SAFE


def _kinds(clients: str | None) -> tuple[str, ...]:
    """Return the kinds of clients to play with: those, or both."""
    return (PROCESSES, THREADS) if clients is None else (clients,)


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
    clients: str | None = None,
    width: int | None = None,
    out: TextIO | None = None,
    err: TextIO | None = None,
) -> int:
    """One scheme under one fault, with its timeline. Raises UnknownName."""
    out, err = out or sys.stdout, err or sys.stderr
    entry, what = runs.find_entry(scheme).of(clients or PROCESSES), runs.find_fault(fault)
    if entry.servers > 1 and what.applies_to(entry) and not as_json:
        err.write(f"{entry.name} needs {entry.servers} servers: starting them\n")
    cell = runs.play(entry, what, times=times)
    if as_json:
        _write_json([cell.as_json()], out)
    else:
        out.write(cell_text(cell, width, _is_colorful(out), all_runs) + "\n")
    return _status(cell)


def _write_json(cells: Sequence[Mapping[str, Any]], out: TextIO, **more: Any) -> None:
    """The one shape of all commands: a version, how often each verdict was found, and the cells."""
    found = {"version": _JSON_VERSION, **more, "verdicts": _verdicts(cell["verdict"] for cell in cells), "cells": cells}
    out.write(json.dumps(found, ensure_ascii=False, default=str) + "\n")


def _verdicts(found: Iterable[str]) -> dict[str, int]:
    """How often each was found, the worst first."""
    counts = Counter(found)
    return {kind: counts[kind] for kind in (*KINDS, DEPENDS, NOT_RUN) if counts[kind]}


class _Progress:
    """A line on a terminal, a line for each cell elsewhere."""

    def __init__(self, err: TextIO) -> None:
        self._err = err
        self._began = time.monotonic()

    def __call__(self, done: int, count: int, cell: Cell) -> None:
        passed = time.monotonic() - self._began
        left = passed / done * (count - done)
        mark = MARKS[cell.verdict]
        text = f"{done:>3}/{count}  {passed:4.0f} s, {left:4.0f} s left  {mark:<2} {cell.title}"
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
    clients: str | None = None,
    jobs: int | None = None,
    times: int = 1,
    force: bool = False,
    as_json: bool = False,
    err: TextIO | None = None,
) -> int:
    """Play all cells (or those of the named schemes and faults) and write the page. Raises UnknownName.

    Cells that the page already has are played again only if what they depend on has changed, or `force`.
    """
    err = err or sys.stderr
    entries = [runs.find_entry(name) for name in schemes] or list(ENTRIES.values())
    wanted = [runs.find_fault(name) for name in faults] or list(FAULTS.values())
    target = Path(output).absolute()
    if not target.parent.is_dir():
        err.write(f"cannot write {output}: there is no directory {target.parent}\n")
        return USAGE
    before = read_cells(target)
    if target.exists() and before is None:
        err.write(f"{target} is no page of the lab, and is left as it is: name another one (-o)\n")
        return USAGE
    err.write(f"the page will be {target}\n")
    chosen = [(entry, fault) for entry, fault in runs.pairs(entries, _kinds(clients)) if fault in wanted]
    marks = {cell_name(e.name, f.name, e.clients): f"{fingerprint(e, f)} {times}" for e, f in chosen}
    known = {} if force else before or {}
    cells = {name: known[name] for name, mark in marks.items() if name in known and known[name].get("of") == mark}
    # The slow ones first: they hold up nothing then.
    due = [(e, f) for e, f in reversed(chosen) if cell_name(e.name, f.name, e.clients) not in cells]
    if cells:
        err.write(f"{len(cells)} of {len(chosen)} cells have not changed since it was written\n")
    began = time.monotonic()
    for cell in runs.play_many(due, _Progress(err), jobs, times=times):
        cells[cell.name] = cell_data(cell, marks[cell.name] if cell.verdict != NOT_RUN else "")
    took_s = time.monotonic() - began
    _write(target, page(cells, entries, [f.name for f in wanted], len(due), took_s))
    unsafe = sum(cell["verdict"] not in (SAFE_KIND, NOT_RUN) for cell in cells.values())
    err.write(f"{len(due)} cells in {took_s:.0f} s; {unsafe} of {len(cells)} not safe: {target}\n")
    for name, cell in cells.items():
        if cell["agrees"] is False:
            err.write(f"not what theory says ({cell['theory']}): {name}: {cell['verdict']} {cell['shares']}\n")
    if as_json:
        _write_json([*map(without_page, cells.values())], sys.stdout)
    return SAFE


def run_fault(
    fault: str,
    *,
    clients: str | None = None,
    times: int = 1,
    as_json: bool = False,
    out: TextIO | None = None,
    err: TextIO | None = None,
) -> int:
    """Every scheme under one fault, a line for each. Raises UnknownName."""
    out, err = out or sys.stdout, err or sys.stderr
    what = runs.find_fault(fault)
    chosen = [(entry, found) for entry, found in runs.pairs(clients=_kinds(clients)) if found is what]
    order = [cell_name(entry.name, found.name, entry.clients) for entry, found in chosen]
    cells = sorted(runs.play_many(chosen, _Progress(err), times=times), key=lambda cell: order.index(cell.name))
    if as_json:
        _write_json([cell.as_json(events=False) for cell in cells], out)
    else:
        out.write(row_text(fault, [(cell.scheme, cell) for cell in cells]))
    return max(map(_status, cells))


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
    clients: str | None = None,
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
    chosen, path = runs.pairs([entry], _kinds(clients)), [folder for folder in sys.path if folder]
    first = [(e, f) for e, f in chosen if f.name == "none"]
    cells = runs.play_many(first, _Progress(err), jobs, path=path)
    broken = {cell.clients for cell in cells if cell.verdict not in _WORKS}
    rest = [(e, f) for e, f in chosen if e.clients not in broken and (f.name != "none" or times > 1)]
    if rest:
        again = runs.play_many(rest, _Progress(err), jobs, path=path, times=times)
        played = {cell.name for cell in again}
        cells = [*(cell for cell in cells if cell.name not in played), *again]
    order = list(FAULTS)
    cells.sort(key=lambda cell: (order.index(cell.fault), cell.clients))
    if output is not None:
        data = {cell.name: cell_data(cell) for cell in cells}
        took_s, faults = sum(cell.seconds for cell in cells), list(dict.fromkeys(cell.fault for cell in cells))
        _write(Path(output), page(data, [entry], faults, len(cells), took_s))
        err.write(f"the page is {Path(output).absolute()}\n")
    if as_json:
        _write_json([cell.as_json(events=show) for cell in cells], out, lock=spec, works=not broken)
    else:
        out.write(row_text(entry.name, [(cell.fault, cell) for cell in cells]))
        out.write(_summary(cells, broken, len(chosen)))
        for cell in cells if show else ():
            if not cell.is_safe:
                out.write("\n" + cell_text(cell, width, _is_colorful(out)) + "\n")
    if not all(cell.is_safe or cell.verdict == NOT_RUN for cell in cells):
        return NOT_SAFE
    # What this machine has no means for is left out; what could not be played for another reason is not known.
    unknown = [cell for cell in cells if cell.verdict == NOT_RUN and not FAULTS[cell.fault].missing()]
    return NOT_PLAYED if unknown or not any(cell.is_safe for cell in cells) else SAFE


def _summary(cells: Sequence[Cell], broken: Collection[str], wanted: int) -> str:
    """How many cells came to what, and why there are no more."""
    counts = ", ".join(f"{count} {kind}" for kind, count in _verdicts(cell.verdict for cell in cells).items())
    text = f"{len(cells)} played: {counts}\n"
    if broken:
        text += f"It does not work without a fault ({' and '.join(sorted(broken))} as clients): "
        text += f"{wanted - len(cells)} cells were not played.\n"
    return text


def row_text(title: str, cells: Sequence[tuple[str, Cell]]) -> str:
    """Cells, a line for each; with threads as clients only where that makes a difference."""
    lines = [title]
    of_processes = {name: (cell.verdict, cell.kinds) for name, cell in cells if cell.clients == PROCESSES}
    for name, cell in cells:
        also = [kind for kind in cell.kinds if kind != cell.verdict]
        if cell.clients == THREADS and of_processes.get(name) == (cell.verdict, cell.kinds):
            continue
        verdict = f"{MARKS[cell.verdict]:<2} {cell.verdict}" + (f" (also {', '.join(also)})" if also else "")
        run = cell.worst_run
        why = cell.not_run if run is None else run.verdicts[0].sentence
        of_threads = "  as threads" if name in of_processes else f"{name} (threads)"
        shown = of_threads if cell.clients == THREADS else name
        lines.append(f"  {shown:<24} {verdict}")
        if len(cell.shares) > 1:
            lines.append(f"  {'':<24}    {cell.share_text}")
        if not cell.is_safe:
            lines.append(f"  {'':<24}    {why}")
        if cell.by_timing:
            lines.append(f"  {'':<24}    {BY_TIMING}")
        if "failed" in also and run is not None:
            said = next((found.sentence for r in cell.runs for found in r.verdicts if found.kind == "failed"), "")
            lines.append(f"  {'':<24}    {said}")
    return "\n".join(lines) + "\n"

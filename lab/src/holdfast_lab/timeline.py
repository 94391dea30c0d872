"""A run in the terminal: one column per client and server, time running down, violations marked."""

from __future__ import annotations

import shutil
from collections.abc import Callable

from holdfast_lab.runs import NOT_RUN, Cell, Run
from holdfast_lab.story import Row, Story, tell
from holdfast_lab.texts import expected
from holdfast_lab.verdicts import MARKS, SAFE

__all__ = ["BY_TIMING", "LEGEND", "cell_text", "run_text", "story_text"]

LEGEND = "█ inside the section   │ outside   ┆ waiting   ▒ stopped   ✝ dead"
BY_TIMING = "held only by timing: while B asks from before A's ttl is over, no two are inside"
_BARS = {"out": "│", "waiting": "┆", "inside": "█", "stopped": "▒", "dead": "✝"}
_TIME_WIDTH = 9
_RED, _GREEN, _BOLD, _DIM, _OFF = "\x1b[31m", "\x1b[32m", "\x1b[1m", "\x1b[2m", "\x1b[0m"


def story_text(story: Story, width: int | None = None, color: bool = False) -> str:
    """The rows as text of that width (the terminal's, at least 100)."""
    width = max(width or shutil.get_terminal_size((120, 40)).columns, 100)
    lanes = story.lanes
    many = len(story.servers) > 2
    server_width = 11 if many else 0
    rest = width - _TIME_WIDTH - server_width * len(story.servers) * many
    shared = rest // max(1, len(story.clients) if many else len(lanes))
    widths = {lane: server_width if many and lane in story.servers else shared for lane in lanes}

    def paint(text: str, code: str) -> str:
        return f"{code}{text}{_OFF}" if color else text

    head = " " * _TIME_WIDTH + "".join(_fit(lane, widths[lane]) for lane in lanes)
    lines = [paint("ms".rjust(_TIME_WIDTH - 2) + head[_TIME_WIDTH - 2 :], _BOLD)]
    for row in story.rows:
        lines.extend(_row_lines(row, story, widths, width, paint))
    return "\n".join(line.rstrip() for line in lines)


def _row_lines(
    row: Row, story: Story, widths: dict[str, int], width: int, paint: Callable[[str, str], str]
) -> list[str]:
    time = f"{row.at_ms:.1f}".rjust(_TIME_WIDTH - 2) + "  "
    if row.note is not None:
        kind, text = row.note
        if kind in ("fault", "healed"):
            sign, code = ("⚡" if kind == "fault" else "♥"), _BOLD
        else:
            sign, code, text = MARKS[kind], _RED + _BOLD, f"{kind.upper()}: {text}"
        return [paint(f"{time}{sign} {text}", code)]
    cells = []
    for lane in story.lanes:
        bar = _BARS[row.states.get(lane, "out")] if lane in story.clients else " "
        cells.append(_fit(f"{bar} {row.cells.get(lane, '')}", widths[lane]))
    return [time + "".join(cells)]


def _fit(text: str, width: int) -> str:
    room = width - 1
    return (text if len(text) <= room else text[: room - 1] + "…").ljust(width)


def run_text(run: Run, width: int | None = None, color: bool = False) -> str:
    """The timeline of one run, and what follows from it."""
    lines = [story_text(tell(run.history, run.verdicts), width, color), ""]
    for verdict in run.verdicts:
        text = f"{MARKS[verdict.kind]} {verdict.kind}: {verdict.sentence}"
        code = _GREEN if verdict.kind == SAFE else _RED
        lines.append(f"{code}{text}{_OFF}" if color else text)
    return "\n".join(lines)


def cell_text(cell: Cell, width: int | None = None, color: bool = False, all_runs: bool = False) -> str:
    """The worst run of a cell (or all of them) as a timeline, with a headline."""
    title = cell.title
    theory = expected(cell.scheme, cell.fault, cell.clients)
    if cell.verdict == NOT_RUN:
        return f"{title}: not run: {cell.not_run}"
    parts = [title, LEGEND]
    first = cell.runs[0].history.lock_keys
    if first:
        parts.append(f"KEY is {first[0]}")
    worst_run = cell.worst_run
    for run in cell.runs if all_runs else [worst_run]:
        assert run is not None
        if len(cell.runs) > 1:
            kinds = ", ".join(f"{other.variant}: {other.verdict}" for other in cell.runs)
            parts.append(f"variant {run.variant} (of {kinds})")
        parts += ["", run_text(run, width, color)]
    if cell.not_run:
        parts.append(f"then: {cell.not_run}")
    if cell.by_timing:
        parts.append(BY_TIMING)
    if len(cell.shares) > 1:
        parts.append(f"depends on timing: {cell.share_text}")
    if theory is not None:
        parts.append(f"theory: {theory.verdict}: {theory.why}")
    return "\n".join(parts)

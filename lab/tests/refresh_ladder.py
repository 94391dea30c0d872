"""Play what the ladder pages show, and put the timelines in their places: `python -m lab.tests.refresh_ladder`.

A line ``<!-- lab: SCHEME FAULT -->`` is followed by the timeline of that cell, ``<!-- torture: examples -->`` by what
became of other libraries' locks. What stood there before is replaced.
"""

from __future__ import annotations

import platform
import re
import sys
from importlib import metadata
from pathlib import Path

from holdfast_lab import runs
from holdfast_lab.faults import FAULTS
from holdfast_lab.handles import ENTRIES, THREADS, entry_for_factory
from holdfast_lab.texts import expected, listings
from holdfast_lab.timeline import cell_text
from holdfast_lab.verdicts import MARKS, SAFE

__all__ = ["MARK", "PAGES", "TABLE", "main", "table"]

ROOT = Path(__file__).resolve().parents[2]
VERSION = platform.python_version()
PAGES = (ROOT / "docs" / "ladder.md", ROOT / "docs" / "ladder.zh-CN.md")
MARK = re.compile(r"<!-- (lab|torture): ([^\n]*?) -->\n(?:\n```text\n.*?\n```\n)?", re.DOTALL)
TABLE = re.compile(r"<!-- table: (schemes|listings) -->\n(?:\n(?:\|.*\n)+)?")


def block(cell: runs.Cell) -> str:
    """The worst play, cut after the last violation."""
    lines = cell_text(cell, 140 if "redlock" in cell.scheme else 124).splitlines()
    command = f"$ holdfast lab run {cell.scheme} {cell.fault}"
    wrong = re.compile(r" *[\d.]+  (?:(?:✗✗|≠|✂|∞|…) [A-Z]|.*REFUSED)")
    last = max((n for n, line in enumerate(lines) if wrong.match(line)), default=None)
    ends = [n for n, line in enumerate(lines) if any(line.startswith(f"{mark} ") for mark in MARKS.values())]
    if last is not None and cell.verdict != SAFE:
        while last + 1 < len(lines) and cell.verdict == "blocked forever" and lines[last + 1].strip():
            last += 1
        rest = [] if last + 2 >= ends[0] else ["      …"]
        lines = [*lines[: last + 1], *rest, "", *lines[ends[0] :]]
    return "\n".join([command, *lines[1:]])


def table(page: Path, which: str) -> str:
    """One of the page's tables, in the page's language."""
    return f"<!-- table: {which} -->\n\n" + (_schemes(page) if which == "schemes" else _listings(page)) + "\n"


def _listings(page: Path) -> str:
    """Every listing with its article, its heading, its scheme, its rung, and verdicts."""
    is_zh = "zh" in page.name
    lines = ["| 文章 | 标题 | 方案 | 级 | 判定 |" if is_zh else "| article | heading | scheme | rung | verdict |"]
    lines.append("|---|---|---|--:|---|")
    for listing in listings():
        verdicts = []
        for fault, clients in listing.faults:
            found, of_threads = expected(listing.scheme, fault, clients), clients == THREADS
            assert found is not None
            where = ("（线程）：" if of_threads else "：") if is_zh else " (threads): " if of_threads else ": "
            verdicts.append(f"`{fault}`{where}{found.verdict}")
        article, heading = listing.article["zh"], listing.heading_zh
        if not is_zh:
            article, heading = f"{listing.article['en']} ({article})", f"{listing.heading} ({heading})"
        said = ("；" if is_zh else "; ").join(verdicts)
        lines.append(f"| {article} | {heading} | `{listing.scheme}` | {listing.rung} | {said} |")
    return "\n".join(lines)


def _schemes(page: Path) -> str:
    """Every scheme with its idea, its flaw and its sentence."""
    zh = "_zh" if "zh" in page.name else ""
    head = "| 方案 | 做法 | 缺陷 | 一句话 |" if zh else "| scheme | idea | flaw | in one sentence |"
    lines = [head, "|---|---|---|---|"]
    for entry in ENTRIES.values():
        fields = (entry.text[f"{field}{zh}"].replace("|", "\\|") for field in ("idea", "flaw", "rung"))
        lines.append(f"| `{entry.name}` | {' | '.join(fields)} |")
    return "\n".join(lines)


LIBRARIES = {
    "redis_py": "redis",
    "python_redis_lock": "python-redis-lock",
    "pottery": "pottery",
    "redlock_py": "redlock-py",
}
TIMES = 3


def libraries() -> str:
    """Verdicts on the locks of other libraries, as a table and the command for it."""
    found: dict[str, dict[str, str]] = {}
    for factory in LIBRARIES:
        entry = entry_for_factory(f"examples.other_locks:{factory}")
        for cell in runs.play_many(runs.pairs([entry]), path=[str(ROOT)], times=TIMES):
            said = cell.share_text if cell.verdict == runs.DEPENDS else cell.verdict
            found.setdefault(cell.fault, {})[factory] = f"{MARKS[cell.verdict]} {said}"
    versions = [f"{name} {metadata.version(name)}" for name in LIBRARIES.values()]
    lines = [f"$ holdfast lab torture examples.other_locks:redis_py --times {TIMES}    # and so on; Python {VERSION}"]
    widths = [24, *(max(len(row[factory]) for row in found.values()) + 2 for factory in LIBRARIES)]
    widths = [max(width, len(head) + 2) for width, head in zip(widths, ["", *versions], strict=True)]
    for row in [["fault", *versions], *([name, *found[name].values()] for name in FAULTS if name in found)]:
        lines.append("".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())
    return "\n".join(lines)


def main() -> None:
    """Rewrite both pages with the same plays; with `--tables` as the only argument, the tables alone."""
    for page in PAGES:
        made = {which: table(page, which) for which in ("schemes", "listings")}
        page.write_text(TABLE.sub(lambda found, made=made: made[found[1]], page.read_text()))  # type: ignore[misc]
    if sys.argv[1:] == ["--tables"]:
        return
    wanted = {found[2] for page in PAGES for found in MARK.finditer(page.read_text()) if found[1] == "lab"}
    chosen = [(runs.find_entry(scheme), runs.find_fault(fault)) for scheme, fault in (w.split() for w in wanted)]
    shown = {f"{cell.scheme} {cell.fault}": block(cell) for cell in runs.play_many(chosen, jobs=2)}
    shown["examples"] = libraries()
    for page in PAGES:
        text = MARK.sub(lambda m: f"<!-- {m[1]}: {m[2]} -->\n\n```text\n{shown[m[2]]}\n```\n", page.read_text())
        page.write_text(text)


if __name__ == "__main__":
    main()

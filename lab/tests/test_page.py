"""The page: whole, self-contained, and usable with a keyboard in a real browser."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest

from holdfast_lab import runs
from holdfast_lab.faults import FAULTS
from holdfast_lab.fingerprints import fingerprint
from holdfast_lab.handles import ENTRIES, PROCESSES
from holdfast_lab.history import History
from holdfast_lab.report import cell_data, page, read_cells
from holdfast_lab.runs import Cell, Run
from holdfast_lab.story import tell
from holdfast_lab.texts import sources
from holdfast_lab.timeline import cell_text
from holdfast_lab.verdicts import judge
from tests.support.browser import Browser, Unusable, chromium

MS = 1_000_000
#: Four words in a row, each with a small letter, beside no sign that makes them a command or an option.
ENGLISH = re.compile(r"(?:\b[A-Z]?[a-z]+[ ,.;]+){3,}[a-z]+")


def played(scheme: str, fault: str, *, overlap: bool) -> Cell:
    """A cell with a hand-made history."""
    made = History(scheme, fault, "1", lock_keys=("lock:<x>",), clients=["A", "B"], servers=["server"])
    made.add(0, "A", "asks", ttl_ms=1000)
    words = {"client": "A", "phase": "acquire", "text": "SET lock:<x> 1 NX", "reply": "OK", "answered_ns": 2 * MS}
    made.add(1 * MS, "server", "command", **words)
    made.add(2 * MS, "server", "key", key="lock:<x>", by="A", was=None, now="1", ttl_ms=1000)
    made.add(3 * MS, "A", "entered")
    made.add(5 * MS, "lab", "fault", text="</script><b>something</b> breaks", lasting=False)
    made.add(5 * MS, "B", "asks", ttl_ms=1000)
    for at in range(6, 40):
        made.add(at * MS, "server", "command", **{**words, "client": "B", "reply": None if at == 30 else "nil"})
        made.add(at * MS, "B", "refused")
    made.add((50 if overlap else 80) * MS, "B", "entered")
    made.add(70 * MS, "A", "left")
    made.add(90 * MS, "B", "left")
    return Cell(scheme, fault, [Run("1", made, judge(made))])


def whole_page() -> tuple[str, list[Cell]]:
    cells = [played(e.name, f.name, overlap=f.name == "failover") for e, f in runs.pairs(clients=[PROCESSES])]
    cells[0] = Cell(cells[0].scheme, cells[0].fault, not_run="no compiler here")
    data = {f"{cell.scheme} {cell.fault}": cell_data(cell, "mark") for cell in cells}
    return page(data, list(ENTRIES.values()), list(FAULTS), len(cells), 1.0), cells


def data_of(text: str) -> dict[str, Any]:
    found = re.search(r'<script id="data" type="application/json">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    loaded: dict[str, Any] = json.loads(found[1])
    return loaded


def test_the_page_has_everything_and_needs_nothing() -> None:
    text, cells = whole_page()
    data = data_of(text)
    assert {f"{cell.scheme} {cell.fault}" for cell in cells} == data["cells"].keys()
    assert len(cells) == len(data["cells"]) > 200
    assert data["cells"]["setnx failover"]["theory"] == "exclusion violated"
    assert data["cells"]["setnx failover"]["runs"][0]["findings"][0]["zh"].startswith("从 50 ms 到 70 ms")
    without_namespaces = text.replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?://|src=|<link|@import|\burl\((?!#)", without_namespaces)
    assert "</script><b>" not in text


def test_a_story_folds_repetition_and_marks_violations() -> None:
    cell = played("setnx", "failover", overlap=True)
    story = tell(cell.runs[0].history, cell.runs[0].verdicts)
    assert len(story.rows) < 15
    folded = [text for row in story.rows for text in row.cells.values() if "×" in text]
    assert folded == ["34× SET KEY 1 NX →"]
    notes = [row.note for row in story.rows if row.note]
    assert [kind for kind, _ in notes] == ["fault", "exclusion violated"]
    together = [row.states for row in story.rows if row.states.get("A") == row.states.get("B") == "inside"]
    assert together, "both bars are drawn as inside"


@pytest.mark.parametrize("width", [100, 160])
def test_a_timeline_fits_its_width(width: int) -> None:
    text = cell_text(played("setnx", "failover", overlap=True), width)
    rows = [line for line in text.splitlines() if re.match(r" +\d+\.\d  [│┆█▒✝]", line)]
    assert rows and max(map(len, rows)) <= width
    assert "✗✗ EXCLUSION VIOLATED: A and B were both inside from 50 ms to 70 ms" in text
    assert text.splitlines()[-2].startswith("✗✗ exclusion violated")


def test_a_page_is_read_again_and_nothing_else_is(tmp_path: Path) -> None:
    text, cells = whole_page()
    (tmp_path / "report.html").write_text(text)
    (tmp_path / "other.html").write_text("<script>something else</script>")
    assert len(read_cells(tmp_path / "report.html") or ()) == len(cells)
    assert read_cells(tmp_path / "other.html") is read_cells(tmp_path / "none.html") is None


def test_what_a_cell_depends_on() -> None:
    marks = {(e.name, f.name, e.clients): fingerprint(e, f) for e, f in runs.pairs()}
    assert len(set(marks.values())) == len(marks)
    setnx, none = ENTRIES["setnx"], FAULTS["none"]
    assert fingerprint(setnx, none) == marks["setnx", "none", PROCESSES]
    longer = dataclasses.replace(none, plays=("1", "2"))
    assert fingerprint(setnx, longer) != marks["setnx", "none", PROCESSES]


@pytest.mark.skipif(chromium() is None, reason="no chromium on this machine (Debian: apt-get install chromium)")
@pytest.mark.timeout(300)  # a browser's first start on a busy machine
def test_in_a_browser(tmp_path: Path) -> None:
    text, cells = whole_page()
    (tmp_path / "report.html").write_text(text)
    try:
        opened = Browser()
    except Unusable as error:
        pytest.skip(str(error))
    with opened as browser:
        browser.open((tmp_path / "report.html").as_uri())
        browser.until("document.readyState === 'complete' && document.querySelectorAll('td button').length > 0")
        assert browser.evaluate("document.querySelectorAll('td button').length") == len(cells)
        labels = browser.evaluate("[...document.querySelectorAll('td button')].map(b => b.ariaLabel)")
        assert "setnx under failover: exclusion violated" in labels
        described = browser.evaluate("document.getElementById('schemes').textContent")
        assert all(source["en"] in described for name in ENTRIES for source in sources(name)) and sources("setnx")
        # A sign and a word in every cell: nothing hangs on colour.
        assert browser.evaluate(
            "[...document.querySelectorAll('td button')].every(b => b.querySelector('.mark').textContent.trim()"
            " && b.querySelector('.word').textContent)"
        )
        # A click opens the timeline of that cell, as SVG.
        browser.evaluate("document.querySelector('[data-cell=\"setnx failover\"]').click()")
        browser.until("document.getElementById('play').open")
        title = "document.getElementById('title').textContent"
        assert browser.evaluate(title) == "setnx under failover: exclusion violated"
        drawn = browser.evaluate("document.querySelector('#picture svg[role=img]').textContent")
        assert "ENTERS" in drawn and "EXCLUSION VIOLATED" in drawn and "<b>something</b>" in drawn
        # The keyboard: out, to the next cell, in, on to the one after, out.
        browser.press("Escape")
        browser.until("!document.getElementById('play').open")
        browser.until("document.activeElement.dataset.cell === 'setnx failover'")
        browser.press("ArrowDown")
        assert browser.evaluate("document.activeElement.dataset.cell") == "lock-object failover"
        browser.press("Enter")
        browser.until("document.getElementById('play').open")
        browser.press("ArrowLeft")
        assert browser.evaluate(title).startswith("lock-object under server")
        browser.press("Escape")
        # The other language, with the same cells; every sign in a cell is in the legend.
        browser.evaluate("document.getElementById('language').click()")
        assert browser.evaluate("document.documentElement.lang") == "zh-CN"
        assert browser.evaluate("document.querySelector('h1').textContent") == "锁方案如何失败"
        legend = browser.evaluate("[...document.querySelectorAll('.legend .chip')].map(c => c.textContent)")
        used = browser.evaluate("[...document.querySelectorAll('td .mark')].map(m => m.firstChild.textContent)")
        assert set(used) <= set(legend)
        assert browser.evaluate("document.getElementById('hint').classList.contains('on')") == browser.evaluate(
            "document.getElementById('wide').scrollWidth > document.getElementById('wide').clientWidth + 2"
        )
        # No English sentence is left: not on the page, not in what is spoken, not in a cell.
        browser.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
        browser.evaluate("document.querySelector('[data-cell=\"setnx failover\"]').click()")
        spoken = "[...document.querySelectorAll('[aria-label]')].map(e => e.getAttribute('aria-label')).join('\\n')"
        chinese = browser.evaluate(
            f"document.body.innerText + {spoken} + document.querySelector('#picture').textContent"
        )
        assert "进入" in chinese and ENGLISH.findall(chinese) == []
        browser.press("Escape")
        # Printed: the matrix is a table, all faults across, however wide the window is.
        sheet = browser.print()
        assert sheet.startswith(b"%PDF") and 1 < sheet.count(b"/Type /Page\n") < 12
        # On a phone nothing but the pictures scrolls sideways; in the dark the page is dark.
        browser.resize(390, 800)
        assert browser.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        grounds = []
        for scheme in ("light", "dark"):
            browser.prefer(scheme)
            grounds.append(browser.evaluate("getComputedStyle(document.body).backgroundColor"))
        assert grounds[0] != grounds[1]

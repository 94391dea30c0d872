"""What was played is what theory says, cell by cell (`oracle.toml`, written by hand, with reasons).

A disagreement is a bug in the lab or in the theory. A cell that disagrees is played twice more, so that the message
says whether its verdict depends on timing; and the message has the whole course of the worst play.
"""

from __future__ import annotations

from collections import Counter

import pytest

from holdfast_lab import runs
from holdfast_lab.commands import row_text
from holdfast_lab.faults import FAULTS
from holdfast_lab.handles import PROCESSES, THREADS
from holdfast_lab.runs import NOT_RUN, Cell
from holdfast_lab.texts import expected, text_of, theory
from holdfast_lab.timeline import BY_TIMING, cell_text, run_text
from holdfast_lab.verdicts import KINDS, MARKS

Name = tuple[str, str, str]
CELLS = {(entry.name, fault.name, entry.clients): (entry, fault) for entry, fault in runs.pairs()}

#: The ticks that were false once, and what each of them has taught to look for.
ONCE_FALSE: list[Name] = [
    (scheme, fault, PROCESSES)
    for scheme, fault in (
        *(("incr-expire", fault) for fault in ("crash-holding", "reply-lost", "long-section")),
        *(("multi-setnx-expire", fault) for fault in ("crash-holding", "crash-in-acquire")),
        ("setnx-expire-always", "crash-holding"),
        *(("get-then-set", fault) for fault in ("interleaved", "none")),
        *(("php-loop", fault) for fault in ("pause-in-acquire", "late-release")),
        *(("watch", fault) for fault in ("server-restarted", "failover")),
        *(("holdfast", fault) for fault in ("pause-before-write", "pause-holding", "pause-in-acquire")),
        *(
            (scheme, "release-unheld")
            for scheme in ("setnx", "set-nx-ex", "setnx-timestamp", "set-nx-token", "redis-py")
        ),
        ("setnx-expire", "server-dies-in-acquire"),
        *(("getset-at", "near-ttl"), ("getset-after", "near-ttl")),
        *(("redlock", "one-clock"), ("redlock-php", "one-stopped"), ("redlock-php", "server-clock")),
        *((scheme, "answers-lost") for scheme in ("redlock-forgetful", "redlock")),
        *(("lock-object", fault) for fault in ("none", "client-clocks")),
        *(("set-nx-constant-id", "late-release"), ("set-nx-ex-kept", "none"), ("lock-variable", "crash-holding")),
    )
]

#: Where threads differ from processes, or might: one stands still or ends, and the others of its process go on.
OF_THREADS: list[Name] = [
    *(("holdfast", fault, THREADS) for fault in ("pause-before-write", "pause-holding", "pause-in-acquire")),
    *(("holdfast", fault, THREADS) for fault in ("crash-holding", "crash-in-acquire", "pause-in-release")),
    *(("set-nx-token", fault, THREADS) for fault in ("pause-holding", "pause-in-acquire", "crash-holding")),
    *((scheme, "crash-in-acquire", THREADS) for scheme in ("setnx-expire", "lua-setnx-expire", "redis-py")),
    *(("get-then-set", "interleaved", THREADS), ("set-nx-token-get-del", "pause-in-release", THREADS)),
    *(("redlock-naive", "one-stopped", THREADS), ("python-redis-lock", "none", THREADS)),
]


def disagreement(cell: Cell) -> str:
    """A disagreement of lab and theory, with all there is to know about it; empty where the two agree."""
    theirs = expected(cell.scheme, cell.fault, cell.clients)
    assert theirs is not None
    if cell.agrees is not False:
        return ""
    entry, fault = CELLS[cell.scheme, cell.fault, cell.clients]
    again = Counter([cell.verdict, *(runs.play(entry, fault).verdict for _ in range(2))])
    lines = [f"{cell.title}: theory says {theirs.verdict} ({theirs.why}), the lab {dict(again)}"]
    lines += [f"  {run.variant}: {found.kind}: {found.sentence}" for run in cell.runs for found in run.verdicts]
    if cell.worst_run is not None:
        lines.append(run_text(cell.worst_run, 160))
    return "\n".join(lines)


def compare(chosen: list[Name]) -> None:
    cells = runs.play_many([CELLS[name] for name in chosen], jobs=6)
    assert any(cell.verdict != NOT_RUN for cell in cells) or all(FAULTS[fault].missing() for _, fault, _ in chosen)
    found = list(filter(None, map(disagreement, cells)))
    assert not found, "\n".join(found)


def test_theory_has_thought_about_every_cell_once() -> None:
    said = theory()
    assert {name for name in said if name[2] == PROCESSES or FAULTS[name[1]].threads} == CELLS.keys()
    assert [name for name, reasons in said.items() if len(reasons) > 1] == []
    for reasons in said.values():
        assert {reasons[0].verdict, *reasons[0].others} <= set(KINDS) and reasons[0].why and reasons[0].zh


def test_each_fault_is_played_with_threads_or_says_why_not() -> None:
    of_threads = {fault for _, fault, clients in CELLS if clients == THREADS}
    assert of_threads == {name for name, fault in FAULTS.items() if fault.threads}
    for name in FAULTS:
        assert text_of("fault", name)["threads"].startswith("Not played: ") == (name not in of_threads)


def test_every_scheme_and_fault_and_verdict_is_described_in_both_languages() -> None:
    for scheme, fault, _ in CELLS:
        assert all(
            text_of("scheme", scheme)[f"{field}{zh}"] for field in ("idea", "flaw", "rung") for zh in ("", "_zh")
        )
        assert text_of("fault", fault).keys() == {"doc", "zh", "threads", "threads_zh"}
    assert all(text_of("kind", kind).keys() == {"en", "zh"} for kind in MARKS)


@pytest.mark.timeout(300)  # many processes on a machine that may be busy
@pytest.mark.parametrize(
    "part",
    [
        pytest.param(0, id="one third"),
        pytest.param(1, id="another", marks=pytest.mark.thorough),
        pytest.param(2, id="the last", marks=pytest.mark.thorough),
    ],
)
def test_ticks_that_were_false_once(part: int) -> None:
    compare(ONCE_FALSE[part::3])


@pytest.mark.timeout(300)
def test_what_held_only_by_timing_gets_no_tick_and_is_marked() -> None:
    names: list[Name] = [("setnx-expire-always", "late-release", PROCESSES), ("incr-expire", "pause-holding", THREADS)]
    cells = runs.play_many([CELLS[name] for name in names], jobs=2)
    assert [disagreement(cell) for cell in cells] == ["", ""]
    for cell in cells:
        assert [run.verdict for run in cell.runs] == ["safe", "exclusion violated"], cell.as_json(events=False)
        assert cell.by_timing and BY_TIMING in cell_text(cell) and BY_TIMING in row_text("", [("", cell)])


@pytest.mark.timeout(300)
@pytest.mark.parametrize("clients", [PROCESSES, THREADS])
def test_a_release_is_stopped_between_compare_and_delete(clients: str) -> None:
    names = [(scheme, "pause-in-release", clients) for scheme in ("setnx-timestamp", "getset-after", "getset-at")]
    for cell in runs.play_many([CELLS[name] for name in names], jobs=3):
        assert disagreement(cell) == "" and not cell.by_timing
        (between,) = [run for run in cell.runs if run.variant == "before 2"]
        assert between.verdict == "exclusion violated"
        (went_on,) = between.history.of("stopped", lane="A")
        said = [
            (e.get("text").split()[0], e.at_ns > went_on.at_ns)
            for e in between.history.of("command")
            if e.get("phase") == "release" and e.get("client") == "A"
        ]
        assert said == [("GET", False), ("DEL", True)]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("part", [0, pytest.param(1, marks=pytest.mark.thorough)], ids=["holdfast", "the others"])
def test_threads_that_stand_still_or_end(part: int) -> None:
    chosen = [name for name in OF_THREADS if (name[0] == "holdfast") == (part == 0)]
    assert chosen
    compare(chosen)


@pytest.mark.thorough
@pytest.mark.timeout(900)
@pytest.mark.parametrize("clients", [PROCESSES, THREADS])
@pytest.mark.parametrize("fault", FAULTS)
def test_the_lab_agrees_with_theory(fault: str, clients: str) -> None:
    """In every cell that the tests above do not play."""
    if chosen := [name for name in CELLS if name[1:] == (fault, clients) and name not in (*ONCE_FALSE, *OF_THREADS)]:
        compare(chosen)

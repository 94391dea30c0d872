"""The finer points of the articles' listings: each is what it is in the course of a play, not in the verdict alone."""

from __future__ import annotations

import pytest

from holdfast_lab import runs
from holdfast_lab.handles import PROCESSES, THREADS
from holdfast_lab.runs import Cell, Run

pytestmark = pytest.mark.timeout(300)  # many processes on a machine that may be busy


def play(*wanted: tuple[str, str, str]) -> list[Cell]:
    chosen = [(runs.find_entry(scheme).of(clients), runs.find_fault(fault)) for scheme, fault, clients in wanted]
    cells = {cell.name: cell for cell in runs.play_many(chosen, jobs=3)}
    found = [cells[runs.cell_name(*name)] for name in wanted]
    assert [cell.title for cell in found if not cell.agrees] == [], [cell.as_json(events=False) for cell in found]
    return found


def variant(cell: Cell, name: str) -> Run:
    return next(run for run in cell.runs if run.variant == name)


def said(run: Run, client: str) -> list[str]:
    """The commands of a client, with what became of them."""
    events = [event for event in run.history.of("command") if event.get("client") == client]
    return [f"{e.get('text').split()[0]} {e.get('fate') or e.get('reply')}" for e in events]


def test_a_php_loop_whose_check_fails_skips_its_body_without_a_word() -> None:
    (cell,) = play(("php-loop", "pause-in-acquire", PROCESSES))
    run = variant(cell, "after 1, no one else asks")
    assert run.verdict == "failed" and said(run, "A") == ["SET OK", "GET nil"]
    assert [event.kind for event in run.history.of("entered", "failed", "skipped", lane="A")] == ["skipped"]


def test_an_error_of_getset_is_null_and_null_is_a_yes() -> None:
    (cell,) = play(("setnx-timestamp-inverted", "reset", PROCESSES))
    run = variant(cell, "B is inside, acquire 3")
    assert run.verdict == "exclusion violated"
    got_in = next(run.history.of("acquired", lane="A"))
    setnx, get, getset = said(run, "A")[:3]
    assert setnx == "SETNX 0" and get.startswith("GET 1") and getset == "GETSET connection reset"
    written = [event for event in run.history.of("key") if event.get("by") == "A" and event.at_ns < got_in.at_ns]
    assert written == []


def test_a_silent_server_is_an_exception_that_ends_each_acquire_of_the_naive_redlock() -> None:
    (cell,) = play(("redlock-naive", "one-stopped", PROCESSES))
    errors = [event.get("error") for event in cell.runs[0].history.of("failed", lane="A")]
    assert errors and all("no answer to SET within 2 s" in error for error in errors)


def test_the_key_of_an_object_is_another_one_in_each_process() -> None:
    apart, together = play(("lock-object", "none", PROCESSES), ("lock-object", "none", THREADS))
    keys = [{e.get("key") for e in cell.runs[0].history.of("key")} for cell in (apart, together)]
    assert [len(found) for found in keys] == [3, 1]


def test_a_lock_object_that_threads_share() -> None:
    crowd, stuck, unheld, apart = play(
        ("java-lock", "crowd", THREADS),
        ("lock-object", "crowd", THREADS),
        ("java-lock", "release-unheld", THREADS),
        ("java-lock", "release-unheld", PROCESSES),
    )
    history = crowd.runs[0].history
    asked, done = (next(history.of(kind, lane="A")).at_ns for kind in ("releases", "released"))
    second = next(event for event in history.of("acquired") if event.lane != "A")
    assert asked < second.at_ns < done, "A got its connection only when another one had the lock"
    assert any(found.kind == "foreign release" and found.who[0] == "A" for found in crowd.runs[0].verdicts)
    assert next(stuck.runs[0].history.of("hangs")).get("pool") == 8
    assert "foreign release" in unheld.kinds and apart.kinds == ["safe"]


def test_an_interrupted_caller_returns_without_the_lock_or_is_forgotten() -> None:
    (cell,) = play(("java-lock", "interrupted", PROCESSES))
    assert [run.verdict for run in cell.runs] == ["safe", "failed", "exclusion violated"]
    raised, forgotten, returned = cell.runs
    assert any(raised.history.of("gave up", lane="B")) and not any(raised.history.of("acquired", lane="B"))
    told = next(forgotten.history.of("interrupted")).at_ns
    assert sum(event.at_ns > told for event in forgotten.history.of("refused", lane="B")) > 1
    assert [text for text in said(returned, "B") if text.startswith("SET")] == []

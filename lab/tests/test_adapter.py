"""Users' locks: what counts as lost, what counts as a failure, and that coroutines are played."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from pathlib import Path

import pytest
import redis.exceptions

import holdfast
from holdfast_lab import commands, runs
from holdfast_lab.adapter import LOSSES, says_lost
from holdfast_lab.faults import Fault
from holdfast_lab.handles import ENTRIES, THREADS, Entry, entry_for_factory
from holdfast_lab.verdicts import SAFE

pytestmark = pytest.mark.timeout(300)  # many processes on a machine that may be busy

ROOT = Path(__file__).resolve().parents[2]
TRIALS = "lab.tests.trials"


def play(*wanted: tuple[str, str], clients: str = "processes") -> dict[tuple[str, str], runs.Cell]:
    pairs = [(entry_for_factory(f"{TRIALS}:{lock}").of(clients), runs.find_fault(fault)) for lock, fault in wanted]
    cells = runs.play_many(pairs, path=[str(ROOT)], jobs=6)
    return {(cell.scheme.partition(":")[2], cell.fault): cell for cell in cells}


def torture(lock: str, monkeypatch: pytest.MonkeyPatch) -> tuple[int, str]:
    monkeypatch.chdir(ROOT)
    out = io.StringIO()
    return commands.torture(f"{TRIALS}:{lock}", out=out, err=io.StringIO()), out.getvalue()


class MyLockError(Exception):
    pass


class LeaseExpiredError(Exception):
    pass


class ConnectionLost(Exception):
    pass


class Deadlocked(MyLockError):
    pass


class DeadlockError(Exception):
    pass


def test_what_says_that_a_lock_is_lost() -> None:
    documented = [redis.exceptions.LockError("x"), redis.exceptions.LockNotOwnedError("x"), MyLockError()]
    documented += [LeaseExpiredError(), Deadlocked(), holdfast.LeaseLost.__new__(holdfast.LeaseLost)]
    documented += [holdfast.NotHeld.__new__(holdfast.NotHeld)]
    assert [error for error in documented if not says_lost(error)] == []
    others = [RuntimeError(), TypeError(), ConnectionLost(), DeadlockError(), redis.exceptions.ConnectionError()]
    assert [error for error in others if says_lost(error)] == []


@pytest.mark.parametrize("page", ["cli.md", "cli.zh-CN.md"])
def test_the_page_names_what_counts_as_lost(page: str) -> None:
    text = (ROOT / "docs" / page).read_text()
    assert [name for name in LOSSES if f"`{name}`" not in text] == []


@pytest.mark.parametrize(
    "lock, why",
    [
        ("CheckRaises", "RuntimeError: out of order"),
        ("CheckWantsMore", "missing 1 required positional argument: 'margin'"),
        ("CheckSaysLost", "its work was not done"),
        ("Never", "could not be acquired without any fault"),
        ("Wrong", "KeyError: 'pool'"),
    ],
)
def test_a_lock_that_does_not_work_is_told_so_once(lock: str, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    status, said = torture(lock, monkeypatch)
    assert status == commands.NOT_SAFE and "✓" not in said
    assert said.count(why) == 1 and len(said.splitlines()) <= 6, said
    assert "does not work without a fault" in said and "37 cells were not played" in said


def test_a_check_that_fails_hides_no_violation() -> None:
    cells = play(*(("CheckWantsMore", fault) for fault in ("long-section", "pause-holding", "late-release")))
    assert [cells["CheckWantsMore", fault].verdict for fault in ("long-section", "pause-holding")] == [
        "exclusion violated"
    ] * 2
    assert cells["CheckWantsMore", "late-release"].verdict == "failed"


def test_rare_looks_are_slow_and_what_was_deleted_kept_no_one_out() -> None:
    cells = play(*(("PollsRarely", fault) for fault in ("none", "client-clocks", "crash-holding")))
    assert {fault: cell.kinds for (_, fault), cell in cells.items()} == {
        "none": ["slow"],
        "client-clocks": ["slow"],
        "crash-holding": ["slow"],
    }


def test_a_lock_in_a_key_of_any_type() -> None:
    cells = play(
        *((lock, fault) for lock in ("HashForever", "StreamForever") for fault in ("crash-holding", "release-unheld"))
    )
    for lock in ("HashForever", "StreamForever"):
        assert cells[lock, "crash-holding"].verdict == "blocked forever"
        assert {"exclusion violated", "foreign release"} <= set(cells[lock, "release-unheld"].kinds)


ASYNC = {
    ("redis_asyncio", "none"): "safe",
    ("redis_asyncio", "pause-in-acquire"): "exclusion violated",
    ("AsyncNoToken", "late-release"): "exclusion violated",
    ("AsyncNoToken", "crash-in-acquire"): "safe",
    ("AsyncContext", "none"): "safe",
    ("AsyncContext", "release-unheld"): "exclusion violated",
    ("AsyncRenewed", "long-section"): "safe",
    ("AsyncRenewed", "crash-holding"): "safe",
}


@pytest.mark.parametrize("clients", ["processes", THREADS])
def test_asynchronous_locks_are_played(clients: str) -> None:
    cells = play(*ASYNC, clients=clients)
    assert {name: cell.verdict for name, cell in cells.items()} == ASYNC


@pytest.mark.parametrize("lock", ["of_holdfast", "of_holdfast_asyncio"])
def test_a_lease_that_says_how_long_it_lasts_is_believed_to_have_ended_then(lock: str) -> None:
    cells = play((lock, "none"), (lock, "pause-holding"))
    assert [cell.verdict for cell in cells.values()] == [SAFE, SAFE], [cell.as_json(False) for cell in cells.values()]
    for run in cells[lock, "pause-holding"].runs:
        (lost,) = run.history.of("lost", lane="A")
        assert lost.get("since_ns") < next(run.history.of("acquired", lane="B")).at_ns < lost.at_ns


def test_one_shape_of_json(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(ROOT)
    pairs, only = runs.pairs, ENTRIES["set-nx-token"]
    err, page = io.StringIO(), str(tmp_path / "r.html")

    def of_none(entries: Iterable[Entry] | None = None, clients: Iterable[str] = ()) -> list[tuple[Entry, Fault]]:
        return [pair for pair in pairs(entries or [only], ["processes"]) if pair[1].name == "none"]

    monkeypatch.setattr(runs, "pairs", of_none)
    outs = [io.StringIO() for _ in range(4)]
    commands.run("set-nx-token", "none", as_json=True, out=outs[0], err=err)
    commands.run_fault("none", as_json=True, out=outs[1], err=err)
    monkeypatch.setattr("sys.stdout", outs[2])
    commands.report(page, schemes=["set-nx-token"], as_json=True, err=err)
    commands.torture(f"{TRIALS}:Canonical", as_json=True, out=outs[3], err=err)
    found = [json.loads(out.getvalue()) for out in outs]
    assert [answer["version"] for answer in found] == [1] * 4
    assert [answer["verdicts"] for answer in found] == [{SAFE: 1}] * 4
    assert len({tuple(answer["cells"][0]) for answer in found}) == 1
    runs_of = [answer["cells"][0]["runs"][0] for answer in found]
    assert all({"variant", "verdict", "findings"} <= run.keys() for run in runs_of)
    assert ["history" in run for run in runs_of] == [True, False, False, False]

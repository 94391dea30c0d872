"""Known-bad locks, of kinds that the lab's list has not: each is convicted, where a right one is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast_lab import runs
from holdfast_lab.faults import FAULTS
from holdfast_lab.handles import PROCESSES, THREADS, Entry, entry_for_factory
from holdfast_lab.texts import expected
from holdfast_lab.verdicts import SAFE
from lab.tests import badlocks

pytestmark = pytest.mark.timeout(300)  # many processes on a machine that may be busy

ROOT = str(Path(__file__).resolve().parents[2])
VIOLATED, FOREVER = "exclusion violated", "blocked forever"

#: What each does wrong, and where it shows: faults that the canonical lock stands.
CONVICTED: dict[str, dict[str, str]] = {
    "AsyncCheckThenSet": {"interleaved": VIOLATED},
    "AsyncForgetsAwait": {"none": "blocked for its ttl"},
    "AsyncGetThenDelete": {"pause-in-release": VIOLATED},
    "CleansUp": {"interleaved": VIOLATED, "crash-in-acquire": SAFE},
    "Counter": {"release-unheld": VIOLATED, "crash-holding": FOREVER},
    "DeletesStale": {"interleaved": VIOLATED, "client-clocks": VIOLATED},
    "FailsOpen": {"reset": VIOLATED},
    "FairQueue": {"crash-holding": FOREVER, "crash-in-acquire": FOREVER},
    "FreeList": {"crash-holding": FOREVER, "release-unheld": VIOLATED},
    "GetDel": {"late-release": VIOLATED},
    "HashCounter": {"crash-in-acquire": FOREVER},
    "HashedName": {"none": "failed"},
    "Sweeps": {"none": "foreign release"},
    "LongFinally": {"none": VIOLATED},
    "PrefixCompare": {"late-release": VIOLATED, "release-unheld": VIOLATED},
    "ProcessToken": {"late-release": VIOLATED},
    "RefreshesLate": {"long-section": "foreign release"},
    "Rename": {"crash-holding": FOREVER, "release-unheld": VIOLATED},
    "SecondsAsMillis": {"none": VIOLATED},
    "StealsNearTheEnd": {"near-ttl": VIOLATED},
    "WaitsForMessage": {"crash-holding": FOREVER},
    "WatchWithoutMulti": {"interleaved": VIOLATED},
    "WorkerName": {"none": VIOLATED},
    "ZsetByClock": {"client-clocks": VIOLATED},
}
#: Right between processes.
OF_THREADS = {"ProcessToken"}


def entry(lock: str) -> Entry:
    return entry_for_factory(f"lab.tests.badlocks:{lock}").of(THREADS if lock in OF_THREADS else PROCESSES)


def test_all_are_played_and_none_is_in_the_list_of_the_lab() -> None:
    assert CONVICTED.keys() == set(badlocks.__all__)
    # What the canonical lock does not stand either, with `reset`'s milder verdict, is no conviction.
    canonical = {fault: expected("set-nx-token", fault) for found in CONVICTED.values() for fault in found}
    assert {fault for fault, theory in canonical.items() if theory is not None and theory.verdict != SAFE} == {
        "reset",
        "long-section",
    }


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.thorough) for part in (1, 2))])
def test_every_one_is_convicted(part: int) -> None:
    chosen = [(lock, fault) for lock, found in CONVICTED.items() for fault in found][part::3]
    cells = runs.play_many([(entry(lock), FAULTS[fault]) for lock, fault in chosen], path=[ROOT], jobs=6)
    found = {(cell.scheme.partition(":")[2], cell.fault): cell for cell in cells}
    wrong = {
        name: cell.as_json(events=False) for name, cell in found.items() if CONVICTED[name[0]][name[1]] != cell.verdict
    }
    assert found.keys() == set(chosen) and wrong == {}

"""The articles' listings and other schemes, brought as a user's own locks: no tick where theory breaks them."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast_lab import runs
from holdfast_lab.faults import FAULTS, Fault
from holdfast_lab.handles import ENTRIES, THREADS, Entry, entry_for_factory
from holdfast_lab.texts import expected
from holdfast_lab.verdicts import SAFE

ROOT = str(Path(__file__).resolve().parents[2])

#: Each with the scheme of the lab whose theory is its own.
THEORY = {
    "Incr": "incr-expire",
    "SetExpire": "setnx-expire-always",
    "Multi": "multi-setnx-expire",
    "Php": "php-loop",
    "GetThenSet": "get-then-set",
    "Variable": "lock-variable",
    "LockObject": "lock-object",
    "SetEx": "set-nx-ex",
    "Kept": "set-nx-ex-kept",
    "Constant": "set-nx-constant-id",
    "Inverted": "setnx-timestamp-inverted",
    "GetsetAfter": "getset-after",
    "GetsetAt": "getset-at",
    "Token": "set-nx-token",
    "Java": "java-lock",
    "Naive": "redlock-naive",
    "Redlock": "redlock",
    "Forgetful": "redlock-forgetful",
}
#: One flaw of each; `Naive` under `one-slow` got a tick once: it needs longer for a "no" than the play had patience.
FLAWS = {
    "Incr": "crash-holding",
    "SetExpire": "crash-holding",
    "Multi": "reply-lost",
    "Php": "pause-in-acquire",
    "GetThenSet": "interleaved",
    "Variable": "release-unheld",
    "LockObject": "none",
    "SetEx": "late-release",
    "Kept": "near-ttl",
    "Constant": "late-release",
    "Inverted": "reset",
    "GetsetAfter": "late-release",
    "GetsetAt": "near-ttl",
    "Token": "pause-holding",
    "Java": "server-restarted",
    "Naive": "one-slow",
    "Redlock": "one-restarted",
    "Forgetful": "answers-lost",
}


def pairs_of(chosen: dict[str, list[str]], clients: str) -> list[tuple[Entry, Fault]]:
    pairs = []
    for listing, faults in chosen.items():
        entry = entry_for_factory(f"lab.tests.listings:{listing}", ENTRIES[THEORY[listing]].servers).of(clients)
        pairs += [(entry, FAULTS[fault]) for fault in faults if FAULTS[fault].applies_to(entry)]
    return pairs


def play(chosen: dict[str, list[str]], clients: str, jobs: int) -> list[runs.Cell]:
    return runs.play_many(pairs_of(chosen, clients), path=[ROOT], jobs=jobs)


def not_run(cell: runs.Cell) -> bool:
    return cell.verdict == runs.NOT_RUN


def false_ticks(cells: list[runs.Cell]) -> list[str]:
    found = []
    for cell in cells:
        theory = expected(THEORY[cell.scheme.partition(":")[2]], cell.fault, cell.clients)
        if theory is not None and cell.verdict == SAFE != theory.verdict:
            found.append(f"{cell.title}: theory says {theory.verdict} ({theory.why})")
    return found


@pytest.mark.timeout(300)  # many processes on a machine that may be busy
def test_one_flaw_of_each_listing_is_found() -> None:
    cells = play({listing: [fault] for listing, fault in FLAWS.items()}, "processes", jobs=6)
    # Beside five others some fault may not come about at its moment: such a one is played again, alone.
    missed = {cell.scheme.partition(":")[2]: [cell.fault] for cell in cells if not_run(cell)}
    cells = [*(cell for cell in cells if not not_run(cell)), *play(missed, "processes", jobs=1)]
    assert {cell.fault for cell in cells if not_run(cell)} == set()
    assert len(cells) == len(THEORY) and false_ticks(cells) == []
    assert [cell.title for cell in cells if cell.verdict == SAFE] == []


EVERY_WAY = ["processes", THREADS]


def share(listing: str, clients: str) -> dict[str, list[str]]:
    """The faults of that listing that are played with such clients: every second one, and all that threads do not meet.

    The lab's own schemes are played under every fault with both (test_oracle.py), and what is a listing's own, its code
    for redis-py and the adapter, is the same in both: so each listing meets each fault once, and each fault meets both.
    """
    both = [fault for fault in FAULTS if all(pairs_of({listing: [fault]}, each) for each in EVERY_WAY)]
    of_threads = both[[*THEORY].index(listing) % 2 :: 2]
    return {listing: [fault for fault in FAULTS if fault not in both or (fault in of_threads) == (clients == THREADS)]}


@pytest.mark.thorough
@pytest.mark.timeout(600)
@pytest.mark.parametrize("clients", EVERY_WAY)
@pytest.mark.parametrize("listing", THEORY)
def test_no_listing_gets_a_tick_that_is_false(listing: str, clients: str) -> None:
    chosen = share(listing, clients)
    cells = play(chosen, clients, jobs=3)
    assert len(cells) == len(pairs_of(chosen, clients)) and false_ticks(cells) == []


def test_each_listing_is_played_under_each_fault_once_and_each_fault_with_both_clients() -> None:
    played = [
        (fault.name, entry.clients, listing)
        for listing in THEORY
        for clients in EVERY_WAY
        for entry, fault in pairs_of(share(listing, clients), clients)
    ]
    assert len(played) == len({(fault, listing) for fault, _, listing in played})
    for fault in FAULTS:
        possible = {
            (clients, listing) for listing in THEORY for clients in EVERY_WAY if pairs_of({listing: [fault]}, clients)
        }
        assert {listing for _, listing in possible} == {listing for name, _, listing in played if name == fault}
        assert {clients for clients, _ in possible} == {clients for name, clients, _ in played if name == fault}


@pytest.mark.parametrize("clients", EVERY_WAY)
def test_faults_apply_to_listings(clients: str) -> None:
    """Otherwise the test above would play nothing."""
    assert all(len(pairs_of({listing: list(FAULTS)}, clients)) > 10 for listing in THEORY)
    assert len(pairs_of({listing: list(FAULTS) for listing in THEORY}, clients)) > 250

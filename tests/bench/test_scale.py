"""`bench.scale` runs, and its simulation of a fleet keeps to what is known of queues."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bench import scale
from bench.fleet import Costs, Layout, simulate

COSTS = Costs(acquire_us=10, release_us=5, handoff_us=60, network_us=500)


def test_all_parts_give_figures() -> None:
    done = _measured()
    for _ in range(4):
        if "| -" in done.stdout:  # a busy server has freed buffers of clients meanwhile: more than so little data takes
            done = _measured()
    assert done.returncode == 0, done.stderr
    rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")]
    figures = {
        row[0]: [float(each.strip(" %<").replace(",", "")) for each in row[1:2]] for row in rows if row[1][0].isdigit()
    }
    assert figures["a waiter, in a queue of 500"][0] > 40 and figures["a client: its connection, idle"][0] > 500
    assert (
        figures["a lock that is held, with its fencing token"]
        > figures["a lock that was held today: its fencing token"]
    )
    assert figures["queue, handed over, renew"] > figures["acquire and release, free"] > figures["renewal"]
    assert ["one lock for all", "grows"] in [[row[0], row[-1]] for row in rows]


def _measured() -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "bench.scale", "--quick"]
    return subprocess.run(
        words, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=100, check=False
    )


def test_a_part_that_does_not_exist_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert scale.main(["memroy"]) == 64
    assert "memroy" in capsys.readouterr().err


def test_without_others_a_wait_is_the_way_there_and_back() -> None:
    found = simulate(Layout("idle", 0.01, 5, 1_000), COSTS, turns=200)
    assert len(found.waits_ms) == 200
    assert found.wait_ms(0) == found.wait_ms(1) == pytest.approx(0.51)


def test_waits_grow_with_the_load_of_a_lock_and_of_a_core() -> None:
    shops = Layout("shops", 10_000, 5, 100)
    waits = [simulate(replace(shops, names=names), COSTS, turns=20_000).wait_ms(0.99) for names in (80, 100, 1_000)]
    assert waits == sorted(waits, reverse=True) and waits[0] > 2 * waits[2]
    orders = Layout("orders", 60_000, 5, 1_000_000)
    one, four = simulate(orders, COSTS, turns=20_000), simulate(replace(orders, cores=4), COSTS, turns=20_000)
    assert one.core_load == pytest.approx(0.9, rel=0.05) and four.core_load == pytest.approx(0.225, rel=0.05)
    assert one.wait_ms(0.99) > four.wait_ms(0.99) > 0.51


@pytest.mark.parametrize("layout", [Layout("a lock", 200, 5, 1), Layout("a core", 70_000, 5, 1_000_000)])
def test_what_is_asked_for_more_than_it_can_do_is_named(layout: Layout) -> None:
    found = simulate(layout, COSTS)
    assert found.is_overloaded and found.waits_ms == []
    assert not simulate(replace(layout, turns_per_s=layout.turns_per_s * 0.8), COSTS, turns=100).is_overloaded


def test_a_core_serves_at_random_arrivals_as_queueing_theory_says() -> None:
    """Mean time in the queue of a core with Poisson arrivals and equal costs: load × cost / 2 / (1 - load)."""
    costs = Costs(acquire_us=10, release_us=10, handoff_us=10, network_us=0)
    found = simulate(Layout("orders", 35_000, 5, 10_000_000), costs, turns=100_000)
    queued_us = sum(found.waits_ms) * 1000 / len(found.waits_ms) - 10
    assert queued_us == pytest.approx(0.7 * 10 / 2 / 0.3, rel=0.15)

"""The order of the tests loses none, begins each worker's share with long ones, and cuts nothing that is shared."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.order import dealt, shares


def item(nodeid: str, thorough: bool = False, scope: str = "function", param: int = 0) -> Any:
    definition = SimpleNamespace(scope=scope)
    return SimpleNamespace(
        nodeid=nodeid,
        get_closest_marker=lambda name: "mark" if thorough else None,
        _fixtureinfo=SimpleNamespace(name2fixturedefs={"server": [definition]}),
        callspec=SimpleNamespace(params={"server": param}),
    )


SHORT = [item(f"tests/contract/test_lock.py::test_{number}") for number in range(400)]
BOUND = [item(f"tests/topologies/test_x.py::t_{n}", scope="module", param=n // 5) for n in range(100)]
LONG = [item(f"tests/process/test_long.py::test_{number}", thorough=True) for number in range(40)]
LAB = [item(f"lab/tests/test_y.py::test_{number}") for number in range(20)]


@pytest.mark.parametrize("workers", [1, 2, 7, 8])
def test_none_is_lost_and_each_share_has_its_long_ones_at_first(workers: int) -> None:
    items = [*SHORT, *BOUND, *LONG, *LAB]
    found = dealt(items, workers)
    assert sorted(each.nodeid for each in found) == sorted(each.nodeid for each in items)
    begin = 0
    for size in shares(len(items), workers):
        share = found[begin : begin + size]
        begin += size
        long = [at for at, each in enumerate(share) if each in LONG or each in LAB]
        assert abs(len(long) - 60 / workers) <= 1
        assert long[-1] <= 0.85 * size, "short ones are left for the end"
    assert begin == len(items)


def test_what_is_shared_is_not_ended_by_others_in_between() -> None:
    found = dealt([*BOUND, *LONG, *LAB], 1)
    groups = [each.callspec.params["server"] if each in BOUND else None for each in found]
    assert sum(one is not None and one != other for one, other in zip(groups, [None, *groups], strict=False)) == 20


def test_a_few_tests_go_to_many_workers() -> None:
    assert dealt(LONG[:3], 8) == LONG[:3]
    assert dealt([], 8) == []

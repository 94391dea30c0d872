"""The demo's resource and its checks: both must be able to say no."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.flash_sale.sale import Report, Visit
from examples.flash_sale.shop import Shop, Stale


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    made = Shop.create(tmp_path / "shop.sqlite", 10)
    yield made
    made.close()


def test_a_sale_lowers_the_stock_and_is_listed(shop: Shop) -> None:
    assert shop.units() == 10
    shop.sell(9, worker=3)
    assert shop.units() == 9
    assert shop.sales() == [(10, 3)]


def test_a_write_with_an_older_token_is_refused_and_changes_nothing(shop: Shop) -> None:
    assert shop.units(fence=5) == 10
    assert shop.units(fence=7) == 10  # the next holder only looked yet
    with pytest.raises(Stale) as caught:
        shop.sell(9, worker=1, fence=5)
    assert (caught.value.mine, caught.value.seen) == (5, 7)
    assert shop.units() == 10
    assert shop.sales() == []
    shop.sell(9, worker=2, fence=7)
    assert shop.sales() == [(10, 2)]


def test_a_read_with_an_older_token_is_refused(shop: Shop) -> None:
    shop.units(fence=7)
    with pytest.raises(Stale):
        shop.units(fence=6)


def good_report() -> Report:
    return Report(
        units=3,
        sales=[(3, 0), (2, 1), (1, 0)],
        units_left=0,
        visits=[Visit(0, 11, 0, 10), Visit(1, 12, 11, 20), Visit(0, 15, 20, 30)],
        killed=1,
        stopped=2,
        refused=[(2, 13, 15)],
    )


def failing(report: Report) -> list[str]:
    return [title for title, ok, _ in report.invariants() if not ok]


def test_a_good_sale_passes() -> None:
    assert failing(good_report()) == []


@pytest.mark.parametrize(
    "sales, left",
    [([(3, 0), (2, 1)], 0), ([(3, 0), (3, 1), (2, 0), (1, 1)], 0), ([(3, 0), (2, 1), (1, 0)], 1)],
)
def test_a_wrong_stock_fails(sales: list[tuple[int, int]], left: int) -> None:
    report = good_report()
    report.sales, report.units_left = sales, left
    assert failing(report) == ["stock exact"]


def test_two_inside_fail() -> None:
    report = good_report()
    report.visits[1] = Visit(1, 12, 9, 20)
    assert report.overlaps == 1
    assert failing(report) == ["overlaps 0"]


def test_a_long_visit_overlaps_all_within_it() -> None:
    report = Report(units=3, visits=[Visit(0, 1, 0, 100), Visit(1, 2, 10, 20), Visit(2, 3, 30, 40)])
    assert report.overlaps == 2


@pytest.mark.parametrize("fence", [11, 10])
def test_a_token_that_does_not_grow_fails(fence: int) -> None:
    report = good_report()
    report.visits[1] = Visit(1, fence, 11, 20)
    assert failing(report) == ["tokens strictly increasing"]


def test_harm_that_was_not_done_fails() -> None:
    report = good_report()
    report.killed, report.refused = None, []
    assert failing(report) == ["killed worker did no harm", "late write refused"]

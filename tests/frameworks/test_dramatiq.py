"""dramatiq with two real worker processes on a private Valkey."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from testbed.waiting import eventually
from tests.frameworks.shops import PATIENCE_S, Shop, opened

ACTORS = "examples.frameworks.dramatiq_actors"


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    with opened(ACTORS, tmp_path_factory.mktemp("dramatiq")) as shop:
        shop.programs.start("dramatiq", ACTORS, "--processes=2", "--threads=4")
        yield shop
        shop.tasks.dramatiq.get_broker().close()


def test_a_second_one_is_skipped(shop: Shop) -> None:
    shop.tasks.report.send("monday")
    shop.until("reports")
    shop.tasks.report.send("monday")
    shop.tasks.charge.send("p0")  # comes after it
    shop.until("outcomes")
    shop.store.rpush("data:monday", "here it is")
    assert shop.until("written") == ["monday"]
    shop.assert_free("report:monday")
    assert shop.store.llen("reports") == 1


def test_workers_take_turns(shop: Shop) -> None:
    for number in range(20):
        shop.tasks.pack.send(7, f"item {number}")
    shop.assert_in_turns("order:7", 20)


def test_a_payment_is_charged_once(shop: Shop) -> None:
    before = shop.store.llen("outcomes")
    for _ in range(3):
        shop.tasks.charge.send("p1")
    outcomes = shop.until("outcomes", before + 3)[before:]
    assert sorted(outcomes) == ["charged", "was charged before", "was charged before"]


def test_a_time_limit_gives_the_lock_back(shop: Shop) -> None:
    shop.tasks.convert.send("alien")
    eventually(lambda: "TimeLimitExceeded" in shop.programs.logs(), "the time limit", PATIENCE_S)
    assert shop.until("films") == ["alien"]
    shop.assert_free("convert:alien")


def test_a_time_limit_ends_the_wait(shop: Shop) -> None:
    before = shop.programs.logs().count("TimeLimitExceeded")
    with shop.locks.lock("convert:brazil"):
        shop.tasks.convert.send("brazil")
        eventually(lambda: shop.programs.logs().count("TimeLimitExceeded") > before, "the time limit", PATIENCE_S)
        eventually(lambda: not shop.locks.lock("convert:brazil").waiters(), "it has left the queue", PATIENCE_S)
    shop.assert_free("convert:brazil")
    assert "brazil" not in shop.until("films")

"""Celery with a real worker, prefork, on a private Valkey; beat twice."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator

import pytest

from testbed.waiting import eventually
from tests.frameworks.shops import PATIENCE_S, Shop, opened

TASKS = "examples.frameworks.celery_tasks"


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    with opened(TASKS, tmp_path_factory.mktemp("celery"), DIE_AT_FIRST="1", SWEEP_EVERY_S="2") as shop:
        shop.programs.start("celery", "--app", TASKS, "worker", "--concurrency=2", "--loglevel=INFO")
        yield shop
        shop.tasks.app.close()


def test_a_second_one_is_skipped(shop: Shop) -> None:
    first = shop.tasks.report.delay("monday")
    shop.until("reports")
    assert shop.tasks.report.delay("monday").get(timeout=PATIENCE_S) == "is being written"
    shop.store.rpush("data:monday", "here it is")
    assert first.get(timeout=PATIENCE_S) == "written"
    assert shop.store.lrange("reports", 0, -1) == ["monday"]
    shop.assert_free("report:monday")


def test_worker_processes_take_turns(shop: Shop) -> None:
    for number in range(20):
        shop.tasks.pack.delay(7, f"item {number}")
    shop.assert_in_turns("order:7", 20)


def test_what_a_dead_worker_held_is_waited_for(shop: Shop) -> None:
    """`acks_late`: delivered again at once, it gets in when the ttl of the dead process is over."""
    assert shop.tasks.charge.delay(1).get(timeout=PATIENCE_S) == 2
    first, second = map(int, shop.until("charge:1", 2))
    assert second - first >= 5_000_000, "fencing tokens are the server's time in µs: a ttl apart at least"


def test_a_time_limit_gives_the_lock_back(shop: Shop) -> None:
    from celery.exceptions import SoftTimeLimitExceeded

    result = shop.tasks.convert.delay("alien")
    with pytest.raises(SoftTimeLimitExceeded):
        result.get(timeout=PATIENCE_S)
    assert shop.until("films") == ["alien"]
    shop.assert_free("convert:alien")


def test_a_time_limit_ends_the_wait(shop: Shop) -> None:
    from celery.exceptions import SoftTimeLimitExceeded

    with shop.locks.lock("convert:brazil"):
        result = shop.tasks.convert.delay("brazil")
        with pytest.raises(SoftTimeLimitExceeded):
            result.get(timeout=PATIENCE_S)
        eventually(lambda: not shop.locks.lock("convert:brazil").waiters(), "it has left the queue", PATIENCE_S)
    shop.assert_free("convert:brazil")
    assert "brazil" not in shop.until("films")


@pytest.mark.parametrize("pool", ["gevent", "eventlet", "threads"])
def test_other_pools(shop: Shop, pool: str) -> None:
    worker = ("celery", "--app", TASKS, "worker", f"--pool={pool}", "--concurrency=20", "--queues", pool)
    shop.programs.start(*worker, "--hostname", pool, PYTHONWARNINGS="ignore")
    for number in range(20):
        shop.tasks.pack.apply_async((pool, f"item {number}"), queue=pool)
    shop.assert_in_turns(f"order:{pool}", 20)


def test_of_two_beats_one_is_heard(shop: Shop) -> None:
    for number in (1, 2):
        shop.programs.start("celery", "--app", TASKS, "beat", f"--schedule=beat-{number}")
    fences = [int(fence) for fence in shop.until("sweeps", 4)]
    apart_us = [later - sooner for sooner, later in itertools.pairwise(fences)]
    # at_least counts from before the request, the fencing token from its arrival, which may be late.
    assert min(apart_us) >= 1_300_000, apart_us
    eventually(lambda: "was swept already" in shop.programs.logs(), "one for nothing", PATIENCE_S)


def test_one_beat_runs_and_the_other_one_stands_by(shop: Shop) -> None:
    beats = [
        shop.programs.start(
            *("holdfast", "elect", "--ttl", "2s", "beat", "--"),
            *(sys.executable, "-m", "celery", "--app", TASKS, "beat", f"--schedule=elected-{number}"),
        )
        for number in (1, 2)
    ]

    def leading() -> list[int]:
        return [number for number, beat in enumerate(beats) if "is starting" in shop.programs.log_of(beat)]

    (first,) = eventually(leading, "one has begun", PATIENCE_S)
    beats[first].kill()  # its guard ends beat, too
    assert eventually(lambda: len(leading()) == 2, "the other one took over", PATIENCE_S)

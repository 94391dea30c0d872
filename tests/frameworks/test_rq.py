"""RQ with two real workers on a private Valkey."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from testbed.waiting import eventually
from tests.frameworks.shops import PATIENCE_S, Shop, opened

JOBS = "examples.frameworks.rq_jobs"


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    with opened(JOBS, tmp_path_factory.mktemp("rq")) as shop:
        for _ in range(2):
            shop.programs.start("rq.cli", "worker", "--url", shop.url)
        yield shop


@pytest.fixture(scope="module")
def queue(shop: Shop) -> Iterator[Any]:
    import redis
    import rq

    with redis.Redis.from_url(shop.url) as connection:
        yield rq.Queue(connection=connection)


def result_of(job: Any) -> Any:
    """Return the job's result, when it has ended."""
    eventually(lambda: job.get_status(refresh=True) in ("finished", "failed"), repr(job), PATIENCE_S)
    assert job.get_status() == "finished", job.latest_result().exc_string
    return job.return_value()


def test_a_second_one_is_skipped(shop: Shop, queue: Any) -> None:
    first = queue.enqueue(shop.tasks.report, "monday")
    shop.until("reports")
    assert result_of(queue.enqueue(shop.tasks.report, "monday")) == "is being written"
    shop.store.rpush("data:monday", "here it is")
    assert result_of(first) == "written"
    shop.assert_free("report:monday")


def test_workers_take_turns(shop: Shop, queue: Any) -> None:
    for number in range(6):
        queue.enqueue(shop.tasks.pack, 7, f"item {number}")
    shop.assert_in_turns("order:7", 6)


def test_a_payment_is_charged_once(shop: Shop, queue: Any) -> None:
    results = [result_of(job) for job in [queue.enqueue(shop.tasks.charge, "p1") for _ in range(3)]]
    assert sorted(results) == ["charged", "was charged before", "was charged before"]
    assert shop.store.get("charges") == "1"


def test_a_timeout_gives_the_lock_back(shop: Shop, queue: Any) -> None:
    job = queue.enqueue(shop.tasks.convert, "alien", job_timeout=1)
    eventually(lambda: job.get_status(refresh=True) == "failed", repr(job), PATIENCE_S)
    assert "JobTimeoutException" in job.latest_result().exc_string
    assert shop.until("films") == ["alien"]
    shop.assert_free("convert:alien")


def test_a_timeout_ends_the_wait(shop: Shop, queue: Any) -> None:
    with shop.locks.lock("convert:brazil"):
        job = queue.enqueue(shop.tasks.convert, "brazil", job_timeout=1)
        eventually(lambda: job.get_status(refresh=True) == "failed", repr(job), PATIENCE_S)
        eventually(lambda: not shop.locks.lock("convert:brazil").waiters(), "it has left the queue", PATIENCE_S)
    shop.assert_free("convert:brazil")
    assert "brazil" not in shop.until("films")

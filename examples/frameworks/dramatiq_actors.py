"""dramatiq: actors under locks. `docs/frameworks/queues.md` explains each of them.

export HOLDFAST_URL=redis://localhost:6379
dramatiq examples.frameworks.dramatiq_actors
"""

from __future__ import annotations

import os
import time

import dramatiq
import redis
from dramatiq.brokers.redis import RedisBroker

import holdfast

URL = os.environ.get("HOLDFAST_URL", "redis://localhost:6379")

dramatiq.set_broker(RedisBroker(url=URL))
locks = holdfast.connect(URL)
store = redis.Redis.from_url(URL, decode_responses=True)  # stands for your database


@dramatiq.actor
@locks.locked("report:{day}", skip_if_held=True)
def report(day: str) -> None:
    store.rpush("reports", day)
    store.blpop([f"data:{day}"])  # the work
    store.rpush("written", day)


@dramatiq.actor(max_retries=None, min_backoff=200, max_backoff=1_000)
@locks.locked("order:{order}", timeout=1)
def pack(order: int, item: str) -> None:
    items = store.llen(f"order:{order}")
    time.sleep(0.01)
    store.rpush(f"order:{order}", f"{items + 1}. {item}")


@dramatiq.actor
def charge(payment: str) -> None:
    outcome = locks.once(f"charge:{payment}", lambda lease: store.incr("charges"), retain=7 * 86_400)
    store.rpush("outcomes", "charged" if outcome.new else "was charged before")


@dramatiq.actor(time_limit=1_000, max_retries=0)
@locks.locked("convert:{film}")
def convert(film: str) -> None:
    store.rpush("films", film)
    while True:
        time.sleep(0.1)

"""RQ: jobs under locks. `docs/frameworks/queues.md` explains each of them.

export HOLDFAST_URL=redis://localhost:6379
rq worker --url $HOLDFAST_URL
"""

from __future__ import annotations

import os
import time

import redis

import holdfast

URL = os.environ.get("HOLDFAST_URL", "redis://localhost:6379")

locks = holdfast.connect(URL)
store = redis.Redis.from_url(URL, decode_responses=True)  # stands for your database


@locks.locked("report:{day}", skip_if_held=True, otherwise="is being written")
def report(day: str) -> str:
    store.rpush("reports", day)
    store.blpop([f"data:{day}"])  # the work
    return "written"


@locks.locked("order:{order}", timeout=60)
def pack(order: int, item: str) -> None:
    items = store.llen(f"order:{order}")
    time.sleep(0.01)
    store.rpush(f"order:{order}", f"{items + 1}. {item}")


def charge(payment: str) -> str:
    outcome = locks.once(f"charge:{payment}", lambda lease: store.incr("charges"), retain=7 * 86_400)
    return "charged" if outcome.new else "was charged before"


@locks.locked("convert:{film}")
def convert(film: str) -> None:
    store.rpush("films", film)
    time.sleep(600)

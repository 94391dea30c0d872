"""Celery: tasks under locks. `docs/frameworks/queues.md` explains each of them.

export HOLDFAST_URL=redis://localhost:6379
celery --app examples.frameworks.celery_tasks worker
celery --app examples.frameworks.celery_tasks beat      # on two hosts, so that one may fail
"""

from __future__ import annotations

import os
import time

import celery
import redis

import holdfast

URL = os.environ.get("HOLDFAST_URL", "redis://localhost:6379")

app = celery.Celery("shop", broker=URL, backend=URL)
locks = holdfast.connect(URL)  # each worker process connects when it first needs a lock
store = redis.Redis.from_url(URL, decode_responses=True)  # stands for your database


@app.task(name="report")
@locks.locked("report:{day}", skip_if_held=True, otherwise="is being written")
def report(day: str) -> str:
    store.rpush("reports", day)
    store.blpop([f"data:{day}"])  # the work
    return "written"


@app.task(name="pack", autoretry_for=(holdfast.AcquireTimeout,), retry_backoff=1, max_retries=None)
@locks.locked("order:{order}", timeout=1)
def pack(order: int, item: str) -> None:
    items = store.llen(f"order:{order}")
    time.sleep(0.01)
    store.rpush(f"order:{order}", f"{items + 1}. {item}")


@app.task(name="charge", acks_late=True, reject_on_worker_lost=True)
def charge(order: int) -> int:
    with locks.lock(f"charge:{order}", ttl=5).acquire(timeout=60) as lease:  # longer than the ttl
        attempt = store.rpush(f"charge:{order}", lease.fencing_token)
        if attempt == 1 and "DIE_AT_FIRST" in os.environ:
            os.kill(os.getpid(), 9)  # like the OOM killer
        return attempt


@app.task(name="convert", soft_time_limit=1)
@locks.locked("convert:{film}")
def convert(film: str) -> None:
    store.rpush("films", film)
    time.sleep(600)


EVERY_S = float(os.environ.get("SWEEP_EVERY_S", "60"))
app.conf.beat_schedule = {"sweep": {"task": "sweep", "schedule": EVERY_S}}


@app.task(name="sweep")
def sweep() -> str:
    lease = locks.lock("sweep", at_least=0.9 * EVERY_S).try_acquire()
    if lease is None:
        return "was swept already"
    with lease:
        store.rpush("sweeps", lease.fencing_token)
        return "swept"

"""APScheduler in several processes: each tick is for one of them. `python -m examples.frameworks.apscheduler_ticks`"""

from __future__ import annotations

import os

import redis
from apscheduler.schedulers.blocking import BlockingScheduler

import holdfast

URL = os.environ.get("HOLDFAST_URL", "redis://localhost:6379")
EVERY_S = int(os.environ.get("SWEEP_EVERY_S", "30"))

locks = holdfast.connect(URL)
store = redis.Redis.from_url(URL)  # stands for your database
scheduler = BlockingScheduler(timezone="UTC")


@scheduler.scheduled_job("cron", second=f"*/{EVERY_S}", misfire_grace_time=EVERY_S // 2)
@locks.locked("sweep", skip_if_held=True, otherwise="another process runs it", at_least=EVERY_S / 2)
def sweep() -> str:
    store.incr("sweeps")
    return "swept"


if __name__ == "__main__":
    scheduler.start()

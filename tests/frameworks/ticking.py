"""A process of `examples.frameworks.apscheduler_ticks` that says what came of each tick: `python -m … TICKS_KEY`."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from apscheduler.events import EVENT_JOB_ERROR, EVENT_JOB_EXECUTED, EVENT_JOB_MISSED

from examples.frameworks.apscheduler_ticks import scheduler, store


def tell(event: Any) -> None:
    tick = event.scheduled_run_time.timestamp()
    result = repr(event.exception) if event.exception else event.retval
    store.rpush(sys.argv[1], json.dumps({"tick": tick, "late_s": time.time() - tick, "result": result}))


scheduler.add_listener(tell, EVENT_JOB_EXECUTED | EVENT_JOB_ERROR | EVENT_JOB_MISSED)
scheduler.start()

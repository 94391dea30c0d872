"""A script that stops without its lock. `python -m examples.frameworks.interrupted_script`"""

from __future__ import annotations

import os
import time

import holdfast
from holdfast.interrupting import interrupt_on_lost

URL = os.environ.get("HOLDFAST_URL", "redis://localhost:6379")

locks = holdfast.connect(URL, ttl=3)


def rebuild() -> None:
    with locks.lock("index") as lease, interrupt_on_lost(lease):
        print("rebuilding", flush=True)
        time.sleep(600)


if __name__ == "__main__":
    try:
        rebuild()
    except holdfast.LeaseLost as error:
        print("stopped:", error.reason)

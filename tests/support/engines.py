"""What tests ask of a client's engine."""

from __future__ import annotations

import threading
from typing import Any

from testbed.waiting import eventually

__all__ = ["settle"]


def settle(locks: Any) -> None:
    """Wait until the engine has nothing under way for that client."""
    front = locks._session.driver

    def idle() -> bool:
        turned = threading.Event()
        front.engine.call(turned.set)  # what was submitted before has begun
        return turned.wait(10) and not front.client.tasks

    eventually(idle, "nothing is under way")

"""The local clock that neither jumps nor stops in suspend."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

#: CLOCK_BOOTTIME goes on while the machine sleeps, as the server's does; where there is none, the monotonic clock.
clock: Callable[[], float] = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic
)

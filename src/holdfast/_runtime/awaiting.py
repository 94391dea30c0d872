"""What a coroutine waits for, also behind an object with an `__await__`."""

from __future__ import annotations

import gc
from typing import Any

__all__ = ["awaited_by"]


def awaited_by(waits: Any) -> Any:
    """Return what `waits` awaits: another coroutine, generator or awaitable; None for nothing."""
    awaited = getattr(waits, "cr_await", None) or getattr(waits, "gi_yieldfrom", None)
    if type(awaited).__name__ == "coroutine_wrapper":  # of `coroutine.__await__()`, which does not say of which
        return next(iter(gc.get_referents(awaited)), None)
    return awaited

"""Where a lock's keys lie, spelled out: tests say what the code must do, and do not ask it."""

from __future__ import annotations

__all__ = ["fence_of", "key_of", "queue_of"]


def key_of(name: str) -> str:
    """The lock itself: the holder's token."""
    return f"holdfast:{{{name}}}"


def fence_of(name: str) -> str:
    """The last fencing token."""
    return f"holdfast:{{{name}}}:fence"


def queue_of(name: str) -> str:
    """Return the key of the lock's queue."""
    return f"holdfast:{{{name}}}:queue"

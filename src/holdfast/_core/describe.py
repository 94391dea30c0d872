"""Writing and reading what a client says of itself."""

from __future__ import annotations

from holdfast._core.effects import Command, Reply
from holdfast._core.trouble import Trouble

__all__ = ["introduce", "look_up"]

_PATIENCE_S = 2.0


async def introduce(key: str, fields: tuple[str, ...], keep_ms: int) -> None:
    """Write the description of a client; nothing depends on it, so trouble is ignored."""
    try:
        await Command(("HSET", key, *fields), _PATIENCE_S, key=key)
        await Command(("PEXPIRE", key, keep_ms), _PATIENCE_S, key=key)
    except Trouble:
        pass


async def look_up(key: str) -> Reply:
    """The fields of a description; empty when there is none, or it may not be read."""
    try:
        return await Command(("HGETALL", key), _PATIENCE_S, key=key)
    except Trouble:
        return []

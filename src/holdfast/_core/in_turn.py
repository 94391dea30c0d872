"""Two protocols, the second one when the first has ended in whatever way."""

from __future__ import annotations

from typing import Any

from holdfast._core.effects import Protocol


async def in_turn(first: Protocol[Any], second: Protocol[Any]) -> None:
    try:
        await first
    finally:
        await second

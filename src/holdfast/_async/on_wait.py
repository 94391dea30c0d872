"""Telling a caller's function what its acquire waits for."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from holdfast._api.decorated import check_callable, check_result
from holdfast._api.holder import Holder, Waiting
from holdfast._async.overview import holder_behind, look
from holdfast._core.telling import Seen
from holdfast.errors import HoldfastError

__all__ = ["teller"]

_LATER = "it is called while a lock is waited for"


def teller(lock: Any, on_wait: Callable[[Waiting], object]) -> Callable[[Seen], Any]:
    """Return a function that calls `on_wait` with what is known of a wait for that lock."""
    check_callable("on_wait", on_wait)

    async def tell(seen: Seen) -> None:
        holder, place = await _now(lock, seen)
        told = Waiting(lock._label, lock._name, seen.waited_s, place + 1 if place >= 0 else None, holder)
        result = on_wait(told)
        # sync-drop
        if inspect.isawaitable(result):
            result = await result
        check_result(on_wait, result, "asyncio", "on_wait", _LATER)

    return tell


async def _now(lock: Any, seen: Seen) -> tuple[Holder | None, int]:
    """Return the holder and the place in the queue, as of now, or of the last request."""
    session, token, place = lock._session, seen.holder, seen.place
    try:
        if session.quorum is not None:
            return await lock.holder(), place
        now = await look(session, lock._kind, lock._name)
        if now is not None and now.holders:
            waiting, holding = [each for each, _ in now.waiters], [each for each, _ in now.holders]
            place = waiting.index(seen.token) if seen.token in waiting else place
            token = token if token in holding else holding[0]
        return (None if token is None else await holder_behind(session, token, now, True)), place
    except HoldfastError:
        return None, place  # it may be why it waits

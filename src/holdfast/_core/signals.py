"""What lies under a name beside locks: latches, events, barriers, conditions, and what was done once.

Law: nothing is changed. What this user may not see is left out.
"""

from __future__ import annotations

import re
from typing import Any

from holdfast._core.condition import condition_key
from holdfast._core.effects import Command, Reply
from holdfast._core.failure import RequestFailed
from holdfast._core.keys import lock_keys
from holdfast._core.kinds import BARRIER, CONDITION, KINDS
from holdfast._core.waiting import once_more

#: What is missing, and what was declared, before the count of openings.
_STATE = re.compile(rb"(\d{1,15}) (\d{1,15}) \d{1,17} \d{1,17}")
_NUMBER = re.compile(rb"\d{1,15}")


async def look_at_signals(namespace: str | None, name: str, request_timeout_s: float) -> dict[str, dict[str, Any]]:
    """Return what there is, by its kind. Raises `RequestFailed`."""

    async def ask(*args: str | int) -> Reply:
        try:
            return await once_more(Command(args, request_timeout_s, key=str(args[1])))
        except RequestFailed as failure:
            if failure.kind in ("NOPERM", "WRONGTYPE"):
                return None
            raise

    keys = lock_keys(namespace, name)
    found: dict[str, dict[str, Any]] = {}
    for kind in (each for each in KINDS if each.says):
        its = keys.of(kind)
        state = _STATE.fullmatch(await ask("GETRANGE", its.lock, 0, 63) or b"")
        waiters = await ask("ZCARD", its.queue) or 0
        if state is not None or waiters:
            missing, declared = (int(state[1]), int(state[2])) if state is not None else (None, None)
            facts = {"count": declared, "missing": missing, "set": missing == 0}
            found[kind.name] = {**{fact: facts[fact] for fact in kind.says}, "waiters": waiters}
    barrier = keys.of(BARRIER)
    state = await ask("HMGET", barrier.lock, "generation", "parties", "broken")
    numbers = [int(each) if each is not None and _NUMBER.fullmatch(each) else 0 for each in state or (None,) * 3]
    if numbers[1]:
        waiting = await ask("ZCARD", f"{barrier.base}:arrived") or 0
        facts = {"parties": numbers[1], "waiting": waiting, "generation": numbers[0], "broken": bool(numbers[2])}
        found[BARRIER.name] = facts
    waiters = await ask("ZCARD", condition_key(keys, "default")) or 0
    if waiters:
        found[CONDITION.name] = {"waiters": waiters}
    own = name if name.startswith("once:") else f"once:{name}"
    if await ask("EXISTS", f"{lock_keys(namespace, own).base}:done"):
        found["once"] = {"done": True}
    return found

"""Fairness, counted and not timed: how many get in between the arrival of a waiter and its turn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from testbed.waiting import eventually
from tests.support.apis import Api

__all__ = ["overtakers"]


def overtakers(
    api: Api,
    raw: Any,
    spin: Callable[[], Any],
    pin: Callable[[], Any],
    wanted: Callable[[], Any],
    *,
    queue: str,
    mark: str,
    threads: int,
    turns: int,
) -> int:
    """Count the leases that `threads` acquire by `spin` in a loop between `wanted`'s arrival and its turn.

    Asked after that many `turns`. What `pin` acquires is held until the waiter, whose token has `mark`, is seen in
    `queue`.
    """
    stop: list[bool] = []
    fences: list[int] = []

    def loop() -> None:
        while not stop:
            lease = spin()
            fences.append(lease.fencing_token)
            lease.release()

    def arrival() -> float:
        waiting = raw.zrange(queue, 0, -1, withscores=True)
        return next((score for token, score in waiting if mark in token), 0)

    spinning = [api.start(loop) for _ in range(threads)]
    try:
        eventually(lambda: len(fences) > turns)
        pinned = pin()
        waiter = api.start(wanted)
        came = eventually(arrival)
        pinned.release()
        lease = waiter.result()
        between = [fence for fence in tuple(fences) if came < fence < lease.fencing_token]
        lease.release()
    finally:
        stop.append(True)
    for each in spinning:
        each.result()
    return len(between)

"""Plays of clients that wait in one call of a listing, "in lock" or "interruptibly", instead of trying again and again:
what that call keeps, and what an interrupt does to it.
"""

from __future__ import annotations

from holdfast_lab.parts import all_through, cast, enter, epilogue, outcome
from holdfast_lab.stage import Stage

__all__ = ["BEFORE_IT_ASKS", "IN_LOCK", "WHILE_IT_WAITS", "crowd", "interrupted"]

#: The clients beside A, as many as a pool may have connections.
_CROWD = ("B", "C", "D", "E", "F", "G", "H", "I")
#: When B is interrupted.
WHILE_IT_WAITS, IN_LOCK = "while it waits in lockInterruptibly()", "while it waits in lock()"
BEFORE_IT_ASKS = "before it calls lockInterruptibly()"


async def crowd(stage: Stage, variant: str) -> bool:
    a = await stage.client("A", stage.short_ms)
    others = [await stage.client(name) for name in _CROWD[: stage.entry.pool]]
    await enter(a)
    for other in others:
        other.start_acquire(waits="in lock")
    await stage.until(lambda: all(other.answered for other in others), "all others to wait")
    await a.count()
    await a.do("leave")
    stage.fault(f"{len(others)} others wait in lock(), each with a connection of the pool of {stage.entry.pool}")
    a.start_release()
    if not await stage.any_through_expiry(others, a.ttl_ms):
        stage.history.add(stage.now_ns(), a.name, "hangs", pool=stage.entry.pool)
        for other in others:
            await other.give_up()
        await outcome(stage, a, "released", "failed")
        return True
    await next(other for other in others if other.entered).do("read")
    await outcome(stage, a, "released", "failed")
    await stage.settled(next(other for other in others if not other.entered))
    await all_through(stage, *others)
    return True


async def interrupted(stage: Stage, variant: str) -> bool:
    a, b, c = await cast(stage)
    await enter(a)
    await a.do("read")
    waits = "in lock" if variant == IN_LOCK else "interruptibly"
    if variant == BEFORE_IT_ASKS:
        stage.fault("B is interrupted before it calls lockInterruptibly()")
        b.interrupt()
    b.start_acquire(waits=waits)
    if variant != BEFORE_IT_ASKS:
        await stage.until(lambda: b.answered > 0, "B to wait")
        if variant == IN_LOCK:
            stage.fault("B is interrupted while it waits in lock()")
        else:
            stage.fault("B is interrupted while it waits in lockInterruptibly()")
        b.interrupt()
    # Twice: of the first tries that are told, one may have ended before the interrupt.
    if await stage.settled(b) or (b.tries and await stage.settled(b)):
        await b.do("read")
    await a.finish()
    if b.inside or not b.ended_asking:
        await epilogue(stage, b, c)
    return True

"""How a waiter gives up in a deadlock, against scripted answers: in which order, and what it leaves alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from holdfast._core.deadlocks import Edges, Step, stuck
from holdfast._core.describe import Witness
from holdfast._core.detecting import Check, Detector, Found
from holdfast._core.effects import AwaitWake, Call, Command, Effect, Spawn, Wake
from holdfast._core.failure import RequestFailed
from holdfast._core.keys import lock_keys
from holdfast._core.mutex import LockAcquisition
from holdfast._core.overview import Entry
from holdfast._core.settings import DEFAULT
from tests.support.steps import drive

TOKEN, CLAIM = "0" * 24 + ":1:1", "0" * 24 + ":deadlock:2"
OTHER, HAS, HAS_OTHER = "1" * 24 + ":1:1", "0" * 24 + ":1:0", "1" * 24 + ":1:0"
CIRCLE = (
    Entry(0, "lock", "a", 1, 1, 7, 0, ((HAS_OTHER, 9_000),), ((TOKEN, 1.0),)),
    Entry(0, "lock", "b", 1, 1, 7, 0, ((HAS, 9_000),), ((OTHER, 1.0),)),
)


class Told(Exception):
    """What the caller gets."""


class Seen:
    """A detector that finds a circle, the second time only if `real`."""

    namespace = "holdfast"
    settings = DEFAULT

    def __init__(self, real: bool = True) -> None:
        self.real = real

    async def seen(self, waiter: object) -> Edges:
        return stuck([*CIRCLE], {})

    async def again(self, first: Edges) -> Edges:
        return first if self.real else {}

    async def explained(self, circle: tuple[Step, ...]) -> Found:
        return Found(circle, {}, {})


def look(
    detector: Seen, grants: bool = True, answers: bool = True, wake: Wake | None = None
) -> tuple[list[tuple[str, ...]], Any]:
    """(what it did, in order; what came of it). `grants`: the claim is free. `answers`: its leaving is answered."""
    did: list[tuple[str, ...]] = []

    def perform(effect: Effect[Any]) -> Any:
        if isinstance(effect, AwaitWake):
            return wake
        if isinstance(effect, Command):
            did.append((str(effect.args[0]), str(effect.args[1])))
            return b"OK"
        if isinstance(effect, Call):
            did.append((effect.script, str(effect.args[0])))
            if effect.script == "acquire":
                return [1, 5] if grants else [0, 5000, b"1" * 24 + b":deadlock:9", -1, 77]
            if not answers:
                raise RequestFailed("broken", "gone", "n", maybe_executed=True, transient=True)
            return 1
        if isinstance(effect, Spawn):
            did.append(("later", *(word for step in _calls(effect) for word in step)))
        return None

    def error(found: Found) -> Exception:
        return Told(found)

    turn = LockAcquisition(lock_keys("holdfast", "a"), TOKEN, 1000)
    witness = Witness("holdfast", DEFAULT, lambda token: (), lambda _: "here")
    check = Check(cast(Detector, detector), witness, 1.0, lambda: CLAIM, error)
    try:
        return did, drive(check.look(turn, None, None), perform)
    except Told as told:
        return did, told


def _calls(effect: Spawn) -> list[tuple[str, str]]:
    """The requests of what is run in the background."""
    seen: list[tuple[str, str]] = []

    def perform(effect: Effect[Any]) -> Any:
        if isinstance(effect, Call):
            seen.append((effect.script, str(effect.args[0])))
            return 1
        return None

    drive(effect.protocol, perform)
    return seen


NOTE, CLAIMED = ("SET", f"holdfast:waits:{TOKEN}"), ("acquire", CLAIM)
LEFT, FREED = ("release", TOKEN), ("later", "release", CLAIM)


def test_it_leaves_its_queue_before_another_one_may_decide() -> None:
    did, told = look(Seen())
    assert did == [NOTE, CLAIMED, LEFT, FREED]
    assert isinstance(told, Told) and {step.token for step in told.args[0].circle} == {TOKEN, OTHER}


def test_no_one_else_decides_while_it_is_not_known_whether_it_has_left() -> None:
    did, told = look(Seen(), answers=False)
    assert did == [NOTE, CLAIMED, LEFT], "the claim is left to its ttl"
    assert isinstance(told, Told)


@pytest.mark.parametrize("wake", [None, cast(Wake, SimpleNamespace(kind=Wake.GRANT))], ids=["gone", "woken"])
def test_it_goes_on_waiting_where_the_circle_is_gone_or_it_is_woken(wake: Wake | None) -> None:
    did, got = look(Seen(real=wake is not None), wake=wake)
    assert did == [NOTE, CLAIMED, FREED]
    assert got == (wake, 1.0)


def test_while_another_one_decides_it_waits_and_looks_again_soon() -> None:
    did, (wake, pause_s) = look(Seen(), grants=False)
    assert did == [NOTE, CLAIMED] and wake is None
    assert 0 < pause_s <= 0.5

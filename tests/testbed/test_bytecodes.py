"""The support for interruptions at every bytecode: every place is reached, and only code of holdfast counts."""

from __future__ import annotations

import gc
import sys

import pytest

from holdfast._core.record import LeaseRecord
from holdfast._core.schedule import Schedule
from holdfast._core.validity import deadline
from tests.support.bytecodes import at_bytecode, bytecodes_of, places_once


class Interruption(BaseException):
    pass


def act() -> float:
    return deadline(10.0, 1000)


def test_a_hook_runs_once_at_each_bytecode_of_the_package() -> None:
    places = bytecodes_of(act)
    assert {place.code.co_name for place in places} == {"deadline"}
    assert places == bytecodes_of(act)
    for number, place in enumerate(places):
        calls: list[int] = []
        result, reached = at_bytecode(number, lambda frame: calls.append(frame.f_lasti), act)  # noqa: B023
        assert (result, reached, calls) == (act(), place, [place.offset])
    assert at_bytecode(len(places), lambda frame: None, act) == (act(), None)
    assert list(places_once(places + places)) == list(range(len(places)))


def test_what_the_hook_raises_comes_out_of_the_bytecode_and_ends_the_tracing() -> None:
    def interrupt(_: object) -> None:
        raise Interruption

    before = sys.gettrace()
    for number in range(len(bytecodes_of(act))):
        with pytest.raises(Interruption) as raised:
            at_bytecode(number, interrupt, act)
        assert "deadline" in [entry.name for entry in raised.traceback]
        assert sys.gettrace() is before


def test_no_exception_stays_that_was_handled_where_the_hook_raises() -> None:
    """Else whatever is raised in this thread from then on has it as its context, and its frames stay alive."""

    def interrupt(_: object) -> None:
        raise Interruption

    def handles() -> None:
        Schedule().add(LeaseRecord("a", "t", 1, 1000, 0.0), 0.5)

    places = bytecodes_of(handles)
    gc.disable()  # what is raised in a finalizer reaches no one
    try:
        for number, place in enumerate(places):
            with pytest.raises(Interruption):
                at_bytecode(number, interrupt, handles)
            assert sys.exc_info() == (None, None, None), place
    finally:
        gc.enable()

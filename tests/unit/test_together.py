"""Requests that share one call of a script: each ends by itself."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast._core.failure import RequestFailed
from holdfast._core.keys import lock_keys
from holdfast._core.mutex import LockAcquisition, acquire_each
from holdfast._core.settings import DEFAULT
from holdfast._transport.pack import PreparedRequest
from holdfast._transport.together import Member, Together

KEYS = lock_keys("holdfast", "a")
REQUEST = PreparedRequest(LockAcquisition(KEYS, "", 30_000).ask(False, 0, 1.0), acquire_each(KEYS, 30_000, DEFAULT))


class Asked:
    """Three that ask together, and those of them that were left to ask alone."""

    def __init__(self) -> None:
        self.members: list[Member] = [(asyncio.Future(), 1.0, REQUEST, f"t{number}") for number in range(3)]
        self.alone: list[str] = []
        self.together = Together(self.members, lambda member: self.alone.append(member[3]))

    @property
    def futures(self) -> list[Any]:
        return [member[0] for member in self.members]


def play(test: Any) -> None:
    async def main() -> None:
        test(Asked())

    asyncio.run(main())


def test_what_was_not_done_together_is_asked_alone() -> None:
    def test(asked: Asked) -> None:
        asked.together.set_result([7, 0, 9])
        assert [future.done() for future in asked.futures] == [True, False, True]
        assert asked.futures[0].result() == [1, 7] and asked.futures[2].result() == [1, 9]
        assert asked.alone == ["t1"] and asked.together.done()

    play(test)


def test_what_the_server_refuses_as_a_whole_is_asked_alone() -> None:
    def test(asked: Asked) -> None:
        asked.together.refused()
        assert asked.alone == ["t0", "t1", "t2"] and asked.together.done()

    play(test)


@pytest.mark.parametrize("reply", [[1, 2], [1, 2, 3, 4], [1, 2, -1], [1, 2, b"3"], 3, None])
def test_an_answer_of_another_form_does_not_fit(reply: Any) -> None:
    def test(asked: Asked) -> None:
        assert not asked.together.fits(reply)
        assert asked.together.fits([1, 0, 2])

    play(test)


def test_trouble_is_one_of_its_own_for_each() -> None:
    def test(asked: Asked) -> None:
        asked.futures[0].cancel()
        asked.together.set_exception(RequestFailed("broken", "m", "n", maybe_executed=True, transient=True))
        failures = [future.exception() for future in asked.futures[1:]]
        assert failures[0] is not failures[1] and all(failure.maybe_executed for failure in failures)

    play(test)

"""Small worlds in every order, to a depth that every run of the tests can afford."""

from __future__ import annotations

import pytest

from holdfast._lua import SCRIPTS, Script
from holdfast._sim.explore import explore
from holdfast._sim.server import forget_scripts


@pytest.mark.parametrize("clients, depth, worlds", [(2, 5, 272), (3, 4, 112)])
def test_every_order_with_one_fault_anywhere(clients: int, depth: int, worlds: int) -> None:
    explored = explore("mutex", clients=clients, depth=depth)
    assert explored.broken is None
    assert explored.whole
    assert explored.worlds == worlds, "two ways for each message, three more for the one that goes wrong"


def test_an_answer_without_a_look_at_the_holder_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    text = SCRIPTS["acquire"].text
    wrong = Script("acquire", text.replace("redis.call('EXISTS', lock, queue, gone) == 0", "ARGV[4] == '0'"))
    assert wrong.text != text
    monkeypatch.setitem(SCRIPTS, "acquire", wrong)
    forget_scripts()
    try:
        explored = explore("mutex", clients=2, depth=5)
    finally:
        monkeypatch.undo()
        forget_scripts()
    assert explored.broken is not None
    assert explored.broken[1].kind == "stolen"

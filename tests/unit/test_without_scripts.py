"""Locks on a server that runs no scripts: what an interruption leaves of a session."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast._core.effects import Command, Spawn
from holdfast._core.failure import RequestFailed
from holdfast._core.keys import lock_keys
from holdfast._core.plain import PlainAcquisition, Scripts, no_scripts
from holdfast._core.settings import DEFAULT
from tests.support.steps import driven


class Interrupted(BaseException):
    """As a cancellation is."""


_ANSWERS: dict[str | bytes | int | float, Any] = {"GET": b"t", "TIME": [b"1", b"2"]}


@pytest.mark.parametrize("commands", [3, 4], ids=["after the first read", "after the second read"])
def test_a_session_ends_that_is_interrupted_between_its_watch_and_its_write(commands: int) -> None:
    """Watching on, the session would keep a connection until its client is closed."""
    turn = PlainAcquisition(lock_keys("holdfast", "a"), "t", 10_000, DEFAULT, Scripts())
    protocol = turn._next_fence(1.0)
    with driven():
        effect: Any = protocol.send(None)
    sessions: set[str | None] = set()
    for _ in range(commands - 1):
        assert isinstance(effect, Command)
        sessions.add(effect.session)
        effect = protocol.send(None if effect.args[1:2] == ("holdfast:{a}:fence",) else _ANSWERS.get(effect.args[0]))
    left: Any = protocol.throw(Interrupted())
    assert isinstance(left, Spawn)
    ending: Any = left.protocol.send(None)
    assert (ending.args, {ending.session}) == (("UNWATCH",), sessions)
    with pytest.raises(StopIteration):
        _ = left.protocol.send(b"OK")
    with pytest.raises(Interrupted):
        _ = protocol.send(None)


@pytest.mark.parametrize("commands", [1, 2, 3, 4, 5])
def test_a_look_at_what_a_user_may_do_ends_its_session_when_it_is_interrupted(commands: int) -> None:
    refused = RequestFailed("NOPERM", "no permission to run 'evalsha'", "", maybe_executed=False, transient=False)
    protocol = no_scripts(refused, lock_keys("holdfast", "a"), DEFAULT)
    with driven():
        effect: Any = protocol.send(None)
    for _ in range(commands - 1):
        effect = protocol.send(_ANSWERS.get(effect.args[0]))
    left: Any = protocol.throw(Interrupted())
    assert isinstance(left, Spawn)
    ending: Any = left.protocol.send(None)
    assert (ending.args, ending.session) == (("UNWATCH",), effect.session)
    left.protocol.close()
    with pytest.raises(Interrupted):
        _ = protocol.send(None)

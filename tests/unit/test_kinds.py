"""The table of kinds, and what has to agree with it."""

from __future__ import annotations

import re
from itertools import takewhile
from typing import Any, get_args

import pytest

from holdfast._api.overview import Kind as Listed
from holdfast._core.agent.runner import abandon
from holdfast._core.condition import ConditionAcquisition
from holdfast._core.effects import Call, Effect, Listen, Spawn
from holdfast._core.failure import RequestFailed
from holdfast._core.keys import lock_keys
from holdfast._core.kinds import (
    BARRIER,
    KIND_OF_SCRIPT,
    KINDS,
    LATCH,
    LEASED,
    LISTED,
    SEMAPHORE,
    Kind,
)
from holdfast._core.multilock import MultiAcquisition
from holdfast._core.mutex import LockAcquisition
from holdfast._core.openings import BarrierAcquisition, GateAcquisition
from holdfast._core.record import RENEWAL
from holdfast._core.replies import FITS
from holdfast._core.rwlock import RWAcquisition
from holdfast._core.semaphore import SemaphoreAcquisition
from holdfast._core.settings import DEFAULT
from holdfast._core.waiting import Acquisition, wait_for
from holdfast._lua import SCRIPTS
from holdfast.errors import BrokenBarrierError, ConfigurationError
from holdfast.web import view
from tests.support.steps import drive, driven

#: Scripts that are no kind's: of a quorum, of fencing, of what looks and tells.
OF_NO_KIND = {"counts", "fenced_set", "hears", "overview", "quorum_acquire", "set_if", "tell", "there"}
KEYS = lock_keys("holdfast", "a")
TOKEN = f"{'0' * 24}:1:1"
TURNS: tuple[Acquisition, ...] = (
    LockAcquisition(KEYS, TOKEN, 1000),
    RWAcquisition(KEYS, TOKEN, 1000),
    SemaphoreAcquisition(KEYS.of(SEMAPHORE), TOKEN, 1000, 3),
    MultiAcquisition([KEYS], TOKEN, 1000),
    ConditionAcquisition(KEYS, "cond", "holder", TOKEN, 1000),
)


def test_every_script_is_of_a_kind_or_of_none() -> None:
    assert {*KIND_OF_SCRIPT, *OF_NO_KIND} == {*SCRIPTS} == {*FITS}
    assert not {*KIND_OF_SCRIPT} & OF_NO_KIND
    for kind in KINDS:
        assert {kind.ask, kind.undo, kind.extend or kind.ask} <= {*kind.scripts}, kind.name


@pytest.mark.parametrize("turn", TURNS)
def test_trouble_with_the_inbox_is_about_what_is_asked_for(turn: Acquisition) -> None:
    protocol = wait_for(turn, 10.0, listening=True)
    with driven():
        effect: Effect[Any] = protocol.send(None)
    assert isinstance(effect, Listen)
    failure = RequestFailed("broken", "the connection was closed", "server", maybe_executed=False, transient=True)
    failure.about(effect)
    abandon(protocol)
    kind = "condition of lock" if turn.kind.name == "condition" else turn.kind.name
    assert getattr(failure.public(), "about", None) == f"{kind} 'a'"


def test_what_is_public_names_the_kinds_of_leases() -> None:
    assert {*get_args(Listed)} == {*view.KINDS} == {*LEASED}
    assert {LEASED[name].listed_as or name for name in LEASED} == {*LISTED}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_name_without_a_namespace_is_no_key_of_a_kind(kind: Kind) -> None:
    own = [kind.part] if kind.part else kind.beside
    for part in own:
        with pytest.raises(ConfigurationError):
            lock_keys(None, f"{{a}}:{part}")


@pytest.mark.parametrize(
    "turn, error",
    [
        (BarrierAcquisition(KEYS.of(BARRIER), TOKEN, 3, 1000), BrokenBarrierError),
        (GateAcquisition(LATCH, KEYS.of(LATCH), TOKEN, 3, 1000), RequestFailed),
    ],
    ids=["barrier", "latch"],
)
def test_what_grants_no_lease_has_none_that_was_broken(turn: Acquisition, error: type[Exception]) -> None:
    """A refused token is looked up among broken leases, where there can be one."""
    waiting = wait_for(turn, 0.0)

    def perform(effect: Effect[Any]) -> Any:
        if type(effect) is Spawn:
            effect.protocol.close()
            return None
        assert type(effect) is Call, "no note is looked for"
        return [-1]

    with pytest.raises(error):
        drive(waiting, perform)


def head_of(script: str, section: str) -> list[str]:
    """Return what the head of a script says of each of its keys, or arguments."""
    _, _, rest = SCRIPTS[script].text.partition(f"-- {section}")
    lines = [rest.partition("\n")[0], *takewhile(lambda line: line.startswith("--  "), rest.split("\n")[1:])]
    return re.split(r"(?:^|\s{2,})\d+ ", "  ".join(line.removeprefix("--") for line in lines))[1:]


@pytest.mark.parametrize("turn", TURNS, ids=lambda turn: turn.kind.name)
def test_a_turn_sends_what_the_heads_of_its_scripts_say(turn: Acquisition) -> None:
    says = {
        "token": TOKEN,
        "ttl_ms": 1000,
        '"': "wait",
        "arrival_us": 7,
        "fence_ms": DEFAULT.fence_ms,
        "keep_ms": DEFAULT.fence_ms,
        "claim_ms": 1000,
        "prefix": "holdfast:inbox:",
        "declared": 3,
        "tombstone_ms": 20,
        "extensions": RENEWAL.number,
        "-1:": -1,
    }
    for call in (turn.ask(True, 7, 1.0), turn.extend(1000, 1.0, RENEWAL), turn.undo(20, 1.0)):
        head = head_of(call.script, "ARGV")
        assert len(call.args) <= len(head)
        for value, text in zip(call.args[:8], head, strict=False):
            name = next((each for each in says if text.startswith(each)), None)
            if name is not None and not text.startswith("token of the holder"):
                assert value == says[name], (call.script, text)
        assert len(head_of(call.script, "KEYS")) in (len(call.keys), 0), call.script
        assert call.keys[0] == turn.keys.lock
    assert len([text for text in head_of(turn.kind.ask, "ARGV") for name in says if text.startswith(name)]) >= 7

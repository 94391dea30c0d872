"""The model of the server has the commands that are used, and no others."""

from __future__ import annotations

import re

import pytest

from sim.server import commands
from tests.support.imports import ROOT

#: Where commands are sent from; tests/differential compares the model, tests/mutants changes scripts.
SENDERS = [
    "src/holdfast/_lua",
    "src/holdfast/_core",
    "lab/src/holdfast_lab/schemes",
    "tests/differential",
    "tests/mutants",
]

TEXT = "\n".join(
    path.read_text(encoding="utf-8")
    for folder in SENDERS
    for path in sorted((ROOT / folder).rglob("*.*"))
    if path.suffix in (".py", ".lua")
)


def sent(command: str) -> bool:
    return re.search(rf"""['"]{command}['"]""", TEXT) is not None


@pytest.mark.parametrize("command", commands())
def test_a_modelled_command_is_sent_by_something(command: str) -> None:
    assert sent(command), "no script, protocol or scheme sends it: delete it from sim/server.py"


def test_what_is_not_sent_is_noticed() -> None:
    assert len(commands()) > 20
    assert not sent("HINCRBY")

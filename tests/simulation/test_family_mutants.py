"""Bugs put into the scripts of the shared lock and the semaphore: the simulation's invariants see each of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast._lua import SCRIPTS, Script
from holdfast._sim import run
from holdfast._sim.server import forget_scripts

#: What it is, whose primitive, what is replaced in all its scripts, and what may be seen of it.
MUTANTS = [
    (
        "a writer is let in beside readers",
        "rwlock",
        "elseif living_readers() > (beneath and 1 or 0) then",
        "elseif false then",
    ),
    ("a reader that leaves stays", "rwlock", "redis.call('ZREM', readers, token)\nif bury_ms", "if bury_ms"),
    ("the lock's key forgets the readers", "rwlock", "SHARED, 'PX', left_ms + 1)", "SHARED, 'PX', 1000)"),
    (
        "a release lets nobody in",
        "rwlock",
        "local _, others = advance(nil, 0, tonumber(ARGV[3])",
        "local _, others = (function() return nil, 0 end)(nil, 0, tonumber(ARGV[3])",
    ),
    ("a permit too many in the queue", "semaphore", "elseif taken + weight > limit then", "elseif taken > limit then"),
    ("a permit too many at once", "semaphore", "or used() + weight > limit then", "or used() > limit then"),
    (
        "a release lets nobody in",
        "semaphore",
        "local _, others = advance(nil, 0, limit",
        "local _, others = (function() return nil, 0 end)(nil, 0, limit",
    ),
    ("who leaves stays in the queue", "semaphore", "  redis.call('ZREM', queue, token)\n", ""),
]
SEEDS = range(12)


@pytest.fixture
def shipped() -> Iterator[None]:
    """The scripts as they are, afterwards."""
    before = dict(SCRIPTS)
    yield
    SCRIPTS.update(before)
    forget_scripts()


@pytest.mark.parametrize(
    "primitive, old, new", [each[1:] for each in MUTANTS], ids=[f"{each[1]}: {each[0]}" for each in MUTANTS]
)
def test_it_is_seen(shipped: None, primitive: str, old: str, new: str) -> None:
    prefix = {"rwlock": "rw_", "semaphore": "sem_"}[primitive]
    changed = {name: script.text.replace(old, new) for name, script in SCRIPTS.items() if name.startswith(prefix)}
    changed = {name: text for name, text in changed.items() if text != SCRIPTS[name].text}
    assert changed, "there is something to change"
    for name, text in changed.items():
        SCRIPTS[name] = Script(name, text)
    forget_scripts()
    assert any(run.run_seed(seed, mode, names=[primitive]).violation for seed in SEEDS for mode in ("ordinary", "calm"))

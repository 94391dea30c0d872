"""What a newer version has written is refused, and left as it is."""

from __future__ import annotations

from typing import Any

import pytest

import holdfast
from testbed.waiting import eventually
from tests.support.apis import Api
from tests.support.keys import fence_of, key_of, queue_of

TTL_S = 60.0
#: What a version of format 2 may have stored as the last fencing token.
FENCE = "F2 1795631638532855 abc"


def refusal(act: Any, key: str) -> None:
    """Check that the error says which key, which formats, and what to do."""
    with pytest.raises(holdfast.ServerError) as caught:
        act()
    assert caught.value.kind == "NEWERFORMAT"
    said = str(caught.value)
    assert key in said and "format 2" in said and "knows only format 1: update it" in said


@pytest.mark.parametrize("kind", ["lock", "kept", "writer", "semaphore", "multilock", "election"])
def test_nothing_is_granted(locks: Any, raw: Any, unique_name: str, kind: str) -> None:
    asks, key = {
        "lock": (locks.lock(unique_name, ttl=TTL_S).acquire, fence_of(unique_name)),
        "kept": (locks.lock(unique_name, ttl=TTL_S, cache_for=1).try_acquire, fence_of(unique_name)),
        "writer": (locks.rwlock(unique_name, ttl=TTL_S).write().acquire, fence_of(unique_name)),
        "semaphore": (locks.semaphore(unique_name, 2, ttl=TTL_S).acquire, f"{key_of(unique_name)}:sem:fence"),
        "multilock": (locks.multilock(f"{unique_name}-2", unique_name, ttl=TTL_S).acquire, fence_of(unique_name)),
        "election": (locks.election(unique_name, ttl=TTL_S).campaign, f"{key_of(unique_name)}:leader:fence"),
    }[kind]
    raw.set(key, FENCE, px=600_000)
    for _ in range(2):
        refusal(asks, key)
    assert raw.get(key) == FENCE, "it is left as it is"
    eventually(
        lambda: not any(raw.type(each) == "string" for each in raw.scan_iter(f"{key_of(unique_name)}*") if each != key),
        "nothing is held",
    )


def test_who_waits_is_told_when_it_would_be_its_turn(
    api: Api, locks: Any, others: Any, raw: Any, unique_name: str
) -> None:
    held = locks.lock(unique_name, ttl=TTL_S).acquire()
    waiting = api.start(others.lock(unique_name, ttl=TTL_S).acquire, 60)
    eventually(lambda: raw.zcard(queue_of(unique_name)) == 1)
    raw.set(fence_of(unique_name), FENCE, px=600_000)
    held.release()
    refusal(waiting.result, fence_of(unique_name))
    assert raw.get(fence_of(unique_name)) == FENCE


def test_a_gate_and_a_barrier(locks: Any, raw: Any, unique_name: str) -> None:
    for kind, made in (("event", locks.event(unique_name)), ("latch", locks.latch(unique_name, 2))):
        state = f"{key_of(unique_name)}:{kind}"
        raw.set(state, "F2 1 1", px=600_000)
        refusal(made.wait, state)
        refusal(made.is_set if kind == "event" else made.count_down, state)
        assert raw.get(state) == "F2 1 1"
    state, barrier = f"{key_of(unique_name)}:barrier", locks.barrier(unique_name, 2)
    raw.hset(state, mapping={"generation": 0, "parties": "F2 2"})
    raw.pexpire(state, 600_000)
    refusal(barrier.wait, state)
    refusal(barrier.reset, state)
    assert raw.hget(state, "parties") == "F2 2"

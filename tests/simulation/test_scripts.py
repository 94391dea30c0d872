"""Single facts about the scripts, on the simulator's server: those that worlds meet too seldom."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast._core.keys import lock_keys
from holdfast._sim.server import Server

KEYS = lock_keys("holdfast", "a")
A, B, C = (f"{number:024x}:1:1" for number in (1, 2, 3))


class Clocked:
    """A server, its clock, and who is subscribed."""

    def __init__(self) -> None:
        self.now_us = 1_700_000_000_000_000
        self.server = Server(self.tick)
        self.gone: set[str] = set()
        self.server.numsub = lambda channel: int(channel.decode().rpartition(":")[2] not in self.gone)
        self.heard: list[bytes] = []
        self.server.publish = self.publish

    def publish(self, channel: bytes, message: bytes) -> int:
        self.heard.append(message)
        return 1

    def tick(self) -> int:
        self.now_us += 1
        return self.now_us

    def acquire(self, token: str, arrival: int = 0, how: str = "wait") -> Any:
        args = (token, 30_000, how, arrival, 86_400_000, 2_000, KEYS.inboxes)
        return self.server.script("acquire", KEYS.all, args)

    def release(self, token: str, bury_ms: int = 0) -> Any:
        return self.server.script("release", KEYS.all, (token, 86_400_000, 2_000, KEYS.inboxes, bury_ms))


def test_a_late_repeat_does_not_cost_the_place() -> None:
    world = Clocked()
    world.acquire(A)
    arrival = world.acquire(B)[4]
    world.server.command("ZREM", KEYS.queue, B)  # popped for a claim that ended
    world.acquire(C)
    late = world.acquire(B)  # a repeat of its first request, carried out only now
    assert late[4] > arrival
    back = world.acquire(B, arrival)
    assert (back[3], back[4]) == (0, arrival), "before C, as it was"


def test_a_repeat_is_told_the_arrival_that_counts() -> None:
    world = Clocked()
    world.acquire(A)
    first = world.acquire(B)
    assert world.acquire(B)[4] == first[4]


def test_the_dead_are_skipped() -> None:
    world = Clocked()
    world.acquire(A)
    world.acquire(B)
    world.acquire(C)
    world.gone.add(B.partition(":")[0])
    assert world.release(A) == 2
    assert world.server.command("GET", KEYS.lock) == C.encode()
    assert world.heard[-1].startswith(b"grant " + C.encode())


def test_burying_works_for_all_that_is_held_or_not() -> None:
    world = Clocked()
    assert world.release(A, bury_ms=60_000) == 0
    assert world.acquire(A) == [-1]
    world.now_us += 61_000_000
    assert world.acquire(A)[0] == 1


@pytest.mark.parametrize("bury_ms", [0, 60_000])
def test_a_release_without_memory_works(bury_ms: int) -> None:
    world = Clocked()
    world.acquire(A)
    world.acquire(B)
    world.server.out_of_memory = True
    assert world.release(A, bury_ms) == 2
    assert world.server.command("GET", KEYS.lock) == B.encode()
    assert world.server.command("PTTL", KEYS.lock) > 0

"""Single facts about the scripts, on the simulator's server: those that worlds meet too seldom."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast._core.keys import lock_keys
from sim.server import Server

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

    def release(self, token: str, tombstone_ms: int = 0) -> Any:
        return self.server.script("release", KEYS.all, (token, 86_400_000, 2_000, KEYS.inboxes, tombstone_ms))


def test_what_is_renewed_together_has_nothing_to_do_with_each_other() -> None:
    world = Clocked()
    keys = {token: lock_keys("holdfast", token) for token in (A, B, C)}
    for token in (A, B, C):
        world.server.script("acquire", keys[token].all, (token, 30_000, "try", 0, 86_400_000, 2_000, KEYS.inboxes))
    world.server.command("DEL", keys[B].lock)
    world.server.command("HSET", keys[B].lock, "of another", "kind")
    both = [key for token in (A, B, C) for key in (keys[token].lock, keys[token].order_of(token))]
    args = ("renew", 3, 2, 3, 60_000, 0, -1, A, B, C)
    assert world.server.script("renew_many", both, args) == [1, -1, 1]
    for token in (A, C):
        assert 59_000 < world.server.command("PTTL", keys[token].lock) <= 60_000
    world.server.command("SET", keys[B].lock, A, "PX", 1_000)
    assert world.server.script("renew_many", both, args) == [1, 0, 1], "each has its own token and keys"
    assert world.server.command("PTTL", keys[B].lock) <= 1_000


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
    assert world.release(A, tombstone_ms=60_000) == 0
    assert world.acquire(A) == [-1]
    world.now_us += 61_000_000
    assert world.acquire(A)[0] == 1


@pytest.mark.parametrize("tombstone_ms", [0, 60_000])
def test_a_release_without_memory_works(tombstone_ms: int) -> None:
    world = Clocked()
    world.acquire(A)
    world.acquire(B)
    world.server.out_of_memory = True
    assert world.release(A, tombstone_ms) == 2
    assert world.server.command("GET", KEYS.lock) == B.encode()
    assert world.server.command("PTTL", KEYS.lock) > 0


COND = f"{KEYS.base}:cond:changed"


def cond_wait(world: Clocked, token: str, holder: str, arrival: int = 0) -> Any:
    args = (token, 30_000, "wait", arrival, 86_400_000, 2_000, KEYS.inboxes, holder, 5_000)
    return world.server.script("cond_wait", (*KEYS.all, COND), args)


def test_who_is_called_and_misses_the_claim_keeps_the_place() -> None:
    world = Clocked()
    world.acquire(A)
    assert cond_wait(world, B, A)[0] == 0
    world.acquire(A)
    keys = (KEYS.lock, KEYS.queue, COND, KEYS.gone, f"{COND}:last")
    assert world.server.script("cond_notify", keys, (A, 1, KEYS.inboxes, 1)) == 1
    arrival = cond_wait(world, B, A, 1)[4]
    world.acquire(C)
    world.release(A)  # handed to B, whose claim ends
    world.now_us += 3_000_000
    world.acquire(A)  # … and C has the lock
    back = cond_wait(world, B, A, arrival)
    assert back[4] == arrival
    assert world.server.command("ZRANGE", KEYS.queue, 0, -1) == [B.encode(), A.encode()], "before who came later"


def test_a_repeat_begins_to_wait_once() -> None:
    world = Clocked()
    world.acquire(A)
    first = cond_wait(world, B, A)
    assert cond_wait(world, B, A)[4] == first[4] > 1, "and is told when it came"


def test_a_repeat_for_several_is_told_the_arrival_that_counts() -> None:
    world = Clocked()
    world.acquire(A)
    args = (B, 30_000, "wait", 0, 86_400_000, 2_000, KEYS.inboxes)
    first = world.server.script("multi_acquire", KEYS.all, args)
    assert world.server.script("multi_acquire", KEYS.all, args)[4] == first[4]


def test_an_arrival_that_comes_after_its_party_left_does_not_count() -> None:
    world = Clocked()
    base = f"{KEYS.base}:barrier"
    keys = (base, f"{base}:arrived", f"{base}:released", f"{base}:gone")

    def arrive(token: str, what: str = "wait") -> Any:
        args = (token, what, 0, 2, 86_400_000, KEYS.inboxes, 5_000, 60_000)
        return world.server.script("barrier_wait", keys, args)

    assert arrive(A)[0] == 0
    arrive(A, "leave")
    assert arrive(A) == [-1]
    assert arrive(B)[0] == 0, "it is the first"
    assert arrive(C)[:2] == [1, 1]


# ---- several locks in one request ----


class Several(Clocked):
    """Locks named like the tokens, and requests for all three at once."""

    def __init__(self) -> None:
        super().__init__()
        self.keys = {token: lock_keys("holdfast", token) for token in (A, B, C)}

    def ask(self, *tokens: str) -> Any:
        """`acquire_each`, of each token's lock."""
        keys = [key for token in tokens for key in self.keys[token].all]
        return self.server.script("acquire_each", keys, (30_000, 86_400_000, *tokens))

    def give(self, *pairs: tuple[str, str]) -> Any:
        """`release_each`: (whose lock, with which token)."""
        keys = [key for whose, _ in pairs for key in (self.keys[whose].lock, self.keys[whose].queue)]
        return self.server.script("release_each", keys, [token for _, token in pairs])

    def holder(self, token: str) -> Any:
        return self.server.command("GET", self.keys[token].lock)


def test_each_of_several_free_locks_is_granted() -> None:
    world = Several()
    fences = world.ask(A, B, C)
    for token, fence in zip((A, B, C), fences, strict=True):
        keys = world.keys[token]
        assert world.holder(token) == token.encode()
        assert 29_000 < world.server.command("PTTL", keys.lock) <= 30_000
        assert int(world.server.command("GET", keys.all[1])) == fence, "stored under its own key"
    assert world.give((A, A), (B, B), (C, C)) == [1, 1, 1]
    assert [world.holder(token) for token in (A, B, C)] == [None] * 3


@pytest.mark.parametrize("left", ["lock", "queue", "gone"])
def test_one_of_several_locks_that_is_not_free_is_left_alone(left: str) -> None:
    """A lock with a holder, a waiter or a tombstone is left alone; the others are granted all the same."""
    world = Several()
    lock, _, queue, gone = world.keys[B].all
    if left == "lock":
        world.server.command("SET", lock, "another", "PX", 1_000)
    else:
        world.server.command("ZADD", {"queue": queue, "gone": gone}[left], 1, B)
    first, second, third = world.ask(A, B, C)
    assert first > 0 and second == 0 and third > 0
    assert world.holder(B) == (b"another" if left == "lock" else None)


def test_a_lock_that_is_asked_for_twice_in_one_request_has_one_holder() -> None:
    world = Several()
    keys = world.keys[A].all
    first, second = world.server.script("acquire_each", (*keys, *keys), (30_000, 86_400_000, A, B))
    assert first > 0 and second == 0
    assert world.holder(A) == A.encode()


def test_one_of_several_locks_that_fails_spoils_no_other() -> None:
    world = Several()
    world.server.command("HSET", world.keys[B].all[1], "of another", "kind")
    first, second, third = world.ask(A, B, C)
    assert first > 0 and second == 0 and third > 0


def test_several_releases_compare_each_token_and_pass_by_waiters() -> None:
    world = Several()
    world.ask(A, B, C)
    world.server.command("ZADD", world.keys[C].queue, 1, B)
    assert world.give((A, A), (B, A), (C, C)) == [1, 0, 0]
    assert [world.holder(token) for token in (A, B, C)] == [None, B.encode(), C.encode()]

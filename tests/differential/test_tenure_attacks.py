"""What late, repeated and misplaced requests could do to a block of fencing tokens, and to a lock that is passed.

The scripts themselves, called in orders that no client intends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from holdfast import embedded
from holdfast._core.tokens import BLOCK, MARK
from holdfast._lua import SCRIPTS

#: A fencing token that the clock does not reach: it hides nothing.
AHEAD = 4_000_000_000_000_000

TTL_MS, FENCE_MS, CLAIM_MS, TOMBSTONE_MS = 30_000, 60_000, 2_000, 10_000
A, B, C = (f"{who * 24}:1:1{MARK}" for who in "abc")


class Lock:
    """One lock, by its scripts."""

    def __init__(self, client: redis.Redis, name: str) -> None:
        self.client = client
        self.keys = [f"{{{name}}}{part}" for part in ("", ":fence", ":queue", ":gone")]

    def _call(self, script: str, *args: object) -> Any:
        untyped: Any = self.client
        return untyped.eval(SCRIPTS[script].text, len(self.keys), *self.keys, *args)

    def acquire(self, token: str, *passes: object, waits: bool = True, arrival_us: int = 0) -> Any:
        """The reply, without what a grant says of others: see `undisturbed`."""
        how = "wait" if waits else "try"
        reply = self._call("acquire", token, TTL_MS, how, arrival_us, FENCE_MS, CLAIM_MS, "inbox:", *passes)
        self.undisturbed = reply[0] == 1 and reply[2:] == [1]
        return reply[:2] if reply[0] == 1 else reply

    def release(self, token: str, *block: object, tombstone_ms: int = 0) -> Any:
        return self._call("release", token, FENCE_MS, CLAIM_MS, "inbox:", tombstone_ms, *block)

    def expire(self) -> None:
        self.client.delete(self.keys[0])

    @property
    def holder(self) -> str | None:
        value: Any = self.client.get(self.keys[0])
        return value.decode() if value is not None else None

    @property
    def fence(self) -> int:
        value: Any = self.client.get(self.keys[1])
        return int(value)

    @property
    def queue(self) -> list[str]:
        queued: Any = self.client.zrange(self.keys[2], 0, -1)
        return [token.decode() for token in queued]


@pytest.fixture
def lock(server: embedded.Server, unique_name: str) -> Iterator[Lock]:
    with redis.Redis.from_url(server.url) as client:
        made = Lock(client, unique_name)
        yield made
        client.delete(*made.keys)


def test_a_release_does_not_write_back_into_another_block(lock: Lock) -> None:
    """The lease ran out, others had theirs, and a late ask of the same token was granted again."""
    granted, first = lock.acquire(A)
    assert granted == 1
    block = (first + BLOCK - 1, first)
    lock.expire()
    _, others = lock.acquire(B)
    lock.release(B, others + BLOCK - 1, others)
    _, again = lock.acquire(A)  # comes late

    lock.release(A, *block)

    assert lock.fence == again + BLOCK - 1 >= others
    assert lock.acquire(C)[1] > others


def test_nor_does_a_pass(lock: Lock) -> None:
    lock.client.set(lock.keys[1], AHEAD)
    _, first = lock.acquire(A)
    lock.expire()
    _, others = lock.acquire(B)
    lock.release(B, others + BLOCK - 1, others)
    lock.acquire(A)

    granted, fence = lock.acquire(C, A, first + BLOCK - 1, first)

    assert granted == 1
    assert fence > others


@pytest.mark.parametrize("used", [1, 3, BLOCK])
def test_the_next_token_follows_the_last_one_used(lock: Lock, used: int) -> None:
    lock.client.set(lock.keys[1], AHEAD)
    _, first = lock.acquire(A)

    lock.release(A, first + BLOCK - 1, first + used - 1)

    assert lock.acquire(B)[1] == first + used


def test_what_is_given_back_unused_leaves_no_block_reserved(lock: Lock) -> None:
    """Else a thousand of them a second would push the fencing token ahead of the clock."""
    lock.client.set(lock.keys[1], AHEAD)
    for used in range(1, 6):
        granted, first = lock.acquire(A if used % 2 else B)
        assert (granted, first) == (1, AHEAD + used), "one token each"
        lock.release(A if used % 2 else B, "", "", tombstone_ms=1)
        lock.client.delete(lock.keys[3])
    assert lock.fence == AHEAD + 5
    lock.acquire(C)
    lock.release(A, "", "", tombstone_ms=1)
    assert lock.fence == AHEAD + 5 + BLOCK, "of what another one holds nothing is given back"


@pytest.mark.parametrize("stored", [b"", b"nonsense"])
def test_what_is_no_fencing_token_stays_as_it_is(lock: Lock, stored: bytes) -> None:
    lock.acquire(A)
    lock.client.set(lock.keys[1], stored)
    lock.release(A, "", "", tombstone_ms=1)
    assert lock.client.get(lock.keys[1]) == stored and lock.holder is None


def test_who_waits_on_a_condition_gives_back_its_block(lock: Lock) -> None:
    lock.client.set(lock.keys[1], AHEAD)
    _, first = lock.acquire(A)
    untyped: Any = lock.client
    keys = [*lock.keys, f"{lock.keys[0]}:cond:x"]
    block = (first + BLOCK - 1, first + 2)
    waits = (B, TTL_MS, "wait", 0, FENCE_MS, CLAIM_MS, "inbox:", A, 5_000, 0, *block)
    untyped.eval(SCRIPTS["cond_wait"].text, len(keys), *keys, *waits)
    assert lock.fence == first + 2 and lock.holder is None
    untyped.delete(keys[-1])


def test_a_late_release_changes_nothing(lock: Lock) -> None:
    _, first = lock.acquire(A)
    block = (first + BLOCK - 1, first + 1)
    lock.release(A, *block)
    _, second = lock.acquire(B)
    stored = lock.fence

    assert lock.release(A, *block) == 0
    assert (lock.holder, lock.fence) == (B, stored)
    assert second > first + 1


def test_a_pass_that_is_repeated_gives_the_same_answer(lock: Lock) -> None:
    _, first = lock.acquire(A)
    passes = (A, first + BLOCK - 1, first + 4)

    granted = lock.acquire(B, *passes)

    assert granted[0] == 1 and granted[1] > first + 4
    assert [lock.acquire(B, *passes) for _ in range(2)] == [granted, granted]
    assert lock.fence == granted[1] + BLOCK - 1


def test_a_pass_that_comes_late_releases_nobody_else(lock: Lock) -> None:
    _, first = lock.acquire(A)
    lock.expire()
    lock.acquire(C)
    stored = lock.fence

    assert lock.acquire(B, A, first + BLOCK - 1, first)[0] == 0
    assert (lock.holder, lock.fence, lock.queue) == (C, stored, [B])


def test_a_pass_of_a_token_that_was_given_back_does_nothing(lock: Lock) -> None:
    """The turn has left; what it would have released was handed to another turn meanwhile."""
    _, first = lock.acquire(A)
    lock.release(B, tombstone_ms=TOMBSTONE_MS)

    assert lock.acquire(B, A, first + BLOCK - 1, first) == [-1]
    assert lock.holder == A


@pytest.fixture
def inboxes(lock: Lock) -> Iterator[Callable[[], list[str]]]:
    """All of them are open; what has come to them since the last look."""
    untyped: Any = lock.client
    pubsub = untyped.pubsub()
    pubsub.subscribe("last", *(f"inbox:{token.partition(':')[0]}" for token in (A, B, C)))
    for _ in range(4):
        assert pubsub.get_message(timeout=5.0) is not None

    def heard() -> list[str]:
        untyped.publish("last", "")
        texts = iter(lambda: pubsub.get_message(timeout=5.0)["data"].decode(), "")
        return [text for text in texts if text]

    yield heard
    pubsub.close()


@pytest.mark.usefixtures("inboxes")
def test_a_grant_says_that_no_one_waits(lock: Lock) -> None:
    _, first = lock.acquire(A)
    assert lock.undisturbed
    lock.acquire(A)
    assert not lock.undisturbed, "a repeat does not know"
    lock.acquire(B, waits=False)
    assert lock.acquire(C, A, first + BLOCK - 1, first)[0] == 1 and lock.undisturbed, "B has not queued"
    lock.acquire(B, arrival_us=4_000_000_000_000_000)
    assert lock.acquire(A, C, lock.fence, lock.fence - BLOCK + 1, arrival_us=1)[0] == 1
    assert not lock.undisturbed and lock.queue == [B]
    lock.release(A)
    lock.release(B)
    assert lock.acquire(A[:-1])[0] == 1 and not lock.undisturbed, "it is of no tenure"


def test_a_tenure_is_told_of_the_first_who_waits(lock: Lock, inboxes: Callable[[], list[str]]) -> None:
    lock.acquire(A)
    lock.acquire(B, waits=False)
    assert inboxes() == []
    told = f"yield {A}"
    lock.acquire(B)
    assert inboxes() == [told]
    lock.acquire(C)
    assert inboxes() == []
    lock.release(C, tombstone_ms=TOMBSTONE_MS)
    lock.acquire(B)
    assert inboxes() == [told], "the message may have been lost"


def test_whom_it_is_handed_to_is_not_told(lock: Lock, inboxes: Callable[[], list[str]]) -> None:
    _, first = lock.acquire(A)
    lock.acquire(B)
    inboxes()
    assert lock.acquire(C, A, first + BLOCK - 1, first)[2].decode() == B
    assert [text.split()[0] for text in inboxes()] == ["grant"]


@pytest.mark.usefixtures("inboxes")
def test_a_pass_goes_to_those_that_came_first(lock: Lock) -> None:
    _, first = lock.acquire(A)
    passes = (A, first + BLOCK - 1, first)
    arrived_us: int = lock.acquire(C)[4]

    # It has waited for a second longer than C, which the pass says.
    assert lock.acquire(B, *passes, arrival_us=-1_000_000)[0] == 1
    assert (lock.holder, lock.queue) == (B, [C])

    # And one that came after it stands behind it.
    answer = lock.acquire(A, B, lock.fence, lock.fence - BLOCK + 1)
    assert answer[0] == 0 and answer[4] > arrived_us
    assert (lock.holder, lock.queue) == (C, [A])

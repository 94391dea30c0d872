"""What is not allowed is refused before anything is sent, for everything the family has; and decorators keep types."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Coroutine
from typing import Any, assert_type

import pytest

import holdfast
import holdfast.asyncio
from holdfast import fencing
from tests.support.apis import Api


@pytest.fixture
def nowhere(api: Api) -> Any:
    return api.connect("redis://127.0.0.1:1")  # sending anything would fail


def inner(wrapped: Any) -> Any:
    return getattr(wrapped, "_target", wrapped)


def condition(locks: Any) -> Any:
    return locks.condition(inner(locks.lock("a")))


BAD: dict[str, tuple[str, list[Callable[[Any], Any]]]] = {
    "names": (
        "name|key",
        [
            lambda locks: locks.rwlock(""),
            lambda locks: locks.semaphore(5, 3),
            lambda locks: locks.multilock("a", b"b"),
            lambda locks: locks.latch(None, 1),
            lambda locks: locks.event("x" * 1025),
            lambda locks: locks.barrier("\ud800", 2),
            lambda locks: locks.election(b"a"),
            lambda locks: locks.optimistic(),
            lambda locks: locks.optimistic("a", ""),
            lambda locks: locks.compare_and_set("", "a", "b"),
        ],
    ),
    "counts": (
        "count|parties|permits|attempts|fencing_token",
        [
            lambda locks: locks.latch("a", 0),
            lambda locks: locks.latch("a", 10**9 + 1),
            lambda locks: locks.latch("a", True),
            lambda locks: locks.barrier("a", 0),
            lambda locks: locks.barrier("a", 1_001),
            lambda locks: locks.semaphore("a", 1.0),
            lambda locks: locks.semaphore("a", 3).try_acquire(permits=0),
            lambda locks: locks.semaphore("a", 3).resize(10_001),
            lambda locks: locks.optimistic("a", attempts=0),
        ],
    ),
    "numbers of an operation": (
        "n",
        [lambda locks: locks.latch("a", 3).count_down(0), lambda locks: locks.latch("a", 3).count_down(-1)],
    ),
    "times to live": (
        "ttl|retain|max_hold",
        [
            lambda locks: locks.rwlock("a", ttl=0),
            lambda locks: locks.semaphore("a", 3, ttl=math.nan),
            lambda locks: locks.multilock("a", "b", ttl="30"),
            lambda locks: locks.election("a", max_hold=-1),
            lambda locks: locks.latch("a", 1, retain=0),
            lambda locks: locks.event("a", retain=-1),
            lambda locks: locks.barrier("a", 2, retain=math.inf),
            lambda locks: locks.compare_and_set("a", "a", "b", ttl=0),
        ],
    ),
    "timeouts": (
        "timeout|poll",
        [
            lambda locks: locks.rwlock("a").read().acquire(timeout=-1),
            lambda locks: locks.rwlock("a").write().acquire(timeout="1"),
            lambda locks: locks.semaphore("a", 3).acquire(timeout=math.nan),
            lambda locks: locks.multilock("a", "b").acquire(timeout=math.inf),
            lambda locks: condition(locks).wait(timeout=-1),
            lambda locks: locks.latch("a", 1).wait(timeout=-1),
            lambda locks: locks.event("a").wait(timeout=True),
            lambda locks: locks.barrier("a", 2).wait(timeout=-0.1),
            lambda locks: locks.election("a").campaign(timeout=-1),
            lambda locks: locks.election("a").observe(poll=-1),
        ],
    ),
    "other options": (
        "renew|sync_replicas|keep_ttl|lock|skip_if_held",
        [
            lambda locks: locks.rwlock("a", renew="yes"),
            lambda locks: locks.rwlock("a", sync_replicas=0),
            lambda locks: locks.semaphore("a", 3, sync_replicas="some"),
            lambda locks: locks.multilock("a", "b", sync_replicas=True),
            lambda locks: locks.election("a", sync_replicas=101),
            lambda locks: locks.condition("a lock"),
            lambda locks: locks.condition(inner(locks.rwlock("a").write())),
            lambda locks: locks.compare_and_set("a", "a", "b", ttl=1, keep_ttl=True),
            lambda locks: locks.locked("a", skip_if_held=1),
        ],
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_what_is_not_allowed_is_refused(nowhere: Any, what: str) -> None:
    names, actions = BAD[what]
    for number, action in enumerate(actions):
        with pytest.raises(holdfast.ConfigurationError) as caught:
            action(nowhere)
        assert caught.value.argument in names.split("|") or caught.value.argument == "names", (number, caught.value)
        assert caught.value.allowed, "it says what is allowed"


def test_a_condition_belongs_to_a_lock_of_its_client(api: Api, nowhere: Any) -> None:
    other = api.connect("redis://127.0.0.1:1")
    with pytest.raises(holdfast.ConfigurationError, match="lock"):
        nowhere.condition(inner(other.lock("a")))


def test_who_does_not_hold_the_lock_is_told_without_asking(nowhere: Any) -> None:
    for operation in ("wait", "notify", "notify_all"):
        with pytest.raises(holdfast.NotHeld, match=operation.split("_")[0]):
            getattr(condition(nowhere), operation)()


@pytest.mark.parametrize("token", [0, -1, 1.5, True, "7", 2**53 + 1])
def test_what_is_no_fencing_token_is_refused(api: Api, nowhere: Any, token: Any) -> None:
    with pytest.raises(holdfast.ConfigurationError, match="fencing_token"):
        fencing.guarded_set(inner(nowhere), "a", "b", token)


def _threads_types(locks: holdfast.Client) -> None:
    """Checked by mypy, not run: decorators keep what the function takes and gives."""

    @locks.locked("order:{order_id}")
    def ship(order_id: int, *, fast: bool = False) -> str:
        return ""

    @locks.locked("nightly", skip_if_held=True)
    def nightly() -> int:
        return 1

    assert_type(ship(1, fast=True), str)
    assert_type(nightly(), int | None)
    ship("1")  # type: ignore[arg-type]
    with locks.rwlock("a").read() as reader:
        assert_type(reader, holdfast.ReadLease)
        assert_type(reader.upgrade().downgrade(), holdfast.ReadLease)
    assert_type(locks.optimistic("a").run(lambda tx: 1.5), float)
    assert_type(locks.election("a").run(lambda lease: "led"), str)


async def _asyncio_types(locks: holdfast.asyncio.Client) -> None:
    @locks.locked("order:{order_id}")
    async def ship(order_id: int, *, fast: bool = False) -> str:
        return ""

    @locks.locked("nightly", skip_if_held=True)
    async def nightly() -> int:
        return 1

    assert_type(await ship(1, fast=True), str)
    assert_type(await nightly(), int | None)
    await ship("1")  # type: ignore[arg-type]
    async with locks.rwlock("a").read() as reader:
        assert_type(reader, holdfast.asyncio.ReadLease)


def test_decorators_keep_names_and_signatures() -> None:
    with holdfast.connect("redis://127.0.0.1:1") as locks:

        @locks.locked("order:{order_id}")
        def ship(order_id: int, *, fast: bool = False) -> str:
            """Send it."""
            return ""

    async def ashipped(order_id: int, *, fast: bool = False) -> str:
        """Send it."""
        return ""

    aship: Callable[..., Coroutine[Any, Any, str]]
    aship = holdfast.asyncio.connect("redis://127.0.0.1:1").locked("order:{order_id}")(ashipped)
    for function in (ship, aship):
        assert function.__doc__ == "Send it."
        assert str(inspect.signature(function)) == "(order_id: 'int', *, fast: 'bool' = False) -> 'str'"
    assert ship.__name__ == "ship" and aship.__name__ == "ashipped"
    assert inspect.iscoroutinefunction(aship) and not inspect.iscoroutinefunction(ship)

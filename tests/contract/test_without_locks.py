"""What optimistic writes, compare-and-set, guarded writes and the decorator promise, whichever API and server."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import holdfast
from holdfast import fencing
from holdfast.errors import ServerUnreachable
from testbed.waiting import eventually
from tests.support.apis import Api, function_for


def unwrap(value: Any) -> Any:
    return getattr(value, "_target", value)


# ---------------------------------------------------------------- optimistic


def test_nothing_is_lost_under_contention(locks: Any, others: Any, api: Api, raw: Any, unique_name: str) -> None:
    def add_one(tx: Any) -> Any:
        value = yield tx.get(unique_name)
        number = int(value or 0) + 1
        tx.set(unique_name, number)
        return number

    function = function_for(api, add_one)

    def many(client: Any) -> list[int]:
        return [client.optimistic(unique_name, attempts=10_000).run(function) for _ in range(10)]

    futures = [api.start(many, client) for client in (locks, others, locks, others)]
    results = [number for each in futures for number in each.result()]
    assert sorted(results) == list(range(1, 41))
    assert raw.get(unique_name) == "40"
    raw.delete(unique_name)


def test_a_conflict_runs_it_again(locks: Any, api: Api, raw: Any, unique_name: str) -> None:
    runs: list[int] = []

    def meddle(tx: Any) -> Any:
        value = yield tx.get(unique_name)
        runs.append(int(value or 0))
        if len(runs) < 3:
            raw.incr(unique_name)
        tx.queue("SET", unique_name, 100)
        tx.delete(unique_name + "-other")

    locks.optimistic(unique_name).run(function_for(api, meddle))
    assert runs == [0, 1, 2]
    assert raw.get(unique_name) == "100"
    raw.delete(unique_name)


def test_how_often_is_bounded_and_told(locks: Any, api: Api, raw: Any, unique_name: str) -> None:
    def meddle(tx: Any) -> Any:
        yield tx.get(unique_name)
        raw.incr(unique_name)
        tx.set(unique_name, "never")

    with pytest.raises(holdfast.OptimisticConflict, match="4 attempts") as caught:
        locks.optimistic(unique_name, attempts=4).run(function_for(api, meddle))
    assert caught.value.attempts == 4 and caught.value.keys == (unique_name,)
    assert raw.get(unique_name) == "4"
    raw.delete(unique_name)


def test_what_the_function_raises_comes_out_and_nothing_is_written(
    locks: Any, api: Api, raw: Any, unique_name: str
) -> None:
    def fail(tx: Any) -> Any:
        yield tx.get(unique_name)
        tx.set(unique_name, "never")
        raise ZeroDivisionError

    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            locks.optimistic(unique_name).run(function_for(api, fail))
    assert not raw.exists(unique_name)

    def watching() -> list[Any]:
        return [client for client in raw.client_list() if int(client.get("watch", 0)) > 0]

    eventually(lambda: not watching(), "no connection is left watching")


def test_a_transaction_that_has_ended_reads_nothing_more(locks: Any, api: Api, unique_name: str) -> None:
    """No key that it read then would be watched, and no one would end that connection."""
    ended: list[Any] = []

    def read(tx: Any) -> Any:
        for earlier in ended:
            with pytest.raises(ServerUnreachable):
                yield earlier.get(unique_name)
        ended.append(tx)
        return (yield tx.get(unique_name))

    optimistic = locks.optimistic(unique_name)
    for _ in range(2):
        assert optimistic.run(function_for(api, read)) is None
    assert not unwrap(locks)._session.driver.client._sessions


def test_a_refused_command_is_an_error(locks: Any, api: Api, raw: Any, unique_name: str) -> None:
    def wrong(tx: Any) -> Any:
        yield tx.get(unique_name)
        tx.queue("NOSUCHCOMMAND", 1)

    with pytest.raises(holdfast.ServerError, match="unknown command"):
        locks.optimistic(unique_name).run(function_for(api, wrong))

    def nothing(tx: Any) -> Any:
        return (yield tx.execute("EXISTS", unique_name))

    assert locks.optimistic(unique_name).run(function_for(api, nothing)) == 0


def test_a_write_that_is_refused_when_all_are_carried_out_is_an_error(
    locks: Any, api: Api, raw: Any, unique_name: str
) -> None:
    def wrong(tx: Any) -> Any:
        yield tx.get(unique_name)
        tx.set(unique_name, "text")
        tx.queue("INCR", unique_name)

    with pytest.raises(holdfast.ServerError, match=r"not an integer .* the other commands were carried out"):
        locks.optimistic(unique_name).run(function_for(api, wrong))
    assert raw.getdel(unique_name) == "text"


def test_a_refused_read_is_a_public_error_to_the_function_as_well(locks: Any, api: Api, unique_name: str) -> None:
    """No private exception, not even as its cause; and the same object comes out when the function lets it pass."""
    seen: list[BaseException] = []

    def wrong(tx: Any) -> Any:
        try:
            yield tx.execute("NOSUCHCOMMAND", 1)
        except holdfast.ServerError as error:
            seen.append(error)
            raise

    with pytest.raises(holdfast.ServerError, match="unknown command") as raised:
        locks.optimistic(unique_name).run(function_for(api, wrong))
    assert len(seen) == 1
    for error in (seen[0], raised.value):
        assert error.__cause__ is None and error.__suppress_context__

    def swallows(tx: Any) -> Any:
        try:
            yield tx.execute("NOSUCHCOMMAND", 1)
        except holdfast.ServerError:
            return "went on"

    with pytest.raises(holdfast.ServerError, match="unknown command"):
        locks.optimistic(unique_name).run(function_for(api, swallows))


# ---------------------------------------------------------------- compare and set


@pytest.mark.parametrize("way", ["as the server can", "by script"])
def test_compare_and_set(locks: Any, raw: Any, unique_name: str, way: str) -> None:
    if way == "by script":
        unwrap(locks)._session.scripts.ifeq = False
    change = locks.compare_and_set
    assert change(unique_name, None, "one", ttl=50) is True
    assert change(unique_name, None, "two") is False
    assert change(unique_name, "two", "three") is False
    assert raw.get(unique_name) == "one" and 0 < raw.pttl(unique_name) <= 50_000
    assert change(unique_name, "one", b"two", keep_ttl=True) is True
    assert raw.get(unique_name) == "two" and 0 < raw.pttl(unique_name) <= 50_000
    assert change(unique_name, b"two", 3) is True
    assert raw.get(unique_name) == "3" and raw.pttl(unique_name) == -1
    assert change(unique_name, 3, "four", ttl=20) is True
    assert 0 < raw.pttl(unique_name) <= 20_000
    raw.delete(unique_name)
    assert change(unique_name, "four", "five") is False
    assert not raw.exists(unique_name)
    with pytest.raises(holdfast.ConfigurationError):
        change(unique_name, "a", "b", ttl=5, keep_ttl=True)


# ---------------------------------------------------------------- guarded writes


def test_an_older_token_is_refused(locks: Any, api: Api, raw: Any, unique_name: str) -> None:
    def write(value: str, token: int, **options: Any) -> Any:
        if api.name == "threads":
            return fencing.guarded_set(locks, unique_name, value, token, **options)
        return api.call(fencing.guarded_set, unwrap(locks), unique_name, value, token, **options)  # type: ignore[attr-defined]

    write("first", 10)
    write("second", 12, ttl=50)
    write("again", 12)
    with pytest.raises(holdfast.StaleFencingToken) as caught:
        write("late", 11)
    assert (caught.value.token, caught.value.seen) == (11, 12)
    assert raw.get(unique_name) == "again"
    with locks.lock(unique_name) as lease:
        write("locked", lease.fencing_token)
    assert raw.get(unique_name) == "locked"
    with pytest.raises(holdfast.ConfigurationError):
        write("zero", 0)
    raw.delete(unique_name)


# ---------------------------------------------------------------- decorators


def test_the_decorated_runs_under_its_lock(locks: Any, others: Any, api: Api, unique_name: str) -> None:
    name = f"{unique_name}-7"
    seen: list[Any] = []

    def ship(order_id: int, speed: str = "slow") -> Any:
        """Send it."""
        yield from ()
        seen.append((order_id, speed))
        return "sent"

    inner = function_for(api, ship)
    inner.__wrapped__ = ship  # its signature is that of `ship`
    decorated = unwrap(locks).locked(unique_name + "-{order_id}", timeout=0.2)(inner)

    def call(*args: Any, **options: Any) -> Any:
        return decorated(*args, **options) if api.name == "threads" else api.call(decorated, *args, **options)  # type: ignore[attr-defined]

    assert list(inspect.signature(decorated).parameters) == ["order_id", "speed"]
    assert call(7, speed="fast") == "sent"
    assert not others.lock(name).locked()
    held = others.lock(name).acquire()
    with pytest.raises(holdfast.AcquireTimeout, match=name):
        call(order_id=7)
    assert call(8) == "sent"
    held.release()
    assert seen == [(7, "fast"), (8, "slow")]


def test_skip_if_held(locks: Any, others: Any, api: Api, unique_name: str) -> None:
    def work() -> Any:
        yield from ()
        return "done"

    decorated = unwrap(locks).locked(unique_name, skip_if_held=True)(function_for(api, work))

    def call() -> Any:
        return decorated() if api.name == "threads" else api.call(decorated)  # type: ignore[attr-defined]

    with others.lock(unique_name):
        assert call() is None
    assert call() == "done"


def test_a_template_is_checked_when_it_is_written(locks: Any, api: Api) -> None:
    client = unwrap(locks)

    def work(order: Any) -> Any:
        yield

    inner = function_for(api, work)
    inner.__wrapped__ = work
    for template in ("order:{other}", "order:{", "{}", ""):
        with pytest.raises(holdfast.ConfigurationError):
            client.locked(template)(inner)
    client.locked("order:{order.id}")(inner)
    with pytest.raises(holdfast.ConfigurationError):
        client.locked("order", ttl=-1)(inner)
    with pytest.raises(holdfast.ConfigurationError, match="sync_replicas"):
        client.locked("order", sync_replicas=0)(inner)

    def plain() -> None: ...

    async def coroutine() -> None: ...

    with pytest.raises(holdfast.ConfigurationError, match=r"Client\.locked"):
        client.locked("order")(coroutine if api.name == "threads" else plain)


def test_lock_for_an_object(locks: Any, unique_name: str) -> None:
    class Order:
        __lock_name__ = unique_name

    class Method:
        def __lock_name__(self) -> str:
            return unique_name

    for subject in (Order(), Method()):
        assert locks.lock_for(subject, ttl=5).name == unique_name
    for wrong in (object(), type("Empty", (), {"__lock_name__": ""})()):
        with pytest.raises(holdfast.ConfigurationError, match="__lock_name__"):
            locks.lock_for(wrong)


# ---------------------------------------------------------------- reentrant


def test_reentrant(locks: Any, others: Any, api: Api, raw: Any, unique_name: str) -> None:
    lock, actor = locks.lock(unique_name, reentrant=True), api.actor()
    first = actor.enter(lock)
    second = actor.ask(lock, "acquire")
    third = actor.ask(lock, "try_acquire")
    assert first.token == second.token == third.token
    assert first.fencing_token == third.fencing_token
    for lease in (third, second):
        actor.ask(lease, "release")
        assert others.lock(unique_name).try_acquire() is None
    actor.leave(lock)
    assert not raw.exists(f"holdfast:{{{unique_name}}}")
    with pytest.raises(holdfast.LeaseReleased):
        actor.ask(first, "release")


def test_only_the_owner_enters_again(locks: Any, api: Api, unique_name: str) -> None:
    lock = locks.lock(unique_name, reentrant=True)
    one, two = api.actor(), api.actor()
    lease = one.ask(lock, "acquire")
    assert two.ask(lock, "try_acquire") is None
    with pytest.raises(holdfast.AlreadyHeld, match="reentrant"):
        one.ask(locks.lock(unique_name), "acquire")
    one.ask(lease, "release")

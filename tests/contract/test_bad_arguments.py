"""Every argument is refused by its name, its value and what is allowed, or works; both APIs, nothing else."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from functools import partial
from typing import Any
from unittest import mock

import pytest
import redis
import redis.asyncio

import holdfast
from holdfast import embedded, fencing
from holdfast._api.options import LeaseOptions
from testbed.waiting import eventually
from tests.support.apis import Api, AsyncioApi


@pytest.fixture
def locks(api: Api, valkey_server: embedded.Server) -> Any:
    return api.connect(valkey_server.url)


HUGE = [1e10, 1e19, 1e300, 10**400, 10**5000, timedelta.max]
NOT_FINITE = [float("nan"), float("inf"), -float("inf"), -(10**400), -1, timedelta.min]
NO_DURATION = [True, "1", b"1", Decimal(1), Fraction(1, 2), [1], object()]


def label(value: object) -> str:
    return f"{type(value).__name__}-{value:.3g}" if isinstance(value, float) else type(value).__name__


#: The options of a lease that are durations.
DURATIONS = [name for name, kind in LeaseOptions.__annotations__.items() if "Duration" in str(kind)]
TTLS: dict[str, Callable[[Any, Any], Any]] = {
    **{name: partial(lambda locks, value, name: locks.lock("a", **{name: value}), name=name) for name in DURATIONS},
    "max_hold": lambda locks, value: locks.rwlock("a", max_hold=value),
    "at_least": lambda locks, value: locks.semaphore("a", 2, at_least=value),
    "cache_for": lambda locks, value: locks.lock("a", cache_for=value),
    "retain": lambda locks, value: locks.latch("a", 1, retain=value),
    "restart_delay": lambda locks, value: quorum(locks, restart_delay=value),
    "member_timeout": lambda locks, value: quorum(locks, member_timeout=value),
}
TIMEOUTS: dict[str, Callable[[Any, Any], Any]] = {
    "lock": lambda locks, value: locks.lock("timeouts").acquire(timeout=value).release(),
    "semaphore": lambda locks, value: locks.semaphore("timeouts", 1).acquire(timeout=value).release(),
    "multilock": lambda locks, value: locks.multilock("timeouts-1", "timeouts-2").acquire(timeout=value).release(),
    "election": lambda locks, value: locks.election("timeouts").campaign(timeout=value).release(),
    "decorator": lambda locks, value: locks.locked("timeouts", timeout=value),
}


def quorum(locks: Any, **options: Any) -> Any:
    kind = type(getattr(locks, "_target", locks))
    return kind.quorum(["redis://a", "redis://b", "redis://c"], **options)


@pytest.mark.parametrize("value", HUGE + NOT_FINITE + NO_DURATION, ids=label)
def test_a_ttl_that_is_none_is_refused_by_name(locks: Any, value: object) -> None:
    for argument, use in TTLS.items():
        with pytest.raises(
            holdfast.ConfigurationError, match=f"^{argument} = .* is not allowed: seconds .*"
        ) as refused:
            use(locks, value)
        assert refused.value.argument == argument


@pytest.mark.parametrize("value", NOT_FINITE + NO_DURATION, ids=label)
def test_a_timeout_that_is_none_is_refused_by_name(locks: Any, value: object) -> None:
    for use in TIMEOUTS.values():
        with pytest.raises(holdfast.ConfigurationError, match=r"^timeout = .* is not allowed: seconds .*"):
            use(locks, value)


@pytest.mark.parametrize("value", HUGE, ids=label)
def test_a_timeout_without_end_waits(api: Api, locks: Any, unique_name: str, value: Any) -> None:
    for use in TIMEOUTS.values():
        use(locks, value)
    lock = locks.lock(unique_name)
    lease = lock.acquire()
    waiting = api.start(lambda: locks.lock(unique_name).acquire(timeout=value).release())
    event = locks.event(unique_name)
    gate = api.start(event.wait, value)
    loss = api.start(lease.lost.wait, value)
    eventually(lambda: lock.waiters() == 1)
    event.set()
    assert gate.result(30) is True
    lease.release()
    waiting.result(30)
    other = locks.lock(f"{unique_name}-lost", ttl=0.2, renew=False).acquire()
    assert other.lost.wait(value) is True
    assert not loss.done(), "a released lease is not lost"
    hold = lease._record
    (told,) = hold.on_loss
    api.call(told, "taken") if isinstance(api, AsyncioApi) else told("taken")
    assert loss.result(30) is True


def test_a_cancel_waits_for_any_time() -> None:
    stop = holdfast.Cancel()
    stop.set()
    assert all(stop.wait(seconds) for seconds in (1e10, 1e19, float(2**63)))


COUNTS: dict[str, Callable[[Any, Any], Any]] = {
    "permits": lambda locks, value: locks.semaphore("a", permits=value),
    "count": lambda locks, value: locks.latch("a", value),
    "parties": lambda locks, value: locks.barrier("a", value),
    "attempts": lambda locks, value: locks.optimistic("a", attempts=value),
    "sync_replicas": lambda locks, value: locks.lock("a", sync_replicas=value),
}


@pytest.mark.parametrize("value", [0, -1, 10**400, 10**5000, 1.0, True, "1", Decimal(1), float("nan")], ids=label)
def test_a_count_that_is_none_is_refused_by_name(locks: Any, value: object) -> None:
    for argument, use in COUNTS.items():
        with pytest.raises(holdfast.ConfigurationError, match=f"^{argument} = ") as refused:
            use(locks, value)
        assert refused.value.argument == argument


# ---------------------------------------------------------------- values


NO_VALUE = [None, True, object(), [1], {"a": 1}, bytearray(b"x"), Decimal(1), "\ud800", 10**5000]


@pytest.mark.parametrize("value", NO_VALUE, ids=label)
def test_what_cannot_be_stored_as_it_is_is_refused(api: Api, locks: Any, unique_name: str, value: Any) -> None:
    uses: dict[str, Callable[[], Any]] = {
        "new": lambda: locks.compare_and_set(unique_name, None, value),
        "value": lambda: guarded_set(api, locks, unique_name, value),
        "command": lambda: transact(api, locks, unique_name, lambda tx: tx.set(unique_name, value)),
    }
    if value is not None:
        uses["expected"] = lambda: locks.compare_and_set(unique_name, value, "x")
    for argument, use in uses.items():
        with pytest.raises(holdfast.ConfigurationError, match=f"^{argument} = ") as refused:
            use()
        assert refused.value.argument == argument
    assert locks.compare_and_set(unique_name, None, "still nothing there")


def guarded_set(api: Api, locks: Any, key: str, value: Any) -> Any:
    client = getattr(locks, "_target", locks)
    if isinstance(api, AsyncioApi):
        return api.call(fencing.guarded_set, client, key, value, 1)
    return fencing.guarded_set(client, key, value, 1)


def transact(api: Api, locks: Any, key: str, act: Callable[[Any], Any]) -> Any:
    def run(transaction: Any) -> Any:
        return act(transaction)

    async def arun(transaction: Any) -> Any:
        result = act(transaction)
        return await result if inspect.isawaitable(result) else result

    return locks.optimistic(key).run(arun if isinstance(api, AsyncioApi) else run)


def test_values_mean_the_same_with_and_without_a_script(api: Api, locks: Any, unique_name: str) -> None:
    for number, (value, stored) in enumerate([("ä", "ä".encode()), (b"\xff", b"\xff"), (7, b"7"), (0.5, b"0.5")]):
        key = f"{unique_name}-{number}"
        for native in (True, False):
            getattr(locks, "_target", locks)._session.scripts.ifeq = native
            assert locks.compare_and_set(key, None, value)
            assert not locks.compare_and_set(key, b"other", "x")
            assert transact(api, locks, key, lambda tx, key=key: tx.get(key)) == stored  # type: ignore[misc]
            assert locks.compare_and_set(key, value, "last")
            assert transact(api, locks, key, lambda tx, key=key: (tx.delete(key), True)[1])  # type: ignore[misc]


def test_commands_of_nothing_are_refused(api: Api, locks: Any, unique_name: str) -> None:
    for act in (lambda tx: tx.queue(), lambda tx: tx.execute(), lambda tx: tx.delete()):
        with pytest.raises(holdfast.ConfigurationError):
            transact(api, locks, unique_name, act)


# ---------------------------------------------------------------- functions that have not run


def test_functions_that_would_run_later_are_refused(api: Api, locks: Any, unique_name: str) -> None:
    """Else their body runs without the lock, the lead or the transaction; or a coroutine counts as true."""

    async def coroutine(*_: object) -> bool:
        return False

    def generator(*_: object) -> Any:
        yield

    def plain(*_: object) -> bool:
        return False

    async def gives_a_generator(*_: object) -> Any:
        return generator()

    threads = api.name == "threads"
    lock, election = locks.lock(unique_name), locks.election(unique_name)
    for function in (coroutine, generator) if threads else (plain, gives_a_generator):
        with pytest.raises(holdfast.ConfigurationError, match=r"^function = "):
            locks.optimistic(unique_name).run(function)
        with pytest.raises(holdfast.ConfigurationError, match=r"^lead = "):
            election.run(function)
        assert election.leader() is None
    if threads:
        with lock as lease:
            with pytest.raises(holdfast.ConfigurationError, match=r"^predicate = "):
                locks.condition(lock).wait_for(coroutine, timeout=0.1)
            with pytest.raises(holdfast.ConfigurationError, match=r"^callback = "):
                lease.on_lost(coroutine)


def test_what_cannot_be_called_is_refused_before_anything_is_waited_for(
    api: Api, locks: Any, others: Any, unique_name: str
) -> None:
    lock, election = locks.lock(unique_name), locks.election(unique_name)
    leads = others.election(unique_name).campaign()
    for value in (None, 7, "lead"):
        with pytest.raises(holdfast.ConfigurationError, match=r"^lead = .* is not allowed: a function"):
            election.run(value)
        with pytest.raises(holdfast.ConfigurationError, match=r"^function = .* is not allowed: a function"):
            locks.optimistic(unique_name).run(value)
        if api.name == "threads":  # the wrapper for asyncio makes a function of its own of it
            with lock, pytest.raises(holdfast.ConfigurationError, match=r"^predicate = .* is not allowed: a function"):
                locks.condition(lock).wait_for(value)
    leads.release()


@pytest.mark.parametrize("value", [None, 0, 1, 60, "no", 1.5], ids=label)
def test_keep_ttl_is_true_or_false(locks: Any, raw: Any, unique_name: str, value: Any) -> None:
    with pytest.raises(holdfast.ConfigurationError, match=r"^keep_ttl = .* is not allowed: True or False"):
        locks.compare_and_set(unique_name, None, "new", keep_ttl=value)
    assert not raw.exists(unique_name)


# ---------------------------------------------------------------- what is no client


@pytest.mark.parametrize(
    "value", [None, "client", redis.Redis(), redis.asyncio.Redis()], ids=["None", "a str", "redis", "redis.asyncio"]
)
def test_a_guarded_write_takes_a_client_of_ours(value: Any) -> None:
    with pytest.raises(holdfast.ConfigurationError, match=r"^client = .* is not allowed: a holdfast\.Client"):
        fencing.guarded_set(value, "key", "value", 1)


class MyRedis(redis.Redis):
    """A client of the user's own class."""


class MyAsyncRedis(redis.asyncio.Redis):
    """The same for asyncio, in a module that is not called asyncio."""


def no_clients(url: str) -> dict[str, tuple[Any, str]]:
    plain: Any = redis.Redis.from_url(url)
    aio: Any = redis.asyncio.Redis.from_url(url)
    sentinel: Any = redis.Sentinel
    return {
        "pipeline": (plain.pipeline(), "pass the client that made it"),
        "asyncio pipeline": (aio.pipeline(), "pass the client that made it"),
        "pubsub": (plain.pubsub(), "pass the client that made it"),
        "asyncio pubsub": (aio.pubsub(), "pass the client that made it"),
        "pool": (plain.connection_pool, r"redis\.Redis\(connection_pool=pool\)"),
        "sentinel": (sentinel([]), "master_for"),
        "mock": (mock.Mock(), "redis"),
        "magic mock": (mock.MagicMock(), "redis"),
        "mock of a client": (mock.Mock(spec=redis.Redis), "redis"),
        "url": (url, r"connect\(url\)"),
        "none": (None, "redis"),
        "number": (7, "redis"),
    }


def test_what_is_no_client_is_refused(api: Api, locks: Any, valkey_server: embedded.Server) -> None:
    for what, (given, way_out) in no_clients(valkey_server.url).items():
        with pytest.raises(holdfast.ConfigurationError, match=way_out):
            pytest.fail(f"{what} was taken: {api.module().Client(given)}")
        if what != "url":
            with pytest.raises(holdfast.ConfigurationError):
                pytest.fail(f"{what} was taken: {api.module().Client.quorum([given] * 3)}")


def test_a_client_of_the_other_api_is_refused(api: Api, valkey_server: embedded.Server) -> None:
    own, other = (MyRedis, MyAsyncRedis) if api.name == "threads" else (MyAsyncRedis, MyRedis)
    with pytest.raises(holdfast.ConfigurationError, match="belongs to holdfast"):
        api.module().Client(other.from_url(valkey_server.url))
    assert api.client(own.from_url(valkey_server.url)).lock("own").name == "own"


@pytest.mark.parametrize("path", ["/abc", "/1/2", "/-1", "/1e3", "/0x1", "/²", "?db=abc"])
def test_a_database_that_is_no_number_is_refused(api: Api, path: str) -> None:
    for scheme in ("redis", "rediss"):
        with pytest.raises(holdfast.ConfigurationError, match=r"^url = "):
            api.module().connect(f"{scheme}://localhost:1{path}")


@pytest.mark.parametrize("url", ["redis://h", "rediss://h", "unix:///s", "redis+sentinel://h/s", "redlock://a,b,c"])
def test_an_option_that_no_connection_has_is_refused_at_once(api: Api, url: str) -> None:
    api.connect(f"{url}?socket_timeout=3")
    with pytest.raises(holdfast.ConfigurationError, match=r"options are those of redis-py .*'bogus'"):
        api.connect(f"{url}?bogus=3")

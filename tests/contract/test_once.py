"""What jobs that run once and values that are made once promise, whichever API and server."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

import holdfast
from holdfast.errors import AcquireTimeout, AlreadyHeld, ConfigurationError, MakeFailed, OnceConflict
from testbed.waiting import PATIENCE_S, eventually
from tests.support.apis import Api, function_for, warm


def held(locks: Any, name: str) -> int:
    """How many readers and writers there are of the lock behind a value."""
    status = locks.rwlock(name).status()
    return int(status.writer is not None) + int(status.readers)


class Maker:
    """A function that makes a value, counts its calls, and can be held up."""

    def __init__(self, api: Api, value: Any = b"value") -> None:
        self.calls = 0
        self.entered, self.go_on = threading.Event(), threading.Event()
        self.go_on.set()
        self.error: Exception | None = None
        self._value = value
        self.function = function_for(api, self._steps)
        self._is_asyncio = api.name == "asyncio"

    def _steps(self, *_: Any) -> Any:
        self.calls += 1
        self.entered.set()
        until = time.monotonic() + PATIENCE_S
        while not self.go_on.is_set() and time.monotonic() < until:
            if self._is_asyncio:
                yield asyncio.sleep(0.01)
            else:
                time.sleep(0.01)
        if self.error is not None:
            raise self.error
        return self._value

    def hold_up(self) -> None:
        self.go_on.clear()
        self.entered.clear()


# ---------------------------------------------------------------- get_or_set


def test_a_missing_value_is_made_once_and_kept(locks: Any, others: Any, api: Api, raw: Any, unique_name: str) -> None:
    maker = Maker(api, "blue")
    assert locks.get_or_set(unique_name, maker.function, expire=30) == b"blue"
    assert others.get_or_set(unique_name, maker.function, expire=30) == b"blue"
    assert maker.calls == 1
    assert raw.get(unique_name) == "blue"
    assert 0 < raw.pttl(unique_name) <= 30_000
    raw.delete(unique_name)
    assert locks.get_or_set(unique_name, maker.function, expire=None) == b"blue"
    assert maker.calls == 2
    assert raw.pttl(unique_name) == -1
    raw.delete(unique_name)


def test_a_stampede_waits_for_one(locks: Any, others: Any, api: Api, raw: Any, unique_name: str) -> None:
    maker = Maker(api, 7)
    maker.hold_up()
    crowd = [api.start(client.get_or_set, unique_name, maker.function, expire=30) for client in (locks, others) * 6]
    lock = f"get_or_set:{unique_name}"
    eventually(lambda: others.rwlock(lock).waiters() == 11)
    maker.go_on.set()
    assert [each.result(PATIENCE_S) for each in crowd] == [b"7"] * 12
    assert maker.calls == 1
    eventually(lambda: held(locks, lock) == 0)
    raw.delete(unique_name)


def test_a_failure_is_raised_and_the_next_one_makes_it(
    locks: Any, others: Any, api: Api, raw: Any, unique_name: str
) -> None:
    failing, working = Maker(api), Maker(api)
    failing.hold_up()
    failing.error = ZeroDivisionError("no value")
    first = api.start(locks.get_or_set, unique_name, failing.function, expire=30)
    assert failing.entered.wait(PATIENCE_S)
    second = [api.start(others.get_or_set, unique_name, working.function, expire=30) for _ in range(3)]
    eventually(lambda: others.rwlock(f"get_or_set:{unique_name}").waiters() == 3)
    failing.go_on.set()
    with pytest.raises(ZeroDivisionError, match="no value"):
        first.result(PATIENCE_S)
    assert [each.result(PATIENCE_S) for each in second] == [b"value"] * 3
    assert (failing.calls, working.calls) == (1, 1)
    raw.delete(unique_name)


def test_a_failure_is_shared_with_those_who_wait(locks: Any, others: Any, api: Api, raw: Any, unique_name: str) -> None:
    maker, other = Maker(api), Maker(api)
    maker.hold_up()
    maker.error = ValueError("no such\npage")
    first = api.start(locks.get_or_set, unique_name, maker.function, expire=30, failure="share")
    assert maker.entered.wait(PATIENCE_S)
    behind = [
        api.start(client.get_or_set, unique_name, other.function, expire=30, failure="share")
        for client in (locks, others, others)
    ]
    lock = f"get_or_set:{unique_name}"
    eventually(lambda: locks.rwlock(lock).status().waiters == 3)
    maker.go_on.set()
    with pytest.raises(ValueError):
        first.result(PATIENCE_S)
    for each in behind:
        error = each.exception(PATIENCE_S)
        assert isinstance(error, MakeFailed)
        assert (error.name, error.error) == (lock, "ValueError: no such\\npage")
    assert other.calls == 0
    # One that comes later tries.
    assert others.get_or_set(unique_name, other.function, expire=30, failure="share") == b"value"


def test_a_failure_of_before_is_not_that_of_the_maker(locks: Any, others: Any, api: Api, unique_name: str) -> None:
    first, maker, other = Maker(api), Maker(api), Maker(api)
    first.error = maker.error = ValueError("mine")
    with pytest.raises(ValueError):
        locks.get_or_set(unique_name, first.function, expire=30, failure="share")
    maker.hold_up()
    making = api.start(locks.get_or_set, unique_name, maker.function, expire=30)  # which does not share
    assert maker.entered.wait(PATIENCE_S)
    behind = api.start(others.get_or_set, unique_name, other.function, expire=30, failure="share")
    eventually(lambda: locks.rwlock(f"get_or_set:{unique_name}").status().waiters == 1)
    maker.go_on.set()
    assert isinstance(making.exception(PATIENCE_S), ValueError)
    assert behind.result(PATIENCE_S) == b"value"


def test_a_failure_of_a_job_is_shared(locks: Any, others: Any, api: Api, unique_name: str) -> None:
    job, other = Maker(api), Maker(api)
    job.hold_up()
    job.error = KeyError("k")
    first = api.start(locks.once, unique_name, job.function, failure="share")
    assert job.entered.wait(PATIENCE_S)
    second = api.start(others.once, unique_name, other.function, failure="share")
    eventually(lambda: locks.rwlock(f"once:{unique_name}").status().waiters == 1)
    job.go_on.set()
    assert isinstance(first.exception(PATIENCE_S), KeyError)
    assert isinstance(second.exception(PATIENCE_S), MakeFailed)
    assert locks.once(unique_name, other.function) == (True, b"value")


def test_an_old_value_is_given_while_one_makes_a_new_one(
    locks: Any, others: Any, api: Api, raw: Any, unique_name: str
) -> None:
    old, new, never = Maker(api, b"old"), Maker(api, b"new"), Maker(api)
    assert locks.get_or_set(unique_name, old.function, expire=60, stale=600) == b"old"
    assert raw.pttl(unique_name) > 600_000
    assert others.get_or_set(unique_name, never.function, expire=60, stale=600) == b"old"
    raw.pexpire(unique_name, 600_000)  # its time is over
    new.hold_up()
    refreshing = api.start(others.get_or_set, unique_name, new.function, expire=60, stale=600)
    assert new.entered.wait(PATIENCE_S)
    for client in (locks, others):
        # In another thread or task: the one that makes it waits for itself otherwise.
        assert api.start(client.get_or_set, unique_name, never.function, expire=60, stale=600).result(10) == b"old"
    new.go_on.set()
    assert refreshing.result(PATIENCE_S) == b"new"
    assert locks.get_or_set(unique_name, never.function, expire=60, stale=600) == b"new"
    assert (never.calls, new.calls) == (0, 1)
    assert 600_000 < raw.pttl(unique_name) <= 660_000  # no longer than both


def test_a_value_without_a_limit_is_never_stale(locks: Any, api: Api, unique_name: str) -> None:
    with pytest.raises(ConfigurationError, match="stale"):
        locks.get_or_set(unique_name, Maker(api).function, expire=None, stale=3)
    with pytest.raises(ConfigurationError, match="failure"):
        locks.get_or_set(unique_name, Maker(api).function, expire=3, failure="later")


def test_waiting_for_a_value_is_bounded(locks: Any, others: Any, api: Api, raw: Any, unique_name: str) -> None:
    maker = Maker(api)
    maker.hold_up()
    first = api.start(locks.get_or_set, unique_name, maker.function, expire=30)
    assert maker.entered.wait(PATIENCE_S)
    with pytest.raises(AcquireTimeout, match=unique_name):
        others.get_or_set(unique_name, maker.function, expire=30, timeout=0.5)
    maker.go_on.set()
    assert first.result(PATIENCE_S) == b"value"
    assert maker.calls == 1
    raw.delete(unique_name)


def test_a_value_that_needs_itself_is_refused(locks: Any, api: Api, raw: Any, unique_name: str) -> None:
    inner = Maker(api)
    target = getattr(locks, "_target", locks)

    def outer() -> Any:
        yield target.get_or_set(unique_name, inner.function, expire=30)
        return b"never"

    with pytest.raises(AlreadyHeld):
        locks.get_or_set(unique_name, function_for(api, outer), expire=30)
    assert inner.calls == 0
    assert raw.get(unique_name) is None


@pytest.mark.parametrize("value", [None, [1], object()])
def test_a_value_that_cannot_be_stored_is_refused(locks: Any, api: Api, raw: Any, unique_name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match="json"):
        locks.get_or_set(unique_name, Maker(api, value).function, expire=30)
    assert raw.get(unique_name) is None
    eventually(lambda: held(locks, f"get_or_set:{unique_name}") == 0)


@pytest.mark.parametrize(
    ("arguments", "options", "match"),
    [
        (("", Maker), {"expire": 1}, "key"),
        (("key", 7), {"expire": 1}, "make"),
        (("key", Maker), {"expire": -1}, "expire"),
        (("key", Maker), {"expire": 1, "timeout": -1}, "timeout"),
        (("key", Maker), {"expire": 1, "ttl": 0}, "ttl"),
    ],
)
def test_bad_arguments_are_refused_before_anything_is_made(
    locks: Any, api: Api, arguments: tuple[Any, Any], options: dict[str, Any], match: str
) -> None:
    maker = Maker(api)
    key, make = arguments
    with pytest.raises(ConfigurationError, match=match):
        locks.get_or_set(key, maker.function if make is Maker else make, **options)
    assert maker.calls == 0


# ---------------------------------------------------------------- once


@pytest.mark.parametrize(
    ("result", "kept"), [(None, None), (b"", b""), ("sent", b"sent"), (42, b"42"), (b"\x00\xff", b"\x00\xff")]
)
def test_a_job_runs_once(locks: Any, others: Any, api: Api, unique_name: str, result: Any, kept: bytes | None) -> None:
    job = Maker(api, result)
    assert locks.once(unique_name, job.function, retain=30) == holdfast.Outcome(True, kept)
    assert others.once(unique_name, job.function, retain=30) == holdfast.Outcome(False, kept)
    assert job.calls == 1


def test_a_job_that_failed_runs_again(locks: Any, others: Any, api: Api, unique_name: str) -> None:
    job = Maker(api, 1)
    job.error = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError):
        locks.once(unique_name, job.function)
    job.error = None
    assert others.once(unique_name, job.function).new
    assert job.calls == 2


def test_who_comes_while_a_job_runs_waits_for_its_result(locks: Any, others: Any, api: Api, unique_name: str) -> None:
    job = Maker(api, "done")
    job.hold_up()
    first = api.start(locks.once, unique_name, job.function)
    assert job.entered.wait(PATIENCE_S)
    second = api.start(others.once, unique_name, job.function)
    eventually(lambda: others.rwlock(f"once:{unique_name}").waiters() == 1)
    job.go_on.set()
    assert first.result(PATIENCE_S) == (True, b"done")
    assert second.result(PATIENCE_S) == (False, b"done")
    assert job.calls == 1


def test_a_job_is_run_for_one_request(locks: Any, others: Any, api: Api, unique_name: str) -> None:
    job = Maker(api, b"paid")
    assert locks.once(unique_name, job.function, fingerprint='{"amount": 3}') == (True, b"paid")
    assert others.once(unique_name, job.function, fingerprint=b'{"amount": 3}') == (False, b"paid")
    with pytest.raises(OnceConflict, match=unique_name) as caught:
        others.once(unique_name, job.function, fingerprint='{"amount": 4}')
    assert caught.value.name == unique_name and "amount" not in str(caught.value)
    assert others.once(unique_name, job.function) == (False, b"paid")  # without one, any will do
    assert job.calls == 1


def test_a_job_of_no_request_is_not_that_of_one(locks: Any, api: Api, unique_name: str) -> None:
    job = Maker(api, None)
    assert locks.once(unique_name, job.function) == (True, None)
    with pytest.raises(OnceConflict):
        locks.once(unique_name, job.function, fingerprint="x")
    with pytest.raises(ConfigurationError, match="fingerprint"):
        locks.once(unique_name, job.function, fingerprint=3)


def test_a_job_is_given_the_lease_it_runs_under(locks: Any, api: Api, unique_name: str) -> None:
    tokens: list[int] = []

    def job(lease: Any) -> Any:
        tokens.append(lease.fencing_token)
        yield 0

    locks.once(unique_name, function_for(api, job))
    assert tokens
    assert locks.rwlock(f"once:{unique_name}").status().fencing_token == tokens[0]


def test_a_result_is_forgotten_in_time(locks: Any, api: Api, unique_name: str) -> None:
    job = Maker(api)
    assert locks.once(unique_name, job.function, retain=0.1).new
    eventually(lambda: locks.once(unique_name, job.function, retain=30).new)
    assert job.calls == 2


def test_the_late_result_of_a_lost_lease_is_not_kept(valkey_server: Any, api: Api, look: Any, unique_name: str) -> None:
    """The lease was taken away, and another client has run the job since: what that one has stored stays."""
    locks, others = (api.connect(valkey_server.url) for _ in range(2))
    slow, quick = Maker(api, "slow"), Maker(api, "quick")
    slow.hold_up()
    first = api.start(locks.once, unique_name, slow.function, ttl=30)
    assert slow.entered.wait(PATIENCE_S)
    lock = f"holdfast:{{once:{unique_name}}}"
    look.delete(lock)
    assert others.once(unique_name, quick.function) == (True, b"quick")
    slow.go_on.set()
    with pytest.raises(holdfast.errors.HoldfastError):
        first.result(PATIENCE_S)
    assert others.once(unique_name, quick.function) == (False, b"quick")
    look.delete(f"{lock}:done")


def test_a_job_that_is_forgotten_runs_again(locks: Any, others: Any, api: Api, unique_name: str) -> None:
    job = Maker(api)
    locks.forget(unique_name)  # which has not run yet
    assert locks.once(unique_name, job.function).new
    others.forget(unique_name)
    assert locks.once(unique_name, job.function).new
    assert not others.once(unique_name, job.function).new
    assert job.calls == 2


def test_a_job_that_runs_is_forgotten_when_it_has_ended(locks: Any, others: Any, api: Api, unique_name: str) -> None:
    """As a worker does, that begins before its task was noted as queued."""
    job = Maker(api)
    job.hold_up()
    first = api.start(locks.once, unique_name, job.function)
    assert job.entered.wait(PATIENCE_S)
    warm(others)  # which may take longer than 0.1 s to connect
    with pytest.raises(AcquireTimeout):
        others.forget(unique_name, timeout=0.1)
    forgotten = api.start(others.forget, unique_name)
    eventually(lambda: locks.rwlock(f"once:{unique_name}").waiters() == 1)
    job.go_on.set()
    assert first.result(PATIENCE_S).new
    forgotten.result(PATIENCE_S)
    assert locks.once(unique_name, job.function).new


def test_the_late_result_of_a_forgotten_job_is_not_kept(
    valkey_server: Any, api: Api, look: Any, unique_name: str
) -> None:
    locks, others = (api.connect(valkey_server.url) for _ in range(2))
    slow, quick = Maker(api, "slow"), Maker(api, "quick")
    slow.hold_up()
    first = api.start(locks.once, unique_name, slow.function, ttl=30)
    assert slow.entered.wait(PATIENCE_S)
    look.delete(f"holdfast:{{once:{unique_name}}}")
    others.forget(unique_name)
    slow.go_on.set()
    with pytest.raises(holdfast.errors.HoldfastError):
        first.result(PATIENCE_S)
    assert others.once(unique_name, quick.function) == (True, b"quick")
    locks.close()
    others.close()

"""The drop-in for redis-py's Lock: what its own suite does not ask, or asks in a way that cannot hold here."""

from __future__ import annotations

import ast
import inspect
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis
from redis import exceptions as theirs

import holdfast
from holdfast import embedded
from holdfast.compat import redis as compat
from holdfast.compat.redis import LockNotHeldError, LockNotOwnedError, LockTimeoutError, errors
from holdfast.compat.redis import asyncio as compat_asyncio
from testbed.servers import free_port
from testbed.waiting import PATIENCE_S, eventually
from tests.support.apis import Api, AsyncioApi

ROOT = Path(__file__).resolve().parents[2]

# ---- what their suite checks by a key without a ttl, or by the naps of its polling loop ----


def test_the_key_holds_the_token(lock_of: Callable[..., Any], raw: Any, unique_name: str) -> None:
    lock = lock_of(unique_name)
    assert lock.acquire(blocking=False) is True
    assert raw.get(unique_name).encode() == lock.local.token
    assert 20_000 < raw.pttl(unique_name) <= 30_000
    lock.release()
    assert raw.get(unique_name) is None and lock.local.token is None


@pytest.mark.parametrize("thread_local", [True, False])
@pytest.mark.parametrize("timeout", [None, 20])
def test_a_token_of_ones_own(
    lock_of: Callable[..., Any], raw: Any, unique_name: str, thread_local: bool, timeout: int | None
) -> None:
    lock = lock_of(unique_name, thread_local=thread_local, timeout=timeout)
    for token in ("test", b"test", "again"):
        assert lock.acquire(blocking=False, token=token)
        text = token if isinstance(token, str) else token.decode()
        assert (raw.get(unique_name), lock.local.token) == (text, text.encode())
        assert 0 < raw.pttl(unique_name) <= (20_000 if timeout else 30_000)
        assert lock.owned() and lock.fencing_token
        assert (lock.lease is None) == (timeout is not None)
        lock.release()
        assert raw.get(unique_name) is None and lock.local.token is None


@pytest.mark.parametrize("sleep", [0.01, 60])
def test_it_waits_for_its_time_and_no_longer(lock_of: Callable[..., Any], unique_name: str, sleep: float) -> None:
    first = lock_of(unique_name)
    assert first.acquire()
    second = lock_of(unique_name, sleep=sleep, blocking_timeout=0.2)
    before = time.monotonic()
    assert second.acquire() is False
    assert time.monotonic() - before >= 0.2
    assert second.acquire(blocking=False) is False
    assert second.acquire(blocking_timeout=-1) is False
    first.release()


# ---- its queue ----


def test_waiters_come_in_order_and_are_handed_the_lock(
    lock_of: Callable[..., Any], raw: Any, api: Api, unique_name: str
) -> None:
    holder = lock_of(unique_name)
    holder.acquire()
    order: list[int] = []

    def wait(number: int) -> None:
        lock = lock_of(unique_name, timeout=30)
        assert lock.acquire()
        order.append(number)
        lock.release()

    waiting = []
    for number in range(4):
        waiting.append(api.start(wait, number))
        eventually(lambda: raw.zcard(f"{{{unique_name}}}:queue") == len(waiting))
    holder.release()
    for each in waiting:
        each.result(60)
    assert order == [0, 1, 2, 3]


def test_a_thread_may_wait_for_its_own(lock_of: Callable[..., Any], unique_name: str) -> None:
    """A lock belongs to an object, not to a thread, as with redis-py."""
    first, second = lock_of(unique_name, timeout=0.3), lock_of(unique_name, timeout=10)
    assert first.acquire()
    assert second.acquire(blocking_timeout=60)
    with pytest.raises(theirs.LockNotOwnedError):
        first.release()
    second.release()


# ---- how long it is held ----


def test_without_a_timeout_it_is_renewed(lock_of: Callable[..., Any], raw: Any, unique_name: str) -> None:
    lock = lock_of(unique_name)
    lock.acquire()
    raw.pexpire(unique_name, 60_000)
    lease = lock.lease
    lease = getattr(lease, "_target", lease)
    assert lease._record.renews and lease.held
    lock.release()
    assert lock.lease is None and lock.fencing_token is None


@pytest.mark.parametrize("timeout, left", [(None, False), (30, True)])
def test_the_end_of_the_process(server: embedded.Server, raw: Any, unique_name: str, timeout: Any, left: bool) -> None:
    """With `timeout` it is held that long, as many count on who acquire and never release; else it is released."""
    child = (
        "import sys, redis, holdfast.compat.redis as compat\n"
        "r = redis.Redis.from_url(sys.argv[1])\n"
        f"lock = r.lock(sys.argv[2], lock_class=compat.Lock, timeout={timeout})\n"
        "assert lock.acquire(blocking=False)\n"
    )
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "ignore::ResourceWarning", "-c", child, server.url, unique_name],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert raw.exists(unique_name) == left


def test_time_is_added_or_set(lock_of: Callable[..., Any], raw: Any, unique_name: str) -> None:
    lock = lock_of(unique_name, timeout=10)
    assert lock.acquire()
    assert lock.extend(10) is True
    assert 19_000 < raw.pttl(unique_name) <= 20_000
    assert lock.extend(5, replace_ttl=True) is True
    assert 4_000 < raw.pttl(unique_name) <= 5_000
    assert lock.reacquire() is True
    assert 9_000 < raw.pttl(unique_name) <= 10_000
    lock.release()
    with pytest.raises(theirs.LockError):
        lock.reacquire()


def test_the_extensions_of_a_token_that_comes_again_count(
    lock_of: Callable[..., Any], raw: Any, unique_name: str
) -> None:
    """An order of extensions that the first acquisition has left is behind that of the second."""
    lock = lock_of(unique_name, timeout=10)
    for _ in range(2):
        assert lock.acquire(token="same")
        for seconds in (30, 5, 40, 8):
            assert lock.extend(seconds, replace_ttl=True)
            assert (seconds - 1) * 1000 < raw.pttl(unique_name) <= seconds * 1000
        lock.release()


# ---- hand over ----


def test_a_token_is_handed_over(lock_of: Callable[..., Any], raw: Any, api: Api, unique_name: str) -> None:
    """By `local.token`, as users of redis-py do."""
    first, second = lock_of(unique_name, timeout=30), lock_of(unique_name, timeout=30)
    assert first.acquire()
    local = second.local
    if isinstance(api, AsyncioApi):
        api.call(setattr, local._target, "token", first.local.token)
    else:
        local.token = first.local.token
    assert second.owned()
    assert second.extend(60)
    assert raw.pttl(unique_name) > 80_000
    second.release()
    assert not first.locked()
    with pytest.raises(LockNotOwnedError):
        first.release()


def test_each_thread_has_its_own(server: embedded.Server, unique_name: str) -> None:
    from holdfast.compat.redis import Lock, locks_of

    with redis.Redis.from_url(server.url) as client:
        for thread_local, seen in ((True, None), (False, True)):
            lock = client.lock(unique_name, lock_class=Lock, thread_local=thread_local)
            assert lock.acquire()
            found: list[Any] = []
            thread = threading.Thread(target=lambda lock=lock, found=found: found.append(lock.local.token))
            thread.start()
            thread.join()
            assert (found[0] is not None) == (seen is not None)
            lock.release()
        locks_of(client).close()


# ---- beside redis-py's own ----


def test_both_exclude_each_other(lock_of: Callable[..., Any], plain: Any, api: Api, unique_name: str) -> None:
    ours, old = lock_of(unique_name, timeout=30), plain.lock(unique_name, timeout=30)
    for first, second in ((ours, old), (old, ours)):
        assert first.acquire() and not second.acquire(blocking=False)
        assert second.locked() and not second.owned()
        with pytest.raises(theirs.LockError):
            second.release()
        waiting = api.start(lock_of(unique_name, timeout=30).acquire) if second is ours else None
        first.release()
        assert waiting is None or waiting.result(60)
        plain.delete(unique_name)


def test_a_token_goes_from_one_to_the_other(
    lock_of: Callable[..., Any], plain: Any, api: Api, unique_name: str
) -> None:
    ours, old = lock_of(unique_name, timeout=30), plain.lock(unique_name, timeout=30)
    assert ours.acquire()
    old.local.token = ours.local.token
    assert old.owned() and old.extend(5)
    old.release()
    assert not ours.locked()


def test_a_mixed_fleet_never_meets_inside(lock_of: Callable[..., Any], plain: Any, unique_name: str) -> None:
    inside: list[int] = []
    clashes: list[int] = []

    def work(lock: Any, rounds: int) -> None:
        for _ in range(rounds):
            assert lock.acquire(blocking_timeout=60)
            inside.append(1)
            if len(inside) > 1:
                clashes.append(1)
            time.sleep(0.002)
            inside.pop()
            lock.release()
            time.sleep(0.005)  # a polling loop has its chance when the queue is empty

    threads = [threading.Thread(target=work, args=(lock_of(unique_name, timeout=60), 10)) for _ in range(3)]
    threads += [
        threading.Thread(target=work, args=(plain.lock(unique_name, timeout=60, sleep=0.003), 10)) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads)
    assert clashes == []


# ---- errors ----


def test_errors_are_theirs_and_ours(lock_of: Callable[..., Any], raw: Any, unique_name: str) -> None:
    lock = lock_of(unique_name, timeout=30)
    with pytest.raises(LockNotHeldError) as unheld:
        lock.release()
    assert issubclass(LockNotHeldError, theirs.LockError) and issubclass(LockNotHeldError, holdfast.NotHeld)
    lock.acquire()
    with pytest.raises(LockTimeoutError) as late:
        with lock_of(unique_name, blocking_timeout=0.05):
            raise AssertionError
    assert issubclass(LockTimeoutError, theirs.LockError) and issubclass(LockTimeoutError, holdfast.AcquireTimeout)
    assert late.value.waited_s >= 0.05 and late.value.lock_name == unique_name
    raw.set(unique_name, "someone")
    with pytest.raises(LockNotOwnedError) as lost:
        lock.release()
    assert issubclass(LockNotOwnedError, theirs.LockNotOwnedError) and issubclass(LockNotOwnedError, holdfast.LeaseLost)
    raw.delete(unique_name)
    with lock_of(unique_name) as unlimited, pytest.raises(theirs.LockError, match="renewed"):
        unlimited.extend(5)
    for error in (unheld.value, late.value, lost.value):
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again), repr(again), again.lock_name) == (
            type(error),
            str(error),
            repr(error),
            unique_name,
        )


@pytest.mark.parametrize(
    "ours, wanted",
    [
        (holdfast.ServerUnreachable("here", "gone"), theirs.ConnectionError),
        (holdfast.OutcomeUnknown("here", "gone"), theirs.TimeoutError),
        (holdfast.ServerError("here", "OOM", "OOM"), theirs.ResponseError),
        (holdfast.ScriptRefused("here", "NOPERM", "no"), theirs.ResponseError),
        (holdfast.ClientClosed(), theirs.LockError),
    ],
)
def test_errors_of_the_server(ours: holdfast.HoldfastError, wanted: type[Exception]) -> None:
    made = errors.as_theirs(ours, "x")
    assert isinstance(made, wanted) and str(made) == str(ours) and repr(made)
    assert all(getattr(made, field) == value for field, value in vars(ours).items())
    assert type(pickle.loads(pickle.dumps(made))) is type(made)


def test_no_server(api: Api, locks_on: Callable[[Any], Callable[..., Any]], unique_name: str) -> None:
    lock = locks_on(api.redis().Redis(port=free_port()))(unique_name)
    with pytest.raises(theirs.ConnectionError):
        lock.acquire(blocking=False)


@pytest.mark.parametrize("reason", ["expired", "taken"])
def test_why_it_is_lost(lock_of: Callable[..., Any], raw: Any, unique_name: str, reason: str) -> None:
    operations: tuple[tuple[str, tuple[Any, ...]], ...] = (
        *(("release", ()), ("reacquire", ()), ("extend", (5,))),
        ("extend", (5, True)),
    )
    for operation, args in operations:
        lock = lock_of(unique_name, timeout=0.1 if reason == "expired" else 30)
        assert lock.acquire()
        if reason == "taken":
            lock.extend(5, True)
            raw.delete(unique_name)
        eventually(lambda: not raw.exists(unique_name))
        with pytest.raises(holdfast.LeaseLost) as lost:
            getattr(lock, operation)(*args)
        assert (lost.value.reason, f"({reason})" in str(lost.value)) == (reason, True)


def test_what_the_block_raises_is_not_replaced(lock_of: Callable[..., Any], raw: Any, unique_name: str) -> None:
    with pytest.raises(KeyError):
        with lock_of(unique_name):
            raw.delete(unique_name)
            raise KeyError
    with pytest.raises(LockNotOwnedError):
        with lock_of(unique_name):
            raw.delete(unique_name)
    with lock_of(unique_name, raise_on_release_error=False):
        raw.delete(unique_name)


# ---- nothing is left ----


def test_a_token_that_cannot_be_set_leaves_nothing(
    lock_of: Callable[..., Any], raw: Any, unique_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever comes between the grant and the exchange of the token, or of its answer."""
    from holdfast import Client, asyncio

    for kind in (Client, asyncio.Client):
        real = kind.compare_and_set

        def done_and_lost(self: Any, *args: Any, real: Any = real, **options: Any) -> Any:
            result = real(self, *args, **options)
            if hasattr(result, "__await__"):

                async def lose() -> None:
                    await result
                    raise holdfast.OutcomeUnknown("here", "lost")

                return lose()
            raise holdfast.OutcomeUnknown("here", "lost")

        monkeypatch.setattr(kind, "compare_and_set", done_and_lost)
    lock = lock_of(unique_name, timeout=60)
    with pytest.raises(theirs.TimeoutError):
        lock.acquire(token="mine")
    assert lock.local.token is None
    eventually(lambda: not raw.exists(unique_name))


def test_names_of_all_kinds(lock_of: Callable[..., Any], raw: Any, unique_name: str) -> None:
    for name in (unique_name, unique_name.encode(), memoryview(f"{unique_name}é".encode()), f"{unique_name}a}}b"):
        lock = lock_of(name)
        assert lock.acquire()
        key = name if isinstance(name, str) else bytes(name).decode()
        assert raw.exists(key)
        lock.release()


def test_one_client_for_each_pool(server: embedded.Server, unique_name: str) -> None:
    """Users make a redis client for each request, on one pool."""
    from holdfast.compat.redis import locks_of

    pool = redis.ConnectionPool.from_url(server.url)
    first, second = (locks_of(redis.Redis(connection_pool=pool)) for _ in range(2))
    assert first is second
    with first, redis.Redis.from_url(server.url) as other, locks_of(other) as third:
        assert third is not first
    pool.disconnect()


class _Interrupted(BaseException):
    """As from a signal handler."""


@pytest.mark.parametrize("timeout", [None, 60])
@pytest.mark.parametrize("token", [None, "mine"])
def test_what_does_not_reach_the_lock_is_given_back(
    lock_of: Callable[..., Any], raw: Any, unique_name: str, timeout: int | None, token: str | None
) -> None:
    class Local:
        token: Any = None
        held: Any = None

        def __setattr__(self, name: str, value: Any) -> None:
            raise _Interrupted

    lock = lock_of(unique_name, timeout=timeout)
    getattr(lock, "_target", lock).local = Local()
    with pytest.raises(_Interrupted):
        lock.acquire(token=token)
    eventually(lambda: not raw.exists(unique_name))


def test_a_task_that_is_cancelled_on_the_way_leaves_nothing(server: embedded.Server, unique_name: str) -> None:
    """Wherever it waits: for the lock, for the exchange of its token, for the lease under that."""
    import asyncio

    import redis.asyncio

    import holdfast.compat.redis.asyncio as compat

    async def main() -> None:
        async with redis.asyncio.Redis.from_url(server.url) as client:
            for steps in range(0, 40, 2):
                lock: Any = client.lock(unique_name, lock_class=compat.Lock)
                task = asyncio.ensure_future(lock.acquire(token="mine"))
                for _ in range(steps):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                if lock.local.token is not None:
                    await lock.release()
                # Its request may be on its way still: another one comes behind that, on the same connection.
                other: Any = client.lock(unique_name, lock_class=compat.Lock)
                assert await other.acquire(blocking_timeout=PATIENCE_S), steps
                await other.release()
            await compat.locks_of(client).close()
            assert not await client.exists(unique_name)

    asyncio.run(main())


@pytest.mark.parametrize("module", [compat, compat_asyncio])
def test_type_checkers_find_all_names(module: Any) -> None:
    """A list that is written out tells them, the list of another module does not."""
    names = [
        name
        for node in ast.parse(inspect.getsource(module)).body
        if isinstance(node, ast.Assign | ast.AugAssign)
        for name in ast.literal_eval(node.value)
    ]
    assert sorted(names) == sorted([*errors.__all__, "Lock", "locks_of"])

"""What public code sets and overrides on redis-py's Lock: it works here, too, or is refused when it is set."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import redis
import redis.asyncio
import redis.lock
from redis import exceptions as theirs

import holdfast
import holdfast.compat.redis.asyncio
from testbed.waiting import eventually
from tests.support.apis import Api, AsyncioApi

#: As celery-redbeat has one: it sets the time, where redis-py's adds to it.
EXTEND_TO = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
"""
#: Releases as redis-py does, and notes it.
DELETE = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
redis.call('SET', KEYS[1] .. ARGV[1], 'deleted', 'PX', 60000)
return redis.call('DEL', KEYS[1])
"""


@pytest.fixture
def base(api: Api) -> Any:
    """The drop-in's class, to derive from."""
    return (holdfast.compat.redis if api.name == "threads" else holdfast.compat.redis.asyncio).Lock


@pytest.fixture
def make(api: Api, client: Any, base: Any, locks_on: Callable[[Any], Any]) -> Callable[..., Any]:
    """``make(name, cls, timeout=…)``: a lock of that class."""
    locks_on(client)
    return lambda name, cls=base, **options: api.wrap(cls(client, name, **options))


def derived(*bases: Any, **members: Any) -> Any:
    """A subclass, of the module of the last base: by that the tests know what has to be made blocking."""
    return type("Mine", bases, {"__module__": bases[-1].__module__, **members})


def of(lock: Any) -> Any:
    """The lock itself, behind what makes it blocking."""
    return getattr(lock, "_target", lock)


class CallsUp:
    """Notes which of its methods redis-py would call; for both APIs, since it passes on what they return."""

    calls: list[str]

    def __init_subclass__(cls) -> None:
        cls.calls = []

    def do_release(self, *args: Any, **options: Any) -> Any:
        self.calls.append("do_release")
        return super().do_release(*args, **options)  # type: ignore[misc]

    def do_extend(self, *args: Any) -> Any:
        self.calls.append("do_extend")
        return super().do_extend(*args)  # type: ignore[misc]

    def do_reacquire(self) -> Any:
        self.calls.append("do_reacquire")
        return super().do_reacquire()  # type: ignore[misc]

    def acquire(self, *args: Any, **options: Any) -> Any:
        self.calls.append("acquire")
        return super().acquire(*args, **options)  # type: ignore[misc]

    def release(self) -> Any:
        self.calls.append("release")
        return super().release()  # type: ignore[misc]


def test_it_is_a_lock_of_redis_py(make: Any, api: Api, unique_name: str) -> None:
    kind = redis.lock.Lock if api.name == "threads" else redis.asyncio.lock.Lock
    assert isinstance(of(make(unique_name)), kind)


def test_scripts_are_called(make: Any, client: Any, raw: Any, unique_name: str) -> None:
    lock = make(unique_name, timeout=10)
    of(lock).lua_extend = of(lock).lua_reacquire = client.register_script(EXTEND_TO)
    assert lock.acquire()
    for seconds in (30, 30, 5):
        assert lock.extend(seconds) is True
        assert (seconds - 2) * 1000 < raw.pttl(unique_name) <= seconds * 1000
    assert lock.reacquire() is True
    assert 5_000 < raw.pttl(unique_name) <= 10_000
    raw.delete(unique_name)
    for call in (lambda: lock.extend(30), lock.reacquire, lock.release):
        with pytest.raises(theirs.LockNotOwnedError):
            call()


@pytest.mark.parametrize("timeout", [None, 30])
@pytest.mark.parametrize("how", ["script", "text", "do_release", "do_release on the object"])
def test_a_release_of_ones_own_hands_the_lock_on(
    make: Any, base: Any, client: Any, raw: Any, api: Api, unique_name: str, how: str, timeout: int | None
) -> None:
    """With nothing but a DEL, the next waiter would look again when the holder's time is over."""

    def delete(token: Any) -> Any:
        return client.eval(DELETE, 1, unique_name, token)

    members: dict[str, Any] = {
        "script": {},
        "text": {"LUA_RELEASE_SCRIPT": DELETE},
        "do_release": {"do_release": lambda self, token: delete(token)},
        "do_release on the object": {},
    }
    holder = make(unique_name, derived(base, **members[how]), timeout=timeout)
    if how == "script":
        of(holder).lua_release = client.register_script(DELETE)
    elif how == "do_release on the object":
        of(holder).do_release = delete
    assert holder.acquire()
    token = holder.local.token.decode()
    waiting = api.start(make(unique_name, timeout=30).acquire)
    eventually(lambda: raw.zcard(f"{{{unique_name}}}:queue") == 1)
    holder.release()
    assert waiting.result(15)
    assert raw.get(f"{unique_name}{token}") == "deleted"
    assert holder.lease is None and holder.local.token is None
    with pytest.raises(theirs.LockError):
        holder.release()


def test_overridden_methods_are_called(make: Any, base: Any, api: Api, raw: Any, unique_name: str) -> None:
    mine: Any = derived(CallsUp, base)
    lock = make(unique_name, mine, timeout=30)
    if isinstance(api, AsyncioApi):

        async def block() -> None:
            async with of(lock):
                pass

        api.call(block)
    else:
        with lock:
            pass
    assert mine.calls == ["acquire", "release", "do_release"]
    mine.calls.clear()
    assert lock.acquire() and lock.extend(5) and lock.reacquire()
    assert mine.calls == ["acquire", "do_extend", "do_reacquire"]
    lock.release()
    assert not raw.exists(unique_name)


def test_an_acquire_that_says_no_ends_the_with(make: Any, base: Any, api: Api, unique_name: str) -> None:
    async def never(self: Any) -> bool:
        return False

    lock = make(unique_name, derived(base, acquire=never if isinstance(api, AsyncioApi) else lambda self: False))
    with pytest.raises(theirs.LockError, match=f"{unique_name}.* was not acquired"):
        with lock:
            raise AssertionError


def test_a_do_acquire_of_ones_own_is_called_for_each_attempt(
    make: Any, base: Any, api: Api, raw: Any, unique_name: str
) -> None:
    attempts: list[Any] = []

    def do_acquire(self: Any, token: Any) -> Any:
        attempts.append(token)
        return base.do_acquire(self, token)

    raw.set(unique_name, "someone")
    lock = make(unique_name, derived(base, do_acquire=do_acquire), timeout=30, sleep=0.01)
    waiting = api.start(lock.acquire)
    eventually(lambda: len(attempts) > 2)
    raw.delete(unique_name)
    assert waiting.result(60)
    assert len(set(attempts)) == 1 and raw.get(unique_name) == attempts[0].decode()


@pytest.mark.parametrize("timeout", [None, 30])
def test_single_attempts(make: Any, raw: Any, unique_name: str, timeout: int | None) -> None:
    lock = make(unique_name, timeout=timeout)
    assert lock.do_acquire(b"mine") is True
    assert raw.get(unique_name) == "mine" and lock.owned()
    assert make(unique_name).do_acquire("other") is False
    lock.release()
    assert not raw.exists(unique_name)


@pytest.mark.parametrize("timeout", [None, 30])
@pytest.mark.parametrize("token", ["text", b"bytes"])
def test_what_a_token_holds_is_released_by_it(make: Any, raw: Any, unique_name: str, token: Any, timeout: Any) -> None:
    """Release what another process holds: by `do_release(token)`, or by `local.token`."""
    first = make(unique_name, timeout=timeout)
    assert first.acquire(token=token)
    make(unique_name).do_release(token)
    assert not raw.exists(unique_name)
    with pytest.raises(theirs.LockNotOwnedError):
        make(unique_name).do_release(token)
    with pytest.raises(theirs.LockNotOwnedError):
        first.release()
    second = make(unique_name, timeout=30, thread_local=False)
    assert first.acquire(token=token)
    of(second).local.token = token
    assert second.owned() and second.extend(10) and second.reacquire()
    second.release()
    assert not raw.exists(unique_name)
    with pytest.raises(theirs.LockNotOwnedError):
        first.release()


def test_local_may_be_any_object(make: Any, unique_name: str) -> None:
    lock = make(unique_name, timeout=30)
    assert lock.acquire()
    other = make(unique_name, timeout=30)
    of(other).local = SimpleNamespace(token=lock.local.token)
    assert other.lease is None and other.fencing_token is None
    other.release()


def test_what_is_set_later_counts(make: Any, raw: Any, unique_name: str) -> None:
    lock = make(unique_name)
    of(lock).timeout = 10
    assert lock.acquire() and lock.lease is None
    assert 5_000 < raw.pttl(unique_name) <= 10_000
    lock.release()
    of(lock).name = f"{unique_name}-2"
    assert lock.acquire() and raw.exists(f"{unique_name}-2")
    of(lock).blocking = False
    assert make(f"{unique_name}-2", blocking=False).acquire() is False
    lock.release()


def test_register_scripts_may_be_overridden(make: Any, base: Any, unique_name: str) -> None:
    lock = make(unique_name, derived(base, register_scripts=lambda self: None), timeout=30)
    assert lock.acquire()
    lock.release()


def test_scripts_of_redis_py_itself_are_not_called(plain: Any, base: Any, unique_name: str) -> None:
    """redis-py registers its own on its class, from which ours derives."""
    plain.lock(unique_name)
    assert vars(redis.lock.Lock)["lua_extend"] is not None
    assert base.lua_release is base.lua_extend is base.lua_reacquire is None


# ---- refused ----


@pytest.mark.parametrize(
    "name, options, said",
    [
        (b"\xff\xfe", {}, "name = .* UTF-8"),
        (None, {}, "name = None"),
        ("x", {"timeout": 0.009}, "timeout = 0.009 .* from 0.01"),
        ("x", {"timeout": -1}, "timeout = -1"),
    ],
)
def test_names_and_times_are_refused_when_they_are_set(make: Any, name: Any, options: Any, said: str) -> None:
    with pytest.raises(holdfast.ConfigurationError, match=said):
        make(name, **options)
    lock = make("x", timeout=1)
    for attribute, value in {"name": name, **options}.items():
        if value != "x":
            with pytest.raises(holdfast.ConfigurationError, match=said):
                setattr(of(lock), attribute, value)
    assert (lock.name, lock.timeout) == ("x", 1)


def test_tokens_that_are_no_text_are_refused_before_anything_is_sent(make: Any, raw: Any, unique_name: str) -> None:
    lock = make(unique_name, timeout=30, thread_local=False)
    with pytest.raises(holdfast.ConfigurationError, match=r"token = .* UTF-8"):
        lock.acquire(token=b"\xff")
    with pytest.raises(holdfast.ConfigurationError, match=r"token = .* UTF-8"):
        lock.do_release(b"\xff")
    assert not raw.exists(unique_name)
    of(lock).local.token = b"\xff"
    for call in (lock.owned, lock.release):
        with pytest.raises(holdfast.ConfigurationError, match="token"):
            call()


def test_an_extension_that_is_too_short_is_refused(make: Any, raw: Any, unique_name: str) -> None:
    lock = make(unique_name, timeout=30)
    assert lock.acquire()
    with pytest.raises(holdfast.ConfigurationError, match=r"additional_time = 0\.001"):
        lock.extend(0.001, replace_ttl=True)
    lock.release()


# ---- order of arguments ----


@pytest.mark.parametrize("kind", [redis.lock.Lock, redis.asyncio.lock.Lock])
def test_methods_take_what_redis_pys_take_in_that_order(kind: Any) -> None:
    """With redis-py, `acquire(False)` does not wait in asyncio, and naps for no time in threads."""
    ours: Any = holdfast.compat.redis.Lock if kind is redis.lock.Lock else holdfast.compat.redis.asyncio.Lock
    for name in ("__init__", "acquire", "release", "extend", "reacquire", "do_acquire", "do_release", "do_extend"):
        assert list(inspect.signature(getattr(ours, name)).parameters) == list(
            inspect.signature(getattr(kind, name)).parameters
        ), name

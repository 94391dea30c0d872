"""Kept leases: a lock that stays with its client for a while after its release."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from holdfast.errors import ConfigurationError
from testbed.waiting import eventually
from tests.support.apis import Api


def keeper_of(locks: Any) -> Any:
    session = locks._session
    return session.driver.lease_cache


def keep(locks: Any, name: str, **options: Any) -> Any:
    """A lock that is kept now."""
    lock = locks.lock(name, **{"cache_for": 5.0, **options})

    def is_kept() -> bool:
        with lock:
            pass
        return any(type(kept.holder) is list for kept in keeper_of(locks).values())

    eventually(is_kept)
    return lock


def test_a_kept_lock_is_taken_again_without_a_request(api: Api, url: str, raw: Any, unique_name: str) -> None:
    locks = api.connect(url)
    lock = keep(locks, unique_name)
    sent = raw.info("commandstats")["cmdstat_evalsha"]["calls"]
    fences, tokens = [], set()
    for _ in range(100):
        with lock as lease:
            lease.ensure_held()
            assert lease.remaining() > 1
            fences.append(lease.fencing_token)
            tokens.add(lease.token)
    # Another test may use the server meanwhile, but hardly so often.
    assert raw.info("commandstats")["cmdstat_evalsha"]["calls"] - sent < 100
    assert fences == sorted(set(fences)) and len(tokens) == 1
    assert raw.get(f"holdfast:{{{unique_name}}}") in tokens


def test_another_client_gets_it_at_once(api: Api, url: str, unique_name: str) -> None:
    keep(api.connect(url), unique_name)
    other = api.connect(url).lock(unique_name)
    began = time.monotonic()
    with other as lease:
        lease.ensure_held()
    assert time.monotonic() - began < 4, "it waited until it was not kept any more"


def test_a_try_gets_it_too(api: Api, url: str, unique_name: str) -> None:
    locks = api.connect(url)
    keep(locks, unique_name)
    others = api.connect(url)

    def tried() -> bool:
        time.sleep(0.5)
        lease = others.lock(unique_name).try_acquire()
        if lease is not None:
            lease.release()
        return lease is not None

    eventually(tried)
    assert keeper_of(locks) == {}


def test_who_holds_is_told_and_lets_go_with_the_release(api: Api, url: str, raw: Any, unique_name: str) -> None:
    locks = api.connect(url)
    lock = keep(locks, unique_name)
    lease = lock.acquire()

    def take() -> int:
        with api.connect(url).lock(unique_name) as lease:
            return int(lease.fencing_token)

    waits = api.start(take)
    eventually(lambda: raw.zcard(f"holdfast:{{{unique_name}}}:queue") == 1)
    lease.release()
    assert waits.result(4) > lease.fencing_token


def test_fencing_tokens_grow_from_client_to_client(api: Api, url: str, unique_name: str) -> None:
    clients = [api.connect(url) for _ in range(2)]
    fences = []
    for client in [*clients, *clients]:
        lock = keep(client, unique_name)
        for _ in range(3):
            with lock as lease:
                fences.append(lease.fencing_token)
    assert fences == sorted(set(fences))


def test_it_is_let_go_when_its_time_is_over(api: Api, url: str, raw: Any, unique_name: str) -> None:
    locks = api.connect(url)
    keep(locks, unique_name, cache_for=0.3)
    eventually(lambda: not raw.exists(f"holdfast:{{{unique_name}}}"))
    eventually(lambda: keeper_of(locks) == {})  # once it was answered


def test_its_ttl_is_cut_while_it_is_idle(api: Api, url: str, raw: Any, unique_name: str) -> None:
    locks = api.connect(url)
    lock = keep(locks, unique_name, cache_for=12.0)  # with which a busy machine is in time, too
    eventually(lambda: raw.pttl(f"holdfast:{{{unique_name}}}") < 14_000)
    eventually(lambda: any(kept.holder == [] for kept in keeper_of(locks).values()))
    with lock as lease:
        # It begins with what is left; on a busy machine, a renewal has come before the next bytecode.
        assert lease.remaining() < 14 or raw.pttl(f"holdfast:{{{unique_name}}}") > 20_000
        eventually(lambda: lease.remaining() > 20)
        assert raw.pttl(f"holdfast:{{{unique_name}}}") > 20_000


def test_only_the_engine_sets_its_timers(api: Api, url: str, unique_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread that is interrupted there would leave the client without any: nothing would be renewed."""
    lock = api.connect(url).lock(unique_name, cache_for=2.5, ttl=5)
    bare = getattr(lock, "_target", lock)
    client = bare._session.driver.client
    by, arm = set[str](), client.arm

    def noted(at: float | None) -> None:
        by.add(threading.current_thread().name)
        arm(at)

    lock.acquire().release()  # opens the inbox
    eventually(lambda: client.inboxes.listening(bare._key))
    monkeypatch.setattr(client, "arm", noted)
    lock.acquire().release()
    assert client.lease_cache and by <= {"holdfast"}


def test_who_looks_sees_that_it_may_be_idle(api: Api, url: str, unique_name: str) -> None:
    locks = api.connect(url)
    lock = keep(locks, unique_name)
    assert not lock.locked()
    holder = api.connect(url).lock(unique_name).holder()
    assert holder is not None and holder.kept
    with lock:
        assert lock.locked()


def test_a_closed_client_keeps_nothing(api: Api, url: str, raw: Any, unique_name: str) -> None:
    locks = api.connect(url)
    keep(locks, unique_name)
    locks.close()
    assert not raw.exists(f"holdfast:{{{unique_name}}}")


def test_what_was_extended_is_released(api: Api, url: str, raw: Any, unique_name: str) -> None:
    locks = api.connect(url)
    lock = keep(locks, unique_name)
    with lock as lease:
        lease.extend(10)
    assert not raw.exists(f"holdfast:{{{unique_name}}}")


def test_what_is_handed_over_is_not_kept(api: Api, url: str, unique_name: str) -> None:
    """Not even where the client has waited for it behind another one of its own."""
    locks = api.connect(url)
    lock = keep(locks, unique_name)
    first = lock.acquire()
    waiting = api.start(lambda: lock.acquire().handle())
    eventually(lambda: lock.status().waiters == 1)
    first.release()
    adopted = locks.adopt(waiting.result(60))
    assert not keeper_of(locks)
    adopted.release()


def test_a_condition_waits_with_a_kept_lock(api: Api, url: str, raw: Any, unique_name: str) -> None:
    actors = [api.actor() for _ in range(2)]
    one, two = actors
    first, second = (api.connect(url) for _ in actors)
    mine, other = (keep(client, unique_name) for client in (first, second))
    condition = first.condition(mine._target if api.name == "asyncio" else mine)
    one.enter(mine)
    waits = one.tell(condition, "wait")
    eventually(lambda: raw.zcard(f"holdfast:{{{unique_name}}}:cond:default") == 1)
    two.enter(other)
    condition = second.condition(other._target if api.name == "asyncio" else other)
    assert two.ask(condition, "notify") == 1
    two.leave(other)
    assert waits.result(4) is True, "the notifier has kept the lock"
    one.leave(mine)


@pytest.mark.parametrize("kind", ["multilock", "rwlock"])
def test_other_primitives_of_that_name_get_it(api: Api, url: str, unique_name: str, kind: str) -> None:
    keep(api.connect(url), unique_name)
    other = getattr(api.connect(url), kind)(unique_name)
    lease = (other.write() if kind == "rwlock" else other).acquire(timeout=4)
    lease.release()


def test_what_keeps_nothing_refuses_it(api: Api, url: str, unique_name: str) -> None:
    locks: Any = api.connect(url)
    for make in (locks.rwlock, locks.semaphore, locks.multilock, locks.election):
        make(unique_name, cache_for=None)
        with pytest.raises(ConfigurationError, match="only what lock"):
            make(unique_name, cache_for=1.0)
    with pytest.raises(ConfigurationError, match="half of the ttl"):
        locks.lock(unique_name, cache_for=2.0, ttl=3.0)
    with pytest.raises(ConfigurationError, match="sync_replicas"):
        locks.lock(unique_name, cache_for=2.0, sync_replicas=1)
    with pytest.raises(ConfigurationError, match="seconds"):
        locks.lock(unique_name, cache_for=True)

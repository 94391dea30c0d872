"""`list()`: every kind that is held or waited for, each once, at a bounded cost for the server."""

from __future__ import annotations

import os
import socket
from collections import Counter
from typing import Any

import pytest

import holdfast
from holdfast.errors import ConfigurationError
from testbed.waiting import eventually
from tests.support.apis import Api


def all_of(api: Api, locks: Any, pattern: str = "*", **options: Any) -> list[Any]:
    """Return all that `list` yields."""
    found = locks.list(pattern, **options)
    if api.name == "threads":
        return list(found)

    async def collect() -> list[Any]:
        return [each async for each in found]

    return api.call(collect)  # type: ignore[attr-defined,no-any-return]


def listed(api: Api, locks: Any, pattern: str) -> dict[tuple[str, str], Any]:
    """Return what is found, by kind and name; each once."""
    found = all_of(api, locks, pattern)
    named = {(each.kind, each.name): each for each in found}
    assert len(named) == len(found), found
    return named


def test_every_kind(locks: Any, api: Api, unique_name: str) -> None:
    held = {
        "lock": locks.lock(f"{unique_name}-a").acquire(),
        "rwlock": locks.rwlock(f"{unique_name}-r").read().acquire(),
        "semaphore": locks.semaphore(f"{unique_name}-s", 3).acquire(),
        "election": locks.election(f"{unique_name}-e").campaign(),
    }
    found = listed(api, locks, f"{unique_name}-*")
    assert {kind for kind, _ in found} == set(held)
    for (kind, _), each in found.items():
        assert (each.held, each.waiters, each.queue) == (1, 0, ()), each
        (holder,) = each.holders
        assert (holder.token, holder.host, holder.pid) == (held[kind].token, socket.gethostname(), os.getpid())
        assert holder.remaining_s is not None and 0 < holder.remaining_s <= 30
        assert each.fencing_token == held[kind].fencing_token
        assert each.permits == (3 if kind == "semaphore" else 0)
    for lease in held.values():
        lease.release()
    assert listed(api, locks, f"{unique_name}-*") == {}


def test_kinds_that_share_a_locks_name(locks: Any, others: Any, api: Api, unique_name: str) -> None:
    rwlock, multilock = locks.rwlock(f"{unique_name}-r"), locks.multilock(f"{unique_name}-a", f"{unique_name}-b")
    writer, several = rwlock.write().acquire(), multilock.acquire()
    found = listed(api, locks, f"{unique_name}-*")
    assert sorted(found) == [
        ("multilock", f"{unique_name}-a"),
        ("multilock", f"{unique_name}-b"),
        ("rwlock", f"{unique_name}-r"),
    ]
    assert locks.break_(f"{unique_name}-a", kind="multilock").kind == "multilock"
    assert not several.held
    reader = writer.downgrade()
    upgraded = reader.upgrade()
    assert [each.kind for each in all_of(api, locks, f"{unique_name}-r")] == ["rwlock"]
    upgraded.release()
    reader.release()


def test_waiters_and_their_age(locks: Any, others: Any, api: Api, unique_name: str) -> None:
    lease = locks.lock(unique_name).acquire()
    waiting = api.start(others.lock(unique_name).acquire)
    eventually(lambda: locks.lock(unique_name).waiters() == 1)
    (found,) = listed(api, locks, unique_name).values()
    assert found.waiters == len(found.queue) == 1
    assert 0 <= found.queue[0].age_s < 60
    lease.release()
    second = waiting.result(60)
    assert found.queue[0].token == second.token
    second.release()


def test_of_many_holders_and_waiters_some_are_named(locks: Any, api: Api, raw: Any, unique_name: str) -> None:
    names = {f"{number:024x}:1:1": 9_000_000_000_000 for number in range(30)}
    raw.zadd(f"holdfast:{{{unique_name}}}:sem:holders", names)
    raw.zadd(f"holdfast:{{{unique_name}}}:sem:queue", names)
    for kind in ("holders", "queue"):
        raw.pexpire(f"holdfast:{{{unique_name}}}:sem:{kind}", 60_000)
    (found,) = all_of(api, locks, unique_name)
    assert (found.held, found.waiters, len(found.holders), len(found.queue)) == (30, 30, 16, 16)


@pytest.mark.parametrize("name", ["plain", "}odd", "%}odd", "a}:queue", "a}:sem", "{x}y", "back\\slash", "q[1]", "ünï"])
def test_names_and_patterns(locks: Any, api: Api, unique_name: str, name: str) -> None:
    name = f"{name}-{unique_name}"
    leases = [locks.lock(name).acquire(), locks.lock(f"{name}!").acquire()]
    assert set(listed(api, locks, f"*{unique_name}*")) == {("lock", name), ("lock", f"{name}!")}
    assert set(listed(api, locks, f"*-{unique_name}")) == {("lock", name)}
    assert set(listed(api, locks, f"*{unique_name}[!a]")) == {("lock", f"{name}!")}
    for lease in leases:
        lease.release()


def test_a_foreign_holder_and_foreign_keys(locks: Any, api: Api, raw: Any, unique_name: str) -> None:
    raw.set(f"holdfast:{{{unique_name}-f}}", "someone", px=30_000)
    raw.rpush(f"holdfast:{{{unique_name}-l}}", "a list")
    raw.set(f"holdfast:{{{unique_name}-q}}:queue", "no queue", px=30_000)
    found = listed(api, locks, f"{unique_name}-*")
    odd = {name: each.odd for (_, name), each in found.items() if each.held == each.waiters == 0}
    assert odd == {
        f"{unique_name}-l": f"holdfast:{{{unique_name}-l}}",
        f"{unique_name}-q": f"holdfast:{{{unique_name}-q}}:queue",
    }
    assert set(found) - {("lock", name) for name in odd} == {("lock", f"{unique_name}-f")}
    (holder,) = found["lock", f"{unique_name}-f"].holders
    assert (holder.token, holder.ours, holder.since, holder.host) == ("someone", False, None, None)
    raw.delete(f"holdfast:{{{unique_name}-l}}")


def test_many_locks_take_many_small_calls(locks: Any, api: Api, raw: Any, unique_name: str) -> None:
    pipeline = raw.pipeline(transaction=False)
    for number in range(1_000):
        pipeline.set(f"holdfast:{{{unique_name}-{number}}}", f"{number:024x}:1:1", px=60_000)
    pipeline.execute()
    before = _calls(raw)
    found = listed(api, locks, f"{unique_name}-*")
    calls = _calls(raw) - before
    assert len(found) == 1_000
    assert calls["evalsha"] + calls["eval"] >= 100, "at most 10 names a call"
    assert calls["keys"] == 0 and calls["scan"] >= 10, "at most 100 keys a SCAN"


def _calls(raw: Any) -> Counter[str]:
    return Counter({name[8:]: int(each["calls"]) for name, each in raw.info("commandstats").items()})


def test_where_it_makes_no_sense(api: Api, server: Any) -> None:
    with pytest.raises(ConfigurationError, match="namespace"):
        all_of(api, api.connect(server.url, namespace=None))
    with pytest.raises(ConfigurationError, match="pattern"):
        api.connect(server.url).list("")


def test_the_listing_is_frozen(locks: Any, api: Api, unique_name: str) -> None:
    with locks.lock(unique_name):
        (found,) = all_of(api, locks, unique_name)
    assert isinstance(found, holdfast.Listed)
    with pytest.raises(AttributeError):
        found.held = 2  # type: ignore[misc]

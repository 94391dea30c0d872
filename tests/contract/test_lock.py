"""What the lock promises, whichever API and server."""

from __future__ import annotations

import math
import os
import pickle
import socket
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

import holdfast
from holdfast import embedded
from testbed.servers import free_port
from testbed.waiting import eventually
from tests.support.apis import Api


def key(name: str) -> str:
    return f"holdfast:{{{name}}}"


# ---------------------------------------------------------------- taking and giving back


def test_the_key_holds_the_token_while_it_is_held(locks: Any, raw: Any, unique_name: str) -> None:
    lease = locks.lock(unique_name, ttl=20).acquire()
    assert raw.get(key(unique_name)) == lease.token
    assert 0 < raw.pttl(key(unique_name)) <= 20_000
    assert 0 < lease.remaining() < 20
    assert lease.state.name == "HELD"
    lease.release()
    assert not raw.exists(key(unique_name))
    assert lease.state.name == "RELEASED"
    assert lease.remaining() == 0


def test_every_key_has_a_ttl(locks: Any, others: Any, raw: Any, api: Api, unique_name: str) -> None:
    lease = locks.lock(unique_name).acquire()
    waiting = api.start(others.lock(unique_name).acquire)
    eventually(lambda: locks.lock(unique_name).waiters() == 1)
    keys = list(raw.scan_iter(f"{key(unique_name)}*"))
    assert sorted(keys) == [key(unique_name), f"{key(unique_name)}:fence", f"{key(unique_name)}:queue"]
    assert all(raw.pttl(each) > 0 for each in keys)
    lease.release()
    waiting.result().release()


def test_with_releases(locks: Any, raw: Any, unique_name: str) -> None:
    with locks.lock(unique_name) as lease:
        assert raw.get(key(unique_name)) == lease.token
    assert not raw.exists(key(unique_name))


def test_with_releases_when_the_body_raises(locks: Any, raw: Any, unique_name: str) -> None:
    with pytest.raises(ZeroDivisionError), locks.lock(unique_name):
        raise ZeroDivisionError
    assert not raw.exists(key(unique_name))


def test_with_a_lease_released_inside(locks: Any, unique_name: str) -> None:
    with locks.lock(unique_name) as lease:
        lease.release()
    assert not locks.lock(unique_name).locked()


def test_releasing_twice_says_so(locks: Any, unique_name: str) -> None:
    lease = locks.lock(unique_name).acquire()
    lease.release()
    with pytest.raises(holdfast.LeaseReleased, match=unique_name):
        lease.release()
    with pytest.raises(holdfast.LeaseReleased):
        lease.ensure_held()
    with pytest.raises(holdfast.LeaseReleased):
        lease.extend(10)


def test_only_one_holds(locks: Any, others: Any, unique_name: str) -> None:
    lease = locks.lock(unique_name).acquire()
    assert others.lock(unique_name).try_acquire() is None
    lease.release()
    second = others.lock(unique_name).try_acquire()
    assert second is not None
    second.release()


def test_names_do_not_meet(locks: Any, unique_name: str) -> None:
    names = [unique_name + end for end in ("", "}", "{", "{a}", "}:fence", ":queue", " ", "ü", "%", "\n")]
    names += [f"}}{unique_name}", f"%}}{unique_name}", f"%{unique_name}", f"{{}}{unique_name}"]
    leases = [locks.lock(name).try_acquire() for name in names]
    assert None not in leases
    assert [locks.lock(name).holder().token for name in names] == [lease.token for lease in leases]
    for lease in leases:
        lease.release()


# ---------------------------------------------------------------- fencing


def test_fencing_tokens_only_grow(locks: Any, others: Any, raw: Any, unique_name: str) -> None:
    tokens = []
    for turn in range(20):
        lease = (locks if turn % 3 else others).lock(unique_name).acquire()
        tokens.append(lease.fencing_token)
        lease.release()
        if turn % 5 == 0:
            raw.delete(f"{key(unique_name)}:fence")  # forgotten, as by a restart without data
    assert tokens == sorted(set(tokens))


def test_a_fencing_token_ahead_of_the_clock_is_exceeded(locks: Any, raw: Any, unique_name: str) -> None:
    ahead = 9_000_000_000_000_000  # in the year 2255
    raw.set(f"{key(unique_name)}:fence", ahead, px=60_000)
    with locks.lock(unique_name) as lease:
        assert lease.fencing_token == ahead + 1


# ---------------------------------------------------------------- waiting


def test_timeout(locks: Any, others: Any, raw: Any, unique_name: str) -> None:
    lease = locks.lock(unique_name).acquire()
    with pytest.raises(holdfast.AcquireTimeout) as caught:
        others.lock(unique_name).acquire(timeout=1)  # also the limit of each request, to five servers of a quorum
    assert caught.value.name == unique_name
    assert caught.value.holder is not None and caught.value.holder.token == lease.token
    assert caught.value.waited_s >= 1
    assert isinstance(caught.value, TimeoutError)
    eventually(lambda: raw.zcard(f"{key(unique_name)}:queue") == 0, "the place in the queue is left")
    lease.release()
    assert not raw.exists(key(unique_name)), "no one waits any more, so the lock is free"


def test_first_come_first_served(locks: Any, api: Api, url: str, unique_name: str) -> None:
    lease = locks.lock(unique_name).acquire()
    clients = [api.connect(url, tenure=0) for _ in range(3)]  # else sections this short are handed on inside of each
    order: list[int] = []

    def take(number: int) -> int:
        with clients[number % 3].lock(unique_name) as mine:
            order.append(number)
            return int(mine.fencing_token)

    takers = []
    for number in range(9):
        takers.append(api.start(take, number))
        eventually(lambda: locks.lock(unique_name).waiters() == len(takers))
    lease.release()
    tokens = [taker.result() for taker in takers]
    assert order == list(range(9))
    assert tokens == sorted(tokens)


def test_a_release_names_the_next_holder(locks: Any, others: Any, raw: Any, api: Api, unique_name: str) -> None:
    lease = locks.lock(unique_name).acquire()
    waiting = api.start(others.lock(unique_name).acquire)
    eventually(lambda: locks.lock(unique_name).waiters() == 1)
    (waiter,) = raw.zrange(f"{key(unique_name)}:queue", 0, -1)
    lease.release()
    assert raw.get(key(unique_name)) == waiter, "the lock was never free in between"
    assert waiting.result().token == waiter
    waiting.result().release()


def test_nobody_overtakes_the_queue(locks: Any, others: Any, raw: Any, api: Api, unique_name: str) -> None:
    lease = locks.lock(unique_name).acquire()
    waiting = api.start(others.lock(unique_name).acquire)
    eventually(lambda: locks.lock(unique_name).waiters() == 1)
    raw.delete(key(unique_name))  # as if it had expired
    outsider = api.start(locks.lock(unique_name).try_acquire)
    assert outsider.result() is None, "the waiter goes first"
    second = waiting.result()
    assert raw.get(key(unique_name)) == second.token
    second.release()
    with pytest.raises((holdfast.LeaseLost, holdfast.LeaseReleased)):
        lease.release()


def test_a_dead_waiter_costs_nothing(locks: Any, others: Any, raw: Any, api: Api, unique_name: str) -> None:
    lease = locks.lock(unique_name).acquire()
    waiting = api.start(others.lock(unique_name).acquire)
    eventually(lambda: locks.lock(unique_name).waiters() == 1)
    dead = "0" * 24 + ":1:1"
    raw.zadd(f"{key(unique_name)}:queue", {dead: 1})  # it came first, and its process is gone
    (first, second) = raw.zrange(f"{key(unique_name)}:queue", 0, -1)
    assert first == dead
    lease.release()
    assert raw.get(key(unique_name)) == second
    waiting.result().release()


def test_an_expired_holder_is_followed_by_the_queue(locks: Any, raw: Any, unique_name: str) -> None:
    dead = "0" * 24 + ":1:1"  # of ours, so that no one polls for it
    raw.set(key(unique_name), dead, px=700)
    lease = locks.lock(unique_name).acquire(timeout=30)
    assert raw.get(key(unique_name)) == lease.token
    lease.release()


def test_a_foreign_holder_is_polled_for(locks: Any, raw: Any, api: Api, unique_name: str) -> None:
    raw.set(key(unique_name), "an outsider's")
    waiting = api.start(locks.lock(unique_name).acquire, timeout=60)
    eventually(lambda: raw.zcard(f"{key(unique_name)}:queue") == 1)
    raw.delete(key(unique_name))  # no wake-up comes with that
    waiting.result().release()


def test_waiting_survives_the_loss_of_its_inbox(locks: Any, others: Any, raw: Any, api: Api, unique_name: str) -> None:
    lease = locks.lock(unique_name).acquire()
    waiting = api.start(others.lock(unique_name).acquire)
    eventually(lambda: locks.lock(unique_name).waiters() == 1)
    place = raw.zrange(f"{key(unique_name)}:queue", 0, -1, withscores=True)
    raw.client_kill_filter(_type="pubsub")
    channel = f"holdfast:inbox:{place[0][0].partition(':')[0]}"
    eventually(lambda: raw.pubsub_numsub(channel)[0][1] == 1, "it has subscribed again")
    assert raw.zrange(f"{key(unique_name)}:queue", 0, -1, withscores=True) == place, "and kept its place"
    lease.release()
    assert waiting.result().token == place[0][0]
    waiting.result().release()


# ---------------------------------------------------------------- expiry, renewal, loss


def test_without_renewal_it_ends(locks: Any, others: Any, raw: Any, unique_name: str) -> None:
    lease = locks.lock(unique_name, ttl=0.3, renew=False).acquire()
    assert lease.lost.wait(30)
    assert lease.state.name == "LOST"
    assert lease.remaining() == 0
    with pytest.raises(holdfast.LeaseLost, match="expired"):
        lease.ensure_held()
    with pytest.raises(holdfast.LeaseLost, match="expired"):
        lease.release()
    second = others.lock(unique_name).acquire(timeout=30)
    assert second.fencing_token > lease.fencing_token
    second.release()


def test_renewal_finds_out_that_it_was_taken(locks: Any, raw: Any, unique_name: str) -> None:
    lease = locks.lock(unique_name, ttl=3).acquire()
    raw.set(key(unique_name), "a thief's", px=60_000)
    assert lease.lost.wait(30)
    with pytest.raises(holdfast.LeaseLost):
        lease.ensure_held()
    assert raw.get(key(unique_name)) == "a thief's", "what is not ours is left alone"


def test_a_release_finds_out_that_it_was_taken(locks: Any, raw: Any, unique_name: str) -> None:
    lease = locks.lock(unique_name).acquire()
    raw.set(key(unique_name), "a thief's", px=60_000)
    with pytest.raises(holdfast.LeaseLost, match="taken"):
        lease.release()
    assert lease.state.name == "LOST"
    assert raw.get(key(unique_name)) == "a thief's"


def test_with_raises_the_loss_unless_the_body_raises(locks: Any, raw: Any, unique_name: str) -> None:
    with pytest.raises(holdfast.LeaseLost), locks.lock(unique_name):
        raw.delete(key(unique_name))
    with pytest.raises(ZeroDivisionError), locks.lock(unique_name):
        raw.delete(key(unique_name))
        raise ZeroDivisionError


def test_on_lost_is_called_once(locks: Any, raw: Any, unique_name: str) -> None:
    lease = locks.lock(unique_name, ttl=0.3, renew=False).acquire()
    calls: list[Exception] = []
    lease.on_lost(calls.append)
    assert lease.lost.wait(30)
    eventually(lambda: calls)
    assert isinstance(calls[0], holdfast.LeaseLost)
    lease.on_lost(calls.append)  # too late: at once
    eventually(lambda: len(calls) == 2)


def test_a_released_lease_is_not_lost(locks: Any, unique_name: str) -> None:
    lease = locks.lock(unique_name, ttl=0.5).acquire()
    lost = lease.lost
    lease.release()
    assert not lost.wait(0.7)


def test_max_hold(locks: Any, raw: Any, unique_name: str) -> None:
    lease = locks.lock(unique_name, ttl=0.6, max_hold=0.9).acquire()
    assert lease.lost.wait(30)
    with pytest.raises(holdfast.LeaseLost):
        lease.ensure_held()
    eventually(lambda: not raw.exists(key(unique_name)))


def test_others_get_in_when_max_hold_has_ended_a_lease(locks: Any, others: Any, unique_name: str) -> None:
    """The rest of the ttl is for holders that cannot release."""
    _max_hold_ends(locks.lock(unique_name, ttl=60, max_hold=0.2).acquire(), others, unique_name)


def _max_hold_ends(lease: Any, others: Any, name: str) -> None:
    others.lock(name).acquire(timeout=50).release()
    assert lease.lost.reason == "max_hold"
    with pytest.raises(holdfast.LeaseLost):
        lease.release()


#: What `max_hold` ends, too, long before the server would.
ENDING: dict[str, Callable[[Any, str], Any]] = {
    "lock that stays": lambda locks, name: locks.lock(name, ttl=60, max_hold=0.2, cache_for=20),
    "reader": lambda locks, name: locks.rwlock(name, ttl=60, max_hold=0.2).read(),
    "writer": lambda locks, name: locks.rwlock(name, ttl=60, max_hold=0.2).write(),
    "several": lambda locks, name: locks.multilock(name, f"{name}-b", ttl=60, max_hold=0.2),
}


@pytest.mark.parametrize("what", ENDING)
def test_others_get_in_when_max_hold_has_ended_another(locks: Any, others: Any, unique_name: str, what: str) -> None:
    _max_hold_ends(ENDING[what](locks, unique_name).acquire(), others, unique_name)


def test_a_release_that_finds_the_end_of_max_hold_releases(locks: Any, raw: Any, unique_name: str) -> None:
    lease = locks.lock(unique_name, ttl=60, max_hold=0.05).acquire()
    eventually(lambda: not lease.held)
    with pytest.raises(holdfast.LeaseLost):
        lease.release()
    eventually(lambda: not raw.exists(key(unique_name)))


def test_what_is_to_stay_for_longer_than_max_hold_stays(locks: Any, raw: Any, unique_name: str) -> None:
    lease = locks.lock(unique_name, ttl=60, max_hold=0.05, at_least=30).acquire()
    assert lease.lost.wait(30) and lease.lost.reason == "max_hold"
    time.sleep(0.5)
    assert raw.get(key(unique_name)) == lease.token


def test_extend_is_absolute(locks: Any, raw: Any, unique_name: str) -> None:
    lease = locks.lock(unique_name, ttl=20).acquire()
    lease.extend(100)
    lease.extend(timedelta(seconds=100))
    assert 20_000 < raw.pttl(key(unique_name)) <= 100_000
    assert 20 < lease.remaining() < 100
    lease.extend(40)
    assert raw.pttl(key(unique_name)) <= 40_000
    lease.release()


def test_extending_what_was_taken(locks: Any, raw: Any, unique_name: str) -> None:
    lease = locks.lock(unique_name).acquire()
    raw.delete(key(unique_name))
    with pytest.raises(holdfast.LeaseLost):
        lease.extend(10)
    assert not raw.exists(key(unique_name)), "a lost lease is never made again"
    assert lease.state.name == "LOST"


# ---------------------------------------------------------------- servers and clients


def test_scripts_may_be_flushed_at_any_time(locks: Any, raw: Any, unique_name: str) -> None:
    raw.script_flush()
    lease = locks.lock(unique_name, ttl=20).acquire()
    raw.script_flush()
    lease.extend(30)
    raw.script_flush()
    assert locks.lock(unique_name).locked()
    raw.script_flush()
    lease.release()
    assert not raw.exists(key(unique_name))


@pytest.mark.parametrize("options", [{"decode_responses": True}, {"protocol": 2}, {"protocol": 3}], ids=str)
def test_a_brought_client(api: Api, url: str, others: Any, options: dict[str, Any], unique_name: str) -> None:
    locks = api.client(api.redis().Redis.from_url(url, **options))
    lease = locks.lock(unique_name).acquire()
    assert others.lock(unique_name).holder().token == lease.token
    waiting = api.start(others.lock(unique_name).acquire)
    eventually(lambda: locks.lock(unique_name).waiters() == 1)
    lease.release()
    second = waiting.result()
    waiting = api.start(locks.lock(unique_name).acquire)
    eventually(lambda: locks.lock(unique_name).waiters() == 1)
    second.release()
    waiting.result().release()


def test_other_libraries_are_excluded_and_exclude(api: Api, url: str, raw: Any, unique_name: str) -> None:
    locks = api.connect(url, namespace=None)
    theirs = raw.lock(unique_name, timeout=60)
    lease = locks.lock(unique_name).acquire()
    assert not theirs.acquire(blocking=False)
    lease.release()
    assert theirs.acquire(blocking=False)
    assert locks.lock(unique_name).try_acquire() is None
    theirs.release()
    with locks.lock(unique_name):
        assert raw.exists(unique_name)


def test_who_holds_it(locks: Any, others: Any, raw: Any, unique_name: str) -> None:
    assert others.lock(unique_name).holder() is None
    assert not others.lock(unique_name).locked()
    lease = locks.lock(unique_name, ttl=20).acquire()
    holder = eventually(
        lambda: (found := others.lock(unique_name).holder()) is not None and found.host is not None and found
    )
    assert holder.token == lease.token
    assert holder.ours
    assert holder.fencing_token == lease.fencing_token
    assert holder.host == socket.gethostname()
    assert holder.pid == os.getpid()
    assert 0 < holder.remaining_s <= 20
    assert holder.since is not None
    assert str(os.getpid()) in str(holder)
    assert others.lock(unique_name).locked()
    lease.release()
    raw.set(key(unique_name), "an outsider's")
    holder = others.lock(unique_name).holder()
    assert (holder.ours, holder.host, holder.remaining_s, holder.fencing_token) == (False, None, None, None)
    raw.delete(key(unique_name))


def test_closing_releases_and_ends(api: Api, url: str, raw: Any, unique_name: str) -> None:
    with api.connect(url) as locks:
        lease = locks.lock(unique_name).acquire()
    assert not raw.exists(key(unique_name))
    assert (lease.state.name, lease.lost.reason) == ("LOST", "closed")
    with pytest.raises(holdfast.LeaseLost, match="closed"):
        lease.release()
    with pytest.raises(holdfast.ClientClosed):
        locks.lock(unique_name).acquire()
    locks.close()


def test_repr_shows_the_state(locks: Any, unique_name: str) -> None:
    lock = locks.lock(unique_name, ttl=20)
    lease = lock.acquire()
    assert unique_name in repr(lock)
    assert "HELD" in repr(lease) and str(lease.fencing_token) in repr(lease)
    lease.release()
    assert "RELEASED" in repr(lease)
    assert "holdfast" in repr(locks)


def test_nobody_there(api: Api, unique_name: str) -> None:
    port = free_port()
    locks = api.connect(f"redis://127.0.0.1:{port}")
    with pytest.raises(holdfast.ServerUnreachable, match=str(port)):
        locks.lock(unique_name).try_acquire()
    with pytest.raises(holdfast.ServerUnreachable):
        locks.lock(unique_name).acquire(timeout=0.3)


def test_a_wrong_password(api: Api, server: embedded.Server, unique_name: str) -> None:
    locks = api.connect(server.url.replace("redis://", "redis://unknown:wrong@"))
    with pytest.raises(holdfast.ServerError) as caught:
        locks.lock(unique_name).acquire()
    assert caught.value.kind == "WRONGPASS"


def test_a_key_of_another_type(locks: Any, raw: Any, unique_name: str) -> None:
    raw.rpush(key(unique_name), "a list")
    with pytest.raises(holdfast.ServerError, match="WRONGTYPE"):
        locks.lock(unique_name).acquire()
    raw.delete(key(unique_name))


# ---------------------------------------------------------------- bad input

_BAD_TTLS = [0, -1, math.nan, math.inf, 0.0099, 400 * 86_400, "30", None, True, timedelta(0), [30]]
_NOWHERE = "redis://127.0.0.1:1"  # sending anything would fail


@pytest.fixture
def nowhere(api: Api) -> Any:
    return api.connect(_NOWHERE)


@pytest.mark.parametrize("ttl", [value for value in _BAD_TTLS if value is not None], ids=repr)
def test_bad_ttls(api: Api, nowhere: Any, ttl: Any) -> None:
    with pytest.raises(holdfast.ConfigurationError) as caught:
        nowhere.lock("a", ttl=ttl)
    assert caught.value.argument == "ttl"
    assert repr(ttl) in str(caught.value)
    assert "0.01" in caught.value.allowed
    with pytest.raises(holdfast.ConfigurationError):
        api.connect(_NOWHERE, ttl=ttl)
    with pytest.raises(holdfast.ConfigurationError):
        nowhere.lock("a", max_hold=ttl)


@pytest.mark.parametrize("name", ["", None, 5, b"bytes", ["a"], "x" * 1025, "\ud800"], ids=lambda name: repr(name)[:9])
def test_bad_names(nowhere: Any, name: Any) -> None:
    with pytest.raises(holdfast.ConfigurationError) as caught:
        nowhere.lock(name)
    assert caught.value.argument == "name"


@pytest.mark.parametrize("timeout", [-1, -0.001, math.nan, math.inf, "1", True, timedelta(seconds=-1)], ids=repr)
def test_bad_timeouts(nowhere: Any, timeout: Any) -> None:
    with pytest.raises(holdfast.ConfigurationError) as caught:
        nowhere.lock("a").acquire(timeout=timeout)
    assert caught.value.argument == "timeout"


@pytest.mark.parametrize("namespace", ["", 5, "a{b}", b"a"], ids=repr)
def test_bad_namespaces(api: Api, namespace: Any) -> None:
    with pytest.raises(holdfast.ConfigurationError):
        api.connect(_NOWHERE, namespace=namespace)


@pytest.mark.parametrize("url", ["", "nonsense", "http://localhost", 5, "redis://localhost:port"], ids=repr)
def test_bad_urls(api: Api, url: Any) -> None:
    with pytest.raises(holdfast.ConfigurationError):
        api.connect(url)


def test_clients_of_the_wrong_kind(api: Api) -> None:
    import redis
    import redis.asyncio

    wrong = redis.asyncio.Redis() if api.name == "threads" else redis.Redis()
    for client in (wrong, None, "redis://localhost", 5, object()):
        with pytest.raises(holdfast.ConfigurationError) as caught:
            api.client(client)
        assert caught.value.argument == "redis_client"


def test_errors_survive_pickling() -> None:
    errors: list[holdfast.HoldfastError] = [
        holdfast.AcquireTimeout("a", 1.5, holdfast.Holder("tok", False, None, None, None)),
        holdfast.ConfigurationError("ttl", object(), "more"),
        holdfast.LeaseLost("a", "taken"),
        holdfast.ServerError("n", "OOM", "OOM no", "buy"),
        holdfast.ClientClosed(),
    ]
    for error in errors:
        error.add_note("meanwhile")
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error)
        assert str(again) == str(error)
        fields = {name: value for name, value in vars(error).items() if name != "value"}
        assert {name: vars(again)[name] for name in fields} == fields


def test_status(locks: Any, others: Any, unique_name: str) -> None:
    lock = locks.lock(unique_name, ttl=30)
    assert lock.status() == holdfast.LockStatus(unique_name, None, 0, lock.status().fencing_token)
    assert (lock.status().held, lock.status().since, lock.status().remaining_s) == (False, None, None)
    lease = lock.acquire()
    status = others.lock(unique_name).status()
    assert status.held and status.holder.ours and status.holder.token == lease.token
    assert status.fencing_token == status.holder.fencing_token == lease.fencing_token
    assert 0 < status.remaining_s <= 30
    assert status.since is not None
    assert status.since == others.lock(unique_name).holder().since
    with pytest.raises(AttributeError):
        status.waiters = 1
    lease.release()
    assert not lock.status().held
    assert lock.status().fencing_token == lease.fencing_token

"""Leases that end soon after their client has gone, where it is the server that decides that."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import AcquireTimeout, ConfigurationError, LeaseLost, LeaseState, LeaseSuspect
from testbed.waiting import eventually
from tests.contract.test_list import listed
from tests.support.apis import Api

TTL_S = 600


def key(name: str, part: str = "") -> str:
    return f"holdfast:{{{name}}}{part}"


def note(raw: Any, name: str) -> list[str]:
    """Return what is noted of the holder: alive or gone, the run of the server, the token, and since which ms."""
    return (raw.get(key(name, ":fence:crash")) or "").split(" ")


def crashed(raw: Any, name: str) -> str:
    """Let the lock be held by a client that was there, and is not any more; returns its token."""
    token = f"{'0' * 24}:1:1!300"
    raw.set(key(name), token, px=TTL_S * 1000)
    run = raw.info("replication")["master_replid"]
    raw.set(key(name, ":fence:crash"), f"alive {run} {token}", px=TTL_S * 1000)
    return token


def test_a_client_that_has_gone_is_marked_and_then_replaced(locks: Any, raw: Any, unique_name: str) -> None:
    token = crashed(raw, unique_name)
    assert locks.lock(unique_name).try_acquire() is None
    state, run, marked, since = note(raw, unique_name)
    assert (state, run, marked) == ("gone", raw.info("replication")["master_replid"], token)
    assert 0 < raw.pttl(key(unique_name, ":fence:crash")) <= TTL_S * 1000
    raw.set(key(unique_name, ":fence:crash"), f"gone {run} {token} {int(since) - 1000}", px=TTL_S * 1000)
    lease = locks.lock(unique_name).try_acquire()
    assert lease is not None and raw.get(key(unique_name)) == lease.token
    assert note(raw, unique_name) == [""]
    lease.release()


def test_who_lists_it_sees_that_its_client_has_gone(api: Api, locks: Any, raw: Any, unique_name: str) -> None:
    token = crashed(raw, unique_name)
    (before,) = listed(api, locks, unique_name).values()
    assert (before.holder.gone, before.holder.remaining_s > 60) == (False, True)
    assert locks.lock(unique_name).try_acquire() is None
    (after,) = listed(api, locks, unique_name).values()
    assert (after.holder.token, after.holder.gone) == (token, True)
    assert after.holder.remaining_s <= 0.303 and "its client has gone" in str(after.holder)


def test_who_waits_is_the_next_one_in_the_queue(locks: Any, others: Any, raw: Any, api: Api, unique_name: str) -> None:
    crashed(raw, unique_name)
    first = api.start(locks.lock(unique_name).acquire)
    eventually(lambda: raw.zcard(key(unique_name, ":queue")) == 1)
    second = api.start(others.lock(unique_name).acquire)
    lease = first.result(60)
    lease.release()
    again = second.result(60)
    assert again.fencing_token > lease.fencing_token
    again.release()


@pytest.mark.parametrize("what", ["no note", "another run", "another token", "a mark of another run", "an odd note"])
def test_without_a_note_of_this_run_the_ttl_decides(locks: Any, raw: Any, what: str, unique_name: str) -> None:
    token = crashed(raw, unique_name)
    run = note(raw, unique_name)[1]
    notes = {
        "another run": f"alive {'0' * 40} {token}",
        "another token": f"alive {run} {token}0",
        "a mark of another run": f"gone {'0' * 40} {token} 1000",
        "an odd note": f"gone {run} {token}",
    }
    if what == "no note":
        raw.delete(key(unique_name, ":fence:crash"))
    else:
        raw.set(key(unique_name, ":fence:crash"), notes[what], px=TTL_S * 1000)
    before = note(raw, unique_name)
    with pytest.raises(AcquireTimeout):
        locks.lock(unique_name).acquire(timeout=0.7)
    assert raw.get(key(unique_name)) == token
    assert note(raw, unique_name) == before


def test_a_renewal_takes_a_mark_back(locks: Any, others: Any, raw: Any, unique_name: str) -> None:
    lease = locks.lock(unique_name, ttl=TTL_S, crash_release=0.3).acquire()
    state, run, token = note(raw, unique_name)
    assert (state, token) == ("alive", lease.token)
    raw.set(key(unique_name, ":fence:crash"), f"gone {run} {token} 1000", px=TTL_S * 1000)
    assert others.lock(unique_name).try_acquire() is None  # its client is there
    lease.check()
    assert note(raw, unique_name)[0] == "alive"
    raw.set(key(unique_name, ":fence:crash"), f"gone {run} {token} 1000", px=TTL_S * 1000)
    eventually(lambda: note(raw, unique_name)[0] == "alive")  # by itself
    assert lease.state is LeaseState.HELD
    assert 0 < lease.remaining() < 0.3
    lease.release()


def test_it_is_held_past_many_times_its_crash_release(locks: Any, others: Any, raw: Any, unique_name: str) -> None:
    """Also with `max_hold`, of which nothing is left to ask for; and after an extension."""
    lease = locks.lock(unique_name, ttl=2, crash_release=0.3, max_hold=300).acquire()
    lease.extend(TTL_S)
    with pytest.raises(AcquireTimeout):
        others.lock(unique_name).acquire(timeout=1.5)
    lease.ensure_held()
    assert lease.held and raw.pttl(key(unique_name)) < 300_000
    lease.release()


def test_connections_that_are_closed_cost_nothing(
    locks: Any, others: Any, raw: Any, api: Api, unique_name: str
) -> None:
    """The client is back, and renews, before others count it as gone."""
    lease = locks.lock(unique_name, ttl=TTL_S, crash_release=1).acquire()
    waiting = api.start(others.lock(unique_name).acquire)
    eventually(lambda: raw.zcard(key(unique_name, ":queue")) == 1)
    channel = f"holdfast:inbox:{lease.token.partition(':')[0]}"
    for _ in range(3):
        raw.client_kill_filter(_type="pubsub")
        raw.client_kill_filter(_type="normal")
        eventually(lambda: raw.pubsub_numsub(channel)[0][1] == 1)
        lease.check()
    assert raw.get(key(unique_name)) == lease.token
    lease.release()
    waiting.result(60).release()


def test_a_key_that_was_deleted_is_found_out_soon(locks: Any, raw: Any, unique_name: str) -> None:
    lease = locks.lock(unique_name, ttl=TTL_S, crash_release=0.3).acquire()
    lost = lease.lost
    raw.delete(key(unique_name))
    assert lost.wait(30) is not None
    with pytest.raises(LeaseLost, match="taken"):
        lease.ensure_held()


def test_it_is_a_default_of_the_client_for_locks_alone(api: Api, url: str, raw: Any, unique_name: str) -> None:
    locks = api.connect(url, crash_release=1)
    lease = locks.lock(unique_name).acquire()
    assert lease.token.endswith("!1000")
    lease.release()
    for other in (
        locks.lock(unique_name, crash_release=0),
        locks.rwlock(unique_name).write(),
        locks.semaphore(unique_name, permits=1),
        locks.multilock(unique_name),
    ):
        lease = other.acquire()
        assert "!" not in lease.token
        lease.release()
    lease = locks.election(unique_name).campaign()
    assert "!" not in lease.token
    lease.release()


@pytest.mark.parametrize(
    "options",
    [
        {"crash_release": 0.2},
        {"crash_release": 1, "ttl": 1.9},
        {"crash_release": "1"},
        {"crash_release": 1, "renew": False},
        {"crash_release": 1, "at_least": 5},
        {"crash_release": 1, "cache_for": 5},
    ],
)
def test_what_makes_no_sense_is_refused(locks: Any, options: Any, unique_name: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        locks.lock(unique_name, **options)
    assert refused.value.argument == "crash_release"


@pytest.mark.parametrize("kind", ["rwlock", "semaphore", "multilock", "election"])
def test_other_kinds_refuse_it(locks: Any, kind: str, unique_name: str) -> None:
    with pytest.raises(ConfigurationError, match="only what lock"):
        getattr(locks, kind)(unique_name, crash_release=1)


def test_it_is_not_handed_to_another_process(locks: Any, unique_name: str) -> None:
    lease = locks.lock(unique_name, crash_release=1).acquire()
    with pytest.raises(ConfigurationError, match="crash_release"):
        lease.handle()
    lease.ensure_held()
    lease.release()


def test_a_user_who_cannot_learn_the_run_of_the_server_is_refused(
    api: Api, server: Any, raw: Any, unique_name: str
) -> None:
    raw.execute_command("ACL", "SETUSER", unique_name, "on", ">secret", "~*", "&*", "+@all", "-info")
    try:
        locks = api.connect(server.url.replace("redis://", f"redis://{unique_name}:secret@"))
        with pytest.raises(ConfigurationError, match="in which run of it"):
            locks.lock(unique_name, crash_release=1).acquire(timeout=20)
        assert not raw.exists(key(unique_name))
        locks.lock(unique_name).acquire().release()
        # As a waiter it cannot tell, either.
        token = crashed(raw, unique_name)
        with pytest.raises(AcquireTimeout):
            locks.lock(unique_name).acquire(timeout=0.7)
        assert raw.get(key(unique_name)) == token
        locks.close()
    finally:
        raw.execute_command("ACL", "DELUSER", unique_name)


def test_a_server_that_hangs_makes_it_suspect_and_no_more(
    api: Api, private_server: Any, server_kind: Any, unique_name: str
) -> None:
    server = private_server(server_kind)
    locks = api.connect(server.url)
    lease = locks.lock(unique_name, ttl=TTL_S, crash_release=0.5).acquire()
    lost = lease.lost
    server.pause()
    eventually(lambda: not lease.held)
    assert (lease.state, lease.remaining()) == (LeaseState.SUSPECT, 0.0)
    with pytest.raises(LeaseSuspect, match=unique_name):
        lease.ensure_held()
    server.resume()
    eventually(lambda: lease.held)
    assert lease.state is LeaseState.HELD and not lost.is_set()
    lease.release()
    locks.close()

"""A lease that is checked on the server; and what a thread or task holds."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import LeaseLost, LeaseReleased, LeaseState
from holdfast._runtime.clock import clock
from testbed.proxy import Proxy
from tests.support.apis import Actor, Api

KINDS = {
    "lock": lambda locks, name: locks.lock(name),
    "kept": lambda locks, name: locks.lock(name, cache_for=1),
    "read": lambda locks, name: locks.rwlock(name).read(),
    "write": lambda locks, name: locks.rwlock(name).write(),
    "semaphore": lambda locks, name: locks.semaphore(name, permits=2),
    "multilock": lambda locks, name: locks.multilock(name, f"{name}-too"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_lease_that_stands_is_renewed_by_a_check(locks: Any, kind: str, unique_name: str) -> None:
    lease = KINDS[kind](locks, unique_name).acquire()
    before = lease._record.deadline
    assert lease.check() is None
    assert lease.held and lease._record.deadline > before
    lease.release()
    with pytest.raises(LeaseReleased):
        lease.check()


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_server_has_forgotten_is_lost_at_once(locks: Any, raw: Any, kind: str, unique_name: str) -> None:
    lease = KINDS[kind](locks, unique_name).acquire()
    lost = lease.lost
    raw.delete(*raw.scan_iter(f"*{unique_name}*", count=10_000))
    lease.ensure_held()  # which does not see it
    with pytest.raises(LeaseLost, match="taken"):
        lease.check()
    assert lease.state is LeaseState.LOST
    assert lost.wait(10) is not None


def test_a_lease_that_is_not_renewed_is_not_made_longer(locks: Any, raw: Any, unique_name: str) -> None:
    lease = locks.lock(unique_name, ttl=60, renew=False).acquire()
    raw.pexpire(f"holdfast:{{{unique_name}}}", 30_000)
    until = lease._record.deadline
    lease.check()
    assert lease._record.deadline == until
    assert raw.pttl(f"holdfast:{{{unique_name}}}") <= 30_000
    lease.release()


def test_a_check_counts_from_before_it_was_sent(api: Api, wire: Proxy, unique_name: str) -> None:
    lease = api.connect(wire.url).lock(unique_name, ttl=60).acquire()
    wire.slow(0.2)
    lease.check()
    wire.slow(0)
    # The way there and back took 0.4 s at least; 60 s are 59.4 s with clocks that differ.
    assert lease._record.deadline <= clock() - 0.4 + 59.4
    lease.release()


def test_an_answer_that_comes_too_late_is_not_believed(api: Api, wire: Proxy, unique_name: str) -> None:
    lease = api.connect(wire.url).lock(unique_name, ttl=60).acquire()
    wire.slow(0.3)
    lease._record.deadline = clock() + 0.4  # as if no renewal had come through
    with pytest.raises(LeaseLost, match="expired"):
        lease.check()
    wire.slow(0)


def test_the_answer_may_take_long_where_nothing_renews(api: Api, wire: Proxy, unique_name: str) -> None:
    lease = api.connect(wire.url).lock(unique_name, ttl=60, renew=False).acquire()
    wire.slow(0.1)
    lease.check()
    wire.slow(0)
    lease.release()


def test_a_check_does_not_pass_max_hold(locks: Any, raw: Any, unique_name: str) -> None:
    lease = locks.lock(unique_name, ttl=60, max_hold=20).acquire()
    lease.check()
    assert lease.remaining() <= 20
    lease.release()


def test_what_is_held_is_that_of_the_one_who_asks(locks: Any, api: Api, unique_name: str) -> None:
    me, other = api.actor(), api.actor()

    def names(actor: Actor) -> list[str]:
        return sorted(lease.name for lease in actor.ask(locks, "held"))

    assert names(me) == []
    lock = locks.lock(unique_name, reentrant=True)
    one, again = me.ask(lock, "acquire"), me.ask(lock, "acquire")
    several = me.ask(locks.multilock(f"{unique_name}-1", f"{unique_name}-2"), "acquire")
    reader = me.ask(locks.rwlock(f"{unique_name}-3").read(), "acquire")
    assert names(me) == sorted([one.name, several.name, reader.name])
    assert names(other) == []
    for lease in (several, reader, again):
        lease.release()
    assert names(me) == [unique_name]
    one.release()
    assert names(me) == []
    brief = me.ask(locks.lock(f"{unique_name}-4", ttl=0.05, renew=False), "acquire")
    assert brief.lost.wait(10)
    assert names(me) == []  # what is lost is not held

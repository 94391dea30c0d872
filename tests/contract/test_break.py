"""`break_` and `ask`: a lease is taken away from its holder, or asked for, by another client."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

import pytest

import holdfast.asyncio
from holdfast.errors import AcquireTimeout, ConfigurationError, LeaseLost
from testbed.waiting import PATIENCE_S, eventually
from tests.support.apis import Api

#: Leases that last: what ends them is the break.
TTL_S = 600.0
#: A holder that listens is told within some ms (`python -m bench.told` measures it); a busy machine may take this long.
TOLD_WITHIN_S = 5.0


def lost_for(lease: Any) -> str:
    """Why it was lost, which comes soon."""
    assert lease.lost.wait(PATIENCE_S)
    with pytest.raises(LeaseLost) as caught:
        lease.ensure_held()
    assert caught.value.reason == lease.lost.reason
    return str(lease.lost.reason)


def test_the_holder_hears_and_the_next_waiter_gets_it(locks: Any, others: Any, api: Api, unique_name: str) -> None:
    lease = locks.lock(unique_name, ttl=TTL_S).acquire()
    waiting = api.start(others.lock(unique_name, ttl=TTL_S).acquire, PATIENCE_S)
    eventually(lambda: locks.lock(unique_name).waiters() == 1)
    eventually(lambda: bool(others.ask(unique_name)))  # it listens
    began_at = time.monotonic()
    broken = others.break_(unique_name, reason="stuck since noon")
    reason = lost_for(lease)
    assert time.monotonic() - began_at < TOLD_WITHIN_S
    assert reason.startswith("broken by ") and reason.endswith(f", pid {os.getpid()}: stuck since noon")
    (holder,) = broken.holders
    assert (broken.kind, holder.token, holder.fencing_token) == ("lock", lease.token, lease.fencing_token)
    assert not broken.forced
    following = waiting.result()
    assert following.fencing_token > lease.fencing_token
    assert following.held
    following.release()


def test_repeated_it_breaks_no_one_else(locks: Any, others: Any, unique_name: str) -> None:
    lease = locks.lock(unique_name, ttl=TTL_S).acquire()
    (holder,) = others.break_(unique_name).holders
    lost_for(lease)
    free = others.break_(unique_name, holder=holder)
    assert (bool(free), free.kind, free.found) == (False, None, ())
    following = others.lock(unique_name, ttl=TTL_S).acquire()
    for named in (holder, holder.token, holder.fencing_token):
        again = locks.break_(unique_name, holder=named)
        assert not again and again.kind == "lock"
        assert [each.token for each in again.found] == [following.token]
    assert following.held
    assert locks.break_(unique_name, holder=following.fencing_token)
    lost_for(following)


def test_a_reader_a_writer_and_all_readers(locks: Any, others: Any, api: Api, unique_name: str) -> None:
    actors = [api.actor() for _ in range(3)]
    rwlock = locks.rwlock(unique_name, ttl=TTL_S)
    readers = [actor.ask(rwlock.read(), "acquire") for actor in actors]
    assert [each.token for each in others.break_(unique_name, holder=readers[1].token).holders] == [readers[1].token]
    lost_for(readers[1])
    assert readers[0].held and readers[2].held
    assert len(others.break_(unique_name, kind="rwlock").holders) == 2
    assert lost_for(readers[0]) and lost_for(readers[2])
    writer = rwlock.write().acquire(PATIENCE_S)
    assert others.break_(unique_name)
    lost_for(writer)
    assert not others.lock(unique_name).locked()


def test_a_reader_that_has_become_the_writer(locks: Any, others: Any, unique_name: str) -> None:
    reader = locks.rwlock(unique_name, ttl=TTL_S).read().acquire()
    writer = reader.upgrade()
    assert others.break_(unique_name)
    assert lost_for(writer) and lost_for(reader)
    assert not others.lock(unique_name).locked()


def test_one_holder_of_permits(locks: Any, others: Any, unique_name: str) -> None:
    semaphore = locks.semaphore(unique_name, 3, ttl=TTL_S)
    first, second = semaphore.acquire(permits=2), semaphore.acquire()
    assert others.break_(unique_name, holder=first.token).kind == "semaphore"
    lost_for(first)
    assert second.held
    assert others.semaphore(unique_name, 3).status().available == 2
    second.release()


def test_an_election(locks: Any, others: Any, unique_name: str) -> None:
    lease = locks.election(unique_name, ttl=TTL_S).campaign()
    assert others.break_(unique_name, kind="election").kind == "election"
    lost_for(lease)
    assert others.election(unique_name).leader() is None


def test_of_several_locks_all_are_lost(locks: Any, others: Any, unique_name: str) -> None:
    names = [f"{unique_name}-{number}" for number in range(3)]
    lease = locks.multilock(*names, ttl=TTL_S).acquire()
    assert others.break_(names[1])
    lost_for(lease)
    eventually(lambda: not any(others.lock(name).locked() for name in names))


def test_a_name_that_is_held_as_several_things(locks: Any, others: Any, unique_name: str) -> None:
    lease, permit = locks.lock(unique_name, ttl=TTL_S).acquire(), locks.semaphore(unique_name, 1, ttl=TTL_S).acquire()
    with pytest.raises(ConfigurationError, match="lock, semaphore"):
        others.break_(unique_name)
    assert others.break_(unique_name, kind="semaphore")
    lost_for(permit)
    assert lease.held
    assert others.break_(unique_name).kind == "lock"


def test_what_is_no_lock(others: Any, unique_name: str) -> None:
    nothing = others.break_(unique_name)
    assert (bool(nothing), nothing.kind, nothing.holders, nothing.found) == (False, None, (), ())


def test_the_holder_of_another_library(others: Any, raw: Any, unique_name: str) -> None:
    key = f"holdfast:{{{unique_name}}}"
    raw.set(key, "theirs", px=600_000)
    broken = others.break_(unique_name, holder="theirs")
    assert [each.token for each in broken.forced] == ["theirs"]
    assert raw.get(key) is None


def test_the_same_holder_hears_of_it_without_the_message(
    locks: Any, others: Any, raw: Any, api: Api, unique_name: str
) -> None:
    """A holder that was not told (its connection was gone, it was stopped) finds out when it renews."""
    lease = locks.lock(unique_name, ttl=1.0).acquire()
    client_id = lease.token.partition(":")[0]
    raw.set(f"holdfast:{{{unique_name}}}:broken:{lease.token}", "them on db1, pid 7: because", px=60_000)
    raw.delete(f"holdfast:{{{unique_name}}}")
    assert lost_for(lease) == "broken by them on db1, pid 7: because"
    assert raw.pubsub_numsub(f"holdfast:inbox:{client_id}")[0][1] in (0, 1)


@pytest.mark.parametrize(
    ("argument", "value"),
    [("kind", "mutex"), ("holder", True), ("holder", 1.5), ("reason", "two\nlines"), ("reason", None), ("grace", -1)],
)
def test_what_is_refused(others: Any, unique_name: str, argument: str, value: object) -> None:
    with pytest.raises(ConfigurationError) as caught:
        others.break_(unique_name, **{argument: value})
    assert caught.value.argument == argument


def test_who_is_asked_is_told_and_keeps_it(locks: Any, others: Any, api: Api, unique_name: str) -> None:
    told: list[Any] = []
    lease = locks.lock(unique_name, ttl=TTL_S, on_wanted=told.append).acquire()
    assert not lease.wanted.is_set() and lease.wanted.reason is None
    eventually(lambda: bool(others.ask(unique_name, reason="a deploy")))  # after a tenth of a second it listens
    assert lease.wanted.wait(PATIENCE_S)
    assert str(lease.wanted.reason).endswith(f", pid {os.getpid()}: a deploy")
    eventually(lambda: len(told) == 1)
    lease.on_wanted(told.append)
    eventually(lambda: len(told) == 2)
    assert [each.name for each in told] == [unique_name] * 2
    assert others.ask(unique_name, holder=lease.token)
    assert lease.held
    lease.release()
    assert not others.ask(unique_name)


def test_who_is_asked_after_it_has_waited_for_a_condition_is_told(
    locks: Any, others: Any, api: Api, unique_name: str
) -> None:
    told: list[Any] = []
    lock = locks.lock(unique_name, ttl=TTL_S, on_wanted=told.append)
    condition = locks.condition(getattr(lock, "_target", lock))
    actor = api.actor()
    actor.enter(lock)
    assert actor.ask(condition, "wait", 0.05) is False
    eventually(lambda: bool(others.ask(unique_name)))
    eventually(lambda: len(told) == 1)
    actor.leave(lock)


def test_what_is_asked_for_first_is_known_later(locks: Any, others: Any, unique_name: str) -> None:
    lease = locks.lock(unique_name, ttl=TTL_S).acquire()
    eventually(lambda: bool(others.ask(unique_name, reason="early")))
    eventually(lambda: lease.wanted.is_set())
    assert "early" in lease.wanted.reason
    lease.release()


def test_an_extension_finds_out_who_broke_it(locks: Any, others: Any, raw: Any, unique_name: str) -> None:
    lease = locks.lock(unique_name, ttl=TTL_S).acquire()
    raw.set(f"holdfast:{{{unique_name}}}:broken:{lease.token}", "them on db1, pid 7", px=60_000)
    raw.delete(f"holdfast:{{{unique_name}}}")
    with pytest.raises(LeaseLost, match="broken by them on db1, pid 7"):
        lease.extend(5)


def test_who_waited_in_vain_is_told_for_whom(locks: Any, others: Any, unique_name: str) -> None:
    lease = locks.lock(unique_name, ttl=TTL_S).acquire()
    with pytest.raises(AcquireTimeout) as caught:
        others.lock(unique_name).acquire(timeout=0.05)
    holder = caught.value.holder
    assert holder is not None
    assert (holder.token, holder.fencing_token, holder.pid) == (lease.token, lease.fencing_token, os.getpid())
    assert f", pid {os.getpid()} (" in str(caught.value) and " since " in str(caught.value)
    lease.release()


def test_a_waiter_that_never_held_anything_says_who_it_is(locks: Any, api: Api, url: str, unique_name: str) -> None:
    lease = locks.lock(unique_name, ttl=TTL_S).acquire()
    newcomer = api.connect(url)
    waiting = api.start(newcomer.lock(unique_name).acquire, PATIENCE_S)
    eventually(lambda: locks.lock(unique_name).waiters() == 1)

    def waiter() -> Any:
        found = locks.list(unique_name)
        listed = list(found) if api.name == "threads" else api.call(collected, found)  # type: ignore[attr-defined]
        (one,) = listed
        return one.queue[0].pid

    eventually(lambda: waiter() == os.getpid())
    lease.release()
    waiting.result().release()


async def collected(found: Any) -> list[Any]:
    return [each async for each in found]


def test_a_body_is_cancelled(server: Any, unique_name: str) -> None:
    """With asyncio, before the next one begins."""

    async def main() -> None:
        async with holdfast.asyncio.connect(server.url) as locks, holdfast.asyncio.connect(server.url) as others:
            began, ended = asyncio.Event(), asyncio.Event()

            async def body() -> None:
                async with locks.lock(unique_name, ttl=TTL_S):
                    try:
                        began.set()
                        await asyncio.sleep(PATIENCE_S * 2)
                    finally:
                        ended.set()

            task = asyncio.create_task(body())
            await began.wait()
            broken = await others.break_(unique_name, reason="stuck", grace=PATIENCE_S)
            assert broken and not broken.forced and ended.is_set()
            with pytest.raises(LeaseLost, match="stuck"):
                await task

    asyncio.run(main())


def test_a_holder_whose_inbox_could_not_be_opened_again_hears(
    api: Api, near: Any, far: Any, wire: Any, unique_name: str
) -> None:
    """After its server was away for a while, a holder listens again by itself, before it would have to renew."""
    lease = near.lock(unique_name, ttl=9.0).acquire()
    eventually(lambda: bool(far.ask(unique_name)))
    wire.refuse()
    wire.cut()
    eventually(lambda: wire.refused)
    wire.heal()
    eventually(lambda: bool(far.ask(unique_name, holder=lease.token)))
    assert not far.break_(unique_name, grace=PATIENCE_S).forced
    assert lost_for(lease)

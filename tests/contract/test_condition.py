"""What the condition promises, whichever API and server."""

from __future__ import annotations

from typing import Any

import pytest

import holdfast
from testbed.waiting import eventually
from tests.support.apis import Actor, Api


def key(name: str, part: str = "") -> str:
    return f"holdfast:{{{name}}}{part}"


def cond(name: str) -> str:
    return key(name, ":cond:default")


def leftovers(raw: Any, name: str) -> set[str]:
    kept = {key(name, ":fence"), key(name, ":gone"), f"{cond(name)}:last"}
    return set(raw.scan_iter(f"holdfast:{{{name}}}*")) - kept


class Party:
    """A client with one thread or task, and the lock and condition of a test."""

    def __init__(self, api: Api, url: str, name: str, **options: Any) -> None:
        self.client = api.connect(url)
        self.lock = self.client.lock(name, **options)
        self.actor: Actor = api.actor()
        if api.name == "asyncio":
            self.condition = self.client.condition(self.lock._target)
        else:
            self.condition = self.client.condition(self.lock)

    def enter(self) -> Any:
        return self.actor.enter(self.lock)

    def leave(self) -> None:
        self.actor.leave(self.lock)

    def wait(self, *args: Any, **options: Any) -> Any:
        return self.actor.tell(self.condition, "wait", *args, **options)

    def notify(self, *args: Any) -> Any:
        return self.actor.ask(self.condition, "notify", *args)


@pytest.fixture
def party(api: Api, url: str, unique_name: str) -> Any:
    return lambda **options: Party(api, url, unique_name, **options)


def test_wait_lets_go_and_notify_brings_back(party: Any, raw: Any, unique_name: str) -> None:
    one, two = party(), party()
    lease = one.enter()
    before = lease.fencing_token
    waiting = one.wait()
    eventually(lambda: raw.zcard(cond(unique_name)) == 1)
    other = two.enter()
    assert lease.state.name == "RELEASED"
    assert two.notify() == 1
    assert raw.zcard(cond(unique_name)) == 0 and raw.zcard(key(unique_name, ":queue")) == 1
    assert not waiting.done(), "the lock is still the other's"
    two.leave()
    assert waiting.result() is True
    assert lease.state.name == "HELD"
    assert lease.fencing_token > other.fencing_token > before
    assert raw.get(key(unique_name)) == lease.token
    one.leave()
    assert leftovers(raw, unique_name) == set()


def test_what_is_held_again_has_the_options_of_the_lock(party: Any) -> None:
    one = party(max_hold=10, at_least=0.01)
    lease = one.enter()
    assert one.wait(timeout=0.5).result() is False  # on a busy machine, too, it hears in time that it is listened to
    assert 0 < lease.remaining() <= 10
    one.leave()


def test_a_wait_that_is_over_is_not_kept_by_a_client_that_has_gone(party: Any, raw: Any, unique_name: str) -> None:
    """As any waiter for the lock, whose holder has `crash_release`."""
    one = party()
    one.enter()
    waiting = one.wait(timeout=0.5)
    eventually(lambda: raw.zcard(cond(unique_name)) == 1)
    token, run = f"{'0' * 24}:1:1!300", raw.info("replication")["master_replid"]
    raw.set(key(unique_name, ":fence:crash"), f"alive {run} {token}", px=600_000)
    raw.set(key(unique_name), token, px=600_000)
    assert waiting.result(60) is False
    one.leave()


def test_notify_all_moves_all_in_their_order(party: Any, raw: Any, unique_name: str) -> None:
    order: list[int] = []
    waiters = [party() for _ in range(4)]
    waiting = []
    for number, each in enumerate(waiters):
        each.enter()
        waiting.append(each.wait())
        eventually(lambda: raw.zcard(cond(unique_name)) == len(waiting))
        waiting[-1].add_done_callback(lambda _, number=number: order.append(number))
    caller = party()
    caller.enter()
    tokens = raw.zrange(cond(unique_name), 0, -1)
    assert caller.actor.ask(caller.condition, "notify_all") == 4
    assert raw.zrange(key(unique_name, ":queue"), 0, -1) == tokens, "moved, and still in their order"
    caller.leave()
    for number, each in enumerate(waiters):
        assert waiting[number].result() is True
        eventually(lambda number=number: order == list(range(number + 1)))  # type: ignore[misc]
        each.leave()
    assert leftovers(raw, unique_name) == set()


def test_notify_moves_as_many_as_asked(party: Any, raw: Any, unique_name: str) -> None:
    waiters = [party() for _ in range(3)]
    waiting = []
    for each in waiters:
        each.enter()
        waiting.append(each.wait())
        eventually(lambda: raw.zcard(cond(unique_name)) == len(waiting))
    caller = party()
    caller.enter()
    assert caller.notify(2) == 2
    assert raw.zcard(cond(unique_name)) == 1
    caller.leave()
    for number in (0, 1):
        assert waiting[number].result() is True
        waiters[number].leave()
    assert not waiting[2].done()
    caller.enter()
    assert caller.notify(5) == 1
    assert caller.notify() == 0
    caller.leave()
    assert waiting[2].result() is True
    waiters[2].leave()


def test_only_the_holder_may_call(party: Any, unique_name: str) -> None:
    one, two = party(), party()
    with pytest.raises(holdfast.NotHeld, match="wait"):
        one.wait().result()
    with pytest.raises(holdfast.NotHeld, match="notify"):
        one.notify()
    two.enter()
    with pytest.raises(holdfast.NotHeld):
        one.wait().result()
    two.leave()


def test_a_holder_that_lost_it_may_not_either(party: Any, raw: Any, unique_name: str) -> None:
    one = party()
    lease = one.actor.ask(one.lock, "acquire")
    raw.set(key(unique_name), "a thief's", px=60_000)
    with pytest.raises(holdfast.LeaseLost):
        one.wait().result()
    with pytest.raises(holdfast.NotHeld):
        one.notify()
    assert lease.state.name == "LOST"
    assert raw.get(key(unique_name)) == "a thief's"
    assert raw.zcard(cond(unique_name)) == 0


def test_out_of_time_it_holds_the_lock_again(party: Any, raw: Any, unique_name: str) -> None:
    one, two = party(), party()
    lease = one.enter()
    assert one.wait(0.1).result() is False
    lease.ensure_held()
    waiting = one.wait(1.0)
    two.enter()  # it has to wait for us to come back
    eventually(lambda: raw.zcard(key(unique_name, ":queue")) == 1)
    assert not waiting.done()
    two.leave()
    assert waiting.result() is False
    assert raw.get(key(unique_name)) == lease.token
    one.leave()
    assert leftovers(raw, unique_name) == set()


def test_a_notification_is_not_spent_on_the_dead(party: Any, raw: Any, unique_name: str) -> None:
    one, two = party(), party()
    one.enter()
    waiting = one.wait()
    eventually(lambda: raw.zcard(cond(unique_name)) == 1)
    raw.zadd(cond(unique_name), {"0" * 24 + ":1:1": 1})  # it came first, and its process is gone
    two.enter()
    assert two.notify() == 1
    two.leave()
    assert waiting.result() is True
    one.leave()


def test_wait_for(party: Any, raw: Any, unique_name: str) -> None:
    one, two = party(), party()
    things: list[int] = []
    one.enter()
    waiting = one.actor.tell(one.condition, "wait_for", lambda: len(things) >= 2 and things)
    for number in range(2):
        eventually(lambda: raw.zcard(cond(unique_name)) == 1)
        two.enter()
        things.append(number)
        two.notify()
        two.leave()
    assert waiting.result() == [0, 1]
    assert one.actor.ask(one.condition, "wait_for", lambda: 0, timeout=0.1) == 0
    one.leave()


def test_data_loss_ends_the_wait(party: Any, raw: Any, unique_name: str) -> None:
    one = party()
    lease = one.enter()
    waiting = one.wait()
    eventually(lambda: raw.zcard(cond(unique_name)) == 1)
    raw.delete(cond(unique_name))
    raw.client_kill_filter(_type="pubsub")  # so that it looks at once, and not at its next turn
    assert waiting.result() is True, "as if notified: a wait may end without"
    lease.ensure_held()
    one.leave()


def test_a_wait_survives_the_loss_of_its_inbox(party: Any, raw: Any, unique_name: str) -> None:
    one, two = party(), party()
    one.enter()
    waiting = one.wait()
    ((token, score),) = eventually(lambda: raw.zrange(cond(unique_name), 0, -1, withscores=True))
    raw.client_kill_filter(_type="pubsub")
    channel = f"holdfast:inbox:{token.partition(':')[0]}"
    eventually(lambda: raw.pubsub_numsub(channel)[0][1] == 1)
    assert raw.zscore(cond(unique_name), token) == score
    two.enter()
    assert two.notify() == 1
    two.leave()
    assert waiting.result() is True
    one.leave()


def test_conditions_have_names(locks: Any, api: Api, raw: Any, unique_name: str) -> None:
    lock = locks.lock(unique_name)
    inner = getattr(lock, "_target", lock)
    full, empty = locks.condition(inner, "full"), locks.condition(inner, "empty")
    actor = api.actor()
    actor.enter(lock)
    assert actor.ask(full, "notify") == 0
    waiting = actor.tell(empty, "wait", timeout=0.1)
    assert waiting.result() is False
    actor.leave(lock)
    with pytest.raises(holdfast.ConfigurationError):
        locks.condition(inner, "")
    with pytest.raises(holdfast.ConfigurationError):
        locks.condition("a lock")


def test_reentrant_locks_are_let_go_wholly(locks: Any, others: Any, api: Api, raw: Any, unique_name: str) -> None:
    lock = locks.lock(unique_name, reentrant=True)
    condition = locks.condition(getattr(lock, "_target", lock))
    actor = api.actor()
    actor.enter(lock)
    actor.enter(lock)
    waiting = actor.tell(condition, "wait", timeout=30)
    eventually(lambda: raw.zcard(cond(unique_name)) == 1)
    with others.lock(unique_name):
        pass
    raw.delete(cond(unique_name))
    raw.client_kill_filter(_type="pubsub")
    assert waiting.result() is True
    actor.leave(lock)
    assert raw.exists(key(unique_name)), "counted as before"
    actor.leave(lock)
    assert not raw.exists(key(unique_name))


def test_every_key_has_a_ttl(party: Any, raw: Any, unique_name: str) -> None:
    one, two = party(), party()
    one.enter()
    waiting = one.wait()
    eventually(lambda: raw.zcard(cond(unique_name)) == 1)
    two.enter()
    assert raw.pttl(cond(unique_name)) > 0
    two.notify()
    keys = list(raw.scan_iter(f"holdfast:{{{unique_name}}}*"))
    assert all(raw.pttl(each) > 0 for each in keys), keys
    two.leave()
    waiting.result()
    one.leave()

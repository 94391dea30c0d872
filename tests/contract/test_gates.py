"""What latches, events, barriers and elections promise, whichever API and server."""

from __future__ import annotations

import time
from typing import Any

import pytest

import holdfast
from holdfast._core.settings import DEFAULT, Settings
from testbed.proxy import Proxy
from testbed.waiting import PATIENCE_S, eventually
from tests.support.apis import Api, function_for

# ---------------------------------------------------------------- latch


def test_a_latch_opens_after_so_many(locks: Any, others: Any, api: Api, unique_name: str) -> None:
    mine, theirs = locks.latch(unique_name, 3), others.latch(unique_name, 3)
    waiting = [api.start(each.wait) for each in (mine, theirs, mine)]
    assert theirs.count_down() == 2
    assert mine.count_down() == 1
    assert mine.wait(timeout=0.05) is False
    assert not any(each.done() for each in waiting)
    assert theirs.count_down(5) == 0
    assert [each.result() for each in waiting] == [True] * 3
    assert mine.wait(timeout=0) is True and mine.remaining() == 0


def test_a_latch_is_declared_alike(locks: Any, others: Any, unique_name: str) -> None:
    locks.latch(unique_name, 3).count_down()
    for action in (others.latch(unique_name, 2).count_down, others.latch(unique_name, 4).wait):
        with pytest.raises(holdfast.DeclarationMismatch, match="latch"):
            action()
    with pytest.raises(holdfast.ConfigurationError):
        locks.latch(unique_name, 0)


def test_a_latch_leaves_no_waiters_behind(locks: Any, raw: Any, unique_name: str) -> None:
    assert locks.latch(unique_name, 1).wait(timeout=0.1) is False
    queue = f"holdfast:{{{unique_name}}}:latch:queue"
    eventually(lambda: not raw.exists(queue))
    locks.latch(unique_name, 1).count_down()
    keys = list(raw.scan_iter(f"holdfast:{{{unique_name}}}*"))
    assert keys and all(raw.pttl(each) > 0 for each in keys)


# ---------------------------------------------------------------- event


def test_an_event(locks: Any, others: Any, api: Api, unique_name: str) -> None:
    mine, theirs = locks.event(unique_name), others.event(unique_name)
    assert not mine.is_set() and mine.wait(timeout=0.05) is False
    waiting = [api.start(each.wait) for each in (mine, theirs)]
    theirs.set()
    assert [each.result() for each in waiting] == [True, True]
    assert mine.is_set() and mine.wait() is True
    mine.clear()
    assert not theirs.is_set()
    assert theirs.wait(timeout=0) is False


def test_all_who_wait_go_on_though_it_is_cleared_at_once(
    locks: Any, others: Any, api: Api, raw: Any, unique_name: str
) -> None:
    events, theirs = [locks.event(unique_name), others.event(unique_name)], others.event(unique_name)
    queue = f"holdfast:{{{unique_name}}}:event:queue"
    for _ in range(20):
        waiting = [api.start(events[number % 2].wait, PATIENCE_S) for number in range(5)]
        eventually(lambda: raw.zcard(queue) == 5)
        theirs.set()
        theirs.clear()
        assert [each.result() for each in waiting] == [True] * 5
        assert theirs.wait(timeout=0) is False, "who comes later waits"


def test_who_waits_goes_on_by_the_count_though_its_place_is_gone(
    locks: Any, others: Any, api: Api, url: str, raw: Any, unique_name: str
) -> None:
    impatient = api.client(api.redis().Redis.from_url(url), _settings=Settings(signal_recheck_ms=300))
    waiting = api.start(impatient.event(unique_name).wait, PATIENCE_S)
    queue = f"holdfast:{{{unique_name}}}:event:queue"
    eventually(lambda: raw.zcard(queue) == 1)
    raw.delete(queue)  # now no one tells it
    event = others.event(unique_name)
    event.set()
    event.clear()
    assert waiting.result() is True


def test_what_was_set_before_the_data_were_lost_counts_no_more(
    others: Any, api: Api, url: str, raw: Any, unique_name: str
) -> None:
    impatient = api.client(api.redis().Redis.from_url(url), _settings=Settings(signal_recheck_ms=100))
    state, queue = f"holdfast:{{{unique_name}}}:event", f"holdfast:{{{unique_name}}}:event:queue"
    waiting = api.start(impatient.event(unique_name).wait, PATIENCE_S)
    eventually(lambda: raw.zcard(queue) == 1)
    raw.delete(state, queue)
    eventually(lambda: raw.zcard(queue) == 1)  # it has looked
    assert not waiting.done()
    others.event(unique_name).set()
    assert waiting.result() is True


def test_waiting_for_an_event_survives_the_loss_of_the_message(
    others: Any, api: Api, url: str, raw: Any, unique_name: str
) -> None:
    impatient = api.client(api.redis().Redis.from_url(url), _settings=Settings(signal_recheck_ms=300))
    waiting = api.start(impatient.event(unique_name).wait)
    queue = f"holdfast:{{{unique_name}}}:event:queue"
    eventually(lambda: raw.zcard(queue) == 1)
    raw.delete(queue)  # now no one tells it
    others.event(unique_name).set()
    assert waiting.result() is True, "it looks for itself"


# ---------------------------------------------------------------- barrier


def test_a_barrier_again_and_again(locks: Any, api: Api, url: str, raw: Any, unique_name: str) -> None:
    barriers = [api.connect(url).barrier(unique_name, 3) for _ in range(3)]
    for generation in range(3):
        waiting = [api.start(each.wait) for each in barriers]
        assert sorted(each.result() for each in waiting) == [0, 1, 2]
        assert barriers[0].generation() == generation + 1
    assert barriers[0].n_waiting() == 0 and not barriers[0].broken()
    keys = list(raw.scan_iter(f"holdfast:{{{unique_name}}}*"))
    assert keys and all(raw.pttl(each) > 0 for each in keys)


def test_nobody_passes_a_barrier_alone(locks: Any, others: Any, api: Api, unique_name: str) -> None:
    waiting = api.start(locks.barrier(unique_name, 2).wait)
    eventually(lambda: others.barrier(unique_name, 2).n_waiting() == 1)
    assert not waiting.done()
    assert others.barrier(unique_name, 2).wait() == 1
    assert waiting.result() == 0


def test_out_of_time_the_barrier_breaks_for_all(locks: Any, others: Any, api: Api, unique_name: str) -> None:
    mine, theirs = locks.barrier(unique_name, 3), others.barrier(unique_name, 3)
    waiting = api.start(theirs.wait)
    eventually(lambda: mine.n_waiting() == 1)
    with pytest.raises(holdfast.BrokenBarrierError):
        mine.wait(timeout=0.1)
    with pytest.raises(holdfast.BrokenBarrierError):
        waiting.result()
    assert theirs.broken()
    with pytest.raises(holdfast.BrokenBarrierError):
        mine.wait()
    mine.reset()
    assert not mine.broken() and mine.n_waiting() == 0


def test_abort_and_reset_end_the_wait(locks: Any, others: Any, api: Api, unique_name: str) -> None:
    mine, theirs = locks.barrier(unique_name, 2), others.barrier(unique_name, 2)
    for action in (theirs.abort, theirs.reset):
        mine.reset()
        waiting = api.start(mine.wait)
        eventually(lambda: theirs.n_waiting() == 1)
        action()
        with pytest.raises(holdfast.BrokenBarrierError):
            waiting.result()
    assert not mine.broken()


def test_a_dead_party_does_not_count(locks: Any, others: Any, api: Api, raw: Any, unique_name: str) -> None:
    waiting = api.start(locks.barrier(unique_name, 2).wait)
    eventually(lambda: others.barrier(unique_name, 2).n_waiting() == 1)
    raw.zadd(f"holdfast:{{{unique_name}}}:barrier:arrived", {"0" * 24 + ":1:1": 1})
    raw.client_kill_filter(_type="pubsub")  # the living one looks at once
    eventually(lambda: others.barrier(unique_name, 2).n_waiting() == 1)
    assert not waiting.done()
    others.barrier(unique_name, 2).wait()
    waiting.result()


def test_a_barrier_is_declared_alike(locks: Any, others: Any, api: Api, unique_name: str) -> None:
    with pytest.raises(holdfast.BrokenBarrierError):
        locks.barrier(unique_name, 2).wait(timeout=0)
    for action in (others.barrier(unique_name, 3).wait, others.barrier(unique_name, 3).reset):
        with pytest.raises(holdfast.DeclarationMismatch, match="parties"):
            action()


# ---------------------------------------------------------------- election


def test_one_leads_and_the_next_follows(locks: Any, others: Any, api: Api, raw: Any, unique_name: str) -> None:
    mine, theirs = locks.election(unique_name), others.election(unique_name)
    assert mine.leader() is None and not mine.is_leader
    first = mine.campaign()
    assert mine.is_leader and mine.leader().token == first.token
    assert theirs.leader().token == first.token  # and connected: the time to wait for the lead is short
    with pytest.raises(holdfast.AcquireTimeout):
        theirs.campaign(timeout=0.5)
    campaigning = api.start(theirs.campaign)
    eventually(lambda: raw.zcard(f"holdfast:{{{unique_name}}}:leader:queue") == 1)
    assert not campaigning.done()
    mine.resign()
    second = campaigning.result()
    assert theirs.is_leader and not mine.is_leader
    assert second.fencing_token > first.fencing_token
    mine.resign()  # nothing to resign
    assert theirs.is_leader
    theirs.resign()
    assert mine.leader() is None


def test_not_related_to_the_lock_of_that_name(locks: Any, unique_name: str) -> None:
    with locks.lock(unique_name), locks.election(unique_name) as lease:
        assert lease.fencing_token > 0


def test_a_lost_lead_is_known(locks: Any, raw: Any, unique_name: str) -> None:
    election = locks.election(unique_name, ttl=2)
    with pytest.raises(holdfast.LeaseLost), election as lease:
        raw.set(f"holdfast:{{{unique_name}}}:leader", "a thief's", px=60_000)
        assert lease.lost.wait(30)
        assert not election.is_leader


def test_changes_of_the_lead_are_observed(locks: Any, others: Any, api: Api, unique_name: str) -> None:
    mine, theirs = locks.election(unique_name), others.election(unique_name)
    seen = others.election(unique_name).observe(poll=0.02)

    def following() -> Any:
        return api.start(next, seen) if api.name == "threads" else api.start(api.call, seen.__anext__)  # type: ignore[attr-defined]

    assert following().result(60) is None, "no one leads"
    change = following()
    first = mine.campaign()
    leader = change.result(60)
    assert (leader.token, leader.fencing_token) == (first.token, first.fencing_token)
    change = following()
    mine.resign()
    assert change.result(60) is None
    change = following()
    assert change.running() or not change.done()
    second = theirs.campaign()
    assert change.result(60).token == second.token
    theirs.resign()
    with pytest.raises(holdfast.ConfigurationError, match="poll"):
        mine.observe(poll=0)
    seen.close() if api.name == "threads" else api.call(seen.aclose)  # type: ignore[attr-defined]


def test_run_leads_again_after_a_loss(locks: Any, raw: Any, api: Api, unique_name: str) -> None:
    election = locks.election(unique_name, ttl=1)
    led: list[int] = []
    beyond: list[int] = []

    def lead(lease: Any) -> Any:
        led.append(lease.fencing_token)
        if len(led) == 1:
            raw.set(f"holdfast:{{{unique_name}}}:leader", "a thief's", px=300)
            yield lease.lost.wait(30)  # a task is cancelled here
            lease.ensure_held()  # and a thread looks
            beyond.append(1)
        assert lease.state.name == "HELD"
        return f"led {len(led)} times"

    assert election.run(function_for(api, lead)) == "led 2 times"
    assert led[0] < led[1] and not beyond
    assert not election.is_leader and election.leader() is None, "and resigned at the end"

    def fail(lease: Any) -> Any:
        yield lease.remaining()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        election.run(function_for(api, fail))
    assert election.leader() is None


def test_run_campaigns_until_the_server_is_there_again(api: Api, wire: Proxy, unique_name: str) -> None:
    locks = api.client(api.redis().Redis.from_url(wire.url), _settings=DEFAULT._replace(retry_limit_s=0.1))
    election = locks.election(unique_name)
    wire.refuse()
    leading = api.start(election.run, function_for(api, lambda lease: iter("")))
    with pytest.raises(holdfast.ServerUnreachable):
        locks.lock(unique_name).acquire()
    time.sleep(0.5)  # several times the limit
    assert not leading.done()
    wire.heal()
    leading.result(PATIENCE_S)

    def fail(lease: Any) -> Any:
        yield lease.remaining()
        raise holdfast.ServerUnreachable("a node", "of its own")

    with pytest.raises(holdfast.ServerUnreachable, match="of its own"):
        election.run(function_for(api, fail))
    locks.close()

"""Rows of the fault catalogue: what goes wrong between a client and its server."""

from __future__ import annotations

import asyncio
import importlib
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from redis.backoff import NoBackoff

import holdfast
from holdfast import embedded
from holdfast._core.settings import DEFAULT
from holdfast._core.tokens import client_of
from holdfast._lua import SCRIPTS
from testbed.proxy import Action, Proxy
from testbed.waiting import PATIENCE_S, eventually
from tests.support.apis import Api, AsyncioApi
from tests.support.keys import fence_of, key_of, queue_of

#: Longer than any test may take: what is gone before it was given back, and did not expire.
LONG_S = 600

LOSSES = pytest.mark.parametrize("action", ["lose the reply", "reset after"])


def held_by(look: Any, name: str) -> str | None:
    token: str | None = look.get(key_of(name))
    return token


# ---------------------------------------------------------------- requests and replies that get lost


@pytest.mark.parametrize("action", ["swallow", "reset"])
def test_01_a_dropped_acquire_is_repeated(near: Any, wire: Proxy, look: Any, unique_name: str, action: Action) -> None:
    drop = wire.on("acquire", action)
    lease = near.lock(unique_name, ttl=3).acquire(timeout=30)
    assert drop.times == 1
    assert held_by(look, unique_name) == lease.token
    lease.release()
    assert held_by(look, unique_name) is None


#: What is acquired, and by which script.
BROKEN: dict[str, tuple[str, Callable[[Any, str], Any]]] = {
    "lock": ("acquire", lambda locks, name: locks.lock(name, ttl=LONG_S)),
    "semaphore": ("sem_acquire", lambda locks, name: locks.semaphore(name, 1, ttl=LONG_S)),
    "reader": ("rw_acquire", lambda locks, name: locks.rwlock(name, ttl=LONG_S).read()),
    "writer": ("rw_acquire", lambda locks, name: locks.rwlock(name, ttl=LONG_S).write()),
    "multilock": ("multi_acquire", lambda locks, name: locks.multilock(name, f"{name}-2", ttl=LONG_S)),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_02_a_grant_whose_reply_was_lost_is_broken_before_the_repeat(
    far: Any, wire: Proxy, api: Api, unique_name: str, kind: str
) -> None:
    script, made = BROKEN[kind]
    near = api.client(api.redis().Redis.from_url(wire.url), _settings=DEFAULT._replace(request_timeout_s=1.0))
    made(near, unique_name).acquire().release()  # the server knows the script from now on
    lost = wire.on(script, "lose the reply")
    repeat = wire.on(script, "hold", skip=1, most=None)
    waiting = api.start(made(near, unique_name).acquire)
    repeat.wait()
    assert lost.times == 1
    assert far.break_(unique_name, reason="stuck", grace=0)
    wire.heal()
    with pytest.raises(holdfast.LeaseLost) as told:
        waiting.result()
    assert told.value.name == unique_name or kind == "multilock"
    assert told.value.reason.startswith("broken by ") and told.value.reason.endswith(": stuck")
    eventually(lambda: not far.lock(unique_name).locked())
    made(near, unique_name).acquire(timeout=PATIENCE_S).release()


@pytest.mark.parametrize("action", ["swallow", "reset"])
def test_01_a_dropped_release_is_repeated(near: Any, wire: Proxy, look: Any, unique_name: str, action: Action) -> None:
    lease = near.lock(unique_name, ttl=1.5).acquire()
    drop = wire.on("release", action)
    lease.release()
    assert drop.times == 1
    assert held_by(look, unique_name) is None


@pytest.mark.parametrize("action", ["swallow", "reset after"])
def test_01_02_a_lost_renewal_is_repeated(near: Any, wire: Proxy, look: Any, unique_name: str, action: Action) -> None:
    lease = near.lock(unique_name, ttl=3).acquire()
    lost = wire.on("renew", action)
    lost.wait()
    again = wire.on("renew", "note", most=None)
    eventually(lambda: again.times > 1 and lease.state.name == "HELD", "renewed after the loss")
    assert held_by(look, unique_name) == lease.token
    assert look.pttl(key_of(unique_name)) <= 3000, "extended to, not by"
    lease.release()


@LOSSES
def test_02_a_lost_reply_to_acquire_is_no_refusal(
    near: Any, wire: Proxy, look: Any, unique_name: str, action: Action
) -> None:
    lost = wire.on("acquire", action)
    lease = near.lock(unique_name, ttl=3).acquire(timeout=30)
    assert lost.times == 1
    assert held_by(look, unique_name) == lease.token
    assert int(look.get(fence_of(unique_name))) == lease.fencing_token
    lease.ensure_held()
    lease.release()
    assert held_by(look, unique_name) is None


def test_02_try_acquire_never_calls_its_own_token_busy(near: Any, wire: Proxy, look: Any, unique_name: str) -> None:
    wire.on("acquire", "reset after")
    lease = near.lock(unique_name, ttl=LONG_S).try_acquire()
    assert lease is not None
    assert held_by(look, unique_name) == lease.token
    lease.release()


def test_02_an_acquire_that_gives_up_leaves_no_orphan(near: Any, wire: Proxy, look: Any, unique_name: str) -> None:
    lost = wire.on("acquire", "lose the reply", most=None)
    with pytest.raises(holdfast.OutcomeUnknown):
        near.lock(unique_name, ttl=LONG_S).try_acquire()
    assert lost.times >= 1
    eventually(lambda: held_by(look, unique_name) is None, "given back, long before its ttl")


def test_03_the_client_library_repeats_nothing_by_itself(api: Api, wire: Proxy, look: Any, unique_name: str) -> None:
    retry = importlib.import_module(f"{api.redis().__name__}.retry").Retry(NoBackoff(), 10)
    retrying = api.redis().Redis.from_url(wire.url, socket_timeout=0.5, retry=retry)
    locks = api.client(retrying)
    locks.lock(f"{unique_name}-warm").acquire().release()
    lost = wire.on("acquire", "swallow", most=None)
    with pytest.raises(holdfast.HoldfastError):
        locks.lock(unique_name, ttl=LONG_S).acquire(timeout=1)
    assert lost.seen <= 2, "the protocol's own requests, one in its time, and none behind its back"
    wire.heal()
    locks.lock(f"{unique_name}-2").acquire(timeout=30).release()


@LOSSES
def test_04_a_lost_reply_to_release_is_no_loss(
    near: Any, wire: Proxy, look: Any, unique_name: str, action: Action
) -> None:
    lease = near.lock(unique_name, ttl=1.5).acquire()
    lost = wire.on("release", action)
    lease.release()
    assert lost.times == 1
    assert lease.state.name == "RELEASED"
    assert held_by(look, unique_name) is None


@LOSSES
def test_04_a_release_whose_reply_was_lost_hands_over_once(
    near: Any, far: Any, api: Api, wire: Proxy, look: Any, unique_name: str, action: Action
) -> None:
    lease = near.lock(unique_name, ttl=1.5).acquire()
    waiting = api.start(far.lock(unique_name, ttl=LONG_S).acquire)
    eventually(lambda: look.zcard(queue_of(unique_name)) == 1)
    wire.on("release", action)
    lease.release()
    after = waiting.result(60)
    assert held_by(look, unique_name) == after.token, "the repeated release took nothing from the next holder"
    after.release()


def _tries(action: Action) -> int:
    """How often an extension is sent before its outcome is called unknown: once more over a new connection."""
    return 2 if action == "reset after" else 1


@LOSSES
def test_05_a_lost_reply_to_extend_adds_nothing(
    near: Any, wire: Proxy, look: Any, unique_name: str, action: Action
) -> None:
    lease = near.lock(unique_name, ttl=3, renew=False).acquire()
    wire.on("renew", action, most=_tries(action))
    with pytest.raises(holdfast.OutcomeUnknown):
        lease.extend(3.3)
    assert lease.remaining() <= 3, "what is not known to be longer is not trusted for longer"
    lease.extend(20)
    assert 10_000 < look.pttl(key_of(unique_name)) <= 20_000, "20 s from now, and not 20 s more than before"
    lease.release()


@LOSSES
def test_05_a_lost_reply_to_a_shorter_extend_is_no_longer_trust(
    near: Any, wire: Proxy, look: Any, unique_name: str, action: Action
) -> None:
    lease = near.lock(unique_name, ttl=LONG_S).acquire()
    wire.on("renew", action, most=_tries(action))
    with pytest.raises(holdfast.OutcomeUnknown):
        lease.extend(2)
    assert lease.remaining() < 2, "the server may have done it"
    assert look.pttl(key_of(unique_name)) <= 2000
    renewed = wire.on("renew", "note", most=None)
    eventually(lambda: renewed.times >= 3)
    assert held_by(look, unique_name) == lease.token, "renewed as the shorter one that it may be"
    lease.release()


def test_06_a_repeated_acquire_gives_the_same_answer(near: Any, far: Any, look: Any, unique_name: str) -> None:
    lease = near.lock(unique_name, ttl=20).acquire()
    repeat = (
        SCRIPTS["acquire"].text,
        4,
        key_of(unique_name),
        fence_of(unique_name),
        queue_of(unique_name),
        f"{key_of(unique_name)}:gone",
        lease.token,
        20_000,
        "try",
        0,
        86_400_000,
        2000,
        "holdfast:inbox:",
    )
    assert [look.eval(*repeat) for _ in range(3)] == [[1, lease.fencing_token]] * 3
    lease.release()
    with far.lock(unique_name) as other:
        assert look.eval(*repeat)[0] == 0, "someone else holds it now"
        assert held_by(look, unique_name) == other.token


# ---------------------------------------------------------------- late requests


def test_06_07_a_delayed_acquire_finds_its_token_buried(
    near: Any, far: Any, wire: Proxy, look: Any, unique_name: str
) -> None:
    late = wire.on("acquire", "hold")
    buried = wire.on("release", "note")
    with pytest.raises(holdfast.OutcomeUnknown):
        near.lock(unique_name, ttl=3).acquire(timeout=0.5)
    buried.wait()
    eventually(lambda: look.exists(f"{key_of(unique_name)}:gone"), "given back before it was even carried out")
    before = look.info("commandstats")["cmdstat_evalsha"]["calls"]
    late.let_go()
    eventually(lambda: look.info("commandstats")["cmdstat_evalsha"]["calls"] > before, "it has arrived at last")
    assert held_by(look, unique_name) is None
    with far.lock(unique_name, ttl=LONG_S) as lease:
        assert held_by(look, unique_name) == lease.token


def test_07_what_a_stopped_server_was_asked_is_given_back_when_it_goes_on(
    api: Api, private_server: Any, looking_at: Any, unique_name: str
) -> None:
    server = private_server()
    look = looking_at(server)
    locks = api.connect(server.url)
    locks.lock(f"{unique_name}-warm").acquire().release()
    server.pause()
    try:
        with pytest.raises((holdfast.OutcomeUnknown, holdfast.ServerUnreachable)):
            locks.lock(unique_name, ttl=LONG_S).acquire(timeout=1)
    finally:
        server.resume()
    eventually(lambda: look.zscore(f"{key_of(unique_name)}:gone", _last_token(look, unique_name)), "buried")
    assert held_by(look, unique_name) is None


def _last_token(look: Any, name: str) -> str:
    return next(iter(look.zrange(f"{key_of(name)}:gone", 0, -1)), "")


# ---------------------------------------------------------------- slow wires


def test_08_11_validity_counts_from_before_the_request(near: Any, wire: Proxy, unique_name: str) -> None:
    wire.slow(0.2)
    lease = near.lock(unique_name, ttl=10, renew=False).acquire(timeout=30)
    assert lease.remaining() < 10 - 0.4, "what the wire took is no part of it"
    wire.heal()
    lease.release()


def test_08_a_grant_that_comes_too_late_is_none(near: Any, wire: Proxy, look: Any, unique_name: str) -> None:
    wire.slow(0.5)
    with pytest.raises(holdfast.HoldfastError) as caught:
        near.lock(unique_name, ttl=0.9).acquire(timeout=3)
    assert isinstance(caught.value, holdfast.AcquireTimeout | holdfast.OutcomeUnknown | holdfast.ServerUnreachable)
    wire.heal()
    eventually(lambda: held_by(look, unique_name) is None)


def test_08_11_a_lease_lives_on_a_slow_wire(near: Any, far: Any, wire: Proxy, unique_name: str) -> None:
    wire.slow(0.01, 0.15)
    lease = near.lock(unique_name, ttl=3).acquire(timeout=30)
    renewed = wire.on("renew", "note", most=None)
    eventually(lambda: renewed.times >= 3)
    lease.ensure_held()
    assert far.lock(unique_name).try_acquire() is None
    wire.heal()
    lease.release()


# ---------------------------------------------------------------- connections that end, or do not


def test_09_a_half_open_connection_costs_no_lease(near: Any, wire: Proxy, look: Any, unique_name: str) -> None:
    lease = near.lock(unique_name, ttl=3).acquire()
    wire.freeze()
    renewed = wire.on("renew", "note", most=None)
    eventually(lambda: renewed.times >= 3 and lease.state.name == "HELD", "renewed on other connections")
    lease.ensure_held()
    assert held_by(look, unique_name) == lease.token
    lease.release()
    assert held_by(look, unique_name) is None


def test_09_50_a_waiter_with_a_half_open_inbox_gets_its_turn(
    near: Any, far: Any, api: Api, wire: Proxy, look: Any, unique_name: str
) -> None:
    holder = far.lock(unique_name, ttl=2).acquire()
    waiting = api.start(near.lock(unique_name, ttl=3).acquire)
    eventually(lambda: look.zcard(queue_of(unique_name)) == 1)
    wire.freeze()
    holder.release()  # the server thinks that the waiter listens, and its message goes nowhere
    lease = waiting.result(60)
    assert held_by(look, unique_name) == lease.token
    lease.release()


def test_09_a_half_open_inbox_is_found_out(
    near: Any,
    far: Any,
    api: Api,
    wire: Proxy,
    look: Any,
    unique_name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("holdfast._engine.server.INBOX_QUIET_S", 0.1)
    monkeypatch.setattr("holdfast._engine.server.INBOX_TIMEOUT_S", 1.0)
    first = far.lock(unique_name).acquire()
    waiting = api.start(near.lock(unique_name, ttl=3).acquire)
    eventually(lambda: look.zcard(queue_of(unique_name)) == 1)
    channel = f"holdfast:inbox:{client_of(look.zrange(queue_of(unique_name), 0, 0)[0])}"
    first.release()
    waiting.result(60).release()
    wire.freeze()
    holder = far.lock(unique_name, ttl=LONG_S).acquire()
    waiting = api.start(near.lock(unique_name, ttl=3).acquire)
    eventually(lambda: look.pubsub_numsub(channel)[0][1] == 2, "it listens on another connection")
    eventually(lambda: look.zcard(queue_of(unique_name)) == 1)
    holder.release()
    lease = waiting.result(60)
    lease.ensure_held()
    lease.release()


def test_10_killed_connections_cost_nothing(api: Api, private_server: Any, looking_at: Any, unique_name: str) -> None:
    server = private_server()
    look = looking_at(server)
    holder, waiter = api.connect(server.url), api.connect(server.url)
    lease = holder.lock(unique_name, ttl=3).acquire()
    waiting = api.start(waiter.lock(unique_name, ttl=LONG_S).acquire)
    eventually(lambda: look.zcard(queue_of(unique_name)) == 1)
    place = look.zrange(queue_of(unique_name), 0, 0, withscores=True)
    for kind in ("normal", "pubsub"):
        look.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")
    channel = f"holdfast:inbox:{client_of(place[0][0])}"
    eventually(lambda: look.pubsub_numsub(channel)[0][1] == 1, "it listens again")
    eventually(lambda: lease.remaining() < 2.4)
    eventually(lambda: lease.remaining() > 2.5, "renewed on a new connection")
    assert look.zrange(queue_of(unique_name), 0, 0, withscores=True) == place, "it kept its place"
    lease.release()
    after = waiting.result(60)
    assert after.token == place[0][0]
    after.release()


def test_10_a_refused_connection_is_waited_out(near: Any, api: Api, wire: Proxy, unique_name: str) -> None:
    wire.refuse()
    with pytest.raises(holdfast.ServerUnreachable, match=str(wire.port)):
        near.lock(unique_name).try_acquire()
    with pytest.raises(holdfast.ServerUnreachable):
        near.lock(unique_name).acquire(timeout=0.5)
    waiting = api.start(near.lock(unique_name).acquire, timeout=60)
    time.sleep(0.2)
    assert not waiting.done()
    wire.heal()
    waiting.result(60).release()


def test_12_a_partitioned_holder_is_told_at_its_deadline(
    near: Any, far: Any, api: Api, wire: Proxy, look: Any, unique_name: str
) -> None:
    lease = near.lock(unique_name, ttl=2).acquire()
    told: list[holdfast.LeaseLost] = []
    lease.on_lost(told.append)
    waiting = api.start(far.lock(unique_name, ttl=LONG_S).acquire)
    eventually(lambda: look.zcard(queue_of(unique_name)) == 1)
    wire.partition()
    after = waiting.result(60)
    assert lease.remaining() == 0, "its time was over before anyone else could hold it"
    with pytest.raises(holdfast.LeaseLost, match="expired"):
        lease.ensure_held()
    eventually(lambda: told)
    assert told[0].reason == "expired"
    assert after.fencing_token > lease.fencing_token
    wire.heal()
    with pytest.raises(holdfast.LeaseLost):
        lease.release()
    near.lock(f"{unique_name}-2").acquire(timeout=30).release()  # what was kept back has arrived before this
    assert held_by(look, unique_name) == after.token
    after.release()


def test_12_a_partitioned_waiter_comes_back_in_its_time(near: Any, wire: Proxy, look: Any, unique_name: str) -> None:
    wire.partition()
    began = time.monotonic()
    with pytest.raises((holdfast.OutcomeUnknown, holdfast.ServerUnreachable)):
        near.lock(unique_name, ttl=LONG_S).acquire(timeout=1)
    assert time.monotonic() - began < 20
    wire.heal()
    near.lock(f"{unique_name}-2").acquire(timeout=30).release()
    eventually(lambda: held_by(look, unique_name) is None, "what arrived late was given back")


# ---------------------------------------------------------------- callers that leave


def test_18_an_acquire_that_is_cancelled_leaves_nothing(
    near: Any, api: Api, wire: Proxy, look: Any, unique_name: str
) -> None:
    held = wire.on("acquire", "hold the reply")
    if isinstance(api, AsyncioApi):

        async def acquire() -> None:
            task = asyncio.ensure_future(near._target.lock(unique_name, ttl=LONG_S).acquire())
            while not held.times or not held_by(look, unique_name):
                await asyncio.sleep(0.005)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        api.run(acquire())
    else:
        cancel = holdfast.Cancel()
        waiting = api.start(near.lock(unique_name, ttl=LONG_S).acquire, cancel=cancel)
        eventually(lambda: held_by(look, unique_name))
        cancel.set()
        with pytest.raises(holdfast.AcquireCancelled):
            waiting.result(60)
    held.let_go()
    eventually(lambda: held_by(look, unique_name) is None, "given back, long before its ttl")


def test_19_answers_belong_to_their_questions_after_a_cancel(
    near: Any, api: Api, wire: Proxy, look: Any, unique_name: str
) -> None:
    for number in range(5):
        name = f"{unique_name}-{number}"
        held = wire.on("acquire", "hold the reply")
        if isinstance(api, AsyncioApi):

            async def abandon(name: str = name) -> None:
                with pytest.raises(asyncio.TimeoutError):
                    async with asyncio.timeout(0.1):
                        await near._target.lock(name, ttl=LONG_S).acquire()

            api.run(abandon())
        else:
            cancel = holdfast.Cancel()
            threading.Timer(0.1, cancel.set).start()
            with pytest.raises(holdfast.AcquireCancelled):
                near.lock(name, ttl=LONG_S).acquire(cancel=cancel)
        held.let_go()
        lease = near.lock(f"{name}-after", ttl=20).acquire(timeout=30)
        assert held_by(look, f"{name}-after") == lease.token
        assert near.lock(f"{name}-after").holder().token == lease.token
        lease.release()
        eventually(lambda name=name: held_by(look, name) is None)  # type: ignore[misc]


# ---------------------------------------------------------------- wake-ups


def test_50_a_lost_wake_up_is_made_up_for(
    near: Any, far: Any, api: Api, wire: Proxy, look: Any, unique_name: str
) -> None:
    holder = near.lock(unique_name, ttl=2, renew=False).acquire()
    waiting = api.start(far.lock(unique_name, ttl=LONG_S).acquire)
    eventually(lambda: look.zcard(queue_of(unique_name)) == 1)
    token = look.zrange(queue_of(unique_name), 0, 0)[0]
    # The release as the script does it, but for the message.
    look.zrem(queue_of(unique_name), token)
    look.set(key_of(unique_name), token, px=2000)
    lease = waiting.result(60)
    assert lease.token == token
    with pytest.raises(holdfast.LeaseLost):
        holder.release()
    lease.release()


def test_51_expiry_needs_no_event(far: Any, api: Api, look: Any, unique_name: str) -> None:
    assert look.config_get("notify-keyspace-events") == {"notify-keyspace-events": ""}
    look.set(key_of(unique_name), "an outsider's token", px=1000)
    lease = far.lock(unique_name).acquire(timeout=60)
    assert held_by(look, unique_name) == lease.token
    lease.release()


def test_53_many_waiters_wake_one_by_one_in_order(
    api: Api, private_server: Any, looking_at: Any, unique_name: str
) -> None:
    server: embedded.Server = private_server()
    look = looking_at(server)
    clients = [api.connect(server.url, tenure=0) for _ in range(3)]  # each waiter is to stand at the server
    holder = clients[0].lock(unique_name).acquire()
    order: list[int] = []

    def take(number: int) -> None:
        lease = clients[number % 3].lock(unique_name, ttl=120).acquire()
        order.append(number)
        lease.release()

    waiting = []
    for number in range(40):
        waiting.append(api.start(take, number))
        eventually(lambda: look.zcard(queue_of(unique_name)) == len(waiting))
    before = look.info("commandstats")["cmdstat_evalsha"]["calls"]
    holder.release()
    for each in waiting:
        each.result(60)
    calls = look.info("commandstats")["cmdstat_evalsha"]["calls"] - before
    assert order == list(range(40))
    assert calls <= 3 * 40, "no herd: a handoff costs a confirmation and a release"

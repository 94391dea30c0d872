"""A request that is carried out late, after later ones of the same lease, shortens nothing; see docs/design/0014.

Every pair of requests of every primitive is in tests/simulation/test_late_requests.py, on the model of a server; here
are the drivers, and a wire that holds requests back.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

import holdfast
from testbed.proxy import Proxy, Rule
from testbed.waiting import eventually
from tests.support.keys import key_of

#: As long as asked for with `extend`: longer than any test takes.
LONG_S = 600
#: As granted: so short that a request without an answer is given up soon.
TTL_S = 1.5


def _key_ms(look: Any, name: str) -> int:
    left_ms: int = look.pttl(key_of(name))
    return left_ms


def _score_ms(look: Any, key: str, token: str) -> int:
    seconds, micros = look.time()
    over_ms = int(look.zscore(key, token) or 0)
    return over_ms - int(seconds) * 1000 - int(micros) // 1000


@dataclass(frozen=True)
class Thing:
    """Something to hold: how to make it, its scripts, and for how long the server keeps it."""

    make: Callable[[Any, str], Any]
    acquire: str
    renew: str
    left_ms: Callable[[Any, str, str], int]


THINGS = {
    "lock": Thing(
        lambda locks, name: locks.lock(name, ttl=TTL_S),
        "acquire",
        "renew",
        lambda look, name, token: _key_ms(look, name),
    ),
    "reader": Thing(
        lambda locks, name: locks.rwlock(name, ttl=TTL_S).read(),
        "rw_acquire",
        "rw_renew",
        lambda look, name, token: min(_score_ms(look, f"{key_of(name)}:readers", token), _key_ms(look, name)),
    ),
    "writer": Thing(
        lambda locks, name: locks.rwlock(name, ttl=TTL_S).write(),
        "rw_acquire",
        "rw_renew",
        lambda look, name, token: _key_ms(look, name),
    ),
    "permits": Thing(
        lambda locks, name: locks.semaphore(name, 2, ttl=TTL_S),
        "sem_acquire",
        "sem_renew",
        lambda look, name, token: _score_ms(look, f"{key_of(name)}:sem:holders", token),
    ),
    "several": Thing(
        lambda locks, name: locks.multilock(name, f"{name}-2", ttl=TTL_S),
        "multi_acquire",
        "multi_renew",
        lambda look, name, token: min(_key_ms(look, name), _key_ms(look, f"{name}-2")),
    ),
}


@pytest.fixture(
    params=[name if name == "lock" else pytest.param(name, marks=pytest.mark.thorough) for name in sorted(THINGS)]
)
def thing(request: pytest.FixtureRequest) -> Thing:
    return THINGS[request.param]


def loaded(near: Any, thing: Thing, name: str) -> None:
    """The server knows its scripts: what is held back is then carried out when it is let go."""
    lease = thing.make(near, f"{name}-before").acquire()
    lease.extend(30)
    lease.release()


def on_another_connection(near: Any) -> None:
    """Have what follows not wait behind what is held back, until that is found to be silent."""
    driver = getattr(near, "_target", near)._session.driver
    for server in driver.topology.nodes():
        driver.engine.call(server.reconnect)


def carried_out(look: Any, held_back: Rule) -> None:
    """Let go what was held back, and wait until the server has run it."""

    def calls() -> int:
        return int(look.info("commandstats")["cmdstat_evalsha"]["calls"])

    before = calls()
    held_back.let_go()
    eventually(lambda: calls() > before, "it is carried out")


def test_a_late_renewal_does_not_shorten(near: Any, wire: Proxy, look: Any, unique_name: str, thing: Thing) -> None:
    loaded(near, thing, unique_name)
    lease = thing.make(near, unique_name).acquire()
    late = wire.on(thing.renew, "hold")
    late.wait()
    on_another_connection(near)
    lease.extend(LONG_S)
    carried_out(look, late)
    assert thing.left_ms(look, unique_name, lease.token) > LONG_S * 900, "as long as it is trusted, and longer"
    assert lease.remaining() > LONG_S * 0.9
    lease.release()


def test_a_late_first_request_does_not_shorten(
    api: Any, near: Any, wire: Proxy, look: Any, unique_name: str, thing: Thing
) -> None:
    loaded(near, thing, unique_name)
    late = wire.on(thing.acquire, "hold")
    acquiring = api.start(thing.make(near, unique_name).acquire, timeout=30)
    late.wait()
    on_another_connection(near)
    lease = acquiring.result(30)
    lease.extend(LONG_S)
    carried_out(look, late)
    assert thing.left_ms(look, unique_name, lease.token) > LONG_S * 900
    lease.release()
    assert thing.left_ms(look, unique_name, lease.token) <= 0


def test_a_late_extension_does_not_shorten_what_a_later_one_has_set(
    near: Any, wire: Proxy, look: Any, unique_name: str, thing: Thing
) -> None:
    loaded(near, thing, unique_name)
    lease = thing.make(near, unique_name).acquire()
    lease.extend(LONG_S)
    late = wire.on(thing.renew, "hold")
    with pytest.raises(holdfast.OutcomeUnknown):
        lease.extend(1.2)
    assert lease.remaining() < 1.2, "it may have been done"
    on_another_connection(near)
    lease.extend(LONG_S)
    carried_out(look, late)
    assert thing.left_ms(look, unique_name, lease.token) > LONG_S * 900
    assert lease.remaining() > LONG_S * 0.9
    lease.release()


def test_a_lease_that_a_lost_extension_has_ended_is_released(
    near: Any, wire: Proxy, look: Any, unique_name: str
) -> None:
    """Here it ends as the extension says; the server, which has not heard of that, would keep it for its former ttl."""
    lease = near.lock(unique_name, ttl=LONG_S, renew=False).acquire()
    lost = wire.on("renew", "swallow")
    with pytest.raises(holdfast.HoldfastError):
        lease.extend(0.5)
    assert lost.times == 1
    eventually(lambda: look.get(key_of(unique_name)) is None)
    assert lease.lost.reason == "expired"


def test_a_late_request_does_not_lengthen_what_was_shortened_on_purpose(
    near: Any, wire: Proxy, look: Any, unique_name: str, thing: Thing
) -> None:
    loaded(near, thing, unique_name)
    lease = thing.make(near, unique_name).acquire()
    lease.extend(LONG_S)  # a busy machine takes its time for what follows
    late = wire.on(thing.renew, "hold")
    with pytest.raises(holdfast.OutcomeUnknown):
        lease.extend(3)  # given up after a third of that
    on_another_connection(near)
    lease.extend(2)
    carried_out(look, late)
    assert thing.left_ms(look, unique_name, lease.token) <= 2000
    lease.release()


def test_an_answer_that_comes_late_takes_nothing_back(
    near: Any, wire: Proxy, look: Any, unique_name: str, thing: Thing
) -> None:
    loaded(near, thing, unique_name)
    lease = thing.make(near, unique_name).acquire()
    late = wire.on(thing.renew, "hold the reply")
    late.wait()
    on_another_connection(near)
    lease.extend(LONG_S)
    late.let_go()
    over = time.monotonic() + TTL_S
    eventually(lambda: not lease._driver.schedule._asked, "the renewal has ended")
    while time.monotonic() < over:
        assert lease.remaining() > LONG_S * 0.9
        time.sleep(0.05)
    assert lease.state.name == "HELD", "also when the ttl is over that it was granted for"
    assert thing.left_ms(look, unique_name, lease.token) > LONG_S * 900
    lease.release()


def test_two_extensions_at_once_leave_what_the_client_trusts(
    api: Any, far: Any, look: Any, unique_name: str, thing: Thing
) -> None:
    lease = thing.make(far, unique_name).acquire()
    for _ in range(20):
        both = [api.start(lease.extend, seconds) for seconds in (LONG_S, 3)]
        for done in both:
            done.result(30)
        left_s = thing.left_ms(look, unique_name, lease.token) / 1000
        assert lease.remaining() <= left_s + 0.05
    lease.release()


def test_a_late_first_request_of_a_writer_finds_nothing_after_a_downgrade(
    api: Any, near: Any, wire: Proxy, look: Any, unique_name: str
) -> None:
    loaded(near, THINGS["writer"], unique_name)
    late = wire.on("rw_acquire", "hold")
    acquiring = api.start(near.rwlock(unique_name, ttl=TTL_S).write().acquire, timeout=30)
    late.wait()
    on_another_connection(near)
    reader = acquiring.result(30).downgrade()
    reader.release()
    carried_out(look, late)
    assert look.get(key_of(unique_name)) is None, "no one asks for it any more"


def test_a_late_first_request_finds_nothing_after_a_wait_on_a_condition(
    api: Any, near: Any, wire: Proxy, look: Any, unique_name: str
) -> None:
    loaded(near, THINGS["lock"], unique_name)
    lock = near.lock(unique_name, ttl=TTL_S)
    condition = near.condition(getattr(lock, "_target", lock))
    holder = api.actor()
    late = wire.on("acquire", "hold")
    acquiring = holder.tell(lock, "acquire", timeout=30)
    late.wait()
    on_another_connection(near)
    lease = acquiring.result(30)
    assert holder.ask(condition, "wait", timeout=0.05) is False
    holder.ask(lease, "release")
    carried_out(look, late)
    assert look.get(key_of(unique_name)) is None, "no one asks for it any more, by the token of before"

"""Locks that a client hands on inside: interruptions between any two steps of it, seen from outside."""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
from typing import Any

import pytest

from holdfast import AcquireTimeout, LeaseLost, OutcomeUnknown, ServerUnreachable
from holdfast._core.settings import DEFAULT
from testbed.proxy import Proxy
from testbed.waiting import eventually
from tests.support.apis import Api, close_brought, warm

#: Longer than a test; shorter than any turn, so that each one passes the lock on by way of the server.
LONG_MS, SHORT_MS = 60_000.0, 0.001


class Tenured:
    """A client whose tenures last so long."""

    def __init__(self, api: Api, url: str, tenure_ms: float) -> None:
        self.api = api
        self.brought = api.redis().Redis.from_url(url)
        self.locks = api.client(self.brought, _settings=DEFAULT._replace(tenure_ms=tenure_ms))
        warm(self.locks)

    def close(self) -> None:
        self.locks.close()
        close_brought(self.api, self.brought)


@pytest.fixture(params=[LONG_MS, SHORT_MS], ids=["handed on", "passed"])
def tenured(request: pytest.FixtureRequest, api: Api, wire: Proxy) -> Any:
    made = Tenured(api, wire.url, request.param)
    yield made
    made.close()


def waiting(look: Any, name: str, tenured: Tenured) -> int:
    """Local waiters of a client, and those in the server's queue."""
    session = getattr(tenured.locks, "_target", tenured.locks)._session
    driver = session.driver
    return sum(len(line.waiters) for line in list(driver.lines.values())) + int(
        look.zcard(f"holdfast:{{{name}}}:queue")
    )


def gone(look: Any, name: str) -> bool:
    return not look.exists(f"holdfast:{{{name}}}", f"holdfast:{{{name}}}:queue")


def take_turns(api: Api, clients: list[Any], name: str, parties: int, turns: int, seed: int) -> tuple[list[int], int]:
    """Fencing tokens in the order of the leases, and how many attempts were given up; some have little time."""
    inside, fences, given_up = [0], [], [0]
    guard = threading.Lock()

    def party(number: int) -> None:
        choose = random.Random(f"{seed}-{number}")
        lock = clients[number % len(clients)].lock(name, ttl=20)
        for _ in range(turns):
            try:
                lease = lock.acquire(timeout=choose.choice([0.002, 0.02, 60, 60]))
            except (AcquireTimeout, ServerUnreachable):  # a new connection may take longer than there is time
                with guard:
                    given_up[0] += 1
                continue
            with guard:
                inside[0] += 1
                assert inside[0] == 1
                fences.append(lease.fencing_token)
                inside[0] -= 1
            assert lease.remaining() > 0
            lease.release()

    for running in [api.start(party, number) for number in range(parties)]:
        running.result(90)
    return fences, given_up[0]


@pytest.mark.parametrize("tenure_ms", [LONG_MS, 2.0, SHORT_MS])
def test_turns_of_two_clients_some_of_which_give_up(
    api: Api, wire: Proxy, look: Any, unique_name: str, tenure_ms: float
) -> None:
    pair = [Tenured(api, wire.url, tenure_ms) for _ in range(2)]
    fences, given_up = take_turns(api, [each.locks for each in pair], unique_name, 8, 15, seed=int(tenure_ms))

    assert len(fences) == 8 * 15 - given_up
    assert all(later > earlier for earlier, later in itertools.pairwise(fences))
    eventually(lambda: gone(look, unique_name), "nothing is left behind")
    for each in pair:
        each.close()


def let_go(lease: Any) -> None:
    """Two answers in a row may be lost: then the release goes on in the background."""
    with contextlib.suppress(OutcomeUnknown):
        lease.release()


@pytest.mark.parametrize("lost", ["lose the reply", "reset after", "reset", "swallow"])
def test_turns_go_on_when_a_request_or_its_answer_is_lost(
    api: Api, wire: Proxy, look: Any, unique_name: str, tenured: Tenured, lost: Any
) -> None:
    """At the request by which a turn asks, or passes the old token on, and at a release."""
    lease = tenured.locks.lock(unique_name, ttl=3).acquire()
    parties = [api.start(tenured.locks.lock(unique_name, ttl=3).acquire, timeout=60) for _ in range(3)]
    eventually(lambda: waiting(look, unique_name, tenured) >= 3)
    rules = [wire.on(script, lost) for script in ("acquire", "release")]
    fences = [lease.fencing_token]
    let_go(lease)
    while parties:
        got = eventually(lambda: next((each for each in parties if each.done()), None))
        parties.remove(got)
        fences.append(got.result().fencing_token)
        let_go(got.result())
    assert len(fences) == 4
    assert fences == sorted(set(fences))
    assert sum(rule.times for rule in rules) >= 1
    eventually(lambda: gone(look, unique_name), "nothing is left behind")


def test_a_lost_lease_frees_those_that_wait_here(api: Api, look: Any, unique_name: str, tenured: Tenured) -> None:
    """The server forgot it: waiters find out, and ask for themselves."""
    lease = tenured.locks.lock(unique_name, ttl=2).acquire()
    second = api.start(tenured.locks.lock(unique_name, ttl=2).acquire, timeout=60)
    eventually(lambda: waiting(look, unique_name, tenured) >= 1)
    look.delete(f"holdfast:{{{unique_name}}}")

    assert second.result(60).fencing_token > lease.fencing_token
    with pytest.raises(LeaseLost):
        eventually(lambda: lease.ensure_held())
    second.result().release()
    eventually(lambda: gone(look, unique_name))


def test_an_extension_that_shortens_is_not_left_to_the_next(
    api: Api, wire: Proxy, look: Any, unique_name: str, tenured: Tenured
) -> None:
    """The extension hangs, comes when another turn holds the lock, and must not shorten what that believes."""
    lease = tenured.locks.lock(unique_name, ttl=30).acquire()
    second = api.start(tenured.locks.lock(unique_name, ttl=30).acquire, timeout=60)
    eventually(lambda: waiting(look, unique_name, tenured) >= 1)
    held = wire.on("renew", "hold")
    extending = api.start(lease.extend, 1)
    held.wait()
    lease.release()
    got = second.result(60)
    got.extend(30)
    held.let_go()
    with pytest.raises(Exception):  # noqa: B017 - released meanwhile, or not answered in time
        extending.result(60)

    assert look.pttl(f"holdfast:{{{unique_name}}}") >= got.remaining() * 1000 - 1000
    got.release()
    eventually(lambda: gone(look, unique_name))

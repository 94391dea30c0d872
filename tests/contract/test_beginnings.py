"""All ways for a lease to begin: each is told of, and so is its end; a message that comes before it is known counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

import holdfast
from holdfast import embedded
from holdfast._core.effects import Wake
from holdfast._core.settings import DEFAULT
from holdfast.errors import LeaseLost
from testbed.proxy import Proxy
from testbed.waiting import PATIENCE_S, eventually
from tests.support.apis import Api, close_brought

#: Leases that last: nothing but a message ends them, and no renewal comes.
TTL_S = 600.0


class Noted(holdfast.Observer):
    """Counts the leases that began and ended."""

    def __init__(self) -> None:
        self.began = 0
        self.ended: Counter[str] = Counter()

    def acquired(self, lease: holdfast.LeaseInfo, waited_s: float) -> None:
        self.began += 1

    def released(self, lease: holdfast.LeaseInfo, held_s: float) -> None:
        self.ended["released"] += 1

    def lost(self, lease: holdfast.LeaseInfo, held_s: float | None, reason: str) -> None:
        self.ended["lost"] += 1


class Stage:
    """A client that is observed, another one, and what happens right before the last lease of a way is known."""

    def __init__(self, api: Api, url: str, name: str) -> None:
        self.api = api
        self.name = name
        self.noted = Noted()
        self.locks = api.connect(url, observer=self.noted, tenure=0.1)
        self.others = api.connect(url)
        #: How many leases began; those of them that are held beside the one that a way returns.
        self.begun = 0
        self.beside: list[Any] = []
        self.message: Wake | None = None
        self._armed = False

    def begins(self, lease: Any) -> Any:
        assert lease is not None
        self.begun += 1
        return lease

    def last(self) -> None:
        """From now on, a lease begins behind the message."""
        session = self.locks._session
        driver = session.driver
        watch = driver.watch

        def behind(hold: Any) -> None:
            message, self.message = self.message, None
            if message is not None:
                driver.client.notices.told(hold.token, message)
            watch(hold)

        driver.watch = behind


def free(on: Stage) -> Any:
    on.begins(on.locks.lock("warm " + on.name).acquire()).release()  # there is a driver
    on.last()
    return on.begins(on.locks.lock(on.name, ttl=TTL_S).acquire())


def tried(on: Stage) -> Any:
    on.begins(on.locks.lock(on.name).try_acquire()).release()
    on.last()
    return on.begins(on.locks.lock(on.name, ttl=TTL_S).try_acquire())


def _waits_for(on: Stage, lock: Any, **options: Any) -> Any:
    """Acquire behind another client: the grant comes by a message, after the other's release."""
    other = on.others.lock(on.name, ttl=TTL_S).acquire()
    waiting = on.api.start(lock.acquire, **options)
    eventually(lambda: on.others.lock(on.name).waiters() == 1)
    on.last()
    other.release()
    return on.begins(waiting.result(PATIENCE_S))


def pushed(on: Stage) -> Any:
    on.begins(on.locks.lock("warm " + on.name).acquire()).release()
    return _waits_for(on, on.locks.lock(on.name, ttl=TTL_S))


def handed_on(on: Stage) -> Any:
    lock = on.locks.lock(on.name, ttl=TTL_S)
    held = on.begins(lock.acquire())
    waiting = [on.api.start(lock.acquire) for _ in range(2)]
    eventually(lambda: lock.waiters() == 2)
    held.release()
    eventually(lambda: any(each.done() for each in waiting))
    first = on.begins(next(each for each in waiting if each.done()).result())
    on.last()
    first.release()
    return on.begins(next(each.result(PATIENCE_S) for each in waiting if each.result(PATIENCE_S) is not first))


def _keep(on: Stage) -> Any:
    lock = on.locks.lock(on.name, ttl=TTL_S, cache_for=TTL_S / 2)
    session = on.locks._session

    def is_kept() -> bool:
        on.begins(lock.acquire()).release()
        driver = session.driver
        return any(type(kept.holder) is list for kept in driver.lease_cache.values())

    eventually(is_kept)
    return lock


def kept(on: Stage) -> Any:
    lock = _keep(on)
    on.begins(lock.acquire()).release()
    on.last()
    return on.begins(lock.acquire())


def reentrant(on: Stage) -> Any:
    actor = on.api.actor()
    lock = on.locks.lock(on.name, ttl=TTL_S, reentrant=True)
    on.begins(on.locks.lock("warm " + on.name).acquire()).release()
    on.last()
    lease = on.begins(actor.ask(lock, "acquire"))
    if lease.held:
        assert actor.ask(lock, "acquire").token == lease.token, "the same one"
        lease.release()  # one of two
    return lease


def reader(on: Stage) -> Any:
    rwlock = on.locks.rwlock(on.name, ttl=TTL_S)
    on.begins(rwlock.read().acquire()).release()
    on.last()
    return on.begins(rwlock.read().acquire())


def writer(on: Stage) -> Any:
    rwlock = on.locks.rwlock(on.name, ttl=TTL_S)
    on.begins(rwlock.write().acquire()).release()
    on.last()
    return on.begins(rwlock.write().acquire())


def upgraded(on: Stage) -> Any:
    beneath = on.begins(on.locks.rwlock(on.name, ttl=TTL_S).read().acquire())
    on.beside.append(beneath)
    on.last()
    return on.begins(beneath.upgrade())


def downgraded(on: Stage) -> Any:
    above = on.begins(on.locks.rwlock(on.name, ttl=TTL_S).write().acquire())
    on.last()
    return on.begins(above.downgrade())


def permit(on: Stage) -> Any:
    semaphore = on.locks.semaphore(on.name, 2, ttl=TTL_S)
    on.begins(semaphore.acquire()).release()
    on.last()
    return on.begins(semaphore.acquire())


def several(on: Stage) -> Any:
    multilock = on.locks.multilock(on.name, f"{on.name} 2", ttl=TTL_S)
    on.begins(multilock.acquire()).release()
    on.last()
    return on.begins(multilock.acquire())


def elected(on: Stage) -> Any:
    election = on.locks.election(on.name, ttl=TTL_S)
    on.begins(election.campaign()).release()
    on.last()
    return on.begins(election.campaign())


def adopted(on: Stage) -> Any:
    handle = on.begins(on.locks.lock(on.name, ttl=TTL_S).acquire()).handle()
    on.last()
    return on.begins(on.locks.adopt(handle, ttl=TTL_S))


def waited(on: Stage) -> Any:
    """Wait for a condition: the lease is given back meanwhile, and is the same again afterwards."""
    lock = on.locks.lock(on.name, ttl=TTL_S)
    condition = on.locks.condition(getattr(lock, "_target", lock))
    actor = on.api.actor()
    lease = on.begins(actor.ask(lock, "acquire"))
    on.last()
    actor.ask(condition, "wait", 0.01)
    return lease


WAYS: tuple[Callable[[Stage], Any], ...] = (
    free,
    tried,
    pushed,
    handed_on,
    kept,
    reentrant,
    reader,
    writer,
    upgraded,
    downgraded,
    permit,
    several,
    elected,
    adopted,
    waited,
)


@pytest.fixture(params=WAYS, ids=lambda way: way.__name__)
def way(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def stage(api: Api, valkey_server: embedded.Server, unique_name: str) -> Stage:
    return Stage(api, valkey_server.url, unique_name)


def ended(on: Stage, **how: int) -> None:
    """Check that as many leases have ended as have begun, in these ways."""
    eventually(lambda: on.noted.ended == how, f"they have ended so: {how}")
    assert on.noted.began == on.begun == sum(how.values())


def test_what_is_released_was_told_of_once(stage: Stage, way: Callable[[Stage], Any]) -> None:
    lease = way(stage)
    lease.release()
    for each in stage.beside:
        each.release()
    ended(stage, released=stage.begun)


def test_what_is_broken_was_told_of_once(stage: Stage, way: Callable[[Stage], Any]) -> None:
    lease = way(stage)
    assert stage.others.break_(stage.name)
    assert lease.lost.wait(PATIENCE_S)
    for each in stage.beside:
        each.lost.wait(PATIENCE_S)
    lost = 1 + len(stage.beside)
    ended(stage, lost=lost, **({"released": stage.begun - lost} if stage.begun > lost else {}))


def test_a_break_that_comes_first_ends_it(stage: Stage, way: Callable[[Stage], Any]) -> None:
    """The answer was slow, or the message stood right behind the grant."""
    stage.message = Wake(Wake.BREAK, text="me: stuck")
    lease = way(stage)
    assert lease.lost.wait(PATIENCE_S)
    with pytest.raises(LeaseLost, match="broken by me: stuck"):
        lease.ensure_held()
    for each in stage.beside:
        each.release()
    ended(stage, lost=1, **({"released": stage.begun - 1} if stage.begun > 1 else {}))


def test_an_ask_that_comes_first_reaches_it(stage: Stage, way: Callable[[Stage], Any]) -> None:
    stage.message = Wake(Wake.WANT, text="me: please")
    lease = way(stage)
    assert lease.wanted.wait(PATIENCE_S)
    assert lease.wanted.reason == "me: please"
    assert lease.held
    lease.release()
    for each in stage.beside:
        each.release()
    ended(stage, released=stage.begun)


@pytest.mark.parametrize("kind", ["lock", "writer", "semaphore"])
def test_a_break_while_the_answer_is_under_way(
    api: Api, valkey_server: embedded.Server, unique_name: str, kind: str
) -> None:
    """The breaker releases it on behalf of a holder that does not know of its lease yet."""
    with Proxy(valkey_server.host, valkey_server.port) as wire:
        brought = api.redis().Redis.from_url(wire.url)
        locks = api.client(brought, _settings=DEFAULT._replace(request_timeout_s=PATIENCE_S))  # it is not repeated
        others = api.connect(valkey_server.url)
        make: dict[str, Callable[[Any, str], Any]] = {
            "lock": lambda of, name: of.lock(name, ttl=TTL_S),
            "writer": lambda of, name: of.rwlock(name, ttl=TTL_S).write(),
            "semaphore": lambda of, name: of.semaphore(name, 1, ttl=TTL_S),
        }
        held = make[kind](locks, unique_name + " listens").acquire()
        eventually(lambda: bool(others.ask(unique_name + " listens")))
        held.release()
        late = wire.on({"lock": "acquire", "writer": "rw_acquire", "semaphore": "sem_acquire"}[kind], "hold the reply")
        waiting = api.start(make[kind](locks, unique_name).acquire)
        late.wait()
        eventually(lambda: bool(others.break_(unique_name, reason="too slow")), "the server has granted it")
        late.let_go()
        lease = waiting.result(PATIENCE_S)
        assert lease.lost.wait(PATIENCE_S)
        assert "too slow" in lease.lost.reason
        make[kind](others, unique_name).acquire(timeout=PATIENCE_S).release()
        locks.close()
        close_brought(api, brought)

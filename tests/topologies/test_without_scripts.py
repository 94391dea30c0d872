"""A server that knows no scripts: plain commands, found out once, with a warning."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import holdfast
from holdfast import embedded, errors
from testbed import servers
from testbed.servers import KINDS, Kind
from testbed.topologies import plain
from testbed.waiting import PATIENCE_S, eventually
from tests.support.apis import Api, function_for
from tests.support.standin import LikeRedis84


@pytest.fixture(scope="module")
def without_scripts() -> Iterator[Callable[[Kind], embedded.Server]]:
    started: dict[Kind, embedded.Server] = {}

    def get(kind: Kind) -> embedded.Server:
        if kind not in started:
            started[kind] = servers.start(kind, config={"rename-command": ['EVAL ""', 'EVALSHA ""', 'SCRIPT ""']})
        return started[kind]

    yield get
    for server in started.values():
        server.close()


@pytest.fixture(params=KINDS)
def server(request: pytest.FixtureRequest, without_scripts: Callable[[Kind], embedded.Server]) -> embedded.Server:
    return without_scripts(request.param)


def key(name: str) -> str:
    return f"holdfast:{{{name}}}"


def warned(api: Api, url: str, name: str) -> Any:
    """A client that has found out."""
    locks = api.connect(url)
    with pytest.warns(RuntimeWarning, match="no scripts"):
        locks.lock(f"{name}-first").acquire().release()
    return locks


def test_nothing_is_broken_or_asked_for(server: embedded.Server, api: Api, unique_name: str) -> None:
    locks = warned(api, server.url, unique_name)
    lease = locks.lock(unique_name, ttl=20).acquire()
    for act in (locks.break_, locks.ask):
        with pytest.raises(errors.ConfigurationError, match=r"needs EVAL"):
            act(unique_name)
    assert lease.held
    lease.release()


def test_it_is_found_out_once(server: embedded.Server, api: Api, unique_name: str) -> None:
    locks = warned(api, server.url, unique_name)
    lock = locks.lock(unique_name, ttl=20)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lease = lock.acquire()
        with plain(server) as client:
            assert client.get(key(unique_name)) == lease.token
            assert 0 < client.pttl(key(unique_name)) <= 20_000
            lease.extend(40)
            assert 20_000 < client.pttl(key(unique_name)) <= 40_000
            assert lock.holder().token == lease.token
            lease.release()
            assert not client.exists(key(unique_name))
        assert not lock.locked()


def test_they_exclude_and_take_turns(server: embedded.Server, api: Api, unique_name: str) -> None:
    locks, others = warned(api, server.url, unique_name), warned(api, server.url, f"{unique_name}-other")
    lease = locks.lock(unique_name).acquire()
    assert others.lock(unique_name).try_acquire() is None
    with pytest.raises(holdfast.AcquireTimeout):
        others.lock(unique_name).acquire(timeout=0.2)
    waiting = api.start(others.lock(unique_name).acquire, timeout=60)
    lease.release()
    second = waiting.result()
    assert second.fencing_token > lease.fencing_token
    second.release()


def test_who_waits_is_told_for_whom(server: embedded.Server, api: Api, unique_name: str) -> None:
    locks = warned(api, server.url, unique_name)
    others = warned(api, server.url, f"{unique_name}-others")
    lease = locks.lock(unique_name).acquire()
    told: list[holdfast.Waiting] = []
    waiting = api.start(others.lock(unique_name).acquire, PATIENCE_S, on_wait=told.append)
    eventually(lambda: len(told) > 1)
    assert told[-1].place is None  # there is no queue
    lease.release()
    waiting.result().release()


def test_what_is_not_ours_is_left_alone(server: embedded.Server, api: Api, unique_name: str) -> None:
    locks = warned(api, server.url, unique_name)
    lease = locks.lock(unique_name, ttl=2).acquire()
    with plain(server) as client:
        client.set(key(unique_name), "a thief's", px=60_000)
        assert lease.lost.wait(30)
        second = api.start(locks.lock(unique_name).acquire, timeout=60)
        assert client.get(key(unique_name)) == "a thief's"
        client.delete(key(unique_name))
        second.result().release()
        eventually(lambda: not client.exists(key(unique_name)))


def test_the_others_need_scripts(server: embedded.Server, api: Api, unique_name: str) -> None:
    locks = api.connect(server.url)
    once = function_for(api, lambda: None)
    for use in (
        locks.semaphore(unique_name, 3).try_acquire,
        locks.rwlock(unique_name).read().try_acquire,
        locks.multilock(unique_name, f"{unique_name}-2").try_acquire,
        locks.event(unique_name).wait,
        locks.latch(unique_name, 2).count_down,
        locks.barrier(unique_name, 2).wait,
        lambda: locks.once(unique_name, once, retain=60),
    ):
        with pytest.raises(holdfast.ConfigurationError, match=rf"'(once:)?{unique_name}(-2)?' needs EVAL, and it said"):
            use()
    with plain(server) as client:
        assert client.keys(f"*{unique_name}*") == []


def test_redis_84_compares_and_deletes_with_delex(
    without_scripts: Callable[[Kind], embedded.Server], api: Api, unique_name: str
) -> None:
    server = without_scripts("valkey")
    with LikeRedis84(server.host, server.port) as standin, plain(server) as client:
        locks = warned(api, standin.url, unique_name)
        assert (standin.commands["DELIFEQ"], standin.commands["DELEX"]) == (1, 1), "found out by using them"
        lease = locks.lock(unique_name, ttl=20).acquire()
        assert client.get(key(unique_name)) == lease.token
        lease.extend(40)
        assert client.pttl(key(unique_name)) > 20_000
        lease.release()
        assert not client.exists(key(unique_name))
        stolen = locks.lock(unique_name, ttl=20).acquire()
        client.set(key(unique_name), "a thief's", px=60_000)
        with pytest.raises(holdfast.LeaseLost):
            stolen.release()
        assert client.get(key(unique_name)) == "a thief's", "compared"
        assert (standin.commands["DELIFEQ"], standin.commands["DELEX"]) == (1, 3), "once is enough"


# ---------------------------------------------------------------- scripts that are forbidden to a user


@pytest.fixture
def poor(server_kind: Kind, private_server: Callable[..., embedded.Server]) -> Callable[..., str]:
    """``poor("-@scripting")``: the URL of a user without these rights."""
    server = private_server(server_kind)

    def url(*rights: str) -> str:
        with plain(server) as client:
            client.execute_command("ACL", "SETUSER", "poor", "reset", "on", ">pw", "~*", "&*", *rights)
        return f"redis://poor:pw@{server.host}:{server.port}/0"

    url.server = server  # type: ignore[attr-defined]
    return url


def test_a_user_who_may_not_run_scripts_has_plain_locks(poor: Any, api: Api, unique_name: str) -> None:
    rich = api.connect(poor.server.url)
    locks = api.connect(poor("+@all", "-@scripting"))
    with pytest.warns(RuntimeWarning, match=r"NOPERM.*no scripts for us.*\+evalsha"):
        lease = locks.lock(unique_name).acquire()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert locks.lock(f"{unique_name}-other").holder() is None
        # Those who may run them are excluded, queue, and get their turn, though no one wakes them.
        assert rich.lock(unique_name).try_acquire() is None
        waiting = api.start(rich.lock(unique_name).acquire, timeout=60)
        eventually(lambda: rich.lock(unique_name).waiters() == 1)
        lease.release()
        second = waiting.result(60)
        assert second.fencing_token > lease.fencing_token
        assert locks.lock(unique_name).try_acquire() is None
        second.release()
        third = locks.lock(unique_name).acquire(timeout=60)
        assert third.fencing_token > second.fencing_token
        third.release()
    with pytest.raises(errors.ScriptRefused, match="NOPERM"):
        locks.semaphore(unique_name, 3).try_acquire()
    with pytest.raises(errors.ScriptRefused, match="NOPERM"):
        locks.lock(unique_name, sync_replicas=1).try_acquire()


@pytest.mark.parametrize("lacking", ["-watch", "-getrange"])
def test_a_user_who_may_do_neither_is_told_of_the_scripts(poor: Any, api: Api, unique_name: str, lacking: str) -> None:
    """Also where a right is needed only once another one holds the lock."""
    locks = api.connect(poor("+@all", "-@scripting", lacking))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            with pytest.raises(errors.ScriptRefused, match="evalsha"):
                locks.lock(unique_name).try_acquire()
        with pytest.raises(errors.ScriptRefused, match="evalsha"):
            locks.lock(unique_name).holder()
    with plain(poor.server) as client:
        assert not client.exists(key(unique_name))

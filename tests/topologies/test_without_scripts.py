"""A server that knows no scripts: plain commands, found out once, with a warning."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import holdfast
from holdfast import embedded
from tests.support import servers
from tests.support.faces import Face, eventually
from tests.support.servers import KINDS, Kind
from tests.support.topologies import plain


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


def warned(face: Face, url: str, name: str) -> Any:
    """A client that has found out."""
    locks = face.connect(url)
    with pytest.warns(RuntimeWarning, match="no scripts"):
        locks.lock(f"{name}-first").acquire().release()
    return locks


def test_it_is_found_out_once(server: embedded.Server, face: Face, unique_name: str) -> None:
    locks = warned(face, server.url, unique_name)
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


def test_they_exclude_and_take_turns(server: embedded.Server, face: Face, unique_name: str) -> None:
    locks, others = warned(face, server.url, unique_name), warned(face, server.url, f"{unique_name}-other")
    lease = locks.lock(unique_name).acquire()
    assert others.lock(unique_name).try_acquire() is None
    with pytest.raises(holdfast.AcquireTimeout):
        others.lock(unique_name).acquire(timeout=0.2)
    waiting = face.start(others.lock(unique_name).acquire, timeout=60)
    lease.release()
    second = waiting.result()
    assert second.fencing_token > lease.fencing_token
    second.release()


def test_what_is_not_ours_is_left_alone(server: embedded.Server, face: Face, unique_name: str) -> None:
    locks = warned(face, server.url, unique_name)
    lease = locks.lock(unique_name, ttl=2).acquire()
    with plain(server) as client:
        client.set(key(unique_name), "a thief's", px=60_000)
        assert lease.lost.wait(30)
        second = face.start(locks.lock(unique_name).acquire, timeout=60)
        assert client.get(key(unique_name)) == "a thief's"
        client.delete(key(unique_name))
        second.result().release()
        eventually(lambda: not client.exists(key(unique_name)))


def test_the_others_need_scripts(server: embedded.Server, face: Face, unique_name: str) -> None:
    locks = face.connect(server.url)
    with pytest.raises(holdfast.ServerError, match="unknown command"):
        locks.semaphore(unique_name, 3).try_acquire()

"""A server that forgets its scripts before every single command, as with SCRIPT FLUSH in a loop."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from holdfast import embedded
from testbed.waiting import eventually
from tests.support.apis import Api
from tests.support.standin import LikeRedis84


class Forgetful(LikeRedis84):
    """Between any two commands someone has made the server forget."""

    def __init__(self, host: str, port: int) -> None:
        self._other = redis.Redis(host, port)
        super().__init__(host, port)

    def _rewritten(self, request: list[Any]) -> tuple[Any, ...]:
        self._other.script_flush()
        return tuple(request)

    def close(self) -> None:
        super().close()
        self._other.close()


@pytest.fixture
def forgetful(private_server: Any) -> Iterator[Forgetful]:
    server: embedded.Server = private_server()
    with Forgetful(server.host, server.port) as standin:
        yield standin


def test_everything_works(api: Api, forgetful: Forgetful, unique_name: str) -> None:
    locks, others = api.connect(forgetful.url), api.connect(forgetful.url)
    with locks.lock(unique_name, ttl=20) as lease:
        lease.extend(30)
        waiting = api.start(others.lock(unique_name, ttl=20).acquire, 30)
        eventually(lambda: locks.lock(unique_name).waiters() == 1)
    waiting.result(30).release()
    locks.semaphore(unique_name, permits=2).acquire(timeout=10).release()
    locks.rwlock(unique_name).read().acquire(timeout=10).release()
    locks.multilock(unique_name, f"{unique_name}-b").acquire(timeout=10).release()


def test_no_lease_is_lost(api: Api, forgetful: Forgetful, unique_name: str) -> None:
    """Renewals of many leases go in one pipeline."""
    locks = api.connect(forgetful.url)
    leases = [locks.lock(f"{unique_name}-{number}", ttl=1.5).acquire(timeout=20) for number in range(12)]
    until = time.monotonic() + 4
    while time.monotonic() < until:
        assert all(lease.remaining() > 0 for lease in leases)
        time.sleep(0.1)
    for lease in leases:
        lease.release()


def test_a_quorum_works(api: Api, forgetful: Forgetful, private_server: Any, unique_name: str) -> None:
    second, third = private_server(), private_server()
    client = api.module().Client.quorum([forgetful.url, second.url, third.url], restart_delay=0)
    locks = api.wrap(client)
    second.close()  # the forgetful one is needed
    try:
        with locks.lock(unique_name, ttl=10) as lease:
            lease.extend(20)
    finally:
        locks.close()

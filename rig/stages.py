"""Servers for a run, and how workers reach them."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import redis

from holdfast import embedded
from holdfast_lab.servers import Clock
from testbed import leaks, servers
from testbed.proxy import Proxy
from testbed.topologies import Cluster, Quorum, WithSentinel

__all__ = ["STAGES", "Stage"]

#: A member of a quorum does not vote for this long after its start, s; not below the longest ttl of the locks that
#: workers and lives contend for: some lives extend theirs to this.
RESTART_DELAY_S = 5.0
#: A set of tombstones is trimmed; in a run it may grow to this size.
GONE_MAX = 100_000


def _own_ports() -> set[str]:
    """Local ports of this process's connections."""
    inodes = set()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            inodes.add(os.readlink(f"/proc/self/fd/{number}").removeprefix("socket:[").removesuffix("]"))
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {str(int(words[1].rpartition(":")[2], 16)) for words in lines if words[9] in inodes}


class Stage:
    """One topology. `clock`: a wall clock of its servers that can be made to jump, or None."""

    name = ""
    #: Options of holdfast's clients.
    options: dict[str, Any] = {}  # noqa: RUF012 - no one changes it
    clock: Clock | None = None
    #: Whether a server that was killed has its data when it is started again.
    durable = False

    def __init__(self) -> None:
        self._close = contextlib.ExitStack()
        self.servers: Sequence[embedded.Server] = ()
        #: The wires of each worker, by its number.
        self.wires: dict[int, list[Proxy]] = {}

    def url_for(self, worker: int) -> str:
        """Return the URL for that worker, through wires of its own where the topology allows that."""
        raise NotImplementedError

    def urls_for(self, worker: int) -> str:
        """The same for a client that wants a URL of each server, separated by commas."""
        self.url_for(worker)
        return ",".join(wire.url for wire in self.wires[worker])

    def look(self, server: embedded.Server) -> Any:
        """redis-py for one server, which gives up soon."""
        return redis.Redis(
            host=server.host, port=server.port, socket_timeout=3, socket_connect_timeout=3, decode_responses=True
        )

    def masters(self) -> list[embedded.Server]:
        """Return the servers that locks are on, as far as can be told now."""
        return list(self.servers)

    def left_over(self, pattern: str = "*torture*") -> list[str]:
        """Keys that are locks, on all masters."""
        found = []
        for server in self.masters():
            with contextlib.suppress(redis.RedisError), self.look(server) as client:
                for key in client.scan_iter(pattern, count=1000):
                    if not leaks.remembered(key) and not leaks.outlived(client, key):
                        found.append(key)
        return found

    def keys(self, names: Sequence[str]) -> dict[str, str]:
        """Describe those of these keys that are on a master."""
        told = {}
        for server in self.masters():
            with contextlib.suppress(redis.RedisError), self.look(server) as client:
                found = leaks.keys_of(client)
                told.update({name: f"{found[name]} on {server.port}" for name in names if name in found})
        return told

    def remove(self, keys: Sequence[str]) -> None:
        """Delete keys, so that what was found once is not found again."""
        for server in self.masters():
            with self.look(server) as client:
                for key in keys:
                    with contextlib.suppress(redis.RedisError):  # in a Cluster it is another one's
                        client.delete(key)

    def unended(self) -> list[str]:
        """Keys without an end, on all masters; sets of what was given back that grow."""
        found = []
        for server in self.masters():
            with contextlib.suppress(redis.RedisError), self.look(server) as client:
                found += leaks.wrong_keys(client, gone_max=GONE_MAX)
        return found

    def connections(self) -> list[str]:
        """Find open connections to all servers, but for our own and those of the servers among themselves."""
        found = []
        for server in self.servers:
            with contextlib.suppress(redis.RedisError), self.look(server) as client:
                client.ping()  # our own connection is open, too
                own = _own_ports()
                for each in (*client.client_list("normal"), *client.client_list("pubsub")):
                    port = each["addr"].rpartition(":")[2]
                    if port not in own and not each["name"].startswith("sentinel"):
                        found.append(f"connection to {server.port}: {each['name'] or each['addr']} ({each['cmd']})")
        return found

    def _wired(self, worker: int, targets: Sequence[embedded.Server]) -> list[Proxy]:
        proxies = [self._close.enter_context(Proxy(server.host, server.port)) for server in targets]
        self.wires[worker] = proxies
        return proxies

    def close(self) -> None:
        self._close.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Single(Stage):
    """One server."""

    name = "single"

    def __init__(self) -> None:
        super().__init__()
        try:
            if shutil.which("gcc") is not None:
                self.clock = Clock()
                self._close.callback(self.clock.close)
            executable = self.clock.program if self.clock is not None else servers.executable("valkey")
            config: dict[str, Any] = {"lua-time-limit": 50}
            if self.durable:
                config |= {"appendonly": "yes", "appendfsync": "always"}
            server = embedded.server(port=0, password="", executable=str(executable), config=config)
            self._close.callback(server.close)
            self.servers = [server]
        except BaseException:
            self.close()
            raise

    def url_for(self, worker: int) -> str:
        return self._wired(worker, self.servers)[0].url


class Durable(Single):
    """One server that writes everything to disk before it answers."""

    durable = True


class FiveIndependent(Stage):
    """Redlock's quorum."""

    name = "quorum"

    def __init__(self) -> None:
        super().__init__()
        self._quorum = self._close.enter_context(Quorum(5))
        self.servers = self._quorum.servers

    def url_for(self, worker: int) -> str:
        wires = self._wired(worker, self.servers)
        addresses = ",".join(f"127.0.0.1:{wire.port}" for wire in wires)
        return f"redlock://{addresses}/0?restart_delay={RESTART_DELAY_S:g}"


class Failover(Stage):
    """A master with two replicas and three Sentinels."""

    name = "sentinel"
    options = {"sync_replicas": "all"}  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()
        self.topology = self._close.enter_context(WithSentinel())
        self.topology.ready_for_failover()
        self.servers = [self.topology.master, *self.topology.replicas]

    def url_for(self, worker: int) -> str:
        return self.topology.url

    def masters(self) -> list[embedded.Server]:
        with contextlib.suppress(redis.RedisError, StopIteration):
            return [self.topology.master_now()]
        return []


class Slots(Stage):
    """A Cluster of three masters, each with a replica, which no lease waits for."""

    name = "cluster"

    def __init__(self) -> None:
        super().__init__()
        self.topology = self._close.enter_context(Cluster())
        self.servers = self.topology.servers

    def url_for(self, worker: int) -> str:
        return self.topology.url

    def masters(self) -> list[embedded.Server]:
        found = []
        for server in self.servers:
            with contextlib.suppress(redis.RedisError), self.look(server) as client:
                if client.info("replication")["role"] == "master":
                    found.append(server)
        return found


class SyncedSlots(Slots):
    """The same; a lease counts when all replicas have it."""

    options = {"sync_replicas": "all"}  # noqa: RUF012


STAGES: dict[str, type[Stage]] = {
    "single": Single,
    "durable": Durable,
    "quorum": FiveIndependent,
    "sentinel": Failover,
    "cluster": Slots,
    "cluster-synced": SyncedSlots,
}

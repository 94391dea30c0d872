"""A Cluster whose nodes change their addresses: what has left costs nothing."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Any

import hiredis
import pytest

from holdfast import embedded
from holdfast._engine import cluster as cluster_module
from holdfast._engine.loop import engine
from holdfast._engine.pack import pack_command
from holdfast._runtime.clock import clock
from testbed.waiting import eventually
from tests.support.apis import Api
from tests.support.standin import StandIn, pump, read_one


class Node(StandIn):
    """One node that owns every slot, or none: `owner` says who, and it sends others there."""

    def __init__(self, server: embedded.Server) -> None:
        self._target = (server.host, server.port)
        self.owner: Node = self
        self.replicas: list[Node] = []
        self.clients: set[socket.socket] = set()
        super().__init__()

    def serve(self, client: socket.socket) -> None:
        self.clients.add(client)
        try:
            self._answer(client)
        finally:
            self.clients.discard(client)

    def _answer(self, client: socket.socket) -> None:
        reader = hiredis.Reader()
        subscribed = False
        with socket.create_connection(self._target) as server:
            while data := client.recv(65536):
                reader.feed(data)
                while (request := reader.gets()) is not False:
                    word = request[0].upper()
                    if word == b"CLUSTER":
                        named = [self.owner, *self.replicas]
                        each = [b"*3\r\n$9\r\n127.0.0.1\r\n:%d\r\n$1\r\nx\r\n" % node.port for node in named]
                        client.sendall(b"*1\r\n*%d\r\n:0\r\n:16383\r\n" % (2 + len(each)) + b"".join(each))
                    elif word in (b"EVALSHA", b"EVAL") and self.owner is not self:
                        client.sendall(b"-MOVED 0 %b\r\n" % self.owner.address.encode())
                    else:
                        server.sendall(pack_command(request))
                        if subscribed:
                            continue  # the other thread passes everything on
                        client.sendall(read_one(server))
                        if subscribed := word in (b"SUBSCRIBE", b"SSUBSCRIBE"):
                            threading.Thread(target=pump, args=(server, client), daemon=True).start()


@pytest.fixture
def server(valkey_server: embedded.Server) -> embedded.Server:
    return valkey_server


@pytest.fixture
def nodes(server: embedded.Server) -> Iterator[list[Node]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(Node(server)) for _ in range(4)]


def test_connections_to_a_node_that_has_left_are_closed(
    api: Api, nodes: list[Node], unique_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_module, "FORGET_AFTER_S", 0.0)
    seed = nodes[0]
    locks = api.connect(f"redis+cluster://{seed.address}")
    waiters = api.connect(f"redis+cluster://{seed.address}")
    for owner in nodes:  # the seed itself first, and each has left when the next one owns everything
        for node in nodes:
            node.owner = owner
        lease = locks.lock(unique_name, ttl=20).acquire(timeout=20)
        waiting = api.start(waiters.lock(unique_name, ttl=20).acquire, timeout=20)  # it has its inbox there
        eventually(lambda: locks.lock(unique_name).waiters() == 1)
        lease.release()
        waiting.result(20).release()

    def are_gone() -> bool:
        """With threads, the caller that asks for something reads the table."""
        for client in (locks, waiters):
            client.lock(unique_name).locked()
        return not any(node.clients for node in nodes[1:-1])

    eventually(are_gone, "their connections are closed")
    assert nodes[-1].clients


def cluster_of(*hosts: str) -> cluster_module.Cluster:
    """One that connects to no server."""
    return cluster_module.Cluster(engine(), [(host, 1) for host in hosts], lambda host, port: lambda: None)


def names(topology: cluster_module.Cluster) -> list[str]:
    return [node.name for node in topology.nodes()]


def table(*hosts: str) -> list[Any]:
    return [[at, at, [host.encode(), 1, b"x"]] for at, host in enumerate(hosts)]


def test_a_master_fails_over_when_the_seeds_have_gone(api: Api, server: embedded.Server, unique_name: str) -> None:
    """The replica of the node is asked for the table, though more others come before it."""
    with Node(server) as replica:
        with Node(server) as master, contextlib.ExitStack() as stack:
            seeds = [stack.enter_context(Node(server)) for _ in range(cluster_module.REFRESH_TRIES)]
            for node in (master, *seeds):
                node.owner, node.replicas = master, [replica]
            locks = api.connect(f"redis+cluster://{','.join(seed.address for seed in seeds)}")
            locks.lock(unique_name).acquire(timeout=20).release()
            assert not replica.clients
        locks.lock(unique_name).acquire(timeout=20).release()
        assert replica.clients


def test_known_nodes_are_those_that_tables_name(monkeypatch: pytest.MonkeyPatch) -> None:
    now = clock()
    monkeypatch.setattr(cluster_module, "clock", lambda: now)
    topology = cluster_of("seed")
    (seed,) = topology.nodes()
    assert topology._learn(seed, table("a", "b"))
    for number in range(1_000):
        now += cluster_module.FORGET_AFTER_S / 2
        topology._learn(seed, table(f"n{number}", f"n{number + 1}"))
        assert len(topology.nodes()) <= 1 + 2 + 3  # the seed, those of the table, those of the time before
        assert topology.node_for("key", None) in topology.nodes()
    assert topology.nodes()[0] is seed
    now += cluster_module.FORGET_AFTER_S
    topology._learn(seed, table("n999", "back"))
    topology._learn(seed, table("n999"))  # not named this time only
    assert "back:1" in names(topology)


def test_any_number_of_nodes_in_a_table_or_a_redirection(monkeypatch: pytest.MonkeyPatch) -> None:
    topology = cluster_of("seed")
    (seed,) = topology.nodes()
    monkeypatch.setattr(cluster_module, "KNOWN_MAX", 50)
    for number in range(10):
        topology._learn(seed, table(*[f"n{number}-{at}" for at in range(60)]))
        assert len(topology.nodes()) <= 1 + 60

"""Topologies for the tests in this folder, each started once by every test process that needs it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from testbed.topologies import NEVER_DOWN_MS, Cluster, Quorum, Replicated, Topology, WithSentinel
from testbed.waiting import eventually
from tests.support.apis import Api

MAKERS: dict[str, Callable[[], Topology]] = {
    "quorum": Quorum,
    "sentinel": lambda: WithSentinel(down_after_ms=NEVER_DOWN_MS),
    "cluster": lambda: Cluster(node_timeout_ms=30_000),
}


@pytest.fixture(scope="session")
def shared_topologies() -> Iterator[Callable[[str], Topology]]:
    """``shared_topologies(kind)``: this process's topology of that kind. No one hurts it."""
    made: dict[str, Topology] = {}

    def get(kind: str) -> Topology:
        if kind not in made:
            made[kind] = MAKERS[kind]()
            made[kind].quiet()
        return made[kind]

    yield get
    for topology in made.values():
        topology.close()


@pytest.fixture
def topology(kind: str, shared_topologies: Callable[[str], Topology]) -> Topology:
    """The topology that the test's module is about: `kind` is a fixture of the module."""
    return shared_topologies(kind)


@pytest.fixture
def url(topology: Topology) -> str:
    return topology.url


@pytest.fixture
def raw(topology: Any) -> Any:
    return topology.raw


@pytest.fixture
def locks(api: Api, url: str) -> Any:
    return api.connect(url)


@pytest.fixture
def others(api: Api, url: str) -> Any:
    """A second client, as another process would have."""
    return api.connect(url)


@pytest.fixture(scope="module")
def replicated() -> Iterator[Replicated]:
    with Replicated(2) as replicated:
        yield replicated


@pytest.fixture
def in_step(replicated: Replicated) -> Replicated:
    """All replicas go on, and are connected."""
    for replica in replicated.replicas:
        replica.resume()
    eventually(lambda: replicated.in_step() == 2, "both replicas are online", 60)
    return replicated

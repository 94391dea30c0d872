"""The model of replication: a replica has what its master had, in the order in which the master had it."""

from __future__ import annotations

import heapq

import pytest

from sim.faults import Nemesis
from sim.network import Node
from sim.options import Options
from sim.world import World


def written(node: Node, value: str) -> None:
    """The key gets that value there, and the replicas are told."""
    node.server.command("SET", "key", value, "PX", 60_000)
    node.changed()


def all_has_happened(world: World) -> None:
    while world.heap:
        world.now, _, act, args = heapq.heappop(world.heap)
        act(*args)


def values(world: World) -> list[bytes | None]:
    return [node.server.peek(b"key", node.wall_ms()) for node in world.nodes]


@pytest.mark.parametrize("seed", range(10))
def test_what_was_under_way_from_a_former_master_is_not_the_new_ones(seed: int) -> None:
    """In seed 22672, a replica once took a change of the old master in place of one of the new master."""
    world = World(Options(seed=seed, mode="ordinary", processes=0, nodes=3, replicas=2, lag_s=0.05), [])
    Nemesis(world).failover()
    all_has_happened(world)
    first = world.master
    written(first, "first")
    all_has_happened(world)
    assert values(world) == [b"first"] * 3
    written(first, "lost")
    Nemesis(world).failover()
    second = world.master
    assert second is not first
    written(second, "second")
    all_has_happened(world)
    assert [node.server.peek(b"key", node.wall_ms()) for node in world.nodes if node is not first] == [b"second"] * 2
    assert values(world) == [b"second"] * 3, "the old master follows in the end"


def test_every_new_data_has_a_number_of_its_own() -> None:
    world = World(Options(seed=1, mode="ordinary", processes=0, nodes=3, replicas=2), [])
    seen = {world.master.generation}
    for _ in range(3):
        Nemesis(world).failover()
        all_has_happened(world)
        assert world.master.generation not in seen
        assert {replica.generation for replica in world.master.replicas} == {world.master.generation}
        seen.add(world.master.generation)

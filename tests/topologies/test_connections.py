"""How many connections a client has, as docs/operations.md says: to each server, whatever the topology."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import holdfast
import holdfast.asyncio
from testbed.servers import unique
from testbed.topologies import Topology, plain
from testbed.waiting import PATIENCE_S, eventually

#: On how many servers there are leases; whether they have inboxes.
EXPECTED = {"cluster": (3, True), "sentinel": (1, True), "quorum": (5, False)}


@pytest.fixture(params=EXPECTED)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Look:
    """At the connections of a client that calls itself so."""

    def __init__(self, topology: Topology) -> None:
        self.name = unique("c")[-30:]
        self.url = f"{topology.url}{'&' if '?' in topology.url else '?'}client_name={self.name}"
        self._servers = topology.servers

    def __call__(self) -> list[tuple[int, int]]:
        """Of each server that has any: (all, those that listen)."""
        found = []
        for server in self._servers:
            client = plain(server)
            theirs = [each for each in client.client_list() if each["name"] == self.name]
            client.close()
            if theirs:
                found.append((len(theirs), sum(int(each["sub"]) + int(each["ssub"]) > 0 for each in theirs)))
        return found


@pytest.fixture
def look(topology: Topology) -> Look:
    return Look(topology)


def test_asyncio_has_one_to_each_server(look: Look, kind: str, unique_name: str) -> None:
    names = [f"{unique_name}-{number}" for number in range(12)]  # of any slot
    servers, listens = EXPECTED[kind]

    async def main() -> list[tuple[int, int]]:
        async with holdfast.asyncio.connect(look.url) as locks, holdfast.asyncio.connect(look.url, tenure=0) as others:
            held = [await locks.lock(name).acquire() for name in names]
            found = await asyncio.to_thread(look)  # the other client has none yet
            waiting = [asyncio.create_task(others.lock(name).acquire()) for name in names]
            if listens:
                async with asyncio.timeout(PATIENCE_S):
                    while sum([await locks.lock(name).waiters() for name in names]) < len(names):
                        await asyncio.sleep(0.05)
            for lease in held:
                await lease.release()
            for lease in await asyncio.gather(*waiting):
                await lease.release()
            return found + await asyncio.to_thread(look)

    found = asyncio.run(main())
    assert [each for each, _ in found] == [1] * servers + [2] * servers, "one client, and two of them"
    assert {count > 0 for _, count in found[servers:]} == {listens}, "the same one listens"


def test_threads_have_one_to_listen_to_each_server(look: Look, kind: str, unique_name: str) -> None:
    names = [f"{unique_name}-{number}" for number in range(12)]
    servers, listens = EXPECTED[kind]
    with holdfast.connect(look.url) as locks, holdfast.connect(look.url.replace(look.name, "other")) as others:
        for name in names:
            locks.lock(name).acquire().release()
        found = look()
        assert len(found) == servers
        assert all(each - listening <= 2 for each, listening in found), "and one in the background"
        held = [others.lock(name).acquire() for name in names]
        leases: list[Any] = []
        waiting = [
            threading.Thread(target=lambda name=name: leases.append(locks.lock(name).acquire())) for name in names
        ]
        for thread in waiting:
            thread.start()
        if listens:
            eventually(lambda: [others.lock(name).waiters() for name in names] == [1] * len(names))
            eventually(lambda: [count for _, count in look()] == [1] * servers)
        else:
            eventually(lambda: len(look()) == servers)
            assert {count for _, count in look()} == {0}, "waiters over a quorum ask"
        assert all(each <= 2 + len(names) for each, _ in look())
        for lease in held:
            lease.release()
        for thread in waiting:
            thread.join(PATIENCE_S)
        assert len(leases) == len(names)
        for lease in leases:
            lease.release()

"""The lock's contract at the master that Sentinels name."""

from __future__ import annotations

from typing import Any

import pytest

from testbed.topologies import WithSentinel
from testbed.waiting import eventually
from tests.contract import test_lock as contract
from tests.support.apis import Api, close_brought
from tests.topologies.borrowing import borrowed

#: They bring a client, or a wrong password, in a URL for one server; a client is brought below.
_ONE_SERVER = ("test_a_brought_client", "test_a_wrong_password")

globals().update(borrowed(contract, without=_ONE_SERVER))


@pytest.fixture
def kind() -> str:
    return "sentinel"


@pytest.mark.parametrize("options", [{"decode_responses": True}, {"protocol": 2}, {"protocol": 3}], ids=str)
def test_a_client_of_sentinels_that_was_brought(
    topology: WithSentinel, api: Api, others: Any, options: dict[str, Any], unique_name: str
) -> None:
    """Take a client that redis.sentinel has made."""
    addresses = [(server.host, server.port) for server in topology.sentinels]
    sentinel = api.redis().sentinel.Sentinel(addresses, socket_timeout=5)
    brought = sentinel.master_for(topology.service, **options)
    try:
        locks = api.client(brought)
        lease = locks.lock(unique_name).acquire()
        assert others.lock(unique_name).holder().token == lease.token
        waiting = api.start(others.lock(unique_name).acquire)
        eventually(lambda: locks.lock(unique_name).waiters() == 1)
        lease.release()
        waiting.result(60).release()
    finally:
        for client in (brought, *sentinel.sentinels):
            close_brought(api, client)

"""What is under way when a client is closed, and its server is gone, ends with it."""

from __future__ import annotations

from typing import Any

from testbed.waiting import eventually
from tests.support.apis import Api


def test_no_protocol_is_left(api: Api, private_server: Any, unique_name: str) -> None:
    """One that is left would be collected while it waits, which Python complains of."""
    server = private_server()
    locks = api.connect(server.url)
    lease = locks.lock(unique_name, ttl=60, confirm_release=False).acquire()
    client = locks._session.driver.client
    server.kill()
    lease.release()
    eventually(lambda: client.tasks, "the release is tried again")
    locks.close()
    eventually(lambda: not client.tasks, "all have ended", 5)

"""A subscription that breaks each time it is made is not made again without a pause."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import redis

from tests.support.apis import APIS

#: Subscriptions are cut for this long, s.
CUT_S = 2.0
#: This many are made meanwhile at most: the pauses grow from 0.05 s to 1 s.
MADE_MAX = 20


@pytest.mark.parametrize("api", sorted(APIS))
def test_an_inbox_that_breaks_again_and_again_is_opened_with_pauses(
    api: str, private_server: Any, unique_name: str
) -> None:
    server = private_server()
    holder, waiter = APIS[api](), APIS[api]()
    got: list[Any] = []
    raw = redis.Redis.from_url(server.url)
    try:
        lease = holder.connect(server.url).lock(unique_name).acquire()
        lock = waiter.connect(server.url).lock(unique_name)
        thread = threading.Thread(target=lambda: got.append(lock.acquire(timeout=60)))
        thread.start()
        until = time.monotonic() + CUT_S
        cut = 0
        while time.monotonic() < until:
            cut += raw.client_kill_filter(_type="pubsub")
            time.sleep(0.001)
        assert 1 < cut < MADE_MAX
        lease.release()
        thread.join(60)
        assert got
        got[0].release()
    finally:
        raw.close()
        holder.close()
        waiter.close()

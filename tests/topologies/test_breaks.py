"""Breaking a lease through Sentinel and in a Cluster; over a quorum it is refused."""

from __future__ import annotations

import time
from typing import Any

import pytest

from holdfast.errors import ConfigurationError
from testbed.waiting import PATIENCE_S, eventually
from tests.support.apis import Api

#: A holder that listens is told within some ms (`python -m bench.told` measures it); a busy machine may take this long.
TOLD_WITHIN_S = 5.0
TTL_S = 600.0


@pytest.fixture(params=["sentinel", "cluster"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("what", ["lock", "write", "semaphore", "election"])
def test_the_holder_is_told_soon_and_the_next_waiter_gets_it(
    locks: Any, others: Any, api: Api, what: str, unique_name: str
) -> None:
    def acquires(client: Any) -> Any:
        if what == "semaphore":
            return client.semaphore(unique_name, 1, ttl=TTL_S).acquire
        if what == "election":
            return client.election(unique_name, ttl=TTL_S).campaign
        made = client.lock(unique_name, ttl=TTL_S)
        return (client.rwlock(unique_name, ttl=TTL_S).write() if what == "write" else made).acquire

    lease = acquires(locks)()
    eventually(lambda: bool(others.ask(unique_name)))  # it listens
    waiting = api.start(acquires(others), timeout=PATIENCE_S)
    began_at = time.monotonic()
    broken = others.break_(unique_name, reason="stuck", grace=PATIENCE_S)
    assert lease.lost.wait(PATIENCE_S)
    took_s = time.monotonic() - began_at
    assert broken and not broken.forced
    assert str(lease.lost.reason).endswith(": stuck")
    following = waiting.result()
    assert following.fencing_token > lease.fencing_token
    following.release()
    assert took_s < TOLD_WITHIN_S


class TestOverAQuorum:
    @pytest.fixture
    def kind(self) -> str:
        return "quorum"

    def test_it_is_refused(self, locks: Any, unique_name: str) -> None:
        lease = locks.lock(unique_name).acquire()
        for act in (locks.break_, locks.ask):
            with pytest.raises(ConfigurationError, match="independent servers"):
                act(unique_name)
        assert lease.held
        lease.release()

"""Many leases of one client: renewed together, and each by itself in what comes of it."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import embedded
from testbed.proxy import Proxy
from testbed.waiting import eventually
from tests.support.apis import Api
from tests.support.keys import key_of

COUNT = 130


def test_many_leases_are_renewed_by_few_requests(near: Any, wire: Proxy, look: Any, unique_name: str) -> None:
    """Leases of one kind and of others; one that was taken away, and one whose key is of another type."""
    kinds = [near.rwlock(f"{unique_name}-rw", ttl=6).read(), near.semaphore(f"{unique_name}-sem", permits=3, ttl=6)]
    kinds += [near.multilock(f"{unique_name}-m1", f"{unique_name}-m2", ttl=6)]
    leases = [near.lock(f"{unique_name}-{number}", ttl=6).acquire() for number in range(COUNT)]
    leases += [kind.acquire() for kind in kinds]
    look.delete(key_of(f"{unique_name}-3"))
    look.delete(key_of(f"{unique_name}-4"))
    look.hset(key_of(f"{unique_name}-4"), "of another", "kind")
    together = wire.on("renew_many", "note", most=None)
    taken, odd = leases[3], leases[4]
    assert taken.lost.wait(30)
    assert taken.lost.reason == "taken"
    assert odd.lost.wait(30)
    assert odd.lost.reason == "expired", "no one knows whose it is, until its time is over"
    fine = [lease for lease in leases if lease not in (taken, odd)]
    eventually(lambda: all(lease.remaining() > 2.4 and lease.state.name == "HELD" for lease in fine))
    assert together.times >= 2
    assert look.pttl(key_of(f"{unique_name}-5")) <= 6000, "extended to, not by"
    for lease in fine:
        lease.release()


def test_a_user_who_may_not_touch_one_lock_keeps_the_others(
    api: Api, valkey_server: embedded.Server, look: Any, unique_name: str
) -> None:
    """The server refuses a request that names any key that is not the user's: leases are asked for alone then."""
    user = f"user-{unique_name}"
    look.acl_setuser(user, enabled=True, nopass=True, keys=["*"], channels=["*"], commands=["+@all"])
    try:
        locks = api.connect(f"redis://{user}:any@{valkey_server.host}:{valkey_server.port}", ttl=5)
        leases = [locks.lock(f"{unique_name}-{number}").acquire() for number in range(20)]
        keys = [f"{key_of(f'{unique_name}-{number}')}*" for number in range(20) if number != 7]
        look.acl_setuser(user, reset_keys=True, keys=[*keys, "holdfast:client:*"])
        assert leases[7].lost.wait(30)
        others = [lease for lease in leases if lease is not leases[7]]
        eventually(lambda: all(lease.remaining() > 2 and lease.state.name == "HELD" for lease in others))
        for lease in others:
            lease.release()
    finally:
        look.acl_deluser(user)


def test_a_server_that_forgets_scripts_renews_many(
    api: Api, valkey_server: embedded.Server, look: Any, unique_name: str
) -> None:
    locks = api.connect(valkey_server.url, ttl=1.5)
    leases = [locks.lock(f"{unique_name}-{number}").acquire() for number in range(20)]
    before = [lease.remaining() for lease in leases]
    for _ in range(4):
        look.script_flush()
        eventually(lambda: min(lease.remaining() for lease in leases) > 1.0, "renewed")
    assert all(lease.state.name == "HELD" for lease in leases)
    assert all(left_s <= 1.5 for left_s in before)
    for lease in leases:
        lease.release()


@pytest.mark.parametrize("action", ["swallow", "reset after", "reset"])
def test_many_renewals_without_an_answer_are_repeated(
    near: Any, wire: Proxy, look: Any, unique_name: str, action: Any
) -> None:
    leases = [near.lock(f"{unique_name}-{number}", ttl=3).acquire() for number in range(30)]
    lost = wire.on("renew_many", action)
    lost.wait()
    eventually(lambda: all(lease.remaining() > 2 and lease.state.name == "HELD" for lease in leases))
    for lease in leases:
        assert look.get(key_of(lease.name)) == lease.token
        lease.release()

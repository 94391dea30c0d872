"""`list(grants=True)`: the server counts, while someone looks, how often what changes is granted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from testbed.waiting import eventually
from tests.contract.test_list import all_of
from tests.support.apis import Api


def counted(api: Api, looker: Any, name: str) -> int | None:
    """The count of a lock that is held."""
    (found,) = all_of(api, looker, name, grants=True)
    count: int | None = found.grants
    return count


def begun(api: Api, looker: Any, name: str, wanted: Any) -> None:
    """Have it counted from now on: it is seen to change."""
    for _ in range(2):
        with wanted:
            counted(api, looker, name)


def fence_key(name: str, part: str = "") -> str:
    return f"holdfast:{{{name}}}{part}:fence"


@pytest.mark.parametrize("kind", ["lock", "read", "write", "semaphore", "election", "multilock"])
def test_each_grant_counts_once(api: Api, locks: Any, others: Any, raw: Any, unique_name: str, kind: str) -> None:
    makers: dict[str, Callable[[], Any]] = {
        "lock": lambda: locks.lock(unique_name),
        "read": lambda: locks.rwlock(unique_name).read(),
        "write": lambda: locks.rwlock(unique_name).write(),
        "semaphore": lambda: locks.semaphore(unique_name, 3),
        "election": lambda: locks.election(unique_name),
        "multilock": lambda: locks.multilock(unique_name, f"{unique_name}-2"),
    }
    make = makers[kind]
    begun(api, others, unique_name, make())
    for rounds in (1, 20):
        with make():
            before = counted(api, others, unique_name)
        for _ in range(rounds):
            with make():
                pass
        with make():
            after = counted(api, others, unique_name)
        assert before is not None and after == before + rounds + 1
    part = {"semaphore": ":sem", "election": ":leader"}.get(kind, "")
    _, _, until_us = raw.get(fence_key(unique_name, part)).split()
    seconds, micros = raw.time()
    assert 0 < int(until_us) - (seconds * 1_000_000 + micros) <= 60_000_000


def test_what_is_handed_on_counts(api: Api, url: str, others: Any, unique_name: str) -> None:
    """Within one client, and from one to the other."""
    clients = [api.connect(url, tenure=0.05) for _ in range(2)]
    begun(api, others, unique_name, clients[0].lock(unique_name))
    with clients[0].lock(unique_name):
        before = counted(api, others, unique_name)

    def work(client: Any) -> None:
        for _ in range(25):
            with client.lock(unique_name):
                pass

    for worker in [api.start(work, clients[number % 2]) for number in range(6)]:
        worker.result(60)

    def now() -> int | None:
        with others.lock(unique_name):
            return counted(api, others, unique_name)

    assert before is not None and now() == before + 6 * 25 + 1


def test_what_a_client_keeps_counts_when_it_lets_go(api: Api, locks: Any, others: Any, unique_name: str) -> None:
    begun(api, others, unique_name, locks.lock(unique_name))
    with locks.lock(unique_name):
        before = counted(api, others, unique_name)
    lock, leases = locks.lock(unique_name, cache_for=5.0), 0
    tokens = []

    def kept() -> bool:
        nonlocal leases
        with lock as lease:
            tokens.append(lease.token)
        leases += 1
        return tokens.count(lease.token) > 9

    eventually(kept)
    with others.lock(unique_name):
        after = counted(api, others, unique_name)
    assert before is not None and after == before + leases + 1


def test_nothing_is_counted_that_no_one_asks_for(api: Api, locks: Any, others: Any, raw: Any, unique_name: str) -> None:
    for _ in range(3):
        with locks.lock(unique_name):
            (found,) = all_of(api, others, unique_name)
            assert found.grants is None
    assert raw.get(fence_key(unique_name)).isdigit()
    with locks.lock(unique_name):
        assert [counted(api, others, unique_name) for _ in range(3)] == [None] * 3, "it does not change"
    assert raw.get(fence_key(unique_name)).isdigit()


def test_what_no_one_asks_for_any_more_is_counted_no_more(locks: Any, raw: Any, unique_name: str) -> None:
    with locks.lock(unique_name) as lease:
        last = lease.fencing_token
    raw.set(fence_key(unique_name), f"{last} 7 {last}", px=60_000)  # until then
    with locks.lock(unique_name) as lease:
        assert raw.get(fence_key(unique_name)) == str(lease.fencing_token)

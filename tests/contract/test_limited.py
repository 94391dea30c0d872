"""N calls at a time for each name, by a decorator."""

from __future__ import annotations

import threading
from typing import Any

import anyio
import pytest

from holdfast import AcquireTimeout, ConfigurationError, DeclarationMismatch
from testbed.waiting import eventually
from tests.support.apis import Api, AsyncioApi


class Work:
    """Calls that go on until they may end, and how many were inside at most."""

    def __init__(self, api: Api, decorate: Any) -> None:
        self._api = api
        self.inside: list[str] = []
        self.goes_on = threading.Event()

        def begin(tenant: str) -> None:
            self.inside.append(tenant)

        if isinstance(api, AsyncioApi):

            async def task(tenant: str) -> str:
                begin(tenant)
                while not self.goes_on.is_set():
                    await anyio.sleep(0.005)
                return tenant

            self._call = decorate(task)
        else:

            def thread(tenant: str) -> str:
                begin(tenant)
                self.goes_on.wait(60)
                return tenant

            self._call = decorate(thread)

    def __call__(self, tenant: str) -> Any:
        return self._api.call(self._call, tenant) if isinstance(self._api, AsyncioApi) else self._call(tenant)

    def start(self, tenant: str) -> Any:
        return self._api.start(self, tenant)


def test_so_many_run_at_a_time_for_each_name(locks: Any, api: Api, unique_name: str) -> None:
    work = Work(api, locks.limited(unique_name + ":{tenant}", permits=2))
    calls = [work.start(tenant) for tenant in "aaaab"]
    eventually(lambda: len(work.inside) == 3)
    eventually(lambda: locks.semaphore(f"{unique_name}:a").status().waiters == 2)
    assert sorted(work.inside) == ["a", "a", "b"]
    work.goes_on.set()
    assert [call.result(60) for call in calls] == list("aaaab")
    assert len(work.inside) == 5
    assert locks.semaphore(f"{unique_name}:a").available() == 2


def test_waiting_has_a_limit(locks: Any, api: Api, unique_name: str) -> None:
    work = Work(api, locks.limited(unique_name, permits=1, timeout=0.1))
    first = work.start("a")
    eventually(lambda: work.inside == ["a"])
    with pytest.raises(AcquireTimeout, match=unique_name):
        work("b")
    work.goes_on.set()
    first.result(60)


def test_all_declare_the_same(locks: Any, others: Any, api: Api, unique_name: str) -> None:
    work = Work(api, locks.limited(unique_name, permits=2))
    work.goes_on.set()
    work("a")
    other = Work(api, others.limited(unique_name, permits=3))
    with pytest.raises(DeclarationMismatch):
        other("b")


@pytest.mark.parametrize("permits", [0, 10_001, True, "3", None])
def test_permits_are_counted_by_whole_numbers(locks: Any, permits: Any) -> None:
    with pytest.raises(ConfigurationError, match="permits"):
        locks.limited("name", permits=permits)

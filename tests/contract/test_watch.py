"""`watch()`: what happens to a lock, change by change, with no word about what was not seen."""

from __future__ import annotations

import os
import queue
from typing import Any

import pytest

from holdfast import Change
from holdfast.errors import ConfigurationError
from testbed.waiting import PATIENCE_S, eventually
from tests.support.apis import Api


class Watcher:
    """Collects what `watch` gives, beside the test."""

    def __init__(self, api: Api, locks: Any, name: str) -> None:
        self.seen: queue.Queue[Change] = queue.Queue()
        self.ended = api.start(self._collect, api, locks.watch(name, poll=0.01))

    def _collect(self, api: Api, found: Any) -> None:
        if api.name == "threads":
            for change in found:
                self.seen.put(change)
                if change.who is not None and change.who.token == "end":
                    return

        async def collect() -> None:
            async for change in found:
                self.seen.put(change)
                if change.who is not None and change.who.token == "end":
                    return

        if api.name == "asyncio":
            api.call(collect)  # type: ignore[attr-defined]

    def next(self) -> Change:
        return self.seen.get(timeout=PATIENCE_S)


@pytest.fixture
def watcher(api: Api, locks: Any, raw: Any, unique_name: str) -> Any:
    watching = Watcher(api, locks, unique_name)
    yield watching
    raw.set(f"holdfast:{{{unique_name}}}:leader", "end", px=60_000)
    watching.ended.result(PATIENCE_S)


def test_a_lock_that_is_handed_on(watcher: Watcher, locks: Any, others: Any, api: Api, unique_name: str) -> None:
    lease = locks.lock(unique_name).acquire()
    held = watcher.next()
    assert (held.what, held.kind, held.name, held.who and held.who.token) == ("held", "lock", unique_name, lease.token)
    assert held.fencing_token == lease.fencing_token and held.held == 1
    waiting = api.start(others.lock(unique_name).acquire)
    joined = watcher.next()
    assert (joined.what, joined.waiters) == ("waiting", 1)
    lease.release()
    second = waiting.result(PATIENCE_S)
    released, handed = watcher.next(), watcher.next()
    assert (released.what, released.who and released.who.token) == ("released", lease.token)
    assert (handed.what, handed.who and handed.who.token) == ("handed_on", second.token)
    assert handed.at >= joined.at >= held.at
    second.release()
    assert watcher.next().what == "released"


def test_who_and_what_else(watcher: Watcher, locks: Any, unique_name: str) -> None:
    """A semaphore of that name is watched as well. A client is named once it has said who it is."""
    lease = locks.lock(f"{unique_name}-other").acquire()
    eventually(lambda: locks.lock(f"{unique_name}-other").holder().host)
    lease.release()
    first, second = (locks.semaphore(unique_name, 2).acquire() for _ in range(2))
    seen = [watcher.next(), watcher.next()]
    assert {(each.what, each.kind) for each in seen} == {("held", "semaphore")}
    first.release()
    gone = watcher.next()
    assert (gone.what, gone.who and gone.who.token, gone.held) == ("released", first.token, 1)
    assert gone.who is not None and gone.who.pid == os.getpid()
    second.release()
    assert watcher.next().what == "released"


@pytest.mark.parametrize("kind", ["lock", "semaphore", "election"])
def test_a_break_says_who_and_why(watcher: Watcher, locks: Any, others: Any, unique_name: str, kind: str) -> None:
    lease = {
        "lock": lambda: locks.lock(unique_name).acquire(),
        "semaphore": lambda: locks.semaphore(unique_name, 2).acquire(),
        "election": lambda: locks.election(unique_name).campaign(),
    }[kind]()
    assert watcher.next().what == "held"
    assert others.break_(unique_name, reason="stuck")
    broken = watcher.next()
    assert (broken.what, broken.kind, broken.who and broken.who.token) == ("broken", kind, lease.token)
    assert broken.reason is not None and broken.reason.endswith(f", pid {os.getpid()}: stuck")


def test_one_whose_time_is_up(watcher: Watcher, raw: Any, unique_name: str) -> None:
    raw.set(f"holdfast:{{{unique_name}}}", "someone", px=300)
    assert watcher.next().what == "held"
    assert watcher.next().what == "expired"


def test_where_it_makes_no_sense(api: Api, server: Any) -> None:
    with pytest.raises(ConfigurationError, match="poll"):
        api.connect(server.url).watch("a", poll=0)
    with pytest.raises(ConfigurationError, match="name"):
        api.connect(server.url).watch("")

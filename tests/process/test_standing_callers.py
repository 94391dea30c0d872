"""Callers that wait in the server's queue without a protocol, and what comes between them and their lease."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Any

import pytest

import holdfast
import holdfast.asyncio
from holdfast import embedded
from testbed.waiting import eventually
from tests.support.keys import key_of


def test_a_task_that_is_cancelled_before_the_engine_goes_on_for_it_leaves_the_queue(
    valkey_server: embedded.Server, look: Any, unique_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine is busy with other things at that moment, and closes a protocol that it has not begun."""

    async def main() -> None:
        async with holdfast.asyncio.connect(valkey_server.url, ttl=20, tenure=0) as locks:
            driver = locks._session.driver
            with contextlib.suppress(holdfast.AcquireTimeout):
                await locks.lock(unique_name).acquire(timeout=0.01)
            goes_on, acquire = threading.Event(), driver.acquire

            def cancelled(*args: Any) -> Any:
                driver.engine.call(goes_on.wait, 10)
                loop = asyncio.get_running_loop()
                loop.call_soon(task.cancel)
                loop.call_soon(loop.call_soon, goes_on.set)
                return acquire(*args)

            monkeypatch.setattr(driver, "acquire", cancelled)
            task = asyncio.create_task(locks.lock(unique_name).acquire(timeout=20))
            with pytest.raises(asyncio.CancelledError):
                await task
            monkeypatch.undo()
            eventually(lambda: not look.zcard(key_of(unique_name) + ":queue"), "it has left", 10)

    with holdfast.connect(valkey_server.url, ttl=30) as others, others.lock(unique_name):
        asyncio.run(main())


class _Latest(dict[str, Any]):
    """Releases that are under way: one begins right behind a look whether there is one."""

    def __init__(self, lease: Any) -> None:
        super().__init__()
        self._leases = [lease]

    def _begin(self) -> None:
        while self._leases:
            self._leases.pop().release()

    def __contains__(self, key: object) -> bool:
        found = super().__contains__(key)
        self._begin()
        return found

    def get(self, key: str, default: Any = None) -> Any:
        found = super().get(key, default)
        self._begin()
        return found


def test_a_grant_that_has_lain_too_long_is_not_taken_behind_a_release(
    valkey_server: embedded.Server, look: Any, unique_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread of the client releases without waiting as the request is made that queues."""
    options: Any = {"ttl": 1, "confirm_release": False}
    with (
        holdfast.connect(valkey_server.url, tenure=0, **options) as locks,
        holdfast.connect(valkey_server.url, tenure=0, **options) as others,
        holdfast.connect(valkey_server.url, tenure=0, **options) as last,
    ):
        driver, lock = locks._session.driver, locks.lock(unique_name)
        blocker = others.lock(unique_name).acquire()
        with contextlib.suppress(holdfast.AcquireTimeout):
            lock.acquire(timeout=0.3)  # which opens the inbox
        blocker.release()
        mine = []
        thread = threading.Thread(target=lambda: mine.append(lock.acquire(timeout=5)))
        thread.start()
        thread.join()
        ahead = []
        waits = threading.Thread(target=lambda: ahead.append(others.lock(unique_name).acquire(timeout=5)))
        waits.start()
        eventually(lambda: look.zcard(key_of(unique_name) + ":queue") == 1)

        ask = driver.ask

        def held_up(*how: Any) -> Any:
            """The thread is held up until its turn has come, and gone."""
            assert how[-1] is not None, "it stands in the queue"
            outcome = ask(*how)
            waits.join()
            behind = threading.Thread(target=lambda: ahead.append(last.lock(unique_name).acquire(timeout=9)))
            behind.start()
            eventually(lambda: look.zcard(key_of(unique_name) + ":queue") == 2)
            ahead.pop(0).release()
            behind.join()
            monkeypatch.setattr(driver, "ask", ask)
            return outcome

        driver.contention.saw(key_of(unique_name))
        monkeypatch.setattr(driver, "ask", held_up)
        monkeypatch.setattr(driver.releasing, "latest", _Latest(mine.pop()))
        with pytest.raises(holdfast.AcquireTimeout):
            lock.acquire(timeout=2.5)
        ahead[0].ensure_held()

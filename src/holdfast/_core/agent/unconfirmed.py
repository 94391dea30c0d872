"""Releases that are not waited for.

Laws: what a client asks for after such a release gets what it would get after the release; that the lease was not held
any more is told like any other loss; a release without an answer is repeated until it is answered, or its ttl is over.

Theory: all of a client's requests to one server leave on one connection, in order, so that what follows comes behind
the release by itself. Where that order does not hold (the connection was replaced, or the script had to be loaded),
what was refused is asked for again once the release has been answered.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast._core.agent.runner import Task
from holdfast._core.effects import AwaitTurn, Protocol, driver
from holdfast._core.failure import RequestFailed
from holdfast._core.fast_path import confirm
from holdfast._core.record import LeaseRecord
from holdfast._core.snapshot import snapshot
from holdfast._core.waiting import released


class _Release:
    """One that is under way, and, for those that wait for its end, a turn."""

    __slots__ = ("bells", "over", "record")

    def __init__(self, record: LeaseRecord) -> None:
        self.record = record
        self.over = False
        self.bells: list[Callable[[], None]] = []

    def is_called(self) -> bool:
        return self.over

    def _add(self, bell: Callable[[], None]) -> None:
        self.bells.append(bell)

    bell = property(None, _add)

    def end(self) -> None:
        self.over = True
        for bell in self.bells:
            bell()


class Unconfirmed:
    """Those of one client, by the key of their lock."""

    def __init__(
        self, spawn: Callable[[Protocol[None], str], Task], call: Callable[..., None], patience_s: float
    ) -> None:
        self._spawn = spawn
        #: Has the agent do something, from any thread.
        self._call = call
        self._patience_s = patience_s
        #: The release of each lock that was not answered yet.
        self.latest: dict[str, _Release] = {}

    def sent(self, record: LeaseRecord, key: str) -> Callable[[Any, RequestFailed | None], None]:
        """Note that a release is sent now, by any thread. Returns what any thread calls with the answer."""
        release = _Release(record)
        before, self.latest[key] = self.latest.get(key), release

        def answered(reply: Any, failure: RequestFailed | None) -> None:
            if failure is None and released(reply) and (before is None or before.over):
                self._end(key, release)
            else:
                self._call(self._go_on, key, release, before, reply, failure)

        return answered

    def interrupted(self, record: LeaseRecord, key: str) -> None:
        """Wait for it no more, since it may not have been sent: its caller has it released in another way."""
        release = self.latest.get(key)
        if release is not None and release.record is record:
            self._end(key, release)

    def _go_on(self, *answer: Any) -> None:
        self._spawn(self._answered(*answer), f"release {answer[1].record.name}")

    async def _answered(
        self, key: str, release: _Release, before: _Release | None, reply: Any, failure: RequestFailed | None
    ) -> None:
        try:
            if failure is not None or not released(reply):
                await confirm(release.record, reply, failure)
            if before is not None:
                await AwaitTurn(before, self._patience_s)
        finally:
            self._end(key, release)

    def _end(self, key: str, release: _Release) -> None:
        if self.latest.get(key) is release:
            self.latest.pop(key, None)
        release.end()

    async def hurry(self, patience_s: float, reconnect: Callable[[], None]) -> None:
        """The client is about to end: repeat, on another connection, what is not answered in that time."""
        until = driver.get().now() + patience_s
        for release in snapshot(self.latest.values()):
            await AwaitTurn(release, max(0.0, until - driver.get().now()))
        left = snapshot(self.latest.values())
        if left:
            reconnect()
        for release in left:
            unknown = RequestFailed("silent", "no answer yet", "", maybe_executed=True, transient=True)
            self._spawn(confirm(release.record, None, unknown), f"release {release.record.name}")

"""What waits in an event loop, and what wakes it: inboxes, turns, pauses.

Laws: a wake-up that comes before its waiter waits is kept; where an inbox breaks, all waiters look for themselves;
whatever waits ends when the client is closed.
"""

from __future__ import annotations

import asyncio
import typing
import weakref
from functools import partial

from holdfast._core.agent.reopening import Reopening
from holdfast._core.effects import AwaitTurn, AwaitWake, Listen, Reply, Sleep, Unlisten, Wake
from holdfast._core.failure import RequestFailed
from holdfast._core.holder_notices import HolderNotices
from holdfast._core.replies import wake_of
from holdfast._core.report import Report
from holdfast._core.settings import Settings
from holdfast._core.tenure import SOON_MS, LocalWaiter
from holdfast._drivers.background_aio import Background, retrieve
from holdfast._transport.aio import Hearing, Node
from holdfast._transport.clock import clock
from holdfast._transport.mailbox_aio import open_inbox
from holdfast._transport.port import Topology

__all__ = ["Waits"]


class _Waiter:
    """A waiter that may be woken: a wake-up that comes before it waits is kept."""

    __slots__ = ("future", "kept")

    def __init__(self) -> None:
        self.future: asyncio.Future[Wake | None] | None = None
        self.kept: Wake | None = None

    def wake(self, wake: Wake) -> None:
        """Hand it over, or keep it: a grant rather than a hint to ask."""
        if self.future is not None and not self.future.done():
            self.future.set_result(wake)
        elif self.kept is None or wake.kind == Wake.GRANT:
            self.kept = wake


class Driver(typing.Protocol):
    """Whose waiting it is."""

    loop: asyncio.AbstractEventLoop
    closed: bool
    background: Background
    queueing: dict[str, Report]
    notices: HolderNotices


class Waits:
    """All that waits in one client."""

    def __init__(self, driver: Driver, topology: Topology[Node], channel: str, settings: Settings) -> None:
        self._driver = driver
        self._topology = topology
        self._node_for = topology.node_for
        self._channel = channel
        self._settings = settings
        self._waiters: dict[str, _Waiter] = {}
        #: Turns that are expected soon, since when; and whether a timer looks after them.
        self._resting: dict[asyncio.Future[Wake | None], float] = {}
        self._rests_end = False
        self._sleepers: set[asyncio.Future[Wake | None]] = set()
        self._reopening: weakref.WeakKeyDictionary[Node, Reopening] = weakref.WeakKeyDictionary()

    def end(self) -> None:
        """The client is closed."""
        self.ask_all()
        for sleeper in tuple(self._sleepers):
            _time_is_up(sleeper)

    def forget(self) -> None:
        """Let go without a word."""
        self._waiters.clear()

    async def sleep(self, sleep: Sleep) -> None:
        if asyncio.current_task() in self._driver.background.tasks:
            await asyncio.sleep(sleep.seconds)
            return
        await self._pause(sleep.seconds)

    async def _pause(self, seconds: float) -> None:
        """Wait until the time is over, or the client is closed, which raises `RequestFailed`."""
        if not self._driver.closed:
            future: asyncio.Future[Wake | None] = self._driver.loop.create_future()
            self._sleepers.add(future)
            alarm = self._driver.loop.call_later(seconds, _time_is_up, future)
            try:
                await future
            finally:
                alarm.cancel()
                self._sleepers.discard(future)
        self._raise_if_closed()

    def _raise_if_closed(self) -> None:
        if self._driver.closed:
            raise RequestFailed("closed", "the client is closed", "", maybe_executed=False, transient=False)

    def unlisten(self, unlisten: Unlisten) -> None:
        self._waiters.pop(unlisten.token, None)

    async def listen(self, listen: Listen) -> None:
        server = self._node_for(listen.key, listen.node)
        if listen.token not in self._waiters:
            self._waiters[listen.token] = _Waiter()
        if self._driver.closed or server.closed:
            raise RequestFailed("closed", "the client is closed", server.name, maybe_executed=False, transient=False)
        inbox = server.inbox
        if inbox is not None and inbox.open:
            inbox.check()
            return
        task = server.opening
        if task is None:
            task = server.opening = self._driver.loop.create_task(self._open_inbox(server))
            task.add_done_callback(retrieve)  # all who wait for it may be cancelled
        await asyncio.wait((task,), timeout=listen.request_timeout_s)
        if not task.done():
            raise RequestFailed("silent", "no subscription in time", server.name, maybe_executed=False, transient=True)
        if task.cancelled():
            raise RequestFailed("closed", "the client is closed", server.name, maybe_executed=False, transient=False)
        failure = task.exception()
        if isinstance(failure, RequestFailed):
            self._topology.troubled(server, failure)
            raise RequestFailed(
                failure.kind, failure.message, failure.node, maybe_executed=False, transient=failure.transient
            )
        if failure is not None:
            raise failure

    async def _open_inbox(self, server: Node) -> Hearing:
        try:
            reopening = self._reopening.setdefault(server, Reopening(self._settings))
            if reopening.pause_s:
                await self._pause(reopening.pause_s)
            inbox = await open_inbox(server, self._channel, self._deliver, self._inbox_broken, self._driver.loop)
            reopening.opened(clock())
            server.inbox = inbox
            self._driver.notices.opened(clock())
            return inbox
        finally:
            server.opening = None

    def _inbox_broken(self, inbox: Hearing) -> None:
        """The waiters look for themselves, and open it again."""
        self._reopening[inbox.node].broke(clock())
        self.ask_all()
        if not self._driver.closed:
            self._driver.notices.inbox_lost(clock())

    def ask_all(self) -> None:
        for waiter in tuple(self._waiters.values()):
            waiter.wake(Wake(Wake.ASK))

    def _deliver(self, reply: Reply) -> None:
        """Deliver a message of the inbox. Without a waiter: the one that left has sent the give-back."""
        wake = wake_of(reply, self._channel)
        if wake is not None and wake[1].is_for_holder:
            self._driver.notices.told(*wake)
            return
        waiter = self._waiters.get(wake[0]) if wake is not None else None
        if wake is not None and waiter is not None:
            waiter.wake(wake[1])

    def listening(self, key: str) -> bool:
        """True if the inbox at the key's server is open, so that a first request may queue."""
        return self.missing_inbox(key) is None

    def missing_inbox(self, key: str) -> Node | None:
        """The node at which an inbox is missing to hear of that key."""
        node = self._node_for(key, None)
        return None if node.inbox is not None and node.inbox.open else node

    async def await_wake(self, wait: AwaitWake) -> Wake | None:
        self._raise_if_closed()
        queueing = self._driver.queueing
        if queueing and (report := queueing.pop(wait.token, None)) is not None:
            report.queued()
        waiter = self._waiters.get(wait.token)
        if waiter is None:
            waiter = self._waiters[wait.token] = _Waiter()
        if waiter.kept is not None:
            kept, waiter.kept = waiter.kept, None
            return kept
        future: asyncio.Future[Wake | None] = self._driver.loop.create_future()
        waiter.future = future
        alarm = self._driver.loop.call_later(wait.timeout_s, _time_is_up, future)
        try:
            wake = await future
        finally:
            alarm.cancel()
            waiter.future = None
        self._raise_if_closed()
        return wake

    async def rest(self, turn: LocalWaiter) -> None:
        """Wait for a turn that is likely to come soon; without a timer of its own."""
        if turn.is_called() or self._driver.closed:
            return
        future: asyncio.Future[Wake | None] = self._driver.loop.create_future()
        turn.bell = partial(self._ring, future)
        self._resting[future] = clock()
        if not self._rests_end:
            self._rests_end = True
            self._driver.loop.call_later(SOON_MS / 1000, self._end_rests)
        try:
            await future
        finally:
            turn.bell = None
            self._resting.pop(future, None)

    def _end_rests(self) -> None:
        self._rests_end = False
        now = clock()
        for future, began_at in list(self._resting.items()):
            left_s = began_at + SOON_MS / 1000 - now
            if left_s > 0:
                self._rests_end = True
                self._driver.loop.call_later(left_s, self._end_rests)
                break
            _time_is_up(future)

    async def await_turn(self, wait: AwaitTurn) -> None:
        turn = wait.turn
        future: asyncio.Future[Wake | None] = self._driver.loop.create_future()
        turn.bell = partial(self._ring, future)
        self._raise_if_closed()
        if turn.is_called():
            return
        alarm = self._driver.loop.call_later(wait.timeout_s, _time_is_up, future)
        try:
            await future
        finally:
            alarm.cancel()
            turn.bell = None
        self._raise_if_closed()

    def _ring(self, future: asyncio.Future[Wake | None]) -> None:
        if asyncio._get_running_loop() is self._driver.loop:
            _time_is_up(future)
        elif not self._driver.loop.is_closed():
            self._driver.loop.call_soon_threadsafe(_time_is_up, future)  # released in another loop, or at the end


def _time_is_up(future: asyncio.Future[Wake | None]) -> None:
    if not future.done():
        future.set_result(None)

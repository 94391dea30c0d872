"""Releases that are not waited for, with asyncio: sent at once, answered later.

Laws: as with threads. Theory: everything to one server goes over one connection in order, so that an acquire that
follows comes behind the release by itself. Only where that connection was replaced meanwhile is the answer waited for.
"""

from __future__ import annotations

import asyncio
import typing
from functools import partial
from typing import Any

from holdfast._core.effects import Protocol
from holdfast._core.failure import RequestFailed
from holdfast._core.fast_path import confirm
from holdfast._core.record import LeaseRecord
from holdfast._core.waiting import released
from holdfast._transport.aio import Node, Wire
from holdfast._transport.pack import PreparedRequest
from holdfast._transport.port import Topology

__all__ = ["Unconfirmed"]


class Driver(typing.Protocol):
    """Whose releases they are."""

    topology: Topology[Node]

    def spawn(self, protocol: Protocol[Any]) -> None: ...


class Unconfirmed:
    """Those of one client, by the key of their lock."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self.sent: dict[str, tuple[asyncio.Future[Any], Wire, LeaseRecord]] = {}

    def __len__(self) -> int:
        return len(self.sent)

    def send(self, hold: LeaseRecord, first: PreparedRequest) -> bool:
        """Send a release; False when it was not sent, and has to be waited for."""
        node = self._driver.topology.node_for(first.key, None)
        if first.key in self.sent:
            return False
        try:
            future, wire = node.submit_on(first.packed(hold.token), first.request_timeout_s, first.script)
        except RequestFailed:
            return False
        self.sent[first.key] = future, wire, hold
        future.add_done_callback(partial(self._answered, hold, first.key))
        return True

    async def before(self, first: PreparedRequest | None, alone: bool) -> asyncio.Future[Any] | None:
        """The answer to the release that an acquire is to be sent behind, `alone` and on the same connection.

        None: there is none, or none any more; it was waited for where that is no order.
        """
        if first is None:
            await asyncio.wait([future for future, *_ in self.sent.values()])
            return None
        sent = self.sent.get(first.key)
        if sent is None:
            return None
        if alone and self._driver.topology.node_for(first.key, None).sends_on(sent[1]):
            return sent[0]
        await asyncio.wait([sent[0]])
        return None

    async def ask_behind(
        self, released: asyncio.Future[Any], node: Node, first: PreparedRequest, token: str, request_timeout_s: float
    ) -> Any:
        """The reply to an acquire. Not with others of this turn, which may be sent before."""
        packed = first.packed(token)
        reply = await node.submit(packed, request_timeout_s, first.script)
        if reply[0] != 1:
            # The release may have been carried out later, where its script had to be loaded first. Both answers may
            # have come in one piece, so that it does not matter whether the release's is there by now.
            await asyncio.wait([released])
            reply = await node.submit(packed, request_timeout_s, first.script)
        return reply

    def repeat(self) -> None:
        """Send those again that were not answered, without looking at their first answers any more."""
        sent, self.sent = self.sent, {}
        for _, _, hold in sent.values():
            failure = RequestFailed("broken", "given up", "", maybe_executed=True, transient=True)
            self._driver.spawn(confirm(hold, None, failure))

    def _answered(self, hold: LeaseRecord, key: str, future: asyncio.Future[Any]) -> None:
        sent = self.sent.get(key)
        if sent is None or sent[0] is not future:
            return
        del self.sent[key]
        if future.cancelled():
            failure = RequestFailed("broken", "given up", "", maybe_executed=True, transient=True)
            self._driver.spawn(confirm(hold, None, failure))
        elif isinstance(error := future.exception(), RequestFailed):
            self._driver.spawn(confirm(hold, None, error))
        elif error is None and not released(future.result()):
            self._driver.spawn(confirm(hold, future.result(), None))

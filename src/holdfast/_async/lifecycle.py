"""How a client begins and ends."""

from __future__ import annotations

import os
from typing import Any, TypeVar

from holdfast._api.endpoints import settings_for, topology_of
from holdfast._api.session import SessionBase
from holdfast._core.effects import Protocol
from holdfast._core.failure import RequestFailed
from holdfast._core.keys import inbox_prefix
from holdfast._core.settings import Settings
from holdfast._front.aio import AioFront, has_ended
from holdfast._reports.observing import Reports
from holdfast._runtime.greenlets import who_patched
from holdfast.errors import ConfigurationError

R = TypeVar("R")


class Session(SessionBase):
    """What the locks of one client know of it."""

    driver: AioFront
    #: Whether the task of a number has ended.
    has_ended = staticmethod(has_ended)

    def __init__(self, redis_client: Any, namespace: str | None, settings: Settings, observer: Any = None) -> None:
        topology = topology_of(redis_client, "asyncio")
        settings = settings_for(redis_client, settings)
        #: Whether keys move from node to node.
        self.moves = topology.moves
        super().__init__(redis_client, topology.nodes(), namespace, settings, Reports(observer))
        self.driver = AioFront(topology, os.urandom(12).hex(), inbox_prefix(namespace), settings, self.reports)
        self.driver.asking = self.asking
        self.driver.belong_to(self)

    # sync-drop
    @staticmethod
    def beside(other: Any) -> Session:
        """Make the session of the same client for tasks; it keeps that for threads, with which the client ends."""
        if library := who_patched():
            allowed = "a process without it: an event loop would stop all greenlets, and what renews leases"
            raise ConfigurationError("tasks", library, allowed)
        made = Session.__new__(Session)
        made.__dict__ = {**vars(other), "driver": AioFront.beside(other.driver), "other": other}
        return made

    async def run(self, protocol: Protocol[R]) -> R:
        """Run it, with errors as users see them."""
        if self.driver.closed:
            protocol.close()
            raise self.driver.closed_error()
        try:
            return await self.driver.run(protocol)
        except RequestFailed as failure:
            raise self.public(failure) from None

    async def close(self) -> None:
        await self.driver.close()
        self.driver.finalizer.detach()  # not before: an exception may come up, and the rest is left to do

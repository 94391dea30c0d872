"""How a client begins and ends."""

from __future__ import annotations

import os
import time
from functools import partial
from typing import Any, TypeVar

from holdfast._api.client_info import CLIENT_INFO_MS, client_key, introduction
from holdfast._api.endpoints import settings_for, topology_of
from holdfast._api.session import SessionBase
from holdfast._core.describe import introduce
from holdfast._core.effects import Protocol
from holdfast._core.failure import RequestFailed
from holdfast._core.keys import inbox_prefix
from holdfast._core.settings import Settings
from holdfast._core.snapshot import snapshot
from holdfast._core.tokens import make_token
from holdfast._front.aio import AioFront, has_ended
from holdfast._reports.observing import Reports
from holdfast._runtime.greenlets import who_patched
from holdfast.errors import ConfigurationError

__all__ = ["Session", "has_ended"]

R = TypeVar("R")


class Session(SessionBase):
    """What the locks of one client know of it."""

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
        vars(made).update(vars(other), driver=AioFront.beside(other.driver), other=other)
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

    def public(self, failure: RequestFailed) -> BaseException:
        if failure.kind == "closed" and self.driver.closed:
            return self.driver.closed_error()
        return failure.public()

    def me(self) -> int:
        """The task that runs, by a number that no other one gets; 0 outside of one."""
        # sync-say: The task that runs, by a number that no other one gets; 0 outside of one. => The thread that runs, by a number that no other one gets.
        return self.driver.me()

    def new_token(self, owner: str | None = None) -> str:
        """Make a token for a request of this task, or of `owner`."""
        driver = self.driver
        if driver.closed:
            raise driver.closed_error()
        return make_token(driver.client_id, driver.me() if owner is None else owner, next(self.sequence))

    def lease_of(self, owned_as: str) -> Any:
        """The lease by which this task holds it, or did until that was lost; None when there is none."""
        held = self.owners.get((owned_as, self.driver.me()))
        return held() if held is not None else None

    def held(self) -> tuple[Any, ...]:
        """The leases of this task."""
        # sync-say: of this task => of this thread
        me = self.driver.me()
        leases = [known() for (_, owner), known in snapshot(self.owners.items()) if owner == me]
        return tuple({id(lease): lease for lease in leases if lease is not None and lease.held}.values())

    def masters(self) -> int:
        """Return the number of servers that the keys are on, as far as is known."""
        return len(self.driver.topology.masters())

    def introduce(self, now: float) -> None:
        self.driver.introduce_at = now + CLIENT_INFO_MS / 2000
        key = client_key(self.namespace, self.driver.client_id)
        self.driver.spawn(introduce(key, partial(introduction, time.time()), CLIENT_INFO_MS))

    async def close(self) -> None:
        await self.driver.close()
        self.driver.finalizer.detach()  # not before: an exception may come up, and the rest is left to do

    def __str__(self) -> str:
        nodes = ", ".join(node.name for node in self.driver.topology.nodes())
        state = "closed" if self.driver.closed else f"{len(self.driver.schedule)} leases"
        return f"{nodes}: {state}, namespace {self.namespace!r}"

"""How a client begins and ends."""

from __future__ import annotations

from typing import Any, TypeVar

from holdfast._api.session import SessionBase
from holdfast._core.effects import Protocol
from holdfast._core.failure import RequestFailed
from holdfast._front.aio import AioFront, has_ended
from holdfast._runtime.greenlets import who_patched
from holdfast.errors import ConfigurationError

R = TypeVar("R")


class Session(SessionBase):
    """What the locks of one client know of it."""

    driver: AioFront
    _front, _api = AioFront, "asyncio"
    #: Whether the task of a number has ended.
    has_ended = staticmethod(has_ended)

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

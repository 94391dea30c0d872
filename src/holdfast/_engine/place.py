"""A server, as its connections see it."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from holdfast._core.effects import Reply
from holdfast._core.failure import RequestFailed
from holdfast._engine.handshake import late
from holdfast._engine.loop import Engine

__all__ = ["Place"]


class Place(ABC):
    """What is known of a server, and who is told how its connections fare."""

    def __init__(self, engine: Engine, name: str, make: Callable[[], Any]) -> None:
        self.engine = engine
        self.name = name
        self.make = make
        #: Whether its connections are encrypted, as far as is known; and whether it has closed one at HELLO.
        self.tls = self.hello_closes = False
        #: The shared connection, if there is one.
        self.link: Any = None
        #: How often one of its connections got on while it was made.
        self.steps = 0
        self.on_message: Callable[[Reply], None] = lambda _: None
        self.on_deaf: Callable[[bool], None] = lambda _: None
        #: Threads that connect.
        self.dialling: set[threading.Thread] = set()

    @abstractmethod
    def forget_link(self, link: Any) -> None:
        """Forget a link that takes no more requests."""

    @abstractmethod
    def take_over(self, requests: list[Any]) -> None:
        """Send those instead of a connection that cannot."""

    def silent(self, connected: bool) -> RequestFailed:
        """A request was not answered in time."""
        if connected:
            return RequestFailed("silent", "no answer in time", self.name, maybe_executed=True, transient=True)
        return late(self.name, None, tls=self.tls)

    def unfit(self, connection: object) -> RequestFailed:
        """Return the failure for connections without a socket to take over."""
        kind = getattr(connection, "kind", type(connection))
        said = f"connections with a socket: {kind.__name__} has none after connect()"
        return RequestFailed("unfit", said, self.name, maybe_executed=False, transient=False)

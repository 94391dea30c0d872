"""A connection of its own for messages, for asyncio: where a server, proxy or user has no RESP3.

Law: an inbox that will tell nothing any more says so, so that waiters look for themselves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Any

import hiredis

from holdfast._core.effects import Reply
from holdfast._core.failure import RequestFailed, refusal
from holdfast._core.replies import is_confirmation, nonsense
from holdfast._transport.aio import Hearing, Node
from holdfast._transport.connection_aio import connect, forget_transport, half_made, take_over
from holdfast._transport.limits import INBOX_QUIET_S, INBOX_TIMEOUT_S
from holdfast._transport.pack import pack_command

__all__ = ["Inbox"]

_MORE = object()
_PING = pack_command(("PING",))


class Inbox(asyncio.Protocol):
    """A connection that is subscribed to one channel."""

    def __init__(
        self,
        node: Node,
        channel: str,
        on_message: Callable[[Reply], None],
        on_broken: Callable[[Hearing], None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.node = node
        self._channel = channel
        self._on_message = on_message
        self._on_broken = on_broken
        self._loop = loop
        self._reader = hiredis.Reader(notEnoughData=_MORE)
        self._transport: asyncio.Transport | None = None
        self._kept: Any = None
        self._confirmed: asyncio.Future[None] = loop.create_future()
        self._heard_at = 0.0
        self._asked: asyncio.TimerHandle | None = None
        self.open = False

    async def subscribe(self) -> None:
        """Connect, and wait for the confirmation. Raises `RequestFailed`."""
        connection = await connect(self.node)
        half_made.add(self)
        self._transport, self._kept, ahead = take_over(connection, self)
        if self._transport.is_closing():
            self.connection_lost(None)
        else:
            if ahead:
                self.data_received(ahead)
            self._transport.write(pack_command(("SUBSCRIBE", self._channel)))
        try:
            async with asyncio.timeout(INBOX_TIMEOUT_S):
                await self._confirmed
        except TimeoutError:
            self.abort()
            raise RequestFailed(
                "silent", "no answer to SUBSCRIBE", self.node.name, maybe_executed=False, transient=True
            ) from None
        except BaseException:
            self.abort()
            raise

    def data_received(self, data: bytes) -> None:
        """Messages, and the confirmation."""
        self._heard_at = monotonic()
        try:
            self._reader.feed(data)
            while (reply := self._reader.gets()) is not _MORE:
                if self._confirmed.done():
                    self._on_message(reply)
                elif is_confirmation(reply, self._channel):
                    self.open = True
                    self._confirmed.set_result(None)
                elif isinstance(reply, hiredis.ReplyError):
                    self._confirmed.set_exception(refusal(str(reply), self.node.name))
                else:
                    raise ValueError(repr(reply))
        except Exception as error:  # of the parser, which runs out of memory for some
            if not self._confirmed.done():
                self._confirmed.set_exception(nonsense(str(error), "a confirmation of SUBSCRIBE", self.node.name))
            self.abort()

    def check(self) -> None:
        """Ask for a sign of life when the inbox has been quiet for long."""
        now = monotonic()
        if self._asked is None and self._transport is not None and now - self._heard_at > INBOX_QUIET_S:
            self._transport.write(_PING)
            self._asked = self._loop.call_later(INBOX_TIMEOUT_S, self._judge, now)

    def _judge(self, asked_at: float) -> None:
        self._asked = None
        if self._heard_at < asked_at:
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that the connection has ended."""
        was_open, self.open = self.open, False
        self._transport = self._kept = None
        if self._asked is not None:
            self._asked.cancel()
            self._asked = None
        if not self._confirmed.done():
            said = str(exc) if exc is not None and str(exc) else "the connection was closed"
            self._confirmed.set_exception(
                RequestFailed("broken", said, self.node.name, maybe_executed=False, transient=True)
            )
            self._confirmed.exception()  # retrieved: it may not be waited for any more
        if was_open:
            self._on_broken(self)

    def abort(self) -> None:
        """End at once."""
        if self._transport is not None:
            self._transport.abort()

    @property
    def gone(self) -> bool:
        """Nothing is left of the connection."""
        return self._transport is None

    def forget(self) -> None:
        """Forget the connection, as `Wire.forget` does."""
        transport, self._transport = self._transport, None
        self.open = False
        forget_transport(transport)
        self._kept = None

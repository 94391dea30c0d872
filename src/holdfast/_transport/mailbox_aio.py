"""Where wake-ups come in, for asyncio: through the connection of all commands, or through one of their own.

Law: a connection that will tell nothing any more says so, so that those who wait look for themselves.

Theory: with RESP3 a connection may have commands and subscriptions at once; messages come as pushes between the
replies. A server or proxy that speaks RESP2 only gets an `Inbox`, which is a second connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from holdfast._core.effects import Reply
from holdfast._core.failure import RequestFailed
from holdfast._transport.aio import Hearing, Node, Wire
from holdfast._transport.clock import clock
from holdfast._transport.inbox_aio import Inbox
from holdfast._transport.limits import INBOX_QUIET_S, INBOX_TIMEOUT_S
from holdfast._transport.pack import pack_command
from holdfast._transport.pushes import PUSHES

__all__ = ["Mailbox", "open_inbox"]

_HELLO = pack_command(("HELLO", 3))
_PING = pack_command(("PING",))


def _speaks_resp3(reply: Reply) -> bool:
    return isinstance(reply, dict)


class Mailbox:
    """A channel that is subscribed to on the connection of all commands."""

    def __init__(
        self, node: Node, channel: str, on_message: Callable[[Reply], None], on_broken: Callable[[Hearing], None]
    ) -> None:
        self.node = node
        self._channel = channel
        self._on_message = on_message
        self._on_broken = on_broken
        self._wire: Wire | None = None
        self._heard_at = 0.0
        self.open = False

    async def subscribe(self) -> bool:
        """Subscribe, and wait for the confirmation; False where RESP3 is refused. Raises `RequestFailed`."""
        wire = self.node.shared()
        try:
            await wire.submit(_HELLO, INBOX_TIMEOUT_S, None, _speaks_resp3)
        except RequestFailed as failure:
            if failure.transient or failure.kind in ("closed", "NOAUTH", "WRONGPASS"):
                raise
            return False
        try:
            await wire.hear(self._channel, self._hear, self._ended, INBOX_TIMEOUT_S)
        except BaseException:
            wire.retire()  # it may be subscribed all the same
            raise
        self._wire = wire
        self._heard_at = clock()
        self.open = True
        return True

    def _hear(self, reply: Reply) -> None:
        self._heard_at = clock()
        self._on_message(reply)

    def _ended(self) -> None:
        was_open, self.open = self.open, False
        self._wire = None
        if was_open:
            self._on_broken(self)

    def check(self) -> None:
        """Ask for a sign of life when the inbox has been quiet for long."""
        now = clock()
        wire = self._wire
        if wire is not None and now - self._heard_at > INBOX_QUIET_S:
            self._heard_at = now
            wire.submit(_PING, INBOX_TIMEOUT_S).add_done_callback(self._judge)

    def _judge(self, pong: asyncio.Future[Reply]) -> None:
        if not pong.cancelled() and pong.exception() is not None:
            self.abort()

    def abort(self) -> None:
        """Hear nothing any more: the connection ends when it owes no replies."""
        if self._wire is not None:
            self._wire.retire()

    @property
    def gone(self) -> bool:
        """Always True: the node looks after the connection."""
        return True

    def forget(self) -> None:
        """After fork: as for `Wire`."""
        self.open = False
        self._wire = None


async def open_inbox(
    node: Node,
    channel: str,
    on_message: Callable[[Reply], None],
    on_broken: Callable[[Hearing], None],
    loop: asyncio.AbstractEventLoop,
) -> Hearing:
    """Subscribe to the channel there. Raises `RequestFailed`."""
    if PUSHES and not node.only_resp2:
        mailbox = Mailbox(node, channel, on_message, on_broken)
        if await mailbox.subscribe():
            return mailbox
        node.only_resp2 = True
    inbox = Inbox(node, channel, on_message, on_broken, loop)
    await inbox.subscribe()
    return inbox

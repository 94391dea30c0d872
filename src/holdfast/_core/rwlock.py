"""The shared lock: any number of readers or one writer.

Laws: no writer while there is a reader, even if others write the key; arrival order, readers that follow each other
together, so that neither side starves; every reader's time is its own; at most one upgrade waits.

Theory: the writer is the holder of the plain lock of that name (`holdfast:{NAME}`), in the same queue, so the two
exclude each other. Readers stand in a sorted set, each with its own expiry on the server's clock; while there are
any, the lock's key says so. What a token is for stands in it: `r.` reads, `w.` writes, `u<n>.` is an upgrade
of the reader that has the same token otherwise. An upgrade leaves the reader in place beneath it, and stands in a
key of its own, so that its release, its failure and its expiry all end with a reader that never lost its turn.
"""

from __future__ import annotations

import re

from holdfast._core.effects import Call, Spawn, driver
from holdfast._core.failure import RequestFailed
from holdfast._core.kinds import RWLOCK
from holdfast._core.replicas import judge
from holdfast._core.retry import Retry
from holdfast._core.waiting import Acquisition, Args, Grant, granted, request_timeout_for
from holdfast.errors import LeaseLost, UpgradeRefused

#: What the owner in a token begins with.
READER = "r."
WRITER = "w."

#: Refusals of rw_acquire.
_NO_READER, _UPGRADED_BY_ANOTHER = -2, -3

_READER_TOKEN = re.compile(r"([^:]*:)r(\..*)")
_UPGRADE_TOKEN = re.compile(r"([^:]*:)u[0-9]+(\..*)")


def upgrade_token(reader: str, number: int) -> str:
    found = _READER_TOKEN.fullmatch(reader)
    if found is None:
        raise ValueError(f"{reader!r} is not a reader's token")
    return f"{found[1]}u{number}{found[2]}"


def reader_beneath(token: str) -> str | None:
    """The reader that has become the writer by this token; None where it is no upgrade's."""
    found = _UPGRADE_TOKEN.fullmatch(token)
    return f"{found[1]}r{found[2]}" if found is not None else None


class RWAcquisition(Acquisition):
    """The turn to read, to write or to upgrade: the token says which."""

    __slots__ = ()

    kind = RWLOCK

    @property
    def extend_more(self) -> Args:  # type: ignore[override]
        return self.settings.fence_ms, self.claim_ms, self.keys.inboxes

    @property
    def pushed_whole(self) -> bool:  # type: ignore[override]
        # A reader may have been handed the lock's own key, and joins the readers when it asks.
        return not _READER_TOKEN.fullmatch(self.token)

    def refused(self, code: int, stored: int = 0) -> Exception:
        if code == _NO_READER:
            return LeaseLost(self.keys.name, "taken", "read lock")
        if code == _UPGRADED_BY_ANOTHER:
            return UpgradeRefused(self.keys.name)
        return super().refused(code)


async def downgrade(writer: RWAcquisition, reader: RWAcquisition) -> Grant:
    """Turn the writer into the reader in one step. Raises `LeaseLost` when it was not the writer any more.

    When it cannot be learned what came of it, both are given back and `RequestFailed` is raised.
    """
    settings = reader.settings
    request_timeout_s = request_timeout_for(reader.ttl_ms, settings)
    tombstone_ms = settings.tombstone_ms if writer.stray else 0
    settled = (reader.ttl_ms, settings.fence_ms, writer.claim_ms, reader.keys.inboxes, tombstone_ms)
    args = (writer.token, reader.token, *settled)
    try:
        retry = Retry(settings, until=driver.get().now() + settings.short_retry_s)
        while True:
            asked_at = driver.get().now()
            try:
                reply = await Call("rw_downgrade", reader.all_keys, args, request_timeout_s, sync=reader.tail())
                if reader.sync is not None:
                    reply = judge(reader.sync, reader.name, reply, asked_at)
            except RequestFailed as failure:
                if not await retry.again(failure):
                    raise
            else:
                if grant := granted(reply, asked_at, driver.get().now(), reader.ttl_ms):
                    return grant
                if reply[0] == 1:
                    await Spawn(reader.give_back())  # its time was over before we heard of it
                break
    except BaseException:
        await Spawn(reader.give_back())
        await Spawn(writer.give_back())
        raise
    raise LeaseLost(writer.keys.name, "taken", "write lock")

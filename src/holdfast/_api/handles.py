"""What a lease is written as while it is handed to another process. The same for both APIs.

A handle says who holds (the token) and how often that was extended: the next holder's extensions have to be numbered
behind those, or late ones could take back what it sets.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from holdfast._core.record import LeaseRecord
from holdfast._core.replies import LockSeen
from holdfast._core.tokens import BLOCK, MARK, TOKEN_MAX
from holdfast._runtime.lazily import lazily
from holdfast.errors import ConfigurationError

_MARK = "holdfast lease"
#: By how much the clocks of server and client may differ, µs.
_CLOCKS_APART_US = 60_000_000


class Handle(NamedTuple):
    """What there is to know of a lease elsewhere."""

    namespace: str | None
    name: str
    token: str
    fencing_token: int
    extensions: int


def handle_of(record: LeaseRecord, namespace: str | None) -> str:
    """Write a handle as text: one line of ASCII."""
    handle = Handle(namespace, record.name, record.token, record.fence, record.extensions)
    text: str = lazily("json").dumps([_MARK, *handle])
    return text


def read_handle(text: object, namespace: str | None) -> Handle:
    """Parse the text that `Lease.handle` made for a client of this namespace."""
    try:
        mark, *fields = lazily("json").loads(text)  # what is no str is a TypeError
        handle = Handle(*fields)
        "".join(map(str, handle)).encode()  # half a surrogate pair is a ValueError
    except (TypeError, ValueError, RecursionError):
        mark, handle = None, None
    if mark != _MARK or handle is None or not _fits(*handle):
        raise ConfigurationError("handle", text, "the text that lease.handle() returned")
    if handle.namespace != namespace:
        allowed = f"one of this client's namespace {namespace!r}, not of {handle.namespace!r}"
        raise ConfigurationError("handle", text, allowed)
    return handle


def _fits(namespace: Any, name: Any, token: Any, fence: Any, extensions: Any) -> bool:
    return (
        (namespace is None or isinstance(namespace, str))
        and isinstance(name, str)
        and isinstance(token, str)
        and 0 < len(token) <= TOKEN_MAX
        and type(fence) is int
        and 0 < fence < 2**53
        and type(extensions) is int
        and extensions >= 0
    )


async def verify(lock: Any, given: Handle, text: str) -> None:
    """Refuse a handle whose fencing token is not that of the lease: the resource would go by it. A protocol."""
    seen: LockSeen = await lock._how.inspect()
    fence = given.fencing_token
    block = BLOCK if given.token.endswith(MARK) else 1
    known = seen.fence <= fence < seen.fence + block
    if not seen.fence:  # held for more than a day, it is forgotten
        known = fence <= time.time_ns() // 1000 + _CLOCKS_APART_US
    if seen.holder == given.token and not known:
        allowed = "one that was not altered: its fencing token is not that of the lease"
        raise ConfigurationError("handle", text, allowed)

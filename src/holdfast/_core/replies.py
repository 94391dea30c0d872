"""What a reply may look like: one place that says it for every script, and for the commands that we send ourselves.

Law: nothing but a reply that fits reaches a protocol. A connection with another one is out of step, or leads to
something that is no server of ours: its reader closes it, and the command may have been executed.

The forms of the kinds' scripts stand in their table. What is in a reply is named here, or beside the one protocol that
asks for it.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from holdfast._core.effects import Reply, Wake
from holdfast._core.failure import RequestFailed
from holdfast._core.kinds import EACH, KINDS, B, Fits, I, forms, number, one_of
from holdfast._core.tokens import seen_fence

_SHOWN_MAX = 120
#: What arrays, maps, sets, pushes and attributes begin with.
_AGGREGATES = b"*%~>|"
#: A token, its fencing token, and the claim window, ms; and who has broken a lease, and why.
_GRANT = re.compile(rb"grant ([^ ]*) ([0-9]{1,19})(?: (?:([0-9]{1,19})|.*))?", re.DOTALL)
_NOTE = re.compile(rb".+ on .+, pid [0-9]+(: .*)?", re.DOTALL)


def _is_digits(value: Any) -> bool:
    return type(value) in (bytes, str) and value.isascii() and value.isdigit() and len(value) < 20


_TOLD = number(0, 2)

#: By the name of the script: of the kinds, and of what is beside them.
FITS: dict[str, Fits] = {script: fits for kind in KINDS for script, fits in kind.scripts.items()} | {
    "quorum_acquire": forms((1, I, I, B), (0, I, B), (-1,), (-2, I), (-3, B)),
    "hears": _TOLD,
    "set_if": number(0, 1),
    "tell": _TOLD,
    "fenced_set": lambda reply: (type(reply) is int and reply == 0) or _is_digits(reply),
}


def _is_pairs(reply: Reply) -> bool:
    return type(reply) is list and len(reply) % 2 == 0 and all(type(each) in (B, I) for each in reply)


def _is_overview(reply: Reply) -> bool:
    if type(reply) is not list or not reply or type(reply[0]) is not int:
        return False
    return all(
        type(row) is list and [*map(type, row)] == [I] * 6 + [list] * 2 + [B] and _is_pairs(row[6] + row[7])
        for row in reply[1:]
    )


FITS["overview"] = _is_overview
FITS["counts"] = FITS["there"] = EACH

# Of commands: what was done, or put off until EXEC; a value or none; a number.
DONE, MAYBE_DONE, QUEUED = one_of(b"OK"), one_of(b"OK", None), one_of(b"QUEUED")
COUNT = number(float("-inf"))


def MAYBE(reply: Reply) -> bool:
    return reply is None or type(reply) is bytes


def NOTE(reply: Reply) -> bool:
    return reply is None or (type(reply) is bytes and _NOTE.fullmatch(reply) is not None)


def MOMENT(reply: Reply) -> bool:
    return type(reply) is list and len(reply) == 2 and all(map(_is_digits, reply))


def SCANNED(reply: Reply) -> bool:
    return (
        type(reply) is list
        and len(reply) == 2
        and _is_digits(reply[0])
        and type(reply[1]) is list
        and all(type(key) is bytes for key in reply[1])
    )


def executed(count: int) -> Fits:
    """Return the form of EXEC's answer after a number of commands: their replies, or nil."""
    return lambda reply: reply is None or (type(reply) is list and len(reply) == count)


# What replies that fit say, for protocols: the one place that knows which element is which.


#: The place of one that may not queue.
FULL = -2


def taken_of(reply: Reply) -> tuple[int, str, int, int]:
    """Parse `[0, ms, holder, place, arrival, …]`, the answer of an asking script where another one holds it.

    `ms`: it is held for, -1 where that is unknown; 0 without a holder: it is free, but one call did not clear away all
    that stood before. `place` in the queue, with 0 the next; -1: not queued; FULL: nor may it, as many wait as may.
    `arrival`: what keeps the place, µs on the server's clock.
    """
    return reply[1], text_of(reply[2]), reply[3], reply[4]


class LockSeen(NamedTuple):
    """The answer of `inspect`: `remaining_ms` is -1 without a ttl, -2 where no one holds it alone.

    `holders`: readers, or those of a semaphore; its `limit` is 0 where none is stored.
    """

    holder: str
    remaining_ms: int
    fence: int
    waiters: int
    holders: int = 0
    limit: int = 0
    used: int = 0


def seen_of(reply: Reply) -> LockSeen:
    """Parse `[holder, ms, fence, waiters, holders, limit, used]`, or its beginning."""
    holder = text_of(reply[0])
    return LockSeen(holder, reply[1], seen_fence(reply[2], holder), *reply[3:])


def text_of(value: bytes | str | int) -> str:
    return value.decode("utf-8", "replace") if type(value) is bytes else str(value)


def wake_of(reply: Reply, client_id: str) -> tuple[str, Wake] | None:
    """Parse a message of an inbox of that client: its token and what it says; None where it is not a message.

    `grant TOKEN FENCE CLAIM_MS` or `ask TOKEN`; for holders `break TOKEN TEXT`, `want TOKEN TEXT`
    or `yield TOKEN`.
    Any client may publish there: what cannot be read asks to look.
    """
    if not (isinstance(reply, list) and len(reply) == 3 and type(reply[1]) is type(reply[2]) is bytes):
        return None
    if reply[0] not in (b"message", b"smessage") or not reply[1].endswith(client_id.encode()):
        return None
    if (grant := _GRANT.fullmatch(reply[2])) is not None:
        to, fence, claim_ms = grant.groups()
        return to.decode("utf-8", "replace"), Wake(Wake.GRANT, int(fence), int(claim_ms or 0))
    kind, token, text, *_ = (*reply[2].decode("utf-8", "replace").split(" ", 2), "", "")
    return token, Wake(kind, text=text) if kind in Wake.FOR_HOLDERS else Wake(Wake.ASK)


def promises_too_much(data: bytes) -> bool:
    """True if a reply that begins so is an array of 10,000,000 or more: parsers get memory for all of it at once."""
    return data[0] in _AGGREGATES and len(data) > 8 and b"\r" not in data[1:9]


def nonsense(said: str, node: str) -> RequestFailed:
    """The trouble behind an answer that no server of ours gives. Its connection is closed where it is found."""
    shown = said if len(said) <= _SHOWN_MAX else f"{said[:_SHOWN_MAX]}…"
    message = f"{shown}, which is no answer to what was asked"
    return RequestFailed("nonsense", message, node, maybe_executed=True, transient=False)

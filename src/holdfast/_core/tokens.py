"""Tokens: the random identity of one acquisition, `<client id>:<owner>:<sequence>`; with "+" behind it for a tenure,
"*+" for a lease that its client may keep.
"""

from __future__ import annotations

import re

__all__ = ["KEPT", "TOKEN_MAX", "client_of", "is_kept", "is_ours", "make_token", "mark_of", "owner_of"]

#: A client id is 24 hexadecimal digits: 96 random bits.
_OURS = re.compile(r"[0-9a-f]{24}:[^:]*:[0-9]+(?:\*?\+)?")
#: What tokens end with whose client may keep the lease, and listens: see `_lua/wanted.lua`.
KEPT = "*+"


#: No token has more characters; of longer values no more is read, since they are not ours.
TOKEN_MAX = 200


def make_token(client_id: str, owner: str | int, sequence: int) -> str:
    """The token of the `sequence`-th acquisition of a client."""
    return f"{client_id}:{owner}:{sequence}"


def is_ours(token: str) -> bool:
    """True if a holdfast client made the token, so that a wake-up will follow its release."""
    return _OURS.fullmatch(token) is not None


def is_kept(token: str) -> bool:
    """True if its client releases the lease when it is told that others want it, though it may be idle until then."""
    return token.endswith(KEPT) and is_ours(token)


def client_of(token: str) -> str:
    """The client id within a token of ours."""
    return token.partition(":")[0]


def owner_of(token: str) -> str:
    """The number of the thread or task within a token of ours."""
    return token.split(":", 2)[1].rpartition(".")[2]


def mark_of(token: str) -> str:
    """Return the kind of lease that stands before the owner and its dot; "" for that of a lock, or of others."""
    return token.split(":", 2)[1].rpartition(".")[0] if is_ours(token) else ""

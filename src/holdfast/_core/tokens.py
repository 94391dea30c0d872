"""Tokens: the random identity of one acquisition, `<client id>:<owner>:<sequence>`; with "+" behind it for a tenure,
"*+" for a lease that its client may keep, "!MS" for one that ends that long after its client has gone.
"""

from __future__ import annotations

import re

#: A client id is 24 hexadecimal digits, of which the first is not random: see `client_id_of`.
_OURS = re.compile(r"[0-9a-f]{24}:[^:]*:[0-9]+(?:\*?\+|!([0-9]{1,9}))?")
#: What the ids of clients of a Cluster begin with, as `_lua/inboxes.lua` knows.
_SHARDED = "c"
#: What a token ends with that is granted a block of fencing tokens, and how many these are (see `_lua/fence.lua`): more
#: than are used within a tenure, and few enough that grants a second times this stay below the µs of a second.
MARK = "+"
BLOCK = 1_024
#: What tokens end with whose client may keep the lease, and listens: see `_lua/wanted.lua`.
KEPT = "*+"
#: What stands before the owner in tokens of leases with a note: see `describe.py`.
NOTED = "n."


#: No token has more characters; of longer values no more is read, since they are not ours.
TOKEN_MAX = 200


def client_id_of(random: str, moves: bool) -> str:
    """Make an id of 24 hexadecimal digits. `moves`: of a client of a Cluster, which listens in the keys' slots."""
    return (_SHARDED if moves else "0") + random[1:]


def is_sharded(client_id: str) -> bool:
    """True if the client listens to sharded channels where the server has them."""
    return client_id.startswith(_SHARDED)


def make_token(client_id: str, owner: str | int, sequence: int) -> str:
    """The token of the `sequence`-th acquisition of a client."""
    return f"{client_id}:{owner}:{sequence}"


def is_ours(token: str) -> bool:
    """True if a holdfast client made the token, so that a wake-up will follow its release."""
    return _OURS.fullmatch(token) is not None


def is_kept(token: str) -> bool:
    """True if its client releases the lease when it is told that others want it, though it may be idle until then."""
    return token.endswith(KEPT) and is_ours(token)


def crash_ms_of(token: str) -> int:
    """Return how long its client may be silent before others get in (`crash_release`); 0: until its ttl is over."""
    found = _OURS.fullmatch(token)
    return int(found[1] or 0) if found else 0


def seen_fence(last: int, holder: str) -> int:
    """The last fencing token for those who look, where `last` is stored and `holder` holds.

    While its client has a block of them, no one else knows how far that is used. Then it is the first of the block: who
    guards a resource with it does not lock the holder out.
    """
    return max(0, last + 1 - BLOCK) if holder.endswith(MARK) and is_ours(holder) else last


def client_of(token: str) -> str:
    return token.partition(":")[0]


def owner_of(token: str) -> str:
    return token.split(":", 2)[1].rpartition(".")[2]


def has_note(token: str) -> bool:
    """True if a note stands beside what that token holds."""
    return f":{NOTED}" in token or f".{NOTED}" in token


def mark_of(token: str) -> str:
    """Return the kind of lease that stands before the owner and its dot; "" for that of a lock, or of others."""
    return token.split(":", 2)[1].rpartition(".")[0] if is_ours(token) else ""

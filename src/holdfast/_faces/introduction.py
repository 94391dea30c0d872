"""What a client says of itself on the server, for people. Apart from `holder`, which takes longer to import."""

from __future__ import annotations

import os
import socket
import sys

from holdfast._core.tokens import client_of, is_ours

__all__ = ["CLIENT_INFO_MS", "client_id_of", "client_key", "introduction"]

#: How long a client's description stays on the server, ms; it is written anew at half of that.
CLIENT_INFO_MS = 86_400_000


def client_key(namespace: str | None, client_id: str) -> str:
    """Where a client's description lies."""
    return f"{namespace or 'holdfast'}:client:{client_id}"


def introduction(now_s: float) -> str:
    """What a client says of itself: JSON."""
    import json

    program = " ".join([os.path.basename(sys.argv[0] or "python"), *sys.argv[1:]])[:200]
    return json.dumps({"host": socket.gethostname(), "pid": os.getpid(), "program": program, "since": now_s})


def client_id_of(token: str) -> str | None:
    """The client behind a token of ours."""
    return client_of(token) if is_ours(token) else None

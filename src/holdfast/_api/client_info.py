"""What a client says of itself on the server, for people. Apart from `holder`, which takes longer to import."""

from __future__ import annotations

import os
import socket
import sys
from _json import encode_basestring_ascii

from holdfast._core.tokens import client_of, is_ours

#: How long a client's description stays on the server, ms; it is written again at half of that.
CLIENT_INFO_MS = 86_400_000


def lease_note_key(namespace: str | None, token: str) -> str:
    return f"{namespace or 'holdfast'}:note:{token}"


def introduction(now_s: float) -> str:
    """Return what a client says of itself: JSON.

    Not by `json`, which would be imported here: a fork meanwhile in another thread leaves the child waiting for it.
    """
    said = {**who_we_are(), "since": now_s}
    words = (
        f"{encode_basestring_ascii(key)}: {encode_basestring_ascii(value) if isinstance(value, str) else repr(value)}"
        for key, value in said.items()
    )
    return f"{{{', '.join(words)}}}"


def who_we_are() -> dict[str, str | int]:
    """Return where this process runs, and what it is called."""
    return {"host": socket.gethostname(), "pid": os.getpid(), "program": _program()}


def _program() -> str:
    """The program's name, or what it wants to be called. Never its arguments: they may be secret, and this is not."""
    asked_for = os.environ.get("HOLDFAST_PROGRAM")
    if asked_for:
        return asked_for[:200]
    path = sys.argv[0] if getattr(sys, "argv", None) else ""
    if path.startswith("holdfast "):
        return path[:200]  # the command line, which says for what it runs, has left out all arguments
    name = os.path.basename(path)
    if name == "__main__.py":
        name = os.path.basename(os.path.dirname(path))  # python -m package
    return (name if name not in ("", "-c", "-m", "-") else "python")[:200]


def client_id_of(token: str) -> str | None:
    return client_of(token) if is_ours(token) else None

"""What an exception that a client library raised while connecting says as `RequestFailed`."""

from __future__ import annotations

from redis import exceptions

from holdfast._core.failure import RequestFailed, refusal
from holdfast._engine.handshake import UnfitServer, unreachable

__all__ = ["connection_failed"]

#: redis-py replaces the error word of these by a class. The first that fits counts.
_WORDS: tuple[tuple[str, str], ...] = (
    ("BusyLoadingError", "LOADING"),
    ("MaxClientsError", "ERR max number of clients reached:"),
    ("AuthenticationWrongNumberOfArgsError", "WRONGPASS"),
    ("NoPermissionError", "NOPERM"),
    ("AuthorizationError", "NOPERM"),
    ("ReadOnlyError", "READONLY"),
    ("MasterDownError", "MASTERDOWN"),
)
#: What a server says to a client that gave no password. The last: "HELLO must be called with the client already …".
_NO_PASSWORD = ("required", "without any password", "before auth", "already auth")


def connection_failed(error: BaseException, node: str, *, tls: bool = False) -> RequestFailed:
    """There is no connection, so that nothing of ours was executed. `tls`: whether it was to be encrypted."""
    if isinstance(error, RequestFailed):
        return error
    message = str(error) or type(error).__name__
    if isinstance(error, UnfitServer):
        return RequestFailed("foreign", message, node, maybe_executed=False, transient=False)
    for name, word in _WORDS:
        kind = getattr(exceptions, name, None)
        if kind is not None and isinstance(error, kind):
            return _unsent(message if message.startswith(word) else f"{word} {message}", node)
    if isinstance(error, exceptions.AuthenticationError):
        if message.split(" ", 1)[0] in ("NOAUTH", "WRONGPASS"):
            return _unsent(message, node)
        missing = any(sign in message.lower() for sign in _NO_PASSWORD)
        return _unsent(f"{'NOAUTH' if missing else 'WRONGPASS'} {message}", node)
    if "max number of clients" in message:
        return _unsent(f"ERR {message.removeprefix('ERR ')}", node)
    if isinstance(error, exceptions.InvalidResponse):
        return unreachable(error, node, tls=tls)
    if isinstance(error, exceptions.ResponseError):
        word = message.split(" ", 1)[0]
        return _unsent(message if word.isupper() else f"ERR {message}", node)  # redis-py cuts off "ERR"
    if not isinstance(error, (exceptions.RedisError, OSError, EOFError)):
        # An option of the URL that no connection has, a stand-in that is not a client, …: it will be the same again.
        return RequestFailed("unfit", f"{type(error).__name__}: {error}", node, maybe_executed=False, transient=False)
    return unreachable(error, node, tls=tls)


def _unsent(message: str, node: str) -> RequestFailed:
    failure = refusal(message, node)
    failure.maybe_executed = False
    return failure

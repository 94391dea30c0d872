"""What a client library's exception, raised while connecting, says as `RequestFailed`."""

from __future__ import annotations

from redis import exceptions

from holdfast._core.failure import RequestFailed, refusal

__all__ = ["UnfitServer", "connecting_trouble"]


class UnfitServer(Exception):
    """The server answers, and is not of the kind that the client is for."""


#: redis-py cuts the error word off for these, and gives a class instead. The first that fits counts.
_WORDS: tuple[tuple[str, str], ...] = (
    ("BusyLoadingError", "LOADING"),
    ("MaxClientsError", "ERR max number of clients reached:"),
    ("AuthenticationWrongNumberOfArgsError", "WRONGPASS"),
    ("NoPermissionError", "NOPERM"),
    ("AuthorizationError", "NOPERM"),
    ("ReadOnlyError", "READONLY"),
    ("MasterDownError", "MASTERDOWN"),
)


def connecting_trouble(error: BaseException, node: str) -> RequestFailed:
    """Nothing of ours was sent: the connection did not come about."""
    said = str(error) or type(error).__name__
    if isinstance(error, UnfitServer):
        return RequestFailed("unfit", said, node, maybe_executed=False, transient=False)
    for name, word in _WORDS:
        kind = getattr(exceptions, name, None)
        if kind is not None and isinstance(error, kind):
            return _unsent(refusal(said if said.startswith(word) else f"{word} {said}", node))
    if isinstance(error, exceptions.AuthenticationError):
        lower = said.lower()
        # "HELLO must be called with the client already authenticated …": no password was given at all.
        needs = any(sign in lower for sign in ("required", "without any password", "before auth", "already auth"))
        word = said.split(" ", 1)[0]
        known = word in ("NOAUTH", "WRONGPASS")
        return _unsent(refusal(said if known else f"{'NOAUTH' if needs else 'WRONGPASS'} {said}", node))
    if "max number of clients" in said:
        return RequestFailed("MAXCLIENTS", said, node, maybe_executed=False, transient=True)
    if isinstance(error, exceptions.ResponseError):
        return _unsent(refusal(said, node))
    if not isinstance(error, (exceptions.RedisError, OSError, EOFError)):
        # An option of the URL that no connection has, a stand-in that is no client, …: it will be the same again.
        return RequestFailed("unfit", f"{type(error).__name__}: {error}", node, maybe_executed=False, transient=False)
    return RequestFailed("refused", said, node, maybe_executed=False, transient=not _is_distrust(error))


def _is_distrust(error: BaseException | None) -> bool:
    """Whether a certificate was not believed: asking again changes nothing. (By name: `ssl` may not be loaded.)"""
    for _ in range(10):
        if error is None:
            return False
        if type(error).__name__ == "SSLCertVerificationError":
            return True
        error = error.__cause__ or error.__context__
    return False


def _unsent(failure: RequestFailed) -> RequestFailed:
    failure.maybe_executed = False
    return failure

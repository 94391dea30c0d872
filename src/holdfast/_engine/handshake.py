"""Why there is no connection, in words that name the way out.

Law: what cannot get better by trying again (a port that speaks something else, a certificate that is not trusted) is
not transient.

Theory: what client libraries raise is known by the names of its classes. Two libraries have the same ones, and
importing either takes longer than all else together; so does `ssl`.
"""

from __future__ import annotations

import os
import re

from holdfast._core.failure import RequestFailed, refusal

#: Between an exception and its first cause.
_CHAIN_MAX = 10
#: What OpenSSL says of an answer that is not TLS.
_NOT_TLS = frozenset(
    {"WRONG_VERSION_NUMBER", "UNKNOWN_PROTOCOL", "RECORD_LAYER_FAILURE", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG"}
)
#: The first byte of an answer in TLS: an alert, or a handshake.
_TLS_BYTES = ("\\x15", "\\x16", "\x15", "\x16")
#: How redis-py names a Sentinel.
_SENTINEL = re.compile(r"<redis.*?host=([^,]+),port=(\d+).*?\)>\)>\)> - ")
_USE_TLS = "if this port speaks TLS, use rediss://; else see the server's log"
_NO_TLS = "if this port does not speak TLS, use redis://"
#: The libraries replace the error word of these by a class. The first that fits counts.
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
#: What can be the matter with a server. Anything else will be the same again.
_TROUBLES = frozenset({"RedisError", "ValkeyError", "OSError", "EOFError"})


class UnfitServer(Exception):
    """The server answers, and is of another kind than the client is for."""


def is_tls(connection: object) -> bool:
    """True if a connection of a client library, or one of that class, is to be encrypted."""
    kind = connection if isinstance(connection, type) else type(connection)
    return any("SSL" in base.__name__ for base in kind.__mro__)


def late(node: str, seconds: float | None, *, tls: bool = False) -> RequestFailed:
    """The handshake did not end in time."""
    message = "no connection in time" if seconds is None else f"no connection within {seconds:.3g} s"
    return _failed(message, node, _NO_TLS if tls else None)


def connection_failed(error: BaseException, node: str, *, tls: bool = False) -> RequestFailed:
    """There is no connection, so that nothing of ours was executed. `tls`: whether it was to be encrypted."""
    if isinstance(error, RequestFailed):
        return error  # a connection of our own says what is wrong
    kinds = {kind.__name__ for kind in type(error).__mro__}
    message = str(error) or type(error).__name__
    word = message.split(" ", 1)[0]
    if isinstance(error, UnfitServer):
        return RequestFailed("foreign", message, node, maybe_executed=False, transient=False)
    for name, replaced in _WORDS:
        if name in kinds:
            return _unsent(message if message.startswith(replaced) else f"{replaced} {message}", node)
    if "AuthenticationError" in kinds:
        if word in ("NOAUTH", "WRONGPASS"):
            return _unsent(message, node)
        missing = any(sign in message.lower() for sign in _NO_PASSWORD)
        return _unsent(f"{'NOAUTH' if missing else 'WRONGPASS'} {message}", node)
    if "ResponseError" in kinds or "max number of clients" in message:
        return _unsent(message if word.isupper() else f"ERR {message}", node)  # "ERR" is cut off
    if not kinds & _TROUBLES:  # an option of the URL that no connection has, a stand-in that is not a client, …
        return RequestFailed("unfit", f"{type(error).__name__}: {error}", node, maybe_executed=False, transient=False)
    return unreachable(error, node, tls=tls)


def _unsent(message: str, node: str) -> RequestFailed:
    failure = refusal(message, node)
    failure.maybe_executed = False
    return failure


def unreachable(error: BaseException, node: str, *, tls: bool = False) -> RequestFailed:
    """The failure that an exception of a socket, of TLS or of a parser was while connecting."""
    chain = _chain(error)
    for each in chain:
        name = type(each).__name__
        if name == "SSLCertVerificationError":
            reason = getattr(each, "verify_message", "") or str(each)
            way_out = "name the CA with ssl_ca_certs=FILE in the URL, and the host as the certificate does"
            return _failed(f"its certificate is not trusted: {reason}", node, way_out, transient=False)
        if name == "SSLError" and getattr(each, "reason", None) in _NOT_TLS:
            return _failed("it does not speak TLS on this port", node, "use redis://, or its TLS port", transient=False)
        if name in ("ProtocolError", "InvalidResponse") and "Protocol error" in str(each):
            return _not_redis(str(each), node)
    if any(isinstance(each, (ConnectionResetError, EOFError)) for each in chain) or "closed" in str(error).lower():
        return _failed("the server closed the connection before it was set up", node, None if tls else _USE_TLS)
    if any(isinstance(each, TimeoutError) or type(each).__name__ == "TimeoutError" for each in chain):
        return _failed(_reason(chain) or "no answer in time", node, _NO_TLS if tls else None)
    return _failed(_reason(chain) or _SENTINEL.sub(r"\1:\2: ", str(error)) or type(error).__name__, node, None)


def _not_redis(said: str, node: str) -> RequestFailed:
    if any(f'"{byte}"' in said for byte in _TLS_BYTES):
        return _failed("it speaks TLS on this port", node, "use rediss://", transient=False)
    way_out = "check the port: is this a Redis or Valkey server?"
    return _failed(f"what answers there is not Redis ({said})", node, way_out, transient=False)


def _chain(error: BaseException) -> list[BaseException]:
    chain = [error]
    while len(chain) < _CHAIN_MAX:
        before = chain[-1].__cause__ or chain[-1].__context__
        if before is None:
            break
        chain.append(before)
    return chain


def _reason(chain: list[BaseException]) -> str | None:
    """Return what the system says, without what a client library puts around it."""
    for each in chain:
        if isinstance(each, OSError) and each.strerror:
            number = each.errno or 0
            is_system = type(each).__module__ == "builtins" and number > 0
            return os.strerror(number) if is_system else each.strerror  # asyncio has words of its own
    return None


def _failed(message: str, node: str, way_out: str | None, *, transient: bool = True) -> RequestFailed:
    failure = RequestFailed("refused", message, node, maybe_executed=False, transient=transient)
    failure.way_out = way_out
    return failure

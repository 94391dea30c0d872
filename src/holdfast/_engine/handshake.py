"""Why there is no connection, in words that name the way out.

Law: what cannot get better by trying again (a port that speaks something else, a certificate that is not trusted) is
not transient.

Apart from `refusals`, which imports redis-py: connections of our own need this, too.
"""

from __future__ import annotations

import os
import re

from holdfast._core.failure import RequestFailed

__all__ = ["UnfitServer", "is_tls", "late", "unreachable"]

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


def unreachable(error: BaseException, node: str, *, tls: bool = False) -> RequestFailed:
    """The failure that an exception of a socket, of TLS or of a parser was while connecting."""
    chain = _chain(error)
    for each in chain:
        # By name: `ssl` may not be loaded, and redis-py has classes of its own.
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

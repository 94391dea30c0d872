"""What a job that runs once came to, and how its result is stored. The same for both APIs."""

from __future__ import annotations

from typing import NamedTuple

from holdfast._api.options import check_value
from holdfast._runtime.lazily import importing
from holdfast.errors import ConfigurationError

__all__ = ["Outcome", "mark_of", "packed_result", "unpacked_result"]

#: What a stored result begins with: nothing follows, or bytes do. Before that may stand the mark of a request.
_NONE, _BYTES, _MARK = b"0", b"1", b"2"
_MARK_LENGTH = 1 + 32


class Outcome(NamedTuple):
    """What `once` came to. `new`: the job has run by this call; `result`: what it returned then, as bytes, or None."""

    new: bool
    result: bytes | None


def mark_of(fingerprint: object) -> bytes:
    """Return what is stored for a fingerprint, of whatever length; nothing for None."""
    if fingerprint is None:
        return b""
    if not isinstance(fingerprint, (str, bytes)):
        raise ConfigurationError("fingerprint", fingerprint, "str or bytes: what makes two requests the same, or None")
    with importing:
        from hashlib import sha256
    given = fingerprint.encode("utf-8", "surrogatepass") if isinstance(fingerprint, str) else fingerprint
    return _MARK + sha256(given).hexdigest()[: _MARK_LENGTH - 1].encode()


def packed_result(result: object, mark: bytes = b"") -> bytes:
    """A job's result as it is stored: bytes, str, int, float or None."""
    return mark + (_NONE if result is None else _BYTES + check_value("result", result))


def unpacked_result(stored: bytes) -> tuple[bytes | None, bytes]:
    """The reverse, but for the type: bytes, or None; and the mark."""
    at = _MARK_LENGTH if stored[:1] == _MARK else 0
    return stored[at + 1 :] if stored[at : at + 1] == _BYTES else None, stored[:at]

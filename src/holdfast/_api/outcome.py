"""What a job that runs once came to, and how its result is stored. The same for both APIs."""

from __future__ import annotations

from typing import NamedTuple

from holdfast._api.options import check_value

__all__ = ["Outcome", "packed_result", "unpacked_result"]

#: What a stored result begins with: nothing follows, or bytes do.
_NONE, _BYTES = b"0", b"1"


class Outcome(NamedTuple):
    """What `once` came to. `new`: the job has run by this call; `result`: what it returned then, as bytes, or None."""

    new: bool
    result: bytes | None


def packed_result(result: object) -> bytes:
    """A job's result as it is stored: bytes, str, int, float or None."""
    return _NONE if result is None else _BYTES + check_value("result", result)


def unpacked_result(stored: bytes) -> bytes | None:
    """The reverse, but for the type: bytes, or None."""
    return stored[1:] if stored[:1] == _BYTES else None

"""Errors that are redis-py's and ours at once.

Law: each is caught by an `except` for what redis-py would have raised, and by one for what holdfast raises, and carries
the fields of both.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from redis import exceptions as theirs

from holdfast.errors import (
    AcquireTimeout,
    ConfigurationError,
    HoldfastError,
    LeaseLost,
    NotHeld,
    OutcomeUnknown,
    ServerError,
    ServerUnreachable,
    revived,
)

__all__ = [
    "ConnectionError",
    "LockError",
    "LockNotHeldError",
    "LockNotOwnedError",
    "LockTimeoutError",
    "ResponseError",
    "TimeoutError",
]


class LockError(theirs.LockError, HoldfastError):  # type: ignore[misc] # `message` is a str in both
    """Something is wrong with the lock, or with how it is used."""


class LockTimeoutError(LockError, AcquireTimeout):  # type: ignore[misc]
    """The lock was not acquired by `with lock:` within `blocking_timeout`."""

    __new__ = OSError.__new__  # type: ignore[assignment] # of its builtin bases the one with a layout of its own


class LockNotHeldError(LockError, NotHeld):  # type: ignore[misc]
    """The lock is not held by this object (in this thread)."""


class LockNotOwnedError(LockError, theirs.LockNotOwnedError, LeaseLost):  # type: ignore[misc]
    """The lock was held, but is no longer."""


class ConnectionError(theirs.ConnectionError, ServerUnreachable):
    """No connection to the server."""


class TimeoutError(theirs.TimeoutError, OutcomeUnknown):
    """The command was sent but not answered."""


class ResponseError(theirs.ResponseError, ServerError):
    """The server answered with an error."""


#: The first that fits.
_KINDS: tuple[tuple[type[HoldfastError], type[HoldfastError]], ...] = (
    (AcquireTimeout, LockTimeoutError),
    (LeaseLost, LockNotOwnedError),
    (NotHeld, LockNotHeldError),
    (ServerUnreachable, ConnectionError),
    (OutcomeUnknown, TimeoutError),
    (ServerError, ResponseError),
    (HoldfastError, LockError),
)


def as_theirs(error: HoldfastError, lock_name: str) -> HoldfastError:
    kind = next(kind for ours, kind in _KINDS if isinstance(error, ours))
    base = next(base for base in kind.__mro__ if base.__module__ == theirs.__name__)
    return revived(kind, {**vars(base("")), **vars(error), "lock_name": lock_name})


@contextmanager
def translated(lock_name: str) -> Iterator[None]:
    """Raise redis-py's exceptions in place of ours. A `ConfigurationError` stays: it is a ValueError."""
    try:
        yield
    except ConfigurationError:
        raise
    except HoldfastError as error:
        if isinstance(error, theirs.RedisError):
            raise
        raise as_theirs(error, lock_name) from error

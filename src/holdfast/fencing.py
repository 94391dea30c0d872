"""Fencing: let the thing that a lock protects check that its writer still holds the lock.

A lease can end while its holder is stopped (a long pause, a sleeping laptop), and the holder writes afterwards. No lock
can prevent that; the protected resource can, by refusing a fencing token that is older than one it has seen. Every
lease has one, `lease.fencing_token`, greater than all before it.

For keys of Redis or Valkey, one script checks and writes: ::

    from holdfast import fencing

    with locks.lock("report") as lease:
        fencing.guarded_set(locks, "report:latest", text, lease.fencing_token)

(`await fencing.guarded_set(…)` with a client of `holdfast.asyncio`.)

For SQL, keep the newest token beside the data, and let the UPDATE compare: ::

    UPDATE accounts SET balance = :balance, fence = :token WHERE id = :id AND fence <= :token

One row changed: written. None: a newer holder has been here (or there is no such row), and nothing was written;
`check_rowcount` makes an error of that. `INSERT … ON CONFLICT (id) DO UPDATE SET … WHERE accounts.fence <=
excluded.fence` does the same where the row may be missing.
"""

from __future__ import annotations

import threading
from typing import Protocol, TypeVar

from holdfast._api.options import Duration, check_count, ttl_ms_of
from holdfast.errors import ConfigurationError, StaleFencingToken

__all__ = ["FenceGate", "StaleFencingToken", "check_rowcount", "guarded_set"]

T_co = TypeVar("T_co", covariant=True)

#: Fencing tokens are exact in Lua up to here.
_TOKEN_MAX = 2**53 - 1


class _Client(Protocol[T_co]):
    def _fenced_set(
        self, key: str, value: str | int | float | bytes, fencing_token: int, ttl_ms: int | None, remember_ms: int, /
    ) -> T_co: ...


def guarded_set(
    client: _Client[T_co],
    key: str,
    value: str | int | float | bytes,
    fencing_token: int,
    *,
    ttl: Duration | None = None,
    remember: Duration = 30 * 86_400,
) -> T_co:
    """Set `key` (of the server, as it is) unless a newer fencing token has set it before.

    `client`: of either API; that of `holdfast.asyncio` gives an awaitable. `ttl`: lifetime of the value in seconds,
    None: no expiry. `remember`: for how many seconds after the last write the newest token is remembered (beside the
    key, in its slot, under `…:fenced`); a holder that comes back later than that is not recognised as stale.

    The same token may write again and again. Raises `StaleFencingToken`, and the server's trouble. Does not guard
    against writers that set the key by other means.
    """
    token = check_count("fencing_token", fencing_token, 1, _TOKEN_MAX)
    ttl_ms = None if ttl is None else ttl_ms_of(ttl)
    if not hasattr(client, "_fenced_set"):
        raise ConfigurationError("client", client, "a holdfast.Client, or one of holdfast.asyncio")
    return client._fenced_set(key, value, token, ttl_ms, ttl_ms_of(remember, "remember"))


def check_rowcount(rowcount: int, resource: str, fencing_token: int) -> None:
    """Raise `StaleFencingToken` when a guarded UPDATE changed no row (`seen` is None: SQL does not say it)."""
    if rowcount == 0:
        raise StaleFencingToken(resource, fencing_token, None)


class FenceGate:
    """The newest fencing token of each resource, in this process: for tests, and for resources that live in one.

        gate = FenceGate()
        gate.check("disk", lease.fencing_token)     # raises StaleFencingToken for an older one than before

    Safe to share between threads.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._newest: dict[str, int] = {}

    def check(self, resource: str, fencing_token: int) -> None:
        """Let the token pass and remember it, or raise `StaleFencingToken` when a newer one has passed before."""
        token = check_count("fencing_token", fencing_token, 1, _TOKEN_MAX)
        with self._guard:
            newest = self._newest.get(resource, 0)
            if token < newest:
                raise StaleFencingToken(resource, token, newest)
            self._newest[resource] = token

    def newest(self, resource: str) -> int | None:
        """The newest token that has passed, or None."""
        with self._guard:
            return self._newest.get(resource)

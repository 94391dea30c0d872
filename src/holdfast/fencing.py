"""Fencing: have the protected resource check that its writer still holds the lock.

A lease can end while its holder is paused (a long pause, a sleeping laptop), and the holder then writes. No lock can
prevent that, but the protected resource can, by refusing a fencing token older than one it has seen. Every lease has
one, `lease.fencing_token`, greater than all earlier ones.

For keys of Redis or Valkey, one script checks and writes: ::

    from holdfast import fencing

    with locks.lock("report") as lease:
        fencing.guarded_set(locks, "report:latest", text, lease.fencing_token)

(`await fencing.guarded_set(…)` with a client of `holdfast.asyncio`.)

For SQL, keep the newest token beside the data, and have the UPDATE compare: ::

    UPDATE accounts SET balance = :balance, fence = :token WHERE id = :id AND fence <= :token

If no row was changed, a newer holder has written (or there is no such row); `check_rowcount` raises an error then. If
the row may be missing, use `INSERT … ON CONFLICT (id) DO UPDATE SET … WHERE accounts.fence <= excluded.fence`.
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

    `client`: of either API; with that of `holdfast.asyncio`, await the result. `ttl`: lifetime of the value in seconds;
    None: no expiry. `remember`: seconds after the last write for which the newest token is remembered (beside the key,
    in its slot, under `…:fenced`); a holder that writes later than that is not recognised as stale.

    The same token may write again. Raises `StaleFencingToken`, and the server's errors. Does not guard against writers
    that set the key by other means.
    """
    token = check_count("fencing_token", fencing_token, 1, _TOKEN_MAX)
    ttl_ms = None if ttl is None else ttl_ms_of(ttl)
    if not hasattr(client, "_fenced_set"):
        raise ConfigurationError("client", client, "a holdfast.Client, or one of holdfast.asyncio")
    return client._fenced_set(key, value, token, ttl_ms, ttl_ms_of(remember, "remember"))


def check_rowcount(rowcount: int, resource: str, fencing_token: int) -> None:
    """Raise `StaleFencingToken` if a guarded UPDATE changed no row (`seen` is None, since SQL does not report it)."""
    if rowcount == 0:
        raise StaleFencingToken(resource, fencing_token, None)


class FenceGate:
    """The newest fencing token of each resource within this process: for tests, and for resources of one process.

        gate = FenceGate()
        gate.check("disk", lease.fencing_token)     # raises StaleFencingToken for an older one than before

    Safe to share between threads.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._newest: dict[str, int] = {}

    def check(self, resource: str, fencing_token: int) -> None:
        """Accept and remember the token, or raise `StaleFencingToken` if a newer one was accepted before."""
        token = check_count("fencing_token", fencing_token, 1, _TOKEN_MAX)
        with self._guard:
            newest = self._newest.get(resource, 0)
            if token < newest:
                raise StaleFencingToken(resource, token, newest)
            self._newest[resource] = token

    def newest(self, resource: str) -> int | None:
        """The newest token that was accepted, or None."""
        with self._guard:
            return self._newest.get(resource)

"""Outcomes of jobs that run once, and how values that one client makes are stored. The same for both APIs.

Law: a value is stored by the fencing token of its maker: one whose lease has ended does not replace a newer one.
"""

from __future__ import annotations

from typing import NamedTuple

from holdfast._api.options import Duration, Options, check_name, check_value, ttl_ms_of
from holdfast._api.session import SessionBase
from holdfast._api.writes import fenced_set
from holdfast._core import optimistic
from holdfast._core.effects import Command, Protocol
from holdfast._core.keys import lock_keys
from holdfast._core.replies import COUNT, DONE
from holdfast._core.waiting import once_more
from holdfast._runtime.lazily import lazily
from holdfast.errors import ConfigurationError, MakeFailed, shown

#: For how long after its last write the newest fencing token is remembered beside a value, ms.
_REMEMBER_MS = 86_400_000
#: How much is told of a failure, bytes, and how long to those who waited for it, ms.
_SAID_MAX, _TOLD_MS = 400, 60_000
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
    given = fingerprint.encode("utf-8", "surrogatepass") if isinstance(fingerprint, str) else fingerprint
    digest: str = lazily("hashlib").sha256(given).hexdigest()
    return _MARK + digest[: _MARK_LENGTH - 1].encode()


def packed_result(result: object, mark: bytes = b"") -> bytes:
    """A job's result as it is stored: bytes, str, int, float or None."""
    return mark + (_NONE if result is None else _BYTES + check_value("result", result))


def unpacked_result(stored: bytes) -> tuple[bytes | None, bytes]:
    """The reverse, but for the type: bytes, or None; and the mark."""
    at = _MARK_LENGTH if stored[:1] == _MARK else 0
    return stored[at + 1 :] if stored[at : at + 1] == _BYTES else None, stored[:at]


class Stored(NamedTuple):
    """A value that one client makes: where it lies, who may make it, how long it is kept, and how it is asked for.

    `name`: of the lock under which it is made. `stale_ms`: the last part of its time, in which it is made again.
    `shares`: a failure of the maker is told to those who wait for it.
    """

    session: SessionBase
    name: str
    key: str
    options: Options
    ttl_ms: int | None
    stale_ms: int
    shares: bool

    def get(self) -> Protocol[bytes | None]:
        return optimistic.get(self.key, self.session.settings.request_timeout_s)

    async def look(self) -> tuple[bytes | None, bool]:
        """The value, and whether it is to be made again, though it is there."""
        value = await self.get()
        if value is None or not self.stale_ms:
            return value, False
        left = Command(("PTTL", self.key), self.session.settings.request_timeout_s, self.key, fits=COUNT)
        left_ms: int = await once_more(left)
        return value, 0 <= left_ms <= self.stale_ms

    def store(self, value: bytes, fencing_token: int) -> Protocol[None]:
        return fenced_set(self.session, self.key, value, fencing_token, self.ttl_ms, _REMEMBER_MS)

    def remove(self, fencing_token: int) -> Protocol[None]:
        """Remove it by the fencing token: a maker whose lease has ended may still be about to store its value."""
        return fenced_set(self.session, self.key, "", fencing_token, -1, _REMEMBER_MS)

    @property
    def _failed_key(self) -> str:
        return f"{lock_keys(self.session.namespace, self.name).base}:failed"

    async def tell(self, token: str, error: Exception) -> None:
        """Leave word of a failure of the maker with that token, before those who wait are let in."""
        said = f"{token} {type(error).__name__}: {error}".encode("utf-8", "replace")[:_SAID_MAX]
        key, timeout_s = self._failed_key, self.session.settings.request_timeout_s
        await once_more(Command(("SET", key, said, "PX", _TOLD_MS), timeout_s, key, fits=DONE))

    async def fail_with(self, token: str) -> None:
        """Raise what the maker with that token has failed with, if it has."""
        said = await optimistic.get(self._failed_key, self.session.settings.request_timeout_s)
        by, _, error = (said or b"").decode("utf-8", "replace").partition(" ")
        if token and by == token:
            raise MakeFailed(self.name, shown(error, _SAID_MAX))


def stored_job(
    session: SessionBase, name: str, options: Options, retain: Duration = 86_400, failure: object = "next"
) -> Stored:
    """The result of a job of `once`."""
    own = f"once:{check_name(name)}"
    key = f"{lock_keys(session.namespace, own).base}:done"
    return Stored(session, own, key, options, ttl_ms_of(retain, "retain"), 0, _shares(failure))


def stored_entry(
    session: SessionBase, key: str, options: Options, expire: Duration | None, stale: Duration | None, failure: object
) -> Stored:
    """An entry of a cache, by `get_or_set`."""
    ttl_ms = None if expire is None else ttl_ms_of(expire, "expire")
    stale_ms = 0 if stale is None else ttl_ms_of(stale, "stale")
    if stale_ms and ttl_ms is None:
        raise ConfigurationError("stale", stale_ms / 1000, "None for a value that lives without a limit")
    lives_ms = None if ttl_ms is None else ttl_ms + stale_ms
    lock = f"get_or_set:{check_name(key, 'key')}"
    return Stored(session, lock, key, options, lives_ms, stale_ms, _shares(failure))


def _shares(failure: object) -> bool:
    if failure not in ("next", "share"):
        raise ConfigurationError("failure", failure, '"next" (the next one tries) or "share" (all who wait get it)')
    return failure == "share"

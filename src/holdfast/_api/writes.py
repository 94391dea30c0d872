"""Writes without a lock: by comparison, guarded by a fencing token, or queued. The same for both APIs."""

from __future__ import annotations

from holdfast._api.options import Duration, check_bool, check_name, check_value, ttl_ms_of
from holdfast._api.session import SessionBase
from holdfast._core import optimistic
from holdfast._core.effects import Protocol
from holdfast._core.failure import RequestFailed
from holdfast._core.keys import lock_keys
from holdfast._core.optimistic import Value
from holdfast.errors import ConfigurationError, StaleFencingToken


def compare_and_set(
    session: SessionBase, key: str, expected: Value | None, new: Value, ttl: Duration | None, keep_ttl: bool
) -> Protocol[bool]:
    """See `Client.compare_and_set`."""
    if check_bool(keep_ttl, "keep_ttl") and ttl is not None:
        raise ConfigurationError("keep_ttl", keep_ttl, "not both of ttl and keep_ttl")
    ttl_ms = -1 if keep_ttl else None if ttl is None else ttl_ms_of(ttl)
    if expected is None and keep_ttl:
        ttl_ms = None  # there is none to keep
    key, value = check_name(key, "key"), None if expected is None else check_value("expected", expected)
    return optimistic.compare_and_set(key, value, check_value("new", new), ttl_ms, session.scripts, session.settings)


async def fenced_set(
    session: SessionBase, key: str, value: Value, fencing_token: int, ttl_ms: int | None, remember_ms: int
) -> None:
    """See `holdfast.fencing.guarded_set`."""
    seen_key = f"{lock_keys(None, check_name(key, 'key')).base}:fenced"
    checked = check_value("value", value)
    timeout_s = session.settings.request_timeout_s
    seen = await optimistic.fenced_set(key, seen_key, fencing_token, checked, ttl_ms, remember_ms, timeout_s)
    if seen is not None:
        raise StaleFencingToken(key, fencing_token, seen)


def checked_command(command: tuple[object, ...]) -> tuple[Value, ...]:
    if not command:
        raise ConfigurationError("command", command, "a command and its arguments")
    name, *arguments = (check_value("command", word) for word in command)
    return name.decode("utf-8", "replace"), *arguments


class TransactionBase:
    """The state of a transaction, and its writes."""

    def __init__(self, session: SessionBase, connection: str, keys: tuple[str, ...]) -> None:
        self._session = session
        self._connection = connection
        self._keys = keys
        self._queued: list[tuple[Value, ...]] = []
        #: What ended its connection, and with that the attempt, even if the function goes on.
        self._ended: RequestFailed | None = None
        #: As what the function was told so.
        self._raised: BaseException | None = None

    def queue(self, *command: Value) -> None:
        """A command for the end, as `queue("HSET", key, field, value)`."""
        self._queued.append(checked_command(command))

    def set(self, key: str, value: Value, ttl: Duration | None = None) -> None:
        """Set a key at the end; `ttl` seconds to live, or without a limit."""
        self.queue("SET", key, value, *(() if ttl is None else ("PX", ttl_ms_of(ttl))))

    def delete(self, *keys: str) -> None:
        """Delete keys at the end."""
        if not keys:
            raise ConfigurationError("keys", keys, "at least one key")
        self.queue("DEL", *keys)

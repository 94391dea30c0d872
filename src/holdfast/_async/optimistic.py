"""Changing keys without a lock: optimistic writes, compare-and-set, and writes that a fencing token guards."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar, cast

from holdfast._api.decorated import check_callable
from holdfast._api.options import Duration, check_bool, check_count, check_name, check_names, check_value, ttl_ms_of
from holdfast._async.decorators import awaited
from holdfast._async.lifecycle import Session
from holdfast._core import optimistic
from holdfast._core.effects import Reply
from holdfast._core.failure import RequestFailed
from holdfast._core.keys import lock_keys
from holdfast._core.optimistic import Value
from holdfast.errors import ConfigurationError, OptimisticConflict, StaleFencingToken

__all__ = ["Optimistic", "Transaction", "compare_and_set", "fenced_set"]

R = TypeVar("R")

#: More attempts are a mistake.
_ATTEMPTS_MAX = 1_000_000


def _checked(command: tuple[object, ...]) -> tuple[Value, ...]:
    if not command:
        raise ConfigurationError("command", command, "a command and its arguments")
    name, *arguments = (check_value("command", word) for word in command)
    return name.decode("utf-8", "replace"), *arguments


class Transaction:
    """What a function of `Optimistic` reads and writes through.

    Reads are carried out at once; writes are queued, and carried out together at the end if nothing has changed.
    """

    def __init__(self, session: Session, connection: str, keys: tuple[str, ...]) -> None:
        self._session = session
        self._connection = connection
        self._keys = keys
        self._queued: list[tuple[Value, ...]] = []
        #: What ended its connection, and with that the attempt, even if the function goes on.
        self._ended: RequestFailed | None = None
        #: As what the function was told so.
        self._raised: BaseException | None = None

    async def execute(self, *command: Value) -> Reply:
        """Carry out a command now, as `execute("HGET", key, field)`: int, bytes, None, or a list of these."""
        session = self._session
        driver = session.driver  # raises when the client is closed: before there is something to run
        read = optimistic.read(self._connection, self._keys[0], _checked(command), session.settings.request_timeout_s)
        try:
            return await driver.run(read)
        except RequestFailed as failure:
            # A write would be asked for by `queue`.
            failure.maybe_executed = failure.maybe_executed and failure.kind != "broken"
            self._ended = failure
            self._raised = session.public(failure)
            raise self._raised from None

    async def get(self, key: str) -> bytes | None:
        """The value of a key."""
        return cast("bytes | None", await self.execute("GET", key))

    def queue(self, *command: Value) -> None:
        """A command for the end, as `queue("HSET", key, field, value)`."""
        self._queued.append(_checked(command))

    def set(self, key: str, value: Value, ttl: Duration | None = None) -> None:
        """Set a key at the end; `ttl` seconds to live, or without a limit."""
        self.queue("SET", key, value, *(() if ttl is None else ("PX", ttl_ms_of(ttl))))

    def delete(self, *keys: str) -> None:
        """Delete keys at the end."""
        if not keys:
            raise ConfigurationError("keys", keys, "at least one key")
        self.queue("DEL", *keys)


class Optimistic:
    """Change keys without a lock: the function decides on what it reads, and is run again when that has changed.

        async def withdraw(tx):
            balance = int(await tx.get("balance") or 0)
            if balance < 10:
                return False
            tx.set("balance", balance - 10)
            return True

        done = await locks.optimistic("balance").run(withdraw)

    Good where conflicts are rare; under contention a lock is faster. The function may run many times: it must do
    nothing else that matters.
    """

    def __init__(self, session: Session, keys: tuple[str, ...], attempts: int) -> None:
        self._session = session
        self._keys = check_names(keys)
        self._attempts = check_count("attempts", attempts, 1, _ATTEMPTS_MAX)

    async def run(self, function: Callable[[Transaction], Awaitable[R]]) -> R:
        """Run it until what it read had not changed when its writes were carried out; returns what it returned.

        Raises `OptimisticConflict` after `attempts` attempts, `OutcomeUnknown` when the answer to the write was lost,
        and whatever the function raises (nothing was written then).
        """
        check_callable("function", function)
        session = self._session
        driver = session.driver
        request_timeout_s = session.settings.request_timeout_s
        key = self._keys[0]
        again = True
        for attempt in range(self._attempts):
            connection = session.new_token("watch")
            transaction = Transaction(session, connection, self._keys)
            try:
                try:
                    await driver.run(optimistic.watch(connection, self._keys, request_timeout_s))
                    result = await awaited("function", function, function(transaction))
                    if transaction._ended is not None:
                        raise transaction._ended
                    done = await driver.run(optimistic.finish(connection, key, transaction._queued, request_timeout_s))
                except RequestFailed:
                    raise  # its connection is closed
                except BaseException as error:
                    await driver.run(optimistic.leave(connection, key, request_timeout_s))
                    if transaction._ended is not None and error is transaction._raised:
                        raise transaction._ended from None
                    raise
            except RequestFailed as failure:
                if again and optimistic.may_begin_anew(failure):
                    again = False
                    continue
                raise session.public(failure) from None
            if done is not optimistic.CONFLICT:
                return result
            await session.run(optimistic.pause(attempt))
        raise OptimisticConflict(self._keys, self._attempts)

    __call__ = run

    def __repr__(self) -> str:
        return f"<Optimistic over {', '.join(self._keys)}>"


async def compare_and_set(
    session: Session, key: str, expected: Value | None, new: Value, ttl: Duration | None, keep_ttl: bool
) -> bool:
    """See `Client.compare_and_set`."""
    if check_bool("keep_ttl", keep_ttl) and ttl is not None:
        raise ConfigurationError("keep_ttl", keep_ttl, "not both of ttl and keep_ttl")
    ttl_ms = -1 if keep_ttl else None if ttl is None else ttl_ms_of(ttl)
    if expected is None and keep_ttl:
        ttl_ms = None  # there is none to keep
    key, value = check_name(key, "key"), None if expected is None else check_value("expected", expected)
    new, knows, settings = check_value("new", new), session.knows_ifeq, session.settings
    return await session.run(optimistic.compare_and_set(key, value, new, ttl_ms, knows, settings))


async def fenced_set(
    session: Session, key: str, value: Value, fencing_token: int, ttl_ms: int | None, remember_ms: int
) -> None:
    """See `holdfast.fencing.guarded_set`."""
    seen_key = f"{lock_keys(None, check_name(key, 'key')).base}:fenced"
    checked = check_value("value", value)
    timeout_s = session.settings.request_timeout_s
    write = optimistic.fenced_set(key, seen_key, fencing_token, checked, ttl_ms, remember_ms, timeout_s)
    seen = await session.run(write)
    if seen is not None:
        raise StaleFencingToken(key, fencing_token, seen)

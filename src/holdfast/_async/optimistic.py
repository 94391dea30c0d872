"""Changing keys without a lock, by optimistic writes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar, cast

from holdfast._api.decorated import check_callable
from holdfast._api.options import check_count, check_names
from holdfast._api.writes import TransactionBase, checked_command
from holdfast._async.decorators import awaited
from holdfast._async.lifecycle import Session
from holdfast._core import optimistic
from holdfast._core.effects import Reply
from holdfast._core.failure import RequestFailed
from holdfast._core.optimistic import Value
from holdfast._core.retry import Retry
from holdfast.errors import OptimisticConflict

R = TypeVar("R")

#: More attempts are a mistake.
_ATTEMPTS_MAX = 1_000_000


class Transaction(TransactionBase):
    """What a function of `Optimistic` reads and writes through.

    Reads are carried out at once; writes are queued, and carried out together at the end if nothing has changed.
    """

    async def execute(self, *command: Value) -> Reply:
        """Carry out a command now, as `execute("HGET", key, field)`: int, bytes, None, or a list of these."""
        session = self._session
        driver = session.driver  # raises when the client is closed: before there is something to run
        words, timeout_s = checked_command(command), session.settings.request_timeout_s
        read = optimistic.read(self._connection, self._keys[0], words, timeout_s)
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
        `ServerError` when a write was refused (others may have been carried out, as the error says then), and whatever
        the function raises (nothing was written then).
        """
        check_callable("function", function)
        session = self._session
        driver = session.driver
        request_timeout_s = session.settings.request_timeout_s
        key = self._keys[0]
        retry, conflicts = Retry(session.settings, session.settings.short_retry_s), 0
        while conflicts < self._attempts:
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
                    leaves = partial(optimistic.leave, connection, key, request_timeout_s)
                    try:
                        await driver.run(leaves())
                    except BaseException:  # again; or where trio has cancelled, which lets nothing more be waited for
                        driver.spawn(leaves)
                        raise
                    if transaction._ended is not None and error is transaction._raised:
                        raise transaction._ended from None
                    raise
            except RequestFailed as failure:
                if not failure.maybe_executed and await session.run(retry.again(failure)):
                    continue
                raise session.public(failure) from None
            if done is not optimistic.CONFLICT:
                return result
            await session.run(optimistic.pause(conflicts))
            conflicts += 1
        raise OptimisticConflict(self._keys, self._attempts)

    __call__ = run

    def __repr__(self) -> str:
        return f"<Optimistic over {', '.join(self._keys)}>"

"""Leases, and how their loss is told, as far as both APIs share it: all that does not wait."""

from __future__ import annotations

import os
import sys
import warnings
from collections import deque
from collections.abc import Callable
from functools import partial
from types import CodeType, FrameType
from typing import Any

from holdfast._api.handles import handle_of
from holdfast._api.leaving import instruction_of, opens_block
from holdfast._api.session import SessionBase
from holdfast._core.record import LeaseRecord, LeaseState
from holdfast._runtime.clock import clock
from holdfast.errors import LeaseLost, LeaseReleased, LeaseSuspect, quoted

_RELEASED = LeaseState.RELEASED
#: Functions that do nothing but hand a lease on, and where they are.
_RETURNING = frozenset(
    {"_acquire", "_granted", "_resume", "acquire", "adopt", "try_acquire", "__aenter__"}
    | {"upgrade", "downgrade", "campaign"}
)
_HERE = os.path.dirname(os.path.dirname(__file__))


class LossBase:
    """An event that a lease has at most once, and who is told of it."""

    __slots__ = ("_callbacks", "_flag", "_home", "_label", "_name", "reason")

    _set = "lost"

    def __init__(self, name: str, home: Any, label: str = "lock") -> None:
        self._name = name
        self._home = home
        self._label = label
        self._flag = home.flag()
        self._callbacks: deque[Callable[[Any], object]] = deque()  # those that were not called yet
        #: Why, or None.
        self.reason: str | None = None

    def is_set(self) -> bool:
        """True if the lease is known to be lost."""
        return self.reason is not None

    def _fire(self, reason: str) -> None:
        """By the engine, or by the caller that has found the loss. Idempotent."""
        if self.reason is None:
            self.reason = reason
        if reason == "forked":
            self._callbacks.clear()  # the parent's: in the parent the lease goes on
        self._tell_soon(self.reason)

    def _add(self, callback: Callable[[Any], object]) -> None:
        self._callbacks.append(callback)
        if self.reason is not None:
            self._tell_soon(self.reason)
        else:
            self._home.prepare()

    def _tell_soon(self, reason: str) -> None:
        """By the engine: a handler that raises in the finder of a loss would keep it from those that are to be told."""
        if reason == "forked":
            self._tell(reason)  # the engine is the parent's
        else:
            self._home.by_engine(partial(self._tell, reason))

    def _tell(self, reason: str) -> None:
        while self._callbacks:
            try:
                callback = self._callbacks.popleft()
            except IndexError:
                break  # in the child of a fork, where another thread calls the last one
            self._home.tell(callback, self._news(reason))
        self._flag.set()  # last: a waiter may end the event loop, in which callbacks are called

    def _news(self, reason: str) -> Any:
        """Return the exception that callbacks are told of."""
        return LeaseLost(self._name, reason, self._label)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._name!r}: {self.reason or f'not {self._set}'}>"


class LeaseBase:
    """The part of a lease that does not wait."""

    __slots__ = ()

    _session: SessionBase
    _driver: Any
    _record: LeaseRecord
    _entries: list[None] | None
    _where: CodeType
    _offset: int

    @property
    def name(self) -> str:
        """The name of the lock."""
        return self._record.name

    @property
    def fencing_token(self) -> int:
        """Greater than that of every earlier lease of this lock: for the protected resource to check."""
        return self._record.fence

    @property
    def token(self) -> str:
        """The random identity of this acquisition, as it stands on the server."""
        return self._record.token

    @property
    def state(self) -> LeaseState:
        """HELD, SUSPECT (a renewal failed, validity lasts), LOST or RELEASED."""
        record = self._record
        now = clock()
        record.check_expired(now)
        return LeaseState.SUSPECT if record.alive and now >= record.proved_until else record.state

    @property
    def held(self) -> bool:
        """Whether it may still be trusted: `ensure_held()` as a question. Sends nothing."""
        now = clock()
        return not self._record.check_expired(now) and now < self._record.proved_until

    def remaining(self) -> float:
        """Seconds for which it may still be trusted without another renewal; 0.0 after its end.

        One that was waited for may begin with less than its ttl: it is renewed within 20 ms.
        """
        record = self._record
        now = clock()
        if record.check_expired(now):
            return 0.0
        return max(0.0, min(record.deadline, record.proved_until) - now)

    def ensure_held(self) -> None:
        """Raise `LeaseLost` (or `LeaseReleased`) unless the lease may still be trusted. Sends nothing."""
        record = self._record
        now = clock()
        if record.check_expired(now):
            raise self._ended("ensure_held()")
        if now >= record.proved_until:
            raise LeaseSuspect(record.name, record.label)

    def _detach(self) -> str:
        """Hand the lease on without a request: the server ends it in its time."""
        record, driver, session = self._record, self._driver, self._session
        text = handle_of(record, session.namespace)
        try:
            if not driver.schedule.finish(record, clock()):
                raise self._ended("handle()")
            session.disown(self)
            record.end_here()
            if record.report.detailed:
                record.report.released()
            return text
        except (LeaseLost, LeaseReleased):
            raise
        except BaseException:
            if record.half_released():
                driver.spawn_release(record)  # the text does not reach the caller
            raise

    def _taken(self) -> BaseException:
        """Mark a lease lost that was not held any more when it was released; returns the error."""
        self._record.mark_taken()
        if "_lost" in vars(self):
            vars(self)["_lost"]._fire("taken")
        return self._ended("release()")

    def _unwatch(self) -> None:
        if self._record.reason != "max_hold":  # else it is released when that is found
            self._driver.schedule.remove(self._record)
        self._session.disown(self)

    def _acquired_at(self) -> str:
        raise NotImplementedError

    def _ended(self, operation: str) -> BaseException:
        record = self._record
        # Alive: a signal handler asks while its thread notes the end.
        if record.state is LeaseState.LOST or (record.alive and clock() >= record.deadline):
            lost = LeaseLost(record.name, record.reason or "expired", record.label)
            return lost if lost.reason != "closed" else self._driver.closed_error(lost)
        return LeaseReleased(record.name, operation, record.label)

    def _not_entered(self) -> None:
        self._abandon()

    def _not_left(self, lease: LeaseBase) -> None:
        self._abandon()

    def _abandon(self) -> None:
        """Give back in the background what will not be released. For finalizers, too: takes no lock."""
        record = self._record
        if self._entries:
            del self._entries[-1]
        elif record.alive:
            self._driver.give_back(record)
            self._session.disown(self)

    def __reduce__(self) -> str | tuple[Any, ...]:
        return self._session.__reduce__()

    def __repr__(self) -> str:
        return (
            f"<Lease of {self._record.name!r}: {self.state.name}, fencing token {self._record.fence}, "
            f"{self.remaining():.3f} s left>"
        )

    def __del__(self, _warn: Callable[..., None] = warnings.warn) -> None:
        try:
            record = self._record
            if record.state is _RELEASED:
                return
            try:
                dropped_by = sys._getframe(1)
            except ValueError:
                dropped_by = None  # no Python code: a thread ends, or the interpreter
            if dropped_by is not None and record.alive and self._never_arrived(dropped_by):
                self._abandon()
                return
            self._session.disown(self)
            if not record.alive:
                return
            record.stop_renewing()
            if not sys.is_finalizing():
                _warn(
                    f"the lease of {record.label} {quoted(record.name)} was dropped without release(); "
                    f"acquired at {self._acquired_at()}; it is not renewed any more",
                    ResourceWarning,
                    source=self,
                    stacklevel=2,
                )
        except AttributeError:
            pass  # half-made

    def _never_arrived(self, frame: FrameType) -> bool:
        """True if an exception dropped the lease between `acquire` and its caller."""
        code, where = frame.f_code, self._where
        at = instruction_of(where, self._offset)
        if code is where and instruction_of(code, frame.f_lasti) == at:
            return True  # it was on its way out of a call by C, or of an `await`
        if code.co_name in _RETURNING and code.co_filename.startswith(_HERE):
            return True
        return opens_block(where, at)  # `with lock.acquire():`, and no other handle

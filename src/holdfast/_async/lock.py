"""What can be acquired, and the exclusive lock."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Coroutine, Generator

# sync:
from operator import attrgetter
from types import FrameType

# sync: from typing import TYPE_CHECKING, Any, Never, Self, TypeVar
from typing import TYPE_CHECKING, Any, Never, Self, TypeVar, cast

from holdfast._api.acquirable import Asked, ExclusiveBase
from holdfast._api.options import Duration, timeout_of
from holdfast._async.entering import Enterable
from holdfast._async.kernel import Acquirable
from holdfast._async.lease import Lease
from holdfast._core.record import RENEWAL
from holdfast._core.replies import LockSeen
from holdfast._core.snapshot import snapshot
from holdfast._runtime.clock import clock
from holdfast._runtime.lazily import lazily
from holdfast.errors import AcquireTimeout, AlreadyHeld, LeaseLost

if TYPE_CHECKING:
    from holdfast._api.holder import Holder, LockStatus, Waiting

L = TypeVar("L", bound=Lease)


# sync-drop
class Acquiring(Enterable[L], Coroutine[Any, Any, L]):
    """An `acquire` that begins when it is awaited, which returns the lease, or entered by `async with`."""

    def __init__(self, lock: Leasable[L], timeout_s: float | None, mark: str = "") -> None:
        self._session = lock._session
        self._entered = lock._entered
        self._frames: list[FrameType] = []
        self._coroutine: Any = lock._acquire(self._frames, timeout_s, mark)
        # For Python, which complains of one that is never awaited.
        self._coroutine.__qualname__ = "acquire"  # type: ignore[attr-defined]

    def _acquire(self, frame: FrameType) -> Awaitable[L]:
        self._frames.append(frame)
        return self._coroutine  # type: ignore[no-any-return]

    def __await__(self) -> Generator[Any, Any, L]:
        return self._coroutine.__await__()  # type: ignore[no-any-return]

    # No methods: no frame may stand between the coroutine and the one that awaits it.
    send, throw, close, cr_frame, cr_await = (
        cast("Any", property(attrgetter(f"_coroutine.{name}")))
        for name in ("send", "throw", "close", "cr_frame", "cr_await")
    )


class Leasable(Acquirable[L], Enterable[L]):
    """What can be acquired, and entered: the part that all locks share."""

    _lease_class: Any = Lease

    # sync-say: Cancelling the task ends the waiting at once. => `cancel`: a `holdfast.Cancel` that ends the waiting from another thread.
    # sync-say: Raises `AcquireTimeout`, `DeadlockDetected` => Raises `AcquireTimeout`, `AcquireCancelled`, `DeadlockDetected`
    # sync-say: Await it for the `Lease`, or enter it: `async with lock.acquire(timeout=5) as lease:`. => Returns the `Lease`.
    # sync-say: Whatever it raises, CancelledError included, => Whatever it raises, KeyboardInterrupt included,
    def acquire(
        self,
        timeout: Duration | None = None,
        # sync-add: cancel: Cancel | None = None,
        *,
        deadlock_check: Duration | None = None,
        on_wait: Callable[[Waiting], object] | None = None,
        **elsewhere: Never,
    ) -> Acquiring[L]:
        """Acquire the lock, waiting in FIFO order.

        `timeout`: the budget for waiting in seconds; None waits indefinitely; a server that stays unavailable for 30 s
        still raises. `deadlock_check`: as in `Client.lock`, for this acquire. Cancelling the task ends the waiting at once.
        `on_wait`: called with a `Waiting` (place in the queue, holder) as soon as it has to wait, and then about once a
        second, which costs a request or two each time. What it returns is awaited if it can be. What it raises ends the
        acquire, and comes out of it. While it runs the lock is not taken: after two seconds, another waiter may get it.

        Await it for the `Lease`, or enter it: `async with lock.acquire(timeout=5) as lease:`.
        Raises `AcquireTimeout`, `DeadlockDetected`, `AlreadyHeld` when this task holds it, and the server's errors
        (`ServerUnreachable`, `ServerError`, `OutcomeUnknown`, …). Whatever it raises, CancelledError included, what
        the server may have granted is given back in the background.
        """
        lock = self
        if deadlock_check is not None or on_wait is not None or elsewhere:
            lock = self._to_wait(deadlock_check, on_wait, elsewhere)
        # sync: return lock._acquire(sys._getframe(1), None if timeout is None else timeout_of(timeout), "", cancel)
        return Acquiring(lock, None if timeout is None else timeout_of(timeout))

    def _telling(self, on_wait: Callable[[Waiting], object]) -> Self:
        return self._but("tells", lazily("holdfast._async.overview").teller(self, on_wait))

    async def try_acquire(self) -> L | None:
        """Acquire it if it is free and has no waiters; None otherwise, at once."""
        try:
            return await self._acquire(sys._getframe(1), 0.0)
        except (AcquireTimeout, AlreadyHeld):
            return None


class Lock(ExclusiveBase, Leasable[Lease]):
    """An exclusive lock: one holder at a time, first come first served.

    Made by `Client.lock`. Not itself held: `acquire` returns a `Lease`, and one `Lock` object may serve any number of
    tasks. As a context manager it acquires without a limit; when the lease is lost meanwhile, the block is
    cancelled and `LeaseLost` comes out of the `async with` (unless the block raises something itself).
    """

    # sync-say: when the lease is lost meanwhile, the block is cancelled and `LeaseLost` comes out of the `async with` => when the lease was lost meanwhile, the end of the block raises `LeaseLost`

    async def _resume(self, token: str, fence: int, extensions: int, frame: FrameType) -> Lease:
        """The lease of what that token holds, if it does."""
        record = self._record_of(token, fence, extensions)
        if not self._noted:
            self._annotate(record)
        order = record.extending(self._ttl_ms, clock()) if extensions else RENEWAL
        held = await self._session.run(record.extension(self._ttl_ms, order))
        if not held or record.check_expired(clock()):
            raise LeaseLost(self._name, "taken")
        record.lasts(held)
        record.report = self._session.reports.adopt(record)
        asked = Asked()
        asked.lock, asked.token, asked.record, asked.client = self, token, record, self._session.driver.client
        (asked.home, asked.me), asked.code, asked.offset = self._session.driver.caller(), frame.f_code, frame.f_lasti
        return self._granted(asked, None)  # type: ignore[no-any-return]

    async def status(self) -> LockStatus:
        """Holder, remaining time, waiters and last fencing token at one moment. Only for reporting.

        In one request, and one more when this client sees that of the holder for the first time, to learn who it is.
        """
        seen = await self._inspect()
        make: type[LockStatus] = lazily("holdfast._api.holder").LockStatus  # not at the start: most programs never ask
        return make(self._name, await self._holder(seen), seen.waiters, seen.fence)

    async def locked(self) -> bool:
        """True if the lock is held at this moment. Only for reporting: the answer may be out of date when it arrives.

        Not while it is idle in this client (`cache_for`).
        """
        token = (await self._inspect()).holder
        return token != "" and not self._session.driver.lease_cache.has_idle(token)

    async def holder(self) -> Holder | None:
        """Return the holder, since when, where, and for how much longer; None when the lock is free."""
        return await self._holder(await self._inspect())

    async def _holder(self, seen: LockSeen) -> Holder | None:
        if not seen.holder:
            return None
        session, looking = self._session, lazily("holdfast._api.looking")
        holder: Holder = await session.run(looking.behind(session, seen.holder, seen.remaining_ms, seen.fence))
        return holder

    async def last_fencing_token(self) -> int:
        """The fencing token of the last lease, held or not; 0 when there was none for a day.

        Never more than the present holder has, and less where its client hands the lock on by itself (`tenure`,
        `cache_for`): such a lease was granted a block of 1,024 tokens, of which this is the first.
        """
        return (await self._inspect()).fence

    async def waiters(self) -> int:
        # sync-say: Tasks => Threads
        """Return the number of waiters, including those whose process died since.

        Tasks of one client wait behind each other there for up to a second (see `tenure`): those of this client are
        counted, of any other client only the first.
        """
        return (await self._inspect()).waiters

    async def _everything(self) -> Any:
        """Look at all that is stored under the name, of whatever kind, for `holdfast status`."""
        overview = lazily("holdfast._async.overview")
        return await overview.everything(self._session, self._name)

    async def _inspect(self) -> LockSeen:
        session = self._session
        seen: LockSeen = await session.run(self._how.inspect())
        lines = snapshot(session.driver.lines.items())
        here = sum(line.behind() for of, line in lines if of.keys.lock == self._key)
        return seen._replace(waiters=seen.waiters + here)

    def __repr__(self) -> str:
        lease = self._session.lease_of(self._owned_as[0]) if self._owned_as else None
        state = f"{lease.state.name} by this task" if lease is not None else "not held by this task"
        return f"<Lock {self._name!r}: {state}, ttl {self.ttl:g} s>"

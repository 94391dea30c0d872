"""The face for asyncio: the same clients, locks and leases as for threads, with `await`.

Laws: no decision of the protocol is taken here; the body of an `async with` is cancelled when its lease is lost, and a
cancellation from elsewhere is never mistaken for that one, nor swallowed.

Theory: a client may meet several event loops (a test suite's, one after the other), so what it does in each of them
is a driver of its own; a lease belongs to the driver that acquired it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import socket
import sys
import time
import warnings
import weakref
from asyncio import current_task, get_running_loop
from collections.abc import Callable, Sequence
from functools import partial
from types import CodeType, TracebackType
from typing import Any, Literal, Self, TypeVar

from holdfast._core.describe import introduce, look_up
from holdfast._core.effects import Protocol
from holdfast._core.exclusive import Exclusive, OneServer, OverQuorum
from holdfast._core.failure import RequestFailed
from holdfast._core.keys import LockKeys, inbox_prefix, lock_keys
from holdfast._core.plain import PLAIN, Scripts
from holdfast._core.record import LeaseRecord, LeaseState
from holdfast._core.replicas import NotAcked, Replicas
from holdfast._core.settings import DEFAULT, Settings
from holdfast._core.tokens import make_token
from holdfast._core.waiting import Acquisition, Busy, Grant
from holdfast._drivers.aio import AioDriver, closers
from holdfast._drivers.last_words import at_end
from holdfast._faces.aio_makers import Makers
from holdfast._faces.entered import Entered
from holdfast._faces.holder import Holder, holder_of
from holdfast._faces.introduction import CLIENT_INFO_MS, client_id_of, client_key, introduction
from holdfast._faces.options import (
    Duration,
    check_bool,
    check_name,
    check_namespace,
    check_sync_replicas,
    max_hold_of,
    timeout_of,
    ttl_ms_of,
)
from holdfast._faces.places import client_of_url, members_of, quorum_of, settings_for
from holdfast._faces.topologies import asyncio_topology
from holdfast._transport.clock import clock
from holdfast._transport.pack import PreparedRequest
from holdfast.errors import (
    AcquireTimeout,
    AlreadyHeld,
    ClientClosed,
    ConfigurationError,
    LeaseLost,
    LeaseReleased,
)

__all__ = ["Client", "Leasable", "Lease", "LeaseState", "Lock", "Loss", "connect"]

R = TypeVar("R")

_RELEASED = LeaseState.RELEASED
_DEFAULT_URL = "redis://localhost:6379"


class Loss:
    """Set when a lease is lost; `lease.lost` is one. Can be waited for, like an `asyncio.Event`."""

    __slots__ = ("_callbacks", "_driver", "_event", "_label", "_name", "reason")

    def __init__(self, name: str, driver: AioDriver, label: str = "lock") -> None:
        self._name = name
        self._label = label
        self._driver = driver
        self._event = asyncio.Event()
        self._callbacks: list[Callable[[LeaseLost], object]] = []
        #: Why it was lost, or None.
        self.reason: str | None = None

    def is_set(self) -> bool:
        """Whether the lease is known to be lost."""
        return self._event.is_set()

    async def wait(self, timeout: Duration | None = None) -> bool:
        """Wait for the loss, `timeout` seconds at most; returns whether it came."""
        try:
            async with asyncio.timeout(timeout_of(timeout)):
                return await self._event.wait()
        except TimeoutError:
            return False

    def _fire(self, reason: str) -> None:
        if self.reason is None:
            self.reason = reason
            if reason == "forked":
                self._callbacks.clear()  # the parent's: in the parent the lease goes on
            callbacks, self._callbacks = self._callbacks, []
            self._event.set()
            for callback in callbacks:
                self._call(callback, reason)

    def _add(self, callback: Callable[[LeaseLost], object]) -> None:
        if self.reason is None:
            self._callbacks.append(callback)
        else:
            self._call(callback, self.reason)

    def _call(self, callback: Callable[[LeaseLost], object], reason: str) -> None:
        # Not at once: whoever finds the loss must not be hurt by a stranger's exception.
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody can be called any more
            self._driver.loop.call_soon(self._driver.call_back, callback, LeaseLost(self._name, reason, self._label))

    def __repr__(self) -> str:
        return f"<Loss of {self._name!r}: {self.reason or 'not lost'}>"


class _Body:
    """A block that runs under a lease, in a task that is cancelled when the lease is lost."""

    __slots__ = ("_cancelled", "_cancelling", "_driver", "_open", "task")

    def __init__(self, task: asyncio.Task[Any], driver: AioDriver, hold: LeaseRecord) -> None:
        self.task = task
        self._driver = driver
        driver.bodies[self] = hold
        self._cancelling = task.cancelling()
        self._cancelled = False
        self._open = True

    def cancel(self, reason: str) -> None:
        """The lease is lost."""
        if self._open and not self._cancelled and reason != "forked":
            loop = self.task.get_loop()
            if loop.is_closed():
                return
            later = closers.get(self.task)
            if later is not None:
                # It closes the client, and may do so to the end.
                later.append(partial(loop.call_soon, self.cancel, reason))
            elif _running_task() is self.task:
                # It found the loss itself, and may be told when it waits next.
                loop.call_soon(self.cancel, reason)
            else:
                self._cancelled = True
                self.task.cancel("the lease is lost")

    def leave(self) -> bool:
        """The block has ended; returns whether a cancellation that comes out of it is ours alone."""
        self._open = False
        self._driver.bodies.pop(self, None)
        return self._cancelled and self.task.uncancel() <= self._cancelling


def _running_task() -> asyncio.Task[Any] | None:
    try:
        return current_task()
    except RuntimeError:
        return None  # no event loop is running here


class Lease:
    """The right to hold something for a time; what `acquire` returns.

    A handle: it may be used and released from another task than the one that acquired it. As a context
    manager it releases at the end of the block, and cancels the block when it is lost: `LeaseLost` then comes out.

        lease = await locks.lock("orders:42").acquire(timeout=5)
        async with lease:
            await write(row, fence=lease.fencing_token)
            lease.ensure_held()

    It does not promise that nobody else holds the lock at this moment: a process can be stopped between a look at the
    clock and the deed. That is what `fencing_token` is for.
    """

    __slots__ = (
        "__weakref__",
        "_bodies",
        "_client",
        "_driver",
        "_entries",
        "_hold",
        "_loss",
        "_offset",
        "_owners",
        "_release_ask",
        "_task",
        "_where",
    )

    def __init__(
        self,
        client: Client,
        driver: AioDriver,
        hold: LeaseRecord,
        owners: tuple[tuple[str, int], ...],
        task: asyncio.Task[Any] | None,
        where: CodeType | None = None,
        offset: int = 0,
        release_ask: PreparedRequest | None = None,
    ) -> None:
        self._client = client
        self._driver = driver
        self._hold = hold
        self._loss: Loss | None = None
        self._bodies: list[_Body] | None = None
        self._owners = owners
        self._entries = 1  # how often its owner has acquired it (a reentrant lock)
        # Not the task itself, of which this lease may be the result. Its id may be another task's later.
        self._task = None if task is None else weakref.ref(task)
        self._where = where
        self._offset = offset
        self._release_ask = release_ask

    @property
    def name(self) -> str:
        """The name of the lock."""
        return self._hold.name

    @property
    def fencing_token(self) -> int:
        """Greater than that of every earlier lease of this lock: for the protected resource to check."""
        return self._hold.fence

    @property
    def token(self) -> str:
        """The random identity of this acquisition, as it stands on the server."""
        return self._hold.token

    @property
    def state(self) -> LeaseState:
        """HELD, SUSPECT (a renewal failed, validity lasts), LOST or RELEASED."""
        self._hold.check_expired(clock())
        return self._hold.state

    def remaining(self) -> float:
        """Seconds for which it may still be trusted without another renewal; 0.0 after its end."""
        hold = self._hold
        now = clock()
        return 0.0 if hold.check_expired(now) else hold.deadline - now

    @property
    def lost(self) -> Loss:
        """Set when the lease is lost, at its deadline at the latest; `await lost.wait(timeout)` waits for that."""
        loss = self._loss
        if loss is None:
            hold = self._hold
            loss = self._loss = Loss(hold.name, self._driver, hold.label)
            if hold.state is LeaseState.LOST:
                loss._fire(hold.reason or "expired")
            else:
                _tell(hold, loss._fire)
        return loss

    def on_lost(self, callback: Callable[[LeaseLost], object]) -> None:
        """Call `callback(error)` once when the lease is lost (soon, if it is). What it returns is awaited.

        It is called by the event loop: it must not block. What it raises goes to the loop's exception handler.
        A forked child has lost the lease without a call: in the parent it goes on.
        """
        if not callable(callback):
            raise ConfigurationError("callback", callback, "something that can be called with a LeaseLost")
        self.lost._add(callback)

    def ensure_held(self) -> None:
        """Raise `LeaseLost` (or `LeaseReleased`) unless the lease may still be trusted. Sends nothing."""
        hold = self._hold
        if hold.check_expired(clock()):
            raise self._ended("ensure_held()")

    async def extend(self, ttl: Duration) -> None:
        """Make it last `ttl` seconds from now, and renew it for so long from now on. No longer than `max_hold` leaves.

        `ttl` may be less than what is left. Of several calls at once the last one counts; a renewal, or an earlier
        call, that the server carries out late does not take back what a later one has set.

        Raises `LeaseLost` when it had ended, `LeaseReleased` after a release, and the server's trouble otherwise (the
        lease then lasts as long as it did before). Never adds: calling it twice is calling it once.
        """
        ttl_ms = ttl_ms_of(ttl)
        await self._client._extend(self, ttl_ms)

    async def release(self) -> None:
        """Give it back; the next waiter gets the lock in the same moment.

        Raises `LeaseLost` when it had ended before, `LeaseReleased` the second time, and the server's trouble when
        the release could not be confirmed (it is then repeated in the background until the ttl ends it; the same
        when it is cancelled).
        """
        if not await self._release():
            raise self._ended("release()")

    async def _release(self) -> bool:
        hold = self._hold
        client = self._client
        driver = self._driver
        if hold.check_expired(clock()):
            client._unwatch(self)
            return False
        if self._entries > 1:
            self._entries -= 1
            return True
        ask = self._release_ask
        try:
            if not driver.finish(hold):
                return False
            client._disown(self)
            if ask is None or driver is not client._here or driver.closed or driver.loop is not get_running_loop():
                held = await client._driver.run(hold.release())
            else:
                held = await driver.release(hold, ask)
        except RequestFailed as failure:
            raise client._public(failure) from None
        except BaseException as error:
            if hold.state is _RELEASED and not isinstance(error, asyncio.CancelledError):
                driver.spawn_release(hold)  # it may never have begun
            raise
        if not held:
            hold.mark_taken()
            if self._loss is not None:
                self._loss._fire("taken")
        return held

    def _ended(self, operation: str) -> LeaseLost | LeaseReleased:
        if self._hold.state is LeaseState.LOST:
            return LeaseLost(self._hold.name, self._hold.reason or "expired", self._hold.label)
        return LeaseReleased(self._hold.name, operation, self._hold.label)

    async def __aenter__(self) -> Self:
        self._enter()
        return self

    def _enter(self) -> None:
        task = current_task()
        if task is None:
            raise RuntimeError("a lease can be entered in a task only")
        body = _Body(task, self._driver, self._hold)
        if self._bodies is None:
            self._bodies = []
        self._bodies.append(body)
        hold = self._hold
        if hold.state is LeaseState.LOST:
            body.cancel("")
        else:
            _tell(hold, body.cancel)  # not through the lease, which must be free to go

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        entries = self._entries
        try:
            await self._exit(error)
        except BaseException:
            self._undo(entries)
            raise

    async def _exit(self, error: BaseException | None) -> None:
        ours = self._leave()
        hold = self._hold
        if error is None:
            if hold.state is not LeaseState.RELEASED:
                await self.release()
        elif ours and hold.state is LeaseState.LOST and isinstance(error, asyncio.CancelledError):
            self._client._unwatch(self)
            if self._driver.exiting:
                return  # nobody will look at what comes out of it
            raise self._ended("async with") from error
        elif hold.state is not LeaseState.RELEASED:
            try:
                await self._release()
            except Exception:
                # What went wrong in the body is what the caller has to see; the give-back goes on by itself.
                pass

    def _leave(self) -> bool:
        """End the block of this task, or else the innermost; as `_Body.leave`."""
        bodies = self._bodies
        if not bodies:
            return False
        task = current_task()
        at = next((at for at in reversed(range(len(bodies))) if bodies[at].task is task), -1)
        return bodies.pop(at).leave()

    def _undo(self, entries: int) -> None:
        """A block that had so many entries has ended with an exception, perhaps before it began to release."""
        if entries > 1:
            self._entries = entries - 1  # an inner block of a reentrant lock
        else:
            self._abandon()

    def _abandon(self) -> None:
        """Nobody is going to release it: give it back in the background. In its event loop only."""
        hold = self._hold
        if self._driver.finish(hold):
            self._client._disown(self)
            self._driver.spawn_release(hold)

    def __repr__(self) -> str:
        return (
            f"<Lease of {self._hold.name!r}: {self.state.name}, fencing token {self._hold.fence}, "
            f"{self.remaining():.3f} s left>"
        )

    def _acquired_at(self) -> str:
        code, offset = self._where, self._offset
        if code is None:
            return "an unknown place"
        if code.co_filename == asyncio.events.__file__:
            return "the start of a task"  # acquire() is itself what the task runs
        line = next((line for start, end, line in code.co_lines() if start <= offset < end), None)
        return f"{code.co_filename}:{line or code.co_firstlineno}"

    def __del__(self, _warn: Callable[..., None] = warnings.warn) -> None:
        hold = getattr(self, "_hold", None)
        if hold is None or hold.state is _RELEASED:
            return
        try:
            self._client._disown(self)
            if not hold.alive:
                return
            # This may be any thread: from here on nobody renews it, and its end is found at its deadline.
            hold.stop_renewing()
            if not sys.is_finalizing():
                _warn(
                    f"the lease of {hold.label} {hold.name!r} was dropped without release(); acquired at "
                    f"{self._acquired_at()}; it is not renewed any more",
                    ResourceWarning,
                    source=self,
                    stacklevel=2,
                )
        except AttributeError:
            pass  # half-made


def _tell(hold: LeaseRecord, listener: Callable[[str], None]) -> None:
    """Let it be told of a loss, too."""
    earlier = hold.on_loss
    if earlier is None:
        hold.on_loss = listener
        return

    def both(reason: str) -> None:
        earlier(reason)
        listener(reason)

    hold.on_loss = both


class Leasable:
    """What can be acquired: the part that all locks share."""

    _kind = "lock"
    _lease_class: type[Lease] = Lease
    #: What messages call it.
    _label = "lock"
    #: What the owner in its tokens begins with.
    _mark = ""
    _reentrant = False

    def __init__(self, client: Client, name: str, ttl_ms: int, renew: bool, max_hold_ms: int | None) -> None:
        self._client = client
        self._name = name
        self._ttl_ms = ttl_ms
        self._renew = renew
        self._max_hold_ms = max_hold_ms
        self._owned_as: tuple[str, ...] = (f"{self._kind}:{name}",)
        self._entered: Entered[asyncio.Task[Any] | None, Lease] = Entered(has_ended)
        #: The first requests of acquire and release, ready but for the token; () where there are none.
        self._asks: tuple[PreparedRequest, PreparedRequest] | tuple[()] | None = None

    # What a kind of lock has to say.

    def _ask(self, token: str, timeout_s: float | None, sent: bool = False) -> Protocol[Grant | Busy]:
        """The protocol that acquires; `sent`: its first request was sent already."""
        raise NotImplementedError

    def _make_record(self, token: str, grant: Grant) -> LeaseRecord:
        """What the lease stands on."""
        raise NotImplementedError

    def _give_back(self, token: str) -> Protocol[None]:
        """Undo what an interrupted acquire may have done."""
        raise NotImplementedError

    def _prepare(self) -> tuple[PreparedRequest, PreparedRequest] | tuple[()]:
        self._asks = ()
        return ()

    @property
    def name(self) -> str:
        """What it is called."""
        return self._name

    @property
    def ttl(self) -> float:
        """Lease duration, s."""
        return self._ttl_ms / 1000

    async def acquire(self, timeout: Duration | None = None) -> Lease:
        """Wait for the turn, and take it.

        `timeout`: the budget for waiting in seconds; None waits as long as it takes (a server that stays in trouble for
        30 s ends it all the same). Cancelling the task ends the waiting at once.

        Returns the `Lease`. Raises `AcquireTimeout`, `AlreadyHeld` when this task holds it, and the server's trouble
        (`ServerUnreachable`, `ServerError`, `OutcomeUnknown`, …). Whatever it raises, CancelledError included, what
        the server may have granted is given back in the background.
        """
        return await self._acquire(timeout_of(timeout), sys._getframe(1))

    async def try_acquire(self) -> Lease | None:
        """Take it if it is free and nobody waits for it; None otherwise, at once."""
        try:
            return await self._acquire(0.0, sys._getframe(1))
        except (AcquireTimeout, AlreadyHeld):
            return None

    async def _acquire(self, timeout_s: float | None, frame: Any, mark: str | None = None) -> Lease:
        client = self._client
        loop = get_running_loop()
        driver = client._here
        if driver is None or driver.loop is not loop or driver.closed:
            driver = client._driver
        task = current_task(loop)
        code, offset = frame.f_code, frame.f_lasti
        me = id(task)
        owned_as = self._owned_as if task is not None else ()  # without a task nobody can be told from anybody else
        owners = ((owned_as[0], me),) if len(owned_as) == 1 else tuple([(kind, me) for kind in owned_as])
        for owner in owners:
            if owner in client._owners and (lease := client._lease_of(owner, task)) is not None:
                if not self._reentrant or lease._hold.label == "read lock":  # others read, too
                    raise AlreadyHeld(lease.name, lease._hold.label, self._label)
                lease._entries += 1
                return lease
        token = f"{driver.client_id}:{self._mark if mark is None else mark}{me}:{next(client._sequence)}"
        got: Grant | Busy | None = None
        hold: LeaseRecord | None = None
        asks = self._asks
        if asks is None:
            asks = self._prepare()
        release_ask = asks[1] if asks else None
        asking = driver.asking
        try:
            asking[token] = self
            got = await driver.acquire(asks[0] if asks else None, self._ask, token, timeout_s, self._ttl_ms)
            if type(got) is Grant:
                if driver.closed:
                    raise ClientClosed()  # and it is given back below
                hold = self._make_record(token, got)
                if got.stray or got.more is PLAIN:
                    release_ask = None  # it is not the usual one
                lease = self._lease_class(client, driver, hold, owners, task, code, offset, release_ask)
                known = weakref.ref(lease)
                for owner in owners:
                    client._owners[owner] = known
                driver.watch(hold)
                if got.sent_at >= driver.introduce_at:
                    client._introduce(driver, got.sent_at)
                asking.pop(token, None)  # not in a `finally`: an exception there would find nobody to give it back
                return lease
        except RequestFailed as failure:
            asking.pop(token, None)
            if isinstance(failure, NotAcked):
                failure.name, failure.label = self._name, self._label
            raise client._public(failure) from None
        except BaseException as error:
            # Somewhere before the caller got it: nobody else would give it back. (Where it was cancelled while it
            # waited for an answer, the protocol has seen to that.)
            if hold is not None and driver.finish(hold):
                for owner in owners:
                    client._owners.pop(owner, None)
                driver.spawn_release(hold)
            if got is not None or not isinstance(error, asyncio.CancelledError):
                driver.start(self._give_back(token))
            asking.pop(token, None)
            if type(error) is LeaseLost:
                raise LeaseLost(self._name, error.reason, self._label) from None
            raise
        asking.pop(token, None)
        assert isinstance(got, Busy)
        raise AcquireTimeout(self._name, got.waited_s, got.holder, kind=self._label)

    async def __aenter__(self) -> Lease:
        task = current_task()
        if task is None:
            raise RuntimeError("a lease can be entered in a task only")
        lease = await self._acquire(None, sys._getframe(1))
        try:
            self._entered.push(task, lease, sys._getframe(1))
            lease._enter()
            return lease
        except BaseException:
            self._entered.forget(lease)
            lease._abandon()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        lease: Lease | None = None
        entries = 1
        try:
            lease = self._entered.of(current_task(), sys._getframe(1))
            entries = lease._entries
            self._entered.pop(current_task(), sys._getframe(1))
            await lease.__aexit__(kind, error, trace)
        except BaseException:
            if lease is None:
                lease = self._entered.pop(current_task(), sys._getframe(1))
                entries = lease._entries
            lease._undo(entries)
            raise


def has_ended(task: asyncio.Task[Any] | None) -> bool:
    """Whether it can leave no block any more."""
    return task is None or task.done()


def task_here() -> asyncio.Task[Any] | None:
    """The task that runs; None outside of one (a callback, another thread)."""
    try:
        return current_task()
    except RuntimeError:
        return None  # no event loop runs here


class Lock(Leasable):
    """An exclusive lock: one holder at a time, first come first served.

    Made by `Client.lock`. Not itself held: `acquire` returns a `Lease`, and one `Lock` object may serve any number of
    tasks. As a context manager it acquires without a limit; when the lease is lost meanwhile, the block is
    cancelled and `LeaseLost` comes out of the `async with` (unless the block raises something itself).
    """

    def __init__(
        self,
        client: Client,
        name: str,
        ttl_ms: int,
        renew: bool,
        max_hold_ms: int | None,
        reentrant: bool = False,
        sync_replicas: int | Literal["all"] | None = None,
    ) -> None:
        super().__init__(client, name, ttl_ms, renew, max_hold_ms)
        self._keys = lock_keys(client.namespace, name)
        self._exclusive = client._exclusive(self._keys, sync_replicas)
        self._reentrant = reentrant

    def _ask(self, token: str, timeout_s: float | None, sent: bool = False) -> Protocol[Grant | Busy]:
        exclusive = self._exclusive
        listening = not sent and exclusive.listens and self._client._driver.listening(self._keys.lock)
        return exclusive.acquire(token, self._ttl_ms, timeout_s, listening)

    def _prepare(self) -> tuple[PreparedRequest, PreparedRequest] | tuple[()]:
        calls = self._exclusive.first_calls(self._ttl_ms)
        self._asks = asks = () if calls is None else (PreparedRequest(calls[0]), PreparedRequest(calls[1]))
        return asks

    def _make_record(self, token: str, grant: Grant) -> LeaseRecord:
        return self._exclusive.hold(token, grant, self._ttl_ms, self._renew, self._max_hold_ms)

    def _give_back(self, token: str) -> Protocol[None]:
        return self._exclusive.give_back(token, self._ttl_ms)

    async def locked(self) -> bool:
        """Whether anybody holds it at this moment. Only good for reporting: the answer may be old when it comes."""
        return (await self._inspect())[0] != ""

    async def holder(self) -> Holder | None:
        """Who holds it, since when, where, and for how long still; None when it is free."""
        client = self._client
        token, remaining_ms, fence, _ = await self._inspect()
        if not token:
            return None
        client_id = client_id_of(token)
        description = await client._run(look_up(client_key(client.namespace, client_id))) if client_id else None
        return holder_of(token, remaining_ms, fence, description)

    async def last_fencing_token(self) -> int:
        """The fencing token of the last lease, be it held or not; 0 when there was none for a day."""
        return (await self._inspect())[2]

    async def waiters(self) -> int:
        """How many are queued for it, including those whose process died since."""
        return (await self._inspect())[3]

    async def _inspect(self) -> tuple[str, int, int, int]:
        return await self._client._run(self._exclusive.inspect())

    def __repr__(self) -> str:
        task = task_here()
        lease = (
            None if task is None or not self._owned_as else self._client._lease_of((self._owned_as[0], id(task)), task)
        )
        state = f"{lease.state.name} by this task" if lease is not None else "not held by this task"
        return f"<Lock {self._name!r}: {state}, ttl {self.ttl:g} s>"


class Client(Makers):
    """Makes locks on one server (or Sentinel, Cluster, quorum), and looks after its leases.

        locks = holdfast.asyncio.Client(redis.asyncio.Redis(host="db1"))
        async with locks.lock("orders:42") as lease:
            ...

    `redis_client`: a redis-py or valkey-py asyncio client; its settings for connecting (TLS, users, Sentinel, …) are
    used, and its connections are left alone. `namespace`: what keys begin with; None makes the lock's name the key
    itself, as other lock libraries do, so that they exclude ours and the reverse. `ttl`, `renew`, `max_hold`,
    `sync_replicas`: defaults of its locks.

    Made anywhere, also outside of an event loop; talks to no server before the first use. In another event loop than
    before it starts afresh, and leases stay with the loop that acquired them. After a fork the child holds nothing. As
    an async context manager it closes itself, which releases what is still held. Not for several threads at once.
    """

    def __init__(
        self,
        redis_client: Any,
        *,
        namespace: str | None = "holdfast",
        ttl: Duration = 30,
        renew: bool = True,
        max_hold: Duration | None = None,
        sync_replicas: int | Literal["all"] | None = None,
        _settings: Settings = DEFAULT,
    ) -> None:
        self._namespace = check_namespace(namespace)
        self._ttl_ms = ttl_ms_of(ttl)
        self._renew = check_bool("renew", renew)
        self._max_hold_ms = max_hold_of(max_hold)
        self._sync_replicas = check_sync_replicas(sync_replicas)
        self._replicas: dict[int | None, Replicas] = {}
        self._scripts = Scripts()
        self._settings = _settings = settings_for(redis_client, _settings)
        self._make_topology = asyncio_topology(redis_client)
        topology = self._make_topology()
        self._moves: bool = getattr(topology, "moves", True)
        nodes = topology.nodes()
        self._nodes = ", ".join(node.name for node in nodes)
        self._quorum = quorum_of(redis_client, nodes, _settings)
        self._sequence = itertools.count(1)
        self._owners: dict[tuple[str, int], weakref.ref[Lease]] = {}
        self._closed = False
        self._ifeq: bool | None = None
        self._here: AioDriver | None = None
        self._drivers: list[AioDriver] = []
        self._finalizer = weakref.finalize(self, _let_go, self._drivers)
        self._finalizer.atexit = False
        _clients.add(self)

    @classmethod
    def quorum(
        cls,
        servers: Sequence[Any],
        *,
        restart_delay: Duration | None = None,
        member_timeout: Duration | None = None,
        namespace: str | None = "holdfast",
        ttl: Duration = 30,
        renew: bool = True,
        max_hold: Duration | None = None,
    ) -> Self:
        """A client whose locks need a majority of independent servers (Redlock).

            locks = holdfast.asyncio.Client.quorum(["redis://a", "redis://b", "redis://c"])

        `servers`: an odd number, 3 at least, of URLs or asyncio clients of redis-py, for independent masters.
        `restart_delay`: a server that was started more recently than this many seconds does not vote, since it may have
        forgotten a lease; None: as long as the ttl asked for. Give the longest ttl that any client of these servers
        uses; 0 only where a restart loses nothing (appendfsync always). `member_timeout`: how long one server is
        waited for in seconds; None: a twentieth of the ttl, from 0.05 to 1.0. The others are those of `Client`.

        Its locks work as long as a majority answers, and their fencing tokens grow whichever majority that is. They
        have no queue: waiters ask from time to time. Locks are all that a quorum offers: no majority argument holds
        for semaphores and reader sets.
        """
        members = members_of(servers, restart_delay, member_timeout, "asyncio")
        return cls(members, namespace=namespace, ttl=ttl, renew=renew, max_hold=max_hold)

    @property
    def namespace(self) -> str | None:
        """What its keys begin with."""
        return self._namespace

    def lock(
        self,
        name: str,
        *,
        ttl: Duration | None = None,
        renew: bool | None = None,
        max_hold: Duration | None = None,
        reentrant: bool = False,
        sync_replicas: int | Literal["all"] | None = None,
    ) -> Lock:
        """An exclusive lock called `name`.

        `ttl`: lease duration in seconds (0.01 up to a year; default: the client's, 30): a holder that dies blocks
        others for so long at most. `renew`: extend it in the background while it is held. `max_hold`: stop renewing so
        that it ends by itself after so many seconds, as a guard against a holder that hangs.
        `reentrant`: the task that holds it may acquire it again, and gets the same lease, which ends when it has
        been released as often. Without it a second acquire by the holder raises `AlreadyHeld`.
        `sync_replicas`: a lease counts only when this many replicas have acknowledged it, and so do its renewals;
        "all": every replica that the master has, which is what no failover to one of them undoes. Too few: it is given
        back, and `InsufficientReplicas` raised. Costs a round trip between the servers.

        Sends nothing. Raises `ConfigurationError` for what is not allowed.
        """
        return Lock(
            self,
            check_name(name),
            self._ttl_ms if ttl is None else ttl_ms_of(ttl),
            self._renew if renew is None else check_bool("renew", renew),
            self._max_hold_ms if max_hold is None else max_hold_of(max_hold),
            check_bool("reentrant", reentrant),
            self._sync_option(sync_replicas),
        )

    async def close(self) -> None:
        """End it: nothing is granted any more, and what is held is lost.

        In this order: waiters get `ClientClosed`; leases that are held become LOST with the reason "closed"
        (`lost` is set, `on_lost` callbacks run, the bodies of `async with` are cancelled and end with `LeaseLost`);
        their locks are released, each when its body has ended or a second has passed; then the background ends and the
        connections are closed. Release first what you want released in order.

        Twice is once. When it is cancelled, all this goes on in the background. Raises nothing, and takes about two
        seconds at most where the server does not answer: the ttl then ends what could not be released. Called in
        another event loop than the client was used in, it closes it there, too, soon.
        """
        self._closed = True
        self._here = None
        loop = asyncio.get_running_loop()
        here = [driver for driver in self._drivers if driver.loop is loop]
        elsewhere = [driver for driver in self._drivers if driver.loop is not loop]
        left = _Left(self)
        for driver in elsewhere:
            if not driver.loop.is_running():
                left.take(driver)
        _let_go([driver for driver in elsewhere if driver.loop.is_running()])
        for driver in here:
            await driver.close()
        await left.release()
        self._drivers.clear()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        leases = sum(len(driver.schedule) for driver in self._drivers)
        state = "closed" if self._closed else f"{leases} leases"
        return f"<Client of {self._nodes}: {state}, namespace {self._namespace!r}>"

    # For locks and leases.

    def _knows_ifeq(self, known: bool | None) -> bool | None:
        """Whether the server knows SET … IFEQ; a truth value is remembered."""
        if known is not None:
            self._ifeq = known
        return self._ifeq

    def _lease_of(self, owner: tuple[str, int], task: asyncio.Task[Any] | None) -> Lease | None:
        """The lease that this task holds of it, if any."""
        held = self._owners.get(owner)
        lease = held() if held is not None else None
        if (
            lease is None
            or (lease._task is not None and lease._task() is not task)
            or lease._hold.check_expired(clock())
        ):
            return None
        return lease

    def _new_token(self, owner: str) -> str:
        return make_token(self._driver.client_id, owner, next(self._sequence))

    def _exclusive(self, keys: LockKeys, sync_replicas: int | Literal["all"] | None) -> Exclusive:
        settings = self._settings
        if self._quorum is not None:
            if sync_replicas is not None:
                raise ConfigurationError(
                    "sync_replicas", sync_replicas, "None over a quorum: its members have no replicas"
                )
            return OverQuorum(keys, settings, self._quorum)
        return OneServer(keys, settings, self._replicas_for(sync_replicas), self._scripts)

    def _replicas_for(self, sync_replicas: int | Literal["all"] | None) -> Replicas | None:
        if sync_replicas is None:
            return None
        wanted = None if sync_replicas == "all" else sync_replicas
        return self._replicas.setdefault(wanted, Replicas(wanted))

    @property
    def _driver(self) -> AioDriver:
        """The driver of the running event loop."""
        driver = self._here
        if driver is None or driver.closed or driver.loop is not get_running_loop():
            driver = self._begin()
        return driver

    def _begin(self) -> AioDriver:
        if self._closed:
            raise ClientClosed()
        loop = asyncio.get_running_loop()
        ended = [driver for driver in self._drivers if driver.closed or driver.loop.is_closed()]
        left = _Left(self)
        for driver in ended:
            self._drivers.remove(driver)
            if driver.loop.is_closed() and not driver.ended:
                left.take(driver)
        for driver in self._drivers:
            if driver.loop is loop:
                break
        else:
            driver = AioDriver(
                self._make_topology(), os.urandom(12).hex(), inbox_prefix(self._namespace), self._settings
            )
            self._drivers.append(driver)
        left.start(driver)
        self._here = driver
        return driver

    async def _run(self, protocol: Protocol[R], acquisition: Acquisition | None = None) -> R:
        """`acquisition`: what is waited for, so that its place can be given back if the client ends first."""
        try:
            driver = self._driver
        except BaseException:
            protocol.close()
            raise
        try:
            if acquisition is not None:
                driver.asking[acquisition.token] = acquisition
            return await driver.run(protocol)
        except RequestFailed as failure:
            raise self._public(failure) from None
        finally:
            if acquisition is not None:
                driver.asking.pop(acquisition.token, None)

    def _public(self, failure: RequestFailed) -> BaseException:
        if failure.kind == "closed" and self._closed:
            here = self._drivers[0] if len(self._drivers) == 1 else None
            return asyncio.CancelledError() if here is not None and here.exiting else ClientClosed()
        return failure.public()

    async def _extend(self, lease: Lease, ttl_ms: int) -> None:
        hold = lease._hold
        driver = lease._driver
        if hold.check_expired(clock()):
            raise lease._ended("extend()")
        asked_at = clock()
        order = driver.extending(hold, ttl_ms, asked_at)
        try:
            held = await self._run(hold.extension(order.asks_ms, order))
        except BaseException:
            driver.replan(hold)
            raise
        if driver.extended(hold, order, held, ttl_ms, asked_at):
            return
        if held and hold.is_left_over:
            driver.spawn_release(hold)  # extended on the server, but too late to be trusted
        raise lease._ended("extend()")

    def _unwatch(self, lease: Lease) -> None:
        lease._driver.unwatch(lease._hold)
        self._disown(lease)

    def _disown(self, lease: Lease) -> None:
        owned = self._owners
        for owner in lease._owners:
            known = owned.pop(owner, None)
            if known is not None and known() is not lease and known() is not None:
                owned[owner] = known  # another task of the same id has it by now

    def _introduce(self, driver: AioDriver, now: float) -> None:
        driver.introduce_at = now + CLIENT_INFO_MS / 2000
        key = client_key(self._namespace, driver.client_id)
        driver.start(introduce(key, partial(introduction, time.time()), CLIENT_INFO_MS))


def connect(
    url: str | None = None,
    *,
    namespace: str | None = "holdfast",
    ttl: Duration = 30,
    renew: bool = True,
    max_hold: Duration | None = None,
    sync_replicas: int | Literal["all"] | None = None,
) -> Client:
    """A client for the servers at `url`.

    `redis://HOST:PORT/DB`, `rediss://` (TLS), `unix://PATH`; `redis+sentinel://HOST:PORT,HOST:PORT/SERVICE/DB`;
    `redis+cluster://HOST:PORT,HOST:PORT`; `redlock://HOST:PORT,HOST:PORT,HOST:PORT` for a quorum.

    None takes the environment's HOLDFAST_URL, or `redis://localhost:6379`. The other arguments are those of `Client`.
    A plain call, as in `holdfast`: talks to no server before the first use. Raises `ConfigurationError` for a URL that
    cannot be read.
    """
    given = url if url is not None else os.environ.get("HOLDFAST_URL") or _DEFAULT_URL
    return Client(
        client_of_url(given, "asyncio"),
        namespace=namespace,
        ttl=ttl,
        renew=renew,
        max_hold=max_hold,
        sync_replicas=sync_replicas,
    )


def _let_go(drivers: list[AioDriver]) -> None:
    """End drivers of other event loops, which may be over, or running in other threads."""
    for driver in tuple(drivers):
        if driver.closed:
            continue
        try:
            driver.loop.call_soon_threadsafe(driver.close_soon)
        except RuntimeError:  # the loop is closed
            driver.forget("closed")


_clients: weakref.WeakSet[Client] = weakref.WeakSet()

#: How long the interpreter's end may be held up, s.
_EXIT_PATIENCE_S = 2.0


class _LastLoop(asyncio.SelectorEventLoop):
    """For the interpreter's end, when no thread can be started any more to look up names."""

    async def getaddrinfo(
        self,
        host: bytes | str | None,
        port: bytes | str | int | None,
        *,
        family: int = 0,
        type: int = 0,
        proto: int = 0,
        flags: int = 0,
    ) -> Any:
        return socket.getaddrinfo(host, port, family, type, proto, flags)


class _Left:
    """What drivers of event loops that have ended have left on the servers of their client."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._made: list[Callable[[], Protocol[Any]]] = []

    def take(self, driver: AioDriver) -> None:
        """Nobody runs its loop: what it holds is lost, and what it waits for is given up."""
        if not driver.closed:
            driver.closed = True
            self._made += driver.give_backs()
            self._made += [hold.release for hold in driver.lose_all("closed")]
        try:
            driver.loop.call_soon_threadsafe(driver.close_soon)  # it may be run again
        except RuntimeError:
            driver.forget("closed")

    def start(self, driver: AioDriver) -> None:
        """Do it with this driver, of the running event loop."""
        made, self._made = self._made, []
        for make in made:
            driver.start(make())

    async def release(self) -> None:
        """Do it in this event loop."""
        if self._made:
            client = self._client
            driver = AioDriver(
                client._make_topology(), os.urandom(12).hex(), inbox_prefix(client._namespace), client._settings
            )
            self.start(driver)
            await driver.close()


def _release_all() -> None:
    """At the interpreter's end: release what event loops have left behind, so that nobody has to wait for a ttl."""
    left = []
    running = []
    for client in tuple(_clients):
        client._closed = True
        own = _Left(client)
        left.append(own)
        for driver in tuple(client._drivers):
            if driver.loop.is_running():
                running.append(driver)  # in another thread
                driver.exiting = True
                with contextlib.suppress(RuntimeError):
                    driver.loop.call_soon_threadsafe(driver.close_soon)
            else:
                own.take(driver)
    left = [own for own in left if own._made]
    if left:
        try:
            with asyncio.Runner(loop_factory=_LastLoop) as runner:
                runner.get_loop().set_exception_handler(lambda loop, context: None)
                runner.run(_release_side_by_side(left))
        except Exception:
            pass  # the ttl ends it
    until = clock() + _EXIT_PATIENCE_S
    while any(not driver.ended and driver.loop.is_running() for driver in running) and clock() < until:
        time.sleep(0.005)


async def _release_side_by_side(left: Sequence[_Left]) -> None:
    await asyncio.gather(*[own.release() for own in left], return_exceptions=True)


at_end(_release_all)

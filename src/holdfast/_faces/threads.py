"""The face for threads: clients, locks and leases.

Law: no decision of the protocol is taken here; a face checks arguments, runs a protocol, and keeps the lease.
"""

from __future__ import annotations

import itertools
import os
import socket
import sys
import threading
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from types import CodeType, FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

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
from holdfast._core.waiting import Busy, Grant
from holdfast._drivers.cancel import Cancel
from holdfast._drivers.ending import end
from holdfast._drivers.identity import has_ended
from holdfast._drivers.last_words import at_end
from holdfast._drivers.teller import Teller
from holdfast._drivers.threads import Cancelled, ThreadDriver, close_later, left_open
from holdfast._faces.decorated import refuse_coroutine_function
from holdfast._faces.entered import Entered
from holdfast._faces.introduction import CLIENT_INFO_MS, client_id_of, client_key, introduction
from holdfast._faces.leaving import Block, Leaving, instruction_of, opening, opens_block
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
from holdfast._faces.threads_makers import Makers
from holdfast._faces.topologies import threads_topology
from holdfast._transport.clock import clock
from holdfast._transport.pack import PreparedRequest
from holdfast._transport.plain import address_of_url
from holdfast._transport.waits import Flag
from holdfast.errors import (
    AcquireCancelled,
    AcquireTimeout,
    AlreadyHeld,
    ConfigurationError,
    LeaseLost,
    LeaseReleased,
)

if TYPE_CHECKING:
    from holdfast._faces.holder import Holder

__all__ = ["Cancel", "Client", "Leasable", "Lease", "LeaseState", "Lock", "Loss", "connect"]

R = TypeVar("R")

_RELEASED = LeaseState.RELEASED
_DEFAULT_URL = "redis://localhost:6379"


class Loss:
    """Set when a lease is lost; `lease.lost` is one. Can be waited for, like a `threading.Event`."""

    __slots__ = ("_callbacks", "_flag", "_label", "_name", "_teller", "reason")

    def __init__(self, name: str, teller: Teller, label: str = "lock") -> None:
        self._name = name
        self._teller = teller
        self._label = label
        self._flag = Flag()
        self._callbacks: deque[Callable[[LeaseLost], object]] = deque()  # those that were not called yet
        #: Why it was lost, or None.
        self.reason: str | None = None

    def is_set(self) -> bool:
        """Whether the lease is known to be lost."""
        return self._flag.is_set()

    def wait(self, timeout: Duration | None = None) -> bool:
        """Wait for the loss, `timeout` seconds at most; returns whether it came."""
        return self._flag.wait_s(timeout_of(timeout))

    def _fire(self, reason: str) -> None:
        if self.reason is None:
            self.reason = reason
        if reason == "forked":
            self._callbacks.clear()  # the parent's: in the parent the lease goes on
        self._flag.set()
        self._call_those_left(self.reason)

    def _add(self, callback: Callable[[LeaseLost], object]) -> None:
        self._callbacks.append(callback)
        if self._flag.is_set():
            self._call_those_left(self.reason or "expired")
        else:
            self._teller.prepare()

    def _call_those_left(self, reason: str) -> None:
        while self._callbacks:
            try:
                callback = self._callbacks.popleft()
            except IndexError:
                return  # another thread calls the last one
            self._call(callback, reason)

    def _call(self, callback: Callable[[LeaseLost], object], reason: str) -> None:
        # In a thread of its own: the finder of the loss may hold locks, and must not block on user callbacks.
        self._teller.tell(callback, LeaseLost(self._name, reason, self._label))

    def __repr__(self) -> str:
        return f"<Loss of {self._name!r}: {self.reason or 'not lost'}>"


class Lease:
    """The right to hold something for a time; what `acquire` returns.

    A handle: it may be used and released from another thread than the one that acquired it. As a context
    manager it releases at the end of the block.

        lease = locks.lock("orders:42").acquire(timeout=5)
        try:
            write(row, fence=lease.fencing_token)
            lease.ensure_held()
        finally:
            lease.release()

    It does not promise that nobody else holds the lock at this moment: a process can be stopped between a look at the
    clock and the deed. That is what `fencing_token` is for.
    """

    __slots__ = (
        "__weakref__",
        "_client",
        "_entries",
        "_hold",
        "_loss",
        "_losses",
        "_offset",
        "_owners",
        "_release_ask",
        "_where",
    )

    def __init__(
        self,
        client: Client,
        hold: LeaseRecord,
        owners: tuple[tuple[str, int], ...],
        where: CodeType,
        offset: int,
        release_ask: PreparedRequest | None = None,
    ) -> None:
        self._client = client
        self._hold = hold
        self._loss: Loss | None = None
        self._losses: list[Loss] = []  # what those have made that asked for it at the same time: the first one counts
        self._owners = owners
        #: How often its owner has acquired it again, if it may: so many items. Their number changes in one step.
        self._entries: list[None] | None = None
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
        """Set when the lease is lost, at its deadline at the latest; `lost.wait(timeout)` waits for that."""
        loss = self._loss
        if loss is None:
            hold = self._hold
            self._losses.append(Loss(hold.name, self._client._driver.teller, hold.label))
            loss = self._losses[0]
            hold.on_loss = loss._fire
            if hold.state is LeaseState.LOST:
                loss._fire(hold.reason or "expired")  # told twice is told once
            self._loss = loss
        return loss

    def on_lost(self, callback: Callable[[LeaseLost], object]) -> None:
        """Call `callback(error)` once, in a thread of its own, when the lease is lost (at once if it is).

        A forked child has lost the lease without a call: in the parent it goes on.
        """
        if not callable(callback):
            raise ConfigurationError("callback", callback, "something that can be called with a LeaseLost")
        refuse_coroutine_function("callback", callback)
        self.lost._add(callback)

    def ensure_held(self) -> None:
        """Raise `LeaseLost` (or `LeaseReleased`) unless the lease may still be trusted. Sends nothing."""
        hold = self._hold
        if hold.check_expired(clock()):
            raise self._ended("ensure_held()")

    def extend(self, ttl: Duration) -> None:
        """Make it last `ttl` seconds from now, and renew it for so long from now on. No longer than `max_hold` leaves.

        `ttl` may be less than what is left. Of several calls at once the last one counts; a renewal, or an earlier
        call, that the server carries out late does not take back what a later one has set.

        Raises `LeaseLost` when it had ended, `LeaseReleased` after a release, and the server's trouble otherwise (the
        lease then lasts as long as it did before). Never adds: calling it twice is calling it once.
        """
        ttl_ms = ttl_ms_of(ttl)
        self._client._extend(self, ttl_ms)

    def release(self) -> None:
        """Give it back; the next waiter gets the lock in the same moment.

        Raises `LeaseLost` when it had ended before, `LeaseReleased` the second time, and the server's trouble when
        the release could not be confirmed (it is then repeated in the background until the ttl ends it).
        """
        if not self._release():
            raise self._ended("release()")

    def _release(self) -> bool:
        hold = self._hold
        client = self._client
        driver = client._driver
        if hold.check_expired(clock()):
            client._unwatch(self)
            return False
        if self._entries:
            try:
                self._entries.pop()
                return True
            except IndexError:
                pass  # a signal handler or another thread has left the last one
        try:
            if not driver.finish(hold):
                return False
            client._disown(self)
            held = driver.release(hold, self._release_ask)
        except RequestFailed as failure:
            raise client._public(failure) from None
        except BaseException:
            if hold.half_released():
                driver.spawn_release(hold)  # it may never have begun
            raise
        if not held:
            hold.mark_taken()
            if self._loss is not None:
                self._loss._fire("taken")
        return held

    def _acquired_at(self) -> str:
        code, offset = self._where, self._offset
        line = next((line for start, end, line in code.co_lines() if start <= offset < end), None)
        return f"{code.co_filename}:{line}"

    def _ended(self, operation: str) -> BaseException:
        hold = self._hold
        # Alive: a signal handler asks while its thread notes the end.
        if hold.state is LeaseState.LOST or (hold.alive and clock() >= hold.deadline):
            lost = LeaseLost(hold.name, hold.reason or "expired", hold.label)
            return lost if lost.reason != "closed" else self._client._driver.closed_error(lost)
        return LeaseReleased(hold.name, operation, hold.label)

    def __enter__(self) -> Self:
        block = opening(self)
        if block is not None:
            block.append(self)
        return self

    def _leave(
        self,
        block: Block,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._entries and self._hold.alive:
            # An inner block of a reentrant lock. No call is in between, after which a signal handler could raise.
            try:
                del self._entries[-1]
                block[:] = (None,)
                return
            except IndexError:
                pass  # a signal handler or another thread has left the last one
        self._exit(kind, error, trace)
        block[:] = (None,)

    def _exit(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._hold.state is LeaseState.RELEASED:
            return
        if error is None:
            self.release()
            return
        try:
            self._release()
        except Exception:
            # What went wrong in the body is what the caller has to see; the give-back goes on by itself.
            pass

    if TYPE_CHECKING:
        __exit__ = _exit
    else:
        __exit__ = Leaving(_leave, _exit)

    def _not_entered(self) -> None:
        self._abandon()

    def _not_left(self, lease: Lease) -> None:
        self._abandon()

    def _abandon(self) -> None:
        """Nobody is going to release it: give it back in the background. For finalizers, too: takes no lock."""
        hold = self._hold
        if self._entries:
            del self._entries[-1]
        elif hold.alive:
            self._client._driver.give_back(hold)
            self._client._disown(self)

    def __repr__(self) -> str:
        return (
            f"<Lease of {self._hold.name!r}: {self.state.name}, fencing token {self._hold.fence}, "
            f"{self.remaining():.3f} s left>"
        )

    def __del__(self, _warn: Callable[..., None] = warnings.warn) -> None:
        hold = getattr(self, "_hold", None)
        if hold is None or hold.state is _RELEASED:
            return
        try:
            if hold.alive and self._never_arrived(sys._getframe(1)):
                self._abandon()
                return
            self._client._disown(self)
            if not hold.alive:
                return
            self._client._driver.drop(hold)
            if not sys.is_finalizing():
                _warn(
                    f"the lease of {hold.label} {hold.name!r} was dropped without release(); "
                    f"acquired at {self._acquired_at()}; it is not renewed any more",
                    ResourceWarning,
                    source=self,
                    stacklevel=2,
                )
        except AttributeError:
            pass  # half-made

    def _never_arrived(self, frame: FrameType) -> bool:
        """Whether it is dropped where an exception came in between `acquire` and who was to have it."""
        code, where = frame.f_code, self._where
        at = instruction_of(where, self._offset)
        if code is where and instruction_of(code, frame.f_lasti) == at:
            return True  # it was on its way out of a call by C
        if code.co_name in _RETURNING and code.co_filename.startswith(_FACES):
            return True
        return opens_block(where, at)  # `with lock.acquire():`, and no other handle


#: Functions that do nothing but hand a lease on, and where they are.
_RETURNING = frozenset(
    {"_acquire", "_granted", "acquire", "try_acquire", "_enter", "__enter__", "upgrade", "downgrade", "campaign"}
)
_FACES = os.path.dirname(__file__)


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
        self._owned_as: tuple[str, ...] = (f"{self._kind}:{name}",)
        self._ttl_ms = ttl_ms
        self._renew = renew
        self._max_hold_ms = max_hold_ms
        self._entered: Entered[int, Lease] = Entered(has_ended)
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

    def acquire(self, timeout: Duration | None = None, cancel: Cancel | None = None) -> Lease:
        """Wait for the turn, and take it.

        `timeout`: the budget for waiting in seconds; None waits as long as it takes (a server that stays in trouble for
        30 s ends it all the same). `cancel`: a `holdfast.Cancel` that ends the waiting from another thread.

        Returns the `Lease`. Raises `AcquireTimeout`, `AcquireCancelled`, `AlreadyHeld` when this thread holds it, and
        the server's trouble (`ServerUnreachable`, `ServerError`, `OutcomeUnknown`, …). Whatever it raises,
        KeyboardInterrupt included, what the server may have granted is given back in the background.
        """
        return self._acquire(None if timeout is None else timeout_of(timeout), cancel, sys._getframe(1))

    def try_acquire(self) -> Lease | None:
        """Take it if it is free and nobody waits for it; None otherwise, at once."""
        try:
            return self._acquire(0.0, None, sys._getframe(1))
        except (AcquireTimeout, AlreadyHeld):
            return None

    def _acquire(self, timeout_s: float | None, cancel: Cancel | None, frame: Any, mark: str | None = None) -> Lease:
        if cancel is not None and not isinstance(cancel, Cancel):
            raise ConfigurationError("cancel", cancel, "a holdfast.Cancel, or None")
        client = self._client
        code, offset = frame.f_code, frame.f_lasti
        del frame
        driver = client._driver
        if driver.patchable_local is not threading.local or driver.patchable_socket is not socket.socket:
            driver.look_for_patches()
        thread = driver.here.number
        owned_as = self._owned_as
        owners = ((owned_as[0], thread),) if len(owned_as) == 1 else tuple([(kind, thread) for kind in owned_as])
        for owner in owners:
            held = client._owners.get(owner)
            if held is not None and (lease := held()) is not None and not lease._hold.check_expired(clock()):
                if not self._reentrant or lease._hold.label == "read lock":  # others read, too
                    raise AlreadyHeld(lease.name, lease._hold.label, self._label)
                if lease._entries is None:
                    lease._entries = []  # it was acquired through an object that is not reentrant
                lease._entries += (None,)  # not a call, after which a signal handler could raise
                return lease
        if driver.closed:
            raise driver.closed_error()
        token = f"{driver.client_id}:{self._mark if mark is None else mark}{thread}:{next(client._sequence)}"
        asks = self._asks
        if asks is None:
            asks = self._prepare()
        got: Grant | Busy
        hold: LeaseRecord | None = None
        release_ask = asks[1] if asks else None
        asking = driver.asking
        try:
            asking[token] = self
            got = driver.acquire(asks[0] if asks else None, self._ask, token, timeout_s, self._ttl_ms, cancel)
            if type(got) is Grant:
                hold = self._make_record(token, got)
                if got.stray or got.more is PLAIN:
                    release_ask = None  # it is not the usual one
                if got.sent_at >= client._introduce_at:
                    client._introduce(got.sent_at)
                # No variable here has the lease, which a kept traceback would keep.
                return self._granted(hold, owners, code, offset, release_ask)
        except RequestFailed as failure:
            if isinstance(failure, NotAcked):
                failure.name, failure.label = self._name, self._label
            raise client._public(failure) from None
        except Cancelled:
            raise AcquireCancelled(self._name, self._label) from None
        except BaseException as error:
            # Somewhere before the caller got it: nobody else would give it back.
            if hold is not None and driver.finish(hold):
                for owner in owners:
                    client._owners.pop(owner, None)
                driver.spawn_release(hold)
            driver.spawn(self._give_back(token))
            if type(error) is LeaseLost:
                raise LeaseLost(self._name, error.reason, self._label) from None
            raise
        finally:
            asking.pop(token, None)
        assert isinstance(got, Busy)
        raise AcquireTimeout(self._name, got.waited_s, got.holder, kind=self._label)

    def _granted(
        self,
        hold: LeaseRecord,
        owners: tuple[tuple[str, int], ...],
        code: CodeType,
        offset: int,
        release_ask: PreparedRequest | None,
    ) -> Lease:
        client = self._client
        lease = self._lease_class(client, hold, owners, code, offset, release_ask)
        if self._reentrant:
            lease._entries = []
        known = weakref.ref(lease)
        for owner in owners:
            client._owners[owner] = known
        client._driver.watch(hold)
        return lease

    def __enter__(self) -> Lease:
        return self._enter(opening(self), sys._getframe(1))

    def _enter(self, block: Block | None, frame: FrameType) -> Lease:
        if block is None:
            block = []
        try:
            block.append(self._acquire(None, None, frame))
            self._entered.push(self._client._driver.here.number, block[0], frame)
            return block[0]  # type: ignore[no-any-return]
        except BaseException:
            if block:
                lease, block[0] = block[0], None
                self._not_left(lease)
            raise

    def _leave(
        self,
        block: Block,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not block or block[0] is None:
            # Not looked up by `with`: who left it has to be found.
            self._entered.pop(self._client._driver.here.number, sys._getframe(1))._exit(kind, error, trace)
            return
        lease: Lease = block[0]
        self._entered.forget(lease)
        lease._leave(block, kind, error, trace)

    def _exit(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._entered.pop(self._client._driver.here.number, sys._getframe(1))._exit(kind, error, trace)

    if TYPE_CHECKING:
        __exit__ = _exit
    else:
        __exit__ = Leaving(_leave, _exit)

    def _not_entered(self) -> None:
        pass  # what `__enter__` had acquired it has given back

    def _not_left(self, lease: Lease) -> None:
        self._entered.forget(lease)
        lease._abandon()


class Lock(Leasable):
    """An exclusive lock: one holder at a time, first come first served.

    Made by `Client.lock`. Not itself held: `acquire` returns a `Lease`, and one `Lock` object may serve any number of
    threads. As a context manager it acquires without a limit, and raises `LeaseLost` at the end of the block when
    the lease was lost meanwhile (unless the block raises something itself).
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
        calls = self._exclusive.first_calls(self._ttl_ms) if self._client._driver.can_ask else None
        self._asks = asks = () if calls is None else (PreparedRequest(calls[0]), PreparedRequest(calls[1]))
        return asks

    def _make_record(self, token: str, grant: Grant) -> LeaseRecord:
        return self._exclusive.hold(token, grant, self._ttl_ms, self._renew, self._max_hold_ms)

    def _give_back(self, token: str) -> Protocol[None]:
        return self._exclusive.give_back(token, self._ttl_ms)

    def locked(self) -> bool:
        """Whether anybody holds it at this moment. Only good for reporting: the answer may be old when it comes."""
        return self._inspect()[0] != ""

    def holder(self) -> Holder | None:
        """Who holds it, since when, where, and for how long still; None when it is free."""
        client = self._client
        token, remaining_ms, fence, _ = self._inspect()
        if not token:
            return None
        client_id = client_id_of(token)
        description = client._run(look_up(client_key(client.namespace, client_id))) if client_id else None
        from holdfast._faces.holder import holder_of  # not at the start: most programs never ask

        return holder_of(token, remaining_ms, fence, description)

    def last_fencing_token(self) -> int:
        """The fencing token of the last lease, be it held or not; 0 when there was none for a day."""
        return self._inspect()[2]

    def waiters(self) -> int:
        """How many are queued for it, including those whose process died since."""
        return self._inspect()[3]

    def _inspect(self) -> tuple[str, int, int, int]:
        return self._client._run(self._exclusive.inspect())

    def __repr__(self) -> str:
        held = self._client._owners.get((self._owned_as[0], self._client._driver.here.number))
        lease = held() if held is not None else None
        state = f"{lease.state.name} by this thread" if lease is not None else "not held by this thread"
        return f"<Lock {self._name!r}: {state}, ttl {self.ttl:g} s>"


class Client(Makers):
    """Makes locks on one server (or Sentinel, Cluster, quorum), and looks after its leases.

        locks = holdfast.Client(redis.Redis(host="db1"))
        with locks.lock("orders:42") as lease:
            ...

    `redis_client`: a redis-py or valkey-py client; its settings for connecting (TLS, users, Sentinel, …) are used,
    and its connections are left alone. `namespace`: what keys begin with; None makes the lock's name the key itself,
    as other lock libraries do, so that they exclude ours and the reverse. `ttl`, `renew`, `max_hold`,
    `sync_replicas`: defaults of its locks.

    Talks to no server before the first use. Safe to share between threads, and to keep over a fork: the child holds
    nothing and starts afresh. As a context manager it closes itself, which releases what is still held.
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
        topology = threads_topology(redis_client)
        _settings = settings_for(redis_client, _settings)
        self._quorum = quorum_of(redis_client, topology.nodes(), _settings)
        self._driver = ThreadDriver(topology, os.urandom(12).hex(), inbox_prefix(namespace), _settings)
        self._sequence = itertools.count(1)
        self._owners: dict[tuple[str, int], weakref.ref[Lease]] = {}
        self._introduce_at = float("-inf")
        self._ifeq: bool | None = None
        self._finalizer = weakref.finalize(self, close_later, self._driver)
        self._finalizer.atexit = False  # ours runs earlier, for all clients
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

            locks = holdfast.Client.quorum(["redis://a", "redis://b", "redis://c"])

        `servers`: an odd number, 3 at least, of URLs or redis-py clients; masters that know nothing of each other.
        `restart_delay`: a server that was started more recently than this many seconds does not vote, since it may have
        forgotten a lease; None: as long as the ttl asked for. Give the longest ttl that any client of these servers
        uses; 0 only where a restart loses nothing (appendfsync always). `member_timeout`: how long one server is
        waited for in seconds; None: a twentieth of the ttl, from 0.05 to 1.0. The others are those of `Client`.

        Its locks work as long as a majority answers, and their fencing tokens grow whichever majority that is. They
        have no queue: waiters ask from time to time. Locks are all that a quorum offers: no majority argument holds
        for semaphores and reader sets.
        """
        members = members_of(servers, restart_delay, member_timeout, "threads")
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
        `reentrant`: the thread that holds it may acquire it again, and gets the same lease, which ends when it has
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

    def close(self) -> None:
        """End it: nothing is granted any more, and what is held is lost.

        In this order: waiters get `ClientClosed`; leases that are held become LOST with the reason "closed"
        (`lost` is set, `on_lost` callbacks run, a `with` block ends with `LeaseLost`); their locks are released, when
        those callbacks have returned or half a second has passed; then the background ends and the connections are
        closed. Bodies in other threads go on: a thread cannot be ended from outside. Release first what you want
        released in order.

        May be called from any thread, twice is once. Raises nothing, and takes about two seconds at most where the
        server does not answer: the ttl then ends what could not be released.
        """
        self._driver.close()
        self._finalizer.detach()  # not before: an exception may come up, and the rest is left to do

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        nodes = ", ".join(node.name for node in self._driver.topology.nodes())
        state = "closed" if self._driver.closed else f"{len(self._driver.schedule)} leases"
        return f"<Client of {nodes}: {state}, namespace {self._namespace!r}>"

    # For locks and leases.

    def _knows_ifeq(self, known: bool | None) -> bool | None:
        """Whether the server knows SET … IFEQ; a truth value is remembered."""
        if known is not None:
            self._ifeq = known
        return self._ifeq

    def _exclusive(self, keys: LockKeys, sync_replicas: int | Literal["all"] | None) -> Exclusive:
        settings = self._driver.settings
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

    def _new_token(self, owner: str) -> str:
        driver = self._driver
        if driver.closed:
            raise driver.closed_error()
        return make_token(driver.client_id, owner, next(self._sequence))

    def _run(self, protocol: Protocol[R]) -> R:
        if self._driver.closed:
            protocol.close()
            raise self._driver.closed_error()
        try:
            return self._driver.run(protocol)
        except RequestFailed as failure:
            raise self._public(failure) from None

    def _public(self, failure: RequestFailed) -> BaseException:
        if failure.kind == "closed" and self._driver.closed:
            return self._driver.closed_error()
        return failure.public()

    def _extend(self, lease: Lease, ttl_ms: int) -> None:
        hold = lease._hold
        driver = self._driver
        if hold.check_expired(clock()):
            raise lease._ended("extend()")
        with driver.lock:
            asked_at = clock()
            order, at = driver.schedule.extending(hold, ttl_ms, asked_at)
            if at is not None:
                driver.look_no_later_than(at)
        try:
            held = self._run(hold.extension(order.asks_ms, order))
        except BaseException:
            with driver.lock:
                driver.look_no_later_than(driver.schedule.replan(hold, 0.5))
            raise
        with driver.lock:
            at = driver.schedule.extended(hold, order, held, ttl_ms, asked_at, clock(), 0.5)
            if at is not None:
                driver.look_no_later_than(at)
                return
        if held and hold.is_left_over:
            driver.spawn_release(hold)  # extended on the server, but too late to be trusted
        raise lease._ended("extend()")

    def _unwatch(self, lease: Lease) -> None:
        self._driver.unwatch(lease._hold)
        self._disown(lease)

    def _disown(self, lease: Lease) -> None:
        for owner in lease._owners:
            held = self._owners.get(owner)
            if held is not None and held() in (lease, None):
                self._owners.pop(owner, None)

    def _introduce(self, now: float) -> None:
        self._introduce_at = now + CLIENT_INFO_MS / 2000
        key = client_key(self._namespace, self._driver.client_id)
        self._driver.spawn(introduce(key, partial(introduction, time.time()), CLIENT_INFO_MS))


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
    Talks to no server before the first use. Raises `ConfigurationError` for a URL that cannot be read.
    """
    given = url if url is not None else os.environ.get("HOLDFAST_URL") or _DEFAULT_URL
    return Client(
        address_of_url(given) or client_of_url(given, "threads"),
        namespace=namespace,
        ttl=ttl,
        renew=renew,
        max_hold=max_hold,
        sync_replicas=sync_replicas,
    )


_clients: weakref.WeakSet[Client] = weakref.WeakSet()


def _close_all() -> None:
    """At the process's end: release what is held, so that nobody has to wait for a ttl."""
    clients = tuple(_clients)
    for client in clients:
        client._finalizer.detach()
    end([*(client._driver for client in clients), *left_open()], exiting=True)


at_end(_close_all)

"""The client: makes locks and everything else on one server (or Sentinel, Cluster, quorum)."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Self, TypeVar, Unpack, overload

from holdfast._api.decorated import name_of
from holdfast._api.endpoints import client_of_url, members_of
from holdfast._api.handles import read_handle, verify
from holdfast._api.options import (
    PERMITS_MAX,
    CallOptions,
    Duration,
    LeaseOptions,
    LockOptions,
    check_bool,
    check_count,
    check_name,
    check_namespace,
    explains_options,
    lock_options_of,
    options_of,
    tenure_ms_of,
    timeout_of,
)
from holdfast._async.lease import Lease
from holdfast._async.lifecycle import Session
from holdfast._async.lock import Lock
from holdfast._core.settings import DEFAULT, Settings
from holdfast._reports.observing import Reports

# sync: from holdfast._runtime.lazily import later, lazily
from holdfast._runtime.lazily import later
from holdfast.errors import ConfigurationError

if TYPE_CHECKING:
    # sync-add: from holdfast._async.client import Client as TasksClient
    from holdfast._api.breaking import Asked, Broken, asking, breaking
    from holdfast._api.changes import Change
    from holdfast._api.deadlocks import Deadlock
    from holdfast._api.holder import Holder
    from holdfast._api.outcome import Outcome, stored_entry, stored_job
    from holdfast._api.overview import Kind, Listed
    from holdfast._api.writes import compare_and_set, fenced_set
    from holdfast._async.condition import Condition
    from holdfast._async.decorators import locked
    from holdfast._async.election import Election
    from holdfast._async.gates import Barrier, CountDownLatch, Event
    from holdfast._async.multilock import MultiLock
    from holdfast._async.once import forget, get_or_set, once
    from holdfast._async.optimistic import Optimistic
    from holdfast._async.overview import explain, find_deadlocks, list_locks, watch_lock
    from holdfast._async.rwlock import RWLock
    from holdfast._async.semaphore import Semaphore
    from holdfast._core.optimistic import Value
    from holdfast._reports.observing import Observer
else:
    # What only some programs use is imported when it is first called: `holdfast run` stands in front of cron jobs.
    asking, breaking = later("holdfast._api.breaking", "asking", "breaking")
    stored_entry, stored_job = later("holdfast._api.outcome", "stored_entry", "stored_job")
    compare_and_set, fenced_set = later("holdfast._api.writes", "compare_and_set", "fenced_set")
    (Condition,) = later("holdfast._async.condition", "Condition")
    (locked,) = later("holdfast._async.decorators", "locked")
    (Election,) = later("holdfast._async.election", "Election")
    Barrier, CountDownLatch, Event = later("holdfast._async.gates", "Barrier", "CountDownLatch", "Event")
    (MultiLock,) = later("holdfast._async.multilock", "MultiLock")
    forget, get_or_set, once = later("holdfast._async.once", "forget", "get_or_set", "once")
    (Optimistic,) = later("holdfast._async.optimistic", "Optimistic")
    explain, find_deadlocks, list_locks, watch_lock = later(
        "holdfast._async.overview", "explain", "find_deadlocks", "list_locks", "watch_lock"
    )
    (RWLock,) = later("holdfast._async.rwlock", "RWLock")
    (Semaphore,) = later("holdfast._async.semaphore", "Semaphore")

P = ParamSpec("P")
R = TypeVar("R")
D = TypeVar("D")

_DEFAULT_URL = "redis://localhost:6379"
_DAY_S = 86_400
#: The shortest pause between two looks at a lock that is watched, s: each costs the server about 0.17 ms.
_POLL_LEAST_S = 0.01


class Client:
    # sync-say: redis.asyncio.Redis(host => redis.Redis(host
    # sync-say: a redis-py or valkey-py asyncio client; => a redis-py or valkey-py client;
    # sync-say: May be made outside [...] still held. => Talks to no server before the first use. Safe to share between
    # sync-say+: threads, and to keep over a fork: the child holds nothing and starts afresh. As a context manager it
    # sync-say+: closes itself, which releases what is still held.
    """Makes locks on one server (or Sentinel, Cluster, quorum), and looks after its leases.

        locks = holdfast.asyncio.Client(redis.asyncio.Redis(host="db1"))
        async with locks.lock("orders:42") as lease:
            ...

    `redis_client`: a redis-py or valkey-py asyncio client; its settings for connecting (TLS, users, Sentinel, …) are
    used, and its connections are left alone. `namespace`: what keys begin with; None makes the lock's name the key
    itself, as other lock libraries do, so that they exclude ours and the reverse. `tenure`: for how many seconds (up to
    0.1) its tasks hand a lock on among themselves before it goes through the server again; None: 0.002; 0: not at all.
    `observer`: is told what happens to its locks (`Observer`). The other options are the defaults of its locks
    (`LeaseOptions`).

    May be made outside of an event loop; talks to no server before the first use. Serves any number of event loops,
    one after the other or each in a thread of its own, and renews what they hold though they compute. What is held in a
    loop that ends is released. May be kept over a fork: the child holds nothing and starts afresh. As an async context
    manager it closes itself, which releases what is still held.
    """

    @explains_options
    def __init__(
        self,
        redis_client: Any,
        *,
        namespace: str | None = "holdfast",
        tenure: Duration | None = None,
        observer: Observer | None = None,
        _settings: Settings = DEFAULT,
        **options: Unpack[LeaseOptions],
    ) -> None:
        """See the class."""
        checked = check_namespace(namespace)
        self._options = options_of(options, of_locks=("crash_release",))
        settings = _settings if tenure is None else _settings._replace(tenure_ms=tenure_ms_of(tenure))
        self._session = Session(redis_client, checked, settings, Reports(observer))
        #: By their names, what locks have that have no options of their own.
        self._usual: dict[str, dict[str, Any]] = {}

    @classmethod
    @explains_options
    def quorum(
        cls,
        servers: Sequence[Any],
        *,
        restart_delay: Duration | None = None,
        member_timeout: Duration | None = None,
        namespace: str | None = "holdfast",
        observer: Observer | None = None,
        **options: Unpack[LeaseOptions],
    ) -> Self:
        """A client whose locks need a majority of independent servers (Redlock).

            locks = holdfast.asyncio.Client.quorum(["redis://a", "redis://b", "redis://c"])

        `servers`: an odd number, 3 at least, of URLs or asyncio clients of redis-py, for independent masters.
        `restart_delay`: a server that was started more recently than this many seconds does not vote, since it may have
        forgotten a lease; None: as long as the ttl asked for. Give the longest ttl that any client of these servers
        uses; 0 only where a restart loses nothing (appendfsync always). `member_timeout`: how long one server is
        waited for in seconds; None: a twentieth of the ttl, from 0.05 to 1.0. The others are those of `Client`; there
        are no `sync_replicas`.

        Its locks work as long as a majority answers, and their fencing tokens grow whichever majority that is. They
        have no queue: waiters ask from time to time. Locks are all that a quorum offers: no majority argument holds
        for semaphores and reader sets.
        """
        members = members_of(servers, restart_delay, member_timeout)
        return cls(members, namespace=namespace, observer=observer, **options)

    # sync-say: URLs or asyncio clients of redis-py, for => URLs or redis-py clients, for

    # sync-add: @property
    # sync-add: def tasks(self) -> TasksClient:
    # sync-add:     """The same client for tasks of asyncio and trio: a `holdfast.asyncio.Client`.
    # sync-add:
    # sync-add:         async with locks.tasks.lock("orders:42"):
    # sync-add:             ...
    # sync-add:
    # sync-add:     Threads and tasks share connections, and hand locks on to each other. To close either closes both.
    # sync-add:     """
    # sync-add:     made: TasksClient | None = vars(self).get("_tasks")
    # sync-add:     if made is None:
    # sync-add:         module = lazily("holdfast._async.client")
    # sync-add:         made = module.Client.__new__(module.Client)
    # sync-add:         made._options, made._session = self._options, module.Session.beside(self._session)
    # sync-add:         made._usual = {}
    # sync-add:         made = vars(self).setdefault("_tasks", made)  # of those that threads make at a time, the first
    # sync-add:     return made

    @property
    def namespace(self) -> str | None:
        """The prefix of the client's keys; None if names are keys."""
        return self._session.namespace

    @explains_options
    def lock(self, name: str, *, reentrant: bool = False, **options: Unpack[LockOptions]) -> Lock:
        """An exclusive lock called `name`.

        `reentrant`: the task that holds it may acquire it again, and gets the same lease, which ends when it has
        been released as often. Without it a second acquire by the holder raises `AlreadyHeld`.
        `cache_for`: seconds, half of the ttl at most, for which the client keeps it after its release: to acquire it again
        sends nothing, and it is released when another client asks for it. Not over a quorum. None: not kept.
        Sends nothing. Raises `ConfigurationError` for what is not allowed.
        """
        if not options and reentrant is False and type(name) is str and not self._session.scripts.refused:
            return Lock._usual(self._usual, self._session, name, self._options)
        resolved = lock_options_of(options, self._options)
        return Lock(self._session, check_name(name), resolved, check_bool(reentrant, "reentrant"))

    @explains_options
    def lock_for(self, subject: object, *, reentrant: bool = False, **options: Unpack[LockOptions]) -> Lock:
        """The lock of an object that says what identifies it, by an attribute or method `__lock_name__`.

        Otherwise as `lock`.
        """
        return self.lock(name_of(subject), reentrant=reentrant, **options)

    @explains_options
    async def adopt(self, handle: str, *, reentrant: bool = False, **options: Unpack[LockOptions]) -> Lease:
        """The lease that another process, or another client here, has handed over by `Lease.handle`.

            lease = await locks.adopt(job["lease"])

        It is renewed by this client from now on, with these options; `max_hold` starts over. Its note goes on. The fencing token, the
        one it had, is compared with the server's. The name and the namespace are the same on both sides.

        Raises `LeaseLost` when it has ended meanwhile (it has expired, or it was adopted and released elsewhere), and
        the server's errors, after which it may be tried again. A handle that is adopted twice gives two objects for one
        lease, of which the first release ends both.
        """
        session = self._on_one_server("a lease that is handed over")
        given = read_handle(handle, self.namespace)
        lock = self.lock(given.name, reentrant=reentrant, **options)
        await session.run(verify(lock, given, handle))
        return await lock._resume(*given[2:], sys._getframe(1))

    @explains_options
    def rwlock(self, name: str, **options: Unpack[LeaseOptions]) -> RWLock:
        """A shared lock called `name`: any number of readers or one writer, in arrival order.

            async with locks.rwlock("catalogue").read():
                ...

        `read()` and `write()` give what can be acquired. The writer is the holder of `lock(name)`: the two exclude each
        other, and readers exclude both. Every reader's time is its own. An upgrade or downgrade keeps the options:
        `max_hold` counts from the first lease on.
        """
        return RWLock(self._on_one_server("a shared lock"), check_name(name), options_of(options, self._options))

    @explains_options
    def semaphore(self, name: str, permits: int | None = None, **options: Unpack[LeaseOptions]) -> Semaphore:
        """A semaphore called `name`, with `permits` (1 to 10,000) to be held at a time.

            async with locks.semaphore("api", permits=3):
                ...

        All clients declare the same `permits`, or None to take what is there; another number raises
        `DeclarationMismatch` when it is used. `resize` changes it for all. Not related to the lock of that name.
        """
        session = self._on_one_server("a semaphore")
        return Semaphore(session, check_name(name), options_of(options, self._options), permits)

    @explains_options
    def multilock(self, *names: str, **options: Unpack[LeaseOptions]) -> MultiLock:
        """Several locks (1 to 100) at once, under one lease: all or none.

            async with locks.multilock("account:1", "account:2") as lease:
                ...

        Deadlock-free, whatever the order of names. While one of them is waited for, those before it (in the server's
        order) may be held already. One fencing token for all.
        """
        session = self._on_one_server("several locks at once")
        return MultiLock(session, names, options_of(options, self._options))

    def condition(self, lock: Lock, name: str = "default") -> Condition:
        """A condition of `lock` (one that this client made), to wait for what other holders of the lock do.

        `name` tells apart several conditions of one lock. A wait that ends holds the lock again under the options of
        the lock.
        """
        session = self._on_one_server("a condition")
        if type(lock) is not Lock or lock._session is not session:
            raise ConfigurationError("lock", lock, "a lock that this client has made")
        return Condition(lock, check_name(name))

    def latch(self, name: str, count: int, *, retain: Duration = _DAY_S) -> CountDownLatch:
        """A latch called `name` that opens after `count` (1 to 1e9) count-downs, once and for good.

        All declare the same `count`. The server forgets it `retain` seconds after its last use.
        """
        return CountDownLatch(self._on_one_server("a latch"), name, count, retain)

    def event(self, name: str, *, retain: Duration = _DAY_S) -> Event:
        """An event called `name`, as `asyncio.Event`, for processes anywhere.

        The server forgets that it was set `retain` seconds after its last use.
        """
        return Event(self._on_one_server("an event"), name, retain)

    def barrier(self, name: str, parties: int, *, retain: Duration = _DAY_S) -> Barrier:
        """A barrier called `name` for `parties` (1 to 1,000), as `asyncio.Barrier`, for processes anywhere.

        All declare the same `parties`. The server forgets it `retain` seconds after its last use.
        """
        return Barrier(self._on_one_server("a barrier"), name, parties, retain)

    @explains_options
    def election(self, name: str, **options: Unpack[LeaseOptions]) -> Election:
        """An election called `name`: of all who campaign, one leads at a time, as long as it renews its lease."""
        return Election(self._session, check_name(name), options_of(options, self._options))

    def held(self) -> tuple[Lease, ...]:
        # sync-say: what this task holds => what this thread holds
        """Return what this task holds by this client, as far as is known now: for messages, and to release on the way out.

            for lease in locks.held():
                print(lease.name, lease.remaining())

        Leases of locks, shared locks, multilocks and elections that it has acquired and not released, each once, in
        no order. Permits of a semaphore have no owner, and are not among them. Sends nothing.
        """
        return self._session.held()

    def list(self, pattern: str = "*", *, grants: bool = False) -> AsyncIterator[Listed]:
        """The locks, shared locks, semaphores and elections of the namespace whose names fit `pattern`.

            async for found in locks.list("orders:*"):
                print(found.kind, found.name, found.holder, found.waiters)

        `pattern`: as in `fnmatch`: `*`, `?`, `[abc]`. Those that are held or waited for, in no order, each once; what
        appears or disappears meanwhile may be missed. Looks at a few at a time, so that no command holds up the server, and
        changes nothing. Only for reporting.

        `grants`: have the server count, until a minute after the last such call, how often those are granted that
        change from one call to the next (`Listed.grants`); that writes a key.
        """
        return list_locks(self._on_one_server("a list of locks"), check_name(pattern, "pattern"), grants)

    async def deadlocks(self) -> tuple[Deadlock, ...]:
        """The deadlocks there are: circles of threads and tasks, each of which waits for what the next one holds.

            for deadlock in await locks.deadlocks():
                print(deadlock)

        Locks, shared locks, semaphores, multilocks and elections of the namespace; of those that wait for each other in
        several circles, one circle is given. Each was there at one moment; a wait with a timeout counts until that is
        over. Goes over the keys of the namespace, a few at a time, and changes nothing. Not seen: waits of less
        than a second behind others of the same process, or by the holder of a lease that its client has handed on
        (`tenure`, `cache_for`); waits for anything else. A lease counts as that of the thread or task
        that has acquired it, wherever it is used.
        """
        return await find_deadlocks(self._on_one_server("looking for deadlocks"))

    def watch(self, name: str, *, poll: Duration = 0.05) -> AsyncIterator[Change]:
        """Watch the lock, shared lock, semaphore and election called `name`, change by change.

            async for change in locks.watch("orders:42"):
                print(change.what, change.who)

        Starts with the current state (`Change`: "held", "waiting") and never ends by itself. Looks every `poll` seconds (0.01
        or more), by one small script call: a holder that came and went in between may be missed, and is reported as such
        where the fencing token shows it. Ends with the server's errors. Only for reporting.
        """
        poll_s = timeout_of(poll, "poll")
        if poll_s is None or poll_s < _POLL_LEAST_S:
            raise ConfigurationError("poll", poll, f"{_POLL_LEAST_S} seconds or more")
        return watch_lock(self._on_one_server("watching a lock"), check_name(name), poll_s)

    async def explain(self, change: Change) -> Change:
        """Return the change, or "broken" with who did it and why as its `reason` if the lease was broken.

        For programs that compare looks of `list` themselves; `watch` has done it. Takes one small request where a lease
        has ended. Known for ten minutes; of a multilock, for the lock that was named.
        """
        return await explain(self._session, change)

    async def break_(
        self,
        name: str,
        *,
        kind: Kind | None = None,
        holder: Holder | str | int | None = None,
        reason: str = "",
        grace: Duration = 0.5,
    ) -> Broken:
        """Take `name` away from its holder: that lease is lost at once, and the next waiter gets the lock.

            if not await locks.break_("orders:42", reason="stuck since noon"):
                print("it is free")

        The holder is told which program did it and why (`LeaseLost.reason`), and has `grace` seconds to release it. Its
        client does so within milliseconds, before the next holder begins. If it does not answer (stopped, cut off,
        dead), the lease is released on its behalf, and the holder may go on until it looks at its lease: fencing tokens
        protect against that.

        `kind`: "lock", "rwlock" or "multilock" (which are one: they share names), "semaphore" or "election", if more
        than one is held under that name. `holder`: the one that was shown, as a `Holder`, its token or its fencing
        token: if another client holds it by now, nothing happens.
        None: all that hold it at that moment: every reader and holder of permits, 100 at most. Of a multilock,
        name one lock: its holder loses all of them. Threads that hand a lock on within their process (`tenure`) are one
        holder.

        May be repeated. Raises the server's errors; not over a quorum.
        """
        session = self._on_one_server("break_")
        broken = await session.run(breaking(session, check_name(name), kind, holder, reason, grace))
        for each in broken.holders:
            forced = each in broken.forced
            session.reports.broke(broken.kind, name, each.fencing_token or 0, each.who, reason, forced)
        return broken

    async def ask(
        self, name: str, *, kind: Kind | None = None, holder: Holder | str | int | None = None, reason: str = ""
    ) -> Asked:
        """Ask the holder of `name` to release it soon: sets `lease.wanted` there, and calls its `on_wanted`.

        What follows is for the holder to decide. The arguments are those of `break_`.
        """
        session = self._on_one_server("ask")
        return await session.run(asking(session, check_name(name), kind, holder, reason))

    def optimistic(self, *keys: str, attempts: int = 50) -> Optimistic:
        """Change `keys` (of the server, as they are; in a Cluster of one slot) without a lock; see `Optimistic`."""
        return Optimistic(self._on_one_server("an optimistic write"), keys, attempts)

    async def compare_and_set(
        self,
        key: str,
        expected: Value | None,
        new: Value,
        *,
        ttl: Duration | None = None,
        keep_ttl: bool = False,
    ) -> bool:
        """Set `key` (of the server, as it is) to `new` if it holds `expected`; None expects that there is no such key.

        `ttl`: lifetime of the key in seconds; `keep_ttl`: leave the one it has; neither: it lives without a limit. One
        command where the server has SET … IFEQ (Valkey 8.1, Redis 8.4), a script elsewhere. Returns whether it was set.
        Raises `OutcomeUnknown` when the answer was lost: it is not repeated, since that answer could mislead.
        """
        session = self._on_one_server("compare_and_set")
        return await session.run(compare_and_set(session, key, expected, new, ttl, keep_ttl))

    @explains_options
    async def once(
        self,
        name: str,
        function: Callable[[Lease], Awaitable[Value | None]],
        *,
        retain: Duration = _DAY_S,
        fingerprint: str | bytes | None = None,
        failure: Literal["next", "share"] = "next",
        timeout: Duration | None = None,
        **options: Unpack[LeaseOptions],
    ) -> Outcome:
        """Run a job unless it was done before, by any client: for messages that arrive twice, and for retries.

            outcome = await locks.once(f"invoice:{invoice.id}", lambda lease: send(invoice))
            if not outcome.new:
                ...  # it was sent before

        `function` is called with the lease that it runs under; it returns bytes, str, int, float or None, which is
        kept for `retain` seconds as bytes. `timeout`: seconds to wait while another client runs it, then `AcquireTimeout`.
        `fingerprint`: what the request is (its body, say): the same name with another one raises `OnceConflict`.
        `failure`: as in `get_or_set`.

        Returns an `Outcome`: whether it has run now, and its result. When it raises, nothing is kept, and the next
        call runs it again; so too when its process dies, or its lease is lost: it must tolerate being begun twice,
        and `lease.fencing_token` tells the two apart. It never counts as done before it has returned.
        """
        session = self._on_one_server("once")
        value = stored_job(session, name, options_of(options, self._options), retain, failure)
        return await once(session, name, value, function, fingerprint, timeout_of(timeout))

    async def forget(self, name: str, *, timeout: Duration | None = None) -> None:
        """Forget that `once` has run the job of that name: the next call runs it again.

            await locks.forget(f"reindex:{shop}")

        While a client runs it, that is waited for: `timeout` seconds at most, then `AcquireTimeout`.
        """
        session = self._on_one_server("once")
        await forget(session, stored_job(session, name, self._options), timeout_of(timeout))

    @explains_options
    async def get_or_set(
        self,
        key: str,
        make: Callable[[], Awaitable[Value]],
        *,
        expire: Duration | None,
        stale: Duration | None = None,
        failure: Literal["next", "share"] = "next",
        timeout: Duration | None = None,
        **options: Unpack[LeaseOptions],
    ) -> bytes:
        """The value of a key, made by one client where it is missing, while the others wait for it: no stampede.

            page = await locks.get_or_set("page:home", render, expire=60)

        `key`: of the server, as it is. `make`: is called without arguments by the one that makes the value, and returns
        bytes, str, int or float. `expire`: how many seconds the value lives; None: without a limit. `timeout`: seconds
        to wait for the client that makes it, then `AcquireTimeout`. (`ttl`, as everywhere, is that of the lease.)

        `stale`: for this many seconds after `expire` the old value is still there: one call makes a new one, and all
        others get the old one meanwhile, without waiting. `failure`: when `make` raises, that call raises it; "next": one
        of the waiters makes the value instead; "share": they get `MakeFailed`.

        Returns the value as bytes. A value that is there costs one GET, and one PTTL with `stale`.
        """
        session = self._on_one_server("get_or_set")
        value = stored_entry(session, key, options_of(options, self._options), expire, stale, failure)
        return await get_or_set(session, value, make, timeout_of(timeout))

    @overload
    def locked(
        self, template: str, *, skip_if_held: Literal[False] = False, **options: Unpack[CallOptions]
    ) -> Callable[[Callable[P, Coroutine[Any, Any, R]]], Callable[P, Coroutine[Any, Any, R]]]: ...

    @overload
    def locked(
        self, template: str, *, skip_if_held: Literal[True], **options: Unpack[CallOptions]
    ) -> Callable[[Callable[P, Coroutine[Any, Any, R]]], Callable[P, Coroutine[Any, Any, R | None]]]: ...

    @overload
    def locked(
        self, template: str, *, skip_if_held: Literal[True], otherwise: D, **options: Unpack[CallOptions]
    ) -> Callable[[Callable[P, Coroutine[Any, Any, R]]], Callable[P, Coroutine[Any, Any, R | D]]]: ...

    @explains_options
    def locked(
        self,
        template: str,
        *,
        skip_if_held: bool = False,
        otherwise: object = None,
        timeout: Duration | None = None,
        reentrant: bool = False,
        **options: Unpack[LeaseOptions],
    ) -> Any:
        """Decorator: the coroutine function runs under a lock whose name is made from its arguments.

            @locks.locked("order:{order_id}")
            async def ship(order_id: int) -> None: ...

        `template`: a format string over the function's parameters. `timeout`: seconds to wait for the lock, then
        `AcquireTimeout`. `skip_if_held`: do not wait, and return `otherwise` when it is held.
        `reentrant`: as in `lock`. Signature and types are kept. A loss cancels the body, as by `async with`.
        """
        make = partial(self.lock, reentrant=reentrant, **options)
        return locked(make, template, check_bool(skip_if_held, "skip_if_held"), timeout_of(timeout), otherwise)

    # sync-say: A loss cancels the body, as by `async with`. => A loss is raised at the end, as by `with`.

    @explains_options
    def limited(
        self,
        template: str,
        *,
        permits: int,
        timeout: Duration | None = None,
        **options: Unpack[LeaseOptions],
    ) -> Callable[[Callable[P, Coroutine[Any, Any, R]]], Callable[P, Coroutine[Any, Any, R]]]:
        """Decorator: at most `permits` calls (1 to 10,000) run at a time, on all hosts, for each name.

            @locks.limited("tenant:{tenant}", permits=3)
            async def report(tenant: str) -> None: ...

        The calls of a name hold permits of the semaphore of that name; all that are decorated for it declare the same
        `permits`: `DeclarationMismatch`. `template` and `timeout` as in `locked`.
        """
        make = partial(self.semaphore, permits=check_count("permits", permits, 1, PERMITS_MAX), **options)
        made: Callable[[Any], Any] = locked(make, template, False, timeout_of(timeout), None)
        return made

    async def close(self) -> None:
        # sync-say: the bodies of `async with` are cancelled and end with => a `with` block ends with
        # sync-say: each when its body has ended or a second has passed; => when those callbacks have returned or half a
        # sync-say+: second has passed;
        # sync-say: Release first what you => Bodies in other threads go on: a thread cannot be ended from outside.
        # sync-say+: Release first what you
        # sync-say: Idempotent. When it is cancelled, all this goes on in the background. => Idempotent; may be called
        # sync-say+: from any thread.
        # sync-say: be released. Called in another event loop [...] too, soon. => be released.
        """End it: nothing is granted any more, and what is held is lost.

        In this order: waiters get `ClientClosed`; leases that are held become LOST with the reason "closed"
        (`lost` is set, `on_lost` callbacks run, the bodies of `async with` are cancelled and end with `LeaseLost`);
        their locks are released, each when its body has ended or a second has passed; then the background ends and the
        connections are closed. Release first what you want released in order.

        Idempotent. When it is cancelled, all this goes on in the background. Raises nothing, and takes about two
        seconds at most where the server does not answer: the ttl then ends what could not be released. Called in
        another event loop than the client was used in, it closes it there, too, soon.
        """
        await self._session.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<Client of {self._session}>"

    def _on_one_server(self, what: str) -> Session:
        """The session, for what a quorum does not offer."""
        if self._session.quorum is not None:
            allowed = f"one server that decides (a single one, Sentinel or Cluster), for {what}"
            raise ConfigurationError("client", "a quorum of independent servers", allowed)
        return self._session

    async def _fenced_set(
        self, key: str, value: Value, fencing_token: int, ttl_ms: int | None, remember_ms: int
    ) -> None:
        session = self._on_one_server("a guarded write")
        await session.run(fenced_set(session, key, value, fencing_token, ttl_ms, remember_ms))


@explains_options
def connect(
    url: str | None = None,
    *,
    namespace: str | None = "holdfast",
    tenure: Duration | None = None,
    observer: Observer | None = None,
    **options: Unpack[LeaseOptions],
) -> Client:
    """A client for the servers at `url`.

    `redis://HOST:PORT/DB`, `rediss://` (TLS), `unix://PATH`; `redis+sentinel://HOST:PORT,HOST:PORT/SERVICE/DB`;
    `redis+cluster://HOST:PORT,HOST:PORT`; `redlock://HOST:PORT,HOST:PORT,HOST:PORT` for a quorum.

    None takes the environment's HOLDFAST_URL, or `redis://localhost:6379`. The other arguments are those of `Client`.
    A plain call, as in `holdfast`: talks to no server before the first use. Raises `ConfigurationError` for a URL that
    cannot be read.
    """
    # sync-say: A plain call, as in `holdfast`: talks to no server => Talks to no server
    given = url if url is not None else os.environ.get("HOLDFAST_URL") or _DEFAULT_URL
    return Client(client_of_url(given), namespace=namespace, tenure=tenure, observer=observer, **options)

"""Every lock the lab can run, behind one interface for its worker processes.

A handle is one client's view of one lock. Schemes run on the lab's own driver; libraries and locks that users
bring run as they are, over the addresses they are given.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import holdfast
from holdfast_lab import schemes
from holdfast_lab.adapter import UserHandle, load_factory
from holdfast_lab.handle import Handle, Setup
from holdfast_lab.texts import Text, text_of

__all__ = ["ENTRIES", "PROCESSES", "THREADS", "Entry", "entry_for_factory"]

#: What the clients of a play are: processes, or threads of one process.
PROCESSES, THREADS = "processes", "threads"


class _Driven(Handle):
    """One whose steps are effects."""

    def __init__(self, setup: Setup) -> None:
        self._driver = setup.driver()

    def close(self) -> None:
        self._driver.close()


class _SchemeHandle(_Driven):
    def __init__(self, kind: type[schemes.Scheme], setup: Setup) -> None:
        super().__init__(setup)
        self._scheme = kind(setup.name, setup.ttl_ms)
        self.pause_s = kind.PAUSE_S

    def try_acquire(self) -> bool:
        return self._driver.run(self._scheme.try_lock())

    def release(self) -> None:
        self._driver.run(self._scheme.unlock())


class _SharedObject:
    """An object that is made once for a process, for all of its threads, and a pool of connections.

    The pool is a number of permits: each client has connections of its own, so that the record can tell who sent what.
    """

    def __init__(self, kind: type[schemes.Scheme], setup: Setup) -> None:
        self.scheme = kind(setup.name, setup.ttl_ms)
        self.scheme.identity = secrets.token_hex(8)
        self.pool = threading.BoundedSemaphore(kind.POOL)


#: By the name of the lock, in this process.
_SHARED: dict[str, _SharedObject] = {}
_MAKING = threading.Lock()


class _SharedHandle(_SchemeHandle):
    """One thread's view of a shared object. Every call borrows a connection of the pool, or waits for one."""

    def __init__(self, kind: type[schemes.Scheme], setup: Setup) -> None:
        super().__init__(kind, setup)
        with _MAKING:
            self._object = _SHARED.setdefault(setup.name, _SharedObject(kind, setup))
        self._scheme = self._object.scheme

    def try_acquire(self) -> bool:
        with self._connection():
            return super().try_acquire()

    def wait(self, interrupted: Callable[[], bool] | None = None) -> None:
        ways = self._scheme.lock() if interrupted is None else self._scheme.lock_interruptibly(interrupted)
        with self._connection():
            self._driver.run(ways)

    def release(self) -> None:
        with self._connection():
            super().release()

    @contextlib.contextmanager
    def _connection(self) -> Iterator[None]:
        while not self._object.pool.acquire(timeout=0.05):
            pass  # in pieces: a thread that is to end does so between two calls
        try:
            yield
        finally:
            self._object.pool.release()


class _Target:
    """Something to lock: an order, known by its id."""

    def __init__(self, identity: str) -> None:
        self.id = identity


class _ObjectHandle(_Driven):
    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._locks = schemes.ObjectLocks(setup.ttl_ms)
        self._target = _Target(setup.name)

    def try_acquire(self) -> bool:
        return self._driver.run(self._locks.try_lock(self._target))

    def release(self) -> None:
        self._driver.run(self._locks.unlock(self._target))


class WatchHandle(_Driven):
    """Acquiring is to begin (WATCH and read), releasing to commit, again and again until it went through.

    The counter that the others keep elsewhere is the watched key itself.
    """

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._watch = schemes.Watch(f"counter:{setup.name}")
        self.base = 0

    def try_acquire(self) -> bool:
        self.base = self._driver.run(self._watch.begin())
        return True

    def commit(self) -> bool:
        return self._driver.run(self._watch.commit(self.base + 1))

    def release(self) -> None:
        self._driver.run(self._watch.abandon())


class _HoldfastHandle(Handle):
    """The public API for threads, its waiting queue included."""

    def __init__(self, client: holdfast.Client, setup: Setup) -> None:
        self.shared = self._client = client
        self._lock = self._client.lock(setup.name, ttl=setup.ttl_ms / 1000)
        self._lease: holdfast.Lease | None = None

    def try_acquire(self) -> bool:
        try:
            self._lease = self._lock.acquire(timeout=0.5)
        except holdfast.AcquireTimeout:
            return False
        return True

    def release(self) -> None:
        if self._lease is not None:
            self._lease.release()

    def fence(self) -> int | None:
        return self._lease.fencing_token if self._lease is not None else None

    def valid_until_ns(self) -> int | None:
        if self._lease is None:
            return None
        return time.monotonic_ns() + int(self._lease.remaining() * 1e9)

    def is_lost(self) -> bool:
        return self._lease is not None and self._lease.state is holdfast.LeaseState.LOST

    def close(self) -> None:
        self._client.close()


class _LibraryHandle(Handle):
    """A library's lock, on a client of redis-py with its defaults, the client's retries included."""

    def __init__(self, make: Callable[[Any, Setup], Any], setup: Setup) -> None:
        import redis

        self._lock = make(redis.Redis.from_url(setup.url, socket_timeout=1), setup)

    def try_acquire(self) -> bool:
        return bool(self._lock.acquire(blocking=False))

    def release(self) -> None:
        self._lock.release()


def _of_redis_py(client: Any, setup: Setup) -> Any:
    return client.lock(setup.name, timeout=setup.ttl_ms / 1000)


def _of_python_redis_lock(client: Any, setup: Setup) -> Any:
    """Make one without automatic renewal, which is the default."""
    library = importlib.import_module("redis_lock")
    return library.Lock(client, setup.name, expire=max(1, -(-setup.ttl_ms // 1000)))


@dataclass(frozen=True, slots=True)
class Entry:
    """A lock the lab can run: its name, what it needs, how to make a handle.

    ``fenced``: whether it has fencing tokens; None: that is not known.
    """

    name: str
    make: Callable[[Setup], Handle]
    lock_key: Callable[[str], str] | None = None
    servers: int = 1
    exclusive: bool = True
    #: Makes sense only where a replica listens.
    replicated: bool = False
    fenced: bool | None = False
    needs: str | None = None
    clients: str = PROCESSES
    #: A user's, made by a factory: what fails in it is a finding.
    own: bool = False
    #: Connections of the pool that the threads of a process share; 0: each has its own.
    pool: int = 0
    #: Whether its listing says what an interrupt does to a client that waits.
    interrupts: bool = False
    #: Whether its call may come back without the lock and without a word.
    skips: bool = False

    def of(self, clients: str) -> Entry:
        """The same lock with other clients."""
        return replace(self, clients=clients)

    @property
    def text(self) -> Text:
        """Idea, flaw and rung in both languages; for a user's lock, its name."""
        return text_of("scheme", self.name) or {
            "idea": f"A lock made by {self.name}.",
            "idea_zh": f"由 {self.name} 构造的锁。",
        }

    @property
    def missing(self) -> str | None:
        """A sentence on what has to be installed first; None: nothing."""
        if self.needs is None or importlib.util.find_spec(self.needs) is not None:
            return None
        return f"the package that has {self.needs} is not installed"

    def lock_keys(self, name: str) -> tuple[str, ...]:
        return (self.lock_key(name),) if self.lock_key is not None else ()


def _of_scheme(kind: type[schemes.Scheme]) -> Entry:
    return Entry(
        kind.NAME,
        lambda setup: (_SharedHandle if kind.POOL else _SchemeHandle)(kind, setup),
        lock_key=(lambda name: kind(name, 1).key) if kind.ONE_KEY else None,
        servers=kind.SERVERS,
        exclusive=kind.EXCLUSIVE,
        pool=kind.POOL,
        interrupts=kind.INTERRUPTS,
        skips=kind.SKIPS,
    )


def _holdfast_key(name: str) -> str:
    return f"holdfast:{{{name}}}"


def _holdfast_quorum(setup: Setup) -> Handle:
    return _HoldfastHandle(holdfast.Client.quorum(setup.urls, restart_delay=setup.restart_delay_s), setup)


ENTRIES: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        *map(_of_scheme, schemes.LADDER),
        Entry("watch", WatchHandle, lock_key=lambda name: f"counter:{name}", exclusive=False),
        Entry(
            "object",
            _ObjectHandle,
            lock_key=lambda name: f"lock:{_Target.__module__}.{_Target.__qualname__}:{name}",
        ),
        Entry("redis-py", partial(_LibraryHandle, _of_redis_py), lock_key=lambda name: name, needs="redis"),
        Entry(
            "python-redis-lock",
            partial(_LibraryHandle, _of_python_redis_lock),
            lock_key=lambda name: f"lock:{name}",
            needs="redis_lock",
        ),
        Entry(
            "holdfast",
            lambda setup: _HoldfastHandle(holdfast.connect(setup.url), setup),
            lock_key=_holdfast_key,
            fenced=True,
        ),
        Entry(
            "holdfast-synced",
            lambda setup: _HoldfastHandle(holdfast.connect(setup.url, sync_replicas="all"), setup),
            lock_key=_holdfast_key,
            replicated=True,
            fenced=True,
        ),
        Entry("holdfast-quorum", _holdfast_quorum, lock_key=_holdfast_key, servers=5, fenced=True),
    )
}


def entry_for_factory(spec: str, servers: int = 1) -> Entry:
    """An entry for a user's lock; the factory itself is loaded in the worker processes."""
    return Entry(spec, lambda setup: UserHandle(load_factory(spec), setup), servers=servers, fenced=None, own=True)

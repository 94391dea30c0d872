"""Every lock the lab can run, behind one interface for its worker processes.

A handle is one client's view of one lock. Schemes run on the lab's own driver; libraries and locks that users
bring run as they are, over the addresses they are given.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import holdfast
from holdfast.lab import schemes
from holdfast.lab.driver import Address, BlockingDriver
from holdfast.lab.texts import Text, text_of

__all__ = ["ENTRIES", "PROCESSES", "THREADS", "Entry", "Handle", "Setup", "entry_for_factory", "load_factory"]

#: What the clients of a play are: processes, or threads of one process.
PROCESSES, THREADS = "processes", "threads"


@dataclass(frozen=True, slots=True)
class Setup:
    """What a handle is made of: the lock's name, its ttl, one address per server.

    ``restart_delay_s``: for how long a restarted server is left out, by those who can do that. The lab's servers are
    young, so that it is 0 except where that is the point.
    """

    name: str
    ttl_ms: int
    addresses: Sequence[Address]
    interrupt: Callable[[], None] | None = None
    restart_delay_s: float = 0.0
    password: str = field(default="", repr=False)

    @property
    def urls(self) -> list[str]:
        """One for each server, with the password."""
        credentials = f":{self.password}@" if self.password else ""
        return [f"redis://{credentials}{host}:{port}/0" for host, port in self.addresses]

    @property
    def url(self) -> str:
        """The first server's."""
        return self.urls[0]

    def driver(self) -> BlockingDriver:
        """What performs the effects of a scheme."""
        return BlockingDriver(self.addresses, self.interrupt, self.password)


class Handle:
    """One client's lock. `try_acquire` is one attempt; it may wait for half a second, if that is its way."""

    #: Between two attempts, s.
    pause_s = 0.05
    #: What other threads of the process use as well, so that it outlives the client's thread.
    shared: object = None

    def try_acquire(self) -> bool:
        raise NotImplementedError

    def release(self) -> None:
        raise NotImplementedError

    def fence(self) -> int | None:
        """The fencing token of what was acquired, where there is one."""
        return None

    def valid_until_ns(self) -> int | None:
        """Until when it relies on what was acquired, as it stands now; None: it has no such notion."""
        return None

    def is_lost(self) -> bool:
        """Whether it knows by itself that it does not hold any more."""
        return False

    def close(self) -> None:
        pass


class _SchemeHandle(Handle):
    def __init__(self, kind: type[schemes.Scheme], setup: Setup) -> None:
        self._scheme = kind(setup.name, setup.ttl_ms)
        self.pause_s = kind.PAUSE_S
        self._driver = setup.driver()

    def try_acquire(self) -> bool:
        return self._driver.run(self._scheme.try_lock())

    def release(self) -> None:
        self._driver.run(self._scheme.unlock())

    def close(self) -> None:
        self._driver.close()


class _Target:
    """Something to lock: an order, known by its id."""

    def __init__(self, identity: str) -> None:
        self.id = identity


class _ObjectHandle(Handle):
    def __init__(self, setup: Setup) -> None:
        self._locks = schemes.ObjectLocks(setup.ttl_ms)
        self._target = _Target(setup.name)
        self._driver = setup.driver()

    def try_acquire(self) -> bool:
        return self._driver.run(self._locks.try_lock(self._target))

    def release(self) -> None:
        self._driver.run(self._locks.unlock(self._target))

    def close(self) -> None:
        self._driver.close()


class WatchHandle(Handle):
    """Acquiring is to begin (WATCH and read), releasing to commit, again and again until it went through.

    The counter that the others keep elsewhere is the watched key itself.
    """

    def __init__(self, setup: Setup) -> None:
        self._watch = schemes.Watch(f"counter:{setup.name}")
        self._driver = setup.driver()
        self.base = 0

    def try_acquire(self) -> bool:
        self.base = self._driver.run(self._watch.begin())
        return True

    def commit(self) -> bool:
        return self._driver.run(self._watch.commit(self.base + 1))

    def release(self) -> None:
        self._driver.run(self._watch.abandon())

    def close(self) -> None:
        self._driver.close()


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


class _RedisPyHandle(Handle):
    """`redis.Redis(...).lock()` with its defaults, the client's retries included."""

    def __init__(self, setup: Setup) -> None:
        import redis

        client = redis.Redis.from_url(setup.url, socket_timeout=1)
        self._lock: Any = client.lock(setup.name, timeout=setup.ttl_ms / 1000)

    def try_acquire(self) -> bool:
        return bool(self._lock.acquire(blocking=False))

    def release(self) -> None:
        self._lock.release()


class _PythonRedisLockHandle(Handle):
    """`redis_lock.Lock` of python-redis-lock, without automatic renewal (its default)."""

    def __init__(self, setup: Setup) -> None:
        import redis

        client = redis.Redis.from_url(setup.url, socket_timeout=1)
        library = importlib.import_module("redis_lock")
        self._lock: Any = library.Lock(client, setup.name, expire=max(1, -(-setup.ttl_ms // 1000)))

    def try_acquire(self) -> bool:
        return bool(self._lock.acquire(blocking=False))

    def release(self) -> None:
        self._lock.release()


class _UserHandle(Handle):
    """Anything with acquire and release, or lock and unlock, or a context manager, made by a user's factory."""

    def __init__(self, factory: Callable[..., Any], setup: Setup) -> None:
        self._lock = _call_factory(factory, setup)
        self._lease: Any = None
        self._ask = _first_of(self._lock, "try_acquire", "try_lock", "acquire", "lock", "__enter__")
        if self._ask is None:
            raise TypeError(f"{type(self._lock).__name__} has none of try_acquire, try_lock, acquire, lock, __enter__")

    def try_acquire(self) -> bool:
        assert self._ask is not None
        blocking = "blocking" in _parameters(self._ask)
        got = self._ask(blocking=False) if blocking else self._ask()
        if self._ask.__name__ in ("acquire", "lock", "__enter__") and got is None and not blocking:
            got = True  # it came back: that is its answer
        self._lease = got if callable(getattr(got, "release", None)) else None
        return got is not None and got is not False

    def release(self) -> None:
        if self._lease is not None:
            self._lease.release()
        elif (give_back := _first_of(self._lock, "release", "unlock")) is not None:
            give_back()
        else:
            self._lock.__exit__(None, None, None)

    def fence(self) -> int | None:
        token = getattr(self._lease if self._lease is not None else self._lock, "fencing_token", None)
        return token if isinstance(token, int) else None

    def is_lost(self) -> bool:
        check = getattr(self._lease if self._lease is not None else self._lock, "ensure_held", None)
        if check is None:
            return False
        try:
            check()
        except Exception:
            return True
        return False


def _first_of(thing: Any, *names: str) -> Callable[..., Any] | None:
    """The first of these methods that it has."""
    found = (getattr(thing, name, None) for name in names)
    return next((method for method in found if callable(method)), None)


def _parameters(function: Callable[..., Any]) -> set[str]:
    try:
        return set(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return set()


def _call_factory(factory: Callable[..., Any], setup: Setup) -> Any:
    offered = {"url": setup.url, "name": setup.name, "ttl": setup.ttl_ms / 1000, "urls": setup.urls}
    taken = _parameters(factory)
    if taken & offered.keys():
        return factory(**{name: value for name, value in offered.items() if name in taken})
    return factory(setup.url, setup.name, setup.ttl_ms / 1000)


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

    def of(self, clients: str) -> Entry:
        """The same lock with other clients."""
        return replace(self, clients=clients)

    @property
    def text(self) -> Text:
        """Its idea, flaw and rung, in both languages; what can be said of a user's lock."""
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
        lambda setup: _SchemeHandle(kind, setup),
        lock_key=lambda name: kind(name, 1).key,
        servers=kind.SERVERS,
        exclusive=kind.EXCLUSIVE,
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
        Entry("redis-py", _RedisPyHandle, lock_key=lambda name: name, needs="redis"),
        Entry("python-redis-lock", _PythonRedisLockHandle, lock_key=lambda name: f"lock:{name}", needs="redis_lock"),
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


def load_factory(spec: str) -> Callable[..., Any]:
    """The callable behind ``MODULE:FACTORY``.

    Raises:
        ValueError: it has another form, or there is no such module or name in it, or it cannot be called.
    """
    module_name, colon, attribute = spec.partition(":")
    if not colon or not module_name or not attribute:
        raise ValueError(f"{spec!r} is not MODULE:FACTORY, as in mypackage.locks:make_lock")
    try:
        found: Any = importlib.import_module(module_name)
    except ImportError as error:
        raise ValueError(f"{spec!r}: module {module_name!r} cannot be imported: {error}") from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            names = ", ".join(sorted(name for name in vars(found) if not name.startswith("_"))[:20])
            raise ValueError(f"{spec!r}: {module_name} has no {part!r} (it has: {names})")
        found = getattr(found, part)
    if not callable(found):
        raise ValueError(f"{spec!r} is not callable: a factory takes (url, name, ttl) and returns a lock")
    factory: Callable[..., Any] = found
    return factory


def entry_for_factory(spec: str, servers: int = 1) -> Entry:
    """An entry for a user's lock; the factory itself is loaded in the worker processes."""
    return Entry(spec, lambda setup: _UserHandle(load_factory(spec), setup), servers=servers, fenced=None)

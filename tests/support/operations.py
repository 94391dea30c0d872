"""Every public operation that asks a server, as a table: what has to stand before it, and the operation itself.

    for operation in OPERATIONS:
        do = operation.prepare(scene)     # talks to the server
        do()                              # the operation alone

A test of the table compares it with the public classes, so that none is forgotten.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from holdfast import fencing
from testbed.servers import unique
from tests.support.apis import Actor, Api, function_for

__all__ = ["OPERATIONS", "Operation", "Scene"]


class Scene:
    """A client, someone who uses it, and a name of its own."""

    def __init__(self, api: Api, locks: Any, actor: Actor, timeout_s: float = 20.0) -> None:
        self.api = api
        self.locks = locks
        self.actor = actor
        #: No operation is given more than this.
        self.timeout_s = timeout_s
        self.name = unique("op")
        #: Leases that no one else keeps.
        self._kept: list[Any] = []

    def ask(self, target: Any, method: str, *args: Any, **options: Any) -> Any:
        """Let the actor call a method."""
        if "timeout" in options:
            options["timeout"] = min(options["timeout"], self.timeout_s)
        result = self.actor.ask(target, method, *args, **options)
        self._kept.append(result)
        return result


Do = Callable[[], Any]


class Operation(NamedTuple):
    """`strict`: whether it knows what its reply has to look like; a user's own reads do not."""

    what: str
    prepare: Callable[[Scene], Do]
    strict: bool = True


def _lock(scene: Scene, **options: Any) -> Any:
    return scene.locks.lock(scene.name, ttl=20, **options)


def _plain(make: Callable[[Scene], Any], method: str, *args: Any, **options: Any) -> Callable[[Scene], Do]:
    """A method of what was made."""

    def prepare(scene: Scene) -> Do:
        target = make(scene)
        return lambda: scene.ask(target, method, *args, **options)

    return prepare


def _held(make: Callable[[Scene], Any], method: str, *args: Any, **options: Any) -> Callable[[Scene], Do]:
    """A method of a lease."""

    def prepare(scene: Scene) -> Do:
        lease = scene.ask(make(scene), "acquire")
        return lambda: scene.ask(lease, method, *args, **options)

    return prepare


def _looked_at(make: Callable[[Scene], Any], method: str) -> Callable[[Scene], Do]:
    """A look at what is held."""

    def prepare(scene: Scene) -> Do:
        target = make(scene)
        scene.ask(target, "acquire")
        return lambda: scene.ask(target, method)

    return prepare


def _read(scene: Scene) -> Any:
    return scene.locks.rwlock(scene.name, ttl=20).read()


def _write(scene: Scene) -> Any:
    return scene.locks.rwlock(scene.name, ttl=20).write()


def _looked_at_readers(method: str) -> Callable[[Scene], Do]:
    def prepare(scene: Scene) -> Do:
        scene.ask(_read(scene), "acquire")
        rwlock = scene.locks.rwlock(scene.name, ttl=20)
        return lambda: scene.ask(rwlock, method)

    return prepare


def _semaphore(scene: Scene) -> Any:
    return scene.locks.semaphore(scene.name, permits=3, ttl=20)


def _multilock(scene: Scene) -> Any:
    return scene.locks.multilock(scene.name, f"{scene.name}-2", ttl=20)


def _event(scene: Scene) -> Any:
    return scene.locks.event(scene.name)


def _latch(scene: Scene) -> Any:
    return scene.locks.latch(scene.name, 2)


def _barrier(scene: Scene) -> Any:
    return scene.locks.barrier(scene.name, 1)


def _election(scene: Scene) -> Any:
    return scene.locks.election(scene.name, ttl=20)


def _condition(method: str, *args: Any, **options: Any) -> Callable[[Scene], Do]:
    def prepare(scene: Scene) -> Do:
        lock = _lock(scene)
        scene.ask(lock, "acquire")
        condition = scene.locks.condition(getattr(lock, "_target", lock))
        return lambda: scene.ask(condition, method, *args, **options)

    return prepare


def _set_event(scene: Scene) -> Do:
    event = _event(scene)
    scene.ask(event, "set")
    return lambda: scene.ask(event, "wait", timeout=20)


def _led(method: str) -> Callable[[Scene], Do]:
    def prepare(scene: Scene) -> Do:
        election = _election(scene)
        scene.ask(election, "campaign")
        return lambda: scene.ask(election, method)

    return prepare


def _guarded_set(scene: Scene) -> Do:
    client = getattr(scene.locks, "_target", scene.locks)

    class Call:
        """So that an actor can do it."""

        def guarded_set(self) -> Any:
            return fencing.guarded_set(client, scene.name, "x", 7)

    call = Call()
    return lambda: scene.ask(call, "guarded_set")


def _optimistic(scene: Scene) -> Do:
    def add(tx: Any) -> Any:
        value = yield tx.get(scene.name)
        tx.set(scene.name, int(value or 0) + 1)
        return True

    optimistic = scene.locks.optimistic(scene.name)
    return lambda: scene.ask(optimistic, "run", function_for(scene.api, add))


OPERATIONS: tuple[Operation, ...] = (
    Operation("Lock.acquire", _plain(_lock, "acquire", timeout=20)),
    Operation("Lock.try_acquire", _plain(_lock, "try_acquire")),
    Operation("Lock.locked", _looked_at(_lock, "locked")),
    Operation("Lock.holder", _looked_at(_lock, "holder")),
    Operation("Lock.waiters", _looked_at(_lock, "waiters")),
    Operation("Lock.last_fencing_token", _looked_at(_lock, "last_fencing_token")),
    Operation("Lease.extend", _held(_lock, "extend", 30)),
    Operation("Lease.release", _held(_lock, "release")),
    Operation("ReadLock.acquire", _plain(_read, "acquire", timeout=20)),
    Operation("ReadLock.try_acquire", _plain(_read, "try_acquire")),
    Operation("ReadLease.extend", _held(_read, "extend", 30)),
    Operation("ReadLease.release", _held(_read, "release")),
    Operation("ReadLease.upgrade", _held(_read, "upgrade", timeout=20)),
    Operation("WriteLock.acquire", _plain(_write, "acquire", timeout=20)),
    Operation("WriteLock.try_acquire", _plain(_write, "try_acquire")),
    Operation("WriteLease.extend", _held(_write, "extend", 30)),
    Operation("WriteLease.release", _held(_write, "release")),
    Operation("WriteLease.downgrade", _held(_write, "downgrade")),
    Operation("RWLock.readers", _looked_at_readers("readers")),
    Operation("RWLock.writing", _looked_at_readers("writing")),
    Operation("RWLock.waiters", _looked_at_readers("waiters")),
    Operation("Semaphore.acquire", _plain(_semaphore, "acquire", timeout=20)),
    Operation("Semaphore.try_acquire", _plain(_semaphore, "try_acquire", permits=2)),
    Operation("Semaphore.available", _looked_at(_semaphore, "available")),
    Operation("Semaphore.permits", _looked_at(_semaphore, "permits")),
    Operation("Semaphore.waiters", _looked_at(_semaphore, "waiters")),
    Operation("Semaphore.resize", _plain(_semaphore, "resize", 5)),
    Operation("SemaphoreLease.extend", _held(_semaphore, "extend", 30)),
    Operation("SemaphoreLease.release", _held(_semaphore, "release")),
    Operation("MultiLock.acquire", _plain(_multilock, "acquire", timeout=20)),
    Operation("MultiLock.try_acquire", _plain(_multilock, "try_acquire")),
    Operation("MultiLockLease.extend", _held(_multilock, "extend", 30)),
    Operation("MultiLockLease.release", _held(_multilock, "release")),
    Operation("Condition.wait", _condition("wait", timeout=0.05)),
    Operation("Condition.notify", _condition("notify")),
    Operation("Condition.notify_all", _condition("notify_all")),
    Operation("Event.set", _plain(_event, "set")),
    Operation("Event.clear", _plain(_event, "clear")),
    Operation("Event.is_set", _plain(_event, "is_set")),
    Operation("Event.wait", _set_event),
    Operation("CountDownLatch.count_down", _plain(_latch, "count_down")),
    Operation("CountDownLatch.remaining", _plain(_latch, "remaining")),
    Operation("CountDownLatch.wait", _plain(_latch, "wait", timeout=0.05)),
    Operation("Barrier.wait", _plain(_barrier, "wait", timeout=20)),
    Operation("Barrier.abort", _plain(_barrier, "abort")),
    Operation("Barrier.reset", _plain(_barrier, "reset")),
    Operation("Barrier.n_waiting", _plain(_barrier, "n_waiting")),
    Operation("Barrier.broken", _plain(_barrier, "broken")),
    Operation("Barrier.generation", _plain(_barrier, "generation")),
    Operation("Election.campaign", _plain(_election, "campaign", timeout=20)),
    Operation("Election.resign", _led("resign")),
    Operation("Election.leader", _led("leader")),
    Operation("Client.compare_and_set", _plain(lambda scene: scene.locks, "compare_and_set", unique("cas"), "a", "b")),
    Operation("fencing.guarded_set", _guarded_set),
    Operation("Optimistic.run", _optimistic, strict=False),
)

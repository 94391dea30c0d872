"""What a client for threads makes beside locks. Sends nothing: what is made talks to the server when it is used."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, cast, overload

from holdfast._core.optimistic import Value
from holdfast._core.redlock import Quorum
from holdfast._core.replicas import Replicas
from holdfast._faces.naming import name_of
from holdfast._faces.options import (
    COUNT_MAX,
    PARTIES_MAX,
    PERMITS_MAX,
    Duration,
    check_bool,
    check_count,
    check_name,
    check_names,
    check_sync_replicas,
    max_hold_of,
    timeout_of,
    ttl_ms_of,
)
from holdfast.errors import ConfigurationError

if TYPE_CHECKING:
    from holdfast._faces.threads import Client, Lock
    from holdfast._faces.threads_family import (
        Barrier,
        Condition,
        CountDownLatch,
        Election,
        Event,
        MultiLock,
        Optimistic,
        RWLock,
        Semaphore,
    )

__all__ = ["Makers"]

P = ParamSpec("P")
R = TypeVar("R")


class Makers:
    """The part of a client that makes other things than locks."""

    _ttl_ms: int
    _renew: bool
    _max_hold_ms: int | None
    _sync_replicas: int | Literal["all"] | None
    _quorum: Quorum | None

    def _not_over_quorum(self, what: str) -> None:
        if self._quorum is not None:
            raise ConfigurationError(
                "client",
                self,
                f"{what} needs one server that decides (a single one, Sentinel or Cluster): "
                "votes of independent servers do not add up to it",
            )

    def _lease_options(
        self, ttl: Duration | None, renew: bool | None, max_hold: Duration | None
    ) -> tuple[int, bool, int | None]:
        return (
            self._ttl_ms if ttl is None else ttl_ms_of(ttl),
            self._renew if renew is None else check_bool("renew", renew),
            self._max_hold_ms if max_hold is None else max_hold_of(max_hold),
        )

    def _sync_option(self, sync_replicas: int | Literal["all"] | None) -> int | Literal["all"] | None:
        return self._sync_replicas if sync_replicas is None else check_sync_replicas(sync_replicas)

    def _sync_of(self, sync_replicas: int | Literal["all"] | None) -> Replicas | None:
        return cast("Client", self)._replicas_for(self._sync_option(sync_replicas))

    def rwlock(
        self,
        name: str,
        *,
        ttl: Duration | None = None,
        renew: bool | None = None,
        max_hold: Duration | None = None,
        sync_replicas: int | Literal["all"] | None = None,
    ) -> RWLock:
        """A shared lock called `name`: any number of readers or one writer, in the order of their coming.

            with locks.rwlock("catalogue").read():
                ...

        `read()` and `write()` give what can be acquired. The writer is the holder of `lock(name)`: the two exclude each
        other, and readers exclude both. The options are those of `lock`; every reader's time is its own. An upgrade or
        downgrade keeps them: `max_hold` counts from the first lease on.
        """
        self._not_over_quorum("a shared lock")
        from holdfast._faces.threads_family import RWLock

        return RWLock(
            cast("Client", self),
            check_name(name),
            *self._lease_options(ttl, renew, max_hold),
            self._sync_of(sync_replicas),
        )

    def semaphore(
        self,
        name: str,
        permits: int | None = None,
        *,
        ttl: Duration | None = None,
        renew: bool | None = None,
        max_hold: Duration | None = None,
        sync_replicas: int | Literal["all"] | None = None,
    ) -> Semaphore:
        """A semaphore called `name`, with `permits` (1 to 10,000) to be held at a time.

            with locks.semaphore("api", permits=3):
                ...

        All clients declare the same `permits`, or None to take what is there; another number raises
        `DeclarationMismatch` when it is used. `resize` changes it for all. Not related to the lock of that name. The
        other options are those of `lock`.
        """
        self._not_over_quorum("a semaphore")
        from holdfast._faces.threads_family import Semaphore

        declared = 0 if permits is None else check_count("permits", permits, 1, PERMITS_MAX)
        return Semaphore(
            cast("Client", self),
            check_name(name),
            *self._lease_options(ttl, renew, max_hold),
            self._sync_of(sync_replicas),
            declared,
        )

    def multilock(
        self,
        *names: str,
        ttl: Duration | None = None,
        renew: bool | None = None,
        max_hold: Duration | None = None,
        sync_replicas: int | Literal["all"] | None = None,
    ) -> MultiLock:
        """Several locks (1 to 100) at once, under one lease: all or none.

            with locks.multilock("account:1", "account:2") as lease:
                ...

        The order of the names does not matter: nobody waits for somebody who waits for him. While one of them is waited
        for, those before it (in the server's order) may be held already. One fencing token for all. The options are
        those of `lock`.
        """
        self._not_over_quorum("several locks at once")
        from holdfast._faces.threads_family import MultiLock

        return MultiLock(
            cast("Client", self),
            check_names(names),
            *self._lease_options(ttl, renew, max_hold),
            self._sync_of(sync_replicas),
        )

    def condition(self, lock: Lock, name: str = "default") -> Condition:
        """A condition of `lock` (one that this client made), to wait for what other holders of the lock do.

        `name` tells apart several conditions of one lock. What replicas have to acknowledge is the lock's affair: a
        wait that ends holds the lock again as `sync_replicas` of the lock demands.
        """
        self._not_over_quorum("a condition")
        from holdfast._faces.threads import Lock
        from holdfast._faces.threads_family import Condition

        made_by = getattr(lock, "_client", None)
        if type(lock) is not Lock or made_by is not self:
            raise ConfigurationError("lock", lock, "a lock that this client has made")
        return Condition(lock, check_name(name))

    def latch(self, name: str, count: int, *, keep: Duration = 86_400) -> CountDownLatch:
        """A latch called `name` that opens after `count` (1 to 1e9) count-downs, once and for good.

        All declare the same `count`. The server forgets it `keep` seconds after its last use.
        """
        self._not_over_quorum("a latch")
        from holdfast._faces.threads_family import CountDownLatch

        declared = check_count("count", count, 1, COUNT_MAX)
        return CountDownLatch(cast("Client", self), check_name(name), declared, ttl_ms_of(keep, "keep"))

    def event(self, name: str, *, keep: Duration = 86_400) -> Event:
        """An event called `name`, as `threading.Event`, for processes anywhere.

        The server forgets that it was set `keep` seconds after its last use.
        """
        self._not_over_quorum("an event")
        from holdfast._faces.threads_family import Event

        return Event(cast("Client", self), check_name(name), ttl_ms_of(keep, "keep"))

    def barrier(self, name: str, parties: int, *, keep: Duration = 86_400) -> Barrier:
        """A barrier called `name` for `parties` (1 to 1,000), as `threading.Barrier`, for processes anywhere.

        All declare the same `parties`. The server forgets it `keep` seconds after its last use.
        """
        self._not_over_quorum("a barrier")
        from holdfast._faces.threads_family import Barrier

        declared = check_count("parties", parties, 1, PARTIES_MAX)
        return Barrier(cast("Client", self), check_name(name), declared, ttl_ms_of(keep, "keep"))

    def election(
        self,
        name: str,
        *,
        ttl: Duration | None = None,
        renew: bool | None = None,
        max_hold: Duration | None = None,
        sync_replicas: int | Literal["all"] | None = None,
    ) -> Election:
        """An election called `name`: of all who campaign, one leads at a time, as long as it renews its lease.

        The options are those of `lock`.
        """
        from holdfast._faces.threads_family import Election

        sync = self._sync_option(sync_replicas)
        return Election(cast("Client", self), check_name(name), *self._lease_options(ttl, renew, max_hold), sync)

    def optimistic(self, *keys: str, attempts: int = 50) -> Optimistic:
        """Change `keys` (of the server, as they are; in a Cluster of one slot) without a lock; see `Optimistic`."""
        self._not_over_quorum("an optimistic write")
        from holdfast._faces.threads_family import Optimistic

        checked = check_names(keys)
        return Optimistic(cast("Client", self), checked, check_count("attempts", attempts, 1, 1_000_000))

    def compare_and_set(
        self,
        key: str,
        expected: Value | None,
        new: Value,
        *,
        ttl: Duration | None = None,
        keep_ttl: bool = False,
    ) -> bool:
        """Set `key` (of the server, as it is) to `new` if it holds `expected`; None expects that there is no such key.

        `ttl`: lifetime of the key in seconds; `keep_ttl`: leave the one it has; neither: it lives for ever. One command
        where the server has SET … IFEQ (Valkey 8.1, Redis 8.4), a script elsewhere. Returns whether it was set. Raises
        `OutcomeUnknown` when the answer was lost: it is not repeated, since that answer could mislead.
        """
        self._not_over_quorum("compare_and_set")
        from holdfast._faces.threads_family import compare_and_set

        return compare_and_set(cast("Client", self), key, expected, new, ttl, keep_ttl)

    @overload
    def locked(
        self,
        template: str,
        *,
        skip_if_held: Literal[False] = False,
        timeout: Duration | None = None,
        ttl: Duration | None = None,
        renew: bool | None = None,
        max_hold: Duration | None = None,
        reentrant: bool = False,
        sync_replicas: int | Literal["all"] | None = None,
    ) -> Callable[[Callable[P, R]], Callable[P, R]]: ...

    @overload
    def locked(
        self,
        template: str,
        *,
        skip_if_held: Literal[True],
        timeout: Duration | None = None,
        ttl: Duration | None = None,
        renew: bool | None = None,
        max_hold: Duration | None = None,
        reentrant: bool = False,
        sync_replicas: int | Literal["all"] | None = None,
    ) -> Callable[[Callable[P, R]], Callable[P, R | None]]: ...

    def locked(
        self,
        template: str,
        *,
        skip_if_held: bool = False,
        timeout: Duration | None = None,
        ttl: Duration | None = None,
        renew: bool | None = None,
        max_hold: Duration | None = None,
        reentrant: bool = False,
        sync_replicas: int | Literal["all"] | None = None,
    ) -> Any:
        """Decorator: the function runs under a lock whose name is made from its arguments.

            @locks.locked("order:{order_id}")
            def ship(order_id: int) -> None: ...

        `template`: a format string over the function's parameters. `timeout`: seconds to wait for the lock, then
        `AcquireTimeout`. `skip_if_held`: do not wait and return None when somebody else holds it. The other
        options are those of `lock`. Signature and types are kept. A loss is raised at the end, as by `with`.
        """
        from holdfast._faces.threads_family import locked

        options = {
            "ttl": ttl,
            "renew": renew,
            "max_hold": max_hold,
            "reentrant": reentrant,
            "sync_replicas": sync_replicas,
        }
        return locked(
            cast("Client", self), template, check_bool("skip_if_held", skip_if_held), timeout_of(timeout), options
        )

    def _fenced_set(self, key: str, value: Value, fencing_token: int, ttl_ms: int | None, remember_ms: int) -> None:
        from holdfast._faces.threads_family import fenced_set

        self._not_over_quorum("a guarded write")
        fenced_set(cast("Client", self), key, value, fencing_token, ttl_ms, remember_ms)

    def lock_for(self, subject: object, **options: Any) -> Lock:
        """The lock of an object that says what identifies it, by an attribute or method `__lock_name__`.

        `options` are those of `lock`.
        """
        return cast("Client", self).lock(name_of(subject), **options)

"""What locks know of the client that made them: where to ask, under which names, and who owns what.

Locks know the session and not the client, which knows them all: that is what keeps the imports free of circles. How a
session begins and ends is in `lifecycle.py`.
"""

from __future__ import annotations

import itertools
import os
import time
import weakref
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, Literal, NoReturn

from holdfast._api.acquirable import Asked
from holdfast._api.client_info import CLIENT_INFO_MS, introduction
from holdfast._api.endpoints import Api, Members, settings_for, topology_of
from holdfast._api.options import Options
from holdfast._core.by_turns import ByTurns
from holdfast._core.describe import Witness, introduce
from holdfast._core.exclusive import Exclusive, OneServer, OverQuorum
from holdfast._core.failure import RequestFailed
from holdfast._core.keys import client_key, inbox_prefix, lock_keys
from holdfast._core.kinds import LEASED
from holdfast._core.plain import Scripts
from holdfast._core.replicas import Replicas
from holdfast._core.settings import Settings
from holdfast._core.snapshot import snapshot
from holdfast._core.tokens import MARK, make_token, owner_of
from holdfast._runtime.lazily import lazily
from holdfast.errors import ConfigurationError

#: Locks whose objects share what does not change; beyond, all are forgotten, and made again.
_SHARED_MAX = 1_000
#: Descriptions of other clients that are remembered.
_TOLD_MAX = 10_000


class SessionBase:
    """The part of a session that is the same in both APIs."""

    #: The front of its API, what makes it, and the API.
    driver: Any
    _front: Any
    _api: Api
    has_ended: Callable[[int], bool]

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a client, and what it makes, belongs to one process: call holdfast.connect(url) in the other one, and "
            "pass names to it; `lease.handle()` makes text of a lease that goes on there"
        )

    def __init__(self, redis_client: Any, namespace: str | None, settings: Settings, reports: Any) -> None:
        topology = topology_of(redis_client, self._api)
        #: Whether keys move from node to node.
        self.moves = topology.moves
        self.namespace = namespace
        self.settings = settings = settings_for(redis_client, settings)
        self.quorum = redis_client.quorum(topology.nodes(), settings) if isinstance(redis_client, Members) else None
        #: Who is told what happens: `Reports`.
        self.reports: Any = reports
        #: Numbers of tokens.
        self.sequence = itertools.count(1)
        #: Leases by what is held and who holds it.
        self.owners: dict[tuple[str, int], weakref.ref[Any]] = {}
        self._shared: dict[Hashable, ByTurns] = {}
        self.scripts = Scripts()
        self._replicas: dict[int | None, Replicas] = {}
        self._detector: Any = None
        self.driver = self._front(topology, os.urandom(12).hex(), inbox_prefix(namespace), settings, reports)
        #: By their tokens, what asks for a lease.
        self.asking: dict[str, Asked] = self.driver.asking
        #: The `check` of acquires that do not look for deadlocks.
        self.witness: Witness | None = None
        if self.quorum is None and namespace is not None:
            self.witness = Witness(namespace, settings, partial(_held_by, self.owners), partial(_where, self.asking))
        #: What other clients say of themselves, by their ids, and of leases, by tokens, as far as it was asked for.
        self.told_by: dict[str, bytes] = {}
        #: By (kind, name): the fencing token of the last look, and for how many more looks grants are counted.
        self.looks: dict[tuple[str, str], tuple[int, int]] = {}
        self.driver.belong_to(self)

    def shared(self, what: Hashable, make: Callable[[], ByTurns]) -> ByTurns:
        """Return how `what` is acquired; `make` makes that where it is not known yet."""
        # The first requests of those from before the server refused scripts are scripts.
        how = None if self.scripts.refused else self._shared.get(what)
        if how is None:
            if len(self._shared) >= _SHARED_MAX:
                self._shared.clear()
            how = self._shared[what] = make()
        return how

    def exclusive(self, kind: str, name: str, options: Options) -> Exclusive:
        """Make what all locks of that kind and name with these options have in common."""
        crash_ms = options.crash_release_ms if kind == "lock" else 0
        keys = lock_keys(self.namespace, name).of(LEASED[kind])
        made: Exclusive
        if self.quorum is None:
            made = OneServer(keys, self.settings, self.replicas_for(options.sync_replicas), self.scripts)
            # (A turn that waits inside of the client is not seen by those that look for deadlocks, nor counted.)
            seen = (options.deadlock_check_s, options.queue_limit, options.sync_replicas, options.note_text)
            usual = kind == "lock" and not (crash_ms or self.scripts.refused) and seen == (None,) * 4
            made.in_line = usual and self.settings.tenure_ms > 0
        else:
            for option, value, allowed in (
                ("queue_limit", options.queue_limit, "0, or None: a quorum has no queue"),
                ("sync_replicas", options.sync_replicas, "None over a quorum: its members have no replicas"),
                ("crash_release", crash_ms / 1000, "0, or None: not over a quorum"),
            ):
                if value:
                    raise ConfigurationError(option, value, allowed)
            made = OverQuorum(keys, self.settings, self.quorum)
        made.crash_ms = crash_ms
        return made

    def checks(self, label: str, name: str, options: Options) -> Callable[[], Any] | None:
        """Return a function that makes one acquire's checks for deadlocks; None if none are asked for."""
        every_s, witness = options.deadlock_check_s, self.witness
        if every_s is None:
            return None
        if witness is None:
            allowed = "None over a quorum, which has no queue, and without a namespace, where any key may be a lock"
            raise ConfigurationError("deadlock_check", every_s, allowed)

        def check() -> Any:
            detected = lazily("holdfast._api.deadlocks").detected
            claim, error = partial(self.new_token, "deadlock"), partial(detected, name, label)
            return lazily("holdfast._core.detecting").Check(self.detector(), witness, every_s, claim, error)

        return check

    def detector(self) -> Any:
        if self._detector is None and self.namespace is not None:
            detecting = lazily("holdfast._core.detecting")
            self._detector = detecting.Detector(self.namespace, not self.moves, self.settings, self.masters)
        return self._detector

    def replicas_for(self, sync_replicas: int | Literal["all"] | None) -> Replicas | None:
        """Return the replicas that have to acknowledge, and what is known of them."""
        if sync_replicas is None:
            return None
        wanted = None if sync_replicas == "all" else sync_replicas
        return self._replicas.setdefault(wanted, Replicas(wanted))

    def hear(self, whose: str, told: bytes | None) -> None:
        """Remember what is said of a client, or by a token of its lease; that nothing is said may change."""
        if told is not None:
            if len(self.told_by) >= _TOLD_MAX:
                self.told_by.clear()
            self.told_by[whose] = told

    def disown(self, lease: Any) -> None:
        """Forget a lease that holds nothing any more. Takes no lock: finalizers call it."""
        owners, me, known = self.owners, lease._me, lease._record.lease
        for kind in lease._owned_as:
            if owners.get((kind, me)) is known:
                owners.pop((kind, me), None)

    def public(self, failure: RequestFailed) -> BaseException:
        """Return what users see of it. The engine may keep it on: without the frames of its callers."""
        failure.__traceback__ = None
        error: BaseException = failure.public()
        if failure.kind == "closed" and self.driver.closed:
            error = self.driver.closed_error()
        return error

    def me(self) -> int:
        """The thread or task that runs, by a number that no other one gets; 0 outside of a task of an event loop."""
        return self.driver.me()  # type: ignore[no-any-return]

    def new_token(self, owner: str | None = None) -> str:
        """Make a token for a request of this thread or task, or of `owner`."""
        driver = self.driver
        if driver.closed:
            raise driver.closed_error()
        return make_token(driver.client_id, driver.me() if owner is None else owner, next(self.sequence))

    def lease_of(self, owned_as: str) -> Any:
        """The lease by which this thread or task holds it, or did until that was lost; None when there is none."""
        held = self.owners.get((owned_as, self.driver.me()))
        return held() if held is not None else None

    def held(self) -> tuple[Any, ...]:
        """The leases of this thread or task."""
        me = self.driver.me()
        leases = [known() for (_, owner), known in snapshot(self.owners.items()) if owner == me]
        return tuple({id(lease): lease for lease in leases if lease is not None and lease.held}.values())

    def masters(self) -> int:
        """Return the number of servers that the keys are on, as far as is known."""
        return len(self.driver.topology.masters())

    def introduce(self, now: float) -> None:
        self.driver.introduce_at = now + CLIENT_INFO_MS / 2000
        key = client_key(self.namespace, self.driver.client_id)
        self.driver.spawn(introduce(key, partial(introduction, time.time()), CLIENT_INFO_MS))

    def __str__(self) -> str:
        nodes = ", ".join(node.name for node in self.driver.topology.nodes())
        state = "closed" if self.driver.closed else f"{len(self.driver.schedule)} leases"
        return f"{nodes}: {state}, namespace {self.namespace!r}"


# Not a method: a session that is part of a circle would not end with its client.
def _held_by(owners: dict[tuple[str, int], weakref.ref[Any]], token: str) -> list[str]:
    """The tokens by which who waits with that one holds something, where these do not say so."""
    party = owner_of(token)
    held = [lease() for (_, owner), lease in snapshot(owners.items()) if str(owner) == party]
    return [lease.token for lease in held if lease is not None and lease.token[-1] == MARK]


def _where(asking: dict[str, Asked], token: str) -> str:
    """The line of code that has called the acquire of that token."""
    found = asking.get(token)
    return "" if found is None else found.where

"""Reentrant locks, optimistic writes, compare-and-set and guarded writes through both APIs, against simple models."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

import holdfast
from holdfast import fencing
from testbed.servers import unique
from tests.support.apis import Actor, Api, function_for
from tests.support.scripts import run_machine

pytestmark = pytest.mark.usefixtures("nothing_left")


class Owned(RuleBasedStateMachine):
    """One reentrant lock, two clients with two threads or tasks each; the server's key may be stolen."""

    lock: list[Any]
    actors: list[Actor]
    raw: Any
    name: str

    def __init__(self) -> None:
        super().__init__()
        self.raw.delete(self.key())
        self.owner: int | None = None  # 0 and 1 are of the first client
        self.leases: list[Any] = []
        self.stolen = False
        self.last_fence = 0

    def key(self) -> str:
        return f"holdfast:{{{self.name}}}"

    @rule(who=st.integers(0, 3), timeout=st.sampled_from([None, 0]))
    def acquire(self, who: int, timeout: int | None) -> None:
        lock, actor = self.lock[who // 2], self.actors[who]
        free = self.owner is None and not self.stolen
        if timeout is None:
            lease = actor.ask(lock, "try_acquire")
        else:
            try:
                lease = actor.ask(lock, "acquire", timeout=timeout)
            except holdfast.AcquireTimeout:
                lease = None
        assert (lease is not None) == (free or self.owner == who)
        if lease is None:
            return
        if self.leases:
            assert lease.token == self.leases[0].token, "the same lease"
            assert lease.fencing_token == self.leases[0].fencing_token == self.last_fence, "that of the outermost"
        else:
            assert lease.fencing_token > self.last_fence
            self.last_fence = lease.fencing_token
        self.owner = who
        self.leases.append(lease)

    @precondition(lambda self: self.leases)
    @rule(method=st.sampled_from(["acquire", "try_acquire"]))
    def not_reentrant(self, method: str) -> None:
        """The owner by another lock object that is not reentrant: told at once, instead of waiting for itself."""
        assert self.owner is not None
        plain = self.plain[self.owner // 2]
        if method == "try_acquire":
            assert self.actors[self.owner].ask(plain, method) is None
            return
        with pytest.raises(holdfast.AlreadyHeld, match="reentrant"):
            self.actors[self.owner].ask(plain, method)

    plain: list[Any]

    @precondition(lambda self: self.leases)
    @rule(anyone=st.integers(0, 3))
    def release(self, anyone: int) -> None:
        lease = self.leases.pop()
        if self.leases:
            self.actors[anyone].ask(lease, "release")
            return
        self.owner = None
        if self.stolen:
            with pytest.raises(holdfast.LeaseLost):
                self.actors[anyone].ask(lease, "release")
            assert self.raw.get(self.key()) == "a thief's"
        else:
            self.actors[anyone].ask(lease, "release")
        with pytest.raises((holdfast.LeaseReleased, holdfast.LeaseLost)):
            self.actors[anyone].ask(lease, "release")

    @precondition(lambda self: not self.stolen)
    @rule()
    def stolen_by_a_stranger(self) -> None:
        self.raw.set(self.key(), "a thief's", px=600_000)
        self.stolen = True

    @precondition(lambda self: self.stolen and not self.leases)
    @rule()
    def the_stranger_leaves(self) -> None:
        self.raw.delete(self.key())
        self.stolen = False

    @invariant()
    def server_and_model_agree(self) -> None:
        held = self.leases[0].token if self.leases else None
        assert self.raw.get(self.key()) == ("a thief's" if self.stolen else held)

    def teardown(self) -> None:
        while self.leases:
            self.release(0)


def test_reentrant_locks(api: Api, valkey_server: Any, look: Any, unique_name: str) -> None:
    clients = [api.connect(valkey_server.url, ttl=600) for _ in range(2)]
    Owned.name, Owned.raw = unique_name, look
    Owned.lock = [client.lock(unique_name, reentrant=True) for client in clients]
    Owned.plain = [client.lock(unique_name) for client in clients]
    Owned.actors = [api.actor() for _ in range(4)]
    run_machine(Owned, 20, 30)


VALUES = st.one_of(
    st.integers(-3, 3),
    st.sampled_from(["", "a", "é", "0", "-1", "a b\r\n", b"", b"\xff\x00", b"a", 0.5, "0.5"]),
)


def as_bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


class Swap(RuleBasedStateMachine):
    """compare_and_set by the server's own command and by script, each on a key of its own: always the same."""

    ways: list[Any]
    raw: Any

    def __init__(self) -> None:
        super().__init__()
        self.key = unique("cas")
        self.value: bytes | None = None
        self.lives: bool = False  # with a time to live

    def keys(self) -> list[str]:
        return [f"{self.key}-{number}" for number in range(len(self.ways))]

    @rule(
        expected=st.one_of(st.none(), st.just("what it is"), VALUES),
        new=VALUES,
        ttl=st.sampled_from([None, 500, "keep"]),
    )
    def change(self, expected: Any, new: Any, ttl: Any) -> None:
        if expected == "what it is":
            expected = self.value
        options = {"keep_ttl": True} if ttl == "keep" else {"ttl": ttl}
        done = [
            client.compare_and_set(key, expected, new, **options)
            for client, key in zip(self.ways, self.keys(), strict=True)
        ]
        wanted = None if expected is None else as_bytes(expected)
        matches = self.value == wanted
        assert done == [matches] * len(self.ways), (expected, self.value)
        if matches:
            self.lives = ttl == 500 or (ttl == "keep" and self.lives and expected is not None)
            self.value = as_bytes(new)

    @rule(value=st.one_of(st.none(), VALUES))
    def somebody_else_writes(self, value: Any) -> None:
        for key in self.keys():
            if value is None:
                self.raw.delete(key)
            else:
                self.raw.set(key, as_bytes(value))
        self.value, self.lives = None if value is None else as_bytes(value), False

    @invariant()
    def server_and_model_agree(self) -> None:
        for key in self.keys():
            assert self.raw.get(key) == self.value
            if self.value is not None:
                assert (self.raw.pttl(key) > 0) == self.lives

    def teardown(self) -> None:
        self.raw.delete(*self.keys())


def test_compare_and_set_both_ways(api: Api, valkey_server: Any, look_bytes: Any) -> None:
    native, scripted = api.connect(valkey_server.url), api.connect(valkey_server.url)
    inner = getattr(scripted, "_target", scripted)._session.scripts
    inner.ifeq = False
    Swap.ways, Swap.raw = [native, scripted], look_bytes
    run_machine(Swap, 30, 30)
    assert getattr(native, "_target", native)._session.scripts.ifeq is True, "this server has SET … IFEQ"
    assert inner.ifeq is False


class Told(Exception):
    """What a function may raise."""


class Together(RuleBasedStateMachine):
    """Optimistic changes of two numbers, with someone who writes in between now and then."""

    client: Any
    api: Api
    raw: Any
    attempts = 4

    def __init__(self) -> None:
        super().__init__()
        self.name = unique("optimistic")
        self.keys = (f"{{{self.name}}}a", f"{{{self.name}}}b")
        self.values = [0, 0]

    @rule(
        amount=st.integers(1, 9),
        meddled=st.integers(0, 5),
        which=st.integers(0, 1),
        end=st.sampled_from(["write", "write", "write", "nothing", "raise"]),
    )
    def transfer(self, amount: int, meddled: int, which: int, end: str) -> None:
        """From the first to the second; meanwhile `meddled` times someone adds one to either."""
        runs: list[tuple[int, int]] = []

        def move(tx: Any) -> Any:
            first = int((yield tx.get(self.keys[0])) or 0)
            second = int((yield tx.get(self.keys[1])) or 0)
            runs.append((first, second))
            if len(runs) <= meddled:
                self.raw.incr(self.keys[which])
                self.values[which] += 1
            if end == "raise":
                raise Told
            if end == "write":
                tx.set(self.keys[0], first - amount)
                tx.set(self.keys[1], second + amount)
            return first + second

        start = list(self.values)
        run = self.client.optimistic(*self.keys, attempts=self.attempts).run
        if end == "raise":
            with pytest.raises(Told):
                run(function_for(self.api, move))
            assert len(runs) == 1
        elif end == "nothing":
            assert run(function_for(self.api, move)) == sum(start), "nothing to write, nothing to conflict"
            assert len(runs) == 1
        elif meddled >= self.attempts:
            with pytest.raises(holdfast.OptimisticConflict, match=f"{self.attempts} attempts") as caught:
                run(function_for(self.api, move))
            assert caught.value.attempts == len(runs) == self.attempts
        else:
            assert run(function_for(self.api, move)) == sum(start) + meddled
            assert len(runs) == meddled + 1, "as often as it was disturbed, and once more"
            self.values[0] -= amount
            self.values[1] += amount
        for number, (first, second) in enumerate(runs):
            assert first + second == sum(start) + number, "what it decides on is of one moment"

    @invariant()
    def server_and_model_agree(self) -> None:
        assert [int(value or 0) for value in self.raw.mget(*self.keys)] == self.values
        watching = [each for each in self.raw.client_list() if int(each.get("watch", 0)) > 0]
        assert not watching, "no connection is left watching"

    def teardown(self) -> None:
        self.raw.delete(*self.keys)


def test_optimistic_writes(api: Api, private_server: Any) -> None:
    server = private_server()  # no one else watches anything there
    import redis

    connect: Any = redis.Redis.from_url
    with connect(server.url, decode_responses=True) as raw:
        Together.client, Together.api, Together.raw = api.connect(server.url), api, raw
        run_machine(Together, 20, 15)


class Guarded(RuleBasedStateMachine):
    """Guarded writes and the gate refuse the same tokens."""

    api: Api
    client: Any
    raw: Any

    def __init__(self) -> None:
        super().__init__()
        self.name = unique("guarded")
        self.keys = [f"{self.name}-{number}" for number in range(2)]
        self.gate = fencing.FenceGate()
        self.newest: dict[str, int] = {}
        self.values: dict[str, str | None] = dict.fromkeys(self.keys)
        self.lives: dict[str, bool] = {}

    @rule(
        which=st.integers(0, 1),
        token=st.one_of(st.integers(1, 6), st.integers(2**53 - 4, 2**53 - 1)),
        ttl=st.booleans(),
    )
    def write(self, which: int, token: int, ttl: bool) -> None:
        key = self.keys[which]
        seen = self.newest.get(key, 0)
        value = f"by {token}"
        actions: list[Any] = [
            lambda: self.gate.check(key, token),
            lambda: guarded(self.api, self.client, key, value, token, ttl=500 if ttl else None),
        ]
        for action in actions:
            if token >= seen:
                action()
                continue
            with pytest.raises(fencing.StaleFencingToken) as caught:
                action()
            assert (caught.value.resource, caught.value.token, caught.value.seen) == (key, token, seen)
        if token >= seen:
            self.newest[key], self.values[key], self.lives[key] = token, value, ttl

    @rule(which=st.integers(0, 1))
    def the_value_is_gone(self, which: int) -> None:
        """A value that was seen is remembered after it is gone."""
        self.raw.delete(self.keys[which])
        self.values[self.keys[which]] = None

    @invariant()
    def server_and_model_agree(self) -> None:
        for key in self.keys:
            assert self.raw.get(key) == self.values[key]
            if self.values[key] is not None:
                assert (self.raw.pttl(key) > 0) == self.lives[key]
            assert self.gate.newest(key) == self.newest.get(key)

    def teardown(self) -> None:
        self.raw.delete(*self.keys)


def guarded(api: Api, client: Any, key: str, value: str, token: int, **options: Any) -> Any:
    if api.name == "threads":
        return fencing.guarded_set(client, key, value, token, **options)
    return api.call(fencing.guarded_set, client._target, key, value, token, **options)  # type: ignore[attr-defined]


def test_guarded_writes(api: Api, far: Any, look: Any) -> None:
    Guarded.api, Guarded.client, Guarded.raw = api, far, look
    run_machine(Guarded, 20, 25)

"""What a user of the server (ACL) needs: with just these rights each primitive works, with one less it says which."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis

import holdfast
import holdfast.asyncio
from holdfast import embedded, fencing
from holdfast._core.rights import NEEDS, PRIMITIVES, missing, rights, rule, table
from holdfast._lua import SCRIPTS
from testbed.servers import unique
from testbed.waiting import eventually
from tests.support.engines import settle

#: Rights that a short life does not use, and what does.
RARE = {
    "eval": "a script that is not known to the node that a slot moves to",
    "script|load": "asyncio, and requests of many renewals: the threads API sends a script's text",
    "zremrangebyrank": "thousands of dead waiters",
    "zremrangebyscore": "readers and holders whose time is over",
    "zrangebyscore": "permits or readers that have expired",
    "zcount": "the same",
    "zpopmin": "a waiter that died at the head of the queue",
    "pubsub|numsub": "whether who is first in a queue is there",
    "publish": "waking who waits",
    "zrank": "a waiter that asks again for its place",
    "del": "the marks of given-back tokens",
    "exists": "a token that was given back before",
    "getrange": "a key that another program has written",
    "zscore": "a waiter that asks again",
    "discard": "a transaction that is given up",
    "unwatch": "the same",
    "zrange": "the order of waiters",
    "zcard": "how many wait",
    "zrem": "a waiter that gives up, in the background",
    "pttl": "what is left of another one's time",
    "get": "a token that is longer than ours",
    "hmget": "a generation of a barrier that is over",
}
#: A break hands on where there are waiters; of a quorum, what has been up for long need not say since when.
RARE_OF = {
    "break, ask": {"zadd", "pexpire"},
    "barrier": {"set"},  # where waiters ask
    "election": {"pexpire"},
    "quorum": {"info", "lastsave", "zadd", "pexpire"},
}


class Place:
    """A server, or the members of a quorum, with a user that has what a test gives it."""

    def __init__(self, *servers: embedded.Server) -> None:
        self.servers = servers
        self.admins: list[Any] = [redis.Redis.from_url(server.url, decode_responses=True) for server in servers]
        self.user = unique("acl")[-30:]
        self.url = self._url(f"{self.user}:pw@")
        #: The same, for a user that may do everything.
        self.free_url = self._url("")

    def _url(self, who: str) -> str:
        addresses = [f"{who if not at else ''}{each.host}:{each.port}" for at, each in enumerate(self.servers)]
        if len(addresses) == 1:
            return f"redis://{addresses[0]}"
        return f"redlock://{','.join(addresses)}?restart_delay=0"

    def beside(self) -> Place:
        """The same servers, with another user."""
        return Place(*self.servers)

    def allow(self, commands: list[str], keys: str = "~holdfast:*", channels: str = "&holdfast:inbox:*") -> None:
        given = rule(commands).replace("~holdfast:*", keys).replace("&holdfast:inbox:*", channels)
        for admin in self.admins:
            admin.execute_command("ACL", "SETUSER", self.user, "reset", "on", ">pw", *given.split())

    def denied(self) -> list[str]:
        """Return what was denied to the user, but for what libraries try on connecting."""
        return [
            entry["object"]
            for admin in self.admins
            for entry in admin.acl_log()
            if entry["username"] == self.user and not entry["object"].startswith(("client", "hello", "ping"))
        ]

    def close(self) -> None:
        for admin in self.admins:
            admin.execute_command("ACL", "DELUSER", self.user)
            admin.close()


@pytest.fixture
def start(private_server: Callable[..., embedded.Server], server_kind: Any) -> Iterator[Callable[[str], Place]]:
    """Makes the place for a row of the table."""
    made: list[Place] = []

    def start(row: str) -> Place:
        made.append(
            Place(
                *(
                    private_server(server_kind, config={"acllog-max-len": "10000"})
                    for _ in range(3 if row == "quorum" else 1)
                )
            )
        )
        return made[-1]

    yield start
    for place in made:
        place.close()


@pytest.fixture
def place(start: Callable[[str], Place]) -> Place:
    return start("")


class _Here(threading.local):
    place: Place
    name: str
    #: For how long a life waits for what is to come, s: longer where nothing is denied, as a machine may be busy.
    patience_s = 2.0


#: What this thread lives through.
_here = _Here()


@contextlib.contextmanager
def _until_queued() -> Iterator[None]:
    """Goes on after the body when that has left more keys on the server; not, if something was denied meanwhile."""
    place, name = _here.place, _here.name

    def keys() -> int:
        return sum(len(admin.keys(f"*{name}*")) for admin in place.admins)

    # Not for as long as lives wait: who gave up just before may leave its queue only now, so that there are no more.
    before, until = keys(), time.monotonic() + 1
    yield
    while keys() <= before and not place.denied() and time.monotonic() < until:
        time.sleep(0.01)


def _queued() -> int:
    """How many wait in queues. (None does over a quorum.)"""
    place, name = _here.place, _here.name
    return sum(admin.zcard(key) for admin in place.admins for key in admin.keys(f"*{name}*:queue"))


def _until(come: Callable[[], bool]) -> None:
    """Wait some seconds for that (over a quorum, where no one queues, one); not, if something was denied meanwhile."""
    until = time.monotonic() + (5 if len(_here.place.servers) == 1 else 1)
    while not come() and not _here.place.denied() and time.monotonic() < until:
        time.sleep(0.01)


def _hand_over(one: Any, two: Any) -> None:
    """Acquire, renew, wait for each other, release."""
    lease = one.acquire(timeout=5)
    lease.extend(5)
    with contextlib.suppress(holdfast.AcquireTimeout):
        two.acquire(timeout=0.02 if len(_here.place.servers) == 1 else 1)
    failed: list[BaseException] = []
    patience_s = _here.patience_s

    def wait() -> None:
        try:
            two.acquire(timeout=patience_s).release()
        except BaseException as error:
            failed.append(error)

    waiter = threading.Thread(target=wait)
    # Who gave up leaves by a request of its own, which may be repeated: later it would find the lock free, where what
    # it may not do is said to no one.
    settle(two)
    _until(lambda: _queued() == 0)
    waiter.start()
    _until(lambda: _queued() > 0 or not waiter.is_alive())
    try:
        lease.release()
    finally:
        waiter.join()
    if failed:
        raise failed[0]


def _lock(one: Any, two: Any, name: str) -> None:
    _hand_over(one.lock(name), two.lock(name))
    assert one.lock(name).status().holder is None
    assert one.lock(name).waiters() == 0


def _rwlock(one: Any, two: Any, name: str) -> None:
    _hand_over(one.rwlock(name).write(), two.rwlock(name).read())
    _hand_over(one.rwlock(name).read(), two.rwlock(name).write())
    reader = one.rwlock(name).read().acquire()
    reader.upgrade(timeout=_here.patience_s).downgrade().release()
    assert one.rwlock(name).status().readers == 0


def _semaphore(one: Any, two: Any, name: str) -> None:
    _hand_over(one.semaphore(name, 1), two.semaphore(name, 1))
    one.semaphore(name, 1).resize(2)
    assert one.semaphore(name).status().used == 0


def _multilock(one: Any, two: Any, name: str) -> None:
    _hand_over(one.multilock(name, f"{name}-2"), two.multilock(f"{name}-2", name))


def _condition(one: Any, two: Any, name: str) -> None:
    lock, other = one.lock(name), two.lock(name)
    condition, others = one.condition(lock), two.condition(other)

    def notify() -> None:
        with contextlib.suppress(holdfast.HoldfastError):
            time.sleep(0.05)
            with other:
                others.notify()

    notifier = threading.Thread(target=notify)
    with lock:
        notifier.start()
        try:
            assert condition.wait(timeout=5)
        finally:
            notifier.join()


def _election(one: Any, two: Any, name: str) -> None:
    with one.election(name):
        with pytest.raises(holdfast.AcquireTimeout):
            two.election(name).campaign(timeout=0.5)  # also on a busy machine it queues before that


def _gates(one: Any, two: Any, name: str) -> None:
    for gate, open_it in ((two.event(name), one.event(name).set), (two.latch(name, 1), one.latch(name, 1).count_down)):
        failed: list[BaseException] = []

        def wait(gate: Any = gate, failed: list[BaseException] = failed, patience_s: float = _here.patience_s) -> None:
            try:
                assert gate.wait(timeout=patience_s)
            except BaseException as error:
                failed.append(error)

        waiter = threading.Thread(target=wait)
        with _until_queued():
            waiter.start()
        try:
            open_it()
        finally:
            waiter.join()
        if failed:
            raise failed[0]


def _quietly(act: Callable[[], Any]) -> None:
    with contextlib.suppress(holdfast.HoldfastError):
        act()


def _barrier(one: Any, two: Any, name: str) -> None:
    patience_s = _here.patience_s
    other = threading.Thread(target=lambda: _quietly(lambda: two.barrier(name, 2).wait(timeout=patience_s)))
    with _until_queued():
        other.start()
    try:
        one.barrier(name, 2).wait(timeout=patience_s)
    finally:
        other.join()


def _optimistic(one: Any, two: Any, name: str) -> None:
    key = f"holdfast:{name}"

    def change(transaction: Any) -> None:
        transaction.set(key, int(transaction.get(key) or 0) + 1)

    one.optimistic(key).run(change)


def _compare_and_set(one: Any, two: Any, name: str) -> None:
    assert one.compare_and_set(f"holdfast:{name}", None, "a")
    assert one.compare_and_set(f"holdfast:{name}", "a", "b")


def _fencing(one: Any, two: Any, name: str) -> None:
    fencing.guarded_set(one, f"holdfast:{{{name}}}:value", "a", 5)


def _once(one: Any, two: Any, name: str) -> None:
    made, place = threading.Event(), _here.place

    def make(lease: Any = None) -> str:
        if not made.is_set():
            made.set()
            _here.place, _here.name = place, name
            _until(lambda: _queued() > 0)
        return "a"

    other = threading.Thread(
        target=lambda: _quietly(lambda: two.get_or_set(f"holdfast:{{{name}}}:value", make, expire=60))
    )
    other.start()
    try:
        made.wait(0.5)
        assert one.get_or_set(f"holdfast:{{{name}}}:value", make, expire=60, timeout=_here.patience_s + 3) == b"a"
    finally:
        other.join()
    assert one.once(name, make, retain=60).new
    assert not one.once(name, make, retain=60).new
    one.forget(name)


def _keep(one: Any, two: Any, name: str) -> None:
    one.lock(name, cache_for=2).acquire().release()
    one.lock(name, cache_for=2).acquire().release()
    _hand_over(two.lock(name), one.lock(name, cache_for=2))


def _tenure(one: Any, two: Any, name: str) -> None:
    failed: list[BaseException] = []
    patience_s = _here.patience_s

    def wait() -> None:
        try:
            one.lock(name).acquire(timeout=patience_s).release()
        except BaseException as error:
            failed.append(error)

    waiters = [threading.Thread(target=wait) for _ in range(2)]
    with one.lock(name):
        for each in waiters:
            each.start()
    for each in waiters:
        each.join()
    if failed:
        raise failed[0]
    _hand_over(two.lock(name), one.lock(name))


async def _tasks(url: str, name: str) -> None:
    """With asyncio: leases that are due together are renewed together, by a script that was loaded."""
    async with holdfast.asyncio.connect(url, ttl=6) as one, holdfast.asyncio.connect(url, ttl=6) as two:
        async with contextlib.AsyncExitStack() as stack:
            for at in range(3):
                await stack.enter_async_context(one.lock(f"{name}-{at}"))
            with contextlib.suppress(holdfast.AcquireTimeout):
                await (await two.lock(f"{name}-0").acquire(timeout=0.05)).release()
            await asyncio.sleep(2.5)  # after two, they are renewed
        async with two.lock(f"{name}-1"):
            pass


def _asyncio(place: Place, name: str) -> None:
    asyncio.run(_tasks(place.url, name))


#: What uses the rights of a row, by the name of the row and, where it has several lives, another word.
LIVES: dict[str, Callable[[Any, Any, str], None]] = {
    "lock": _lock,
    "lock/cache_for": _keep,
    "lock/tenure": _tenure,
    "rwlock": _rwlock,
    "semaphore": _semaphore,
    "multilock": _multilock,
    "condition": _condition,
    "election": _election,
    "latch, event": _gates,
    "barrier": _barrier,
    "optimistic": _optimistic,
    "compare_and_set": _compare_and_set,
    "fencing": _fencing,
    "once, get_or_set": _once,
    "quorum": lambda one, two, name: _hand_over(one.lock(name), two.lock(name)),
}


def _wait_for_itself(semaphore: Any, cancel: holdfast.Cancel) -> None:
    with semaphore:
        semaphore.acquire(timeout=60, cancel=cancel)


def _deadlocks(place: Place, name: str) -> None:
    cancel = holdfast.Cancel()
    with holdfast.connect(place.free_url) as owner, holdfast.connect(place.url) as one:
        thread = threading.Thread(target=_quietly, args=(partial(_wait_for_itself, owner.semaphore(name, 1), cancel),))
        thread.start()
        try:
            eventually(lambda: owner.semaphore(name).waiters() == 1)
            assert name in {party.name for found in one.deadlocks() for party in found.parties}
        finally:
            cancel.set()
            thread.join()


def _list(place: Place, name: str) -> None:
    with holdfast.connect(place.free_url) as owner, owner.lock(name), owner.semaphore(f"{name}-s", 2):
        with owner.rwlock(f"{name}-r").read(), holdfast.connect(place.url) as one:
            assert {found.name for found in one.list(f"{name}*")} == {name, f"{name}-s", f"{name}-r"}


def _grants(place: Place, name: str) -> None:
    with holdfast.connect(place.free_url) as owner, holdfast.connect(place.url) as one:
        for counts in (None, 0, 1):
            with owner.lock(name):
                (found,) = one.list(name, grants=True)
            assert place.denied() or found.grants == counts


def _watch(place: Place, name: str) -> None:
    with holdfast.connect(place.free_url) as owner, owner.lock(name), owner.semaphore(name, 2):
        with holdfast.connect(place.url) as one:
            seen = one.watch(name)
            assert {next(seen).what, next(seen).what} == {"held"}


def _break(place: Place, name: str) -> None:
    with holdfast.connect(place.free_url) as owner:
        held: list[Any] = [owner.lock(name, ttl=30), owner.semaphore(f"{name}-s", 2), owner.rwlock(f"{name}-r").read()]
        leases = [each.acquire() for each in held]
        with holdfast.connect(place.url) as one:
            assert one.ask(name).kind == "lock"
            for end in ("", "-s", "-r"):
                assert one.break_(f"{name}{end}", reason="test")
        for lease in leases:
            _quietly(lease.release)


#: The same, for those that need what others hold, or an API of their own.
BESIDE: dict[str, Callable[[Place, str], None]] = {
    "lock/asyncio": _asyncio,
    "list, top": _list,
    "grants a second (top, web)": _grants,
    "watch": _watch,
    "deadlocks, web": _deadlocks,
    "break, ask": _break,
}


def live(place: Place, life: str, patience_s: float = 2) -> None:
    """The life of a primitive, by the restricted user."""
    _here.patience_s = patience_s
    name = _here.name = unique("r")
    _here.place = place
    if life in BESIDE:
        BESIDE[life](place, name)
        return
    tenure = 0.05 if life == "lock/tenure" else 0.0
    ttl = 5 if len(place.servers) == 1 else 30  # a member of a quorum has a part of it to answer
    with holdfast.connect(place.url, ttl=ttl, tenure=tenure) as one, holdfast.connect(place.url, ttl=ttl) as two:
        LIVES[life](one, two, name)


def row_of(life: str) -> str:
    return life.partition("/")[0]


def test_every_row_of_the_table_is_lived() -> None:
    assert {script for scripts, _ in PRIMITIVES.values() for script in scripts} == set(SCRIPTS.keys())
    assert {row_of(life) for life in (*LIVES, *BESIDE)} == set(PRIMITIVES)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("life", sorted([*LIVES, *BESIDE]))
def test_just_these_rights_are_enough(start: Callable[[str], Place], life: str) -> None:
    place = start(row_of(life))
    place.allow(rights(row_of(life)))
    live(place, life, patience_s=60)
    time.sleep(0.05)  # what goes on in the background
    assert place.denied() == []


def test_all_of_them_are_enough_for_the_doctor(place: Place) -> None:
    place.allow([*rights(), *NEEDS["holdfast doctor"]])
    command = [sys.executable, "-m", "holdfast", "doctor", "--json", "--url", place.url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout
    assert place.denied() == []


def without(place: Place, life: str, right: str) -> str:
    """Play a life without that right: it "says" so, "fails" otherwise, is "quiet", or has not used it."""
    for _ in range(5):
        place = place.beside()  # another user each time: what was denied before would end waits
        place.allow([each for each in rights(row_of(life)) if each != right])
        try:
            live(place, life, 2 if len(place.servers) == 1 else 30)  # over a quorum, waiters look from time to time
        except (holdfast.ServerError, holdfast.QuorumUnreachable) as error:
            if "in time" in str(error):
                continue  # a busy machine
            named = rf"no permission: the user needs [^;]*{re.escape('+' + right)}( |;|$)"
            return "says" if re.search(named, str(error)) else f"says, without {right}: {error}"
        except holdfast.ServerUnreachable:
            continue
        except (holdfast.HoldfastError, AssertionError) as error:
            if isinstance(error, holdfast.OutcomeUnknown) and "in time" in str(error):
                continue
            return "fails" if place.denied() else f"fails for another reason without {right}: {error}"
        else:
            return "quiet" if place.denied() else "unused"
        finally:
            place.close()
    return f"never had an answer in time without {right}"


def without_each(place: Place, tries: list[tuple[str, str]]) -> list[str]:
    """Return what is said of each (right, life); some wait side by side."""
    with ThreadPoolExecutor(2 if len(place.servers) > 1 else 6) as pool:
        return list(pool.map(lambda each: without(place, each[1], each[0]), tries))


#: For each right, a life that cannot do without.
FELT = {
    **dict.fromkeys(("getrange", "scan", "time", "zcard", "zcount", "zrange", "zrangebyscore"), "list, top"),
    **dict.fromkeys(
        ("del", "exists", "get", "pexpire", "pttl", "pubsub|numsub", "subscribe", "zadd", "zpopmin", "zrank"),
        "multilock",
    ),
    **dict.fromkeys(("zrem", "zremrangebyscore"), "rwlock"),
    **dict.fromkeys(("publish", "zscore"), "break, ask"),
    **dict.fromkeys(("exec", "multi", "watch"), "optimistic"),
    **dict.fromkeys(("hmget", "hset"), "barrier"),
    "set": "fencing",
}
#: What is not said: ends of transactions that are given up; what concerns members of a quorum that were just started,
#: which then do not vote; what takes thousands of leases that nothing has released.
NOT_FELT = {"discard", "unwatch", "info", "lastsave", "zremrangebyrank"}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_each_right_of_the_table_is_named_where_it_is_missing(start: Callable[[str], Place]) -> None:
    assert {*FELT, *NOT_FELT, "eval", "evalsha", "script|load"} == set(rights())
    found = without_each(start(""), list(FELT.items()))
    assert dict(zip(FELT, found, strict=True)) == dict.fromkeys(FELT, "says")


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("row", PRIMITIVES)
def test_with_one_right_less_it_says_which(start: Callable[[str], Place], row: str) -> None:
    """With each right of the row missing, each of its lives."""
    needed = [right for right in rights(row) if right not in ("evalsha", "eval", "script|load")]  # see below
    tries = [(right, life) for right in needed for life in (*LIVES, *BESIDE) if row_of(life) == row]
    found = without_each(start(row), tries)
    said = {right: {each for (other, _), each in zip(tries, found, strict=True) if other == right} for right in needed}
    wrong = [each for each in found if each not in ("says", "fails", "quiet", "unused")]
    assert not wrong, wrong
    unused = {right for right in needed if said[right] == {"unused"}}
    assert unused <= set(RARE) | RARE_OF.get(row, set()), "a right that nothing uses"


def test_a_wait_that_may_not_look_for_deadlocks_says_so(place: Place) -> None:
    place.allow(rights("lock"))
    name = unique("r")
    with holdfast.connect(place.free_url) as owner, holdfast.connect(place.url) as one, owner.lock(name):
        with pytest.raises(holdfast.ServerError, match=r"no permission: the user needs \+scan"):
            one.lock(name, deadlock_check=0.1).acquire()
        place.allow(rights("lock", "deadlocks, web"))
        with pytest.raises(holdfast.AcquireTimeout):
            one.lock(name, deadlock_check=0.1).acquire(timeout=1)


def test_a_semaphore_without_scripts_is_refused(place: Place) -> None:
    place.allow([each for each in rights("semaphore") if each not in ("evalsha", "eval")])
    with pytest.raises(holdfast.ScriptRefused) as caught:
        live(place, "semaphore")
    assert "+evalsha" in str(caught.value)


def test_other_keys_and_other_channels_are_named(place: Place) -> None:
    place.allow(rights("lock"), keys="~other:*")
    with pytest.raises(holdfast.ServerError, match=r"no permission: the user needs ~holdfast:\*"):
        live(place, "lock")
    place.allow(rights("lock"), channels="&other:*")
    with pytest.raises(holdfast.ServerError, match=r"no permission: the user needs &holdfast:inbox:\*"):
        live(place, "lock")


@pytest.mark.parametrize("message", ["NOPERM nothing known", "ERR user_script:99999: denied"])
def test_what_is_not_known_is_not_said(message: str) -> None:
    assert missing(message, None) is None


def test_the_doctor_prints_the_table() -> None:
    def doctor(*words: str) -> str:
        command = [sys.executable, "-m", "holdfast", "doctor", "--rights", *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=100, check=True).stdout

    printed = doctor()
    for what, line in table():
        assert f"{what}\n  {line}\n" in printed
    assert json.loads(doctor("--json", "--namespace", "app"))["rights"] == dict(table("app"))


@pytest.mark.parametrize("page", ["operations.md", "operations.zh-CN.md"])
def test_the_documentation_has_the_table(page: str) -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / page).read_text(encoding="utf-8")
    assert f"ACL SETUSER locks on >PASSWORD {rule(rights())}\n" in text
    found = re.findall(r"^\| (.+) \| `(\+.+)` \|$", text, re.MULTILINE)
    for primitive in PRIMITIVES:
        granted = " ".join("+" + right for right in rights(primitive))
        for each in primitive.split(", "):
            assert [shown for what, shown in found if each in what.split(", ")] == [granted], each
    for more in NEEDS.values():
        assert f"| `{' '.join('+' + right for right in more)}` |\n" in text

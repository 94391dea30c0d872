"""What a user of the server (ACL) needs: with just these rights each primitive works, with one less it says which."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis

import holdfast
from holdfast import embedded, fencing
from holdfast._core.rights import NEEDS, PRIMITIVES, missing, rights, rule, table
from holdfast._lua import SCRIPTS
from testbed.servers import unique
from testbed.waiting import eventually

#: Rights that a short life does not use, and what does.
RARE = {
    "eval": "a script that is not known to the node that a slot moves to",
    "script|load": "asyncio, and requests of many renewals: the threads API sends a script's text",
    "zremrangebyrank": "thousands of dead waiters",
    "zremrangebyscore": "readers and holders whose time is over",
    "zrangebyscore": "permits or readers that have expired",
    "zcount": "the same",
    "zpopmin": "a waiter that died at the head of the queue",
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
#: A break hands the lock over where there are waiters.
RARE_OF = {"break, ask": {"zadd", "zrem", "pexpire", "publish"}}


class Place:
    """One server, with a user that has what a test gives it."""

    def __init__(self, server: embedded.Server) -> None:
        self.server = server
        self.admin: Any = redis.Redis.from_url(server.url, decode_responses=True)
        self.user = unique("acl")[-30:]
        self.url = f"redis://{self.user}:pw@{server.host}:{server.port}"

    def allow(self, commands: list[str], keys: str = "~holdfast:*", channels: str = "&holdfast:inbox:*") -> None:
        given = rule(commands).replace("~holdfast:*", keys).replace("&holdfast:inbox:*", channels)
        self.admin.execute_command("ACL", "SETUSER", self.user, "reset", "on", ">pw", *given.split())

    def denied(self) -> list[str]:
        """What was denied to the user, but for what libraries try on connecting."""
        return [
            entry["object"]
            for entry in self.admin.acl_log()
            if entry["username"] == self.user and not entry["object"].startswith(("client", "hello", "ping"))
        ]

    def used(self) -> set[str]:
        """The commands that were run since `admin.config_resetstat()`."""
        return {name.removeprefix("cmdstat_").lower() for name in self.admin.info("commandstats")}

    def close(self) -> None:
        self.admin.execute_command("ACL", "DELUSER", self.user)
        self.admin.close()


@pytest.fixture
def place(private_server: Callable[..., embedded.Server], server_kind: Any) -> Iterator[Place]:
    made = Place(private_server(server_kind))
    yield made
    made.close()


def _hand_over(one: Any, two: Any) -> None:
    """Acquire, renew, wait for each other, release."""
    lease = one.acquire(timeout=5)
    lease.extend(5)
    with contextlib.suppress(holdfast.AcquireTimeout):
        two.acquire(timeout=0.02)
    failed: list[BaseException] = []

    def wait() -> None:
        try:
            two.acquire(timeout=2).release()
        except BaseException as error:
            failed.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    try:
        time.sleep(0.05)
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
    reader.upgrade(timeout=1).downgrade().release()
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
            two.election(name).campaign(timeout=0.05)


def _gates(one: Any, two: Any, name: str) -> None:
    event = two.event(name)
    setter = threading.Timer(0.05, lambda: _quietly(one.event(name).set))
    setter.start()
    try:
        assert event.wait(timeout=2)
    finally:
        setter.join()
    one.latch(name, 1).count_down()
    assert two.latch(name, 1).wait(timeout=2)


def _quietly(act: Callable[[], Any]) -> None:
    with contextlib.suppress(holdfast.HoldfastError):
        act()


def _barrier(one: Any, two: Any, name: str) -> None:
    other = threading.Thread(target=lambda: _quietly(lambda: two.barrier(name, 2).wait(timeout=2)))
    other.start()
    try:
        one.barrier(name, 2).wait(timeout=2)
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


def _list(one: Any, two: Any, name: str) -> None:
    assert list(one.list("no such lock")) == []


def _deadlocks(one: Any, two: Any, name: str) -> None:
    assert one.deadlocks() == ()


def _break(one: Any, two: Any, name: str) -> None:
    two.break_(name)
    two.ask(name)


LIVES: dict[str, Callable[[Any, Any, str], None]] = {
    "lock": _lock,
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
    "list": _list,
    "deadlocks": _deadlocks,
    "break, ask": _break,
}


def _wait_for_itself(semaphore: Any, cancel: holdfast.Cancel) -> None:
    with semaphore:
        semaphore.acquire(timeout=60, cancel=cancel)


def live(place: Place, primitive: str) -> None:
    """The life of a primitive, by the restricted user."""
    place.admin.script_flush()
    name = unique("r")
    if primitive == "deadlocks":
        cancel = holdfast.Cancel()
        with holdfast.connect(place.server.url) as owner, holdfast.connect(place.url) as one:
            thread = threading.Thread(
                target=_quietly, args=(partial(_wait_for_itself, owner.semaphore(name, 1), cancel),)
            )
            thread.start()
            try:
                eventually(lambda: owner.semaphore(name).waiters() == 1)
                assert [len(found.parties) for found in one.deadlocks()] == [1]
            finally:
                cancel.set()
                thread.join()
        return
    if primitive in ("list", "break, ask"):
        with holdfast.connect(place.server.url) as owner:
            lease = owner.lock(name, ttl=30).acquire()
            semaphore = owner.semaphore(f"{name}-s", 2).acquire()
            with holdfast.connect(place.url) as one:
                if primitive == "list":
                    assert {found.name for found in one.list(f"{name}*")} == {name, f"{name}-s"}
                else:
                    assert one.ask(name).kind == "lock"
                    assert one.break_(name, reason="test").kind == "lock"
                    one.break_(f"{name}-s", reason="test")
            for each in (lease, semaphore):
                _quietly(each.release)
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        with holdfast.connect(place.url, ttl=5) as one, holdfast.connect(place.url, ttl=5) as two:
            LIVES[primitive](one, two, name)


def test_every_script_belongs_to_a_primitive() -> None:
    assert {script for scripts, _ in PRIMITIVES.values() for script in scripts} == set(SCRIPTS.keys())
    assert set(LIVES) == set(PRIMITIVES) - {"quorum"}


@pytest.mark.parametrize("primitive", sorted(LIVES))
def test_just_these_rights_are_enough(place: Place, primitive: str) -> None:
    place.allow(rights(primitive))
    place.admin.execute_command("ACL", "LOG", "RESET")
    live(place, primitive)
    time.sleep(0.05)  # what goes on in the background
    assert place.denied() == []


def test_all_of_them_are_enough_for_the_doctor(place: Place) -> None:
    place.allow([*rights(), *NEEDS["holdfast doctor"]])
    place.admin.execute_command("ACL", "LOG", "RESET")
    command = [sys.executable, "-m", "holdfast", "doctor", "--json", "--url", place.url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout
    assert place.denied() == []


@pytest.mark.parametrize(
    "primitive",
    [
        "lock",
        "list",
        *[pytest.param(each, marks=pytest.mark.thorough) for each in ("rwlock", "semaphore", "break, ask")],
    ],
)
def test_with_one_right_less_it_says_which(place: Place, primitive: str) -> None:
    needed = [right for right in rights(primitive) if right not in ("evalsha", "eval", "script|load")]  # see below
    said: list[str] = []
    quiet: list[str] = []
    unused: list[str] = []
    for right in needed:
        place.allow([each for each in rights(primitive) if each != right])
        place.admin.execute_command("ACL", "LOG", "RESET")
        try:
            live(place, primitive)
        except holdfast.ServerError as error:
            if error.kind != "NOPERM" or not re.search(
                rf"no permission: the user needs [^;]*{re.escape('+' + right)}[ ;]", str(error)
            ):
                pytest.fail(f"without {right}: {error}")
            said.append(right)
        except (holdfast.HoldfastError, AssertionError) as error:
            if not place.denied():
                pytest.fail(f"without {right} it fails for another reason: {error}")
        else:
            (quiet if place.denied() else unused).append(right)
    assert set(unused) <= set(RARE) | RARE_OF.get(primitive, set()), "a right that nothing uses"
    assert len(quiet) <= 3, f"denied, and it goes on, since that is in the background or not essential: {quiet}"
    assert len(said) >= len(needed) // 2, f"{said} and not {set(needed) - set(said)}"


def test_a_wait_that_may_not_look_for_deadlocks_says_so(place: Place) -> None:
    place.allow(rights("lock"))
    name = unique("r")
    with holdfast.connect(place.server.url) as owner, holdfast.connect(place.url) as one, owner.lock(name):
        with pytest.raises(holdfast.ServerError, match=r"no permission: the user needs \+scan"):
            one.lock(name, deadlock_check=0.1).acquire()
        place.allow(rights("lock", "deadlocks"))
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
    for primitive in PRIMITIVES:
        assert f"| {primitive} | `{' '.join('+' + right for right in rights(primitive))}` |\n" in text
    for more in NEEDS.values():
        assert f"| `{' '.join('+' + right for right in more)}` |\n" in text

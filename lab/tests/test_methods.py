"""The schemes' own methods, on a real server: the five of a lock, locking an object, the optimistic update."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from holdfast import embedded
from holdfast_lab import schemes
from holdfast_lab.driver import BlockingDriver
from holdfast_lab.effects import Command, RequestFailed
from holdfast_lab.schemes.tokens import identity_of

Connect = Callable[[], BlockingDriver]


@pytest.fixture
def connect(valkey_server: embedded.Server) -> Iterator[Connect]:
    made: list[BlockingDriver] = []

    def new() -> BlockingDriver:
        made.append(BlockingDriver([(valkey_server.host, valkey_server.port)]))
        return made[-1]

    yield new
    for driver in made:
        driver.close()


def test_the_five_methods(connect: Connect, unique_name: str) -> None:
    driver = connect()
    ours, theirs = (schemes.SetNxToken(unique_name, 30_000) for _ in range(2))
    driver.run(ours.lock())
    assert driver.run(theirs.try_lock()) is False
    assert driver.run(theirs.try_lock_for(0.12)) is False
    asked = iter([False, False, True])
    with pytest.raises(schemes.Interrupted):
        driver.run(theirs.lock_interruptibly(lambda: next(asked)))
    assert next(asked, "asked until it said yes") == "asked until it said yes"
    driver.run(theirs.unlock())  # not the holder: changes nothing
    assert driver.run(theirs.try_lock()) is False
    driver.run(ours.unlock())
    assert driver.run(theirs.try_lock_for(10)) is True
    driver.run(theirs.unlock())
    driver.run(ours.lock_interruptibly(lambda: False))
    driver.run(ours.unlock())


def test_a_late_unlock_by_name_is_what_the_token_prevents(connect: Connect, unique_name: str) -> None:
    driver = connect()
    careless, holder = schemes.SetNxEx(unique_name, 30_000), schemes.SetNxEx(unique_name, 30_000)
    driver.run(holder.lock())
    driver.run(careless.unlock())
    assert driver.run(careless.try_lock()) is True
    driver.run(careless.unlock())


class Order:
    def __init__(self, number: str) -> None:
        self.id = number


class Invoice(Order):
    pass


def test_an_object_is_known_by_class_and_identity(connect: Connect, unique_name: str) -> None:
    driver = connect()
    ours, theirs = schemes.ObjectLocks(30_000), schemes.ObjectLocks(30_000)
    driver.run(ours.lock(Order(unique_name)))
    assert driver.run(theirs.try_lock(Order(unique_name))) is False
    assert driver.run(theirs.try_lock(Invoice(unique_name))) is True
    with pytest.raises(KeyError):
        driver.run(theirs.unlock(Order(unique_name)))
    driver.run(ours.unlock(Order(unique_name)))
    assert driver.run(theirs.try_lock(Order(unique_name))) is True
    for target in (Order(unique_name), Invoice(unique_name)):
        driver.run(theirs.unlock(target))


def test_identities() -> None:
    assert identity_of(Order("7")).endswith("test_methods.Order:7")
    with pytest.raises(TypeError, match="lock_identity, id or pk"):
        identity_of(object())


def test_watch_counts_right_with_many_at_once(connect: Connect, unique_name: str) -> None:
    drivers = [connect() for _ in range(3)]
    counted: list[int] = []

    def count(driver: BlockingDriver) -> None:
        for _ in range(10):
            counted.append(driver.run(schemes.Watch(unique_name).update(lambda value: value + 1)))

    threads = [threading.Thread(target=count, args=(driver,)) for driver in drivers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(counted) == list(range(1, 31))


def test_watch_loses_against_whoever_was_faster_and_can_be_abandoned(connect: Connect, unique_name: str) -> None:
    driver = connect()
    slow, fast = schemes.Watch(unique_name), schemes.Watch(unique_name)
    assert driver.run(slow.begin()) == 0
    assert driver.run(fast.update(lambda value: value + 5)) == 5
    assert driver.run(slow.commit(1)) is False
    assert driver.run(slow.begin()) == 5
    driver.run(slow.abandon())
    assert driver.run(fast.begin()) == 5


def test_watch_leaves_nothing_watched_or_open_when_it_fails(connect: Connect, unique_name: str) -> None:
    driver, other = connect(), connect()
    watch = schemes.Watch(unique_name)
    push = schemes.base.command("LPUSH", unique_name, "no number")

    async def ask(command: Command) -> object:
        return await command

    other.run(ask(push))
    with pytest.raises(RequestFailed, match="WRONGTYPE"):  # the read fails: UNWATCH
        driver.run(watch.begin())
    other.run(ask(schemes.base.command("DEL", unique_name)))
    assert driver.run(watch.update(lambda value: value + 1)) == 1
    # The write cannot even be sent, inside MULTI.
    assert driver.run(watch.begin()) == 1
    with pytest.raises(TypeError):
        driver.run(watch.commit(["too", "many", "words"]))  # type: ignore[arg-type]
    assert driver.run(watch.update(lambda value: value + 1)) == 2


def test_a_server_that_is_not_there_is_trouble() -> None:
    with embedded.server(port=0) as gone:
        address = (gone.host, gone.port)
    driver = BlockingDriver([address])
    with pytest.raises(RequestFailed) as caught:
        driver.run(schemes.Setnx("x", 1000).try_lock())
    assert caught.value.kind == "refused"
    five = BlockingDriver([address] * 5)
    assert five.run(schemes.Redlock("x", 1000).try_lock()) is False


def test_a_php_loop_whose_check_fails_raises_skipped(connect: Connect, unique_name: str) -> None:
    driver, loop = connect(), schemes.PhpLoop(unique_name, 30_000)
    attempt = loop.try_lock()
    first = attempt.send(None)
    assert isinstance(first, Command) and first.args[0] == "SET"
    assert isinstance(attempt.send("OK"), Command)
    with pytest.raises(schemes.Skipped):
        attempt.send(None)  # the key has expired meanwhile
    driver.run(loop.lock())
    driver.run(loop.unlock())


def test_a_java_lock_that_is_interrupted_before_it_asks_returns_without_a_word(
    connect: Connect, unique_name: str
) -> None:
    driver = connect()
    holder, other = schemes.JavaLock(unique_name, 30_000), schemes.JavaLock(unique_name, 30_000)
    driver.run(holder.lock())
    driver.run(other.lock_interruptibly(lambda: True))
    assert driver.run(other.try_lock()) is False, "it never had the lock"
    told = iter([False, True])
    with pytest.raises(schemes.Interrupted):
        driver.run(other.lock_interruptibly(lambda: next(told)))
    driver.run(holder.unlock())

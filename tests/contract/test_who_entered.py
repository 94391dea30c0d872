"""One object used by several threads or tasks at once: each ends what is its own, whichever API."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack
from typing import Any

import pytest

import holdfast
import holdfast.asyncio
from holdfast import embedded
from testbed.waiting import eventually
from tests.support.apis import Api, ThreadsApi


@pytest.fixture
def url(valkey_server: embedded.Server) -> str:
    """One kind is enough: who is meant is decided here."""
    return valkey_server.url


@pytest.fixture
def server(valkey_server: embedded.Server) -> embedded.Server:
    """The same one, for `raw`."""
    return valkey_server


def test_the_end_of_a_lost_lead_leaves_the_next_one_alone(url: str, raw: Any, unique_name: str) -> None:
    with holdfast.connect(url) as locks, holdfast.connect(url) as others:
        election, elsewhere = locks.election(unique_name, ttl=1), others.election(unique_name, ttl=1)
        faced = ThreadsApi()
        one, other = faced.actor(), faced.actor()
        first = one.enter(election)
        raw.delete(f"holdfast:{{{unique_name}}}:leader")
        second = other.enter(election)
        eventually(lambda: first.state.name == "LOST")
        with pytest.raises(holdfast.LeaseLost):
            one.leave(election)
        assert second.state.name == "HELD" and not second.lost.is_set()
        leader = elsewhere.leader()
        assert leader is not None and leader.token == second.token
        with pytest.raises(holdfast.AcquireTimeout):
            elsewhere.campaign(timeout=0)
        other.leave(election)
        assert second.state.name == "RELEASED" and election.leader() is None
        faced.close()


def test_the_end_of_a_lost_lead_leaves_the_next_task_alone(url: str, raw: Any, unique_name: str) -> None:
    async def main() -> None:
        async with holdfast.asyncio.connect(url) as locks, holdfast.asyncio.connect(url) as others:
            election, elsewhere = locks.election(unique_name, ttl=1), others.election(unique_name, ttl=1)
            leave = asyncio.Event()

            async def lead(elected: asyncio.Future[holdfast.asyncio.Lease]) -> None:
                async with election as lease:
                    elected.set_result(lease)
                    await leave.wait()

            loop = asyncio.get_running_loop()
            leases, tasks = [], []
            for _ in range(2):
                elected: asyncio.Future[holdfast.asyncio.Lease] = loop.create_future()
                tasks.append(asyncio.create_task(lead(elected)))
                leases.append(await asyncio.wait_for(elected, 10))
                if len(leases) == 1:
                    raw.delete(f"holdfast:{{{unique_name}}}:leader")
            with pytest.raises(holdfast.LeaseLost):
                await asyncio.wait_for(tasks[0], 10)
            assert leases[1].state.name == "HELD" and not leases[1].lost.is_set()
            leader = await elsewhere.leader()
            assert leader is not None and leader.token == leases[1].token
            with pytest.raises(holdfast.AcquireTimeout):
                await elsewhere.campaign(timeout=0)
            leave.set()
            await tasks[1]
            assert leases[1].state.name == "RELEASED" and await election.leader() is None

    asyncio.run(main())


@pytest.mark.parametrize("way", ["resign", "look"])
def test_who_has_lost_the_lead_sees_and_ends_only_that(
    api: Api, locks: Any, raw: Any, unique_name: str, way: str
) -> None:
    election = locks.election(unique_name, ttl=1)
    one, other, third = api.actor(), api.actor(), api.actor()
    first = one.ask(election, "campaign")
    raw.delete(f"holdfast:{{{unique_name}}}:leader")
    second = other.ask(election, "campaign")
    eventually(lambda: first.state.name == "LOST")
    if way == "look":
        assert one.ask(election, "__getattribute__", "is_leader") is False
        assert other.ask(election, "__getattribute__", "is_leader") is True
        assert third.ask(election, "__getattribute__", "is_leader") is True, "as this object's candidates say"
        assert one.ask(election, "__getattribute__", "lease").token == first.token
        assert third.ask(election, "__getattribute__", "lease").token == second.token
    else:
        one.ask(election, "resign")
        assert second.state.name == "HELD" and election.leader().token == second.token
    third.ask(election, "resign")  # who did not campaign, as a signal handler, ends the lead of this object
    assert second.state.name == "RELEASED" and election.leader() is None


def test_one_waits_to_lead_while_another_does(api: Api, locks: Any, unique_name: str) -> None:
    election = locks.election(unique_name)
    one, other = api.actor(), api.actor()
    first = one.enter(election)
    waiting = other.tell(election, "__enter__")
    eventually(lambda: election._lock.waiters() == 1)
    one.leave(election)
    second = waiting.result(30)
    assert first.state.name == "RELEASED" and second.state.name == "HELD" and election.is_leader
    other.leave(election)
    assert election.leader() is None and not election.is_leader


def test_who_campaigns_again_after_a_loss(api: Api, locks: Any, raw: Any, unique_name: str) -> None:
    """A new lead takes the place of the lost one, and the other candidate cannot end it."""
    election = locks.election(unique_name, ttl=3)
    one, other = api.actor(), api.actor()
    first = one.ask(election, "campaign")
    raw.delete(f"holdfast:{{{unique_name}}}:leader")
    second = other.ask(election, "campaign")
    eventually(lambda: first.state.name == "LOST")
    again = one.tell(election, "campaign")
    eventually(lambda: election._lock.waiters() == 1)
    other.ask(election, "resign")
    third = again.result(30)
    assert second.state.name == "RELEASED" and third.state.name == "HELD"
    other.ask(election, "resign")
    one.ask(election, "resign")
    assert third.state.name == "RELEASED"


def test_an_exit_stack_resigns_elsewhere(api: Api, locks: Any, unique_name: str) -> None:
    election = locks.election(unique_name)
    one, other = api.actor(), api.actor()
    lease = one.enter(election)
    other.leave(election)
    assert lease.state.name == "RELEASED" and election.leader() is None


def test_generators_that_take_turns(url: str, unique_name: str) -> None:
    """Blocks of one thread that are not left in the reverse order."""

    def block(semaphore: Any) -> Iterator[Any]:
        with semaphore as lease:
            yield lease

    with holdfast.connect(url) as locks:
        semaphore = locks.semaphore(unique_name, permits=3)
        first, second, third = (block(semaphore) for _ in range(3))
        leases = [next(first), next(second), next(third)]
        for generator, released in ((second, "HRH"), (first, "RRH"), (third, "RRR")):
            assert next(generator, None) is None
            assert "".join(lease.state.name[0] for lease in leases) == released
        assert semaphore.available() == 3


def test_async_generators_that_take_turns(url: str, unique_name: str) -> None:
    async def block(semaphore: Any) -> AsyncIterator[Any]:
        async with semaphore as lease:
            yield lease

    async def main() -> None:
        async with holdfast.asyncio.connect(url) as locks:
            semaphore = locks.semaphore(unique_name, permits=3)
            generators = [block(semaphore) for _ in range(3)]
            leases = [await anext(generator) for generator in generators]
            for number, released in ((1, "HRH"), (0, "RRH"), (2, "RRR")):
                assert await anext(generators[number], None) is None
                assert "".join(lease.state.name[0] for lease in leases) == released
            assert await semaphore.available() == 3

    asyncio.run(main())


def test_a_generator_left_by_another_thread_that_is_inside_itself(api: Api, url: str, unique_name: str) -> None:
    with holdfast.connect(url) as locks:
        semaphore = locks.semaphore(unique_name, permits=2)

        def block() -> Iterator[Any]:
            with semaphore as lease:
                yield lease

        generator = block()
        theirs = api.start(next, generator).result(30)
        with semaphore as mine:
            generator.close()  # type: ignore[attr-defined]
            assert (mine.state.name, theirs.state.name) == ("HELD", "RELEASED")
        assert semaphore.available() == 2


def test_one_lease_entered_by_two_tasks(valkey_server: embedded.Server, unique_name: str) -> None:
    """The block that ends first takes its own cancellation with it, not that of the other one."""

    async def main() -> None:
        async with holdfast.asyncio.connect(valkey_server.url) as locks:
            lease = await locks.lock(unique_name).acquire()
            inside = asyncio.Event()

            async def outlives() -> str:
                try:
                    async with lease:
                        inside.set()
                        await asyncio.sleep(30)
                except holdfast.LeaseLost:
                    return "told"
                return "not told"

            async def ends() -> None:
                async with lease:
                    other = asyncio.create_task(outlives())
                    await inside.wait()
                    lease._record.lose("taken")
                    tasks.append(other)
                    current = asyncio.current_task()
                    assert current is not None
                    while not current.cancelling():
                        await asyncio.sleep(0)

            tasks: list[asyncio.Task[str]] = []
            with pytest.raises(holdfast.LeaseLost):
                await asyncio.create_task(ends())
            assert await asyncio.wait_for(tasks[0], 10) == "told"

    asyncio.run(main())


def test_an_exit_stack_closed_in_another_thread(valkey_server: embedded.Server, unique_name: str) -> None:
    with holdfast.connect(valkey_server.url) as locks:
        lock = locks.lock(unique_name)
        stack = ExitStack()
        entering = threading.Thread(target=lambda: stack.enter_context(lock))
        entering.start()
        entering.join()
        assert lock.locked()
        stack.close()
        assert not lock.locked()


def test_an_exit_stack_closed_in_another_task(valkey_server: embedded.Server, unique_name: str) -> None:
    async def main() -> None:
        async with holdfast.asyncio.connect(valkey_server.url) as locks:
            lock = locks.lock(unique_name)
            stack = AsyncExitStack()
            await asyncio.create_task(stack.enter_async_context(lock))
            assert await lock.locked()
            await stack.aclose()
            assert not await lock.locked()

    asyncio.run(main())


def test_a_stack_that_no_one_closes_lets_go_of_its_lease(valkey_server: embedded.Server, unique_name: str) -> None:
    """Also where its lock is made like one that was made before: only the stack has it."""
    with holdfast.connect(valkey_server.url) as locks:
        for _ in range(3):
            with locks.lock(unique_name):
                pass
        stack = ExitStack()
        lease = weakref.ref(stack.enter_context(locks.lock(unique_name)))
        stack.pop_all()  # the callbacks go with what it returns
        with pytest.warns(ResourceWarning, match="was dropped"):
            gc.collect()
        assert lease() is None


def test_objects_of_one_name_share_no_options(valkey_server: embedded.Server, unique_name: str) -> None:
    class Name(str):
        pass

    with holdfast.connect(valkey_server.url) as locks:
        for _ in range(3):
            with locks.lock(unique_name), pytest.raises(holdfast.AlreadyHeld):
                locks.lock(unique_name).acquire()
            assert locks.lock(unique_name) is not locks.lock(unique_name)
            assert locks.lock(unique_name, ttl=3).ttl == 3 and locks.lock(unique_name).ttl == 30
            assert locks.lock(Name(unique_name)).name == unique_name
            with locks.lock(unique_name, reentrant=True), locks.lock(unique_name, reentrant=True):
                pass
        nonsense: list[Any] = [b"", 0, None, [], ""]
        for wrong in nonsense:
            with pytest.raises(holdfast.ConfigurationError):
                locks.lock(wrong)
        with pytest.raises(holdfast.ConfigurationError):
            locks.lock(unique_name, reentrant=0)  # type: ignore[arg-type]


def test_of_many_names_most_are_forgotten(valkey_server: embedded.Server, unique_name: str) -> None:
    with holdfast.connect(valkey_server.url) as locks:
        for number in range(1_500):
            for _ in range(2):
                with locks.lock(f"{unique_name}:{number}"):
                    pass
        assert 0 < len(locks._session._shared) <= 1_000
        assert 0 < len(locks._usual) <= 1_000
        with locks.lock(f"{unique_name}:0"):
            pass

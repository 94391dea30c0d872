"""asyncio: tasks that acquire and release in one turn of the event loop share requests. Each is answered by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import redis

import holdfast.asyncio
from holdfast import embedded
from holdfast._core.keys import lock_keys
from holdfast._core.mutex import EACH_MAX
from holdfast._lua import SCRIPTS
from holdfast.errors import AcquireTimeout, ServerError
from testbed.proxy import Proxy

TASKS = 100
PATIENCE_S = 30.0

Client = holdfast.asyncio.Client


@pytest.fixture
def look(server: embedded.Server) -> Any:
    with redis.Redis.from_url(server.url, decode_responses=True) as client:
        yield client


def run(url: str, test: Callable[[Client], Awaitable[None]], **options: Any) -> None:
    async def main() -> None:
        async with asyncio.timeout(PATIENCE_S), holdfast.asyncio.connect(url, **options) as locks:
            async with locks.lock(f"warm {id(locks)}"):
                pass
            await test(locks)

    asyncio.run(main())


def key(name: str) -> str:
    return f"holdfast:{{{name}}}"


def names_of(name: str) -> list[str]:
    return [f"{name}-{number}" for number in range(TASKS)]


def held(look: Any, name: str) -> list[str]:
    """The names of these locks that have a holder."""
    return [each for each in names_of(name) if look.exists(key(each))]


def calls(look: Any) -> int:
    stats: dict[str, dict[str, int]] = look.info("commandstats")
    return sum(stats.get(f"cmdstat_{word}", {"calls": 0})["calls"] for word in ("evalsha", "eval"))


async def acquire_all(locks: Client, names: list[str], timeout: float | None = None) -> list[Any]:
    return await asyncio.gather(*(locks.lock(name).acquire(timeout) for name in names), return_exceptions=True)


def test_a_lock_for_each_task(server: embedded.Server, look: Any, unique_name: str) -> None:
    async def test(locks: Client) -> None:
        before = calls(look)
        leases = await acquire_all(locks, names_of(unique_name))
        assert [look.get(key(name)) for name in names_of(unique_name)] == [lease.token for lease in leases]
        assert all(0 < look.pttl(key(name)) <= 30_000 for name in names_of(unique_name))
        assert [int(look.get(f"{key(lease.name)}:fence")) for lease in leases] == [
            lease.fencing_token for lease in leases
        ]
        await asyncio.gather(*(lease.release() for lease in leases))
        assert held(look, unique_name) == []
        assert calls(look) - before < TASKS, "most of them share a request"
        again = await acquire_all(locks, names_of(unique_name))
        assert all(new.fencing_token > old.fencing_token for new, old in zip(again, leases, strict=True))
        await asyncio.gather(*(lease.release() for lease in again))

    run(server.url, test)


def test_one_lock_for_all_tasks(server: embedded.Server, unique_name: str) -> None:
    """All acquires are in one request, of which one is granted."""

    async def test(locks: Client) -> None:
        inside, seen = 0, list[int]()

        async def one() -> None:
            nonlocal inside
            async with locks.lock(unique_name) as lease:
                inside += 1
                assert inside == 1
                seen.append(lease.fencing_token)
                await asyncio.sleep(0)
                inside -= 1

        await asyncio.gather(*(one() for _ in range(TASKS)))
        assert len(seen) == TASKS and seen == sorted(set(seen))

    run(server.url, test)


def test_some_are_taken(server: embedded.Server, look: Any, unique_name: str) -> None:
    async def test(locks: Client) -> None:
        taken = set(names_of(unique_name)[::7])
        for name in taken:
            look.set(key(name), "someone else", px=60_000)
        found = await acquire_all(locks, names_of(unique_name), timeout=0)
        assert {
            name for name, got in zip(names_of(unique_name), found, strict=True) if isinstance(got, Exception)
        } == taken
        assert all(
            got.holder is not None and got.holder.token == "someone else"
            for got in found
            if isinstance(got, AcquireTimeout)
        )
        await asyncio.gather(*(got.release() for got in found if not isinstance(got, Exception)))
        assert set(held(look, unique_name)) == taken

    run(server.url, test)


def test_releases_hand_over(server: embedded.Server, look: Any, unique_name: str) -> None:
    """If there is a waiter, the release of that lock goes by itself."""

    async def test(locks: Client) -> None:
        leases = await acquire_all(locks, names_of(unique_name))
        async with holdfast.asyncio.connect(server.url) as others:
            waiting = [asyncio.create_task(others.lock(name).acquire()) for name in names_of(unique_name)[::9]]
            while sum(look.zcard(f"{key(name)}:queue") for name in names_of(unique_name)) < len(waiting):
                await asyncio.sleep(0.01)
            await asyncio.gather(*(lease.release() for lease in leases))
            next_ones = await asyncio.gather(*waiting)
            assert held(look, unique_name) == [lease.name for lease in next_ones]
            await asyncio.gather(*(lease.release() for lease in next_ones))

    run(server.url, test)


def test_what_is_wrong_with_one_lock_is_told_of_that_one(server: embedded.Server, look: Any, unique_name: str) -> None:
    async def test(locks: Client) -> None:
        names = names_of(unique_name)
        look.set(f"{key(names[20])}:fence", "no number", px=60_000)
        look.set(f"{key(names[30])}:fence", str(2**53), px=60_000)
        look.rpush(key(names[40]), "no string")
        look.pexpire(key(names[40]), 60_000)
        found = await acquire_all(locks, names, timeout=PATIENCE_S)
        wrong = [number for number, got in enumerate(found) if isinstance(got, Exception)]
        assert wrong == [20, 30, 40]
        assert isinstance(found[20], ServerError) and names[20] in str(found[20]) and "BADFENCE" in str(found[20])
        assert look.get(f"{key(names[20])}:fence") == "no number"
        leases = [got for got in found if not isinstance(got, Exception)]
        look.delete(key(names[40]), key(names[50]))
        look.rpush(key(names[50]), "no string")
        look.pexpire(key(names[50]), 60_000)
        ends = await asyncio.gather(*(lease.release() for lease in leases), return_exceptions=True)
        assert [lease.name for lease, end in zip(leases, ends, strict=True) if end is not None] == [names[50]]
        assert held(look, unique_name) == [names[50]]

    run(server.url, test)


def test_a_server_without_memory(private_server: Callable[..., embedded.Server], unique_name: str) -> None:
    """Nothing that was written stays with no one."""
    server = private_server(config={"maxmemory-policy": "noeviction"})
    with redis.Redis.from_url(server.url, decode_responses=True) as look:

        async def test(locks: Client) -> None:
            leases = await acquire_all(locks, names_of(unique_name)[:50])
            look.config_set("maxmemory", 1)
            found = await acquire_all(locks, names_of(unique_name)[50:], timeout=0)
            assert all(isinstance(got, ServerError) and "OOM" in str(got) for got in found)
            await asyncio.gather(*(lease.release() for lease in leases))
            look.config_set("maxmemory", 0)
            assert held(look, unique_name) == []

        run(server.url, test)


def test_a_server_that_forgets_its_scripts(private_server: Callable[..., embedded.Server], unique_name: str) -> None:
    server = private_server()
    with redis.Redis.from_url(server.url, decode_responses=True) as look:

        async def test(locks: Client) -> None:
            for _ in range(3):
                look.script_flush()
                leases = await acquire_all(locks, names_of(unique_name))
                assert held(look, unique_name) == names_of(unique_name)
                look.script_flush()
                await asyncio.gather(*(lease.release() for lease in leases))
                assert held(look, unique_name) == []

        run(server.url, test)


def test_a_user_who_may_not_ask_what_the_shared_script_asks(
    private_server: Callable[..., embedded.Server], unique_name: str
) -> None:
    """The refusal of the shared request is not reported: each asks by itself, and is refused or granted by itself."""
    server = private_server()
    with redis.Redis.from_url(server.url, decode_responses=True) as look:
        names = names_of(unique_name)
        patterns = [f"~{key(name)}{end}" for name in names[::2] for end in ("", ":*")]
        look.execute_command("ACL", "SETUSER", "u", "on", ">p", "+@all", "&*", "~*warm*", "~*client*", *patterns)

        async def test(locks: Client) -> None:
            found = await acquire_all(locks, names, timeout=0)
            assert [isinstance(got, ServerError) and "NOPERM" in str(got) for got in found] == [False, True] * (
                TASKS // 2
            )
            assert held(look, unique_name) == names[::2]
            await asyncio.gather(*(got.release() for got in found if not isinstance(got, Exception)))
            assert held(look, unique_name) == []

        run(f"redis://u:p@{server.host}:{server.port}", test)


@pytest.mark.parametrize("turns", [0, 1, 2, 3])
def test_tasks_that_are_cancelled_leave_nothing(valkey_server: embedded.Server, unique_name: str, turns: int) -> None:
    """At whatever moment: before the request is written, under way, or answered."""
    with redis.Redis.from_url(valkey_server.url, decode_responses=True) as look:

        async def test(locks: Client) -> None:
            tasks = [asyncio.create_task(locks.lock(name).acquire()) for name in names_of(unique_name)]
            await asyncio.sleep(0)
            for _ in range(turns):
                await asyncio.sleep(0)
            for task in tasks[::2]:
                task.cancel()
            found = await asyncio.gather(*tasks, return_exceptions=True)
            leases = [got for got in found if not isinstance(got, BaseException)]
            assert len(leases) >= TASKS // 2
            held_now = {lease.name for lease in leases}
            while set(held(look, unique_name)) != held_now:
                await asyncio.sleep(0.01)
            await asyncio.gather(*(lease.release() for lease in leases))
            assert held(look, unique_name) == []

        run(valkey_server.url, test)


def test_a_connection_that_breaks_with_requests_under_way(
    valkey_server: embedded.Server, wire: Proxy, unique_name: str
) -> None:
    """No one knows what was done: each asks again with its token, and gets its lock."""
    with redis.Redis.from_url(valkey_server.url, decode_responses=True) as look:

        async def test(locks: Client) -> None:
            leases = await acquire_all(locks, names_of(unique_name))
            await asyncio.gather(*(lease.release() for lease in leases))
            for script in ("acquire_each", "release_each"):
                lost = wire.on(script, "reset after")
                leases = await acquire_all(locks, names_of(unique_name))
                assert [look.get(key(name)) for name in names_of(unique_name)] == [lease.token for lease in leases]
                ends = await asyncio.gather(*(lease.release() for lease in leases), return_exceptions=True)
                assert [end for end in ends if end is not None] == []
                assert held(look, unique_name) == []
                assert lost.times == 1

        run(wire.url, test)


def test_one_call_is_for_few_enough_locks(server: embedded.Server, look: Any, unique_name: str) -> None:
    """The server does nothing else meanwhile."""

    async def test(locks: Client) -> None:
        with look.monitor() as monitor:
            leases = await acquire_all(locks, names_of(unique_name))
            await asyncio.gather(*(lease.release() for lease in leases))
            look.set("end", unique_name, px=60_000)
            counts = []
            for said in monitor.listen():
                if said["command"].startswith("EVALSHA"):
                    counts.append(int(said["command"].split()[2]))
                if unique_name in said["command"] and said["command"].startswith("SET end"):
                    break
        assert max(counts) == 4 * EACH_MAX

    run(server.url, test)


def test_requests_that_come_late_do_nothing(server: embedded.Server, look: Any, unique_name: str) -> None:
    """An acquire after its token was given back, a release after another client has the lock."""
    keys = [lock_keys("holdfast", name) for name in names_of(unique_name)[:3]]
    acquire, release = SCRIPTS["acquire_each"].text, SCRIPTS["release_each"].text
    for each in keys[:2]:
        undone = [f"late:1:{each.name}", 86_400_000, 2_000, "holdfast:inbox:", 60_000]
        look.eval(SCRIPTS["release"].text, 4, *each.all, *undone)
    look.set(keys[2].lock, "another", px=60_000)
    tokens = [f"late:1:{each.name}" for each in keys]
    all_keys = [key for each in keys for key in each.all]
    assert look.eval(acquire, len(all_keys), *all_keys, 30_000, 86_400_000, *tokens) == [0, 0, 0]
    held = [key for each in keys for key in (each.lock, each.queue)]
    assert look.eval(release, len(held), *held, *tokens) == [0, 0, 0]
    assert [look.get(each.lock) for each in keys] == [None, None, "another"]

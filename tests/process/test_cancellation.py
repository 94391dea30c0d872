"""Cancellations at any point of acquire and release leave nothing behind, and are never taken for a loss."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import redis.asyncio

import holdfast.asyncio
from holdfast import embedded
from holdfast._core import optimistic
from holdfast._core.failure import RequestFailed
from holdfast.asyncio import Client, LeaseLost, LeaseState
from tests.support.relay import relay

pytestmark = pytest.mark.usefixtures("nothing_left")

#: Everything here happens in a moment; a busy machine may take its time.
PATIENCE_S = 30.0


def run(main: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE_S * 3):
            await main()

    asyncio.run(bounded())


@asynccontextmanager
async def served(server: embedded.Server, **options: Any) -> AsyncIterator[tuple[Client, Any]]:
    """A client of ours and a plain one."""
    async with (
        redis.asyncio.Redis.from_url(server.url, decode_responses=True) as raw,
        holdfast.asyncio.connect(server.url, **options) as locks,
    ):
        yield locks, raw


async def settled(locks: Client) -> None:
    """All give-backs have been answered."""
    front = locks._session.driver

    async def idle() -> bool:
        turned = asyncio.Event()
        front.engine.call(front.home.soon, turned.set)  # what was submitted before has begun
        await turned.wait()
        return not any(task.background for task in tuple(front.client.tasks))

    await eventually(idle, "nothing is given back any more")


async def eventually(condition: Callable[[], Awaitable[Any]], what: str, patience_s: float = PATIENCE_S) -> Any:
    loop = asyncio.get_running_loop()
    until = loop.time() + patience_s
    while True:
        if value := await condition():
            return value
        assert loop.time() < until, f"did not happen: {what}"
        await asyncio.sleep(0.005)


async def _storm(locks: Client, raw: Any, name: str, victims: int, longest_s: float, seed: int) -> int:
    """Cancel tasks at random points; returns how many ended by that."""
    dice = random.Random(seed)
    names = [f"{name}-{number}" for number in range(23)]
    inside: dict[str, int] = dict.fromkeys(names, 0)

    async def victim(name: str, timeout: float | None, hold_s: float) -> None:
        lock = locks.lock(name, ttl=30)
        if timeout is None:
            async with lock:
                inside[name] += 1
                try:
                    assert inside[name] == 1, "two holders"
                    await asyncio.sleep(hold_s)
                finally:
                    inside[name] -= 1
        else:
            lease = await lock.try_acquire() if timeout == 0 else await lock.acquire(timeout=timeout)
            if lease is not None:
                async with lease:
                    await asyncio.sleep(hold_s)

    tasks = []
    cancelled = 0
    for _ in range(victims):
        timeout = dice.choice((None, None, 0, 20.0))
        task = asyncio.create_task(victim(dice.choice(names), timeout, dice.random() * longest_s / 4))
        tasks.append(task)
        asyncio.get_running_loop().call_later(dice.random() * longest_s, task.cancel)
        if dice.random() < 0.2:
            await asyncio.sleep(dice.random() * 0.002)
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(outcome, asyncio.CancelledError):
            cancelled += 1
        else:
            assert outcome is None, repr(outcome)
    await settled(locks)

    async def nothing_left() -> bool:
        return all(key.endswith((":fence", ":gone")) for key in await raw.keys(f"holdfast:{{{name}-*"))

    # Long before the ttl: what was granted to who had left is given back when that is heard.
    await eventually(nothing_left, "no lock and no place in a queue is left behind", patience_s=5)
    for name in names:
        lease = await locks.lock(name).try_acquire()
        assert lease is not None
        await lease.release()
    return cancelled


@pytest.mark.parametrize("seed", [1, 2])
def test_a_storm_of_cancellations_leaves_nothing(valkey_server: embedded.Server, unique_name: str, seed: int) -> None:
    async def main() -> None:
        cancelled = 0
        async with served(valkey_server) as (locks, raw):
            for wave in range(20):
                cancelled += await _storm(locks, raw, f"{unique_name}-{wave}", 150, 0.06, seed * 100 + wave)
                if cancelled >= 500:
                    break
        assert cancelled >= 500

    run(main)


def test_a_storm_over_a_slow_wire_leaves_nothing(valkey_server: embedded.Server, unique_name: str) -> None:
    """Requests, replies and wake-ups are on their way for some time, so that cancellations meet them there."""

    async def main() -> None:
        raw = redis.asyncio.Redis.from_url(valkey_server.url, decode_responses=True)
        cancelled = 0
        async with relay(valkey_server, delay_s=0.004) as port:
            async with holdfast.asyncio.connect(f"redis://127.0.0.1:{port}") as locks:
                for wave in range(20):
                    cancelled += await _storm(locks, raw, f"{unique_name}-{wave}", 120, 0.2, wave)
                    if cancelled >= 300:
                        break
            assert cancelled >= 300
            await raw.aclose()

    run(main)


@pytest.mark.parametrize("delay_s, attempts", [(0.005, 20), (0.0, 300)], ids=["over a slow wire", "at any moment"])
def test_attempts_that_are_cancelled_leave_no_connection_behind(
    valkey_server: embedded.Server, unique_name: str, delay_s: float, attempts: int
) -> None:
    """Whichever of its requests is under way, or is about to be."""
    moments = random.Random(7)

    async def write(tx: Any) -> None:
        await tx.get(unique_name)
        tx.set(unique_name, 1)

    async def main() -> None:
        raw = redis.asyncio.Redis.from_url(valkey_server.url, decode_responses=True)
        before = {each["id"] for each in await raw.client_list()}
        cancelled = 0
        async with relay(valkey_server, delay_s=delay_s) as port:
            async with holdfast.asyncio.connect(f"redis://127.0.0.1:{port}") as locks:
                for _ in range(attempts):
                    attempt = asyncio.create_task(locks.optimistic(unique_name).run(write))
                    await asyncio.sleep(moments.random() * (0.004 + 15 * delay_s))
                    attempt.cancel()
                    (ended,) = await asyncio.gather(attempt, return_exceptions=True)
                    cancelled += isinstance(ended, asyncio.CancelledError)
                await raw.delete(unique_name)
                made = [each["id"] for each in await raw.client_list() if each["id"] not in before]
                assert len(made) < 5 and not locks._session.driver.client._sessions
        await raw.aclose()
        assert cancelled >= attempts / 5

    run(main)


def test_a_request_in_doubt_is_given_back_where_the_engine_has_not_begun_with_it(
    valkey_server: embedded.Server, unique_name: str
) -> None:
    """A task whose connection broke is cancelled before the engine hears of it: the lock was held for its ttl."""

    async def main() -> None:
        raw = redis.asyncio.Redis.from_url(valkey_server.url, decode_responses=True)
        async with holdfast.asyncio.connect(valkey_server.url) as locks:
            driver: Any = locks._session.driver
            goes_on = threading.Event()

            def broken(_home: Any, _first: Any, token: str, *_more: Any) -> Any:
                async def outcome() -> Any:
                    await raw.set(f"holdfast:{{{unique_name}}}", token, px=60_000)  # the server has carried it out
                    driver.engine.call(goes_on.wait, PATIENCE_S)
                    asking.cancel()
                    return None, RequestFailed("broken", "", "", maybe_executed=True, transient=True)

                return outcome()

            driver.ask = broken
            asking = asyncio.create_task(locks.lock(unique_name).acquire())
            await asyncio.gather(asking, return_exceptions=True)
            goes_on.set()
            assert asking.cancelled()
            del driver.ask
            async with asyncio.timeout(PATIENCE_S):
                while await raw.exists(f"holdfast:{{{unique_name}}}"):
                    await asyncio.sleep(0.01)
        await raw.aclose()

    run(main)


def test_an_attempt_that_is_cancelled_twice_leaves_nothing(valkey_server: embedded.Server, unique_name: str) -> None:
    """The second time while it ends its session, which is still ended."""

    async def main() -> None:
        async with holdfast.asyncio.connect(valkey_server.url) as locks:
            for turns in range(8):
                reading = asyncio.Event()

                async def write(tx: Any, reading: asyncio.Event = reading) -> None:
                    await tx.get(unique_name)
                    reading.set()
                    await asyncio.sleep(PATIENCE_S)

                attempts = [asyncio.create_task(locks.optimistic(unique_name).run(write)) for _ in range(5)]
                await reading.wait()
                for each in attempts:
                    each.cancel()
                for _ in range(turns):
                    await asyncio.sleep(0)
                for each in attempts:
                    each.cancel()
                ended = await asyncio.gather(*attempts, return_exceptions=True)
                assert all(isinstance(each, asyncio.CancelledError) for each in ended)
            async with asyncio.timeout(PATIENCE_S):
                while locks._session.driver.client._sessions:
                    await asyncio.sleep(0.01)

    run(main)


def test_the_end_of_a_session_that_has_ended_makes_no_connection(valkey_server: embedded.Server) -> None:
    async def main() -> None:
        async with holdfast.asyncio.connect(valkey_server.url) as locks:
            driver = locks._session.driver
            await driver.run(optimistic.leave("ended", "a", 1.0))
            assert not any(server.is_used for server in driver.topology.nodes())

    run(main)


def test_a_loss_cancels_the_body_and_comes_out(valkey_server: embedded.Server, unique_name: str) -> None:
    async def main() -> None:
        async with served(valkey_server) as (locks, raw):
            reached = False
            with pytest.raises(LeaseLost) as caught:
                async with locks.lock(unique_name, ttl=0.5) as lease:
                    await raw.set(f"holdfast:{{{unique_name}}}", "someone else", px=60_000)
                    await asyncio.sleep(PATIENCE_S)
                    reached = True
            assert not reached
            assert caught.value.name == unique_name
            assert lease.state is LeaseState.LOST
            assert lease.lost.is_set()
            task = asyncio.current_task()
            assert task is not None and task.cancelling() == 0
            await asyncio.sleep(0)  # no cancellation is left over
            assert await raw.get(f"holdfast:{{{unique_name}}}") == "someone else"

    run(main)


def test_a_loss_of_an_entered_lease_comes_out_too(valkey_server: embedded.Server, unique_name: str) -> None:
    async def main() -> None:
        async with served(valkey_server) as (locks, raw):
            lease = await locks.lock(unique_name, ttl=0.5).acquire(timeout=5)
            with pytest.raises(LeaseLost):
                async with lease:
                    await raw.delete(f"holdfast:{{{unique_name}}}")
                    await asyncio.sleep(PATIENCE_S)

    run(main)


def test_a_body_that_swallows_the_cancellation_hears_of_the_loss(
    valkey_server: embedded.Server, unique_name: str
) -> None:
    async def main() -> None:
        async with served(valkey_server) as (locks, raw):
            swallowed = False
            with pytest.raises(LeaseLost):
                async with locks.lock(unique_name, ttl=0.5):
                    await raw.delete(f"holdfast:{{{unique_name}}}")
                    try:
                        await asyncio.sleep(PATIENCE_S)
                    except asyncio.CancelledError:
                        swallowed = True
            assert swallowed
            task = asyncio.current_task()
            assert task is not None and task.cancelling() == 0

    run(main)


def test_an_error_of_the_body_is_not_replaced(valkey_server: embedded.Server, unique_name: str) -> None:
    async def main() -> None:
        async with served(valkey_server) as (locks, raw):
            with pytest.raises(ZeroDivisionError):
                async with locks.lock(unique_name, ttl=0.5):
                    await raw.delete(f"holdfast:{{{unique_name}}}")
                    try:
                        await asyncio.sleep(PATIENCE_S)
                    except asyncio.CancelledError:
                        raise ZeroDivisionError from None
            task = asyncio.current_task()
            assert task is not None and task.cancelling() == 0

    run(main)


def test_a_cancellation_from_outside_is_not_taken_for_a_loss(valkey_server: embedded.Server, unique_name: str) -> None:
    async def main() -> None:
        async with served(valkey_server) as (locks, raw):
            entered = asyncio.Event()

            async def body() -> None:
                async with locks.lock(unique_name):
                    entered.set()
                    await asyncio.sleep(PATIENCE_S)

            task = asyncio.create_task(body())
            await entered.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert task.cancelled()
            assert await raw.exists(f"holdfast:{{{unique_name}}}") == 0

    run(main)


def test_a_cancellation_from_outside_wins_over_a_loss(valkey_server: embedded.Server, unique_name: str) -> None:
    async def main() -> None:
        async with served(valkey_server) as (locks, raw):
            lost = asyncio.Event()

            async def body() -> None:
                async with locks.lock(unique_name, ttl=0.5):
                    try:
                        await raw.delete(f"holdfast:{{{unique_name}}}")
                        await asyncio.sleep(PATIENCE_S)
                    except asyncio.CancelledError:
                        lost.set()
                        await asyncio.sleep(PATIENCE_S)  # slow to leave: meanwhile it is cancelled for good

            task = asyncio.create_task(body())
            await lost.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    run(main)


def test_timeouts_around_a_body_stay_timeouts(valkey_server: embedded.Server, unique_name: str) -> None:
    async def main() -> None:
        async with served(valkey_server) as (locks, raw):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    async with locks.lock(unique_name):
                        await asyncio.sleep(PATIENCE_S)
            await settled(locks)
            assert await raw.exists(f"holdfast:{{{unique_name}}}") == 0

    run(main)


def test_a_loss_found_by_the_body_itself(valkey_server: embedded.Server, unique_name: str) -> None:
    """`ensure_held` sees the deadline first, while the task runs: it raises, and nothing is cancelled later."""

    async def main() -> None:
        async with served(valkey_server) as (locks, _):
            with pytest.raises(LeaseLost):
                async with locks.lock(unique_name, ttl=0.05, renew=False) as lease:
                    while True:
                        lease.ensure_held()  # never lets the event loop look
            task = asyncio.current_task()
            assert task is not None and task.cancelling() == 0
            for _ in range(3):
                await asyncio.sleep(0)

    run(main)


def test_a_cancelled_waiter_gives_its_place_away(valkey_server: embedded.Server, unique_name: str) -> None:
    async def main() -> None:
        async with served(valkey_server, tenure=0) as (locks, raw):  # both wait at the server
            holder = await locks.lock(unique_name).acquire()
            lock = locks.lock(unique_name)
            first = asyncio.create_task(lock.acquire())
            await eventually(lambda: raw.zcard(f"holdfast:{{{unique_name}}}:queue"), "queued")
            second = asyncio.create_task(lock.acquire())

            async def both() -> bool:
                return bool(await raw.zcard(f"holdfast:{{{unique_name}}}:queue") == 2)

            await eventually(both, "both queued")
            first.cancel()
            await asyncio.wait((first,))
            await settled(locks)
            assert await lock.waiters() == 1
            await holder.release()
            async with asyncio.timeout(PATIENCE_S):
                async with await second as lease:
                    assert lease.fencing_token > holder.fencing_token

    run(main)

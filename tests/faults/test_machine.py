"""Rows of the fault catalogue: what goes wrong in the client's own process and with clocks."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import importlib
import os
import shutil
import time
from collections.abc import Iterator
from typing import Any

import pytest

import holdfast
from holdfast import embedded
from holdfast._runtime import clock as clock_module
from holdfast_lab.servers import Clock
from testbed.waiting import eventually
from tests.support.apis import Api
from tests.support.keys import fence_of, key_of, queue_of
from tests.support.worker import workers

LONG_S = 600


# ---------------------------------------------------------------- the process


@pytest.mark.parametrize("api", ["threads", "asyncio"])
def test_14_the_clock_goes_on_in_suspend(api: str) -> None:
    driver = importlib.import_module(f"holdfast._front.{'aio' if api == 'asyncio' else api}")
    assert driver.clock is clock_module.clock, "what its leases are looked at with"
    if not hasattr(time, "CLOCK_BOOTTIME"):
        pytest.skip("this system has no CLOCK_BOOTTIME; its monotonic clock is used")
    assert abs(clock_module.clock() - time.clock_gettime(time.CLOCK_BOOTTIME)) < 60
    assert clock_module.clock is not time.monotonic


def test_15_a_blocked_event_loop_knows_of_its_loss_at_once(valkey_server: embedded.Server, unique_name: str) -> None:
    from holdfast.asyncio import connect

    async def main() -> None:
        async with connect(valkey_server.url) as locks:
            lease = await locks.lock(unique_name, ttl=0.5, renew=False).acquire()
            time.sleep(1)  # noqa: ASYNC251 - that is the fault
            with pytest.raises(holdfast.LeaseLost, match="expired"):
                lease.ensure_held()
            with pytest.raises(holdfast.LeaseLost):
                await lease.release()

    asyncio.run(main())


def test_15_a_held_gil_hides_no_loss(far: Any, api: Api, unique_name: str) -> None:
    lease = far.lock(unique_name, ttl=0.5).acquire()
    told: list[object] = []
    lease.on_lost(told.append)
    ctypes.PyDLL(None).usleep(900_000)  # does not let go of the interpreter: no thread renews, none looks
    assert lease.remaining() == 0
    with pytest.raises(holdfast.LeaseLost):
        lease.ensure_held()
    eventually(lambda: told)


class Bug(RuntimeError):
    pass


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_16_a_bug_in_the_engines_thread_ends_nothing_else(valkey_server: embedded.Server, unique_name: str) -> None:
    with holdfast.connect(valkey_server.url) as locks:
        lease = locks.lock(unique_name, ttl=1.5).acquire()
        engine = locks._session.driver.engine

        def dies() -> None:
            raise Bug

        thread = engine.thread
        for _ in range(3):
            engine.call(dies)
        eventually(lambda: lease.remaining() < 1.1)
        eventually(lambda: lease.remaining() > 1.2, "it is renewed")
        assert thread is not None and engine.thread is thread and thread.is_alive()
        lease.release()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_16_a_renewal_that_fails_oddly_is_repeated(
    valkey_server: embedded.Server, unique_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with holdfast.connect(valkey_server.url) as locks:
        lease = locks.lock(unique_name, ttl=2).acquire()
        renewals = locks._session.driver.client.renewals
        start, calls = renewals.start, []

        def fails_once(due: Any, now: float) -> None:
            calls.append(due)
            if len(calls) == 1:
                raise Bug
            start(due, now)

        monkeypatch.setattr(renewals, "start", fails_once)
        eventually(lambda: len(calls) >= 3, "renewed again, and on")
        assert lease.state is holdfast.LeaseState.HELD
        lease.release()


def test_16_a_renewal_that_fails_oddly_is_repeated_in_a_task(
    valkey_server: embedded.Server, unique_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.asyncio import connect

    shown: list[Any] = []
    monkeypatch.setattr("threading.excepthook", lambda args: shown.append(args.exc_type))

    async def main() -> None:
        async with connect(valkey_server.url) as locks:
            lease = await locks.lock(unique_name, ttl=2).acquire()
            await lease.extend(2)  # what was extended is renewed by a protocol from the start
            (renewal, release), calls = lease._record._asks or lease._record._ask_by(), []

            def fails_once(ttl_ms: int, *order: Any) -> Any:
                calls.append(ttl_ms)

                async def fails() -> bool:
                    raise Bug

                return fails() if len(calls) == 1 else renewal(ttl_ms, *order)

            lease._record._asks = fails_once, release
            async with asyncio.timeout(30):
                while len(calls) < 3:
                    await asyncio.sleep(0.01)
            lease.ensure_held()
            await lease.release()

    asyncio.run(main())
    assert shown == [Bug], "a bug is not kept quiet"


def test_17_max_hold_ends_a_body_that_never_ends(far: Any, look: Any, unique_name: str) -> None:
    lease = far.lock(unique_name, ttl=0.6, max_hold=1.5).acquire()
    told: list[holdfast.LeaseLost] = []
    lease.on_lost(told.append)
    eventually(lambda: told)
    assert told[0].reason == "max_hold"
    eventually(lambda: not look.exists(key_of(unique_name)), "others get in although the worker hangs")


# ---------------------------------------------------------------- clocks


@pytest.fixture
def shifted() -> Iterator[tuple[Clock, embedded.Server]]:
    """A server whose wall clock can be made to jump."""
    if shutil.which("gcc") is None:
        pytest.skip("making a clock jump needs gcc")
    clock = Clock()
    try:
        with embedded.server(port=0, password="", executable=clock.program) as server:
            yield clock, server
    finally:
        clock.close()


def test_41_a_server_clock_ahead_is_a_loss_and_fencing_tokens_grow(
    api: Api, shifted: tuple[Clock, embedded.Server], looking_at: Any, unique_name: str
) -> None:
    clock, server = shifted
    look = looking_at(server)
    locks, others = api.connect(server.url), api.connect(server.url)
    lease = locks.lock(unique_name, ttl=3).acquire()
    clock.jump(60)
    with others.lock(unique_name, ttl=LONG_S) as after:
        assert after.fencing_token > lease.fencing_token, "the holder cannot see it, the resource can"
        assert lease.lost.wait(60), "told at its next renewal"
        assert lease.lost.reason == "taken"
        assert look.get(key_of(unique_name)) == after.token


def test_42_a_server_clock_set_back_ends_with_the_next_renewal(
    api: Api, shifted: tuple[Clock, embedded.Server], looking_at: Any, unique_name: str
) -> None:
    clock, server = shifted
    look = looking_at(server)
    locks = api.connect(server.url)

    def written_ahead_ms() -> float:
        look.set("not renewed", 1, px=60_000)
        return float(look.pexpiretime("not renewed") - 60_000 - time.time() * 1000)

    clock.jump(120)
    eventually(lambda: written_ahead_ms() > 100_000, "a server does not look at its clock for each command")
    lease = locks.lock(unique_name, ttl=3).acquire()
    first = lease.fencing_token
    clock.jump(0)
    # Not the lock's: a renewal may have come before this look.
    eventually(lambda: look.pttl("not renewed") > 100_000, "the server would keep it for two minutes more")
    eventually(lambda: look.pttl(key_of(unique_name)) <= 3000, "a renewal sets it right")
    lease.ensure_held()
    lease.release()
    with locks.lock(unique_name) as after:
        assert after.fencing_token > first, "also on a clock that was set back"


def test_43_jumps_of_the_server_clock_hold_up_no_waiter(
    api: Api, shifted: tuple[Clock, embedded.Server], looking_at: Any, unique_name: str
) -> None:
    clock, server = shifted
    look = looking_at(server)
    locks, others = api.connect(server.url), api.connect(server.url)
    for jump in (3600, -3600):
        lease = locks.lock(unique_name, ttl=LONG_S * 100, renew=False).acquire()
        waiting = api.start(others.lock(unique_name, ttl=LONG_S * 100).acquire)
        eventually(lambda: look.zcard(queue_of(unique_name)) == 1)
        clock.jump(jump)
        lease.release()
        after = waiting.result(60)
        assert after.fencing_token > lease.fencing_token
        assert int(look.get(fence_of(unique_name))) == after.fencing_token
        # What the server wrote in the moment of a jump forward may be over at once, as anything is that it has written.
        with contextlib.suppress(holdfast.LeaseLost):
            after.release()


def test_44_jumps_of_the_clients_wall_clock_change_nothing(
    api: Api, valkey_server: embedded.Server, look: Any, unique_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("gcc") is None:
        pytest.skip("making a clock jump needs gcc")
    clock = Clock()
    try:
        folder = os.path.dirname(clock.program)
        monkeypatch.setenv("HOLDFAST_LAB_CLOCK", os.path.join(folder, "offset"))
        monkeypatch.setenv("LD_PRELOAD", os.path.join(folder, "clock.so"))
        with workers(api.name, valkey_server.url, 2) as (holder, waiter):
            held = holder.ask(f"acquire {unique_name} 2")
            waiter.tell(f"acquire {unique_name} 2")
            eventually(lambda: look.zcard(queue_of(unique_name)) == 1)
            for jump in (86_400, -86_400):
                clock.jump(jump)
                until = time.monotonic() + 2.5
                eventually(lambda until=until: time.monotonic() > until, "more than its ttl has passed")  # type: ignore[misc]
                assert holder.ask("ensure")["state"] == "HELD"
                assert look.get(key_of(unique_name)) == held["token"]
            holder.ask("release")
            after = waiter.answer()
            assert after["state"] == "HELD"
            assert after["fence"] > held["fence"]
    finally:
        clock.close()


# ---------------------------------------------------------------- readers and writers


def test_54_a_killed_reader_is_not_counted_for_ever_and_writers_do_not_starve(
    far: Any, api: Api, valkey_server: embedded.Server, unique_name: str
) -> None:
    dead = api.connect(valkey_server.url).rwlock(unique_name, ttl=2, renew=False).read().acquire()
    writing = api.start(far.rwlock(unique_name, ttl=LONG_S).write().acquire)

    def a_reader_is_turned_away() -> bool:
        lease = far.rwlock(unique_name).read().try_acquire()
        if lease is not None:
            lease.release()
        return lease is None

    eventually(a_reader_is_turned_away, "the writer goes first")
    writer = writing.result(60)
    assert writer.fencing_token > dead.fencing_token
    writer.release()
    with pytest.raises(holdfast.LeaseLost):
        dead.release()

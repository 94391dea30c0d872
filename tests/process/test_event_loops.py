"""Clients over several event loops, forks and ends: nothing leaks, nothing warns."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import signal
import ssl
import subprocess
import sys
import threading
import time
import warnings
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio

import holdfast.asyncio
from holdfast import embedded
from holdfast._front import aio
from holdfast._front.home import Home
from holdfast.asyncio import ClientClosed, LeaseLost, LeaseState, ServerError
from testbed.waiting import eventually
from tests.support.relay import relay

PATIENCE_S = 30.0


def python(code: str, url: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program in which every warning is an error, and say what it printed."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code, url],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S * 3,
        check=False,
        env={**os.environ, **environment},
    )


def test_a_closed_client_leaves_nothing_to_warn_about(valkey_server: embedded.Server, unique_name: str) -> None:
    done = python(
        f"""
import asyncio, sys
import holdfast.asyncio
async def main():
    async with holdfast.asyncio.connect(sys.argv[1]) as locks:
        lock = locks.lock({unique_name!r})
        async with lock as lease:
            waiting = asyncio.create_task(lock.acquire())
            await asyncio.sleep(0.05)
        async with await waiting:
            pass
        kept = await lock.acquire()
    print(kept.state.name, len(asyncio.all_tasks()))
asyncio.run(main())
""",
        valkey_server.url,
    )
    assert (done.stdout, done.stderr, done.returncode) == ("LOST 1\n", "", 0)
    with redis.Redis.from_url(valkey_server.url) as raw:
        assert raw.exists(f"holdfast:{{{unique_name}}}") == 0


@pytest.mark.parametrize("error", [NotImplementedError(), OSError(errno.ENOSPC, "no more can be watched")])
def test_a_loop_that_cannot_watch_sockets_leaves_reading_to_the_engine(
    valkey_server: embedded.Server, unique_name: str, error: Exception
) -> None:
    told: list[dict[str, Any]] = []

    class Loop(asyncio.SelectorEventLoop):
        def add_reader(self, *_: Any) -> None:  # type: ignore[override]
            raise error

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        async with holdfast.asyncio.connect(valkey_server.url) as locks:
            for _ in range(3):
                async with locks.lock(unique_name):
                    await asyncio.sleep(0)

    with asyncio.Runner(loop_factory=Loop) as runner:
        runner.run(main())
    assert told == []


def test_another_event_loop_starts_afresh(valkey_server: embedded.Server, unique_name: str) -> None:
    """Also when the first loop ended without a word; with every warning an error."""
    done = python(
        f"""
import asyncio, gc, sys
import holdfast.asyncio
locks = holdfast.asyncio.connect(sys.argv[1])
leases = []
async def first():
    leases.append(await locks.lock({unique_name!r}, ttl=0.5).acquire())
async def second():
    lease = await locks.lock({unique_name!r}).acquire(timeout=60)
    print(leases[0].state.name, lease.state.name, lease.fencing_token > leases[0].fencing_token)
    try:
        await leases[0].release()
    except holdfast.asyncio.LeaseLost as error:
        print(error.reason)
    print(lease.state.name)
    await lease.release()
    await locks.close()
asyncio.run(first())
gc.collect()
asyncio.run(second())
""",
        valkey_server.url,
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["LOST HELD True", "closed", "HELD"]


def test_a_lease_can_be_released_in_another_loop(valkey_server: embedded.Server, unique_name: str) -> None:
    locks = holdfast.asyncio.connect(valkey_server.url)
    lock = locks.lock(unique_name)

    async def take() -> Any:
        return await lock.acquire()

    async def give(lease: Any) -> None:
        await lease.release()
        assert await lock.locked() is False
        await locks.close()

    # One loop stays alive while the other one runs.
    loop = asyncio.new_event_loop()
    lease = loop.run_until_complete(take())
    try:
        asyncio.run(give(lease))
        assert lease.state is LeaseState.RELEASED
        loop.run_until_complete(asyncio.sleep(0.05))
    finally:
        loop.close()


def test_one_client_serves_several_loops_at_once(valkey_server: embedded.Server, unique_name: str) -> None:
    """Each in a thread of its own: they exclude each other, and one that ends leaves the others alone."""
    locks = holdfast.asyncio.connect(valkey_server.url)
    inside: list[int] = []
    ended = threading.Event()
    rounds = 40

    async def work(number: int) -> None:
        async def one() -> None:
            for _ in range(rounds // 4):
                async with locks.lock(unique_name, ttl=30):
                    inside.append(number)
                    assert len(inside) == 1, "two holders"
                    await asyncio.sleep(0.001)
                    inside.pop()

        async with locks.lock(f"{unique_name}-{number}", ttl=30) as lease:
            await asyncio.gather(*(one() for _ in range(4)))
            if number:
                await asyncio.to_thread(ended.wait, PATIENCE_S)
                lease.ensure_held()
                await one()

    with ThreadPoolExecutor(4) as pool:
        loops = [pool.submit(asyncio.run, work(number)) for number in range(4)]
        loops[0].result(PATIENCE_S * 2)
        ended.set()
        for loop in loops[1:]:
            loop.result(PATIENCE_S * 2)
    asyncio.run(locks.close())


def test_a_loss_is_told_in_the_loop_that_holds(valkey_server: embedded.Server, unique_name: str) -> None:
    """Another loop finds it, by a look at the lease."""
    locks = holdfast.asyncio.connect(valkey_server.url)
    held: Future[Any] = Future()
    told: list[int] = []

    async def hold() -> int:
        with pytest.raises(LeaseLost):
            async with locks.lock(unique_name, ttl=0.5, renew=False) as lease:
                lease.on_lost(lambda _: told.append(threading.get_ident()))
                held.set_result(lease)
                await asyncio.sleep(PATIENCE_S)
        assert await lease.lost.wait(PATIENCE_S)
        return threading.get_ident()

    async def look() -> None:
        lease = await asyncio.wrap_future(held)
        assert await lease.lost.wait(PATIENCE_S)
        assert lease.state is LeaseState.LOST

    with ThreadPoolExecutor(2) as pool:
        holds, looks = pool.submit(asyncio.run, hold()), pool.submit(asyncio.run, look())
        looks.result(PATIENCE_S * 2)
        assert [holds.result(PATIENCE_S * 2)] == told
    asyncio.run(locks.close())


def test_a_loss_is_told_before_who_waits_for_it_goes_on(
    valkey_server: embedded.Server, unique_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that waits may end the event loop, in which the callback would never be called."""
    locks = holdfast.asyncio.connect(valkey_server.url)
    told: list[LeaseLost] = []

    async def hold() -> None:
        lease = await locks.lock(unique_name, ttl=0.2, renew=False).acquire()
        lease.on_lost(told.append)
        tell = lease._record.home.tell

        def slowly(*args: Any) -> None:
            time.sleep(0.2)
            tell(*args)

        monkeypatch.setattr(lease._record.home, "tell", slowly)
        assert await lease.lost.wait(PATIENCE_S)

    asyncio.run(hold())
    assert len(told) == 1
    asyncio.run(locks.close())


def test_what_a_loop_held_that_was_closed_without_a_word_is_released(
    valkey_server: embedded.Server, unique_name: str
) -> None:
    """At the latest when its client is used in the next loop; also what a task of it was waiting for."""
    locks = holdfast.asyncio.connect(valkey_server.url)
    loop = asyncio.new_event_loop()
    tasks: list[asyncio.Task[Any]] = []

    async def first() -> Any:
        lease = await locks.lock(unique_name, ttl=600).acquire()
        tasks.append(loop.create_task(locks.lock(unique_name, ttl=600).acquire()))
        tasks.append(loop.create_task(locks.lock(f"{unique_name}-2", ttl=600).acquire()))
        await asyncio.sleep(0)
        return lease

    async def second() -> None:
        async with asyncio.timeout(PATIENCE_S):
            for name in (unique_name, f"{unique_name}-2"):
                async with locks.lock(name, ttl=600):
                    pass
        await locks.close()

    lease = loop.run_until_complete(first())
    loop.close()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of asyncio, that tasks were destroyed
        asyncio.run(second())
        assert (lease.state, lease.lost.reason) == (LeaseState.LOST, "closed")
        tasks.clear()
        gc.collect()


def test_a_task_is_never_taken_for_one_that_has_ended(valkey_server: embedded.Server, unique_name: str) -> None:
    """A task's id may be that of one which holds a lock still, as its lease went elsewhere."""

    async def main() -> int:
        kept: list[Any] = []
        numbers: dict[int, int] = {}
        reused = 0
        async with holdfast.asyncio.connect(valkey_server.url) as locks:

            async def hold(number: int) -> None:
                kept.append(await locks.lock(f"{unique_name}-{number}", ttl=30).acquire())
                numbers[id(asyncio.current_task())] = number

            async def wait() -> None:
                nonlocal reused
                number = numbers.get(id(asyncio.current_task()))
                if number is None:
                    return
                reused += 1
                with pytest.raises(holdfast.AcquireTimeout):
                    await locks.lock(f"{unique_name}-{number}", deadlock_check=0.1).acquire(timeout=1)

            await asyncio.gather(*(hold(number) for number in range(50)))
            await asyncio.sleep(0.1)
            gc.collect()
            for _ in range(10):  # which memory a new task gets is the allocator's choice
                await asyncio.gather(*(wait() for _ in range(500)))
                if reused:
                    break
            for lease in kept:
                await lease.release()
        return reused

    assert asyncio.run(main()) > 0, "no id came again: the test shows nothing"


def test_closing_closes(valkey_server: embedded.Server, unique_name: str) -> None:
    async def main() -> None:
        locks = holdfast.asyncio.connect(valkey_server.url)
        lock = locks.lock(unique_name)
        lease = await lock.acquire()
        waiting = asyncio.create_task(locks.lock(unique_name).acquire())
        while await lock.waiters() == 0:
            await asyncio.sleep(0.005)
        await locks.close()
        await locks.close()
        with pytest.raises(ClientClosed):
            await asyncio.wait_for(waiting, PATIENCE_S)
        with pytest.raises(ClientClosed):
            await lock.acquire()
        assert (lease.state, lease.lost.reason) == (LeaseState.LOST, "closed")
        raw = redis.asyncio.Redis.from_url(valkey_server.url)
        assert await raw.exists(f"holdfast:{{{unique_name}}}") == 0
        await raw.aclose()

    asyncio.run(main())


def test_a_dropped_lease_says_where_it_came_from(valkey_server: embedded.Server, unique_name: str) -> None:
    async def main() -> None:
        async with holdfast.asyncio.connect(valkey_server.url) as locks:
            lease = await locks.lock(unique_name, ttl=0.5).acquire()
            line = sys._getframe().f_lineno - 1
            with pytest.warns(ResourceWarning, match=f"{unique_name}.*{Path(__file__).name}:{line}"):
                del lease
            # No one renews it: someone else gets it.
            async with await locks.lock(unique_name).acquire(timeout=PATIENCE_S):
                pass

    asyncio.run(main())


def test_a_lease_dropped_by_a_task(valkey_server: embedded.Server, unique_name: str) -> None:
    async def main() -> None:
        async with holdfast.asyncio.connect(valkey_server.url) as locks:

            async def drop() -> None:
                await asyncio.create_task(locks.lock(unique_name, ttl=0.5).acquire())
                await asyncio.sleep(0)  # until now the event loop has kept the task that has ended, and its result

            with pytest.warns(ResourceWarning, match=f"{unique_name}.*start of a task"):
                await drop()

    asyncio.run(main())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_the_child_of_a_fork_holds_nothing_and_starts_afresh(valkey_server: embedded.Server, unique_name: str) -> None:
    done = python(
        f"""
import asyncio, os, sys
import holdfast.asyncio
locks = holdfast.asyncio.connect(sys.argv[1])
lock = locks.lock({unique_name!r}, ttl=6)
async def child(lease):
    assert lease.state is holdfast.asyncio.LeaseState.LOST, lease
    try:
        await lease.release()
    except holdfast.asyncio.LeaseLost as error:
        assert error.reason == "forked", error
    else:
        raise AssertionError
    assert await lock.try_acquire() is None
    async with locks.lock({unique_name + "-child"!r}):
        pass
    await locks.close()
async def main():
    lease = await lock.acquire()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            asyncio.events._set_running_loop(None)  # what a library that forks in a loop has to do
            asyncio.run(child(lease))
            status = 0
        finally:
            sys.stdout.flush()
            os._exit(status)
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            break
        await asyncio.sleep(0.02)
    print("child", os.waitstatus_to_exitcode(status))
    lease.ensure_held()
    left = lease.remaining()
    while lease.remaining() <= left:  # until the parent renews it, as before
        lease.ensure_held()
        left = lease.remaining()
        await asyncio.sleep(0.02)
    await lease.release()
    await locks.close()
    print("parent", lease.state.name)
asyncio.run(main())
""",
        valkey_server.url,
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["child 0", "parent RELEASED"]


def test_ctrl_c_gives_back(valkey_server: embedded.Server, unique_name: str) -> None:
    """In the body of one lock, and waiting for another."""
    code = f"""
import asyncio, sys
import holdfast.asyncio
async def main():
    async with holdfast.asyncio.connect(sys.argv[1]) as locks:
        async with locks.lock({unique_name + "-a"!r}):
            print("in", flush=True)
            async with locks.lock({unique_name + "-b"!r}):
                pass
asyncio.run(main())
"""
    with redis.Redis.from_url(valkey_server.url, decode_responses=True) as raw:
        raw.set(f"holdfast:{{{unique_name}-b}}", "someone", px=60_000)
        with subprocess.Popen(
            [sys.executable, "-c", code, valkey_server.url], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as program:
            try:
                assert program.stdout is not None
                assert program.stdout.readline() == "in\n"
                program.send_signal(signal.SIGINT)
                _, stderr = program.communicate(timeout=PATIENCE_S)
            finally:
                program.kill()
        assert "KeyboardInterrupt" in stderr
        assert raw.exists(f"holdfast:{{{unique_name}-a}}") == 0
        assert raw.zcard(f"holdfast:{{{unique_name}-b}}:queue") == 0
        assert raw.get(f"holdfast:{{{unique_name}-b}}") == "someone"


@pytest.mark.parametrize(
    "run, state", [("asyncio.run", "LOST"), ("asyncio.new_event_loop().run_until_complete", "HELD")]
)
@pytest.mark.parametrize("end", ["pass", "raise SystemExit(3)", "del lease", "1 / 0"])
def test_what_is_held_at_the_interpreters_end_is_released(
    valkey_server: embedded.Server, unique_name: str, end: str, run: str, state: str
) -> None:
    """`asyncio.run` ends in order, other loops are just dropped.

    Also when its event loop has ended long before, and when the server has a name that must be looked up."""
    code = f"""
import asyncio, sys
import holdfast.asyncio
locks = holdfast.asyncio.connect(sys.argv[1])
async def main():
    return await locks.lock({unique_name!r}, ttl=600).acquire()
lease = {run}(main())
print(lease.state.name, flush=True)
{end}
"""
    done = subprocess.run(
        [sys.executable, "-c", code, f"redis://localhost:{valkey_server.port}"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S * 3,
        check=False,
    )
    assert done.stdout == f"{state}\n"
    assert done.returncode == {"pass": 0, "del lease": 0, "1 / 0": 1}.get(end, 3)
    assert end == "1 / 0" or done.stderr == ""
    with redis.Redis.from_url(valkey_server.url) as raw:
        assert raw.exists(f"holdfast:{{{unique_name}}}") == 0


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("decode", [False, True])
def test_whatever_the_client_is_told(
    valkey_server: embedded.Server, unique_name: str, protocol: int, decode: bool
) -> None:
    async def main() -> None:
        client = redis.asyncio.Redis.from_url(
            valkey_server.url,
            protocol=protocol,
            decode_responses=decode,
            db=3,
            client_name="me",
            single_connection_client=False,
        )
        async with holdfast.asyncio.Client(client) as locks:
            lock = locks.lock(unique_name)
            async with lock as lease:
                assert await client.get(f"holdfast:{{{unique_name}}}") in (lease.token, lease.token.encode())
                waiting = asyncio.create_task(lock.acquire())
                while await lock.waiters() == 0:
                    await asyncio.sleep(0.005)
            async with await waiting as later:
                assert later.fencing_token > lease.fencing_token
        await client.aclose()

    asyncio.run(main())


def test_a_wrong_password_is_one_clear_error(private_server: Any) -> None:
    server = private_server(password="right")

    async def main() -> None:
        wrong = redis.asyncio.Redis(host=server.host, port=server.port, password="wrong")
        async with holdfast.asyncio.Client(wrong) as locks:
            with pytest.raises(ServerError) as caught:
                await locks.lock("x").acquire()
            assert caught.value.kind == "WRONGPASS"
        async with holdfast.asyncio.connect(server.url) as locks, locks.lock("x"):
            pass

    asyncio.run(main())


def test_over_tls(valkey_server: embedded.Server, unique_name: str, tmp_path: Path) -> None:
    """The server's end of TLS is a small proxy, since not every server is built with it."""
    made = subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"),
            *("-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", "key.pem", "-out", "cert.pem"),
        ],
        cwd=tmp_path,
        capture_output=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr

    async def main() -> None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")

        async with relay(valkey_server, tls=context) as port:
            url = f"rediss://127.0.0.1:{port}?ssl_ca_certs={tmp_path / 'cert.pem'}"
            async with holdfast.asyncio.connect(url) as locks:
                lock = locks.lock(unique_name)
                async with lock:
                    waiting = asyncio.create_task(lock.acquire())
                    while await lock.waiters() == 0:
                        await asyncio.sleep(0.005)
                async with await waiting:
                    pass
                many = [locks.lock(f"{unique_name}-{number}") for number in range(200)]
                leases = await asyncio.gather(*(each.acquire() for each in many))
                await asyncio.gather(*(lease.release() for lease in leases))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asyncio.run(main())


@pytest.mark.parametrize("ttl, blocked_s", [(0.6, 2.0), pytest.param(5.0, 20.0, marks=pytest.mark.thorough)])
def test_15_a_blocked_loop_keeps_its_leases(
    valkey_server: embedded.Server, unique_name: str, ttl: float, blocked_s: float
) -> None:
    """The loop computes for longer than the ttl: others do not get the lock; it hears of a loss when it waits again."""

    async def main() -> None:
        async with holdfast.asyncio.connect(valkey_server.url) as locks:
            raw = redis.Redis.from_url(valkey_server.url, decode_responses=True)
            told: list[LeaseLost] = []
            with pytest.raises(LeaseLost) as caught:
                async with locks.lock(unique_name, ttl=ttl) as lease:
                    lease.on_lost(told.append)
                    time.sleep(blocked_s)  # noqa: ASYNC251 - that is what this is about
                    lease.ensure_held()
                    assert raw.get(f"holdfast:{{{unique_name}}}") == lease.token
                    raw.set(f"holdfast:{{{unique_name}}}", "another", px=60_000)
                    time.sleep(ttl)  # noqa: ASYNC251 - a renewal finds it taken, or the lease ends by its deadline
                    with pytest.raises(LeaseLost):
                        lease.ensure_held()
                    assert not told
                    await asyncio.sleep(PATIENCE_S)
            assert lease.state is LeaseState.LOST
            await asyncio.sleep(0)
            assert [error.reason for error in told] == [caught.value.reason]
            assert raw.get(f"holdfast:{{{unique_name}}}") == "another"
            raw.close()

    asyncio.run(main())


def test_a_loop_that_was_blocked_finds_its_lease_lost(valkey_server: embedded.Server, unique_name: str) -> None:
    """A coroutine that blocks the loop for longer than a lease lasts is told as soon as it waits again."""

    async def main() -> None:
        async with holdfast.asyncio.connect(valkey_server.url) as locks:
            with pytest.raises(LeaseLost):
                async with locks.lock(unique_name, ttl=0.2, renew=False) as lease:
                    time.sleep(0.3)  # noqa: ASYNC251 - that is what this is about
                    await asyncio.sleep(PATIENCE_S)
            assert lease.state is LeaseState.LOST

    asyncio.run(main())


def test_what_a_loop_does_not_wait_for_at_its_end_is_released_behind_it(
    valkey_server: embedded.Server, look: redis.Redis, unique_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the process is stopped amid its end: the time is over before the engine has begun with it."""
    monkeypatch.setattr(aio, "_END_MAX_S", 0.05)
    locks = holdfast.asyncio.connect(valkey_server.url, ttl=600)

    async def main() -> Any:
        lease = await locks.lock(unique_name).acquire()
        locks._session.driver.engine.call(time.sleep, 0.5)
        return lease

    lease = asyncio.run(main())
    assert lease.state is LeaseState.LOST
    eventually(lambda: not look.exists(f"holdfast:{{{unique_name}}}"), "it is released")


async def _has_introduced_itself(locks: Any) -> None:
    """The client has said who it is, and nothing is under way: the engine has heard all that it was told before."""
    driver = locks._session.driver
    (server,) = driver.topology.nodes()
    while True:
        heard = asyncio.Event()
        driver.engine.call(asyncio.get_running_loop().call_soon_threadsafe, heard.set)
        await heard.wait()
        if not (server.link.owes or len(driver.client.tasks)):
            return
        await asyncio.sleep(0.01)


def test_a_loop_does_not_wake_for_replies_to_the_engine(
    valkey_server: embedded.Server, unique_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    woken, readable = 0, Home._readable

    def counted(home: Home) -> None:
        nonlocal woken
        woken += 1
        readable(home)

    monkeypatch.setattr(Home, "_readable", counted)

    async def main() -> None:
        nonlocal woken
        connect = holdfast.asyncio.connect
        async with connect(valkey_server.url) as holder, connect(valkey_server.url) as locks:
            await (await locks.lock(f"{unique_name}-beside").acquire()).release()  # connects
            await _has_introduced_itself(locks)
            async with holder.lock(unique_name):
                woken = 0
                waiting = asyncio.create_task(locks.lock(unique_name).acquire())
                await asyncio.sleep(0.2)
                assert woken <= 1, "it woke for more than the reply to its own request"
            await (await waiting).release()

    asyncio.run(main())


def test_a_request_alone_leaves_before_the_loop_turns(valkey_server: embedded.Server, unique_name: str) -> None:
    """Several that come while one is under way go together, at the end of the turn."""

    async def main() -> None:
        async with holdfast.asyncio.connect(valkey_server.url) as locks:
            await (await locks.lock(unique_name).acquire()).release()  # connects
            await _has_introduced_itself(locks)
            names = [f"{unique_name}:{number}" for number in range(3)]
            acquires = [asyncio.ensure_future(locks.lock(name).acquire()) for name in names]
            await asyncio.sleep(0)  # each has begun
            until = time.monotonic() + PATIENCE_S
            while not raw.exists(f"holdfast:{{{names[0]}}}"):
                assert time.monotonic() < until, "the first request was not sent"
            assert not raw.exists(f"holdfast:{{{names[2]}}}")
            for acquire in acquires:
                await (await acquire).release()

    with redis.Redis.from_url(valkey_server.url) as raw:
        asyncio.run(main())


def test_what_is_to_stay_for_a_while_is_cut_to_that_though_its_release_was_cancelled(
    valkey_server: embedded.Server, look: redis.Redis, unique_name: str
) -> None:
    async def main() -> None:
        async with holdfast.asyncio.connect(valkey_server.url) as locks:
            lease = await locks.lock(unique_name, ttl=60, at_least=20).acquire()
            release = asyncio.create_task(lease.release())
            await asyncio.sleep(0)
            release.cancel()
            with pytest.raises(asyncio.CancelledError):
                await release

    asyncio.run(main())
    assert 0 < look.pttl(f"holdfast:{{{unique_name}}}") <= 20_000

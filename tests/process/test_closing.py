"""Clients that end while servers hang or are gone, with many leases, and where no thread can be started."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import redis

import holdfast
import holdfast.asyncio
from holdfast import embedded
from holdfast._core.effects import Command, Sleep
from holdfast._core.lease_cache import CachedLease
from holdfast._core.settings import DEFAULT
from holdfast._engine.client import Client
from holdfast._sync.by_token import TokenLock
from testbed.proxy import Proxy
from testbed.waiting import PATIENCE_S, eventually

#: What the end of a client may take with a server that hangs, on a busy machine, s; it is about two.
END_S = 8.0
#: How long it may take over releases while the server answers, s.
RELEASE_S = 5.0


_MANY = {
    "threads": """
import signal, sys, time, threading, holdfast
def main():
    clients = [holdfast.connect(sys.argv[1], ttl=600) for _ in range(int(sys.argv[3]))]
    leases = [client.lock(f"{sys.argv[2]}-{n}-{i}").acquire()
              for n, client in enumerate(clients) for i in range(int(sys.argv[4]))]
    clients[0].lock(sys.argv[2]).acquire().release(wait=True)  # so that the server knows that script
    print("held", flush=True)
    sys.stdin.readline()
    return clients, leases
""",
    "asyncio": """
import asyncio, sys, time, holdfast.asyncio
async def take():
    clients = [holdfast.asyncio.connect(sys.argv[1], ttl=600) for _ in range(int(sys.argv[3]))]
    locks = [client.lock(f"{sys.argv[2]}-{n}-{i}") for n, client in enumerate(clients) for i in range(int(sys.argv[4]))]
    leases = []  # some at a time: 20,000 at once take a busy machine longer than one request may take
    while len(leases) < len(locks):
        leases += await asyncio.gather(*[lock.acquire() for lock in locks[len(leases):][:500]])
    await (await clients[0].lock(sys.argv[2]).acquire()).release(wait=True)
    print("held", flush=True)
    sys.stdin.readline()
    return clients, leases
""",
}
_CLOSE = {
    "threads": """
clients, leases = main()
begun_at = time.monotonic()
for client in clients: client.close()
took_s = time.monotonic() - begun_at
""",
    "asyncio": """
async def main():
    clients, leases = await take()
    begun_at = time.monotonic()
    for client in clients: await client.close()
    return leases, time.monotonic() - begun_at
leases, took_s = asyncio.run(main())
""",
}
_RETURN = {
    "threads": "kept = main()\n",
    "asyncio": "async def main():\n    return await take()\nkept = asyncio.run(main())\n",
}
_STATES = "print({(lease.state.name, lease.lost.reason) for lease in leases})\n"


def _started(api: str, code: str, url: str, name: str, clients: int, leases: int) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", _MANY[api] + code, url, name, str(clients), str(leases)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    if (said := process.stdout.readline()) != "held\n":
        pytest.fail(said + process.communicate(timeout=60)[1])
    return process


@pytest.mark.parametrize("api", _MANY)
@pytest.mark.parametrize("end", ["close", "exit"])
def test_the_server_is_gone(api: str, end: str, private_server: Any, unique_name: str) -> None:
    server = private_server()
    code = _CLOSE[api] + _STATES if end == "close" else _RETURN[api]
    process = _started(api, code, server.url, unique_name, 1, 300)
    server.close()
    begun_at = time.monotonic()
    said, errors = process.communicate("go on\n", timeout=60)
    assert (process.returncode, errors) == (0, "")
    assert end == "exit" or said == "{('LOST', 'closed')}\n"
    assert time.monotonic() - begun_at < END_S


@pytest.mark.parametrize("api", _MANY)
def test_eight_clients_end_side_by_side_at_a_server_that_hangs(api: str, private_server: Any, unique_name: str) -> None:
    server = private_server()
    process = _started(api, _RETURN[api], server.url, unique_name, 8, 3)
    server.pause()
    try:
        begun_at = time.monotonic()
        _, errors = process.communicate("go on\n", timeout=60)
        took_s = time.monotonic() - begun_at
    finally:
        server.resume()
    assert (process.returncode, "Traceback" in errors) == (0, False), errors
    assert took_s < END_S
    if api == "threads":
        assert errors == ""


def test_who_cleans_up_is_told_though_a_connection_is_read_when_its_client_ends(
    private_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests on such a connection end a moment later, when nothing is driven any further."""
    server, end, errors = private_server(), Client.end, list[BaseException]()

    async def cleans_up() -> None:
        try:
            await Command(("GET", "x"), PATIENCE_S, key="x")
        finally:
            await Command(("GET", "y"), PATIENCE_S, key="y")

    def read_at_the_end(self: Client) -> None:
        (link,) = self.topology.nodes()[0]._all
        link._reading[""] = (0,)
        self.engine.later(0.1, link._reading.clear)
        end(self)

    def ask() -> None:
        try:
            client._session.run(cleans_up())
        except BaseException as error:
            errors.append(error)

    monkeypatch.setattr(Client, "end", read_at_the_end)
    client = holdfast.connect(server.url)
    client.lock("x").acquire().release()
    asking = threading.Thread(target=ask, daemon=True)
    server.pause()
    try:
        asking.start()
        eventually(lambda: client._session.driver.client.tasks, "it is under way")
        client.close()
        asking.join(PATIENCE_S)
    finally:
        server.resume()
    assert [type(error) for error in errors] == [holdfast.ClientClosed]


def _left(server: embedded.Server, name: str) -> int:
    with redis.Redis.from_url(server.url, decode_responses=True) as raw:
        return sum(not key.endswith(":fence") for key in raw.scan_iter(f"holdfast:{{{name}*", count=10_000))


def _reads(server: embedded.Server) -> int:
    with redis.Redis.from_url(server.url) as raw:
        return int(raw.info("stats")["total_reads_processed"])


def test_a_server_that_is_slow_to_connect_is_told(
    wire: Proxy, valkey_server: embedded.Server, unique_name: str
) -> None:
    """A slow server has as long as one that is connected and silent."""
    client = holdfast.connect(wire.url)
    lease = client.lock(unique_name, ttl=60).acquire()
    wire.cut()
    wire.slow(0.3)  # each way
    client.close()
    assert lease.lost.reason == "closed"
    assert _left(valkey_server, unique_name) == 0


@pytest.mark.parametrize(
    ("api", "leases"),
    [
        pytest.param(api, leases, marks=[pytest.mark.thorough] if leases > 5_000 else [])
        for api in _MANY
        for leases in (2_000, 20_000)
    ],
)
def test_many_leases_are_released(api: str, leases: int, private_server: Any, unique_name: str) -> None:
    """All of them, many in one write; where the machine is too slow for that, as many as the time for it allows."""
    server = private_server()
    process = _started(api, _CLOSE[api] + _STATES + "print(took_s)\n", server.url, unique_name, 1, leases)
    reads = _reads(server)
    output, errors = process.communicate("go on\n", timeout=120)
    reads = _reads(server) - reads
    states, took_s = output.splitlines()
    assert (states, errors) == ("{('LOST', 'closed')}", "")
    left = _left(server, unique_name)
    assert left == 0 or float(took_s) >= RELEASE_S
    assert leases - left > 4 * reads, reads


# ---------------------------------------------------------------------- no more threads


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`no_threads()`: from now on none can be started by the library, as in a container at its limit."""
    start = threading.Thread.start

    def limited(thread: threading.Thread) -> None:
        if thread.name.startswith("holdfast"):
            raise RuntimeError("can't start new thread")
        start(thread)

    return lambda: monkeypatch.setattr(threading.Thread, "start", limited)


def test_an_acquire_without_threads_fails_and_gives_back(
    valkey_server: embedded.Server, no_threads: Any, look: Any, unique_name: str
) -> None:
    """At once, also where the server does not know the script: none waits until the time of its request is over."""
    no_threads()
    began = time.monotonic()
    settings = DEFAULT._replace(request_timeout_s=PATIENCE_S)
    with holdfast.Client(redis.Redis.from_url(valkey_server.url), _settings=settings) as locks:
        for thing in (
            locks.lock(unique_name),
            locks.rwlock(unique_name).write(),
            locks.semaphore(unique_name, 1),
            locks.multilock(unique_name, f"{unique_name}-2"),
        ):
            look.script_flush()
            with pytest.raises(holdfast.CannotStartThread, match="can't start new thread"):
                thing.acquire()
        assert time.monotonic() < began + PATIENCE_S
        assert not locks.lock(unique_name).locked()
        assert locks.semaphore(unique_name).available() == 1


def test_a_tasks_acquire_without_threads_fails_and_works_when_they_are_back(
    valkey_server: embedded.Server, no_threads: Any, unique_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with holdfast.asyncio.connect(valkey_server.url) as locks:
            with pytest.raises(holdfast.CannotStartThread, match="can't start new thread"):
                await asyncio.wait_for(locks.lock(unique_name).acquire(), PATIENCE_S)
            monkeypatch.undo()
            async with locks.lock(unique_name) as lease:
                assert lease.state.name == "HELD"

    no_threads()
    asyncio.run(main())


def test_an_acquire_works_when_threads_are_back(
    valkey_server: embedded.Server, no_threads: Any, unique_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_threads()
    with holdfast.connect(valkey_server.url, ttl=0.5) as locks:
        with pytest.raises(holdfast.CannotStartThread):
            locks.lock(unique_name).acquire()
        monkeypatch.undo()
        with locks.lock(unique_name) as lease:
            assert not lease.lost.wait(1.0), "it is renewed"


def test_losses_are_told_without_new_threads(valkey_server: embedded.Server, no_threads: Any, unique_name: str) -> None:
    """And the other leases of the client are renewed, and told of their own loss."""
    with (
        holdfast.connect(valkey_server.url, ttl=0.6) as locks,
        redis.Redis.from_url(valkey_server.url) as raw,
    ):
        told: list[str] = []
        leases = [locks.lock(f"{unique_name}-{index}").acquire() for index in range(3)]
        for lease in leases:
            lease.on_lost(lambda error: told.append(error.name))
        time.sleep(0.5)  # the renewer has been needed once
        no_threads()
        raw.delete(f"holdfast:{{{unique_name}-0}}")
        assert leases[0].lost.wait(PATIENCE_S)
        eventually(lambda: told == [leases[0].name])
        assert not leases[1].lost.wait(1.5), "longer than two ttls"
        raw.delete(f"holdfast:{{{unique_name}-1}}")
        assert leases[1].lost.wait(PATIENCE_S)
        eventually(lambda: told == [leases[0].name, leases[1].name])
        assert leases[2].state.name == "HELD"
        locks.close()
        eventually(lambda: len(told) == 3)
        assert not raw.exists(f"holdfast:{{{unique_name}-2}}")


def test_a_server_that_hangs_takes_no_lease_of_others_where_no_threads_are_left(
    valkey_server: embedded.Server, private_server: Any, no_threads: Any, unique_name: str
) -> None:
    """The engine connects itself then, and renews nothing meanwhile."""
    hangs = private_server()
    with holdfast.connect(valkey_server.url, ttl=2) as locks, holdfast.connect(hangs.url) as others:
        lease = locks.lock(unique_name).acquire()
        no_threads()
        hangs.pause()
        try:
            with pytest.raises(holdfast.HoldfastError):
                others.lock(unique_name).acquire(timeout=3)
            lease.ensure_held()
        finally:
            hangs.resume()


# ---------------------------------------------------------------------- other ways


def test_closed_by_a_signal_handler_while_waiting(valkey_server: embedded.Server, unique_name: str) -> None:
    with holdfast.connect(valkey_server.url) as others, others.lock(unique_name):
        locks = holdfast.connect(valkey_server.url)
        kept = locks.lock(f"{unique_name}-kept").acquire()
        before = signal.signal(signal.SIGALRM, lambda *_: locks.close())
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            with pytest.raises(holdfast.ClientClosed):
                locks.lock(unique_name).acquire()
        finally:
            signal.signal(signal.SIGALRM, before)
        assert kept.lost.reason == "closed"
        eventually(lambda: others.lock(unique_name).waiters() == 0)
        assert not others.lock(f"{unique_name}-kept").locked()


def _downgrading(client: Any, name: str) -> Callable[[], object]:
    lease: holdfast.WriteLease = client.rwlock(name).write().acquire()
    return lease.downgrade


def _waiting(client: Any, name: str) -> Callable[[], object]:
    lock = client.lock(name)
    lease = lock.acquire()
    return lambda: (client.condition(lock).wait(), lease)


def _giving_back(client: Any, name: str) -> Callable[[], object]:
    held = TokenLock(client, name, None, renew=True).acquire(5)
    return held.give_back


def _releasing(client: Any, name: str) -> Callable[[], object]:
    lease: holdfast.Lease = client.lock(name).acquire()
    return lease.release


def _taking_again(client: Any, name: str) -> Callable[[], object]:
    lock = client.lock(name, cache_for=20)
    client.lock(f"{name}-other", cache_for=1).acquire().release()  # opens the inbox
    eventually(lambda: client._session.driver.client.listening(lock._keys.lock))
    lock.acquire().release()
    assert lock._keys.lock in client._session.driver.lease_cache
    acquire: Callable[[], object] = lock.acquire
    return acquire


@pytest.mark.parametrize("begin", [_downgrading, _waiting, _giving_back, _releasing, _taking_again])
def test_closed_between_what_a_caller_does_with_a_lease_and_the_request_that_follows(
    valkey_server: embedded.Server,
    unique_name: str,
    monkeypatch: pytest.MonkeyPatch,
    begin: Callable[[Any, str], Callable[[], object]],
) -> None:
    client: Any = holdfast.connect(valkey_server.url, ttl=60)
    act, driver = begin(client, unique_name), client._session.driver
    owner, step = (CachedLease, "take") if begin is _taking_again else (driver.schedule, "finish")
    done = getattr(owner, step)

    def closed_behind(*args: Any) -> bool:
        result: bool = done(*args)
        closing = threading.Thread(target=client.close)
        closing.start()
        closing.join(PATIENCE_S)
        return result

    monkeypatch.setattr(owner, step, closed_behind)
    with contextlib.suppress(holdfast.ClientClosed):
        act()
    assert driver.ended
    with holdfast.connect(valkey_server.url) as other:
        other.rwlock(unique_name).write().acquire(timeout=5).release()  # not after the ttl


def test_closed_within_its_own_body(valkey_server: embedded.Server, unique_name: str) -> None:
    """`close()` comes to its end; the next wait of the body is cancelled."""

    async def main() -> list[str]:
        locks = holdfast.asyncio.connect(valkey_server.url)
        log = []
        with pytest.raises(holdfast.LeaseLost, match="closed"):
            async with locks.lock(unique_name) as lease:
                await locks.close()
                log.append(lease.state.name)
                await asyncio.sleep(PATIENCE_S)
                log.append("not reached")
        task = asyncio.current_task()
        assert task is not None and task.cancelling() == 0
        return log

    assert asyncio.run(main()) == ["LOST"]


def test_a_cancelled_close_goes_on(valkey_server: embedded.Server, unique_name: str) -> None:
    async def main() -> None:
        locks = holdfast.asyncio.connect(valkey_server.url)
        lease = await locks.lock(unique_name).acquire()

        async def told(error: holdfast.LeaseLost) -> None:
            await asyncio.sleep(0.1)

        lease.on_lost(told)
        closing = asyncio.create_task(locks.close())
        await asyncio.sleep(0.02)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        await locks.close()  # waits for what is under way
        async with holdfast.asyncio.connect(valkey_server.url) as others:
            assert not await others.lock(unique_name).locked()

    asyncio.run(main())


def test_two_loops_in_succession(valkey_server: embedded.Server, unique_name: str) -> None:
    locks = holdfast.asyncio.connect(valkey_server.url, ttl=600)

    async def hold() -> Any:
        return await locks.lock(unique_name).acquire(timeout=1)

    first = asyncio.run(hold())
    second = asyncio.run(hold())
    assert [(lease.state.name, lease.lost.reason) for lease in (first, second)] == [("LOST", "closed")] * 2
    asyncio.run(locks.close())
    with pytest.raises(holdfast.ClientClosed):
        asyncio.run(hold())


def test_closed_after_its_loop_was_dropped(valkey_server: embedded.Server, unique_name: str) -> None:
    locks = holdfast.asyncio.connect(valkey_server.url, ttl=600)
    loop = asyncio.new_event_loop()
    lease = loop.run_until_complete(locks.lock(unique_name).acquire())
    loop.close()
    asyncio.run(locks.close())
    assert (lease.state.name, lease.lost.reason) == ("LOST", "closed")
    assert _left(valkey_server, unique_name) == 0


@pytest.mark.filterwarnings("ignore:the lease of lock:ResourceWarning")
def test_releases_that_are_cancelled_before_their_first_step(
    valkey_server: embedded.Server, unique_name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """At the end of an event loop, what they were to await has no owner, and no warning is given."""

    async def main() -> None:
        locks = holdfast.asyncio.connect(valkey_server.url, ttl=600)
        leases = [await locks.lock(f"{unique_name}-{i}").acquire() for i in range(5)]
        driver = locks._session.driver
        before = asyncio.all_tasks()
        for lease in leases:
            driver.schedule.remove(lease._record)
            driver.spawn(lease._record.release())
        for server in driver.topology.nodes():
            link: Any = server.link
            driver.engine.call(link._lost, None)
        for task in asyncio.all_tasks() - before:
            task.cancel()
        await locks.close()

    complaints: list[dict[str, Any]] = []
    with asyncio.Runner(debug=True) as runner:
        runner.get_loop().set_exception_handler(lambda loop, context: complaints.append(context))
        runner.run(main())
        gc.collect()
    assert complaints == []
    with redis.Redis.from_url(valkey_server.url) as raw:
        assert not raw.exists(*(f"holdfast:{{{unique_name}-{i}}}" for i in range(5)))


def test_what_sleeps_in_the_background_is_done_all_the_same(valkey_server: embedded.Server, unique_name: str) -> None:
    """A debt that is about to be paid: its thread is between two steps, or in one, when the client is closed."""
    locks = holdfast.connect(valkey_server.url)
    assert locks.lock(unique_name).holder() is None
    driver = locks._session.driver
    in_a_step = threading.Event()
    done: list[str] = []

    async def pay() -> None:
        await Sleep(0.0)
        in_a_step.set()
        eventually(lambda: driver.closed)
        time.sleep(0.02)  # noqa: ASYNC251 - no loop here; its end has been seen to, but for this
        await Sleep(10.0)
        done.append("paid")

    driver.spawn(pay())
    assert in_a_step.wait(PATIENCE_S)
    locks.close()
    assert done == ["paid"]


def test_a_transaction_of_a_client_that_was_closed_leaves_no_coroutine_behind(
    valkey_server: embedded.Server, unique_name: str
) -> None:
    async def main() -> None:
        locks = holdfast.asyncio.connect(valkey_server.url)

        async def late(transaction: Any) -> None:
            await locks.close()
            with pytest.raises(holdfast.ClientClosed):
                await transaction.get(unique_name)

        with contextlib.suppress(holdfast.ClientClosed):
            await locks.optimistic(unique_name).run(late)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        unraisable: list[Any] = []
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(sys, "unraisablehook", unraisable.append)
            asyncio.run(main())
            gc.collect()
    assert [str(each.exc_value) for each in unraisable] == []


def test_a_client_that_is_closed_amid_a_release_sends_it(
    valkey_server: embedded.Server, unique_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a signal handler, which has tried to release it, too."""
    with holdfast.connect(valkey_server.url, ttl=120) as locks, redis.Redis.from_url(valkey_server.url) as raw:
        lease = locks.lock(unique_name).acquire()
        schedule = locks._session.driver.schedule
        finish = schedule.finish

        def amid(*asked: Any) -> bool:
            ended = finish(*asked)
            monkeypatch.undo()
            with pytest.raises(holdfast.LeaseReleased):
                lease.release()
            locks.close()
            return ended

        monkeypatch.setattr(schedule, "finish", amid)
        with contextlib.suppress(holdfast.ClientClosed):
            lease.release()
        eventually(lambda: not raw.exists(f"holdfast:{{{unique_name}}}"))

"""Real processes: killed, stopped, forked, ended, interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis

import holdfast
from holdfast import embedded
from testbed.waiting import eventually
from tests.support.worker import workers

pytestmark = pytest.mark.usefixtures("nothing_left")

APIS = pytest.mark.parametrize("api", ["threads", "asyncio"])


@pytest.fixture
def raw(valkey_server: embedded.Server) -> Iterator[Any]:
    client = redis.Redis.from_url(valkey_server.url, decode_responses=True)
    yield client
    client.close()


def key(name: str) -> str:
    return f"holdfast:{{{name}}}"


@APIS
def test_21_a_killed_holder_is_followed_after_its_ttl(
    api: str, valkey_server: embedded.Server, raw: Any, unique_name: str
) -> None:
    with workers(api, valkey_server.url, 2) as (first, second):
        held = first.ask(f"acquire {unique_name} 3")
        assert held["state"] == "HELD"
        second.tell(f"acquire {unique_name} 3")
        eventually(lambda: raw.zcard(f"{key(unique_name)}:queue") == 1)
        first.signal(signal.SIGKILL)
        assert raw.get(key(unique_name)) == held["token"], "its lease lasts as long as it was given"
        after = second.answer()
        assert after["state"] == "HELD"
        assert after["fence"] > held["fence"]


@APIS
def test_52_a_killed_waiter_holds_up_nobody(
    api: str, valkey_server: embedded.Server, raw: Any, unique_name: str
) -> None:
    with workers(api, valkey_server.url, 3) as (holder, doomed, waiter):
        holder.ask(f"acquire {unique_name} 60")
        doomed.tell(f"acquire {unique_name} 60")
        eventually(lambda: raw.zcard(f"{key(unique_name)}:queue") == 1)
        channel = f"holdfast:inbox:{raw.zrange(f'{key(unique_name)}:queue', 0, 0)[0].partition(':')[0]}"
        waiter.tell(f"acquire {unique_name} 60")
        eventually(lambda: raw.zcard(f"{key(unique_name)}:queue") == 2)
        doomed.signal(signal.SIGKILL)
        eventually(lambda: raw.pubsub_numsub(channel)[0][1] == 0)
        last = raw.zrange(f"{key(unique_name)}:queue", -1, -1)[0]
        assert holder.ask("release")["state"] == "RELEASED"
        assert raw.get(key(unique_name)) == last
        assert waiter.answer()["token"] == last


@APIS
def test_13_a_stopped_waiter_costs_its_claim_and_not_a_ttl(
    api: str, valkey_server: embedded.Server, raw: Any, unique_name: str
) -> None:
    with workers(api, valkey_server.url, 3) as (holder, stopped, waiter):
        holder.ask(f"acquire {unique_name} 3600")
        stopped.tell(f"acquire {unique_name} 60")
        eventually(lambda: raw.zcard(f"{key(unique_name)}:queue") == 1)
        waiter.tell(f"acquire {unique_name} 60")
        eventually(lambda: raw.zcard(f"{key(unique_name)}:queue") == 2)
        stopped.signal(signal.SIGSTOP)
        first, last = raw.zrange(f"{key(unique_name)}:queue", 0, -1)
        assert holder.ask("release")["state"] == "RELEASED"
        assert raw.get(key(unique_name)) == first, "it was handed to the one that is stopped"
        assert waiter.answer()["token"] == last, "in seconds: the next waiter looks after it, before the hour is over"
        stopped.signal(signal.SIGCONT)
        eventually(lambda: raw.zcard(f"{key(unique_name)}:queue") == 1)
        assert waiter.ask("release")["state"] == "RELEASED"
        assert stopped.answer()["token"] == first, "it came back, and waited on"


@APIS
def test_13_a_stopped_holder_knows_of_its_loss_at_once(
    api: str, valkey_server: embedded.Server, unique_name: str
) -> None:
    with workers(api, valkey_server.url, 2) as (stopped, other):
        held = stopped.ask(f"acquire {unique_name} 2")
        stopped.signal(signal.SIGSTOP)
        after = other.ask(f"acquire {unique_name} 30")
        assert after["fence"] > held["fence"]
        stopped.tell("ensure")  # read as soon as it runs again, before its background can have said anything
        stopped.signal(signal.SIGCONT)
        assert stopped.answer()["error"] == "LeaseLost"
        assert stopped.ask("release")["error"] == "LeaseLost"
        assert other.ask("ensure")["state"] == "HELD", "the late release took nothing from it"


@APIS
def test_a_process_that_ends_releases(api: str, valkey_server: embedded.Server, raw: Any, unique_name: str) -> None:
    with workers(api, valkey_server.url, 1) as (worker,):
        worker.ask(f"acquire {unique_name} 600")
        assert worker.end() == 0
        assert not raw.exists(key(unique_name)), "it did not leave that to the ttl"


def _python(code: str, *args: str, **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code), *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def test_an_unhandled_error_releases_too(valkey_server: embedded.Server, raw: Any, unique_name: str) -> None:
    process = _python(
        """
        import sys, holdfast
        lease = holdfast.connect(sys.argv[1]).lock(sys.argv[2], ttl=600).acquire()
        raise SystemExit(3)
        """,
        valkey_server.url,
        unique_name,
    )
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (3, "")
    assert not raw.exists(key(unique_name))


def test_ctrl_c_while_waiting(valkey_server: embedded.Server, raw: Any, unique_name: str) -> None:
    locks = holdfast.connect(valkey_server.url)
    lease = locks.lock(unique_name).acquire()
    process = _python(
        """
        import signal, sys, holdfast
        signal.signal(signal.SIGINT, signal.default_int_handler)
        locks = holdfast.connect(sys.argv[1])
        try:
            locks.lock(sys.argv[2]).acquire()
        except KeyboardInterrupt:
            print("interrupted", flush=True)
            locks.close()
            sys.exit(130)
        """,
        valkey_server.url,
        unique_name,
    )
    eventually(lambda: raw.zcard(f"{key(unique_name)}:queue") == 1)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert (output, errors, process.returncode) == ("interrupted\n", "", 130)
    assert raw.zcard(f"{key(unique_name)}:queue") == 0, "it left the queue"
    lease.release()
    assert not raw.exists(key(unique_name))
    locks.close()


def test_20_after_fork_the_child_holds_nothing(valkey_server: embedded.Server, raw: Any, unique_name: str) -> None:
    process = _python(
        """
        import os, sys, threading, time, holdfast
        url, name = sys.argv[1:]
        locks = holdfast.connect(url)
        lease = locks.lock(name, ttl=3).acquire()
        waits = threading.Thread(target=lambda: locks.lock(name).acquire(timeout=60).release())
        waits.start()
        pid = os.fork()
        if pid == 0:
            try:
                assert lease.state.name == "LOST", lease
                assert locks.lock(name).try_acquire() is None
                mine = locks.lock(name + "-child").acquire()
                assert mine.token.partition(":")[0] != lease.token.partition(":")[0]
                until = time.monotonic() + 60
                while locks.lock(name + "-child").holder().pid != os.getpid():  # others find out who it is
                    assert time.monotonic() < until
                    time.sleep(0.01)
                mine.release()
                locks.close()
                os._exit(0)
            except BaseException:
                import traceback
                traceback.print_exc()
                os._exit(1)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert status == 0, status
        lease.ensure_held()
        lease.release()
        waits.join(60)
        locks.close()
        print("done")
        """,
        valkey_server.url,
        unique_name,
    )
    output, errors = process.communicate(timeout=100)
    assert (output, errors, process.returncode) == ("done\n", "", 0)
    assert not raw.exists(key(unique_name))


def test_20_after_fork_in_an_event_loop_the_child_holds_nothing(
    valkey_server: embedded.Server, raw: Any, unique_name: str
) -> None:
    process = _python(
        """
        import asyncio, os, sys, holdfast.asyncio as holdfast

        async def main(url, name):
            locks = holdfast.connect(url)
            lease = await locks.lock(name, ttl=3).acquire()
            waits = asyncio.ensure_future(locks.lock(name).acquire(timeout=60))
            while await locks.lock(name).waiters() < 1:
                await asyncio.sleep(0.01)
            pid = os.fork()
            if pid == 0:
                async def child():
                    assert lease.state.name == "LOST", lease
                    assert await locks.lock(name).try_acquire() is None
                    mine = await locks.lock(name + "-child").acquire()
                    assert mine.token.partition(":")[0] != lease.token.partition(":")[0]
                    await mine.release()
                    await locks.close()
                try:
                    asyncio.run(child())
                    os._exit(0)
                except BaseException:
                    import traceback
                    traceback.print_exc()
                    os._exit(1)
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            assert status == 0, status
            lease.ensure_held()
            await lease.release()
            await (await waits).release()
            await locks.close()
            print("done")

        asyncio.run(main(*sys.argv[1:]))
        """,
        valkey_server.url,
        unique_name,
    )
    output, errors = process.communicate(timeout=100)
    assert (output, errors, process.returncode) == ("done\n", "", 0)
    assert not raw.exists(key(unique_name))


def test_dropping_a_lease_warns_and_ends_its_renewal(valkey_server: embedded.Server, unique_name: str) -> None:
    locks = holdfast.connect(valkey_server.url)
    lease = locks.lock(unique_name, ttl=0.5).acquire()
    with pytest.warns(ResourceWarning, match=r"test_processes\.py:\d+"):
        del lease
    eventually(lambda: not locks.lock(unique_name).locked())
    locks.close()


def test_dropping_a_client_ends_its_threads(valkey_server: embedded.Server, unique_name: str) -> None:
    import threading

    before = set(threading.enumerate())
    locks = holdfast.connect(valkey_server.url)
    with locks.lock(unique_name):
        assert set(threading.enumerate()) - before
    del locks
    eventually(lambda: not set(threading.enumerate()) - before)


def test_one_thread_for_all_renewals(valkey_server: embedded.Server, raw: Any, unique_name: str) -> None:
    import threading

    before = threading.active_count()
    with holdfast.connect(valkey_server.url) as locks:
        leases = [locks.lock(f"{unique_name}-{number}", ttl=9).acquire() for number in range(300)]
        ends = [time.monotonic() + lease.remaining() for lease in leases]
        eventually(
            lambda: all(time.monotonic() + each.remaining() > end + 1 for each, end in zip(leases, ends, strict=True)),
            "all are renewed",
        )
        assert all(raw.pttl(key(lease.name)) > 0 for lease in leases)
        assert threading.active_count() - before <= 3
        assert all(lease.state is holdfast.LeaseState.HELD for lease in leases)
    assert not any(raw.exists(key(lease.name)) for lease in leases)


def test_20_the_parents_lease_survives_its_children(valkey_server: embedded.Server, unique_name: str) -> None:
    locks = holdfast.connect(valkey_server.url)
    lease = locks.lock(unique_name, ttl=20).acquire()
    for _ in range(3):
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
    lease.ensure_held()
    lease.release()
    locks.close()

"""Releases that are not waited for: what is done all the same, and what is told later."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from typing import Any

import pytest

from holdfast import embedded
from holdfast.errors import ConfigurationError, LeaseReleased
from testbed.proxy import Action, Proxy
from testbed.waiting import eventually
from tests.support.apis import Api
from tests.support.keys import key_of

#: Long enough that nothing here is freed by it.
TTL_S = 30


def is_free(look: Any, name: str) -> bool:
    return not look.exists(key_of(name))


def test_a_block_ends_before_the_release_is_answered(near: Any, wire: Proxy, look: Any, unique_name: str) -> None:
    lock = near.lock(unique_name, ttl=TTL_S, confirm_release=False)
    kept = wire.on("release", "hold the reply")
    with lock as lease:
        pass
    assert lease.state.name == "RELEASED"
    kept.wait()
    eventually(lambda: is_free(look, unique_name))
    kept.let_go()
    with pytest.raises(LeaseReleased):
        lease.release()
    assert not lease.lost.is_set()


def test_what_is_said_at_the_release_counts(near: Any, wire: Proxy, look: Any, unique_name: str) -> None:
    lease = near.lock(unique_name, ttl=TTL_S).acquire()
    kept = wire.on("release", "hold the reply")
    lease.release(wait=False)
    kept.wait()
    kept.let_go()
    lease = near.lock(unique_name, ttl=TTL_S, confirm_release=False).acquire()
    lease.release(wait=True)
    assert is_free(look, unique_name)
    with near.lock(unique_name) as lease, pytest.raises(ConfigurationError):
        lease.release(wait=1)
    with pytest.raises(ConfigurationError):
        near.lock(unique_name, confirm_release="no")


@pytest.mark.parametrize("kind", ["lock", "rwlock", "semaphore"])
def test_an_acquire_comes_behind_the_release(near: Any, wire: Proxy, unique_name: str, kind: str) -> None:
    if kind == "lock":
        lock = near.lock(unique_name, ttl=TTL_S, confirm_release=False)
    elif kind == "rwlock":
        lock = near.rwlock(unique_name, ttl=TTL_S, confirm_release=False).write()
    else:
        lock = near.semaphore(unique_name, permits=1, ttl=TTL_S, confirm_release=False)
    fences = []
    for _ in range(50):
        lease = lock.try_acquire()
        assert lease is not None, "the release before it was carried out first"
        fences.append(lease.fencing_token)
        lease.release()
    assert fences == sorted(set(fences))


def test_another_thread_or_task_comes_behind_it_as_well(api: Api, far: Any, unique_name: str) -> None:
    actors = [api.actor() for _ in range(3)]
    lock = far.lock(unique_name, ttl=TTL_S, confirm_release=False)
    for number in range(60):
        lease = actors[number % 3].ask(lock, "try_acquire")
        assert lease is not None
        actors[(number + 1) % 3].ask(lease, "release")


def test_a_lease_that_was_taken_is_told_as_lost(near: Any, look: Any, unique_name: str) -> None:
    lease = near.lock(unique_name, ttl=TTL_S, confirm_release=False).acquire()
    told: list[Any] = []
    lease.on_lost(told.append)
    look.set(key_of(unique_name), "another", px=TTL_S * 1000)
    lease.release()
    eventually(lambda: told)
    assert lease.lost.is_set()
    assert (told[0].name, told[0].reason, lease.state.name) == (unique_name, "taken", "LOST")
    assert look.get(key_of(unique_name)) == "another"


def test_the_next_acquire_tells_of_it_as_well(near: Any, look: Any, unique_name: str) -> None:
    lock = near.lock(unique_name, ttl=TTL_S, confirm_release=False)
    lease = lock.acquire()
    lost = lease.lost
    look.delete(key_of(unique_name))
    lease.release()
    again = lock.try_acquire()
    assert again is not None
    eventually(lost.is_set)
    again.release()


@pytest.mark.parametrize("action", ["swallow", "reset", "reset after"])
@pytest.mark.parametrize("then", ["nothing", "acquire", "close"])
def test_a_release_without_an_answer_is_repeated(
    near: Any, wire: Proxy, look: Any, unique_name: str, action: Action, then: str
) -> None:
    lock = near.lock(unique_name, ttl=3, confirm_release=False)
    lease = lock.acquire()
    lost = lease.lost
    failed = wire.on("release", action)
    lease.release()
    if then == "acquire":
        lock.acquire(timeout=20).release(wait=True)
    elif then == "close":
        near.close()
        assert is_free(look, unique_name)
    failed.wait()
    eventually(lambda: is_free(look, unique_name))
    assert not lost.is_set(), "it was released, if only in the second try"


def test_a_server_that_has_forgotten_the_scripts(near: Any, look: Any, unique_name: str) -> None:
    lock = near.lock(unique_name, ttl=TTL_S, confirm_release=False)
    for behind in (True, False):
        lease = lock.acquire()
        look.script_flush()
        lease.release()
        if behind:
            again = lock.try_acquire()
            assert again is not None
            again.release(wait=True)
        eventually(lambda: is_free(look, unique_name))
        assert not lease.lost.is_set()


def test_closing_waits_for_what_was_sent(near: Any, look: Any, unique_name: str) -> None:
    names = [f"{unique_name}-{number}" for number in range(40)]
    leases = [near.lock(name, ttl=TTL_S, confirm_release=False).acquire() for name in names]
    for lease in leases:
        lease.release()
    near.close()
    assert all(is_free(look, name) for name in names)


def test_many_are_answered_in_the_background(near: Any, look: Any, unique_name: str) -> None:
    """And their connections serve others again."""
    connections = look.info("clients")["connected_clients"]
    for round_ in range(3):
        leases = [near.lock(f"{unique_name}-{number}", ttl=TTL_S).acquire() for number in range(20)]
        for lease in leases:
            lease.release(wait=False)
        eventually(lambda: all(is_free(look, f"{unique_name}-{number}") for number in range(20)))
        assert round_ < 3
    assert look.info("clients")["connected_clients"] <= connections + 40


@pytest.mark.parametrize("end", ["", "sys.exit()", "os._exit(0)", "os.kill(os.getpid(), 9)"])
@pytest.mark.parametrize("api", ["threads", "asyncio"])
def test_nothing_is_left_when_the_process_ends_next(
    valkey_server: embedded.Server, look: Any, unique_name: str, end: str, api: str
) -> None:
    """Of a client that is warm; at an end that cannot be seen coming only where the engine was not about to write."""
    tries = 5 if end.startswith("os.") else 1
    names = (f"{unique_name}-{number}" for number in range(tries))
    assert any(_is_free_after(_PROGRAMS[api].format(valkey_server.url, name, end), look, name) for name in names)


_PROGRAMS = {
    "threads": """
import os, sys, holdfast
locks = holdfast.connect({0!r})
with locks.lock({1!r}): pass
with locks.lock({1!r}, ttl=300, confirm_release=False): print("held", flush=True)
{2}
""",
    # The release leaves at the end of this turn of the loop.
    "asyncio": """
import asyncio, os, sys, holdfast.asyncio
async def main():
    locks = holdfast.asyncio.connect({0!r})
    async with locks.lock({1!r}): pass
    async with locks.lock({1!r}, ttl=300, confirm_release=False): print("held", flush=True)
    await asyncio.sleep(0)
    {2}
asyncio.run(main())
""",
}


def _is_free_after(program: str, look: Any, name: str) -> bool:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "held\n", done.stderr
    with suppress(AssertionError):
        eventually(lambda: is_free(look, name), patience_s=5.0)
    return is_free(look, name)


def test_a_child_leaves_the_release_to_its_parent(valkey_server: embedded.Server, look: Any, unique_name: str) -> None:
    program = f"""
import os, holdfast
locks = holdfast.connect({valkey_server.url!r})
lock = locks.lock({unique_name!r}, confirm_release=False)
lease = lock.acquire()
lease.release()
child = os.fork()
if child == 0:
    with lock: pass
    locks.close()  # _exit waits for no release
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
with lock: print("held", flush=True)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "held\n", done.stderr
    eventually(lambda: is_free(look, unique_name))

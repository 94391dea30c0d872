"""A lease that one process hands to another, by a text."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast import ConfigurationError, LeaseLost, LeaseReleased, LeaseState
from holdfast._core.settings import DEFAULT
from testbed.waiting import eventually
from tests.support.apis import Api, AsyncioApi, close_brought, function_for

ROOT = Path(__file__).resolve().parents[2]


def bare(value: Any) -> Any:
    """Without what makes the asyncio API block."""
    return getattr(value, "_target", value)


def test_another_client_goes_on_with_it(locks: Any, others: Any, raw: Any, unique_name: str) -> None:
    lease = locks.lock(unique_name).acquire()
    token, fence = lease.token, lease.fencing_token
    handle = lease.handle()
    assert handle.isascii() and "\n" not in handle
    assert (lease.state, lease.held) == (LeaseState.RELEASED, False)
    with pytest.raises(LeaseReleased):
        lease.release()
    assert locks.lock(unique_name).locked()

    adopted = others.adopt(handle, ttl=60)
    assert (adopted.token, adopted.fencing_token, adopted.held) == (token, fence, True)
    assert raw.pttl(f"holdfast:{{{unique_name}}}") > 30_000
    assert others.lock(unique_name).try_acquire() is None
    adopted.release()
    assert not locks.lock(unique_name).locked()


def test_it_is_renewed_by_who_has_adopted_it(locks: Any, others: Any, unique_name: str) -> None:
    handle = locks.lock(unique_name, ttl=0.6).acquire().handle()
    adopted = others.adopt(handle, ttl=0.6)
    fence = adopted.fencing_token
    record = bare(adopted)._record
    start = record.renew_from
    eventually(lambda: record.renew_from > start + 1.2)  # renewed, more than one ttl later
    assert adopted.held and others.lock(unique_name).last_fencing_token() == fence
    adopted.release()


def test_a_waiter_is_handed_the_lock_by_who_has_adopted_it(locks: Any, others: Any, api: Api, unique_name: str) -> None:
    handle = locks.lock(unique_name).acquire().handle()
    adopted = others.adopt(handle)
    waiting = api.start(locks.lock(unique_name).acquire)
    eventually(lambda: others.lock(unique_name).status().waiters == 1)
    adopted.release()
    waiting.result(60).release()


def test_a_block_that_hands_it_over_releases_nothing(locks: Any, api: Api, unique_name: str) -> None:
    handles = []
    with locks.lock(unique_name) as lease:
        handles.append(lease.handle())
    assert locks.lock(unique_name).locked()
    locks.adopt(handles[0]).release()


def test_a_whole_ttl_is_left_for_the_way(locks: Any, others: Any, raw: Any, api: Api, unique_name: str) -> None:
    """Also of a lease that was just handed over, and begins with less."""
    first = locks.lock(unique_name, ttl=60).acquire()
    waiting = api.start(lambda: others.lock(unique_name, ttl=60).acquire().handle())
    eventually(lambda: locks.lock(unique_name).status().waiters == 1)
    first.release()
    handle = waiting.result(60)
    assert raw.pttl(f"holdfast:{{{unique_name}}}") > 30_000
    locks.adopt(handle).release()


def test_what_has_ended_cannot_be_adopted(locks: Any, others: Any, unique_name: str) -> None:
    handle = locks.lock(unique_name).acquire().handle()
    others.adopt(handle).release()
    with pytest.raises(LeaseLost, match="taken"):
        others.adopt(handle)
    later = locks.lock(unique_name).acquire()
    with pytest.raises(LeaseLost):
        others.adopt(handle)
    assert later.held
    later.release()


@pytest.mark.parametrize("cache_for", [None, 5.0])
@pytest.mark.parametrize("by", [1, -1, 5_000_000, -5_000_000, 2**52])
def test_an_altered_fencing_token_is_refused(
    locks: Any, others: Any, unique_name: str, by: int, cache_for: float | None
) -> None:
    if cache_for:  # a block of tokens, of which no one else knows which one is in use
        with locks.lock(unique_name, cache_for=cache_for):
            pass
    lease = locks.lock(unique_name, cache_for=cache_for).acquire()
    by = by * 2_000 if cache_for and abs(by) == 1 else by
    handle = lease.handle()
    altered = json.loads(handle)
    altered[4] += by
    with pytest.raises(ConfigurationError, match="handle"):
        others.adopt(json.dumps(altered))
    adopted = others.adopt(handle)
    assert adopted.fencing_token == json.loads(handle)[4]
    adopted.release()


@pytest.mark.parametrize("ahead_s", [0, 3600])
def test_one_that_is_forgotten_is_not_ahead_of_time(
    locks: Any, others: Any, raw: Any, unique_name: str, ahead_s: int
) -> None:
    """After a day the server remembers none."""
    handle = locks.lock(unique_name).acquire().handle()
    raw.delete(f"holdfast:{{{unique_name}}}:fence")
    altered = json.loads(handle)
    altered[4] += ahead_s * 1_000_000
    if ahead_s:
        with pytest.raises(ConfigurationError, match="altered"):
            others.adopt(json.dumps(altered))
    others.adopt(handle).release()


def test_a_late_extension_of_the_first_takes_nothing_back(
    locks: Any, others: Any, raw: Any, api: Api, unique_name: str
) -> None:
    """An extension that was sent before the handing over may be carried out after it."""
    key = f"holdfast:{{{unique_name}}}"
    lease = locks.lock(unique_name, ttl=60).acquire()
    record = bare(lease)._record
    lease.extend(20)
    late = record.extension(20_000, record._order(20_000, shortens=False)._replace(number=1))
    handle = lease.handle()
    adopted = others.adopt(handle, ttl=120)
    run = bare(locks)._session.run
    assert api.call(run, late) if isinstance(api, AsyncioApi) else run(late)
    assert raw.pttl(key) > 60_000
    adopted.release()


def test_a_process_adopts_it(api: Api, locks: Any, url: str, unique_name: str) -> None:
    if api.name == "asyncio":
        pytest.skip("the child is the same")
    lease = locks.lock(unique_name).acquire()
    fence = lease.fencing_token
    child = (
        "import sys, holdfast\n"
        "with holdfast.connect(sys.argv[1]) as locks, locks.adopt(sys.argv[2]) as lease:\n"
        "    print(lease.fencing_token)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", child, url, lease.handle()],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.stderr) == (f"{fence}\n", "")
    assert not locks.lock(unique_name).locked()


@pytest.mark.parametrize("text", ["", "{}", "null", "[1]", b"\xff", 5, None, '["holdfast lease", null, "n", "", 1, 0]'])
def test_what_is_no_handle_is_refused(locks: Any, text: Any) -> None:
    with pytest.raises(ConfigurationError, match="handle"):
        locks.adopt(text)


@pytest.mark.parametrize("at", [2, 3])
def test_a_handle_with_half_a_surrogate_pair_is_refused(locks: Any, unique_name: str, at: int) -> None:
    fields = json.loads(locks.lock(unique_name).acquire().handle())
    fields[at] += "\ud800"
    with pytest.raises(ConfigurationError, match="handle"):
        locks.adopt(json.dumps(fields))
    assert locks.lock(unique_name).locked()


def test_a_handle_of_another_namespace_is_refused(locks: Any, api: Api, url: str, unique_name: str) -> None:
    handle = locks.lock(unique_name).acquire().handle()
    with pytest.raises(ConfigurationError, match="namespace"):
        api.connect(url, namespace="elsewhere").adopt(handle)
    locks.adopt(handle).release()
    assert json.loads(handle)[2] == unique_name


def test_only_leases_of_locks(locks: Any, unique_name: str) -> None:
    for thing in (
        locks.rwlock(unique_name).read(),
        locks.rwlock(unique_name).write(),
        locks.semaphore(unique_name, 2),
        locks.multilock(unique_name, f"{unique_name}-2"),
    ):
        lease = thing.acquire()
        with pytest.raises(ConfigurationError, match="lease"):
            lease.handle()
        assert lease.held
        lease.release()
        assert not lease.held


def test_its_owner_is_who_has_adopted_it(locks: Any, api: Api, unique_name: str) -> None:
    """A reentrant lock knows it."""

    def steps(client: Any) -> Any:
        first = yield client.lock(unique_name).acquire()
        handle = yield first.handle()
        second = yield client.adopt(handle, reentrant=True)
        third = yield client.lock(unique_name, reentrant=True).acquire()
        assert third is second
        yield third.release()
        yield second.release()

    run = function_for(api, steps)
    if isinstance(api, AsyncioApi):
        api.run(run(bare(locks)))
    else:
        run(locks)


def test_waiters_of_the_same_client_do_not_go_on_with_it(api: Api, url: str, unique_name: str) -> None:
    """A client that hands a lock on among its own threads stops when the lease is handed over."""
    brought = api.redis().Redis.from_url(url)
    locks = api.client(brought, _settings=DEFAULT._replace(tenure_ms=60_000.0))
    lock = locks.lock(unique_name, ttl=60)
    lock.acquire().release()  # what follows knows how to ask
    lease = lock.acquire()
    waiting = api.start(lock.acquire)
    session = bare(locks)._session
    driver = session.driver
    lines = getattr(driver, "lines", {})
    eventually(lambda: lock.status().waiters == 1 or any(line.waiters for line in list(lines.values())))
    handle = lease.handle()
    adopted = locks.adopt(handle)
    assert not waiting.done() and adopted.held
    adopted.release()
    second = waiting.result(60)
    assert second.fencing_token > adopted.fencing_token
    second.release()
    close_brought(api, brought)
